"""The steps of `ordinate.show` hold the numbers of the formulas, written out again here."""

from __future__ import annotations

import math

import pytest
import torch

import ordinate
from ordinate import show
from ordinate.walkthrough.walk import Step, formatted, tables


def step(walk: ordinate.Walk, words: str) -> Step:
    (found,) = [item for item in walk.steps if words in item.title]
    return found


def column(item: Step, name: str) -> list:
    return [row[item.columns.index(name)] for row in item.rows]


def test_rope_turns_every_pair_by_its_angle():
    walk = show("rope:base=500", position=7, dim=6)
    angles = [7 * 500 ** (-2 * i / 6) for i in range(3)]
    torch.testing.assert_close(column(step(walk, "angle"), "angle"), angles)
    turned = step(walk, "turn each pair")
    for row, angle in zip(turned.rows, angles, strict=True):
        _, a, b, a_after, b_after = row
        assert a_after == pytest.approx(a * math.cos(angle) - b * math.sin(angle), abs=1e-12)
        assert b_after == pytest.approx(b * math.cos(angle) + a * math.sin(angle), abs=1e-12)


@pytest.mark.parametrize(
    ("layout", "channels"),
    [("half", ["0, 3", "1, 4", "2, 5"]), ("interleaved", ["0, 1", "2, 3", "4, 5"])],
)
def test_rope_names_the_channels_its_layout_pairs(layout, channels):
    walk = show(f"rope:layout={layout}", dim=6)
    pairs = step(walk, "pairs")
    assert column(pairs, "channels") == channels
    query = torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for name, a, b in zip(channels, column(pairs, "a"), column(pairs, "b"), strict=True):
        first, second = (int(channel) for channel in name.split(", "))
        assert (a, b) == (query[first].item(), query[second].item())


def test_rope_scores_depend_on_the_difference_alone_and_the_norm_stays():
    walk = show("rope", dim=64)
    relative = step(walk, "query at m")
    by_difference: dict[int, set[float]] = {}
    for _, _, difference, _, turned in relative.rows:
        by_difference.setdefault(difference, set()).add(round(turned, 9))
    assert {len(scores) for scores in by_difference.values()} == {1}
    assert len(set().union(*by_difference.values())) == 4  # -10, -3, 0 and 10 differ from each other
    places = [(m, n) for m, n, *_ in relative.rows]
    assert {(5, 8), (100, 103)} <= set(places)
    ((before, after, quotient),) = step(walk, "norm").rows
    assert before == pytest.approx(after, rel=1e-14)
    assert quotient == pytest.approx(1, rel=1e-14)


def test_a_scaling_shows_what_each_pair_is_divided_by():
    walk = show("yarn", dim=64, train_length=2048)
    divided = column(step(walk, "before and after scaling"), "divided by")
    turns = column(step(walk, "before and after scaling"), "turns in 2048")
    assert turns == pytest.approx([2048 * 10000 ** (-i / 32) / (2 * math.pi) for i in range(32)])
    assert divided[0] == 1
    assert divided[-1] == pytest.approx(4)
    assert divided == sorted(divided)
    quotient = step(walk, "norm").rows[0][-1]
    assert quotient == pytest.approx(0.1 * math.log(4) + 1, rel=1e-12)


def test_a_pair_that_stands_still_has_no_wavelength():
    walk = show("proportional", dim=64)
    assert column(step(walk, "before and after scaling"), "wavelength")[-1] is None
    assert "·" in str(walk)


def test_a_length_dependent_scaling_says_for_which_length():
    walk = show("dynamic", train_length=100)
    assert "for a sequence of 200" in step(walk, "before and after scaling").note


@pytest.mark.parametrize("options", ["", ":layout=half", ":endpoint=true", ":offset=2,base=77"])
def test_sinusoidal_rows_are_sines_and_cosines(options):
    dim, place = 8, 11
    walk = show(f"sinusoidal{options}", position=place, dim=dim, length=5)
    base = 77 if "base" in options else 10000
    steps = 3 if "endpoint" in options else 4
    offset = 2 if "offset" in options else 0
    speeds = [base ** (-i / steps) for i in range(4)]
    code = step(walk, "the code of position 11")
    assert column(code, "sin") == pytest.approx([math.sin((place + offset) * w) for w in speeds])
    assert column(code, "cos") == pytest.approx([math.cos((place + offset) * w) for w in speeds])
    rows = step(walk, "row by row").rows
    encoding = ordinate.create(f"sinusoidal{options}", d_model=dim)
    torch.testing.assert_close(torch.tensor(rows)[:, 1:], encoding.codes(torch.arange(5)).float())
    shifted = next(item for item in walk.steps if "from that of" in item.title)
    assert column(shifted, "sin, turned") == pytest.approx(column(shifted, "sin, itself"), abs=1e-12)


