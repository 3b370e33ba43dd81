"""The report as one HTML file that works offline: figures to explore, tables to sort, light and dark."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from html import escape
from importlib.resources import files
from typing import Any

from ...plots.draw_plotly import to_plotly
from ...plots.palette import ON_LIGHT_AND_DARK
from ...plots.pictures import Lines, Picture, Series, Style
from .. import formats
from .figures import styles_of
from .sentences import Narrative, about_last_tokens
from .summary import Arm, Summary
from .table import Cell, Column, at_length, last_tokens, loss


def build_page(
    summary: Summary, narrative: Narrative, charts: Sequence[Picture], pictures: Mapping[str, bytes]
) -> str:
    """The complete page as text.

    Args:
        pictures: The charts as PNG, by their kinds, for readers without scripts and for print.
    """
    from plotly.offline import get_plotlyjs

    styles = styles_of(summary)
    figures = [_figure(chart, pictures[chart.kind]) for chart in charts]
    table = _section("table", "Side by side", _arms_table(narrative.columns, summary.arms, styles))
    extensions = _section(
        "extended",
        "Stretched without training, in numbers",
        _arms_table(narrative.extension_columns, summary.extensions, styles),
        "The trained model with its frequencies rescaled for evaluation alone; a rise is over the loss at the training "
        "length of the model as it was trained.",
    )
    return _fill(
        _asset("page.html"),
        version=escape(narrative.version),
        title=escape(narrative.title),
        headline=escape(narrative.headline),
        facts=_pairs(narrative.facts),
        findings=_pairs([(one.topic, one.text) for one in narrative.findings]),
        figures="\n".join(
            [figures[0], table, *figures[1:], *([extensions] if summary.extensions else [])]
        ),
        lengths=_by_length(summary, styles),
        meanings=_pairs([(column.title, column.meaning) for column in narrative.columns]),
        reproduce=_reproduce(narrative),
        style=_asset("page.css"),
        plotly=get_plotlyjs().replace("</script", "<\\/script"),
        charts=_json({chart.kind: _plotly(chart) for chart in charts}),
        colours=_json(ON_LIGHT_AND_DARK),
        script=_asset("page.js"),
    )


def _fill(template: str, **parts: str) -> str:
    """Replace names in the template by the parts; names inside a part are not replaced."""
    return re.sub(r"\{\{(\w+)\}\}", lambda name: parts[name[1]], template)


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _plotly(chart: Picture) -> dict[str, Any]:
    """Data and layout of a plotly figure; the page has title and caption, and its script sets the theme's colours."""
    figure = to_plotly(replace(chart, title="", note=""))
    figure.update_layout(template="none", margin={"l": 56, "r": 16, "t": 30, "b": 44})
    drawn = _rounded(figure.to_plotly_json())
    for name in ("title", "height"):
        del drawn["layout"][name]
    return drawn


def _json(value: object) -> str:
    """JSON that is safe inside a script element for any labels."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _rounded(value: Any) -> Any:
    """Round floats to seven digits: more than a screen can show, and half the size."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, (list, tuple)) else value


def _section(key: str, title: str, content: str, aside: str = "") -> str:
    note = f'<p class="aside">{escape(aside)}</p>' if aside else ""
    return f'<section id="{key}"><h2>{escape(title)}</h2>{note}\n{content}\n</section>'


def _figure(chart: Picture, picture: bytes) -> str:
    data, spoken = base64.b64encode(picture).decode(), escape(_spoken(chart))
    return (
        f'<section id="{chart.kind}"><h2>{escape(chart.title)}</h2><figure>'
        f"<figcaption>{escape(chart.note)}</figcaption>"
        f'<div class="plot" id="plot-{chart.kind}" role="img" aria-label="{spoken}"></div>'
        f'<noscript><img alt="{spoken}" src="data:image/png;base64,{data}"></noscript>'
        "</figure></section>"
    )


def _series(chart: Picture) -> tuple[Series, ...]:
    (panel,) = chart.panels
    assert isinstance(panel, Lines)
    return panel.series


def _spoken(chart: Picture) -> str:
    """The text of a chart for screen readers: the first and last value of every curve."""
    ends = [
        f"{one.name} from {one.y[0].item():.3g} to {one.y[-1].item():.3g}"
        + (f", {one.end}" if one.end else "")
        for one in _series(chart)
    ]
    return f"{chart.title}, {chart.panels[0].y.label}: {'; '.join(ends)}."


