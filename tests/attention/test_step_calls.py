"""How much Python a step of attention runs: a count of our calls, the same on every machine."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import ordinate

pytestmark = pytest.mark.plain  # shape checks are calls, too

COUNTER = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks/step_calls.py"))


def test_a_step_of_rope_and_t5_makes_at_most_200_calls_and_checks_each_tensor_once():
    calls = COUNTER["step_calls"](COUNTER["rope_and_t5"]())
    assert calls.total() <= 200, calls.most_common()
    # q, k and v by attention, q and k by the rotation, the table by the bias.
    assert calls["checks.py:check_rank"] <= 6
    assert calls["places.py:locate"] == 1


def test_a_step_with_one_query_makes_at_most_120_calls():
    encoding = ordinate.ALiBi(8)
    calls = COUNTER["step_calls"](encoding, q_len=1, backward=False)
    assert calls.total() <= 120, calls.most_common()
