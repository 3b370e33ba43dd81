"""``ordinate plot``: a picture of an encoding in a file."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from ..checks import refusal_of
from ..extras import how_to_install
from ..plots.api import check_path, picture, save_picture
from ..plots.kinds import KINDS
from ..setting import PICTURE_OPTIONS, Setting
from .errors import errors_as_misuse, hint_of_spec, misuse, options_in
from .output import print_json

_HELP = "ordinate plot --help"

EPILOG = """Examples:

\b
  ordinate plot rope -o rope.png                                 the picture that says most
  ordinate plot rope -o rope.html                                the same, turning
  ordinate plot sinusoidal --positions 50 --dim 64 -o codes.svg  a map of the codes
  ordinate plot sinusoidal --kind channels --channels 2,6,12 -o channels.png
  ordinate plot rope:base=1e6 --kind waves --pairs 0,15,31 -o waves.png
  ordinate plot rope --kind scalings --factor 8 -o scalings.png  linear, NTK, YaRN, Llama 3
  ordinate plot alibi --kind bias --heads 12 -o alibi.png        a matrix for each head
  ordinate plot t5 --kind scores --json                          the numbers, not the picture
  ordinate plot --list                                           every kind of picture
"""

_OPTIONS = {
    "kind": "--kind",
    "path": "--output",
    "head_dim": "--dim",
    "d_model": "--dim",
    **{name: f"--{name.replace('_', '-')}" for name in PICTURE_OPTIONS},
}


def command(
    name: str | None = typer.Argument(
        None, metavar="NAME", help="An encoding, as in ordinate.create.", show_default=False
    ),
    kind: str | None = typer.Option(None, help="What to draw; see --list. Default: what says most."),
    output: Path | None = typer.Option(
        None, "--output", "-o", metavar="FILE", help="Where to draw it: .png, .svg or .html."
    ),
    positions: int | None = typer.Option(None, help="Positions, or tokens of a matrix."),
    dim: int = typer.Option(64, help="Channels: of a head, or of an embedding for codes."),
    heads: int = typer.Option(8, help="Number of heads, for biases."),
    distance: int = typer.Option(256, help="How far scores and biases are followed."),
    train_length: int = typer.Option(4096, help="Positions the model is taken to be trained on."),
    channels: str | None = typer.Option(None, metavar="N,N", help="Channels to pick out."),
    pairs: str | None = typer.Option(None, metavar="N,N", help="Pairs to pick out."),
    at: str | None = typer.Option(None, metavar="N,N", help="Positions to pick out. Default: 1,5."),
    factor: float | None = typer.Option(
        None, help="How far the scalings of --kind scalings stretch. Default: as NAME's own, else 8."
    ),
    text: str | None = typer.Option(
        None, help=f"The words of --kind attention. Default: {Setting.text}."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the numbers of the picture as JSON."),
    listed: bool = typer.Option(False, "--list", help="List the kinds of pictures, and exit."),
) -> None:
    """Draw an encoding: codes, rotations, biases, wavelengths, score against distance."""
    if listed:
        _print_list()
        return
    if name is None:
        raise misuse("NAME", "must be an encoding to draw", "none", hint="ordinate list")
    if output is None and not as_json:
        hint = f"ordinate plot {name} -o {name}.png"
        raise misuse("--output", "must be a file to draw into", "none", hint=hint)
    errors = (ValueError, TypeError, ModuleNotFoundError, OSError)
    with errors_as_misuse(_hint, _OPTIONS, options_in(name), errors):
        if output is not None:
            check_path(output)
        picked = {
            "channels": _numbers("--channels", channels), "pairs": _numbers("--pairs", pairs),
            "at": _numbers("--at", at), "factor": factor, "text": text,
        }  # fmt: skip
        given = {option: value for option, value in picked.items() if value is not None}
        drawn = picture(
            name, kind, positions=positions, dim=dim, heads=heads, distance=distance,
            train_length=train_length, **given,
        )  # fmt: skip
        _check_used(given, drawn.kind)
        if output is not None:
            save_picture(drawn, output)
            print(f"wrote {output}: {drawn.subject}, {drawn.title}", file=sys.stderr)
    if as_json:
        print_json(drawn.to_dict(), indent=None)


def _check_used(given: Iterable[str], kind: str) -> None:
    """Refuse an option that the kind of picture does not use."""
    for option in given:
        if option != KINDS[kind].picks:
            rule = "must be left out for {kind}, which has no use for it"
            raise misuse(f"--{option}", rule, hint=_HELP, kind=kind)


def _numbers(name: str, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise misuse(name, "must be numbers with commas", repr(text), hint=_HELP) from None


def _hint(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        return how_to_install("plot")
    refusal = refusal_of(error)
    about_kind = "kind" in (refusal.argument, *refusal.facts)
    return "ordinate plot --list" if about_kind else hint_of_spec(_HELP)(error)


def _print_list() -> None:
    console = Console(highlight=False)
    table = Table.grid(padding=(0, 2, 0, 0))
    for kind in KINDS.values():
        table.add_row(kind.name, kind.about)
    console.print(table)
