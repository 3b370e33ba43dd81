"""Names and what is said of them, side by side, or one below the other where a terminal is narrow."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_NARROW = 40


def facts(console: Console, rows: list[tuple[str, str]]) -> RenderableType:
    """Rows of a name and a text; nothing is cut off at any width."""
    if console.width < _NARROW:
        lines: list[RenderableType] = []
        for name, text in rows:
            lines += [
                Text(name, "dim", overflow="fold"),
                Padding(Text(text, overflow="fold"), (0, 0, 0, 2)),
            ]
        return Group(*lines)
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", min_width=9, overflow="fold")
    grid.add_column(ratio=1, overflow="fold")
    for name, text in rows:
        grid.add_row(Text(name), Text(text))
    return grid


def mark(sign: str, style: str, text: str) -> RenderableType:
    """A sentence behind a sign, its further lines indented."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=1)
    grid.add_column(ratio=1, overflow="fold")
    grid.add_row(Text(sign, style=style), Text(text))
    return grid
