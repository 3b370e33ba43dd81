"""Reports on a terminal: one encoding as a list, several side by side, property by property."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ..verification.properties import Property
from ..verification.report import Status, VerifyReport, VerifyResult, figure_of

_STYLES = {
    Status.HOLDS: "green",
    Status.FAILS: "bold red",
    Status.NOT_CLAIMED: "yellow",
    Status.NOT_APPLICABLE: "dim",
}

# Of these a range says enough; counts are each their own.
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
    _print_legend(console)
    _print_notes(console, report.notes)


def print_several(console: Console, reports: Sequence[VerifyReport], chosen: Sequence[Property]) -> None:
    """Several encodings: the figures property by property, then who has what."""
    console.print(Text(f"{len(reports)} encodings · {reports[0].setting}", style="dim"))
    note = "learned tables as they are initialised; float64 where no other type is named"
    console.print(Text(note, style="dim"))
    names = [report.name for report in reports]
    for item in chosen:
        title = Text.assemble((f"\n{item.name}", "bold"), (f"  {item.meaning}", "dim"))
        console.print(title)
        table = _grid(24)
        for status in (Status.FAILS, Status.HOLDS, Status.NOT_CLAIMED):
            for group in _groups(reports, item.name, status):
                who = together([name for name, _ in group], names)
                table.add_row(_mark(status), who, _figure([result for _, result in group]))
        if not table.rows:  # only then is it worth a line to whom it does not apply
            for group in _groups(reports, item.name, Status.NOT_APPLICABLE):
                who = together([name for name, _ in group], names)
                table.add_row(_mark(Status.NOT_APPLICABLE), who, _figure([group[0][1]]))
        console.print(table)
    console.print()
    console.print(_matrix(reports, chosen))
    _print_legend(console)
    _print_notes(console, list(dict.fromkeys(note for report in reports for note in report.notes)))


def _groups(
    reports: Sequence[VerifyReport], name: str, status: Status
) -> list[list[tuple[str, VerifyResult]]]:
    """Results of one status, those that differ in their number alone together."""
    groups: dict[tuple[str, bool | None, str | None], list[tuple[str, VerifyResult]]] = {}
    for report in reports:
        result = report[name]
        if result.status is status:
            exact = None if result.unit in _SPANNABLE else result.figure
            groups.setdefault((result.sentence, result.holds, exact), []).append((report.name, result))
    return list(groups.values())


def together(names: Sequence[str], everyone: Sequence[str]) -> str:
    """Several names as briefly as a reader can still undo.

    Example:
        >>> together(["rope", "rope+ntk", "t5"], ["rope", "rope+ntk", "t5", "none", "alibi", "shaw"])
        'rope, +ntk, t5'
    """
    if len(names) == len(everyone) > 2:
        return f"all {len(everyone)}"
    others = [name for name in everyone if name not in names]
    if len(names) > 4 and len(others) <= 2:
        return f"all but {', '.join(others)}"
    scaled = [name for name in everyone if name.startswith("rope+")]
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
    """Marks of the properties that set encodings apart; the required ones are only counted."""
    apart = [item for item in chosen if not item.required]
    required = [item for item in chosen if item.required]
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
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


def _print_notes(console: Console, notes: Sequence[str]) -> None:
    for note in notes:
        console.print(Text(note, style="dim"))


def _print_legend(console: Console) -> None:
    legend = Text("\n")
    for status in Status:
        legend.append(f"{status.mark} ", style=_STYLES[status])
        legend.append(f"{status.value}   ", style="dim")
    console.print(legend)


def _grid(width: int) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=1)
    table.add_column(width=width)
    table.add_column(ratio=1)
    return table


def _mark(status: Status) -> Text:
    return Text(status.mark, style=_STYLES[status])


def _figure(results: Sequence[VerifyResult]) -> Text:
    status = results[0].status
    text = figure_of(results)
    return Text(text, style="dim" if status is Status.NOT_APPLICABLE else "")