def _name(arm: Arm, styles: Mapping[str, Style]) -> str:
    color = styles[arm.label].color
    colours = f"--light:{color};--dark:{ON_LIGHT_AND_DARK[color]}"
    return f'<span class="swatch" style="{colours}"></span>{escape(arm.label)}'


def _table(heads: Sequence[str], lines: Sequence[str], *, sortable: bool = False) -> str:
    kind = ' class="sortable"' if sortable else ""
    return (
        f'<div class="scroll" tabindex="0"><table{kind}>\n<thead><tr>{"".join(heads)}</tr></thead>\n'
        f"<tbody>\n{chr(10).join(lines)}\n</tbody></table></div>"
    )


def _head(title: str, unit: str, *, text: bool = False) -> str:
    kind = ' class="text"' if text else ""
    small = f"<small>{escape(unit)}</small>" if unit else ""
    return f'<th scope="col"{kind}><button type="button">{escape(title)}</button>{small}</th>'


def _arms_table(columns: Sequence[Column], arms: Sequence[Arm], styles: Mapping[str, Style]) -> str:
    heads = [_head(column.title, column.unit, text=column.key == "type") for column in columns]
    lines = [
        f'<tr><th scope="row" data-value="{escape(arm.label)}">{_name(arm, styles)}</th>'
        + "".join(_cell(column.cell(arm), text=column.key == "type") for column in columns)
        + "</tr>"
        for arm in arms
    ]
    return _table([_head("encoding", ""), *heads], lines, sortable=True)


def _cell(cell: Cell, *, text: bool = False, more: str = "") -> str:
    kind = ' class="text"' if text else ""
    value = "" if cell.value is None else cell.value
    note = f' title="{escape(cell.note)}"' if cell.note else ""
    return f'<td{kind} data-value="{escape(str(value))}"{note}>{escape(cell.text)}{more}</td>'


def _by_length(summary: Summary, styles: Mapping[str, Style]) -> str:
    """Tables of losses by length; if every token is a target, also of the losses of the last tokens."""
    losses = _lengths_table(summary, styles, _loss_cell)
    if summary.by_accuracy:
        return losses
    last = _lengths_table(
        summary, styles, lambda arm, length: _cell(at_length(arm, length, last_tokens))
    )
    return f'{losses}\n<p class="aside">{about_last_tokens(summary)}</p>\n{last}'


def _lengths_table(
    summary: Summary, styles: Mapping[str, Style], cell: Callable[[Arm, int], str]
) -> str:
    trained, specs = summary.train_length, [arm.spec for arm in summary.arms]
    heads = [
        f'<th scope="col">{length}<small>'
        f"{'trained' if length == trained else formats.times(length / trained)}</small></th>"
        for length in summary.lengths
    ]
    lines = [
        ('<tr class="extension">' if arm.extension else "<tr>")
        + f'<th scope="row">{_name(arm, styles)}</th>'
        + "".join(cell(arm, length) for length in summary.lengths)
        + "</tr>"
        for arm in sorted(summary.all_arms, key=lambda arm: specs.index(arm.spec))
    ]
    return _table(['<th scope="col">encoding</th>', *heads], lines)


def _loss_cell(arm: Arm, length: int) -> str:
    """A loss and, in brackets, the change from the training length."""
    cell, start, change = at_length(arm, length, loss), arm.in_length, ""
    trained = start.loss.mean if start is not None and start.loss is not None else 0.0
    if cell.value is not None and trained and length != arm.train_length:
        change = f'<span class="of">({formats.percent(cell.value / trained - 1)})</span>'
    return _cell(cell, more=change)


def _pairs(pairs: Sequence[tuple[str, str]]) -> str:
    return "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in pairs)


def _reproduce(narrative: Narrative) -> str:
    settings = json.dumps(narrative.settings, indent=2, sort_keys=True)
    environment = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in narrative.environment
    )
    return (
        f"<pre>{escape(chr(10).join(narrative.commands))}</pre>\n"
        f'<dl class="pairs">{environment}</dl>\n'
        f"<p>{escape(narrative.caution)}</p>\n"
        f"<details><summary>Every setting</summary><pre>{escape(settings)}</pre></details>"
    )
