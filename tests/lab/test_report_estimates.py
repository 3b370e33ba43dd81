"""The statistics of a report keep what they promise: simulated error rates, coverage and power."""

from __future__ import annotations

import math
import random
import statistics
from itertools import combinations

import pytest
import torch

from ordinate.lab.report.all_pairs import compare, detectable, groups, two_way
from ordinate.lab.report.estimate import Error, Estimate, decided
from ordinate.lab.report.quantiles import student_quantile, studentized_range_quantile

draw = random.Random(0)

# Student's t, two-sided, from printed tables.
TABLE = [
    (0.95, 1, 12.706), (0.95, 2, 4.303), (0.95, 4, 2.776),
    (0.99, 10, 3.169), (0.90, 3, 2.353), (0.95, 30, 2.042),
]  # fmt: skip
# The studentized range: Pearson and Hartley, Biometrika Tables for Statisticians, vol. 1 (1966), table 29.
RANGES = [
    (0.95, 2, 1, 17.97), (0.95, 3, 1, 26.98), (0.95, 20, 1, 59.56), (0.95, 3, 2, 8.33), (0.95, 5, 4, 6.29),
    (0.95, 3, 10, 3.88), (0.95, 8, 14, 4.99), (0.95, 10, 20, 5.01), (0.99, 5, 10, 6.14), (0.99, 3, 20, 4.64),
]  # fmt: skip


@pytest.mark.parametrize(("confidence", "freedom", "quantile"), TABLE)
def test_quantiles_are_those_of_printed_tables(confidence, freedom, quantile):
    assert student_quantile(confidence, freedom) == pytest.approx(quantile, abs=5e-4)


@pytest.mark.parametrize(("confidence", "count", "freedom", "quantile"), RANGES)
def test_studentized_ranges_are_those_of_printed_tables(confidence, count, freedom, quantile):
    assert studentized_range_quantile(confidence, count, freedom) == pytest.approx(quantile, abs=5.1e-3)


def test_of_two_arms_the_studentized_range_is_students_t():
    for freedom in (2, 7, 1000):
        q = studentized_range_quantile(0.95, 2, freedom)
        assert q / math.sqrt(2) == pytest.approx(student_quantile(0.95, freedom), rel=1e-6)


def test_one_seed_has_a_mean_and_no_spread():
    one = Estimate((1.5,))
    assert (one.mean, one.spread, one.margin()) == (1.5, None, None)


def test_what_was_not_measured_is_left_out_of_an_estimate():
    assert Estimate.of([None, 2.0, None, 4.0]) == Estimate((2.0, 4.0))
    assert Estimate.of([None]) is None


# All pairs


def noise(arms, seeds, spreads, draws=6000):
    """Equal arms: what a seed does to all of them is far more than what it does to each."""
    rng = torch.Generator().manual_seed(arms * seeds)
    own = torch.randn(draws, arms, seeds, generator=rng, dtype=torch.float64)
    shared = torch.randn(draws, 1, seeds, generator=rng, dtype=torch.float64)
    return own * torch.tensor(spreads, dtype=torch.float64)[:, None] + 20 * shared


def any_claim(table):
    differences, margins, _ = two_way(table)
    return (differences.abs() > margins).flatten(1).any(1).double().mean().item()


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("arms", [2, 3, 8, 12])
def test_of_equal_arms_none_is_told_apart_in_19_comparisons_of_20(arms, seeds):
    assert any_claim(noise(arms, seeds, [1.0] * arms)) <= 0.057  # 5 %, and two errors of the simulation


# The least that pooling survives: with three seeds an arm's own spread is next to unknown.
@pytest.mark.parametrize(("seeds", "most"), [(3, 0.08), (5, 0.06), (10, 0.055)])
@pytest.mark.parametrize(
    "spreads",
    [[3] + [1] * 7, [10] + [1] * 7, [100] + [1] * 7, [3] * 4 + [1] * 4, [10] * 4 + [1] * 4, [3**n for n in range(8)]],
    ids=["one 3×", "one 10×", "one 100×", "half 3×", "half 10×", "each 3× the next"],
)  # fmt: skip
def test_arms_that_scatter_more_than_others_are_not_told_apart_for_that(spreads, seeds, most):
    assert any_claim(noise(8, seeds, [float(one) for one in spreads])) <= most


