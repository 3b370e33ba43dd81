"""A walk-through as a value: titled steps, each a small table of numbers, and how they print as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

#: None is a value that does not exist: a masked key, the wavelength of a pair that does not turn.
Cell = float | int | str | None


@dataclass(frozen=True)
class Step:
    """One step: what is done, the formula, and a table of what came out.

    Attributes:
        columns: Headings; numbers follow in ``rows`` unrounded.
        note: What to see in the numbers.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    formula: str = ""
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "formula": self.formula,
            "columns": list(self.columns),
            "rows": [list(row) for row in self.rows],
            "note": self.note,
        }


@dataclass(frozen=True)
class Walk:
    """The computation of one encoding: print it, or read the numbers from ``steps``."""

    name: str
    description: str
    formula: str
    steps: tuple[Step, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "description": self.description,
            "formula": self.formula,
            "steps": [step.to_dict() for step in self.steps],
        }

    def __str__(self) -> str:
        parts = [f"{self.name}  {self.description}", self.formula]
        for number, step in enumerate(self.steps, start=1):
            head = f"{number}. {step.title}" + (f":  {step.formula}" if step.formula else "")
            lines = [line for table in tables(step) for line in table]
            parts.append("\n".join(["", head, *lines, *([step.note] if step.note else [])]))
        return "\n".join(part for part in parts if part or part is parts[-1])


def step(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    formula: str = "",
    note: str = "",
) -> Step:
    """A `Step` from anything that holds numbers, tensors of one element among them."""
    plain = tuple(tuple(_plain(cell) for cell in row) for row in rows)
    return Step(title, tuple(columns), plain, formula, note)


def _plain(cell: Any) -> Cell:
    """A Python number or text; None for infinity and NaN, which JSON cannot hold."""
    plain = cell.item() if isinstance(cell, torch.Tensor) else cell
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain


def tables(item: Step, width: int = 100) -> list[list[str]]:
    """A step's table as lines of at most ``width`` characters, the headings first.

    A table that is too wide is split into several, each with the first column.

    Example:
        >>> wide = Step("squares", ("number", "square", "cube"), ((7, 49, 343),))
        >>> tables(wide, width=18)
        [['  number  square', '       7      49'], ['  number  cube', '       7   343']]
    """
    columns = [
        [item.columns[index], *formatted([row[index] for row in item.rows])]
        for index in range(len(item.columns))
    ]
    return [_aligned(block) for block in _blocks(columns, width)]


def _blocks(columns: list[list[str]], width: int) -> list[list[list[str]]]:
    """As many columns side by side as fit, at least one next to the first."""
    first, *rest = columns
    sizes = {id(column): 2 + max(map(len, column)) for column in columns}
    blocks, room = [[first]], width - sizes[id(first)]
    for column in rest:
        if room < sizes[id(column)] and len(blocks[-1]) > 1:
            blocks.append([first])
            room = width - sizes[id(first)]
        blocks[-1].append(column)
        room -= sizes[id(column)]
    return blocks


def _aligned(columns: list[list[str]]) -> list[str]:
    sizes = [max(map(len, column)) for column in columns]
    lines = []
    for cells in zip(*columns, strict=True):
        line = "  ".join(cell.rjust(size) for cell, size in zip(cells, sizes, strict=True))
        lines.append(f"  {line}".rstrip())
    return lines


def formatted(cells: Sequence[Cell]) -> list[str]:
    """Numbers with few digits; None is a dot.

    Example:
        >>> formatted([1.0, 0.25, None, 3, 0.000123456])
        ['1.0000', '0.2500', '·', '3', '1.2346e-04']
    """
    return [_formatted(cell) for cell in cells]


def _formatted(cell: Cell) -> str:
    if cell is None:
        return "·"
    if not isinstance(cell, float):
        return str(cell)
    size = abs(cell)
    if size == 0 or 0.0009995 <= size < 100:
        return f"{cell:.4f}"
    if 100 <= size < 1e7:
        return f"{cell:.1f}"
    return f"{cell:.4e}"
