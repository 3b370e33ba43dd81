"""``ordinate show``: one encoding step by step, with real numbers."""

from __future__ import annotations

import shlex

import typer
from rich.console import Console
from rich.text import Text

from ..walkthrough.api import show
from ..walkthrough.walk import Walk, tables
from .errors import errors_as_misuse, hint_of_spec, options_in
from .output import print_json

EPILOG = """Examples:

\b
  ordinate show rope                          pairs, angles, rotation, norms, m - n
  ordinate show rope --position 100 --dim 64  another position, a real head
  ordinate show rope+yarn:factor=16           what a scaling does to each pair
  ordinate show t5:bidirectional=true         buckets and their matrix
  ordinate show alibi --heads 12              slopes of any number of heads
  ordinate show sinusoidal --length 16        codes row by row
  ordinate show rope --json                   for a program to read

Learned tables are shown as they are initialised, with a fixed seed.
"""

_OPTIONS = {
    "position": "--position",
    "positions": "--position",  # that of the one token
    "dim": "--dim",
    "head_dim": "--dim",
    "d_model": "--dim",
    "heads": "--heads",
    "num_heads": "--heads",
    "length": "--length",
    "train_length": "--train-length",
}

_MOST_LINES = 64  # of a table on a terminal; a file or a pipe gets all


def command(
    name: str = typer.Argument(
        metavar="NAME", help="An encoding, as in ordinate.create.", show_default=False
    ),
    position: int = typer.Option(3, help="The token whose computation is followed."),
    dim: int = typer.Option(8, help="Channels: of a head, or of an embedding for codes."),
    heads: int = typer.Option(8, help="Number of heads, for biases."),
    length: int = typer.Option(8, help="Tokens in the matrices."),
    train_length: int = typer.Option(4096, help="Positions the model is taken to be trained on."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON, every number unrounded."),
) -> None:
    """Show the formula of an encoding and its computation step by step, with real numbers."""
    with errors_as_misuse(hint_of_spec("ordinate show --help"), _OPTIONS, options_in(name)):
        walk = show(
            name, position=position, dim=dim, heads=heads, length=length, train_length=train_length
        )
    if as_json:
        print_json(walk.to_dict())
    else:
        _print(walk)


def _print(walk: Walk) -> None:
    console = Console(highlight=False)
    console.print(Text.assemble((walk.name, "bold"), "  ", (walk.description, "dim")))
    console.print(Text(walk.formula))
    for number, step in enumerate(walk.steps, start=1):
        console.print(Text.assemble(f"\n{number}. ", (step.title, "bold")))
        if step.formula:
            console.print(Text(f"   {step.formula}", style="cyan"))
        lines = [
            Text(line, style="dim" if index == 0 else "")
            for table in tables(step, width=console.width)
            for index, line in enumerate(table)
        ]
        shown = _MOST_LINES if console.file.isatty() else len(lines)
        for text in lines[:shown]:
            console.print(text, soft_wrap=True)
        if lines[shown:]:
            left = f"  … and {len(lines) - shown} lines; ordinate show {shlex.quote(walk.name)} | less has all"
            console.print(Text(left, style="dim"))
        if step.note:
            console.print(Text(f"  {step.note}", style="dim"))
