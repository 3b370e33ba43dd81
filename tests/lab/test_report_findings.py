"""What the report says: no claim beyond its noise, refusals plainly, nothing hidden."""

from __future__ import annotations

import pytest
from synthetic_records import LENGTHS, REFUSED, rewrite, write_sweep
from test_report_summary import change_losses, summary_of, unfinish

from ordinate.lab.report.figures import charts
from ordinate.lab.report.findings import findings, headline
from ordinate.lab.report.sentences import narrate
from ordinate.lab.report.verdict import verdicts

FLAT = dict.fromkeys(LENGTHS, 1.0)


def verdict(folder, spec="alibi"):
    summary = summary_of(folder)
    return verdicts(summary.arms, 512)[spec]


def said(folder) -> dict[str, str]:
    return {one.topic: one.text for one in findings(summary_of(folder))}


def test_what_holds_breaks_and_is_refused_is_said_with_its_numbers(tmp_path):
    write_sweep(tmp_path)
    text = said(tmp_path)["Length"]
    limit = "within 10 % of the loss they have at the training length"
    assert f"The last tokens at 8× the training length are {limit}: alibi (−2.7 % ± " in text
    assert "rope after 1.21× (+108.1 % ± " in text
    assert f"learned gives no answer from 96 tokens on: “{REFUSED}”." in text
    assert headline(summary_of(tmp_path)).startswith("alibi and clipped:max_distance=16 hold at 8×")


@pytest.mark.parametrize(
    ("rise", "found"), [(0.02, "holds"), (0.098, "close"), (0.102, "close"), (0.2, "breaks")]
)
def test_a_rise_nearer_to_the_limit_than_its_error_is_too_close_to_say(tmp_path, rise, found):
    write_sweep(tmp_path, ["alibi"], seeds=(0,), extensions=())
    change_losses(tmp_path / "runs/alibi-0", {**FLAT, 512: 1 + rise})  # known to ± 0.011
    assert verdict(tmp_path) == found
    assert ("Too close to that limit to say: alibi" in said(tmp_path)["Length"]) is (found == "close")


def test_an_arm_that_left_the_limit_and_came_back_is_said_to_have_done_so(tmp_path):
    write_sweep(tmp_path, ["alibi"], seeds=(0,), extensions=())
    change_losses(tmp_path / "runs/alibi-0", {**FLAT, 128: 1.6, 256: 1.6})
    assert verdict(tmp_path) == "returned"
    assert (
        "Past that limit, and within it again: alibi after 1.57× (+0.0 % ± " in said(tmp_path)["Length"]
    )
    assert "Too close" not in said(tmp_path)["Length"]
    assert headline(summary_of(tmp_path)) == "No arm surely holds at 8× the length it was trained on."


def test_an_arm_that_may_have_left_the_limit_on_the_way_is_too_close_to_say(tmp_path):
    write_sweep(tmp_path, ["alibi"], seeds=(0,), extensions=())
    change_losses(tmp_path / "runs/alibi-0", {**FLAT, 128: 1.1001})
    assert verdict(tmp_path) == "close"


def test_seeds_that_disagree_widen_the_error_of_a_rise(tmp_path):
    write_sweep(tmp_path, ["alibi"], extensions=())
    for seed, last in enumerate((1.0, 1.0, 1.2)):
        change_losses(tmp_path / f"runs/alibi-{seed}", {**FLAT, 512: last})
    assert verdict(tmp_path) == "close"  # 6.7 % on average, and anything with luck


def test_with_one_seed_no_order_of_encodings_is_claimed(tmp_path):
    write_sweep(tmp_path, ["none", "rope"], seeds=(0,))
    text = said(tmp_path)
    assert "an order needs 3 seeds of at least two arms that have learned, so none" in text["In length"]
    assert "ahead" not in text["In length"]
    assert "Every arm has one seed, so there is no spread over seeds" in text["Noise"]


