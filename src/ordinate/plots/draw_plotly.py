"""Pictures drawn with plotly: they answer to the mouse, and what turns is seen turning."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from . import palette
from .pictures import Axis, Bars, Heatmap, Lines, Mark, Panel, Picture, Plane, Series

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_DASHES = ("solid", "dash", "dashdot", "dot")
_MARK_DASHES = ("dash", "dot", "dashdot")
_SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "triangle-left",
            "triangle-right")  # fmt: skip
# Steps of matplotlib's RdBu_r and cividis, so that both backends show the same colours.
_DIVERGING = ["#053061", "#4393c3", "#d1e5f0", "#f7f7f7", "#fddbc7", "#d6604d", "#67001f"]
_SEQUENTIAL = ["#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838"]


def to_plotly(picture: Picture) -> Figure:
    """A plotly figure of a picture."""
    from plotly.subplots import make_subplots

    columns = min(picture.columns, len(picture.panels))
    rows = math.ceil(len(picture.panels) / columns)
    figure = make_subplots(
        rows=rows, cols=columns, subplot_titles=[_escaped(panel.title) for panel in picture.panels],
        shared_yaxes=columns > 1 and isinstance(picture.panels[0], Lines),
        horizontal_spacing=0.12 / columns, vertical_spacing=0.3 / rows if rows > 1 else 0,
    )  # fmt: skip
    for index, panel in enumerate(picture.panels):
        place = {"row": index // columns + 1, "col": index % columns + 1}
        _draw(figure, panel, place, index, picture)
        figure.update_xaxes(title_text=panel.x.label, **place)
        if place["col"] == 1:
            figure.update_yaxes(title_text=panel.y.label, **place)
    note = f"<br><sub>{_escaped(picture.note)}</sub>" if picture.note else ""
    figure.update_layout(
        title={"text": _escaped(picture.heading) + note, "x": 0.02, "xanchor": "left"},
        template="plotly_white",
        font={"size": 12},
        height=_height(picture, rows),
        margin={"l": 64, "r": 24, "t": 110 if len(picture.panels) > 1 else 84, "b": 56},
        legend={"orientation": "v"},
    )
    return figure


def _escaped(text: str) -> str:
    """Plotly reads a few tags in its texts, and none of a subject's are meant."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _height(picture: Picture, rows: int) -> int:
    if isinstance(picture.panels[0], Plane):
        return 560
    if len(picture.panels) == 1:
        return 440
    return 150 + rows * (230 if picture.columns != 3 else 290)


def _draw(figure: Figure, panel: Panel, place: dict[str, int], index: int, picture: Picture) -> None:
    if isinstance(panel, Lines):
        _draw_lines(figure, panel, place, first=index == 0)
    elif isinstance(panel, Heatmap):
        shared = [(p.value, p.low, p.high) for p in picture.panels if isinstance(p, Heatmap)]
        mine = shared.index(
            (panel.value, panel.low, panel.high)
        )  # one bar for all that share their colours
        before = len(set(shared[:mine]))
        _draw_heatmap(figure, panel, place, bar=1.01 + 0.11 * before if mine == index else None)
    elif isinstance(panel, Bars):
        _draw_bars(figure, panel, place)
    else:
        _draw_plane(figure, panel)


def _scale(figure: Figure, x: Axis, y: Axis, place: dict[str, int]) -> None:
    figure.update_xaxes(type="log" if x.log else "linear", **place)
    figure.update_yaxes(
        type="log" if y.log else "linear", exponentformat="power" if y.log else None, **place
    )
    for axis, update in ((x, figure.update_xaxes), (y, figure.update_yaxes)):
        if axis.limits is not None:
            update(range=[math.log10(end) if axis.log else end for end in axis.limits], **place)


def _name_ticks(figure: Figure, panel: Lines, place: dict[str, int]) -> None:
    """Write numbers at the ticks asked for, and on short logarithmic axes, where plotly writes 6 7 8 9 100 2 3."""
    for axis, update, values in (
        (panel.x, figure.update_xaxes, [series.x for series in panel.series]),
        (panel.y, figure.update_yaxes, [series.y for series in panel.series]),
    ):
        ticks: Sequence[float] = axis.ticks
        if axis.log and not ticks:
            ticks = log_ticks(torch.cat([v.double() for v in values]).tolist())
        if ticks:
            update(tickvals=ticks, ticktext=[f"{tick:.6g}" for tick in ticks], **place)


def log_ticks(values: Sequence[float]) -> list[float]:
    """Where a logarithmic axis of at most three decades has its ticks: at the values, if these are few.

    Example:
        >>> log_ticks([64, 128, 256]), log_ticks(range(30, 700))
        ([64, 128, 256], [50.0, 100.0, 200.0, 500.0])
    """
    found = sorted({value for value in values if 0 < value < math.inf})
    if len(found) < 2 or found[-1] > 1000 * found[0]:
        return []
    if len(found) <= 8:
        return found
    decades = range(math.floor(math.log10(found[0])), math.ceil(math.log10(found[-1])))
    steps = (1, 2, 5) if found[-1] > 10 * found[0] else (1, 1.5, 2, 3, 4, 5, 6, 8)
    marks = [step * 10.0**decade for decade in decades for step in (*steps, 10)]
    return sorted({mark for mark in marks if found[0] <= mark <= found[-1]})