def test_the_rule_of_alibi_gives_the_slope_beside_each_head():
    slopes = step(show("alibi", heads=8), "slope")
    assert slopes.formula.startswith("2^(-8(h+1)/n) for n heads")
    for head, slope, *_ in slopes.rows:
        assert slope == 2 ** (-8 * (head + 1) / 8)


def test_the_bucket_that_t5_never_uses_is_named():
    buckets = step(show("t5:bidirectional=true"), "distances of each bucket")
    assert 16 not in column(buckets, "bucket")
    assert "bucket 16 is never used: distance 0 is in bucket 0" in buckets.note
    assert "never used" not in step(show("t5"), "distances of each bucket").note


def test_alibi_slopes_and_matrix():
    walk = show("alibi", heads=6, length=4)
    slopes = column(step(walk, "slope"), "slope")
    assert slopes == [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]
    matrix = step(walk, "head 0 adds").rows
    assert matrix[3] == (3, -0.75, -0.5, -0.25, 0.0)
    assert matrix[0] == (0, 0.0, None, None, None)
    symmetric = step(show("alibi:symmetric=true", heads=2, length=3), "head 0 adds").rows
    assert symmetric[0] == (0, 0.0, -0.0625, -0.125)


def test_t5_buckets_of_a_short_sequence_and_their_ranges():
    both = show("t5:bidirectional=true", length=4)
    matrix = step(both, "bucket of each pair").rows
    assert [row[1:] for row in matrix] == [(0, 17, 18, 19), (1, 0, 17, 18), (2, 1, 0, 17), (3, 2, 1, 0)]
    ranges = {bucket: distances for bucket, distances, *_ in step(both, "distances of each").rows}
    assert ranges[15] == "91 and beyond"
    assert ranges[31] == "-91 and beyond"
    assert ranges[8] == "8 to 11"
    assert 16 not in ranges  # the row no distance reaches
    causal = show("t5")
    assert column(step(causal, "distances of each"), "query - key")[-1] == "113 and beyond"


def test_clipped_and_shaw_rows():
    clipped = show("clipped:max_distance=2", length=4, heads=1)
    assert [row[1:] for row in step(clipped, "row of the table").rows] == [
        (2, 1, 0, 0), (3, 2, 1, 0), (4, 3, 2, 1), (4, 4, 3, 2),
    ]  # fmt: skip
    shaw = show("shaw:max_distance=2", length=4, dim=4)
    assert [row[1:] for row in step(shaw, "row of the keys").rows] == [
        (2, 3, 4, 4), (1, 2, 3, 4), (0, 1, 2, 3), (0, 0, 1, 2),
    ]  # fmt: skip
    for _, _, content, relative, score in step(shaw, "scores of query 3").rows:
        assert score == pytest.approx((content + relative) / 2)


def test_learned_shows_its_table_and_where_it_ends():
    walk = show("learned", dim=4, train_length=6, length=9)
    assert len(step(walk, "first rows").rows) == 6
    assert "position 6 has no row" in walk.steps[-1].note
    assert column(step(walk, "the code of position 3"), "code") == list(
        step(walk, "first rows").rows[3][1:]
    )
    with pytest.raises(ValueError, match=r"positions must be in 0 … 5 \(max_positions=6\), got 7"):
        show("learned", dim=4, train_length=6, position=7)


def test_without_positions_shuffled_tokens_keep_their_outputs():
    (item,) = show("none", length=6).steps
    assert column(item, "channel 0, shuffled") == pytest.approx(
        column(item, "channel 0 of that token before")
    )
    assert column(item, "token") != list(range(6))


@pytest.mark.parametrize("name", ordinate.catalog)
def test_every_entry_of_the_catalog_can_be_shown(name):
    walk = show(name)
    assert walk.steps
    assert all(len(row) == len(item.columns) for item in walk.steps for row in item.rows)
    assert ordinate.catalog[name].formula in walk.formula


def test_a_combination_shows_each_of_its_parts():
    titles = [item.title for item in show("rope:base=1e+4+alibi").steps]
    assert "turn each pair" in titles
    assert "the slope of each head" in titles


def test_learned_numbers_are_the_same_every_time_and_leave_the_generator_alone():
    before = torch.random.get_rng_state()
    assert show("t5").to_dict() == show("t5").to_dict()
    assert torch.equal(before, torch.random.get_rng_state())


