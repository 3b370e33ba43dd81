"""How far a difference may be off: told from pairs of the same text, by Student, and not at all from too few."""

from __future__ import annotations

import random
import statistics

import pytest
from synthetic_records import rewrite, write_sweep
from test_report_findings import said
from test_report_summary import change_losses, summary_of

from ordinate.lab import margins
from ordinate.lab.verdict import verdict

draw = random.Random(0)


def text(count: int, shift: float = 0.0, hardness: random.Random | None = None) -> list[float]:
    """Losses of stretches that differ by far more than what a length changes in each of them."""
    hard = random.Random(1)
    return [1.6 + hard.gauss(0, 0.5) + shift + 0.01 * draw.gauss(0, 1) for _ in range(count)]


def test_a_rise_on_the_same_text_is_known_far_better_than_either_loss():
    here, there = text(100), text(100, 0.02)
    alone = margins.of_mean(statistics.stdev(here) / 10, 100) / statistics.fmean(here)
    assert margins.of_rise(there, here) < alone / 20
    assert margins.of_difference(there, here) == pytest.approx(1.98 * 0.01 * 2**0.5 / 10, rel=0.2)


def test_the_margin_of_a_rise_is_its_scatter_over_samples_of_the_text():
    here, there = text(100), text(100, 0.3)
    rises = []
    for _ in range(400):  # draw the stretches again, as another validation text would
        chosen = [draw.randrange(100) for _ in range(100)]
        rises.append(sum(there[i] for i in chosen) / sum(here[i] for i in chosen) - 1)
    assert margins.of_rise(there, here) == pytest.approx(1.984 * statistics.stdev(rises), rel=0.15)


@pytest.mark.parametrize("count", [5, 8, 16])
def test_few_stretches_have_students_wider_interval_which_holds_the_truth_as_often_as_it_says(count):
    inside = 0
    for _ in range(2000):
        there = [draw.gauss(1.0, 0.1) for _ in range(count)]
        margin = margins.of_difference(there, [0.0] * count)
        inside += abs(statistics.fmean(there) - 1.0) <= margin
    assert inside / 2000 == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_of_fewer_than_five_stretches_nothing_can_be_told(count):
    losses = text(count)
    assert margins.of_rise(losses, losses) is None
    assert margins.of_difference(losses, losses) is None
    assert margins.of_mean(0.1, count) is None
    assert margins.of_mean(None, 64) is None


def keep_stretches(run, count):
    def cut(line):
        return {**line, "stretches": line["stretches"][:count]} if line["kind"] == "evaluation" else line

    rewrite(run, cut)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_report_on_too_little_text_claims_nothing(tmp_path, count):
    write_sweep(tmp_path, ["alibi", "rope"], seeds=(0,), extensions=("yarn:factor=8",))
    for spec in ("alibi", "rope"):
        keep_stretches(tmp_path / f"runs/{spec}-0", count)
    summary = summary_of(tmp_path)
    assert [verdict(arm, 512) for arm in summary.arms] == ["untold", "untold"]
    words = said(tmp_path)
    stretches = "1 stretch" if count == 1 else f"{count} stretches"
    assert f"From {stretches} of text nothing can be told of alibi (−1.2 %) and rope" in words["Length"]
    assert "Extra context" not in words
    assert "no scaling put on it without training is better beyond noise" in words["Without training"]
    assert f"The test has {stretches} of text, fewer than the 5" in words["Noise"]


def test_seeds_that_agree_do_not_make_up_for_too_little_text(tmp_path):
    write_sweep(tmp_path, ["alibi"], extensions=())
    for seed in range(3):
        keep_stretches(tmp_path / f"runs/alibi-{seed}", 3)
    assert summary_of(tmp_path).arms[0].at[512].rise_margin is None


def test_the_margin_is_the_wider_of_text_and_seeds(tmp_path):
    write_sweep(tmp_path, ["alibi"], extensions=(), noise=0.0)
    same = summary_of(tmp_path).arms[0].at[512]
    assert same.rise_margin > same.rise.margin
    for seed, loss in enumerate((1.0, 1.1, 1.2)):
        change_losses(tmp_path / f"runs/alibi-{seed}", {64: 1.0, 512: loss})
    apart = summary_of(tmp_path).arms[0].at[512]
    assert apart.rise_margin == apart.rise.margin > same.rise_margin
