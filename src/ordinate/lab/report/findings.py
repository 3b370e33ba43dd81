"""The findings of a report: sentences whose claims are statistically significant.

Every claim accounts for two kinds of noise: another text and, with several seeds, another seed. With
one seed a finding is about these trained models only. No claim is made without a margin, which needs enough text.
Claims about several arms are tested for all of them together (`estimate`).
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from .. import formats
from ..tasks import TASKS
from .all_pairs import FEWEST_SEEDS, compare
from .estimate import CONFIDENCE, FEWEST, Error, Estimate, decided, error_of_pairs
from .quantiles import student_quantile
from .summary import ACCURACY_FALL, LOSS_RISE, Arm, Evaluation, Summary
from .training_findings import training
from .verdict import Verdict, verdicts


@dataclass(frozen=True)
class Finding:
    """A sentence or two on one topic."""

    topic: str
    text: str


def findings(summary: Summary) -> list[Finding]:
    """All findings, most important first, without topics that have no numbers."""
    found = [
        Finding("Length", _length(summary)),
        Finding("In length", _in_length(summary)),
        Finding("Extra context", _extra_context(summary)),
        Finding("Without training", _extensions(summary)),
        Finding("Training", training(summary)),
        Finding("Noise", _noise(summary)),
        Finding("Left out", _left_out(summary)),
    ]
    return [one for one in found if one.text]


def headline(summary: Summary) -> str:
    """The main result in one sentence."""
    longest, trained = summary.lengths[-1], summary.train_length
    if longest == trained:
        lengths = formats.listed([str(length) for length in summary.lengths])
        return f"Trained at {trained} tokens and tested at {lengths}, never longer."
    factor = formats.times(longest / trained)
    holding = [arm.label for arm in _by_verdict(summary)["holds"]]
    if not holding:
        return f"No arm surely holds at {factor} the length it was trained on."
    others = len(summary.arms) - len(holding)
    verb = "holds" if len(holding) == 1 else "hold"
    rest = f"; {formats.plural(others, 'other')} {'does' if others == 1 else 'do'} not, or not surely"
    text = f"{formats.listed(holding)} {verb} at {factor} the training length{rest if others else ''}."
    if any(arm.settling is not None and arm.settling.learning for arm in summary.arms):
        text += " Not all had finished learning."
    if any(arm.best_step is not None for arm in summary.arms):
        text += " Some were trained past their best."
    return text


# Length


def _by_verdict(summary: Summary) -> Mapping[Verdict, list[Arm]]:
    """The arms grouped by their verdict at the longest length."""
    found_of, groups = verdicts(summary.arms, summary.lengths[-1]), defaultdict(list)
    for arm in summary.arms:
        groups[found_of[arm.label]].append(arm)
    return groups


def _length(summary: Summary) -> str:
    longest = summary.lengths[-1]
    if longest == summary.train_length:
        return ""
    task, groups = TASKS.get(summary.task), _by_verdict(summary)
    scored = "whole answers" if task is not None and task.measure == "exact match" else "last tokens"
    where = f"{scored} at {formats.times(longest / summary.train_length)} the training length"
    limit = f"{LOSS_RISE * 100:.0f} % of the loss"
    if summary.by_accuracy:
        limit = f"{ACCURACY_FALL * 100:.0f} points of the accuracy"
    limit = f"within {limit} they have at the training length"

    def changed(arm: Arm) -> str:
        return f"{arm.label} ({_change(arm, longest)})"

    def passed(arm: Arm) -> str:
        return f"{arm.label} {_passed(arm)} ({_change(arm, longest)})"

    def named(verdict: Verdict, describe: Callable[[Arm], str] = changed) -> str:
        return formats.listed([describe(arm) for arm in groups[verdict]])

    groups["breaks"].sort(key=lambda arm: min((one.factor for one in arm.stretches), default=0.0))
    count = formats.plural(summary.stretches, "stretch", "stretches")
    sentences: dict[Verdict, str] = {
        "holds": f"The {where} are {limit}: {named('holds')}.",
        "breaks": f"Past that limit: {named('breaks', passed)}.",
        "returned": f"Past that limit, and within it again: {named('returned', passed)}.",
        "close": f"Too close to that limit to say: {named('close')}.",
        "not learned": "Not learned at the training length, so not judged at longer ones: "
        f"{named('not learned', lambda arm: f'{arm.label} ({_at_home(arm)})')}.",
        "too little text": f"Too little text to judge ({count}): {named('too little text')}.",
        "unrecorded": "The records have no loss of the last tokens alone, and a mean over all positions may hide a "
        f"sudden rise. So this was not judged: {named('unrecorded', lambda arm: arm.label)}.",
        "refused": " ".join(
            f"{arm.label} gives no answer from {refusal.length} tokens on: “{refusal.refused}”."
            for arm in groups["refused"]
            if (refusal := arm.refusal)
        ),
    }
    found = [sentence for verdict, sentence in sentences.items() if groups[verdict]]
    if not groups["holds"]:
        found.insert(0, f"No arm has {where} that are surely {limit}.")
    return " ".join(found)


def _passed(arm: Arm) -> str:
    """The length at which an arm passed the limit, as text."""
    if not arm.stretches:
        return "at an unknown length"  # a length before it was not measured
    return "already at the training length" if arm.stretch == "< 1×" else f"after {arm.stretch}"


def _at_home(arm: Arm) -> str:
    """The result at the training length of an arm that has not learned."""
    one = arm.in_length
    if one is None:
        return formats.NOTHING
    return _result(one) + (
        f", seed {formats.numbers(arm.unlearned)}" if len(arm.unlearned) != len(arm.seeds) else ""
    )


def _change(arm: Arm, length: int) -> str:
    one, start = arm.at[length], arm.in_length
    if one.fall is not None and one.last_accuracy and start is not None and start.last_accuracy:
        now = f"{one.last_accuracy.mean * 100:.0f}{one.fall.plus_minus(0, 100)}"
        return f"{start.last_accuracy.mean * 100:.0f} → {now} % right"
    if one.rise is None:
        return formats.NOTHING
    return formats.percent(one.rise.mean) + one.rise.plus_minus(1, 100)


# In length


def _in_length(summary: Summary) -> str:
    found = {arm.label: quality for arm in summary.arms if (quality := arm.quality) is not None}
    if len(found) < 2:
        return ""
    best_first = sorted(found, key=lambda label: found[label].mean, reverse=summary.by_accuracy)
    measure, written = "losses in nats per token", "{:.3f}"
    if summary.by_accuracy:
        measure, written = "accuracies", "{:.1%}"
    first, last = (
        f"{written.format(found[label].mean).replace('%', ' %')} ({label})"
        for label in (best_first[0], best_first[-1])
    )
    text = f"At the training length the {measure} run from {first} to {last}"
    return text + _order(summary, [arm for arm in summary.arms if arm.label in found and arm.learned])


def _order(summary: Summary, arms: Sequence[Arm]) -> str:
    """The sentence on which arms differ, from all pairs at once."""
    seeds = sorted({seed for arm in arms for seed in arm.seeds})
    table = torch.full((len(arms), len(seeds)), math.nan, dtype=torch.float64)
    for row, arm in zip(table, arms, strict=True):
        if arm.quality is not None and len(arm.quality.values) == len(arm.seeds):
            row[[seeds.index(seed) for seed in arm.seeds]] = torch.tensor(arm.quality.values).double()
    if summary.by_accuracy:
        table = -table  # so that the best is the lowest
    found = compare(table, lambda a, b, confidence: _off_by_text(arms[a], arms[b], confidence))
    if found is None:
        return f"; an order needs {FEWEST_SEEDS} seeds of at least two arms that have learned, so none is claimed."
    labels = [arms[number].label for number in found.order]
    alike = [
        formats.listed([arms[number].label for number in group])
        for group in found.groups
        if len(group) > 1
    ]
    if len(found.groups) == 1:
        text = f"; no two of {formats.listed(labels)} can be told apart."
    else:
        pairs = f"Cannot be told apart: {'; '.join(alike)}. Every other pair" if alike else "Every pair"
        pairs += "" if len(arms) == len(summary.arms) else " of arms that have learned"
        order = formats.listed(labels)
        text = f". {pairs} differs by more than seeds and text explain; the better one first: {order}."
    if found.visible is None:
        return text
    size = f"{found.visible * 100:.2g} points" if summary.by_accuracy else f"{found.visible:.2g} nats"
    return f"{text} A difference of {size} would be seen four times in five."


def _off_by_text(a: Arm, b: Arm, confidence: float) -> float | None:
    """Half of the interval over text for the difference of two arms at the training length."""
    one, other = a.in_length, b.in_length
    if one is None or other is None:
        return None
    if one.accuracy is not None and other.accuracy is not None:
        half, of_other = (of.margin_of_text(confidence) for of in (one.accuracy, other.accuracy))
        return None if half is None or of_other is None else math.hypot(half, of_other)
    there, here = (
        [statistics.fmean(of) for of in zip(*each.stretches, strict=False)] for each in (one, other)
    )
    error = error_of_pairs(there, here)
    return None if error is None else error * student_quantile(confidence, len(here) - 1)


# Extra context


def _extra_context(summary: Summary) -> str:
    longest = summary.lengths[-1]
    if longest == summary.train_length:
        return ""
    gains = {
        arm.label: one.gain
        for arm in summary.arms
        if (one := arm.at.get(longest)) and one.gain is not None and one.gain.margin() is not None
    }
    if not gains:
        return ""
    sure, groups = decided(gains, sides=2), defaultdict(list)
    for label, gain in gains.items():
        groups[sure.get(label)].append(f"{label} ({formats.signed(gain.mean)}{gain.plus_minus(3)})")
    changes = {True: "falls", None: "does not change beyond noise", False: "rises"}
    changed = [
        f"{verb} for {formats.listed(groups[side])}" for side, verb in changes.items() if groups[side]
    ]
    return (
        f"With {longest} tokens in view instead of exactly the last {summary.train_length}, the loss on the same "
        f"targets {'; it '.join(changed)}. In brackets: the nats per token that the extra context saves."
    )


# Extensions


def _extensions(summary: Summary) -> str:
    longest = summary.lengths[-1]
    measured = [arm for arm in summary.all_arms if (one := arm.at.get(longest)) and one.loss]
    plain = {arm.spec: arm for arm in measured if arm.extension is None}
    extended = [arm for arm in measured if arm.extension is not None and arm.spec in plain]
    gained = {arm.label: _better(arm.at[longest], plain[arm.spec].at[longest]) for arm in extended}
    sure, parts = decided(gained, sides=2), []
    for base in plain.values():
        family = [arm for arm in extended if arm.spec == base.spec]
        better = [arm for arm in family if sure.get(arm.label) is True]
        better.sort(key=lambda arm: gained[arm.label].mean, reverse=True)
        named = [
            f"{arm.extension} ({_result(arm.at[longest])}{_in_length_cost(base, arm)})" for arm in better
        ]
        found = f"Better with a scaling added without training: {formats.listed(named)}."
        if not better:
            found = "No scaling added without training makes it better beyond noise."
        if family:
            parts.append(f"{base.label} at {longest} tokens: {_result(base.at[longest])}. {found}")
    return " ".join(parts)


def _better(one: Evaluation, plain: Evaluation) -> Estimate:
    """How much better one evaluation is than another of the same models on the same tests."""
    if one.accuracy is not None and plain.accuracy is not None:
        pairs = list(zip(one.accuracy.values, plain.accuracy.values, strict=True))
        both = zip(one.accuracy.text, plain.accuracy.text, strict=False)
        text = tuple((*of_one, *of_plain) for of_one, of_plain in both)
        pieces = min(one.accuracy.pieces, plain.accuracy.pieces)
    else:
        assert one.loss is not None
        assert plain.loss is not None
        pairs = list(zip(plain.loss.values, one.loss.values, strict=True))
        errors = [error_of_pairs(a, b) for a, b in zip(one.stretches, plain.stretches, strict=True)]
        text = tuple((Error(error),) for error in errors if error is not None)
        pieces = one.loss.pieces
    return Estimate(tuple(a - b for a, b in pairs), text, pieces)


def _result(one: Evaluation) -> str:
    if one.accuracy is not None:
        return f"{one.accuracy.mean * 100:.1f} % right"
    return formats.NOTHING if one.loss is None else f"loss {one.loss.mean:.3f}"


def _in_length_cost(base: Arm, extended: Arm) -> str:
    """The sentence on what an extension costs at the training length."""
    before = base.in_length.loss if base.in_length else None
    after = extended.in_length.loss if extended.in_length else None
    if not before or not after:
        return ""
    return f", {formats.change(before.mean, after.mean)} of loss at the training length"


# Noise


def _noise(summary: Summary) -> str:
    several = [arm.label for arm in summary.arms if len(arm.seeds) > 1]
    single = [arm.label for arm in summary.arms if len(arm.seeds) == 1]
    count = formats.plural(summary.stretches, "stretch", "stretches")
    source = f"{count} of text, the same at every length"
    if summary.by_accuracy:
        source = "test sequences"
    seeds = f", and over seeds{f' for {formats.listed(several)}' if single else ''}" if several else ""
    text = f"± in these sentences is half of a {CONFIDENCE * 100:.0f} % interval over {source}{seeds}."
    if not summary.by_accuracy and summary.stretches < FEWEST:
        text = f"The test has {count} of text, fewer than the {FEWEST} it takes to tell a change from noise."
    text += (
        f" Claims about several arms are stricter: at most {(1 - CONFIDENCE) * 100:.0f} % of comparisons falsely say "
        "of any arm that it holds or breaks (Holm's procedure). The same bound holds for the claims about the extra "
        "context, and for those about scalings."
    )
    if several:
        text += " Arms are compared in all pairs at once, seed by seed (Tukey's studentized range)."
    if single:
        who = (
            f"{formats.listed(single)} {'has' if len(single) == 1 else 'have'}"
            if several
            else "Every arm has"
        )
        text += (
            f" {who} one seed, so there is no spread over seeds: the findings are about these trained "
            "models, and another seed may change them."
        )
    return text


def _left_out(summary: Summary) -> str:
    left_out = summary.gathered.left_out
    if not left_out:
        return ""
    groups: dict[tuple[str, str], list[str]] = {}
    for one in left_out:
        groups.setdefault((one.state, one.reason), []).append(one.name)
    named = [f"{formats.listed(names)}: {state}, {reason}" for (state, reason), names in groups.items()]
    return f"{formats.plural(len(left_out), 'run')} not used. {'. '.join(named)}."