def test_arms_are_told_apart_seed_by_seed_and_the_others_are_a_group(tmp_path):
    """What a seed does to all arms is no noise; none is as far off, but each time by another amount."""
    write_sweep(tmp_path, ["rope", "alibi", "none"], seeds=range(5), extensions=())
    off = {"rope": (0.01, -0.01, 0.0, 0.01, -0.01), "alibi": (0.0, 0.01, -0.01, 0.0, 0.0)}
    for seed, loss in enumerate((1.0, 1.1, 1.2, 1.3, 1.4)):
        change_losses(tmp_path / f"runs/none-{seed}", dict.fromkeys(LENGTHS, loss + 0.3))
        for spec, by in off.items():
            change_losses(tmp_path / f"runs/{spec}-{seed}", dict.fromkeys(LENGTHS, loss + by[seed]))
    text = said(tmp_path)["In length"]
    assert "Cannot be told apart: rope and alibi. Every other pair differs by more than seeds" in text
    assert "the better one first: rope, alibi and none." in text
    assert "nats would be seen four times in five." in text
    for seed, loss in enumerate((1.4, 1.0, 1.3, 1.1, 1.2)):
        change_losses(tmp_path / f"runs/none-{seed}", dict.fromkeys(LENGTHS, loss + 0.05))
    assert "; no two of rope, alibi and none can be told apart." in said(tmp_path)["In length"]


def test_an_arm_that_has_not_learned_is_not_ranked(tmp_path):
    write_sweep(tmp_path, ["rope", "alibi", "t5"], extensions=())
    for seed in range(3):
        change_losses(tmp_path / f"runs/rope-{seed}", dict.fromkeys(LENGTHS, 2.6 + seed))
    text = said(tmp_path)["In length"]
    assert "Every pair of arms that have learned differs" in text
    assert "the better one first: alibi and t5." in text


def test_an_order_by_accuracy_begins_with_the_best(tmp_path):
    write_sweep(tmp_path, ["rope", "alibi"], accuracy=True, extensions=())
    for spec, share in (("rope", 0.80), ("alibi", 0.95)):
        for seed in range(3):
            rewrite(
                tmp_path / f"runs/{spec}-{seed}",
                lambda line, share=share + seed / 1000: (
                    {**line, "accuracy": share} if line["kind"] == "evaluation" else line
                ),
            )
    assert "the better one first: alibi and rope." in said(tmp_path)["In length"]


def test_extra_context_is_used_only_if_it_saves_more_than_the_error(tmp_path):
    write_sweep(tmp_path, ["alibi", "t5", "rope"], seeds=(0,), extensions=())
    gains = {"alibi": 0.5, "t5": 0.011, "rope": -0.5}  # known to ± 0.013

    for spec, gain in gains.items():
        rewrite(
            tmp_path / f"runs/{spec}-0",
            lambda line, gain=gain: (
                {**line, "gain": gain} if line["kind"] == "evaluation" and line["length"] > 64 else line
            ),
        )
    text = said(tmp_path)["Extra context"]
    assert "tokens in view instead of exactly the last 64, the loss on the same targets falls" in text
    assert "falls for alibi (+0.500 ± 0.013)" in text
    assert "; it does not change beyond noise for t5 (+0.011 ± 0.013)" in text
    assert "; it rises for rope (−0.500 ± 0.013)" in text


def test_an_extension_is_praised_only_beyond_noise_and_with_its_price(tmp_path):
    write_sweep(tmp_path, ["rope"], seeds=(0,), extensions=("linear:factor=8",))
    assert "without training: linear:factor=8 (loss 1.7" in said(tmp_path)["Without training"]
    assert ", +3.7 % of loss at the training length" in said(tmp_path)["Without training"]
    run = tmp_path / "runs/rope-0"
    change_losses(run, {512: 2.0})
    change_losses(run, {512: 1.995}, "linear:factor=8")
    assert (
        "linear:factor=8 (loss 1.995" in said(tmp_path)["Without training"]
    )  # the same on every stretch

    def scatter(line):
        if line["kind"] == "evaluation" and (line["extension"], line["length"]) == (
            "linear:factor=8",
            512,
        ):
            return {**line, "stretches": [loss + (-1) ** n for n, loss in enumerate(line["stretches"])]}
        return line

    rewrite(run, scatter)
    assert (
        "No scaling added without training makes it better beyond noise"
        in said(tmp_path)["Without training"]
    )


