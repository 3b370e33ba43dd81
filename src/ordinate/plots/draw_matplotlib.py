"""Pictures drawn with matplotlib, for files, papers and notebooks."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import torch

from . import palette
from .pictures import Axis, Bars, Heatmap, Lines, Panel, Picture, Plane, Series, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINE_STYLES = ("-", "--", "-.", ":")  # so that lines differ in print without colours too
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
_MARK_DASHES = ((4, 3), (1, 2), (6, 2, 1, 2))
_ROW_OF_DIGITS = 310  # of a font of one point, so many fit into a row of a map


def to_matplotlib(picture: Picture) -> Figure:
    """A matplotlib figure of a picture."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    columns = min(picture.columns, len(picture.panels))
    rows = math.ceil(len(picture.panels) / columns)
    with rc_context(
        {"font.size": 10, "font.family": _fonts(), "axes.spines.top": False, "axes.spines.right": False}
    ):
        figure = Figure(figsize=_size(picture, rows, columns), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False, sharey=_shares_y(picture)).flatten()
        for index, (axes, panel) in enumerate(zip(grid, picture.panels, strict=False)):
            _draw(axes, panel, first=index % columns == 0, last=index == len(picture.panels) - 1)
            if columns == 1 and index < len(picture.panels) - 1:
                axes.set_xlabel("")
        for axes in grid[len(picture.panels) :]:
            axes.set_visible(False)
        _add_colour_bars(figure, grid, picture)
        figure.suptitle(_folded(picture.heading, figure.get_figwidth(), 12), fontsize=12)
        if picture.note:
            figure.supxlabel(
                _folded(picture.note, figure.get_figwidth(), 9), fontsize=9, color="#555555"
            )
    return figure


def _fonts() -> list[str]:
    """Matplotlib's own font, and for words it has no letters for the first of these that is installed."""
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    chinese = ("Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "WenQuanYi Zen Hei", "PingFang SC",
               "Microsoft YaHei", "SimHei")  # fmt: skip
    return ["DejaVu Sans", *[name for name in chinese if name in installed][:1]]


def _size(picture: Picture, rows: int, columns: int) -> tuple[float, float]:
    panel = picture.panels[0]
    if isinstance(panel, Plane):
        return (7.0, 4.4) if len(panel.names) > 1 else (5.5, 4.4)
    if len(picture.panels) == 1:
        return 7.0, 4.2
    if isinstance(panel, Heatmap) and panel.row_names:
        return 3.6 * columns + 1.2, 3.2 * rows + 0.6
    if columns == 1:
        return 7.0, 1.45 * rows + 0.9
    return 2.5 * columns + 0.8, 2.5 * rows + 0.9


def _folded(text: str, inches: float, points: int) -> str:
    import textwrap

    return textwrap.fill(text, int(inches * 72 / (points * 0.52)))


def _shares_y(picture: Picture) -> bool:
    return len(picture.panels) > 1 and isinstance(picture.panels[0], Lines)


def _draw(axes: Axes, panel: Panel, *, first: bool, last: bool) -> None:
    if isinstance(panel, Lines):
        _draw_lines(axes, panel, legend=last)
    elif isinstance(panel, Heatmap):
        _draw_heatmap(axes, panel)
    elif isinstance(panel, Bars):
        _draw_bars(axes, panel)
    else:
        _draw_plane(axes, panel)
    if panel.title:
        axes.set_title(panel.title, fontsize=10)
    axes.set_xlabel(panel.x.label)
    if first:
        axes.set_ylabel(panel.y.label)


def _scale(axes: Axes, x: Axis, y: Axis) -> None:
    for side, axis in (("x", x), ("y", y)):
        if axis.log:
            axes.set(**{f"{side}scale": "log"})
        if axis.ticks:
            drawn = getattr(axes, f"{side}axis")
            drawn.set_ticks(axis.ticks, [f"{tick:.6g}" for tick in axis.ticks])
            drawn.set_ticks([], minor=True)
            axes.grid(color="#dddddd", linewidth=0.7)
            axes.set_axisbelow(True)
        if axis.limits is not None:
            axes.set(**{f"{side}lim": axis.limits})


def _draw_lines(axes: Axes, panel: Lines, *, legend: bool) -> None:
    _scale(axes, panel.x, panel.y)
    for series in panel.series:
        style = palette.style_of(series, panel)
        x, y, colour = series.x.numpy(), series.y.numpy(), style.color
        axes.plot(x, y, label=series.label, color=colour, **_looks(series, style, panel.ordered))
        if series.low is not None and series.high is not None:
            edges = series.low.numpy(), series.high.numpy()
            axes.fill_between(x, *edges, color=colour, alpha=0.18, linewidth=0)
        if series.end:
            cross: dict[str, Any] = {"marker": "x", "markersize": 13, "markeredgewidth": 2.4}
            axes.plot(x[-1:], y[-1:], color=colour, linestyle="none", **cross)
    for mark, dashes in zip(panel.marks, itertools.cycle(_MARK_DASHES)):
        line = axes.axvline if mark.axis == "x" else axes.axhline
        line(mark.at, color="#444444", linewidth=0.8, linestyle=(0, dashes), label=mark.label or None)
    named = len(panel.series) > 1 or any(mark.label for mark in panel.marks)
    if legend and named:
        axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _looks(series: Series, style: Style, ordered: bool) -> dict[str, Any]:
    """Line and marker of a series as matplotlib names them."""
    marker = _MARKERS[style.marker % len(_MARKERS)]
    if series.points:
        return {"linestyle": "none", "marker": marker, "markersize": 3.5}
    line: dict[str, Any] = {"linestyle": _LINE_STYLES[style.dash % len(_LINE_STYLES)]}
    if series.quiet or not ordered:
        line["linewidth"] = 1.0 if series.quiet else 1.6
    if series.style is not None and len(series.x) <= 24:
        return line | {
            "marker": marker,
            "markersize": 5,
            "markeredgecolor": "white",
            "markeredgewidth": 0.7,
        }
    # A few points are measurements, and one point alone would be no line.
    return line | ({"marker": "."} if len(series.x) <= 12 else {})


