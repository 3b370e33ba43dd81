"""What the numbers say, in sentences that claim no more than the noise allows.

Two kinds of noise are told apart. Between seeds: a difference between encodings is claimed only by
`estimate.differ`, so never with one seed. Within one trained model: a rise is compared with the limit
only beyond the error of its evaluation, two standard errors, or the 95 % interval over seeds if wider.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from . import words
from .estimate import differ
from .summary import ACCURACY_FALL, LOSS_RISE, SPIKE, Arm, Evaluation, Summary

#: An arm whose last fifth of training took away more of its loss than this was stopped early.
STILL_LEARNING = 0.03


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
        Finding("Training", _training(summary)),
        Finding("Noise", _noise(summary)),
        Finding("Left out", _left_out(summary)),
    ]
    return [one for one in found if one.text]


def headline(summary: Summary) -> str:
    """The one sentence above all others."""
    factor = words.times(summary.lengths[-1] / summary.train_length)
    verdicts = _verdicts(summary)
    holding = [arm.label for arm in verdicts["holds"]]
    if len(summary.lengths) < 2:
        return "Trained and tested at one length."
    if not holding:
        return f"No arm surely holds at {factor} the length it was trained on."
    others = len(summary.arms) - len(holding)
    verb = "holds" if len(holding) == 1 else "hold"
    rest = f"; {words.plural(others, 'other')} {'does' if others == 1 else 'do'} not, or not surely"
    text = f"{words.listed(holding)} {verb} at {factor} the training length{rest if others else ''}."
    return f"{text} Not all had finished learning." if _stopped_early(summary) else text


def _stopped_early(summary: Summary) -> dict[str, float]:
    """Arms that were still learning, and the share of the loss that the end of training took away."""
    settled = {arm.label: arm.settled.mean for arm in summary.arms if arm.settled is not None}
    return {label: share for label, share in settled.items() if share > STILL_LEARNING}


# Length


Verdict = Literal["holds", "breaks", "close", "refused", "not learned", "unknown"]


def _verdicts(summary: Summary) -> dict[Verdict, list[Arm]]:
    """Every arm by what it does at the longest length."""
    sorted_: dict[Verdict, list[Arm]] = {
        "holds": [], "breaks": [], "close": [], "refused": [], "not learned": [], "unknown": [],
    }  # fmt: skip
    for arm in summary.arms:
        sorted_[verdict(arm, summary.lengths[-1])].append(arm)
    return sorted_


def verdict(arm: Arm, length: int) -> Verdict:
    """Whether an arm is within the limit at a length, beyond what noise explains."""
    one = arm.at.get(length)
    if one is not None and one.refused:
        return "refused"
    start = arm.in_length
    if one is None or start is None or one.loss is None:
        return "unknown"
    if not arm.learned:
        return "not learned"  # what was never there cannot be lost
    if one.accuracy is not None and start.accuracy is not None:
        fall = start.accuracy.mean - one.accuracy.mean - ACCURACY_FALL
        found = _side(fall, max(accuracy_margin(start), accuracy_margin(one)))
    elif one.rise is not None:
        found = _side(one.rise.mean - LOSS_RISE, rise_margin(one))
    else:
        return "unknown"
    crossed = any(stretch.end in ("crossed", "at once") for stretch in arm.stretches)
    return "close" if found == "holds" and crossed else found  # back within the limit is not within it


def _side(overrun: float, margin: float) -> Verdict:
    if abs(overrun) < margin:
        return "close"
    return "breaks" if overrun > 0 else "holds"


def rise_margin(one: Evaluation) -> float:
    """How far a rise may be off: the wider of the interval over seeds and two standard errors."""
    over_seeds = one.rise.margin if one.rise is not None else None
    return max(over_seeds or 0.0, 2 * (one.rise_error or 0.0))


def accuracy_margin(one: Evaluation) -> float:
    """The same for a share of right answers."""
    over_seeds = one.accuracy.margin if one.accuracy is not None else None
    return max(over_seeds or 0.0, 2 * (one.accuracy_error or 0.0))


def _length(summary: Summary) -> str:
    longest = summary.lengths[-1]
    if longest == summary.train_length:
        return ""
    factor = words.times(longest / summary.train_length)
    limit = (
        f"{ACCURACY_FALL * 100:.0f} points of its in-length accuracy"
        if summary.by_accuracy
        else f"{LOSS_RISE * 100:.0f} % of its in-length loss"
    )
    groups = _verdicts(summary)
    parts = []
    if groups["holds"]:
        named = [f"{arm.label} ({_change(arm, longest)})" for arm in groups["holds"]]
        parts.append(f"Within {limit} at {factor} the training length: {words.listed(named)}.")
    else:
        parts.append(f"No arm surely stays within {limit} at {factor} the training length.")
    if groups["breaks"]:
        ordered = sorted(groups["breaks"], key=lambda arm: min(s.factor for s in arm.stretches))
        named = [f"{arm.label} leaves {_leaves(arm)} ({_change(arm, longest)})" for arm in ordered]
        parts.append(f"{words.listed(named)}.")
    if groups["close"]:
        named = [f"{arm.label} ({_change(arm, longest)})" for arm in groups["close"]]
        parts.append(f"Too close to that limit to say: {words.listed(named)}.")
    if groups["not learned"]:
        named = [f"{arm.label} ({_at_home(arm)})" for arm in groups["not learned"]]
        parts.append(
            f"Not learned at the training length, so there is nothing to hold: {words.listed(named)}."
        )
    for arm in groups["refused"]:
        refusal = arm.refusal
        if refusal is not None:
            parts.append(
                f"{arm.label} gives no answer from {refusal.length} tokens on: “{refusal.refused}”."
            )
    return " ".join(parts)


def _leaves(arm: Arm) -> str:
    return "already at the training length" if arm.stretch == "< 1×" else f"after {arm.stretch}"


def _at_home(arm: Arm) -> str:
    one = arm.in_length
    return _result(one) if one is not None else words.NOTHING


def _change(arm: Arm, length: int) -> str:
    one, start = arm.at[length], arm.in_length
    if one.accuracy is not None and start is not None and start.accuracy is not None:
        return f"{start.accuracy.mean * 100:.0f} → {one.accuracy.mean * 100:.0f} % right"
    if one.rise is None:
        return words.NOTHING
    return f"{words.percent(one.rise.mean)} ± {rise_margin(one) * 100:.1f}"


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
    if any(quality.spread is None for quality in found.values()):
        return f"{text}; an arm of one seed has no spread, so no order among them is claimed."
    best, *others = best_first
    behind = [label for label in others if differ(found[best], found[label], len(others))]
    level = [label for label in others if label not in behind]
    if not behind:
        return f"{text}; with these seeds no arm can be called better than another."
    clear = f"{best} is ahead of {words.listed(behind)} by more than seeds explain"
    rest = f", not of {words.listed(level)}" if level else ""
    return f"{text}. {clear}{rest}."


def _written(summary: Summary, quality: float) -> str:
    return f"{quality * 100:.1f} %" if summary.by_accuracy else f"{quality:.3f}"


# Extra context


def _extra_context(summary: Summary) -> str:
    longest = summary.lengths[-1]
    if longest == summary.train_length:
        return ""
    uses: list[str] = []
    ignores: list[str] = []
    harmed: list[str] = []
    for arm in summary.arms:
        one = arm.at.get(longest)
        if one is None or one.gain is None:
            continue
        named = f"{arm.label} ({words.signed(one.gain.mean)})"
        margin = max(one.gain.margin or 0.0, 2 * (one.gain_error or 0.0))
        if abs(one.gain.mean) <= margin:
            ignores.append(named)
        else:
            (uses if one.gain.mean > 0 else harmed).append(named)
    if not (uses or ignores or harmed):
        return ""
    parts = []
    if uses:
        parts.append(f"use it: {words.listed(uses)}")
    if ignores:
        parts.append(f"show no use of it beyond noise: {words.listed(ignores)}")
    if harmed:
        parts.append(f"are harmed by it: {words.listed(harmed)}")
    control = f"cutting the context at {longest} tokens to at most the {summary.train_length} trained on"
    return f"By {control} (nats per token that the extra context saves), these {'; these '.join(parts)}."


# Extensions


def _extensions(summary: Summary) -> str:
    longest = summary.lengths[-1]
    parts = []
    for base in summary.arms:
        family = [arm for arm in summary.extensions if arm.spec == base.spec]
        measured = {
            arm.label: one for arm in (base, *family) if (one := arm.at.get(longest)) and one.loss
        }
        if base.label not in measured or len(measured) < 2:
            continue
        plain = measured.pop(base.label)
        best = min(measured, key=lambda label: -_better(measured[label], plain))
        margin = max(_margin(plain), _margin(measured[best]))
        before, after = _result(plain), _result(measured[best])
        if _better(measured[best], plain) <= margin:
            parts.append(
                f"{base.label} at {longest} tokens: {before}; no scaling put on it without training is "
                "better beyond noise."
            )
            continue
        extended = next(arm for arm in family if arm.label == best)
        cost = _in_length_cost(base, extended)
        parts.append(
            f"{base.label} at {longest} tokens: {before}. Of the scalings put on it without training "
            f"{extended.extension} comes out best: {after}{cost}."
        )
    return " ".join(parts)


def _better(one: Evaluation, plain: Evaluation) -> float:
    """By how much an evaluation is better than another, in its own measure."""
    if one.accuracy is not None and plain.accuracy is not None:
        return one.accuracy.mean - plain.accuracy.mean
    return plain.loss.mean - one.loss.mean if plain.loss and one.loss else 0.0


def _margin(one: Evaluation) -> float:
    if one.accuracy is not None:
        return max(accuracy_margin(one), one.accuracy.spread or 0.0)
    return max(2 * (one.loss_error or 0.0), (one.loss.spread if one.loss else None) or 0.0)


def _result(one: Evaluation) -> str:
    if one.accuracy is not None:
        return f"{one.accuracy.mean * 100:.1f} % right"
    return f"loss {words.estimate(one.loss)}"


def _in_length_cost(base: Arm, extended: Arm) -> str:
    """What an extension costs where none was needed."""
    before = base.in_length.loss if base.in_length else None
    after = extended.in_length.loss if extended.in_length else None
    if not before or not after:
        return ""
    return f", for {words.percent(after.mean / before.mean - 1)} of loss at the training length"


# Training and noise


def _training(summary: Summary) -> str:
    parts = []
    diverged = [f"{arm.label} (seed {_seeds(arm.diverged)})" for arm in summary.arms if arm.diverged]
    if diverged:
        parts.append(f"Diverged, and left out of every mean: {words.listed(diverged)}.")
    parts += [_baseline(summary, name, loss) for name, loss in summary.baselines.items()]
    settled = [arm.settled.mean for arm in summary.arms if arm.settled is not None]
    early = [f"{label} ({words.percent(-share)})" for label, share in _stopped_early(summary).items()]
    if early:
        parts.append(
            "Still learning, so not at their best: the last fifth of training changed the validation loss "
            f"of {words.listed(early)}."
        )
    elif settled:
        largest = max(settled)
        parts.append(
            "No arm was cut short: the last fifth of training lowered no validation loss by more than "
            f"{max(largest, 0.0) * 100:.1f} %."
        )
    else:
        parts.append(
            "Whether an arm was cut short cannot be told: no validation loss is from before the last fifth "
            "of training."
        )
    spiky = [f"{arm.label} ({arm.spikes[0]})" for arm in summary.arms if arm.spikes[0]]
    if spiky:
        parts.append(f"Gradient norms over {SPIKE:g} times the usual: {words.listed(spiky)}.")
    return " ".join(part for part in parts if part)


def _baseline(summary: Summary, name: str, loss: float) -> str:
    """Whether every arm has learned more than something simple knows."""
    behind = [
        arm.label
        for arm in summary.arms
        if arm.in_length is not None and arm.in_length.loss and arm.in_length.loss.mean >= loss
    ]
    baseline = f"the baseline, {name} ({loss:.3f} nats per token)"
    if behind:
        return f"No better than {baseline}, so hardly trained: {words.listed(behind)}."
    return f"Every arm is better than {baseline}."


def _noise(summary: Summary) -> str:
    errors = "two standard errors of the evaluation"
    if not summary.paired and not summary.by_accuracy:
        errors += (
            ", taken as if every length had a text of its own, which is too wide rather than too narrow"
        )
    if summary.seeds > 1:
        return (
            f"± after a rise is the wider of the 95 % interval over seeds and {errors}. Differences "
            "between encodings are claimed by Welch's test at 95 %, corrected for the number of "
            "comparisons, and never when smaller than the spread over seeds."
        )
    single = [arm.label for arm in summary.arms if len(arm.seeds) == 1]
    who = (
        "Every arm has"
        if len(single) == len(summary.arms)
        else f"{words.listed(single)} {_have(single)}"
    )
    return (
        f"{who} one seed, so there is no spread over seeds: what is said here is about these trained models, "
        f"and another seed may change it. ± after a rise is {errors}."
    )


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
