"""A walk-through as a value: titled steps, each a small table of numbers, and how they print as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Cell = (
    float | int | str | None
)  # None is what does not exist: a masked key, the wavelength of what never turns


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
            parts.append("\n".join(["", head, *table_lines(step), *([step.note] if step.note else [])]))
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
    """Infinity and what is no number do not exist either: JSON has no word for them."""
    plain = cell.item() if isinstance(cell, torch.Tensor) else cell
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain


def table_lines(item: Step, width: int = 100, height: int = 24) -> list[str]:
    """A step's table as text of at most ``width`` columns and ``height`` lines; what is left out shows as …"""
    columns = [
        [item.columns[index], *formatted([row[index] for row in item.rows])]
        for index in range(len(item.columns))
    ]
    rows = len(item.rows)
    if rows > height:
        kept = height - 1
        columns = [[*column[: kept + 1], "…", column[-1]] for column in columns]
    columns = _fit_width(columns, width)
    sizes = [max(len(cell) for cell in column) for column in columns]
    lines = []
    for cells in zip(*columns, strict=True):
        line = "  ".join(cell.rjust(size) for cell, size in zip(cells, sizes, strict=True))
        lines.append(f"  {line}".rstrip())
    return lines


def _fit_width(columns: list[list[str]], width: int) -> list[list[str]]:
    """Columns from the middle give way until the rest fits."""
    sizes = [2 + max(len(cell) for cell in column) for column in columns]
    if sum(sizes) <= width or len(columns) < 3:
        return columns
    room, kept = width - sizes[-1] - 3, 0
    while kept < len(columns) - 1 and room - sizes[kept] >= 0:
        room -= sizes[kept]
        kept += 1
    return [*columns[: max(kept, 1)], ["…"] * len(columns[0]), columns[-1]]


def formatted(cells: Sequence[Cell]) -> list[str]:
    """Numbers as people read them; what does not exist is a dot.

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
