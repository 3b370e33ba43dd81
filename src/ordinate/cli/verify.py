"""``ordinate verify``: measure what encodings claim, and print it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from ..checks import check_at_most, check_size, refusal_of
from ..encoding import PositionEncoding
from ..entries import create, example_specs, parse
from ..verification.api import select, verify
from ..verification.properties import PROPERTIES, Property
from ..verification.report import VerifyReport
from .errors import errors_as_misuse, hint_of_spec, options_in
from .output import print_json
from .verify_tables import print_one, print_several

_HELP, _LIST = "ordinate verify --help", "ordinate verify --list"

EPILOG = """Examples:

\b
  ordinate verify                                    every encoding of the catalog
  ordinate verify rope alibi t5                      some, side by side
  ordinate verify rope:base=1e6 rope+yarn:factor=16  with options
  ordinate verify rope+alibi                         two at once
  ordinate verify --property shift --property decay  some properties
  ordinate verify sinusoidal --d-model 32 --json     for a program to read
  ordinate verify --list                             what can be named

Exit code: 0 if everything claimed holds, 1 if something fails, 2 for misuse.
"""

_OPTIONS = {"head_dim": "--head-dim", "d_model": "--d-model", "num_heads": "--heads"}

# The largest sizes to measure at: a typing error costs a sentence, not the memory.
_LARGEST = {"--head-dim": 1024, "--heads": 1024, "--d-model": 2**14, "--train-length": 2**24}
_LARGEST_TABLE = 2**26  # numbers, half a gigabyte in float64


def command(
    names: list[str] | None = typer.Argument(
        None,
        metavar="NAME",
        help="Encodings, as in ordinate.create. Default: all.",
        show_default=False,
    ),
    properties: list[str] | None = typer.Option(
        None,
        "--property",
        "-p",
        metavar="NAME",
        help="Only this property, or the start of its name. Repeatable.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    head_dim: int = typer.Option(64, help="Channels of a head."),
    heads: int = typer.Option(8, help="Number of heads."),
    d_model: int | None = typer.Option(
        None, help="Width of the embeddings. Default: heads times head_dim.", show_default=False
    ),
    train_length: int = typer.Option(4096, help="Positions the model is taken to be trained on."),
    listed: bool = typer.Option(False, "--list", help="List encodings and properties, and exit."),
) -> None:
    """Measure the properties of position encodings, each by running it.

    A property is judged where the encoding claims it, or where every encoding must have it;
    elsewhere it is measured and shown as not claimed.
    """
    width = heads * head_dim if d_model is None else d_model
    _check_sizes(head_dim, heads, d_model, train_length)
    if listed:
        _print_list(head_dim)
        return
    with errors_as_misuse(_LIST):
        chosen = select(properties or None)
    encodings = _create_all(
        names, d_model=width, num_heads=heads, head_dim=head_dim, max_positions=train_length
    )
    torch.set_num_threads(1)  # on tensors this small, threads wait for each other more than they help
    started = time.perf_counter()
    with errors_as_misuse(_HELP, errors=(ValueError, TypeError, MemoryError)):
        reports = [
            verify(
                encoding, properties=[item.name for item in chosen], name=name, d_model=width,
                num_heads=heads, head_dim=head_dim, train_length=train_length,
            )
            for name, encoding in _with_progress(encodings)
        ]  # fmt: skip
    ok = all(report.ok for report in reports)
    if as_json:
        print_json({"ok": ok, "encodings": [report.to_dict() for report in reports]})
    else:
        _print(reports, chosen, time.perf_counter() - started)
    raise typer.Exit(0 if ok else 1)


def _check_sizes(head_dim: int, heads: int, d_model: int | None, train_length: int) -> None:
    sizes = (head_dim, heads, d_model, train_length)
    with errors_as_misuse(_HELP):
        for (option, most), size in zip(_LARGEST.items(), sizes, strict=True):
            if size is not None:
                check_size(option, size, most=most)
        check_at_most("--heads times --head-dim", heads * head_dim, _LARGEST["--d-model"])


def _create_all(names: list[str] | None, **sizes: int) -> list[tuple[str, PositionEncoding]]:
    """Every encoding asked for, made before anything is measured; a bare name is measured as its example."""
    examples = example_specs(sizes["head_dim"])
    created = []
    torch.manual_seed(0)  # learned tables, and so their figures, are the same every time
    for name in names or examples:
        spec = examples.get(name) or examples.get(f"rope+{name}") or name
        with errors_as_misuse(_hint, _OPTIONS, options_in(spec)):
            _check_tables(spec, sizes)
            created.append((name, create(spec, **sizes)))
    return created


def _hint(error: Exception) -> str:
    about_option = "option" in refusal_of(error).facts
    return _LIST if about_option or hint_of_spec(_HELP)(error) != _HELP else _HELP


def _check_tables(spec: str, sizes: dict[str, int]) -> None:
    """The table of an encoding, and the keys a bias is measured with, must be of a sensible size."""
    for entry, options in parse(spec):
        numbers = entry.numbers_in_table(options, sizes)
        check_at_most(f"numbers in the table of {entry.name}", numbers, _LARGEST_TABLE)
        if entry.hook == "bias":  # which is followed over all of the training length
            keys = sizes["max_positions"] * sizes["num_heads"] * sizes["head_dim"]
            check_at_most(
                f"--train-length times --heads times --head-dim, for {entry.name},", keys, _LARGEST_TABLE
            )


def _with_progress(
    encodings: list[tuple[str, PositionEncoding]],
) -> Iterator[tuple[str, PositionEncoding]]:
    """The same, with a progress bar on a terminal."""
    columns = (TextColumn("measuring {task.description:<17}"), BarColumn(), MofNCompleteColumn())
    shown = sys.stderr.isatty() and len(encodings) > 1
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not shown) as progress:
        task = progress.add_task("", total=len(encodings))
        for name, encoding in encodings:
            progress.update(task, description=name)
            yield name, encoding
            progress.advance(task)


def _print(reports: list[VerifyReport], chosen: list[Property], seconds: float) -> None:
    console = Console(highlight=False)
    if len(reports) == 1:
        print_one(console, reports[0])
    else:
        print_several(console, reports, chosen)
    for report in reports:
        for result in report.failures:
            line = Text.assemble(("✗ ", "bold red"), f"{report.name}, {result.name}: {result.figure}")
            console.print(line)
    judged = sum(r.status in ("holds", "fails") for report in reports for r in report)
    failed = sum(len(report.failures) for report in reports)
    count = "1 encoding" if len(reports) == 1 else f"{len(reports)} encodings"
    failing = f", [bold red]{failed} fail[/]" if failed else ""
    console.print(
        f"\n{count}: {judged - failed} of {judged} claims and requirements hold{failing} ({seconds:.0f} s)"
    )


def _print_list(head_dim: int) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print("[bold]encodings[/]  (options after a colon, see ordinate.create)")
    for name, spec in example_specs(head_dim).items():
        shown = spec if len(spec) < 60 else f"{spec[:57]}…"
        console.print(f"  {name:<18} {'' if shown == name else shown}", markup=False)
    console.print("\n[bold]properties[/]  (* required of every encoding)")
    for item in PROPERTIES.values():
        console.print(f"{'*' if item.required else ' '} {item.name:<25} {item.meaning}", markup=False)
