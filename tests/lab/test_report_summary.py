"""Records into numbers: means over seeds, reach, refusals, and what must not be averaged."""

from __future__ import annotations

import json
import math
import shutil
import statistics

import pytest
from synthetic_records import LENGTHS, REFUSED, rewrite, sign, stretches, write_sweep

from ordinate.lab.report.gather import NothingToReport, gather
from ordinate.lab.report.summarize import summarize
from ordinate.lab.report.summary import Stretch


def summary_of(folder):
    return summarize(gather(folder))


def lines_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def evaluated(run, length, extension=None):
    (line,) = [
        one
        for one in lines_of(run)
        if one["kind"] == "evaluation" and (one["length"], one["extension"]) == (length, extension)
    ]
    return line


def change_losses(run, losses, extension=None):
    """Give a run these losses at these lengths."""

    def change(line):
        if line["kind"] == "evaluation" and line["extension"] == extension and line["length"] in losses:
            loss = losses[line["length"]]
            spread = 0.1 + 0.01 * math.log2(line["length"] / 64)
            return {**line, "loss": loss, "last_loss": loss, "stretches": stretches(loss, spread)}
        return line

    rewrite(run, change)


def test_means_and_spreads_are_those_of_the_records(tmp_path):
    write_sweep(tmp_path, ["rope", "alibi"])
    arm = summary_of(tmp_path).arms[0]
    runs = [tmp_path / "runs" / f"rope-{seed}" for seed in range(3)]
    losses = [evaluated(run, 512)["loss"] for run in runs]
    assert arm.at[512].loss.mean == pytest.approx(statistics.fmean(losses))
    assert arm.at[512].loss.spread == pytest.approx(statistics.stdev(losses))
    rises = [evaluated(run, 512)["last_loss"] / evaluated(run, 64)["last_loss"] - 1 for run in runs]
    assert arm.at[512].rise.values == pytest.approx(rises)
    gains = [evaluated(run, 512)["gain"] for run in runs]
    assert arm.at[512].gain.values == pytest.approx(gains)


def test_arms_come_in_the_order_of_the_comparison(tmp_path):
    write_sweep(tmp_path, ["t5", "alibi", "rope"], seeds=(0,))
    assert [arm.spec for arm in summary_of(tmp_path).arms] == ["t5", "alibi", "rope"]


def test_the_reach_lies_between_two_lengths_on_a_line_over_log_length(tmp_path):
    write_sweep(tmp_path, ["alibi"], seeds=(0,), extensions=())
    change_losses(tmp_path / "runs/alibi-0", {64: 1.0, 96: 1.0, 128: 1.05, 256: 1.15, 512: 2.0})
    (stretch,) = summary_of(tmp_path).arms[0].stretches
    assert stretch.factor == pytest.approx(2 * 2**0.5)  # half way from 128 to 256, as logarithms go
    assert str(stretch) == "2.8×"


def test_a_reach_that_was_not_crossed_is_a_lower_bound(tmp_path):
    write_sweep(tmp_path, ["alibi"], seeds=(0,))
    assert summary_of(tmp_path).arms[0].stretches == (Stretch(8.0, "tested"),)
    assert summary_of(tmp_path).arms[0].stretch == "≥ 8×"


@pytest.mark.parametrize(
    ("factor", "said"),
    [(1.0, "1×"), (1.044, "1.04×"), (1.5, "1.5×"), (2.04, "2×"), (9.44, "9.4×"), (20.4, "20×")],
)
def test_a_reach_has_as_many_digits_as_matter(factor, said):
    assert str(Stretch(factor, "crossed")) == said


def test_a_refused_length_has_no_numbers_and_keeps_its_sentence(tmp_path):
    write_sweep(tmp_path, ["learned", "rope"])
    arm = summary_of(tmp_path).arms[0]
    assert arm.at[96].loss is None
    assert arm.refusal.length == 96
    assert arm.refusal.refused == REFUSED
    assert arm.furthest.length == 64
    assert arm.stretch == "1×, then refused"


def test_seeds_of_different_reach_give_a_range(tmp_path):
    write_sweep(tmp_path, ["alibi"], seeds=(0, 1), extensions=())
    change_losses(tmp_path / "runs/alibi-1", {64: 1.0, 96: 1.0, 128: 1.0, 256: 1.1, 512: 2.0})
    assert summary_of(tmp_path).arms[0].stretch == "4× to ≥ 8×"