def _draw_lines(figure: Figure, panel: Lines, place: dict[str, int], *, first: bool) -> None:
    from plotly.graph_objects import Scatter

    for series in panel.series:
        style = palette.style_of(series, panel)
        few = len(series.x) <= (24 if series.style else 12)
        # One line of the legend a name: that of the first panel where there is something of it.
        new = len(series.x) > 0 and not any(
            t.legendgroup == series.name and t.showlegend for t in figure.data
        )
        figure.add_trace(
            Scatter(
                x=_list(series.x), y=_list(series.y), name=_escaped(series.label), legendgroup=series.name,
                mode="markers" if series.points else "lines+markers" if few else "lines",
                line={
                    "color": style.color, "width": 1.2 if series.quiet else 2,
                    "dash": _DASHES[style.dash % len(_DASHES)],
                },
                marker={"color": style.color, "size": 6, "symbol": _SYMBOLS[style.marker % len(_SYMBOLS)]},
                showlegend=new and len(panel.series) > 1, **_hover(series),
            ),
            **place,
        )  # fmt: skip
        if series.low is not None and series.high is not None:
            _draw_band(figure, series, style.color, place)
        if series.end:
            _draw_end(figure, series, style.color, place)
    for mark, dash in zip(panel.marks, itertools.cycle(_MARK_DASHES)):
        _draw_mark(figure, mark, dash, panel, place, labelled=first)
    _scale(figure, panel.x, panel.y, place)
    if panel.series:
        _name_ticks(figure, panel, place)


def _hover(series: Series) -> dict[str, Any]:
    """What the mouse shows at a point of a curve with a band: the value and half of the band."""
    if series.low is None or series.high is None:
        return {}
    halves = ((series.high - series.low) / 2).tolist()
    text = [f"{y:.4g} ± {half:.3g}" for y, half in zip(series.y.tolist(), halves, strict=True)]
    return {"text": text, "hovertemplate": "%{text}"}


def _draw_mark(
    figure: Figure, mark: Mark, dash: str, panel: Lines, place: dict[str, int], *, labelled: bool
) -> None:
    line = {"color": "#444444", "width": 1, "dash": dash}
    upright = mark.axis == "x"
    (figure.add_vline if upright else figure.add_hline)(mark.at, line=line, **place)
    if labelled and mark.label:
        log = panel.x.log if upright else panel.y.log
        at = math.log10(mark.at) if log else mark.at  # where annotations stand on such an axis
        figure.add_annotation(
            x=at if upright else 1, y=1 if upright else at, text=_escaped(mark.label), showarrow=False,
            xref="x" if upright else "x domain", yref="y domain" if upright else "y",
            xanchor="left" if upright else "right", yanchor="top" if upright else "bottom", font={"size": 11},
        )  # fmt: skip


def _draw_band(figure: Figure, series: Series, colour: str, place: dict[str, int]) -> None:
    from plotly.graph_objects import Scatter

    assert series.low is not None
    assert series.high is not None
    there_and_back = _list(series.x) + _list(series.x.flip(0))
    edge = _list(series.high) + _list(series.low.flip(0))
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    figure.add_trace(
        Scatter(
            x=there_and_back, y=edge, fill="toself", fillcolor=f"rgba({red},{green},{blue},0.18)",
            line={"width": 0}, mode="lines", hoverinfo="skip", showlegend=False, legendgroup=series.name,
        ),
        **place,
    )  # fmt: skip


def _draw_end(figure: Figure, series: Series, colour: str, place: dict[str, int]) -> None:
    """A cross at the last point."""
    from plotly.graph_objects import Scatter

    cross = {"symbol": "x-thin", "size": 15, "line": {"color": colour, "width": 3}}
    figure.add_trace(
        Scatter(
            x=_list(series.x[-1:]), y=_list(series.y[-1:]), mode="markers", marker=cross,
            hoverinfo="skip", showlegend=False, legendgroup=series.name,
        ),
        **place,
    )  # fmt: skip