def test_missing_runs_cost_certainty_and_no_error():
    table = noise(6, 5, [1.0] * 6)
    table[:, 0, 1:3] = table[:, 4, 4] = table[:, 5, :2] = math.nan
    assert any_claim(table) <= 0.057
    differences, margins, spread = two_way(table[0])
    assert spread.item() > 0
    assert margins[0, 5] > margins[1, 2]  # one seed in common: nothing can be said of these two
    assert margins[0, 5] == math.inf
    whole, _, _ = two_way(noise(6, 5, [1.0] * 6)[0])
    assert differences[1, 2] == pytest.approx(whole[1, 2].item(), abs=1.0)


def test_a_pair_is_compared_within_its_seeds():
    seeds = torch.tensor([0.0, 5.0, -3.0, 9.0, 1.0])
    table = torch.stack([seeds, seeds + 0.1, seeds + 0.1]) + 0.01 * noise(3, 5, [1.0] * 3)[0] % 0.01
    found = compare(table, lambda a, b, confidence: 0.0)
    assert (found.order[0], found.groups) == (0, [[0], found.order[1:]])


def no_text(a, b, confidence):
    return 0.0


def test_equal_numbers_are_not_told_apart_and_other_numbers_without_any_spread_are():
    table = torch.tensor([[0.1] * 3, [0.1] * 3, [0.3] * 3]).double()
    found = compare(table, no_text)
    assert ([sorted(group) for group in found.groups], found.visible) == ([[0, 1], [2]], None)


@pytest.mark.parametrize("seeds", [1, 2])
def test_fewer_than_three_seeds_give_no_order(seeds):
    assert compare(torch.tensor([[1.0] * seeds, [9.0] * seeds]), no_text) is None
    assert compare(torch.ones(1, 5), no_text) is None


def test_two_arms_without_common_seeds_are_not_told_apart():
    table = torch.full((3, 6), math.nan, dtype=torch.float64)
    table[0, :3], table[1, 3:], table[2] = (
        torch.ones(3),
        9 * torch.ones(3),
        9 + torch.randn(6).double() / 100,
    )
    found = compare(table, no_text)
    assert any({0, 1} <= set(group) for group in found.groups)
    assert not any({0, 2} <= set(group) for group in found.groups)


def test_arms_apart_on_a_text_too_small_to_tell_are_not_told_apart():
    table = noise(3, 5, [1.0] * 3)[0] + torch.tensor([[0.0], [100.0], [200.0]]).double()
    assert len(compare(table, no_text).groups) == 3
    assert len(compare(table, lambda a, b, confidence: None).groups) == 1
    assert len(compare(table, lambda a, b, confidence: 150.0).groups) == 2


def test_text_is_asked_for_as_much_certainty_as_all_pairs_together_need():
    asked = []
    compare(noise(4, 5, [1.0] * 4)[0], lambda a, b, confidence: asked.append(confidence))
    assert asked == [pytest.approx(1 - 0.05 / 6)] * 6


def test_groups_are_the_largest_sets_that_hold_no_pair_told_apart():
    for _ in range(200):
        apart = {pair for pair in combinations(range(6), 2) if draw.random() < 0.4}
        sets = [
            set(some)
            for size in range(1, 7)
            for some in combinations(range(6), size)
            if not any(pair in apart for pair in combinations(some, 2))
        ]
        largest = [some for some in sets if not any(some < other for other in sets)]
        assert sorted(map(sorted, largest)) == groups(6, apart)


