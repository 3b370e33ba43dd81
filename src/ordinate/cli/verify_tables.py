"""Reports on a terminal: one encoding as a list, several side by side, property by property."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ..verification.properties import Property
from ..verification.report import Status, VerifyReport, VerifyResult, figure_of
from .output import plain_table

_STYLES = {
    Status.HOLDS: "green",
    Status.FAILS: "bold red",
    Status.NOT_CLAIMED: "yellow",
    Status.NOT_APPLICABLE: "dim",
}

# Figures of these units are printed as a range; counts are printed one by one.
_SPANNABLE = ("relative", "logits", "distance")


def print_one(console: Console, report: VerifyReport) -> None:
    """One encoding: a line for each property that applies to it."""
    console.print(f"[bold]{escape(report.name)}[/]  [dim]{report.setting}[/]\n")
    table = _grid(max((len(result.name) for result in report), default=0))
    skipped = [result for result in report if result.status is Status.NOT_APPLICABLE]
    for result in report:
        if result not in skipped:
            table.add_row(_mark(result.status), result.name, _figure([result]))
    console.print(table)
    if skipped:
        names = ", ".join(result.name for result in skipped)
        console.print(Text(f"\n– does not apply: {names}", style="dim"))
    _print_legend_and_notes(console, report.notes)


def print_several(console: Console, reports: Sequence[VerifyReport], chosen: Sequence[Property]) -> None:
    """Several encodings: the figures property by property, then a table of encodings and properties."""
    console.print(Text(f"{len(reports)} encodings · {reports[0].setting}", style="dim"))
    note = "learned tables as they are initialised; float64 where no other type is named"
    console.print(Text(note, style="dim"))
    names = [report.name for report in reports]
    for item in chosen:
        console.print(Text.assemble((f"\n{item.name}", "bold"), (f"  {item.meaning}", "dim")))
        table = _grid(24)
        judged = (Status.FAILS, Status.HOLDS, Status.NOT_CLAIMED)
        groups = [group for status in judged for group in _groups(reports, item.name, status)]
        # Encodings that a property does not apply to are listed only where it applies to none.
        for group in groups or _groups(reports, item.name, Status.NOT_APPLICABLE):
            results = [result for _, result in group]
            encodings = shortened([name for name, _ in group], names)
            table.add_row(_mark(results[0].status), encodings, _figure(results))
        console.print(table)
    console.print()
    console.print(_matrix(reports, chosen))
    notes = dict.fromkeys(note for report in reports for note in report.notes)
    _print_legend_and_notes(console, list(notes))


def _groups(
    reports: Sequence[VerifyReport], name: str, status: Status
) -> list[list[tuple[str, VerifyResult]]]:
    """Results of one status, grouped: those of a group differ in their number alone."""
    groups: dict[tuple[str, bool | None, str | None], list[tuple[str, VerifyResult]]] = {}
    for report in reports:
        result = report[name]
        if result.status is status:
            exact = None if result.unit in _SPANNABLE else result.figure
            groups.setdefault((result.sentence, result.holds, exact), []).append((report.name, result))
    return list(groups.values())


def shortened(names: Sequence[str], all_names: Sequence[str]) -> str:
    """Several names in short, so that a reader can still tell every one.

    Example:
        >>> shortened(["rope", "rope+ntk", "t5"], ["rope", "rope+ntk", "t5", "none", "alibi", "shaw"])
        'rope, +ntk, t5'
    """
    if len(names) == len(all_names) > 2:
        return f"all {len(all_names)}"
    others = [name for name in all_names if name not in names]
    if len(names) > 4 and len(others) <= 2:
        return f"all but {', '.join(others)}"
    scaled = [name for name in all_names if name.startswith("rope+")]
    if len(scaled) > 2 and set(scaled) <= set(names):
        plain = "rope (any scaling)" if "rope" in names else "rope with any scaling"
        rest = [name for name in names if name != "rope" and name not in scaled]
        return ", ".join([*rest, plain])
    brief, seen = [], False
    for name in names:
        rotary = name == "rope" or name.startswith("rope+")
        brief.append(name.removeprefix("rope") if rotary and seen and name != "rope" else name)
        seen = seen or rotary
    return ", ".join(brief)


def _matrix(reports: Sequence[VerifyReport], chosen: Sequence[Property]) -> Table:
    """Marks of the properties that differ among encodings; the required ones are only counted."""
    apart = [item for item in chosen if not item.required]
    required = [item for item in chosen if item.required]
    table = plain_table()
    table.add_column("")
    for item in apart:
        table.add_column(item.short, justify="center", no_wrap=True)
    if required:
        table.add_column("required", justify="center", no_wrap=True)
    for report in reports:
        row = [Text(report.name), *(_mark(report[item.name].status) for item in apart)]
        if required:
            row.append(_count([report[item.name] for item in required]))
        table.add_row(*row)
    return table


def _count(results: Sequence[VerifyResult]) -> Text:
    failed = sum(result.status is Status.FAILS for result in results)
    status = Status.FAILS if failed else Status.HOLDS
    return Text(f"✗ {failed} of {len(results)}" if failed else "✓", style=_STYLES[status])


def _print_legend_and_notes(console: Console, notes: Sequence[str]) -> None:
    legend = Text("\n")
    for status in Status:
        legend.append(f"{status.mark} ", style=_STYLES[status])
        legend.append(f"{status.value}   ", style="dim")
    console.print(legend)
    for note in notes:
        console.print(Text(note, style="dim"))


def _grid(width: int) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=1)
    table.add_column(width=width)
    table.add_column(ratio=1)
    return table


def _mark(status: Status) -> Text:
    return Text(status.mark, style=_STYLES[status])


def _figure(results: Sequence[VerifyResult]) -> Text:
    style = "dim" if results[0].status is Status.NOT_APPLICABLE else ""
    return Text(figure_of(results), style=style)