def test_an_encoding_without_steps_of_its_own_is_shown_by_its_hooks():
    from ordinate.setting import Setting
    from ordinate.walkthrough.api import _by_hooks

    class Everything(ordinate.PositionEncoding):
        def embed(self, x, positions=None):
            return x + 1

        def rotate(self, q, k, q_positions=None, k_positions=None, *, lengths=None):
            return 2 * q, k

        def bias(self, q, k, q_positions=None, k_positions=None, *, x=None):
            places = ordinate.positions.resolve(q, k, q_positions, k_positions)
            return ordinate.LinearBias(torch.ones(q.shape[1]), places)

    steps = _by_hooks(Everything(), Setting.of_steps(length=3, heads=1))
    assert steps[0].rows[2] == (2, *[1.0] * 8)
    assert all(after == 2 * before for _, before, after in steps[1].rows)
    assert steps[2].rows == ((1, 2, -2.0), (2, 1, -1.0), (3, 0, 0.0))
    assert steps[3].rows[2] == (2, -2.0, -1.0, 0.0)


@pytest.mark.parametrize("width", [1, 20, 30, 60, 80, 200, 10_000])
def test_a_wide_table_goes_on_below_and_loses_nothing(width):
    item = show("sinusoidal", dim=64).steps[2]
    found = tables(item, width=width)
    assert len(found) == 1 if width == 10_000 else len(found) > 1
    assert max(len(line) for table in found for line in table) <= max(width, 22)
    assert {table[0].split()[0] for table in found} == {"position"}
    rows = [[cell for line in lines for cell in line.split()[1:]] for lines in zip(*found, strict=True)]
    assert rows[0] == [str(channel) for channel in range(64)]
    assert rows[1:] == [formatted(row[1:]) for row in item.rows]


def test_numbers_read_well_at_every_size():
    cells = [0.0, 1e-3, -0.5, 123.45678, 1e9, 1e-9, 5, "word", None]
    numbers = ["0.0000", "0.0010", "-0.5000", "123.5", "1.0000e+09", "1.0000e-09"]
    assert formatted(cells) == [*numbers, "5", "word", "·"]


@pytest.mark.parametrize("name", ["alibi", "t5", "clipped:max_distance=4", "alibi:scaled=true"])
def test_a_query_far_away_adds_what_the_same_distances_add_near_by(name):
    near = step(show(name, position=7), "what a query at")
    far = step(show(name, position=100_007), "what a query at")
    assert [row[1:] for row in near.rows] == [row[1:] for row in far.rows]
    assert far.rows[0][0] == 100_000


def test_the_query_of_alibi_falls_by_its_slope():
    item = step(show("alibi", position=2), "what a query at")
    assert item.rows == (
        (0, 2, -1.0, -0.5, -0.25, -0.125),
        (1, 1, -0.5, -0.25, -0.125, -0.0625),
        (2, 0, 0, 0, 0, 0),
    )


@pytest.mark.parametrize(
    ("spec", "encoding"),
    [
        ("alibi", ordinate.ALiBi(8)),
        ("rope", ordinate.RoPE(8)),
        ("sinusoidal", ordinate.Sinusoidal(8)),
        ("none", ordinate.NoPE()),
        ("rope+alibi", ordinate.Combined(ordinate.RoPE(8), ordinate.ALiBi(8))),
    ],
)
def test_an_encoding_is_shown_as_its_spec_is(spec, encoding):
    named, given = ordinate.show(spec), ordinate.show(encoding)
    assert given.steps == named.steps
    assert (given.description, given.formula) == (named.description, named.formula)


def test_the_sizes_of_an_encoding_count_and_not_those_of_the_example():
    walk = ordinate.show(ordinate.Combined(ordinate.Sinusoidal(6), ordinate.RoPE(4), ordinate.ALiBi(3)))
    assert walk.name == "Sinusoidal + RoPE + ALiBi"
    rows = {one.title: len(one.rows) for one in walk.steps}
    assert rows["the slope of each head"] == 3
    assert rows["cut the query into pairs"] == 2


def test_an_encoding_that_is_not_in_the_catalog_is_shown_by_its_hooks():
    class Near(ordinate.PositionEncoding):
        def bias(self, q, k, q_positions=None, k_positions=None, *, x=None):
            places = ordinate.positions.resolve(q, k, q_positions, k_positions)
            return ordinate.LinearBias(torch.ones(q.shape[1]), places, symmetric=True)

    walk = ordinate.show(Near(), heads=2, length=3)
    assert (walk.name, walk.description, walk.formula) == ("Near", "added to the logits", "")
    assert [one.title for one in walk.steps][1:] == [
        f"what head {head} adds to the scores" for head in (0, 1)
    ]
