"""``ordinate list``: the catalog on a page."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..entries import catalog
from ..entry import Entry
from .output import plain_table, print_json

EPILOG = """Examples:

\b
  ordinate list                  every encoding and scaling
  ordinate list --json           with formulas and options, for a program to read

A name goes to the other commands, with options after a colon: ordinate show rope:base=1e6
"""

_WIDE = 72  # columns the table needs; narrower terminals get a paragraph for each entry

_PLACES = {
    "none": "nowhere",
    "embed": "embeddings",
    "rotate": "queries, keys",
    "bias": "logits",
    "scaling": "rope",
}


def command(
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """List the catalog: names, where each acts, learned or fixed, year and paper, who uses it."""
    if as_json:
        print_json([_as_dict(entry) for entry in catalog.values()])
        return
    console = Console(highlight=False)
    encodings = [entry for entry in catalog.values() if not entry.is_scaling]
    scalings = [entry for entry in catalog.values() if entry.is_scaling]
    for title, entries in (("encodings", encodings), ("scalings of rope", scalings)):
        if console.width < _WIDE:
            _print_stacked(console, title, entries)
        else:
            console.print(_table(title, entries))
        console.print()
    console.print(
        Text("ordinate show NAME explains one with numbers, ordinate plot NAME draws it", "dim")
    )


def _as_dict(entry: Entry) -> dict[str, object]:
    return {
        "name": entry.name,
        "class": entry.cls.__name__,
        "acts": entry.hook,
        "learned": entry.learned,
        "year": entry.year,
        "paper": entry.paper,
        "formula": entry.formula,
        "used_by": entry.used_by,
        "options": list(entry.parameters),
    }


def _table(title: str, entries: list[Entry]) -> Table:
    table = plain_table()
    table.add_column(Text(title, style="bold"), no_wrap=True)
    table.add_column("acts on", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("year and paper", overflow="fold")
    table.add_column("used by", ratio=1)
    for entry in entries:
        table.add_row(
            entry.name,
            _PLACES[entry.hook],
            "learned" if entry.learned else "fixed",
            f"{entry.year} {entry.paper}",
            entry.used_by,
        )
    return table


def _print_stacked(console: Console, title: str, entries: list[Entry]) -> None:
    console.print(Text(title, style="dim"))
    for entry in entries:
        learned = "learned" if entry.learned else "fixed"
        place = _PLACES[entry.hook]
        acts = "acts nowhere" if entry.hook == "none" else f"acts on {place}"
        console.print(Text.assemble((entry.name, "bold"), f"  {acts}, {learned}"))
        console.print(Text(f"  {entry.year} {entry.paper}; {entry.used_by}", style="dim"))
