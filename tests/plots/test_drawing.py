"""Both backends draw the numbers of a picture, with labels, colours anybody can tell apart, and zero in the middle."""

from __future__ import annotations

import itertools
import math
import re
import subprocess
import sys

import pytest
import torch

import ordinate
from ordinate import plots
from ordinate.plots import palette
from ordinate.plots.pictures import Axis, Heatmap, Lines, Mark, Plane, Series, Style

EXAMPLES = [
    ("sinusoidal", "codes"), ("sinusoidal", "channels"), ("sinusoidal", "profile"), ("rope", "rotation"),
    ("rope", "waves"), ("rope", "wavelengths"), ("rope", "scalings"), ("alibi", "bias"), ("alibi", "distance"),
    ("alibi", "slopes"), ("t5", "buckets"), ("rope", "scores"), ("rope", "attention"),
]  # fmt: skip


def test_every_kind_is_drawn_here():
    assert {kind for _, kind in EXAMPLES} == set(plots.KINDS)


@pytest.mark.parametrize(("name", "kind"), EXAMPLES)
def test_matplotlib_draws_the_numbers_with_labels(name, kind):
    drawn = plots.picture(name, kind, dim=16, distance=32)
    figure = plots.figure_of(drawn)
    shown = [axes for axes in figure.axes if axes.get_visible() and axes.get_label() != "<colorbar>"]
    assert len(shown) == len(drawn.panels)
    assert figure.get_suptitle().replace("\n", " ") == f"{drawn.subject}: {drawn.title}"
    for axes, panel in zip(shown, drawn.panels, strict=True):
        assert axes.get_xlabel() in (panel.x.label, "")
        if isinstance(panel, Lines):
            lines = axes.get_lines()
            for series in panel.series:
                (line,) = [line for line in lines if line.get_label() == series.name]
                assert line.get_ydata().tolist() == series.y.tolist()
        if isinstance(panel, Heatmap):
            (image,) = axes.images
            assert image.get_clim() == (panel.low, panel.high)
            assert image.get_cmap().name == ("RdBu_r" if panel.diverging else "cividis")
    assert {axes.get_xlabel() for axes in shown} > {""} or all(axes.get_xlabel() for axes in shown)
    assert any(
        axes.get_ylabel() == panel.y.label for axes, panel in zip(shown, drawn.panels, strict=True)
    )


@pytest.mark.parametrize(("name", "kind"), EXAMPLES)
def test_plotly_draws_the_same_numbers(name, kind):
    drawn = plots.picture(name, kind, dim=16, distance=32)
    figure = plots.figure_of(drawn, "plotly")
    traces = list(figure.data)
    for panel in drawn.panels:
        if isinstance(panel, Lines):
            for series in panel.series:
                trace = traces.pop(0)
                assert trace.name == series.name
                assert list(trace.y) == series.y.tolist()
        elif isinstance(panel, Heatmap):
            trace = traces.pop(0)
            assert (trace.zmin, trace.zmax) == (panel.low, panel.high)
            for given, row in zip(trace.z, panel.matrix.tolist(), strict=True):
                assert [x for x in given if x is not None] == [x for x in row if x == x]
        elif isinstance(panel, Plane):
            frames, steps = (
                figure.layout.updatemenus[0].buttons[0].args[0],
                figure.layout.sliders[0].steps,
            )
            assert len(frames) == len(steps) == panel.tracks.shape[1]
            for at, (frame, step) in enumerate(zip(frames, steps, strict=True)):
                tips = [(0, x, 0, y) for x, y in panel.tracks[:, at].tolist()]
                assert [(*hand["x"], *hand["y"]) for hand in frame["data"]] == tips
                assert [
                    (*x, *y) for x, y in zip(step.args[0]["x"], step.args[0]["y"], strict=True)
                ] == tips
        else:
            assert list(traces.pop(0).y) == panel.values.tolist()
    assert drawn.title in figure.layout.title.text
    assert figure.layout.xaxis.title.text == drawn.panels[0].x.label
    assert figure.layout.yaxis.title.text == drawn.panels[0].y.label