def _draw_heatmap(figure: Figure, panel: Heatmap, place: dict[str, int], *, bar: float | None) -> None:
    from plotly.graph_objects import Heatmap as Map

    count, width = panel.matrix.shape
    rows: Sequence[str | int] = [_escaped(name) for name in panel.row_names] or range(count)
    columns: Sequence[str | int] = [_escaped(name) for name in panel.column_names] or range(width)
    figure.add_trace(
        Map(
            z=_list(panel.matrix), x=list(columns), y=list(rows), showscale=bar is not None,
            colorscale=_DIVERGING if panel.diverging else _SEQUENTIAL,
            zmin=panel.low, zmax=panel.high,
            colorbar={"title": {"text": panel.value, "side": "right"}, "thickness": 14, "x": bar or 1.0},
            hoverongaps=False,
            hovertemplate=f"{panel.y.label} %{{y}}, {panel.x.label} %{{x}}: %{{z:.6g}}<extra></extra>",
            texttemplate="%{z}" if panel.annotated else None,
        ),
        **place,
    )  # fmt: skip
    figure.update_yaxes(autorange="reversed", showgrid=False, zeroline=False, **place)
    figure.update_xaxes(showgrid=False, zeroline=False, **place)
    figure.update_layout(plot_bgcolor=palette.MISSING)
    if panel.matrix.shape[0] == panel.matrix.shape[1]:
        index = place["col"] + (place["row"] - 1) * _columns(figure)
        anchor = "x" if index == 1 else f"x{index}"
        figure.update_yaxes(scaleanchor=anchor, constrain="domain", **place)
        figure.update_xaxes(constrain="domain", **place)


def _columns(figure: Figure) -> int:
    _, columns = figure._get_subplot_rows_columns()
    return len(list(columns))


def _draw_bars(figure: Figure, panel: Bars, place: dict[str, int]) -> None:
    from plotly.graph_objects import Bar

    values = _list(panel.values)
    figure.add_trace(Bar(x=list(panel.names), y=values, marker_color=palette.CATEGORIES[0]), **place)
    _scale(figure, panel.x, panel.y, place)


def _draw_plane(figure: Figure, panel: Plane) -> None:
    """One hand a track: play it, or pull the slider.

    Both carry the positions of the hands themselves: a page that draws a figure anew from its data and layout,
    as Gradio's does, would lose the frames of a figure.
    """
    from plotly.graph_objects import Scatter

    reach = float(torch.nan_to_num(panel.tracks).norm(dim=-1).amax()) or 1.0
    steps = panel.tracks.shape[1]

    def hands(step: int) -> list[Any]:
        found = []
        for index, (name, track) in enumerate(zip(panel.names, panel.tracks, strict=True)):
            x, y = track[step].tolist()
            colour = palette.color(index, len(panel.names), ordered=False)
            found.append(
                Scatter(
                    x=[0, x], y=[0, y], name=_escaped(name), mode="lines+markers",
                    line={"color": colour, "width": 4, "dash": _DASHES[index % 4]},
                    marker={"size": [0, 11], "color": colour, "symbol": _SYMBOLS[index % 4]},
                )
            )  # fmt: skip
        return found

    angles = torch.linspace(0, 2 * math.pi, 97)
    circle = Scatter(
        x=(reach * angles.cos()).tolist(), y=(reach * angles.sin()).tolist(), mode="lines",
        line={"color": palette.QUIET, "width": 1}, showlegend=False, hoverinfo="skip",
    )  # fmt: skip
    start = min(3, steps - 1)  # at position 0 all hands would lie on one another
    figure.add_traces([*hands(start), circle])
    tips = _list(panel.tracks)
    at = [
        {axis: [[0, track[step][which]] for track in tips] for which, axis in enumerate("xy")}
        for step in range(steps)
    ]
    span = [-1.15 * reach, 1.15 * reach]
    figure.update_xaxes(range=span, constrain="domain")
    figure.update_yaxes(range=span, scaleanchor="x", constrain="domain")
    figure.update_layout(updatemenus=[_buttons(at)], sliders=[_slider(panel.step, at, start)])


def _buttons(at: list[dict[str, list]]) -> dict[str, Any]:
    """Play from the first position on, the slider moving along; and stop."""
    frames = [
        {
            "data": [{"x": x, "y": y} for x, y in zip(hands["x"], hands["y"], strict=True)],
            "traces": list(range(len(hands["x"]))),
            "layout": {"sliders[0].active": step},
        }
        for step, hands in enumerate(at)
    ]
    return {
        "type": "buttons", "direction": "left", "x": 0, "y": -0.14, "xanchor": "left", "yanchor": "top",
        "buttons": [
            {"label": "▶", "method": "animate", "args": [frames, _pace(120)]},
            {"label": "❚❚", "method": "animate", "args": [[None], _pace(0)]},
        ],
    }  # fmt: skip


def _pace(milliseconds: int) -> dict[str, Any]:
    frame = {"duration": milliseconds, "redraw": True}  # the slider moves only when all is drawn again
    return {"mode": "immediate", "frame": frame, "transition": {"duration": 0}}


def _slider(name: str, at: list[dict[str, list]], start: int) -> dict[str, Any]:
    return {
        "active": start, "x": 0.14, "len": 0.86, "y": -0.1, "currentvalue": {"prefix": f"{name} ", "xanchor": "right"},
        "steps": [
            {"label": str(step), "method": "restyle", "args": [hands, list(range(len(hands["x"])))]}
            for step, hands in enumerate(at)
        ],
    }  # fmt: skip


def _list(tensor: torch.Tensor) -> list:
    """Numbers as they are; plotly leaves out what is None."""
    from .pictures import _numbers

    return _numbers(tensor)