def _draw_heatmap(axes: Axes, panel: Heatmap) -> None:
    from matplotlib import colormaps
    from matplotlib.ticker import MaxNLocator

    name = "RdBu_r" if panel.diverging else "cividis"
    colours = colormaps[name].with_extremes(bad=palette.MISSING)
    matrix = panel.matrix.double().numpy()
    square = matrix.shape[0] == matrix.shape[1]
    image = axes.imshow(
        matrix, cmap=colours, vmin=panel.low, vmax=panel.high, interpolation="nearest",
        aspect="equal" if square else "auto",
    )  # fmt: skip
    image.set_label(panel.value)
    for side in ("top", "right"):
        axes.spines[side].set_visible(True)
    for names, axis, angle in ((panel.row_names, axes.yaxis, 0), (panel.column_names, axes.xaxis, 45)):
        if names:
            axis.set_ticks(range(len(names)), names, fontsize=8, rotation=angle)
            if angle:
                for label in axis.get_ticklabels():
                    label.set(ha="right", rotation_mode="anchor")
        else:
            axis.set_major_locator(MaxNLocator(integer=True))
    if panel.annotated:
        _annotate(axes, panel)


def _annotate(axes: Axes, panel: Heatmap) -> None:
    longest = max(len(f"{value:g}") for value in panel.matrix.flatten().tolist())
    size = min(7 if len(panel.matrix) <= 16 else 5.5, _ROW_OF_DIGITS / (panel.matrix.shape[1] * longest))
    for row in range(panel.matrix.shape[0]):
        for column in range(panel.matrix.shape[1]):
            value = panel.matrix[row, column].item()
            dark = not panel.diverging and value < panel.low + 0.55 * (panel.high - panel.low)
            axes.text(
                column,
                row,
                f"{value:g}",
                ha="center",
                va="center",
                fontsize=size,
                color="white" if dark else "black",
            )


def _add_colour_bars(figure: Figure, grid: Any, picture: Picture) -> None:
    """One bar for all maps that share their colours."""
    groups: dict[tuple[str, float, float], list[Axes]] = {}
    for axes, panel in zip(grid, picture.panels, strict=False):
        if isinstance(panel, Heatmap):
            groups.setdefault((panel.value, panel.low, panel.high), []).append(axes)
    for (value, *_), shown in groups.items():
        bar = figure.colorbar(shown[0].images[0], ax=shown, shrink=0.9, pad=0.02)
        bar.set_label(value)
        bar.outline.set_visible(False)


def _draw_bars(axes: Axes, panel: Bars) -> None:
    _scale(axes, panel.x, panel.y)
    places = range(len(panel.names))
    bars = axes.bar(places, panel.values.numpy(), color=palette.CATEGORIES[0], width=0.7)
    if len(panel.names) <= 16:
        axes.bar_label(bars, [_short(value) for value in panel.values.tolist()], fontsize=8, padding=2)
        axes.margins(y=0.1)
    step = math.ceil(len(panel.names) / 16)
    axes.set_xticks(list(places)[::step], list(panel.names)[::step])


def _short(value: float) -> str:
    """``1/2``, ``1/256`` where that is exact, else three digits."""
    inverse = 1 / value if value else 0.0
    return (
        f"1/{inverse:.0f}"
        if inverse and math.isclose(inverse, round(inverse), rel_tol=1e-9)
        else f"{value:.3g}"
    )


def _draw_plane(axes: Axes, panel: Plane) -> None:
    """Each track from its first point, an arrow, to its last; dots fade from the first to the last position."""
    reach = float(torch.nan_to_num(panel.tracks).norm(dim=-1).amax()) or 1.0
    steps = panel.tracks.shape[1]
    for index, (name, track) in enumerate(zip(panel.names, panel.tracks, strict=True)):
        colour = palette.color(index, len(panel.names), ordered=False)
        # Tracks share a circle; drawn on circles of their own they can be told apart.
        radius = 1 - 0.22 * index
        points = (track * radius / reach).numpy()
        shades = [0.15 + 0.75 * place / max(steps - 1, 1) for place in range(steps)]
        axes.scatter(points[:, 0], points[:, 1], s=14, color=colour, alpha=shades, linewidths=0)  # type: ignore[arg-type]
        axes.annotate(
            "", points[min(1, steps - 1)], (0, 0),
            arrowprops={"arrowstyle": "->", "color": colour, "lw": 1.4, "linestyle": "--"},
        )  # fmt: skip
        axes.annotate(
            "", points[-1], (0, 0), arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 1.8}
        )
        axes.plot([], [], color=colour, marker="o", linestyle="-", label=f"{name}, radius {radius:.2f}")
    axes.set_aspect("equal")
    axes.set(xlim=(-1.12, 1.12), ylim=(-1.12, 1.12))
    axes.axhline(0, color="#cccccc", linewidth=0.7, zorder=0)
    axes.axvline(0, color="#cccccc", linewidth=0.7, zorder=0)
    axes.plot([], [], color="#444444", linestyle="--", label=f"at {panel.step} 1")
    axes.plot([], [], color="#444444", linestyle="-", label=f"at {panel.step} {steps - 1}")
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
