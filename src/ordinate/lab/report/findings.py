"""What the numbers say, in sentences that claim no more than the noise allows.

Two kinds of noise are in every claim: another text and, where there are several seeds, another seed. With one
seed what is said is about these trained models. What has no margin, because the text is too short for one, is
not claimed at all; and what several arms are said to do is claimed of all of them together (`estimate`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .. import formats as words
from ..tasks import TASKS
from .estimate import (
    CONFIDENCE,
    FEWEST,
    FEWEST_SEEDS,
    Error,
    Estimate,
    compare,
    decided,
    error_of_pairs,
    student_quantile,
)
from .summary import ACCURACY_FALL, LOSS_RISE, Arm, Evaluation, Summary
from .training_findings import training
from .verdict import Verdict, verdicts


@dataclass(frozen=True)
class Finding:
    """A sentence or two on one topic."""

    topic: str
    text: str


def findings(summary: Summary) -> list[Finding]:
    """What a reader should know, most important first; a topic without numbers is left out."""
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
    """The one sentence above all others."""
    longest, trained = summary.lengths[-1], summary.train_length
    if longest == trained:
        lengths = words.listed([str(length) for length in summary.lengths])
        return f"Trained at {trained} tokens and tested at {lengths}, never longer."
    factor = words.times(longest / trained)
    holding = [arm.label for arm in _by_verdict(summary)["holds"]]
    if not holding:
        return f"No arm surely holds at {factor} the length it was trained on."
    others = len(summary.arms) - len(holding)
    verb = "holds" if len(holding) == 1 else "hold"
    rest = f"; {words.plural(others, 'other')} {'does' if others == 1 else 'do'} not, or not surely"
    text = f"{words.listed(holding)} {verb} at {factor} the training length{rest if others else ''}."
    learning = any(arm.settling is not None and arm.settling.learning for arm in summary.arms)
    past = any(arm.best_step is not None for arm in summary.arms)
    text += " Not all had finished learning." if learning else ""
    return f"{text} Some were trained past their best." if past else text


# Length


def _by_verdict(summary: Summary) -> dict[Verdict, list[Arm]]:
    """Every arm by what it does at the longest length."""
    found: dict[Verdict, list[Arm]] = {
        "holds": [], "breaks": [], "close": [], "returned": [], "refused": [], "not learned": [],
        "untold": [], "unrecorded": [], "unknown": [],
    }  # fmt: skip
    found_of = verdicts(summary.arms, summary.lengths[-1])
    for arm in summary.arms:
        found[found_of[arm.label]].append(arm)
    return found


def _length(summary: Summary) -> str:
    longest = summary.lengths[-1]
    if longest == summary.train_length:
        return ""
    factor = words.times(longest / summary.train_length)
    limit = (
        f"{ACCURACY_FALL * 100:.0f} points of the accuracy"
        if summary.by_accuracy
        else f"{LOSS_RISE * 100:.0f} % of the loss"
    )
    limit = f"within {limit} they have at the training length"
    task = TASKS.get(summary.task)
    whole = task is not None and task.measure == "exact match"
    whose = "Whole answers" if whole else "The last tokens"
    groups = _by_verdict(summary)
    parts = []
    if groups["holds"]:
        named = [f"{arm.label} ({_change(arm, longest)})" for arm in groups["holds"]]
        parts.append(f"{whose} at {factor} the training length are {limit}: {words.listed(named)}.")
    else:
        parts.append(f"{whose} at {factor} the training length are surely {limit} for no arm.")
    if groups["breaks"]:
        ordered = sorted(
            groups["breaks"], key=lambda arm: min((s.factor for s in arm.stretches), default=0.0)
        )
        named = [f"{arm.label} leaves {_leaves(arm)} ({_change(arm, longest)})" for arm in ordered]
        parts.append(f"{words.listed(named)}.")
    for arm in groups["returned"]:
        parts.append(
            f"{arm.label} leaves {_leaves(arm)}, and is back within the limit ({_change(arm, longest)})."
        )
    if groups["close"]:
        named = [f"{arm.label} ({_change(arm, longest)})" for arm in groups["close"]]
        parts.append(f"Too close to that limit to say: {words.listed(named)}.")
    if groups["not learned"]:
        named = [f"{arm.label} ({_at_home(arm)})" for arm in groups["not learned"]]
        parts.append(
            f"Not learned at the training length, so there is nothing to hold: {words.listed(named)}."
        )
    if groups["untold"]:
        named = [f"{arm.label} ({_change(arm, longest)})" for arm in groups["untold"]]
        count = words.plural(summary.stretches, "stretch", "stretches")
        parts.append(f"From {count} of text nothing can be told of {words.listed(named)}.")
    if groups["unrecorded"]:
        named = [arm.label for arm in groups["unrecorded"]]
        parts.append(
            "The records do not have the last tokens by themselves, and a mean over all positions may hide a cliff: "
            f"whether it holds cannot be decided of {words.listed(named)}."
        )
    for arm in groups["refused"]:
        refusal = arm.refusal
        if refusal is not None:
            parts.append(
                f"{arm.label} gives no answer from {refusal.length} tokens on: “{refusal.refused}”."
            )
    return " ".join(parts)


def _leaves(arm: Arm) -> str:
    if not arm.stretches:
        return "on the way"  # a length in between has no number
    return "already at the training length" if arm.stretch == "< 1×" else f"after {arm.stretch}"


def _at_home(arm: Arm) -> str:
    one = arm.in_length
    if one is None:
        return words.NOTHING
    of = "" if len(arm.seeds) == len(arm.unlearned) else f", seed {_seeds(arm.unlearned)}"
    return _result(one) + of


def _change(arm: Arm, length: int) -> str:
    one, start = arm.at[length], arm.in_length
    if one.fall is not None and one.last_accuracy and start is not None and start.last_accuracy:
        margin = one.fall.margin()
        off = "" if margin is None else f" ± {margin * 100:.0f}"
        return f"{start.last_accuracy.mean * 100:.0f} → {one.last_accuracy.mean * 100:.0f}{off} % right"
    if one.rise is None:
        return words.NOTHING
    margin = one.rise.margin()
    return words.percent(one.rise.mean) + ("" if margin is None else f" ± {margin * 100:.1f}")


# In length


def _in_length(summary: Summary) -> str:
    found = {arm.label: quality for arm in summary.arms if (quality := arm.quality) is not None}
    if len(found) < 2:
        return ""
    best_first = sorted(found, key=lambda label: found[label].mean, reverse=summary.by_accuracy)
    ends = [
        f"{_written(summary, found[label].mean)} ({label})" for label in (best_first[0], best_first[-1])
    ]
    measure = "accuracies" if summary.by_accuracy else "losses in nats per token"
    text = f"At the training length the {measure} run from {ends[0]} to {ends[1]}"
    return text + _order(summary, [arm for arm in summary.arms if arm.label in found and arm.learned])


def _order(summary: Summary, arms: Sequence[Arm]) -> str:
    """Which arms can be told apart, of all pairs at once."""
    seeds = sorted({seed for arm in arms for seed in arm.seeds})
    table = torch.full((len(arms), len(seeds)), math.nan, dtype=torch.float64)
    for row, arm in zip(table, arms, strict=True):
        if arm.quality is not None and len(arm.quality.values) == len(arm.seeds):
            row[[seeds.index(seed) for seed in arm.seeds]] = torch.tensor(arm.quality.values).double()
    if summary.by_accuracy:
        table = -table  # the best is the lowest
    found = compare(table, lambda a, b, confidence: _off_by_text(arms[a], arms[b], confidence))
    if found is None:
        return (
            f"; it takes {FEWEST_SEEDS} seeds of two arms that have learned to tell an order from luck, so none "
            "is claimed."
        )
    labels = [arms[number].label for number in found.order]
    alike = [
        words.listed([arms[number].label for number in group])
        for group in found.groups
        if len(group) > 1
    ]
    if len(found.groups) == 1:
        text = f"; no two of {words.listed(labels)} can be told apart."
    else:
        pairs = f"Cannot be told apart: {'; '.join(alike)}. Every other pair" if alike else "Every pair"
        pairs += "" if len(arms) == len(summary.arms) else " of arms that have learned"
        order = words.listed(labels)
        text = f". {pairs} differs by more than seeds and text explain; the better one first: {order}."
    if found.visible is None:
        return text
    size = f"{found.visible * 100:.2g} points" if summary.by_accuracy else f"{found.visible:.2g} nats"
    return f"{text} A difference of {size} would be seen four times in five."


def _off_by_text(a: Arm, b: Arm, confidence: float) -> float | None:
    """Half of the interval over text of how far two arms are apart at the training length."""
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


def _written(summary: Summary, quality: float) -> str:
    return f"{quality * 100:.1f} %" if summary.by_accuracy else f"{quality:.3f}"


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
    sure = decided(gains, sides=2)
    named = {
        label: f"{label} ({words.signed(gain.mean)} ± {gain.margin():.3f})"
        for label, gain in gains.items()
    }
    uses, harmed = (
        [named[label] for label in gains if sure.get(label) is side] for side in (True, False)
    )
    ignores = [named[label] for label in gains if label not in sure]
    if not (uses or ignores or harmed):
        return ""
    parts = []
    if uses:
        parts.append(f"use it: {words.listed(uses)}")
    if ignores:
        parts.append(f"show no use of it beyond noise: {words.listed(ignores)}")
    if harmed:
        parts.append(f"are harmed by it: {words.listed(harmed)}")
    control = f"at {longest} tokens against the same targets with exactly the last {summary.train_length} in view"
    return (
        f"By their loss {control} (nats per token that the rest saves), these {'; these '.join(parts)}."
    )


# Extensions


def _extensions(summary: Summary) -> str:
    longest = summary.lengths[-1]
    plain = {arm.spec: arm for arm in summary.arms if (one := arm.at.get(longest)) and one.loss}
    extended = [
        arm
        for arm in summary.extensions
        if arm.spec in plain and (one := arm.at.get(longest)) and one.loss
    ]
    gained = {arm.label: _better(arm.at[longest], plain[arm.spec].at[longest]) for arm in extended}
    sure = decided(gained, sides=2)
    parts = []
    for base in plain.values():
        family = [arm for arm in extended if arm.spec == base.spec]
        if not family:
            continue
        before = _result(base.at[longest])
        better = [arm for arm in family if sure.get(arm.label) is True]
        if not better:
            parts.append(
                f"{base.label} at {longest} tokens: {before}; no scaling put on it without training is "
                "better beyond noise."
            )
            continue
        better.sort(key=lambda arm: gained[arm.label].mean, reverse=True)
        named = [
            f"{arm.extension} ({_result(arm.at[longest])}{_in_length_cost(base, arm)})" for arm in better
        ]
        parts.append(
            f"{base.label} at {longest} tokens: {before}. Better by a scaling put on it without training: "
            f"{words.listed(named)}."
        )
    return " ".join(parts)


def _better(one: Evaluation, plain: Evaluation) -> Estimate:
    """By how much an evaluation is better than another of the same models on the same tests, in its own measure."""
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
    return words.NOTHING if one.loss is None else f"loss {one.loss.mean:.3f}"


def _in_length_cost(base: Arm, extended: Arm) -> str:
    """What an extension costs where none was needed."""
    before = base.in_length.loss if base.in_length else None
    after = extended.in_length.loss if extended.in_length else None
    if not before or not after:
        return ""
    return f", for {words.change(before.mean, after.mean)} of loss at the training length"


# Noise


def _noise(summary: Summary) -> str:
    several = [arm.label for arm in summary.arms if len(arm.seeds) > 1]
    single = [arm.label for arm in summary.arms if len(arm.seeds) == 1]
    source = "test sequences"
    if not summary.by_accuracy:
        source = f"{words.plural(summary.stretches, 'stretch', 'stretches')} of text, the same at every length"
    text = f"± in these sentences is half of a {CONFIDENCE * 100:.0f} % interval over {source}"
    if several:
        text += ", and over seeds"
        text += f" for {words.listed(several)}." if single else "."
    else:
        text += "."
    if not summary.by_accuracy and summary.stretches < FEWEST:
        count = words.plural(summary.stretches, "stretch", "stretches")
        text = f"The test has {count} of text, fewer than the {FEWEST} it takes to tell a change from noise."
    text += (
        f" What is said of several arms takes more than that: in at most {(1 - CONFIDENCE) * 100:.0f} % of comparisons "
        "is any arm falsely said to hold or to break (Holm's procedure), and the same goes for what uses the extra "
        "context and which scaling helps."
    )
    if several:
        text += " Arms are told apart by all pairs, seed by seed (Tukey's studentized range)."
    if single:
        who = "Every arm has" if not several else f"{words.listed(single)} {_have(single)}"
        text += (
            f" {who} one seed, so there is no spread over seeds: what is said is about these trained models, "
            "and another seed may change it."
        )
    return text


def _left_out(summary: Summary) -> str:
    left_out = summary.gathered.left_out
    if not left_out:
        return ""
    groups: dict[tuple[str, str], list[str]] = {}
    for one in left_out:
        groups.setdefault((one.state, one.reason), []).append(one.name)
    named = [f"{words.listed(names)}: {state}, {reason}" for (state, reason), names in groups.items()]
    return f"{words.plural(len(left_out), 'run')} not used. {'. '.join(named)}."


def _have(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"


def _seeds(seeds: Sequence[int]) -> str:
    return words.listed([str(seed) for seed in seeds])
