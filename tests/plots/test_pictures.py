"""The numbers of a picture are the formulas', written out again here."""

from __future__ import annotations

import json
import math

import pytest
import torch

import ordinate
from ordinate import plots
from ordinate.plots.attention import MAX_WORDS, both_ways, shuffle, split
from ordinate.plots.pictures import Heatmap, Lines, Plane
from ordinate.setting import PICTURE_SIZES, Setting

EVERY = [
    (name, kind)
    for name in ordinate.catalog
    for kind in plots.kinds_of(Setting.of_picture(dim=16).encoding(name))
]


def only(picture: plots.Picture):
    (panel,) = picture.panels
    return panel


@pytest.mark.parametrize(("positions", "dim"), [(20, 32), (50, 64), (100, 512)])
def test_the_map_of_sinusoidal_codes_is_sines_and_cosines(positions, dim):
    panel = only(plots.picture("sinusoidal", "codes", positions=positions, dim=dim))
    assert panel.matrix.shape == (positions, dim)
    assert panel.diverging
    places = torch.arange(positions, dtype=torch.float64)
    for channel in range(dim):
        angle = places * 10000 ** (-(channel - channel % 2) / dim)
        expected = angle.cos() if channel % 2 else angle.sin()
        torch.testing.assert_close(panel.matrix[:, channel], expected, rtol=0, atol=1e-9)


def test_channels_along_positions_and_positions_across_channels():
    along = only(plots.picture("sinusoidal", "channels", channels=(2, 6, 12), positions=128))
    assert [series.name for series in along.series] == ["channel 2", "channel 6", "channel 12"]
    assert len(along.series[0].x) == 128
    expected = [math.sin(p * 10000 ** (-6 / 64)) for p in range(128)]
    assert along.series[1].y.tolist() == pytest.approx(expected, abs=1e-12)
    across = only(plots.picture("sinusoidal", "profile", at=(1, 5)))
    assert [series.name for series in across.series] == ["position 1", "position 5"]
    assert across.series[1].y[3].item() == pytest.approx(math.cos(5 * 10000 ** (-2 / 64)))


def test_waves_are_the_cosines_of_the_pairs_asked_for():
    drawn = plots.picture("rope:base=1e6", "waves", pairs=(0, 15, 31), positions=100)
    for panel, pair in zip(drawn.panels, (0, 15, 31), strict=True):
        speed = 1e6 ** (-2 * pair / 64)
        expected = [math.cos(p * speed) for p in range(100)]
        assert panel.series[0].y.tolist() == pytest.approx(expected, abs=1e-12)
        assert panel.title == f"pair {pair}: a turn in {2 * math.pi / speed:.4g} positions"


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_a_pair_starts_on_its_first_channel_and_turns_by_its_angle(layout):
    panel = only(plots.picture(f"rope:layout={layout}", "rotation", pairs=(0, 3), positions=20, dim=8))
    assert isinstance(panel, Plane)
    for track, pair in zip(panel.tracks, (0, 3), strict=True):
        angles = torch.arange(20) * 10000 ** (-2 * pair / 8)
        torch.testing.assert_close(track[:, 0], angles.cos().double(), rtol=0, atol=1e-6)
        torch.testing.assert_close(track[:, 1], angles.sin().double(), rtol=0, atol=1e-6)


def test_wavelengths_before_and_after_scaling():
    panel = only(plots.picture("rope+yarn:factor=16", "wavelengths", train_length=2048))
    before, after = panel.series
    assert before.y.tolist() == pytest.approx([2 * math.pi * 10000 ** (i / 32) for i in range(32)])
    assert after.y[0] == pytest.approx(before.y[0])
    assert after.y[-1].item() == pytest.approx(16 * before.y[-1].item())
    assert panel.marks[0].at == 2048
    assert [series.name for series in only(plots.picture("sinusoidal", "wavelengths")).series] == [
        "wavelength"
    ]


