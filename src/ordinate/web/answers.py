"""What the page answers: each question bounded, computed by the library, and told in the visitor's language.

Nothing here knows Gradio, so every answer can be asked for in a test or a script as well.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checks import check_at_most
from ..lab.formats import writable
from ..plots.api import figure_of, picture
from ..plots.attention import experiment as shuffle_picture
from ..plots.kinds import default_kind, kinds_of
from ..plots.pictures import Picture
from ..plots.view import View
from .controls import factor_of, number, spec_of
from .words import say, text, translated

#: Smallest and largest of every size the page takes, less than the library's own so that a redraw stays quick.
LIMITS = {
    "positions": (2, 512),
    "dim": (2, 256),
    "heads": (1, 32),
    "distance": (1, 4096),
    "train_length": (2, 1_048_576),
}
DEFAULTS = {"positions": 32, "dim": 64, "heads": 8, "distance": 256, "train_length": 4096}
MAX_TEXT = 200
MAX_CONFIG = 256 * 1024  # characters


@dataclass(frozen=True)
class Answer:
    """A figure, or a refusal in one sentence; never both."""

    figure: Any = None
    message: str = ""
    spec: str = ""
    picture: Picture | None = None


def sizes_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes a visitor set, each within its limits."""
    return {
        name: number(name, values.get(name, DEFAULTS[name]), low, high, whole=True)
        for name, (low, high) in LIMITS.items()
    }


def draw(
    language: str,
    encoding: str,
    kind: str,
    typed: str,
    options: Mapping[str, Any],
    sizes: Mapping[str, Any],
) -> Answer:
    """One view of one encoding; a kind it does not have gives way to the one that says most."""
    try:
        spec = spec_of(encoding, typed or "", options)
        view = View(**sizes_of(sizes))
        has = kinds_of(view.encoding(spec))
        chosen = kind if kind in has else None
        stretch = {"factor": factor_of(options)} if chosen == "scalings" else {}
        drawn = picture(spec, chosen, **sizes_of(sizes), **stretch)
    except (ValueError, TypeError, OverflowError) as error:
        return Answer(message=_refusal(error, language))
    figure = figure_of(translated(drawn, language), "plotly")
    return Answer(figure, "", command_of(spec, drawn.kind, {**sizes_of(sizes), **stretch}), drawn)


def views(
    encoding: str, typed: str, options: Mapping[str, Any], sizes: Mapping[str, Any]
) -> tuple[list[str], str]:
    """The kinds an encoding has, and the one to start with; none for a spec that cannot be read."""
    try:
        made = View(**sizes_of(sizes)).encoding(spec_of(encoding, typed or "", options))
    except (ValueError, TypeError, OverflowError):
        return [], ""
    return kinds_of(made), default_kind(made)


def command_of(spec: str, kind: str, sizes: Mapping[str, float]) -> str:
    """The command line that draws the same."""
    said = [f"--{name.replace('_', '-')} {value:.12g}" for name, value in sizes.items()]
    return " ".join(["ordinate plot", shlex.quote(spec), f"--kind {kind}", *said, "-o picture.png"])


def experiment(language: str, encoding: str, typed: str, sentence: str, seed: int) -> Answer:
    """The permutation experiment on a typed sentence."""
    try:
        check_at_most("characters of the sentence", len(sentence or ""), MAX_TEXT)
        seed = number("seed", seed, 0, 2**31, whole=True)
        spec = spec_of(encoding, typed or "", {})
        view = View(text=sentence or "", dim=64, heads=4)
        drawn = shuffle_picture(view.encoding(spec), view, spec, seed)
    except (ValueError, TypeError, OverflowError) as error:
        return Answer(message=_refusal(error, language))
    return Answer(figure_of(translated(drawn, language), "plotly"), "", spec, drawn)


@dataclass(frozen=True)
class Doctor:
    """The config doctor's answer."""

    message: str = ""
    facts: str = ""
    pairs: tuple[tuple[Any, ...], ...] = ()
    figure: Any = None
    diagnosis: Any = None


def doctor(language: str, config: str | None) -> Doctor:
    """What a config.json says about positions, or one sentence why it cannot be read."""
    from ..hf.config.api import from_config
    from ..hf.config.plan import ConfigError
    from ..hf.doctor import diagnose

    if not config or not config.strip():
        return Doctor(message=text("first_upload", language))
    try:
        found = diagnose(from_config(parsed_config(config)))
    except (ConfigError, ValueError, RecursionError) as error:
        return Doctor(message=_refusal(error, language))
    rows = tuple(
        (
            say(group.title, language),
            pair.index,
            _short(pair.wavelength),
            _short(pair.scaled),
            _short(pair.turns),
            say(pair.fate, language),
        )
        for group in found.groups
        for pair in group.pairs
    )
    figure = None
    if rows:
        from ..hf.picture import picture_of

        figure = figure_of(translated(picture_of(found, found.model_type), language), "plotly")
    return Doctor("", _facts(found, language), rows, figure, found)


