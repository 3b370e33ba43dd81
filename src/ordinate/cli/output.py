"""What commands print: JSON, tables, names with facts, notes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_NARROW = 40


def print_json(
    value: Any, *, indent: int | None = 2, default: Callable[[Any], Any] | None = None
) -> None:
    """For a program to read: every number unrounded."""
    print(json.dumps(value, indent=indent, ensure_ascii=False, default=default))


def plain_table(padding: int = 1) -> Table:
    """A table without lines."""
    return Table(box=None, padding=(0, padding, 0, 0), pad_edge=False, header_style="dim")


def print_facts(console: Console, rows: list[tuple[str, str]], title: str = "") -> None:
    """Names with a text each, side by side or, on a narrow terminal, below each other; nothing is cut off."""
    if title:
        console.print(Text(f"\n{title}", style="bold"))
    if console.width < _NARROW:
        for name, text in rows:
            console.print(Text(name, "dim", overflow="fold"))
            console.print(Padding(Text(text, overflow="fold"), (0, 0, 0, 2)))
        return
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", min_width=9, overflow="fold")
    grid.add_column(ratio=1, overflow="fold")
    for name, text in rows:
        grid.add_row(Text(name), Text(text))
    console.print(grid)


def print_notes(console: Console, notes: Iterable[str], warnings: Iterable[str]) -> None:
    """Notes and then warnings, each after a mark, its further lines indented."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=1)
    grid.add_column(ratio=1, overflow="fold")
    for note in notes:
        grid.add_row(Text("·", style="dim"), Text(note))
    for warning in warnings:
        grid.add_row(Text("!", style="bold yellow"), Text(warning))
    if grid.rows:
        console.print(grid)
