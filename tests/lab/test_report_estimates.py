"""Means and spreads over seeds, and when two of them may be called different."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from ordinate.lab.estimate import Estimate, differ, student_quantile

# Student's t, two-sided, from printed tables.
TABLE = [
    (0.95, 1, 12.706), (0.95, 2, 4.303), (0.95, 4, 2.776),
    (0.99, 10, 3.169), (0.90, 3, 2.353), (0.95, 30, 2.042),
]  # fmt: skip


@pytest.mark.parametrize(("confidence", "freedom", "quantile"), TABLE)
def test_quantiles_are_those_of_printed_tables(confidence, freedom, quantile):
    assert student_quantile(confidence, freedom) == pytest.approx(quantile, abs=5e-4)


def test_one_seed_has_a_mean_and_no_spread():
    one = Estimate((1.5,))
    assert (one.mean, one.spread, one.margin) == (1.5, None, None)


def test_the_spread_is_the_sample_standard_deviation_and_the_margin_its_interval():
    values = (1.50, 1.54, 1.52)
    estimate = Estimate(values)
    assert estimate.spread == pytest.approx(statistics.stdev(values))
    assert estimate.margin == pytest.approx(4.303 * statistics.stdev(values) / math.sqrt(3), rel=1e-3)


def test_what_was_not_measured_is_left_out_of_an_estimate():
    assert Estimate.of([None, 2.0, None, 4.0]) == Estimate((2.0, 4.0))
    assert Estimate.of([None]) is None


def test_with_one_seed_nothing_differs_however_far_apart():
    assert not differ(Estimate((1.0,)), Estimate((9.0,)))
    assert not differ(Estimate((1.0,)), Estimate((9.0, 9.1, 9.2)))


def test_a_difference_smaller_than_the_spread_is_never_claimed():
    # Thirty seeds make any difference significant; it is still lost in the luck of one training.
    draw = random.Random(0)
    a = Estimate(tuple(draw.gauss(1.00, 0.1) for _ in range(400)))
    b = Estimate(tuple(draw.gauss(1.08, 0.1) for _ in range(400)))
    assert abs(a.mean - b.mean) < a.spread
    assert not differ(a, b)


def test_a_clear_difference_is_claimed_and_more_comparisons_ask_for_more():
    a, b = Estimate((1.000, 1.010, 1.005)), Estimate((1.025, 1.035, 1.030))
    assert differ(a, b)
    assert not differ(a, b, comparisons=100)


def test_equal_encodings_are_seldom_called_different():
    draw = random.Random(1)
    wrong = 0
    for _ in range(400):
        a, b = (Estimate(tuple(draw.gauss(1, 0.01) for _ in range(3))) for _ in range(2))
        wrong += differ(a, b)
    assert wrong / 400 <= 0.05
