"""What the page answers: every question is bounded, computed by the library, and answered in the visitor's language.

Nothing here imports Gradio, so a test or a script can ask as well.
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

from ..checks import Refusal, check_at_most, refusal_of, refused
from ..plots.api import figure_of, picture
from ..plots.attention import experiment as shuffle_picture
from ..plots.kinds import default_kind, kinds_of
from ..plots.pictures import Picture
from ..setting import Setting
from ..text import Text
from .controls import factor_of, number, spec_of
from .texts import picture_in, refusal_text, say, text

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
NOTHING_GIVEN = "nothing has been given yet"


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
    """One view of one encoding; in place of a kind that it does not have, its default kind."""
    try:
        spec = spec_of(encoding, typed or "", options)
        given = sizes_of(sizes)
        chosen = kind if kind in kinds_of(Setting.of_picture(**given).encoding(spec)) else None
        if chosen == "scalings":
            given["factor"] = factor_of(options)
        drawn = picture(spec, chosen, **given)
    except (ValueError, TypeError, OverflowError) as error:
        return Answer(message=refusal_text(error, language))
    return Answer(_figure(drawn, language), "", command_of(spec, drawn.kind, given), drawn)


def _figure(drawn: Picture, language: str) -> Any:
    return figure_of(picture_in(drawn, language), "plotly")


def views(
    encoding: str, typed: str, options: Mapping[str, Any], sizes: Mapping[str, Any]
) -> tuple[list[str], str]:
    """The kinds an encoding has, and the one to start with; none for a spec that cannot be read."""
    try:
        made = Setting.of_picture(**sizes_of(sizes)).encoding(spec_of(encoding, typed or "", options))
    except (ValueError, TypeError, OverflowError):
        return [], ""
    return kinds_of(made), default_kind(made)


def command_of(spec: str, kind: str, sizes: Mapping[str, float]) -> str:
    """The command line that draws the same."""
    options = [f"--{name.replace('_', '-')} {value:.12g}" for name, value in sizes.items()]
    return " ".join(["ordinate plot", shlex.quote(spec), f"--kind {kind}", *options, "-o picture.png"])


def experiment(language: str, encoding: str, typed: str, sentence: str, seed: int) -> Answer:
    """The permutation experiment on a typed sentence."""
    try:
        check_at_most("characters of the sentence", len(sentence or ""), MAX_TEXT)
        seed = number("seed", seed, 0, 2**31, whole=True)
        spec = spec_of(encoding, typed or "", {})
        setting = Setting.of_picture(text=sentence or "", dim=64, heads=4)
        made = setting.encoding(spec)
        drawn = shuffle_picture(made, setting.around(made), spec, seed)
    except (ValueError, TypeError, OverflowError) as error:
        return Answer(message=refusal_text(error, language))
    return Answer(_figure(drawn, language), "", spec, drawn)


@dataclass(frozen=True)
class Doctor:
    """The config doctor's answer."""

    message: str = ""
    facts: str = ""
    pairs: tuple[tuple[Any, ...], ...] = ()
    figure: Any = None


def doctor(language: str, config: str | None) -> Doctor:
    """What a config.json says about positions, or one sentence why it cannot be read."""
    from ..hf.config.api import from_config
    from ..hf.config.plan import ConfigError
    from ..hf.doctor import diagnose

    try:
        found = diagnose(from_config(parsed_config(config)))
    except RecursionError:
        return Doctor(refusal_text(refused("config", "is nested too deeply"), language))
    except (ConfigError, ValueError) as error:
        return Doctor(message=refusal_text(error, language))
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

        figure = _figure(picture_of(found, found.model_type), language)
    return Doctor("", _facts(found, language), rows, figure)


def parsed_config(config: str | None) -> dict[str, Any]:
    """The text of a config.json, of a bounded length, as a mapping."""
    if not config or not config.strip():
        raise refused("", NOTHING_GIVEN)
    check_at_most("characters of a config", len(config), MAX_CONFIG)
    try:
        values = json.loads(config)
    except json.JSONDecodeError as error:
        raise refused("config", "must be JSON: {problem}", problem=error) from None
    if not isinstance(values, dict):
        raise refused("config", "must be a JSON object", type(values).__name__)
    return values