def test_an_arm_stopped_early_and_one_that_learned_nothing_are_named(tmp_path):
    write_sweep(tmp_path, ["rope", "none"], seeds=(0,))
    assert "No arm was stopped early: from step 32 to the end at 40" in said(tmp_path)["Training"]
    assert (
        "Every arm has a lower loss than the baseline, byte bigram (2.470" in said(tmp_path)["Training"]
    )

    def cut_short(line):
        return {**line, "loss": 9.0} if line["kind"] == "validation" and line["step"] < 40 else line

    rewrite(tmp_path / "runs/none-0", cut_short)
    change_losses(tmp_path / "runs/none-0", dict.fromkeys(LENGTHS, 2.6))
    text = said(tmp_path)["Training"]
    assert "Still learning, so not at their best" in text
    assert "none (−78" in text
    assert (
        "No lower loss than the baseline, byte bigram (2.470 nats per token), so hardly trained: none."
        in text
    )


def test_an_arm_trained_past_its_best_is_named_with_the_step_and_the_loss_on_its_own_text(tmp_path):
    write_sweep(tmp_path, ["rope", "alibi"], seeds=(0,))
    assert "past their best" not in said(tmp_path)["Training"]

    def overfitted(line):
        if line["kind"] == "validation":
            return {**line, "loss": {20: 1.0, 40: 1.02}.get(line["step"], 1.1)}
        return {**line, "loss": 0.5} if line["kind"] == "train" else line

    rewrite(tmp_path / "runs/alibi-0", overfitted)
    text = said(tmp_path)["Training"]
    assert (
        "Trained past their best: the validation loss was lower before the end for alibi (+2.0 % since step 20)."
        in text
    )
    assert "At the end the loss is 0.500 to" in text
    assert headline(summary_of(tmp_path)).endswith("Some were trained past their best.")


def test_without_an_earlier_validation_it_cannot_be_told_whether_training_was_cut_short(tmp_path):
    write_sweep(tmp_path, ["rope"], seeds=(0,), validate_every=40)
    assert "Unknown whether an arm was stopped early" in said(tmp_path)["Training"]


def test_diverged_and_left_out_runs_are_said(tmp_path):
    write_sweep(tmp_path, ["rope", "alibi"], extensions=())
    change_losses(tmp_path / "runs/rope-2", dict.fromkeys(LENGTHS, float("nan")))
    unfinish(tmp_path / "runs/alibi-0")
    text = said(tmp_path)
    assert "Diverged, and left out of every mean: rope (seed 2)." in text["Training"]
    assert text["Left out"] == "1 run not used. alibi-0: unfinished, it has no result.json."


def test_a_cliff_at_the_end_breaks_an_arm_whose_mean_is_flat(tmp_path):
    write_sweep(tmp_path, ["alibi"], extensions=())
    for seed in range(3):
        change_losses(tmp_path / f"runs/alibi-{seed}", FLAT)
        rewrite(
            tmp_path / f"runs/alibi-{seed}",
            lambda line: {**line, "last_loss": 1.5} if line.get("length") == 512 else line,
        )
    assert verdict(tmp_path) == "breaks"
    assert "alibi after 4.6× (+50.0 % ± " in said(tmp_path)["Length"]


