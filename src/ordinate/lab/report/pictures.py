"""Figures as PNG files, for papers, slides and pages without scripts."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from .figures import Chart, Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
_DASHES = ("-", "--", "-.", ":")
_SETTINGS: Any = {
    "font.family": "DejaVu Sans",  # the one font that comes along, so every machine draws the same
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "svg.hashsalt": "ordinate",
}


def draw(chart: Chart) -> bytes:
    """A chart as a PNG; the same chart gives the same bytes."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(9, 5.4), dpi=160, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.set_title(chart.title, pad=22)
        _set_axes(axes, chart)
        handles = [_draw_curve(axes, curve) for curve in chart.curves]
        _draw_lines(axes, chart)
        labels = [f"{curve.label} ({curve.end})" if curve.end else curve.label for curve in chart.curves]
        axes.legend(
            handles, labels, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), handlelength=2.6
        )
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _draw_curve(axes: Axes, curve: Curve) -> Line2D:
    colour = curve.style.colours[0]
    crowded = len(curve.x) > 24
    (line,) = axes.plot(
        curve.x, curve.y, color=colour, linestyle=_DASHES[curve.style.dash % len(_DASHES)], linewidth=1.9,
        marker=None if crowded else _MARKERS[curve.style.marker % len(_MARKERS)], markersize=6,
        markeredgecolor="white", markeredgewidth=0.7, zorder=3,
    )  # fmt: skip
    axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.18, linewidth=0, zorder=2)
    if curve.end.startswith("refused"):
        axes.plot(
            curve.x[-1:],
            curve.y[-1:],
            color=colour,
            marker="x",
            markersize=13,
            markeredgewidth=2.4,
            zorder=4,
        )
    return line


def _draw_lines(axes: Axes, chart: Chart) -> None:
    """The training length, and the levels that mean something."""
    grey = "#666666"
    if chart.train_length is not None:
        axes.axvline(chart.train_length, color=grey, linestyle=(0, (5, 4)), linewidth=1, zorder=1)
        axes.annotate(
            f"trained at {chart.train_length}", (chart.train_length, 1.0), xycoords=("data", "axes fraction"),
            xytext=(4, 2), textcoords="offset points", fontsize=9, color=grey, va="bottom",
        )  # fmt: skip
    for name, level in chart.levels.items():
        axes.axhline(level, color=grey, linestyle=":", linewidth=1, zorder=1)
        axes.annotate(
            name, (1.0, level), xycoords=("axes fraction", "data"), xytext=(-2, 3),
            textcoords="offset points", fontsize=9, color=grey, ha="right",
        )  # fmt: skip


def _set_axes(axes: Axes, chart: Chart) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.grid(True, which="major", color="#dddddd", linewidth=0.7, zorder=0)
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    if chart.log_x:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(plain)
        if chart.ticks:
            axes.xaxis.set_major_locator(FixedLocator(readable_ticks(chart.ticks)))
            axes.xaxis.set_minor_locator(NullLocator())
    if chart.y_range is not None:
        axes.set_ylim(*chart.y_range)
    if chart.log_y:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(FixedLocator(chart.y_ticks))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(plain)


def readable_ticks(lengths: tuple[int, ...]) -> list[int]:
    """Of the tested lengths those whose numbers do not run into each other on a logarithmic axis."""
    span = lengths[-1] / lengths[0] if lengths[0] else 1
    apart = span ** (1 / 14)
    kept: list[int] = []
    for length in lengths:
        if not kept or length >= kept[-1] * apart:
            kept.append(length)
    return kept