def _short(value: float | None) -> float | None:
    """Seven digits; None for None and for infinity."""
    return None if value is None or math.isinf(value) else float(f"{value:.7g}")


def _facts(found: Any, language: str) -> str:
    """The doctor's findings as Markdown, in the visitor's language."""

    def shown(value: object) -> str:
        return plain(say(value if isinstance(value, str) else str(value), language))

    def facts(values: Mapping[str, object]) -> list[str]:
        return [
            f"- {say(name, language)}: {shown(value)}"
            for name, value in values.items()
            if value is not None
        ]

    context = found.effective_context
    head = f"### {plain(found.family)} · {plain(found.model_type)} · {found.layers} {say('layers', language)}"
    lines = [head, ""]
    lines += facts({"context in positions": "no limit in the config" if context is None else context})
    for stack, codes in found.embeddings.items():
        lines += facts({"codes": f"{stack}: {codes}"})
    for group in found.groups:
        factor = None if group.base is None else f"{group.attention_factor or 1:.6g}"
        lines += ["", f"**{shown(group.title)}**", ""]
        bands = [
            Text("pairs {first} to {last}", first=band.first, last=band.last) for band in group.bands
        ]
        lines += facts(
            {
                "encoding": group.encoding,
                "scaling": group.scaling,
                "dialect": group.dialect,
                "factor on cos and sin": factor,
                "softmax scale": f"{group.softmax_scale:.6g}",
                "window": group.window,
                **{pairs: band.fate for pairs, band in zip(bands, group.bands, strict=True)},
            }
        )
    lines += ["", *(f"- {shown(note)}" for note in found.notes)]
    return "\n".join([*lines, *(f"- ⚠ {shown(warning)}" for warning in found.warnings)])


# Signs that have a meaning in Markdown or HTML.
_SIGNS = {ord(sign): f"&#{ord(sign)};" for sign in "\\`*_[]<>&|#$~"}


def plain(value: str) -> str:
    """Text of a config or a record, its Markdown and its tags escaped."""
    return value.translate(_SIGNS)


@dataclass(frozen=True)
class Lab:
    """A lab report's answer, in English: `in_language` translates it."""

    refusal: Refusal | None = None
    summary: str = ""
    charts: tuple[Picture, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()


def lab_report(directory: Path | None) -> Lab:
    """The curves and the table of a comparison's records, or the reason why there are none."""
    from ..lab.report.api import read_report
    from ..lab.report.figures import charts
    from ..lab.report.table import columns

    if directory is None:
        return Lab(Refusal("", NOTHING_GIVEN))
    try:
        report = read_report(directory)
    except (OSError, ValueError) as error:
        return Lab(refusal_of(error))
    lines = [f"### {plain(report.narrative.title)}", "", plain(report.narrative.headline), ""]
    lines += [f"- {plain(finding.text)}" for finding in report.narrative.findings]
    lines += [f"- {plain(one.name)}: {one.state}, {plain(one.reason)}" for one in report.left_out]
    shown = columns(report.summary)
    rows = tuple(
        (arm.label, *(column.cell(arm).text for column in shown)) for arm in report.summary.arms
    )
    pictures = tuple(charts(report.summary))
    titles = ("encoding", *(column.title for column in shown))
    return Lab(None, "\n".join(lines), pictures, titles, rows)


def in_language(found: Lab, language: str) -> Lab:
    """A report with its titles, axes, captions and headings in a language; findings stay in English."""
    return dataclasses.replace(
        found,
        summary=found.summary and f"{text('findings', language)}\n\n{found.summary}",
        charts=tuple(picture_in(chart, language) for chart in found.charts),
        columns=tuple(say(column, language) for column in found.columns),
    )
