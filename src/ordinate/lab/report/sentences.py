"""The text of a report around its findings: title, facts, commands, environment and caution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import formats
from .findings import Finding, findings, headline
from .gather import Run
from .summary import Summary
from .table import Column, columns

# The columns that differ between extensions of one trained model; the other columns describe the model.
_OF_EXTENSIONS = (
    "in_length_loss",
    "in_length_accuracy",
    "stretch",
    "rise",
    "accuracy",
    "last_accuracy",
    "last_loss",
    "gain",
)


@dataclass(frozen=True)
class Narrative:
    """The text of a report, the same on the page, in Markdown and on a terminal.

    Attributes:
        facts: The settings of the comparison, as names and values.
        caution: How exactly the numbers can be reproduced.
    """

    title: str
    headline: str
    facts: list[tuple[str, str]]
    findings: list[Finding]
    columns: list[Column]
    extension_columns: list[Column]
    commands: list[str]
    environment: list[tuple[str, str]]
    settings: dict[str, Any]
    caution: str
    version: str


def narrate(summary: Summary) -> Narrative:
    """The text of a report on a summary."""
    sweep = summary.gathered.sweep
    shown = columns(summary)
    count = formats.plural(len(summary.arms), "encoding")
    title = f"{count}, trained at {summary.train_length}"
    if len(summary.lengths) > 1:
        title += f" and tested up to {summary.lengths[-1]} tokens"
    return Narrative(
        title=title,
        headline=headline(summary),
        facts=_facts(summary),
        findings=findings(summary),
        columns=shown,
        extension_columns=[column for column in shown if _about_extensions(column, summary)],
        commands=_commands(summary),
        environment=_environment(summary.gathered.runs),
        settings={"arms": list(sweep.arms), "seeds": list(sweep.seeds), **sweep.settings},
        caution=_caution(summary),
        version=sweep.version,
    )


def about_last_tokens(summary: Summary) -> str:
    """The line above the table of the last tokens by length; tasks have no such table."""
    return (
        f"The last {summary.last_tokens} tokens of every sequence alone, as if of the same text; ± is half of a "
        "95 % interval."
    )


def _caution(summary: Summary) -> str:
    moved = [
        run.record.directory.name for run in summary.gathered.runs if len(run.record.environments) > 1
    ]
    settings = summary.gathered.sweep.settings
    if settings["device"] == "cuda" and not settings["deterministic"]:
        again = "PyTorch's deterministic algorithms were off, so another run differs in the last digits"
    else:
        again = "On one machine with these versions the same command gives the same losses to the digit"
        if moved:
            again += f", except for {formats.listed(moved)}, resumed in another environment after an interruption"
    return (
        f"{again}; another processor or another number of threads or processes changes the last digits. Speed "
        "depends on the machine and its load. "
        f"{_comparable(settings)}The report is made from the records alone."
    )


def _comparable(settings: dict[str, Any]) -> str:
    """The sentence on which other comparisons have comparable numbers."""
    if not settings["corpus"]:
        return ""
    own = (
        ""
        if settings["text"]
        else "Every patch version of Python has another standard library, and so another text. "
    )
    return (
        f"{own}Losses, perplexities and gains can be compared with those of another comparison only if its text "
        f"has this fingerprint, {settings['corpus']}; between different texts, compare only which encodings hold. "
    )


def _about_extensions(column: Column, summary: Summary) -> bool:
    """Whether a column depends on the extension, and was measured."""
    texts = {column.cell(arm).text for arm in summary.extensions}
    return column.key in _OF_EXTENSIONS and texts != {formats.NOTHING}


def _facts(summary: Summary) -> list[tuple[str, str]]:
    settings = summary.gathered.sweep.settings
    parameters = [arm.cost["parameters"] for arm in summary.arms if arm.cost.get("parameters")]
    tokens = settings["steps"] * settings["batch"] * settings["train_length"]
    counts = sorted({len(arm.seeds) + len(arm.diverged) for arm in summary.arms})
    facts = [
        ("task", summary.task),
        ("text", _text(settings)),
        ("trained at", f"{summary.train_length} tokens"),
        ("tested to", f"{summary.lengths[-1]} tokens, {formats.times(summary.lengths[-1] / summary.train_length)}"),
        ("training", f"{formats.count(settings['steps'])} steps, {formats.count(tokens)} tokens"),
        ("model", f"{settings['num_layers']} layers, width {settings['d_model']}, {settings['num_heads']} heads"),
        ("parameters", _between([formats.count(count) for count in sorted(parameters)])),
        ("seeds an arm", _between([str(count) for count in counts])),
        ("device", _between(sorted({_device(run) for run in summary.gathered.runs}))),
    ]  # fmt: skip
    return [(name, text) for name, text in facts if text]


def _text(settings: dict[str, Any]) -> str:
    """The training text; older records have only its fingerprint."""
    named = settings.get("text_source") or "not named"
    return f"{named}, fingerprint {settings['corpus']}" if settings["corpus"] else ""


def _between(texts: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(texts))
    return (
        "" if not distinct else distinct[0] if len(distinct) == 1 else f"{distinct[0]} to {distinct[-1]}"
    )


def _device(run: Run) -> str:
    return _between([str(one.get("device", run.config.device)) for one in run.record.environments])


def _commands(summary: Summary) -> list[str]:
    sweep = summary.gathered.sweep
    clone = f"in a clone of ordinate {sweep.version}".rstrip()
    return [f"pip install '.[lab]'  # {clone}", *([sweep.command] if sweep.command else [])]


def _environment(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Every fact of the runs' environments once; if runs differ, all of its values."""
    found: dict[str, list[str]] = {}
    for run in runs:
        facts = (fact for place in run.record.environments for fact in _flat(place))
        for name, value in facts:
            if name != "from_step" and value not in found.setdefault(name, []):
                found[name].append(value)
    return [(name, " · ".join(values)) for name, values in found.items()]


def _flat(environment: dict[str, Any]) -> list[tuple[str, str]]:
    pairs = []
    for name, value in environment.items():
        if isinstance(value, dict):
            pairs += _flat(value)
        elif value is not None and value != "":
            pairs.append((str(name), str(value)))
    return pairs