def test_an_extension_rises_over_the_loss_of_the_model_as_it_was_trained(tmp_path):
    write_sweep(tmp_path, ["rope"], seeds=(0,), extensions=("yarn:factor=8",))
    (extended,) = summary_of(tmp_path).extensions
    run = tmp_path / "runs/rope-0"
    plain = evaluated(run, 64)["loss"]
    assert extended.label == "rope + yarn:factor=8"
    assert extended.at[64].rise.mean == pytest.approx(
        evaluated(run, 64, "yarn:factor=8")["loss"] / plain - 1
    )
    assert extended.at[64].rise.mean > 0.03


def test_an_extension_that_is_past_the_limit_at_once_has_no_reach(tmp_path):
    write_sweep(tmp_path, ["rope"], seeds=(0,), extensions=("yarn:factor=8",))
    change_losses(tmp_path / "runs/rope-0", dict.fromkeys(LENGTHS, 9.0), "yarn:factor=8")
    assert summary_of(tmp_path).extensions[0].stretch == "< 1×"


def test_on_tasks_the_reach_goes_by_right_answers(tmp_path):
    write_sweep(tmp_path, ["alibi", "rope"], seeds=(0,), accuracy=True, extensions=())
    alibi, rope = summary_of(tmp_path).arms
    assert alibi.stretch == "≥ 8×"
    # 0.98 falls by 0.48 a doubling, so 0.1 is gone after 2^(0.1/0.48)
    assert rope.stretches[0].factor == pytest.approx(2 ** (0.1 / 0.48), rel=0.05)


def test_gradient_spikes_are_counted_against_the_usual_norm(tmp_path):
    write_sweep(tmp_path, ["t5", "rope"])
    t5, rope = summary_of(tmp_path).arms
    assert t5.spikes == (1, 120)
    assert rope.spikes == (0, 120)


def test_still_learning_is_what_the_end_of_training_took_away_and_says_since_when(tmp_path):
    write_sweep(tmp_path, ["rope"], seeds=(0,))
    points = {
        one["step"]: one["loss"]
        for one in lines_of(tmp_path / "runs/rope-0")
        if one["kind"] == "validation"
    }
    settling = summary_of(tmp_path).arms[0].settling
    assert (settling.start, settling.stop) == (32, 40)
    assert settling.nats.mean == pytest.approx(points[32] - points[40])
    assert settling.share.mean == pytest.approx(1 - points[40] / points[32])
    assert not settling.learning


@pytest.mark.parametrize(
    ("before", "after", "learning"), [(1.7, 1.6, True), (1.62, 1.60, False), (4e-4, 1e-5, False)]
)
def test_an_arm_is_still_learning_only_by_share_and_by_nats(tmp_path, before, after, learning):
    write_sweep(tmp_path, ["rope"], seeds=(0,))

    def change(line):
        loss = after if line.get("step") == 40 else before
        return {**line, "loss": loss} if line["kind"] == "validation" else line

    rewrite(tmp_path / "runs/rope-0", change)
    assert summary_of(tmp_path).arms[0].settling.learning is learning


def test_the_end_of_training_begins_at_the_last_look_before_its_last_fifth(tmp_path):
    write_sweep(tmp_path, ["rope"], seeds=(0,), steps=30, validate_every=10)
    settling = summary_of(tmp_path).arms[0].settling
    assert (settling.start, settling.stop) == (20, 30)  # a third, and called so


def test_a_bin_that_one_seed_lacks_is_not_averaged_over_the_others(tmp_path):
    write_sweep(tmp_path, ["rope"], seeds=(0, 1), extensions=())

    def thin_out(line):
        return {**line, "positions": line["positions"][1:]} if line["kind"] == "evaluation" else line

    rewrite(tmp_path / "runs/rope-1", thin_out)
    arm = summary_of(tmp_path).arms[0]
    assert [step for step, _ in arm.training] == list(range(1, 41))
    assert arm.furthest.positions[0][0] == 32
    assert all(len(one.loss.values) == 2 for one in arm.furthest.positions)


# What must not be averaged


def spoil_checksum(run):
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write("\n")


def spoil_lines(run):
    content = (run / "metrics.jsonl").read_bytes()[:-20] + b"\n"
    (run / "metrics.jsonl").write_bytes(content)
    sign(run)


def spoil_config(run):
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "steps": 7}))
    sign(run)


def spoil_number(run):
    rewrite(run, lambda line: {**line, "loss": "1.2"} if line["kind"] == "evaluation" else line)


def spoil_field(run):
    rewrite(run, lambda line: {k: v for k, v in line.items() if k != "grad_norm"})


def spoil_table(run):
    rewrite(run, lambda line: {**line, "positions": [[0, 8]]} if line["kind"] == "evaluation" else line)