def parsed_config(config: str) -> dict[str, Any]:
    """The text of a config.json, of a bounded length, as a mapping."""
    check_at_most("characters of a config", len(config), MAX_CONFIG)
    values = json.loads(config)
    if not isinstance(values, dict):
        raise ValueError(f"config must be a JSON object, got {type(values).__name__}")
    return values


def _short(value: float | None) -> float | None:
    """Seven digits; None for what is not, or never ends."""
    return None if value is None or math.isinf(value) else float(f"{value:.7g}")


def _facts(found: Any, language: str) -> str:
    """The doctor's findings as Markdown: names in the visitor's language, sentences as the doctor says them."""

    def fact(name: str, value: object) -> list[str]:
        return [] if value is None else [f"- {say(name, language)}: {plain(say(str(value), language))}"]

    context = found.effective_context
    lines = [
        f"### {plain(found.family)} · {plain(found.model_type)} · {found.layers} {say('layers', language)}",
        "",
    ]
    lines += fact("context in positions", "no limit in the config" if context is None else context)
    for stack, what in found.embeddings.items():
        lines += fact("codes", f"{stack}: {what}")
    for group in found.groups:
        lines += ["", f"**{plain(say(group.title, language))}**", ""]
        lines += fact("encoding", group.encoding)
        lines += fact("scaling", group.scaling)
        lines += fact("dialect", group.dialect)
        lines += fact(
            "factor on cos and sin", None if group.base is None else f"{group.attention_factor or 1:.6g}"
        )
        lines += fact("softmax scale", f"{group.softmax_scale:.6g}")
        lines += fact("window", group.window)
        for band in group.bands:
            lines += fact(f"pairs {band.first} to {band.last}", band.fate)
    lines += ["", *(f"- {plain(say(note, language))}" for note in found.notes)]
    lines += [f"- ⚠ {plain(say(warning, language))}" for warning in found.warnings]
    return "\n".join(lines)


# What Markdown and HTML would take for marks of their own.
_SIGNS = {ord(sign): f"&#{ord(sign)};" for sign in "\\`*_[]<>&|#$~"}


def plain(value: str) -> str:
    """Text of a config or a record as text: no Markdown and no tags of its own."""
    return value.translate(_SIGNS)


@dataclass(frozen=True)
class Lab:
    """A lab report's answer."""

    message: str = ""
    summary: str = ""
    charts: tuple[Picture, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()


def lab_report(language: str, directory: Path | None) -> Lab:
    """The curves and the table of a comparison's records, or one sentence why there are none.

    What it holds is as the lab says it; `in_language` translates.
    """
    from ..lab.report.api import read_report
    from ..lab.report.figures import charts
    from ..lab.report.table import columns

    if directory is None:
        return Lab(message=text("first_upload", language))
    try:
        report = read_report(directory)
    except (OSError, ValueError) as error:
        return Lab(message=_refusal(error, language))
    lines = [f"### {plain(report.narrative.title)}", "", plain(report.narrative.headline), ""]
    lines += [f"- {plain(finding.text)}" for finding in report.narrative.findings]
    lines += [f"- {plain(one.name)}: {one.state}, {plain(one.reason)}" for one in report.left_out]
    shown = columns(report.summary)
    rows = tuple(
        (arm.label, *(column.cell(arm).text for column in shown)) for arm in report.summary.arms
    )
    pictures = tuple(charts(report.summary))
    return Lab("", "\n".join(lines), pictures, ("encoding", *(column.title for column in shown)), rows)


def in_language(found: Lab, language: str) -> Lab:
    """A report with its titles, axes, captions and headings in a language; findings stay as the lab wrote them."""
    charts = tuple(translated(chart, language) for chart in found.charts)
    summary = f"{text('findings', language)}\n\n{found.summary}"
    return dataclasses.replace(
        found,
        message=say(found.message, language),
        summary=summary if found.summary else "",
        charts=charts,
        columns=tuple(say(column, language) for column in found.columns),
    )


def _refusal(error: Exception, language: str) -> str:
    sentence = "config is nested too deeply" if isinstance(error, RecursionError) else str(error)
    sentence = writable(sentence)
    return say(sentence.splitlines()[0][:400] if sentence else type(error).__name__, language)