def test_what_a_subject_says_is_text_and_never_markup():
    class Sly(ordinate.PositionEncoding):
        pass

    Sly.__name__ = "<b>sly</b>"
    title = plots.plot(Sly(), "scores", backend="plotly", distance=4).layout.title.text
    assert "&lt;b&gt;sly" in title


def test_colours_of_categories_stay_apart_for_every_kind_of_colour_vision():
    # Linear models of the three dichromacies (Machado et al. 2009, severity 1).
    views = {
        "full": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
        "protan": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
        "deutan": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
        "tritan": ((1.256, -0.077, -0.179), (-0.078, 0.931, 0.148), (0.005, 0.691, 0.304)),
    }

    def seen(colour: str, matrix) -> list[float]:
        rgb = [(int(colour[i : i + 2], 16) / 255) ** 2.2 for i in (1, 3, 5)]
        return [max(sum(a * b for a, b in zip(row, rgb, strict=True)), 0) ** (1 / 2.2) for row in matrix]

    first = palette.CATEGORIES[:4]
    for name, matrix in views.items():
        looks = [seen(colour, matrix) for colour in first]
        apart = [
            sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5
            for index, one in enumerate(looks)
            for other in looks[:index]
        ]
        assert min(apart) > 0.3, name


def test_ordered_colours_grow_lighter():
    colours = [palette.color(index, 8, ordered=True) for index in range(8)]
    light = [sum(int(c[i : i + 2], 16) * w for i, w in ((1, 0.3), (3, 0.6), (5, 0.1))) for c in colours]
    assert light == sorted(light)
    assert len(set(colours)) == 8


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_same_picture_is_the_same_file(tmp_path, suffix):
    paths = [plots.save("alibi", tmp_path / f"{index}.{suffix}", "slopes") for index in range(2)]
    first, second = (path.read_bytes() for path in paths)
    assert first == second
    assert first.startswith(b"\x89PNG" if suffix == "png" else b"<?xml")


def test_html_turns_and_needs_nothing_from_outside(tmp_path):
    text = plots.save("rope", tmp_path / "rope.html", positions=6).read_text(encoding="utf-8")
    assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=[\"']?(?:https?:)?//", text)
    assert "sliders[0].active" in text
    assert text.count('"traces":[0,1,2]') == 6


def test_importing_plots_loads_no_backend():
    code = "import sys, ordinate.plots; print([m for m in ('matplotlib', 'plotly') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_drawing_leaves_matplotlibs_settings_alone():
    import matplotlib

    before = dict(matplotlib.rcParams)
    plots.plot("alibi", "slopes")
    assert dict(matplotlib.rcParams) == before


def test_every_band_of_the_scalings_is_named_once_in_the_legend():
    figure = plots.plot("rope", "scalings", backend="plotly")
    named = [trace.name for trace in figure.data if trace.showlegend]
    assert sorted(named) == ["before scaling", "frequency divided by 8", "in between", "kept"]


@pytest.mark.parametrize("backend", ["matplotlib", "plotly"])
def test_cosines_have_one_scale_from_minus_one_to_one(backend):
    figure = plots.plot("rope", "waves", backend=backend, positions=16)
    if backend == "plotly":
        ranges = [figure.layout[name].range for name in ("yaxis", "yaxis2", "yaxis3")]
    else:
        ranges = [axes.get_ylim() for axes in figure.axes]
    for low, high in ranges:
        assert -1.2 < low < -1 < 1 < high < 1.2


def test_words_of_a_sentence_are_text_and_never_markup():
    figure = plots.plot("rope", "attention", backend="plotly", text="<b>x</b> <i>y</i>")
    assert list(figure.data[0].x) == ["1 &lt;b&gt;x&lt;/b&gt;", "2 &lt;i&gt;y&lt;/i&gt;"]
    assert list(figure.data[0].y) == list(figure.data[0].x)
    assert "<b>" not in figure.layout.title.text.replace("<br>", "")


