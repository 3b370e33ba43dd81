"""How far a number may be off, from records: told from pairs of the same text, and not at all from too little."""

from __future__ import annotations

import math
import random
import statistics

import pytest
import torch
from synthetic_records import rewrite, write_sweep
from test_report_findings import said, verdict
from test_report_summary import change_losses, summary_of

from ordinate.lab.report.estimate import Estimate, error_of_pairs
from ordinate.lab.report.summarize import _rise

draw = random.Random(0)


def text(count: int, shift: float = 0.0) -> list[float]:
    """Losses of stretches that differ by far more than what a length changes in each of them."""
    hard = random.Random(1)
    return [1.6 + hard.gauss(0, 0.5) + shift + 0.01 * draw.gauss(0, 1) for _ in range(count)]


def test_a_difference_on_the_same_text_is_known_far_better_than_either_loss():
    here, there = text(100), text(100, 0.02)
    assert error_of_pairs(there, here) < statistics.stdev(here) / 10 / 20
    assert error_of_pairs(there, here) == pytest.approx(0.01 * 2**0.5 / 10, rel=0.2)


def test_the_interval_of_a_rise_of_the_last_tokens_holds_the_truth_at_least_19_times_in_20():
    """Text that is hard for the control, and how far the model is off it at two lengths, hang together."""
    rng = torch.Generator().manual_seed(0)
    inside, stretches = 0, 16
    for _ in range(1000):
        hard, other = torch.randn(2, stretches, generator=rng, dtype=torch.float64)
        control, there = 1.6 + 0.3 * hard, 0.02 + 0.02 * hard
        here = 0.18 + 0.1 * (0.6 * hard + 0.8 * other)

        def line(off, control=control):
            errors = {"last_error": off.std().item() / 4, "loss_error": control.std().item() / 4}
            loss = (control.mean() + off.mean()).item()
            return {"last_loss": loss, "windowed_loss": control.mean().item(), **errors}

        rise, errors = _rise(line(here), line(there))
        inside += abs(rise - (1.78 / 1.62 - 1)) <= Estimate((rise,), (errors,), stretches).margin()
    assert inside / 1000 >= 0.94


@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_of_fewer_than_five_stretches_nothing_can_be_told(count):
    losses = text(count)
    assert error_of_pairs(losses, losses) is None
    assert Estimate((1.0,), ((),), count).margin() is None
    assert Estimate((1.0, 2.0), ((),), 64).margin() is None  # of one seed the error is not known


def keep_stretches(run, count):
    def cut(line):
        return {**line, "stretches": line["stretches"][:count]} if line["kind"] == "evaluation" else line

    rewrite(run, cut)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_report_on_too_little_text_claims_nothing(tmp_path, count):
    write_sweep(tmp_path, ["alibi", "rope"], extensions=("yarn:factor=8",))
    for run in (tmp_path / "runs").iterdir():
        keep_stretches(run, count)
    assert [verdict(tmp_path, spec) for spec in ("alibi", "rope")] == ["too little text"] * 2
    words = said(tmp_path)
    stretches = "1 stretch" if count == 1 else f"{count} stretches"
    assert f"Too little text to judge ({stretches}): alibi (−2.7 %) and rope" in words["Length"]
    assert "Extra context" not in words
    assert "no two of rope and alibi can be told apart." in words["In length"]
    assert "No scaling added without training makes it better beyond noise" in words["Without training"]
    assert f"The test has {stretches} of text, fewer than the 5" in words["Noise"]


def test_seeds_that_agree_do_not_make_up_for_too_little_text(tmp_path):
    write_sweep(tmp_path, ["alibi"], extensions=())
    for seed in range(3):
        keep_stretches(tmp_path / f"runs/alibi-{seed}", 3)
    assert summary_of(tmp_path).arms[0].at[512].rise.margin() is None


def test_the_margin_is_of_text_and_seeds_together(tmp_path):
    write_sweep(tmp_path, ["alibi"], extensions=(), noise=0.0)
    for seed, loss in enumerate((1.0, 1.1, 1.2)):
        change_losses(tmp_path / f"runs/alibi-{seed}", {64: 1.0, 512: loss})
    rise = summary_of(tmp_path).arms[0].at[512].rise
    of_seeds = 4.303 * 0.1 / math.sqrt(3)
    assert rise.margin() == pytest.approx(math.hypot(of_seeds, rise.margin_of_text()), rel=1e-3)
    assert rise.margin() > of_seeds > rise.margin_of_text() > 0
