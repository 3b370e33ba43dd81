"""The report as Markdown, for repositories: the sentences and tables of the page, with links to the pictures."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ...plots.pictures import Picture
from .sentences import Narrative, about_last_tokens
from .summary import Arm, Evaluation, Summary
from .table import Cell, Column, at_length, last_tokens, loss

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#])")


def build_markdown(
    summary: Summary, narrative: Narrative, charts: Sequence[Picture], folder: str
) -> str:
    """The complete report as text, with links to the pictures in ``folder``."""
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
        _lengths(summary, loss),
        *(() if summary.by_accuracy else (about_last_tokens(summary), _lengths(summary, last_tokens))),
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


def _lengths(summary: Summary, cell: Callable[[Evaluation], Cell | None]) -> str:
    lines = [
        [arm.label, *(at_length(arm, length, cell).text for length in summary.lengths)]
        for arm in summary.all_arms
    ]
    return _grid(["encoding", *map(str, summary.lengths)], lines)


def _grid(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = "|---|" + "---:|" * (len(heads) - 1)
    rows = [heads, *lines]
    text = [f"| {' | '.join(_plain(cell) for cell in row)} |" for row in rows]
    return "\n".join([text[0], rule, *text[1:]])


def _plain(text: str) -> str:
    """Escape text for Markdown."""
    return _SPECIAL.sub(r"\\\1", text.replace("\n", " "))
