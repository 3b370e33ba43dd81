"""The errors of differences: told from pairs of the same text, where the records have them."""

from __future__ import annotations

import random
import re
import statistics

import pytest
import torch
from lab_cases import some_text, tiny
from synthetic_records import rewrite, write_sweep
from test_report_findings import said
from test_report_summary import summary_of

from ordinate.lab import errors
from ordinate.lab.build import make_model, make_task
from ordinate.lab.evaluate import evaluate

draw = random.Random(0)
# Stretches of text that differ by far more than what a length changes in each of them.
HARDNESS = [1.6 + draw.gauss(0, 0.5) for _ in range(100)]


def line(length: int, shift: float, saved: float) -> dict:
    stretches = []
    for hard in HARDNESS:
        loss = hard + shift + 0.01 * draw.gauss(0, 1)
        stretches.append([loss, loss + saved + 0.005 * draw.gauss(0, 1)])
    losses = [stretch[0] for stretch in stretches]
    return {
        "length": length, "loss": statistics.fmean(losses), "loss_error": statistics.stdev(losses) / 10,
        "stretches": stretches,
    }  # fmt: skip


def test_a_rise_on_the_same_text_is_known_far_better_than_either_loss():
    start, one = line(64, 0.0, 0.0), line(512, 0.02, 0.0)
    paired = errors.of_rise(one, start)
    apart = errors.of_rise({**one, "stretches": []}, start)
    assert apart == pytest.approx(0.5 / 10 / 1.6 * 2**0.5, rel=0.2)
    assert paired < apart / 10
    assert abs(one["loss"] / start["loss"] - 1 - 0.02 / start["loss"]) < 4 * paired


def test_the_paired_error_is_the_scatter_of_rises_over_samples_of_the_text():
    start, one = line(64, 0.0, 0.0), line(512, 0.3, 0.0)
    rises = []
    for _ in range(400):  # draw the stretches again, as another validation text would
        chosen = [draw.randrange(100) for _ in range(100)]
        there, here = (sum(x["stretches"][i][0] for i in chosen) for x in (one, start))
        rises.append(there / here - 1)
    assert errors.of_rise(one, start) == pytest.approx(statistics.stdev(rises), rel=0.15)


def test_a_length_against_itself_has_no_error_and_a_refused_one_none_to_tell():
    start = line(64, 0.0, 0.0)
    assert errors.of_rise(start, start) == 0.0
    assert errors.of_rise({**start, "loss": None}, start) is None


def test_the_error_of_the_control_comes_from_pairs_or_else_from_the_loss():
    one = line(512, 0.0, 0.05)
    assert errors.of_gain(one) < 0.003
    without = {**one, "stretches": [[loss, None] for loss, _ in one["stretches"]]}
    assert errors.of_gain(without) == one["loss_error"]


def test_the_report_sees_a_small_use_of_context_by_pairs(tmp_path):
    write_sweep(tmp_path, ["alibi", "t5"], seeds=(0,), extensions=())

    def change(metric):
        if metric["kind"] != "evaluation":
            return metric
        made = line(metric["length"], 0.0, 0.004 if metric["length"] == 512 else 0.0)
        windowed = statistics.fmean(cut for _, cut in made["stretches"])
        return {**metric, **made, "windowed_loss": windowed, "loss_error": 0.04}

    rewrite(tmp_path / "runs/alibi-0", change)
    assert re.search(r"these use it: alibi \(\+0\.00\d\)", said(tmp_path)["Extra context"])
    assert "as if every length had a text of its own" not in said(tmp_path)["Noise"]
    assert summary_of(tmp_path).paired


def test_the_stretches_of_a_real_evaluation_are_the_same_text_and_average_to_the_loss(tmp_path):
    text = some_text(tmp_path / "text")
    config = tiny(task="language", text=(text,), evaluation_tokens=512, lengths=(8, 16, 32, 64))
    model, task = make_model(config), make_task(config)
    for length in config.lengths:
        measured = evaluate(model, task, config, length)
        losses = torch.tensor(measured["stretches"])
        assert losses.shape == (512 // 64, 2)
        assert losses.mean(0).tolist() == pytest.approx(
            [measured["loss"], measured["windowed_loss"]], rel=1e-5
        )
        batch = task.test_sequences(512, length, 64)
        of_second = batch.targets.reshape(8, 64)[1]
        assert of_second.tolist() == task.test_sequences(512, 64, 64).targets[1].tolist()
    assert evaluate(model, task, config, 64, windowed=False)["stretches"][0][1] is None