def ending_in(tmp_path, share):
    """A task that is scored token by token: right on average, and at the end as often as this."""
    write_sweep(tmp_path, ["alibi"], task="induction", accuracy=True, extensions=())
    for seed in range(3):
        rewrite(
            tmp_path / f"runs/alibi-{seed}",
            lambda line: (
                {**line, "accuracy": 0.97, "last_accuracy": share if line["length"] == 512 else 0.97}
                if line["kind"] == "evaluation"
                else line
            ),
        )


def test_a_cliff_among_the_last_answers_breaks_an_arm_whose_accuracy_is_flat(tmp_path):
    ending_in(tmp_path, 0.5)
    assert verdict(tmp_path) == "breaks"
    assert "alibi after 4.6× (97 → 50 ± 1 % right)" in said(tmp_path)["Length"]


def test_records_without_the_last_answers_are_not_guessed_from(tmp_path):
    ending_in(tmp_path, None)
    assert verdict(tmp_path) == "unrecorded"
    assert "So this was not judged: alibi." in said(tmp_path)["Length"]
    assert summary_of(tmp_path).arms[0].stretch == "–"


def test_many_arms_at_the_limit_ask_for_more_than_one(tmp_path):
    """The end of 8 × 64 tokens is 8 % up, give or take 0.5 %: sure of one arm, and of eight not."""
    specs = [f"alibi:max_exponent={n}" for n in range(1, 9)]
    for arms in (specs[:1], specs):
        write_sweep(tmp_path / str(len(arms)), arms, extensions=())
        for spec in arms:
            for seed, rise in enumerate((0.0745, 0.080, 0.0855)):
                run = tmp_path / str(len(arms)) / f"runs/{spec.replace(':', '_')}-{seed}"
                change_losses(run, {**FLAT, 512: 1 + rise})
                rewrite(
                    run,
                    lambda line: (
                        {**line, "last_error": 0.0003, "loss_error": 0.0003}
                        if "last_error" in line
                        else line
                    ),
                )
    assert verdict(tmp_path / "1", specs[0]) == "holds"
    assert set(verdicts(summary_of(tmp_path / "8").arms, 512).values()) == {"close"}


def test_tasks_are_judged_by_right_answers(tmp_path):
    write_sweep(tmp_path, ["alibi", "rope"], accuracy=True, extensions=())
    text = said(tmp_path)
    limit = "within 10 points of the accuracy they have at the training length"
    assert (
        f"The whole answers at 8× the training length are {limit}: alibi (98 → 94 ± " in text["Length"]
    )
    assert "rope after 1.16× (98 → 0 ± 1 % right)" in text["Length"]
    assert "accuracies run from 98.0 %" in text["In length"]


def test_an_arm_that_has_not_learned_its_task_holds_nothing(tmp_path):
    write_sweep(tmp_path, ["alibi", "rope"], accuracy=True, extensions=())
    for seed in range(3):
        rewrite(
            tmp_path / f"runs/alibi-{seed}",
            lambda line: {**line, "accuracy": 0.5} if line["kind"] == "evaluation" else line,
        )
    assert verdict(tmp_path) == "not learned"
    assert summary_of(tmp_path).arms[0].stretch == "not learned"
    assert "so not judged at longer ones: alibi (50.0 % right)." in said(tmp_path)["Length"]
    assert headline(summary_of(tmp_path)) == "No arm surely holds at 8× the length it was trained on."


def test_a_flat_loss_no_better_than_the_baseline_is_not_holding(tmp_path):
    write_sweep(tmp_path, ["alibi", "rope"], seeds=(0,), extensions=())
    change_losses(tmp_path / "runs/alibi-0", dict.fromkeys(LENGTHS, 2.48))
    assert verdict(tmp_path) == "not learned"
    change_losses(tmp_path / "runs/alibi-0", dict.fromkeys(LENGTHS, 2.46))
    assert verdict(tmp_path) == "holds"