@pytest.mark.parametrize(("seeds", "text"), [(3, 0.0), (5, 0.0), (5, 1.0)])
def test_what_is_said_to_be_visible_is_seen_four_times_in_five(seeds, text):
    arms, size = 8, detectable(8, seeds, text)
    table = noise(arms, seeds, [1.0] * arms)
    error = text / student_quantile(1 - 0.05 / 28, 1000)
    off = error * torch.randn(
        len(table), 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    table[:, 0] += size + off
    differences, margins, _ = two_way(table)
    seen = (differences[:, 0, 1:] > (margins[:, 0, 1:] ** 2 + text**2).sqrt()).double().mean()
    assert seen == pytest.approx(0.8, abs=0.02)


def test_pooling_sees_what_welchs_test_of_each_pair_does_not():
    """With three seeds a shift of five spreads; Welch's test takes the seeds' own scatter for noise."""
    table = noise(8, 3, [1.0] * 8, draws=1000)
    table[:, 0] += 5.0
    differences, margins, _ = two_way(table)
    pooled = (differences[:, 0, 1] > margins[:, 0, 1]).double().mean()
    error = ((table[:, 0].var(1) + table[:, 1].var(1)) / 3).sqrt()
    welch = (differences[:, 0, 1] > student_quantile(1 - 0.05 / 28, 4) * error).double().mean()
    assert pooled > 0.75
    assert welch < 0.05


# Text and seeds


def crossed(draws, seeds, pieces, of_seed, of_text, of_both):
    """Quantities whose truth is 0, each on the same stretches with each seed."""
    rng = torch.Generator().manual_seed(seeds * pieces)
    shapes = (draws, seeds, 1), (draws, 1, pieces), (draws, seeds, pieces)
    parts = (torch.randn(shape, generator=rng, dtype=torch.float64) for shape in shapes)
    there = sum(size * part for size, part in zip((of_seed, of_text, of_both), parts, strict=True))
    errors = (there.std(-1) / math.sqrt(pieces)).tolist()
    return [
        Estimate(tuple(values), tuple((Error(error),) for error in of_seeds), pieces)
        for values, of_seeds in zip(there.mean(-1).tolist(), errors, strict=True)
    ]


def inside(estimates, truth):
    return statistics.fmean(abs(one.mean - truth) <= one.margin() for one in estimates)


@pytest.mark.parametrize(
    ("of_seed", "of_text", "of_both"), [(1, 0.1, 0.1), (0.1, 1, 0.1), (0.1, 0.4, 0.4), (0, 0, 1)]
)
@pytest.mark.parametrize(("seeds", "pieces"), [(1, 8), (3, 8), (5, 16)])
def test_intervals_over_text_and_seeds_hold_the_truth_at_least_19_times_in_20(
    seeds, pieces, of_seed, of_text, of_both
):
    if seeds == 1:
        of_seed = 0  # what is said of one seed is about that model
    assert inside(crossed(2000, seeds, pieces, of_seed, of_text, of_both), 0.0) >= 0.94


def share_of(right, count):
    share = right / count
    error = math.sqrt(share * (1 - share) / (count - 1))
    return Error(max(error, 1.5 / count), share)  # as `evaluate` records it


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize(
    ("before", "after"), [(0.5, 0.5), (0.9, 0.8), (0.98, 0.95), (1.0, 0.9), (0.99, 0.02), (1.0, 1.0)]
)
def test_intervals_of_falls_of_accuracy_hold_the_truth_at_least_19_times_in_20(before, after, seeds):
    count, share = torch.tensor([512.0, 64.0]), torch.tensor([before, after])
    rng = torch.Generator().manual_seed(0)
    right = torch.binomial(count.expand(1500, seeds, 2), share.expand(1500, seeds, 2), rng)
    found = [[(share_of(a, 512), share_of(b, 64)) for a, b in one] for one in right.tolist()]
    falls = [Estimate(tuple(a.share - b.share for a, b in one), tuple(one), 64) for one in found]
    assert inside(falls, before - after) >= 0.94


@pytest.mark.parametrize("share", [0.0, 1e-140, 0.5, 1.0])
@pytest.mark.parametrize("size", [5e-324, 1e-170, 1e60])
def test_an_error_of_any_size_has_an_interval(share, size):
    """Records may hold numbers that no test of a model gives."""
    assert Error(size, share).half_width(2.0) >= 0.0


# Several claims


@pytest.mark.parametrize("seeds", [1, 3, 5])
@pytest.mark.parametrize("truth", [1e-9, -1e-9])
def test_of_many_arms_at_the_limit_none_is_put_on_the_wrong_side_in_19_comparisons_of_20(truth, seeds):
    arms = [one.over(-truth) for one in crossed(4800, seeds, 8, float(seeds > 1), 1, 0.5)]
    claims = [decided(dict(enumerate(arms[n : n + 8]))) for n in range(0, 4800, 8)]
    assert sum(any(one != (truth > 0) for one in each.values()) for each in claims) / 600 <= 0.065


def test_of_many_gains_of_nothing_none_is_called_a_gain_or_a_harm_in_19_comparisons_of_20():
    gains = crossed(4800, 3, 8, 1, 1, 0.5)
    claims = [decided(dict(enumerate(gains[n : n + 8])), sides=2) for n in range(0, 4800, 8)]
    assert sum(map(bool, claims)) / 600 <= 0.065


def exactly(*values):
    """Without any error of text."""
    return Estimate(values, ((),) * len(values), 64)


def test_what_others_show_clearly_leaves_more_certainty_to_the_last():
    clear = {n: exactly(9.0, 9.1, 9.2) for n in range(7)}
    assert decided({**clear, "last": exactly(0.30, 0.35, 0.45)})["last"]
    assert decided({n: exactly(0.30, 0.35, 0.45) for n in range(8)}) == {}


def test_no_claim_goes_beyond_the_numbers_own_interval():
    one = exactly(0.10, 0.26, 0.42)
    assert one.margin() > one.mean
    assert one.mean > 0.95 * one.margin(0.9)
    assert decided({"one": one}) == {}
