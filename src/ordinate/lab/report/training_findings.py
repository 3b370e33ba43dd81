"""The finding on training: which arms diverged, did not learn, were stopped early or were trained too long."""

from __future__ import annotations

import statistics

from .. import formats
from ..tasks import Baseline
from .summary import SPIKE, Summary

# The final training loss is the mean over this many logged steps, because each step has another batch.
_LAST_STEPS = 20


def training(summary: Summary) -> str:
    """One paragraph, most important first."""
    parts = []
    diverged = [
        f"{arm.label} (seed {formats.numbers(arm.diverged)})" for arm in summary.arms if arm.diverged
    ]
    if diverged:
        parts.append(f"Diverged, and left out of every mean: {formats.listed(diverged)}.")
    parts += [_baseline(summary, baseline) for baseline in summary.baselines.values()]
    parts += [_settling(summary), past_best(summary)]
    spiky = [f"{arm.label} ({arm.spikes[0]})" for arm in summary.arms if arm.spikes[0]]
    if spiky:
        parts.append(f"Gradient norms over {SPIKE:g} times the usual: {formats.listed(spiky)}.")
    return " ".join(part for part in parts if part)


def _baseline(summary: Summary, baseline: Baseline) -> str:
    """Whether every arm is better than a baseline."""
    found = {arm.label: arm.in_length for arm in summary.arms if arm.in_length and arm.in_length.loss}
    behind = [label for label, one in found.items() if one.loss and one.loss.mean >= baseline.loss]
    named = f"the baseline, {baseline.name} ({baseline.loss:.3f} nats per token)"
    text = (
        f"No lower loss than {named}, so hardly trained: {formats.listed(behind)}."
        if behind
        else f"Every arm has a lower loss than {named}."
    )
    if baseline.accuracy is None:
        return text
    chance = [
        label
        for label, one in found.items()
        if one.accuracy and one.accuracy.mean - (one.accuracy.margin() or 0.0) <= baseline.accuracy
    ]
    shares = [f"{label} {one.accuracy.mean * 100:.1f} %" for label, one in found.items() if one.accuracy]
    text += f" Right answers at the training length: {formats.listed(shares)}; "
    text += f"the baseline {baseline.accuracy * 100:.1f} %."
    return f"{text} Not surely better than the baseline: {formats.listed(chance)}." if chance else text


def _settling(summary: Summary) -> str:
    """Whether arms were stopped early, and between which steps this was measured."""
    found = {arm.label: arm.settling for arm in summary.arms if arm.settling is not None}
    if not found:
        return (
            "Unknown whether an arm was stopped early: there is no validation loss from before the end."
        )
    one = next(iter(found.values()))
    steps = f"from step {one.start} to the end at {one.stop}"
    learning = [
        f"{label} ({formats.percent(-it.share.mean)})" for label, it in found.items() if it.learning
    ]
    if learning:
        changed = f"{steps} the validation loss changed for {formats.listed(learning)}"
        return f"Still learning, so not at their best: {changed}."
    most = max(0.0, *(it.nats.mean for it in found.values()))
    text = f"No arm was stopped early: {steps} no validation loss fell by more than {most:.3f} nats."
    unlearned = [arm.label for arm in summary.arms if arm.unlearned]
    if unlearned:
        text += f" For {formats.listed(unlearned)} that is a plateau, not the end of learning."
    return text


def past_best(summary: Summary) -> str:
    """Which arms were trained past their best, and how far their training loss is below the loss on unseen text."""
    past = []
    for arm in summary.arms:
        if arm.best_step is not None:
            rise = formats.change(dict(arm.validation)[arm.best_step].mean, arm.validation[-1][1].mean)
            past.append(f"{arm.label} ({rise} since step {arm.best_step})")
    if not past:
        return ""
    text = f"Trained past their best: the validation loss was lower before the end for {formats.listed(past)}."
    ends = [
        (
            statistics.fmean(loss.mean for _, loss in arm.training[-_LAST_STEPS:]),
            arm.validation[-1][1].mean,
        )
        for arm in summary.arms
        if arm.training and arm.validation
    ]
    own, unseen = zip(*ends, strict=True)
    return (
        f"{text} At the end the loss is {min(own):.3f} to {max(own):.3f} nats on the text of the last steps, and "
        f"{min(unseen):.3f} to {max(unseen):.3f} on unseen text."
    )
