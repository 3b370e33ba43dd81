"""``ordinate report``: what a comparison found, from its records alone."""

from __future__ import annotations

import dataclasses
import shlex
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ..checks import refusal_of
from ..lab.report.api import Report, read_report, write_report
from ..lab.report.gather import NothingToReport
from ..lab.report.summary import Arm, Summary
from ..lab.report.table import Column
from .errors import file_errors, misuse, misuse_of
from .output import plain_table

EPILOG = """Examples:

\b
  ordinate report runs/demo                     write report.html, report.md, report.json, figures/*.png
  ordinate report runs/demo --json              the numbers for a program; writes nothing
  ordinate report runs/demo --json | jq '.encodings[] | {encoding, stretch}'

Runs that are damaged, unfinished or of another comparison are named and left out of every mean.
The same records give the same bytes.
"""

#: What to do about runs that diverged; going on with them would not help.
DIVERGED = "a lower --learning-rate, and another --out"

# The columns a terminal has room for; the page has them all.
_OF_TEXT = ("stretch", "rise", "in_length_loss", "gain")
_OF_TASKS = ("stretch", "accuracy", "in_length_accuracy")


def command(
    directory: Path = typer.Argument(
        metavar="DIR", help="Of a comparison: what ordinate compare --out was given.", show_default=False
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the numbers as JSON and write nothing."),
) -> None:
    """Write the report of a comparison from its records: a page, Markdown, JSON and pictures."""
    report = make_report(directory, write=not as_json)
    for one in report.left_out:
        print(f"left out: {one}", file=sys.stderr)
    if as_json:
        print(report.to_json(), end="")
    else:
        print_report(Console(), report)
        print(f"\nreport: {report.files[0]}", file=sys.stderr)


def make_report(directory: Path, *, write: bool = True) -> Report:
    """Read a comparison's records, and write its report next to them."""
    hint = "ordinate compare --out runs/demo makes one"
    rule = "must be the folder of a comparison"
    with file_errors("DIR", rule, directory, hint):
        if not directory.is_dir():
            if (directory.parent / "sweep.json").is_file():
                hint = f"ordinate report {shlex.quote(str(directory.parent))}"
            state = "no folder" if directory.exists() else "not there"
            raise misuse("DIR", rule, f"{directory}, which is {state}", hint=hint)
    try:
        return write_report(directory) if write else read_report(directory)
    except NothingToReport as nothing:
        again = f"ordinate compare --resume --out {shlex.quote(str(directory))}"
        raise misuse_of(nothing, DIVERGED if nothing.all_diverged else again) from None
    except (FileNotFoundError, ValueError) as error:
        raise misuse_of(error, "ordinate compare --help") from None
    except ModuleNotFoundError as missing:
        refusal = refusal_of(missing)
        command = refusal.facts.get("command", "")
        raise misuse_of(dataclasses.replace(refusal, advice=""), str(command)) from None
    except OSError as error:
        rule, hint = "cannot be written: {reason}", f"ordinate report {directory} --json writes nothing"
        reason = error.strerror or error
        raise misuse(f"the report of {directory}", rule, hint=hint, reason=reason) from None


def print_report(console: Console, report: Report) -> None:
    """The headline, the table in brief and the findings."""
    narrative, summary = report.narrative, report.summary
    console.print(f"[bold]{escape(narrative.title)}[/]")
    console.print(Text(narrative.headline + "\n"))
    shown = _OF_TASKS if summary.by_accuracy else _OF_TEXT
    columns = [column for column in narrative.columns if column.key in shown]
    while columns and _least_width(summary, columns) > console.width:
        columns.pop()  # a narrow terminal gets fewer columns rather than broken words
    console.print(_table(summary, columns))
    for one in narrative.findings:
        console.print(Text.assemble("\n", (f"{one.topic}. ", "bold"), one.text))


def _table(summary: Summary, columns: list[Column]) -> Table:
    """As wide as its numbers need: titles are broken over lines, and numbers are not."""
    table = plain_table(2)
    table.add_column("encoding", no_wrap=bool(columns), overflow="fold")
    arms = summary.all_arms
    for column in columns:
        width = max(len(text) for text in [*column.title.split(), *_texts(arms, column)])
        title = textwrap.fill(column.title, width)
        table.add_column(title, justify="right", no_wrap=not _breaks(column), overflow="fold")
    for arm in arms:
        table.add_row(Text(arm.label), *(Text(column.cell(arm).text) for column in columns))
    return table


def _least_width(summary: Summary, columns: list[Column]) -> int:
    arms = summary.all_arms
    width = max(len(arm.label) for arm in arms)
    for column in columns:
        texts = _texts(arms, column)
        pieces = [word for text in texts for word in text.split()] if _breaks(column) else texts
        width += 2 + max(map(len, [*column.title.split(), *pieces]))
    return width


def _texts(arms: Iterable[Arm], column: Column) -> list[str]:
    return [column.cell(arm).text for arm in arms]


def _breaks(column: Column) -> bool:
    """Whether a cell may be broken between its words: ``1×, then refused``."""
    return column.key == "stretch"
