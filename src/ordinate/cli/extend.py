"""``ordinate extend``: a config with which a model reads further."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text

from ..checks import refusal_of, short
from ..hf.config.config_file import config_path
from ..hf.config.plan import ConfigError
from ..hf.extension import Extension, extend
from ..hf.scaling_settings import METHODS
from .errors import errors_as_misuse, misuse
from .output import print_facts, print_json, print_notes

EPILOG = """Examples:

\b
  ordinate extend config.json --to 32768                   YaRN, into config-32768.json next to it
  ordinate extend config.json --to 32768 --method dynamic  short contexts stay as they are
  ordinate extend config.json --to 65536 -o long.json      into a file of your own
  ordinate extend path/to/model --to 32768 --in-place      over the model's own config.json
  ordinate extend config.json --to 32768 --dry-run         what it would do
  ordinate extend config.json --to 32768 --from 4096       the trained length, where the config hides it
  ordinate extend config.json --to 32768 --dry-run --json  for a program to read

The file is written whole or not at all, and never over another unless told.
"""


_HELP = "ordinate extend --help"

# Argument of the library → option of the command.
_OPTIONS = {
    "source": "CONFIG",
    "to": "--to",
    "method": "--method",
    "original_max_positions": "--from",
    "replace=True": "--replace",
    "path": "--output",
}


def command(
    config: Path = typer.Argument(
        metavar="CONFIG", help="A config.json, or a folder with one.", show_default=False
    ),
    to: int = typer.Option(
        ..., "--to", metavar="N", help="The context to reach, in tokens.", show_default=False
    ),
    method: str = typer.Option("yarn", metavar="NAME", help=f"One of {', '.join(METHODS)}."),
    original_max_positions: int | None = typer.Option(
        None,
        "--from",
        metavar="N",
        help="The length it was trained at. Default: what the config says.",
        show_default=False,
    ),
    output: Path | None = typer.Option(
        None,
        "--output",
        "-o",
        metavar="FILE",
        help="Where to write. Default: config-N.json next to the old one.",
        show_default=False,
    ),
    in_place: bool = typer.Option(False, "--in-place", help="Write over the old config."),
    force: bool = typer.Option(False, "--force", help="Write over a file that exists."),
    replace: bool = typer.Option(
        False, "--replace", help="Take the place of a scaling the model was trained with."
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Write nothing."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON, with the new config."),
) -> None:
    """Write a config with which a rotary model reads longer contexts, and print its effects."""
    if in_place and output is not None:
        raise misuse("--in-place and --output", "must not be given together", hint=_HELP)
    options = {**_OPTIONS, "path": "CONFIG"} if in_place else _OPTIONS
    with errors_as_misuse(_hint, options, errors=(ConfigError,)):
        old = config_path(config)
        found = extend(
            old,
            to,
            method,  # type: ignore[arg-type]
            original_max_positions=original_max_positions,
            replace=replace,
        )
        target = (
            old if in_place else output if output is not None else old.with_name(f"{old.stem}-{to}.json")
        )
        if not dry_run:
            found.save(target, overwrite=in_place or force)
    written = None if dry_run else str(target)
    if as_json:
        print_json(_to_dict(found, written), default=short)
    else:
        _print(Console(highlight=False), found)
    if written is not None:
        print(f"wrote {written}", file=sys.stderr)


def _hint(error: Exception) -> str:
    refusal = refusal_of(error)
    if "replace" in refusal.facts:
        return "ordinate extend --replace, if you know what the model was trained with"
    if isinstance(error.__context__, FileExistsError):
        return "ordinate extend --force writes over it, --output elsewhere"
    if refusal.argument == "original_max_positions":
        return "ordinate extend --from N, the length the model was trained at before any scaling"
    return _HELP


def _to_dict(found: Extension, written: str | None) -> dict:
    return {
        "method": found.method,
        "original_max_positions": found.original_max_positions,
        "context": found.context,
        "to": found.to,
        "factor": found.factor,
        "slowdown": found.slowdown,
        "changed": {key: {"old": old, "new": new} for key, (old, new) in found.changed.items()},
        "bands": [asdict(band) for band in found.bands],
        "cost": asdict(found.cost),
        "notes": list(found.notes),
        "warnings": list(found.after.warnings),
        "path": written,
        "config": found.config,
    }


def _print(console: Console, found: Extension) -> None:
    trained, context = found.original_max_positions, found.context
    at = "" if trained == context else f" (trained at {trained})"
    head = f"  {context} → {found.to} positions by {found.method}{at}"
    console.print(Text.assemble((found.before.family, "bold"), head))
    rows = [(key, f"{_value(old)} → {_value(new)}") for key, (old, new) in found.changed.items()]
    print_facts(console, rows, "changed")
    changes = {
        "kept": "as before",
        "blended": "slowed in part, slower pairs more",
        "interpolated": f"slowed {found.slowdown:.4g} times",
    }
    rows = [
        (
            f"pair {band.first}" if band.first == band.last else f"pairs {band.first}–{band.last}",
            changes[band.fate],
        )
        for band in found.bands
    ]
    print_facts(console, rows, "frequencies")
    print_facts(console, _cost(found), "at short context")
    print_notes(console, found.notes, found.after.warnings)


def _cost(found: Extension) -> list[tuple[str, str]]:
    cost, trained = found.cost, found.original_max_positions
    if cost.short_context_kept:
        change = (
            f"contexts up to {trained} are read as before; past that, old keys turn anew at every step"
        )
        return [("nothing", change)]
    logits = f"of turned channels are multiplied by {cost.logit_factor:.4g}, at every length"
    change = f"change by up to {cost.score_change:.0%} of their largest, at distance {cost.at_distance}"
    return [
        *([("logits", logits)] if cost.logit_factor != 1 else []),
        ("scores", f"of equal vectors {change}"),
        ("advice", "keep the old config for short inputs, or fine-tune on both"),
    ]


def _value(value: object) -> str:
    return "nothing" if value is None else json.dumps(value, ensure_ascii=False, default=short)