def test_scalings_stand_side_by_side_and_every_pair_is_in_one_band():
    drawn = plots.picture("rope", "scalings", factor=8.0, train_length=4096)
    assert [panel.title for panel in drawn.panels] == ["original", "linear", "NTK", "YaRN", "Llama 3"]
    sizes = {}
    for panel in drawn.panels:
        before, *bands = panel.series
        assert sum(len(band.x) for band in bands) == 32
        merged = torch.cat([band.y for band in bands])[torch.cat([band.x for band in bands]).argsort()]
        sizes[panel.title] = [len(band.x) for band in bands]
        ratio = merged / before.y
        assert float(ratio.amin()) >= 1 - 1e-12
        assert float(ratio.amax()) <= 8 * (1 + 1e-12)
    assert sizes["original"] == [32, 0, 0]
    assert sizes["linear"] == [0, 0, 32]
    assert sizes["NTK"] == [1, 30, 1]
    plain = ordinate.scaling.frequencies(10000.0, 64)
    llama = ordinate.scaling.Llama3(8.0, 1.0, 4.0, 4096).inv_freq(10000.0, 64)
    assert sizes["Llama 3"][0] == int((llama == plain).sum())
    yarn = ordinate.scaling.YaRN(8.0, 4096)
    kept = yarn.kept(10000.0, 64)
    assert sizes["YaRN"] == [
        int((kept == 1).sum()),
        int(((kept > 0) & (kept < 1)).sum()),
        int((kept == 0).sum()),
    ]


def test_alibi_slopes_and_matrices():
    assert only(plots.picture("alibi", "slopes")).values.tolist() == [2.0**-h for h in range(1, 9)]
    drawn = plots.picture("alibi", "bias", positions=5)
    assert [panel.title for panel in drawn.panels] == [f"head {head}" for head in range(8)]
    first = drawn.panels[0].matrix
    assert first[4].tolist() == [-2.0, -1.5, -1.0, -0.5, 0.0]
    assert first[0, 1:].isnan().all()
    assert {(panel.low, panel.high) for panel in drawn.panels} == {(-2.0, 0.0)}  # no colour is left over
    both = plots.picture("alibi:symmetric=true", "bias", positions=5).panels[0].matrix
    assert both[0].tolist() == [0.0, -0.5, -1.0, -1.5, -2.0]


def test_t5_buckets_and_bias():
    panel = only(plots.picture("t5:bidirectional=true", "buckets", positions=4))
    assert panel.matrix.tolist() == [[0, 17, 18, 19], [1, 0, 17, 18], [2, 1, 0, 17], [3, 2, 1, 0]]
    assert panel.annotated
    for spec in ("t5", "t5:bidirectional=true"):  # a T5's point is that far distances share
        past = only(plots.picture(spec, "buckets")).matrix[-1].flip(0)
        assert len(past.unique()) < len(past)
    encoding = Setting.of_picture().encoding("t5")
    curves = only(plots.picture("t5", "distance", distance=300))
    assert curves.series[0].x[0] == 0
    bucket = encoding.buckets(torch.tensor([200]))
    head = int(curves.series[1].name.removeprefix("head "))
    assert curves.series[1].y[200].item() == pytest.approx(
        encoding.weight[bucket, head].item(), rel=1e-6
    )


def test_scores_against_distance():
    rope = only(plots.picture("rope", "scores", distance=40)).series[0]
    speeds = [10000 ** (-i / 32) for i in range(32)]
    expected = [2 * sum(math.cos(r * w) for w in speeds) / 8 for r in range(41)]
    assert rope.y.tolist() == pytest.approx(expected, rel=1e-9)
    alibi = only(plots.picture("alibi", "scores", distance=40))
    assert alibi.series[0].y.tolist() == pytest.approx([8 - r / 2 for r in range(41)])
    flat = only(plots.picture("none", "scores", distance=40)).series[0]
    assert flat.y.tolist() == pytest.approx([8.0] * 41)


