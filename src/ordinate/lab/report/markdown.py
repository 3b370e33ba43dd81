"""The report as Markdown, for repositories: the same words and tables, with the pictures beside it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ...plots.pictures import Picture
from .. import formats as words
from .sentences import Narrative
from .summary import Arm, Summary
from .table import Column, last_tokens

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#])")


def build_markdown(
    summary: Summary, narrative: Narrative, charts: Sequence[Picture], folder: str
) -> str:
    """The whole report as text; pictures are looked for in ``folder`` beside it."""
    parts = [
        f"# {_plain(narrative.title)}",
        f"**{_plain(narrative.headline)}**",
        "\n".join(f"- {_plain(name)}: {_plain(text)}" for name, text in narrative.facts),
        "## Findings",
        *(f"**{one.topic}.** {_plain(one.text)}" for one in narrative.findings),
        "## Side by side",
        _table(narrative.columns, summary.arms),
    ]
    if summary.extensions:
        parts += [
            "### Stretched without training",
            _table(narrative.extension_columns, summary.extensions),
        ]
    for chart in charts:
        parts += [
            f"## {_plain(chart.title)}",
            f"![{_plain(chart.title)}]({folder}/{chart.kind}.png)",
            _plain(chart.note),
        ]
    parts += [
        "## Loss by length",
        "Nats per token, mean ± standard deviation over seeds.",
        _lengths(summary, _loss),
        *_last_tokens(summary),
        "## What the columns mean",
        "\n".join(
            f"- **{_plain(column.title)}**: {_plain(column.meaning)}" for column in narrative.columns
        ),
        "## Reproduce it",
        "```sh\n" + "\n".join(narrative.commands) + "\n```",
        "\n".join(f"- {_plain(name)}: {_plain(text)}" for name, text in narrative.environment),
        narrative.caution,
    ]
    return "\n\n".join(parts) + "\n"


def _table(columns: Sequence[Column], arms: Sequence[Arm]) -> str:
    heads = [f"{column.title} ({column.unit})" if column.unit else column.title for column in columns]
    lines = [[arm.label, *(column.cell(arm).text for column in columns)] for arm in arms]
    return _grid(["encoding", *heads], lines)


def _last_tokens(summary: Summary) -> list[str]:
    """The same table for the last tokens of a sequence, where every token is asked for."""
    if summary.by_accuracy:
        return []
    count = summary.gathered.sweep.settings["last_tokens"]
    about = f"The last {count} tokens of every sequence alone, as if of the same text; ± is half of a 95 % interval."
    return [about, _lengths(summary, lambda arm, length: last_tokens(arm, length).text)]


def _lengths(summary: Summary, cell: Callable[[Arm, int], str]) -> str:
    arms = [*summary.arms, *summary.extensions]
    lines = [[arm.label, *(cell(arm, length) for length in summary.lengths)] for arm in arms]
    return _grid(["encoding", *map(str, summary.lengths)], lines)


def _loss(arm: Arm, length: int) -> str:
    one = arm.at.get(length)
    if one is None:
        return words.NOTHING
    if one.refused:
        return "refused"
    return words.NOTHING if one.loss is None else one.loss.written()


def _grid(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = "|---|" + "---:|" * (len(heads) - 1)
    rows = [heads, *lines]
    text = [f"| {' | '.join(_plain(cell) for cell in row)} |" for row in rows]
    return "\n".join([text[0], rule, *text[1:]])


def _plain(text: str) -> str:
    """Text that Markdown shows as it is."""
    return _SPECIAL.sub(r"\\\1", text.replace("\n", " "))