def spoil_error(run):
    rewrite(run, lambda line: {**line, "last_error": -1.0} if line["kind"] == "evaluation" else line)


def without_last_answers(run):
    rewrite(run, lambda line: {k: v for k, v in line.items() if k != "last_accuracy"})


def without_evaluation(run):
    rewrite(run, lambda line: None if line["kind"] == "evaluation" else line)


def unfinish(run):
    (run / "result.json").unlink()


SPOILED = {
    "a line more": (spoil_checksum, "damaged", "result.json"),
    "half a line": (spoil_lines, "damaged", ""),
    "settings of another run": (spoil_config, "damaged", "another run"),
    "text for a number": (spoil_number, "damaged", "loss of a line of kind evaluation must be a loss or null"),
    "a field missing": (spoil_field, "damaged", "a line of kind train must have grad_norm"),
    "half a bin": (spoil_table, "damaged", "positions of a line of kind evaluation must be rows of 4 numbers"),
    "an error below 0": (spoil_error, "damaged", "evaluation must be an error or null, got -1.0"),
    "no last answers": (without_last_answers, "damaged", "a line of kind evaluation must have last_accuracy"),
    "no evaluation": (without_evaluation, "damaged", "must have 15 evaluations, each in its place, got 0"),
    "no result": (unfinish, "unfinished", "it has no result.json"),
}  # fmt: skip


@pytest.mark.parametrize("what", SPOILED)
def test_a_spoiled_run_is_named_and_never_averaged(tmp_path, what):
    spoil, state, reason = SPOILED[what]
    write_sweep(tmp_path, ["rope", "alibi"])
    sound = summary_of(tmp_path).arms[0].at[512].loss.values
    spoil(tmp_path / "runs/rope-1")
    summary = summary_of(tmp_path)
    assert summary.arms[0].at[512].loss.values == (sound[0], sound[2])
    assert summary.arms[0].seeds == (0, 2)
    (left_out,) = summary.gathered.left_out
    assert (left_out.name, left_out.state) == ("rope-1", state)
    assert reason in left_out.reason


def test_a_folder_of_another_comparison_is_named_and_never_averaged(tmp_path):
    write_sweep(tmp_path / "ours", ["rope"])
    write_sweep(tmp_path / "theirs", ["rope"], seeds=(7,), steps=80)
    shutil.copytree(tmp_path / "theirs/runs/rope-7", tmp_path / "ours/runs/rope-7")
    summary = summary_of(tmp_path / "ours")
    assert summary.arms[0].seeds == (0, 1, 2)
    assert [str(one) for one in summary.gathered.left_out] == [
        "rope-7 is foreign: sweep.json names no such run"
    ]


def test_a_diverged_seed_is_named_and_left_out_of_the_mean(tmp_path):
    write_sweep(tmp_path, ["rope", "alibi"], extensions=())
    sound = summary_of(tmp_path).arms[0].at[512].loss.values
    change_losses(tmp_path / "runs/rope-2", dict.fromkeys(LENGTHS, float("nan")))
    arm = summary_of(tmp_path).arms[0]
    assert arm.diverged == (2,)
    assert arm.at[512].loss.values == sound[:2]


def test_a_loss_that_is_no_number_at_one_length_gives_that_length_no_mean(tmp_path):
    write_sweep(tmp_path, ["rope"], extensions=())
    change_losses(tmp_path / "runs/rope-2", {512: float("inf")})
    arm = summary_of(tmp_path).arms[0]
    assert arm.at[512].loss is None
    assert arm.at[512].refused == "the loss is not a finite number"
    assert len(arm.at[256].loss.values) == 3


def test_without_a_finished_run_there_is_nothing_to_report(tmp_path):
    write_sweep(tmp_path, ["rope"], seeds=(0, 1))
    for run in (tmp_path / "runs").iterdir():
        unfinish(run)
    with pytest.raises(NothingToReport, match=r"has no finished run, of 2 in its sweep\.json"):
        gather(tmp_path)


@pytest.mark.plain  # a shape checker would be the first to mind
@pytest.mark.parametrize("arms", [[1, 2], "", None, [None]])
def test_a_sweep_that_parses_and_is_something_else_is_refused_in_one_sentence(tmp_path, arms):
    write_sweep(tmp_path, ["rope"])
    sweep = json.loads((tmp_path / "sweep.json").read_text())
    (tmp_path / "sweep.json").write_text(json.dumps({**sweep, "arms": arms}))
    with pytest.raises(ValueError, match=r"sweep\.json") as caught:
        gather(tmp_path)
    assert "\n" not in str(caught.value)