def test_without_positions_a_shuffle_changes_nothing_and_with_them_it_does():
    words = split("the dog bites the man")
    view = Setting.of_picture(dim=16, heads=2)
    plain = shuffle(ordinate.NoPE(), words, view.around(ordinate.NoPE()))
    assert plain.change < 1e-12
    torch.testing.assert_close(plain.before, plain.after)
    torch.testing.assert_close(plain.before.sum(-1), torch.ones(5, dtype=torch.float64))
    assert sorted(plain.order) == list(range(5))
    assert list(plain.order) != list(range(5))
    for name in ("rope", "sinusoidal", "t5", "alibi", "shaw", "learned"):
        encoding = view.encoding(name)
        setting = view.around(encoding)
        causal = name == "t5"  # of one direction
        placed = shuffle(both_ways(encoding), words, setting, causal=causal)
        assert placed.change > 1e-3, name


@pytest.mark.parametrize("name", ["alibi", "rope+alibi"])
def test_alibi_is_shuffled_without_a_mask_as_the_words_without_positions_are(name):
    drawn = plots.picture(name, "attention")
    for panel in drawn.panels:
        assert panel.matrix.triu(1).abs().amax() > 0 or panel.title == "change"  # the future is seen
    assert drawn.panels[2].matrix.abs().amax() < 1e-12
    assert drawn.panels[5].matrix.abs().amax() > 1e-3
    assert drawn.note.endswith("(symmetric, for attention without a mask)")
    symmetric = plots.picture("alibi:symmetric=true", "attention")
    assert name != "alibi" or torch.equal(symmetric.panels[3].matrix, drawn.panels[3].matrix)
    assert "mask" not in symmetric.note


def test_what_needs_a_mask_is_compared_with_no_positions_under_that_mask():
    class Falling(ordinate.PositionEncoding):
        num_heads = 2

        def bias(self, q, k, q_positions=None, k_positions=None, *, x=None):
            return ordinate.LinearBias(
                torch.ones(2), ordinate.positions.resolve(q, k, q_positions, k_positions)
            )

    drawn = plots.picture(Falling(), "attention", dim=16)
    for panel in drawn.panels:
        assert panel.title != "without positions" or not panel.matrix.triu(1).any()
    assert drawn.panels[2].matrix.abs().amax() > 1e-3  # the mask alone
    assert drawn.note.endswith("(all under a causal mask, which tells the order too)")


def test_the_weights_shown_are_those_of_a_softmax():
    words = split("one two three")
    result = shuffle(ordinate.NoPE(), words, Setting.of_picture(dim=8, heads=1).around(ordinate.NoPE()))
    x = torch.stack([plots.attention._vector(word, 8) for word in words])
    generator = torch.Generator().manual_seed(1)
    wq, wk, _ = torch.randn(3, 1, 8, 8, dtype=torch.float64, generator=generator)[:, 0] / 8**0.5
    expected = torch.softmax((x @ wq) @ (x @ wk).T / 8**0.5, dim=-1)
    torch.testing.assert_close(result.before, expected)


def test_a_sentence_is_split_at_spaces_and_chinese_into_characters():
    assert split(" a  b c ") == ["a", "b", "c"]
    assert split("狗咬人") == ["狗", "咬", "人"]
    assert len(split("w " * MAX_WORDS)) == MAX_WORDS


@pytest.mark.parametrize(
    ("spec", "first", "last"),
    [
        ("t5", 15, 113),
        ("t5:bidirectional=true", 7, 91),
        ("t5:num_buckets=4,max_distance=8", 1, 4),
        ("clipped:max_distance=3", None, 3),
    ],
)
def test_the_picture_of_buckets_says_which_distances_share_one(spec, first, last):
    note = plots.picture(spec, "buckets").note
    assert note.endswith(f"; all from {last} on share the last")
    alone = (
        "each distance has its own" if first is None else f"distances up to {first} have a bucket each"
    )
    assert note.startswith(alone + ";")


@pytest.mark.parametrize(("name", "kind"), EVERY)
def test_every_picture_of_every_encoding_is_complete_and_can_be_read_by_a_program(name, kind):
    drawn = plots.picture(name, kind, dim=16, distance=32)
    assert drawn.kind == kind
    parsed = json.loads(json.dumps(drawn.to_dict(), allow_nan=False))
    assert len(parsed["panels"]) == len(drawn.panels) >= 1
    for panel in drawn.panels:
        assert panel.x.label
        assert panel.y.label
        if isinstance(panel, Lines):
            assert panel.series
            assert all(series.x.shape == series.y.shape for series in panel.series)
        if isinstance(panel, Heatmap):
            shown = panel.matrix.double().nan_to_num()
            assert panel.low - 1e-12 <= float(shown.amin()) <= float(shown.amax()) <= panel.high + 1e-12
            assert panel.low < panel.high
            assert panel.low in (0.0, -panel.high) or panel.high == 0.0  # zero is an end or the middle