def test_two_limits_are_drawn_differently():
    """A reader in black and white tells the training length from the context."""
    axis, values = Axis("pair"), torch.arange(1.0, 40)
    marks = (Mark("y", 10.0, "trained at 10"), Mark("y", 20.0, "context 20"))
    panel = Lines(axis, Axis("wavelength", log=True), (Series("s", values, values),), marks=marks)
    drawn = plots.Picture("k", "s", "t", (panel,))
    lines = plots.figure_of(drawn).axes[0].get_lines()
    styles = {line.get_label(): line._dash_pattern for line in lines if line.get_label() != "s"}
    assert len(styles) == len({str(style) for style in styles.values()}) == 2
    shapes = plots.figure_of(drawn, "plotly").layout.shapes
    assert len({shape.line.dash for shape in shapes}) == 2


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([64, 128, 256, 512], ["64", "128", "256", "512"]),
        (range(60, 350), ["60", "80", "100", "150", "200", "300"]),
        (range(5, 13), ["5", "6", "7", "8", "9", "10", "11", "12"]),
        (range(5, 14), ["5", "6", "8", "10"]),
        (range(1, 900), ["1", "2", "5", "10", "20", "50", "100", "200", "500"]),
        (range(1, 2000), None),
        ([7], None),
    ],
)
def test_a_short_logarithmic_axis_has_whole_numbers(values, expected):
    """Plotly itself writes 6 7 8 9 100 2 3."""
    x = torch.tensor(list(values), dtype=torch.float64)
    panel = Lines(Axis("tokens", log=True), Axis("loss"), (Series("s", x, x),))
    axis = plots.figure_of(plots.Picture("k", "s", "t", (panel,)), "plotly").layout.xaxis
    assert (list(axis.ticktext) if axis.ticktext else None) == expected


def test_a_series_has_its_own_style_a_band_and_a_cross_where_it_ends():
    x = torch.tensor([64.0, 128.0, 256.0], dtype=torch.float64)
    series = Series(
        "learned",
        x,
        x / 64,
        low=x / 128,
        high=x / 32,
        style=Style("#009e73", 1, 2),
        end="refused from 512",
    )
    axis = Axis("tokens", log=True, limits=(32, 512), ticks=(64, 256))
    picture = plots.Picture("k", "", "only a title", (Lines(axis, Axis("loss"), (series,)),))

    figure = plots.figure_of(picture)
    (axes,) = figure.axes
    line, cross = axes.get_lines()
    assert (line.get_color(), line.get_linestyle(), line.get_marker()) == ("#009e73", "--", "^")
    assert line.get_label() == "learned (refused from 512)"
    assert (cross.get_marker(), cross.get_xdata().tolist()) == ("x", [256.0])
    assert axes.get_xlim() == (32, 512)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["64", "256"]
    assert figure.get_suptitle() == "only a title"

    drawn = plots.figure_of(picture, "plotly")
    line, band, cross = drawn.data
    assert (line.line.color, line.line.dash, line.marker.symbol) == ("#009e73", "dash", "triangle-up")
    assert line.name == "learned (refused from 512)"
    assert line.text[0] == "1 ± 0.75"
    assert list(band.y) == [2.0, 4.0, 8.0, 2.0, 1.0, 0.5]
    assert (cross.marker.symbol, list(cross.x)) == ("x-thin", [256.0])
    assert drawn.layout.xaxis.range == pytest.approx((5 * math.log10(2), 9 * math.log10(2)))
    assert drawn.layout.xaxis.ticktext == ("64", "256")


@pytest.mark.parametrize("spec", ["t5", "clipped", "clipped:max_distance=1000"])
def test_numbers_in_the_cells_of_a_map_do_not_touch(spec):
    figure = plots.plot(spec, "buckets")
    figure.canvas.draw()
    for _, row in itertools.groupby(figure.axes[0].texts, key=lambda text: text.get_position()[1]):
        boxes = [text.get_window_extent() for text in row]
        assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))