def test_the_headline_says_when_an_arm_was_stopped_early(tmp_path):
    write_sweep(tmp_path, ["alibi", "rope"], seeds=(0,))
    assert "finished learning" not in headline(summary_of(tmp_path))

    def cut_short(line):
        return {**line, "loss": 9.0} if line["kind"] == "validation" and line["step"] < 40 else line

    rewrite(tmp_path / "runs/rope-0", cut_short)
    assert headline(summary_of(tmp_path)).endswith("Not all had finished learning.")


def test_one_length_alone_is_reported_without_talk_of_stretching(tmp_path):
    write_sweep(tmp_path, ["rope", "alibi"], seeds=(0,), lengths=(64,), extensions=())
    assert headline(summary_of(tmp_path)) == "Trained at 64 tokens and tested at 64, never longer."
    assert "Length" not in said(tmp_path)
    assert "Extra context" not in said(tmp_path)
    assert narrate(summary_of(tmp_path)).title == "2 encodings, trained at 64"


def test_lengths_below_the_training_length_are_no_stretching_either(tmp_path):
    write_sweep(tmp_path, ["rope", "alibi"], seeds=(0,), lengths=(32, 64), extensions=())
    assert (
        headline(summary_of(tmp_path)) == "Trained at 64 tokens and tested at 32 and 64, never longer."
    )
    assert "Length" not in said(tmp_path)
    assert "context" not in {chart.kind for chart in charts(summary_of(tmp_path))}


def test_a_seed_that_learned_nothing_keeps_its_arm_from_holding(tmp_path):
    write_sweep(tmp_path, ["alibi", "rope"], seeds=(0, 1), extensions=())
    for seed, loss in enumerate((1.0, 3.0)):  # the baseline is 2.47, their mean 2.0
        change_losses(tmp_path / f"runs/alibi-{seed}", dict.fromkeys(LENGTHS, loss))
    assert verdict(tmp_path) == "not learned"
    assert summary_of(tmp_path).arms[0].unlearned == (1,)
    assert "so not judged at longer ones: alibi (loss 2.000, seed 1)." in said(tmp_path)["Length"]


def test_with_unequal_seeds_it_is_said_whose_error_is_what(tmp_path):
    write_sweep(tmp_path, ["rope", "alibi"], seeds=(0, 1), extensions=())
    unfinish(tmp_path / "runs/rope-1")
    text = said(tmp_path)["Noise"]
    assert "over 16 stretches of text, the same at every length, and over seeds for alibi." in text
    assert "rope has one seed" in text


def set_right(folder, shares, **of_baseline):
    for spec, share in shares.items():
        rewrite(
            folder / f"runs/{spec}-0",
            lambda line, share=share: (
                {**line, "accuracy": share}
                if line["kind"] == "evaluation"
                else {**line, **of_baseline}
                if line["kind"] == "baseline"
                else line
            ),
        )


def test_a_plateau_is_not_called_the_end_of_learning_and_chance_is_named(tmp_path):
    write_sweep(tmp_path, ["alibi", "rope"], seeds=(0,), accuracy=True, extensions=())
    set_right(tmp_path, {"alibi": 0.13, "rope": 1.0}, name="capitals so far", accuracy=0.129)
    text = said(tmp_path)["Training"]
    assert (
        "Right answers at the training length: alibi 13.0 % and rope 100.0 %; the baseline 12.9 %."
        in text
    )
    assert "Not surely better than the baseline: alibi." in text
    assert "For alibi that is a plateau, not the end of learning." in text


def test_an_arm_without_a_single_sound_seed_does_not_stop_the_report(tmp_path):
    write_sweep(tmp_path, ["rope", "alibi"], seeds=(0,), extensions=())
    change_losses(tmp_path / "runs/rope-0", dict.fromkeys(LENGTHS, float("nan")))
    text = said(tmp_path)
    assert "Diverged, and left out of every mean: rope (seed 0)." in text["Training"]
    assert "alibi" in text["Length"]