@pytest.mark.parametrize("name", ordinate.catalog)
def test_the_default_kind_is_one_the_encoding_has(name):
    encoding = Setting.of_picture(dim=16).encoding(name)
    assert plots.default_kind(encoding) in plots.kinds_of(encoding)


def test_an_encoding_of_ones_own_is_drawn_too():
    class Recency(ordinate.PositionEncoding):
        def bias(self, q, k, q_positions=None, k_positions=None, *, x=None):
            places = ordinate.positions.resolve(q, k, q_positions, k_positions)
            return ordinate.LinearBias(torch.ones(q.shape[1]), places, symmetric=True)

    drawn = plots.picture(Recency(), positions=3, heads=1)
    assert (drawn.kind, drawn.subject) == ("bias", "Recency")
    assert drawn.panels[0].matrix.tolist() == [[0, -1, -2], [-1, 0, -1], [-2, -1, 0]]


@pytest.mark.parametrize("name", PICTURE_SIZES)
def test_every_size_has_a_smallest_and_a_largest(name):
    _, least, most = PICTURE_SIZES[name]
    Setting.of_picture(**{name: most})
    Setting.of_picture(**{name: least})
    with pytest.raises(ValueError, match=f"{name} must be at most {most}, got {most + 1}"):
        Setting.of_picture(**{name: most + 1})
    with pytest.raises(ValueError, match=f"{name} must be at least {least}, got {least - 1}"):
        Setting.of_picture(**{name: least - 1})


def test_a_learned_table_shows_no_more_positions_than_it_has():
    assert only(plots.picture("learned", "codes", train_length=7)).matrix.shape[0] == 7


@pytest.mark.parametrize(
    "encoding",
    [
        ordinate.RoPE(32), ordinate.ALiBi(4), ordinate.T5Bias(3), ordinate.Shaw(24, 5), ordinate.Sinusoidal(48),
        ordinate.Learned(20, 40), ordinate.ClippedBias(5, 7),
        ordinate.Combined(ordinate.Sinusoidal(64), ordinate.RoPE(32)),
        ordinate.Combined(ordinate.RoPE(16, rotary_dim=4), ordinate.ALiBi(4, symmetric=True)),
        ordinate.RoPE(16, sections=(2, 3, 3)),
    ],
    ids=lambda encoding: type(encoding).__name__,
)  # fmt: skip
def test_an_encoding_is_drawn_in_its_own_sizes_whatever_the_view_says(encoding):
    for kind in plots.kinds_of(encoding):
        drawn = plots.picture(encoding, kind)
        assert drawn.panels
        json.dumps(drawn.to_dict(), allow_nan=False)


def test_scores_of_shaw_are_those_of_one_token_on_each_head():
    drawn = plots.picture("shaw:max_distance=4", "scores", dim=8, heads=2, distance=12)
    shaw = Setting.of_picture(dim=8, heads=2).encoding("shaw:max_distance=4")
    token = Setting.of_picture(dim=8, heads=2).around(shaw).signs(16).reshape(2, 8)
    for head, series in enumerate(drawn.panels[0].series):
        rows = shaw.keys.detach().double()[[4 - min(distance, 4) for distance in range(13)]]
        expected = (token[head] @ token[head] + rows @ token[head]) / 8**0.5
        torch.testing.assert_close(series.y, expected)
    assert "depends on the token" in drawn.note
    assert len(drawn.panels[0].series) == 2


def test_a_picture_of_some_heads_says_of_how_many():
    for kind in ("bias", "distance", "scores"):
        assert "8 of 12 heads" in plots.picture("alibi", kind, heads=12).note
        assert "heads" not in plots.picture("alibi", kind, heads=8).note.replace("for all heads", "")
