"""What the numbers say, in sentences that claim no more than the noise allows.

Two kinds of noise are told apart. Between seeds: a difference between encodings is claimed only by
`estimate.differ`, so never with one seed. Within one trained model: a difference is claimed only beyond
its margin, half of the 95 % interval over stretches of text, or over seeds if that is wider. What has no
margin, because the text is too short for one, is not claimed at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from . import margins, words
from .estimate import Estimate, differ
from .findings_training import training
from .summary import ACCURACY_FALL, LOSS_RISE, Arm, Evaluation, Summary
from .verdict import Verdict, verdict


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
        "untold": [], "unknown": [],
    }  # fmt: skip
    for arm in summary.arms:
        found[verdict(arm, summary.lengths[-1])].append(arm)
    return found


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
    groups = _by_verdict(summary)
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
    if one is None:
        return words.NOTHING
    of = "" if len(arm.seeds) == len(arm.unlearned) else f", seed {_seeds(arm.unlearned)}"
    return _result(one) + of


def _change(arm: Arm, length: int) -> str:
    one, start = arm.at[length], arm.in_length
    if one.accuracy is not None and start is not None and start.accuracy is not None:
        return f"{start.accuracy.mean * 100:.0f} → {one.accuracy.mean * 100:.0f} % right"
    if one.rise is None:
        return words.NOTHING
    margin = "" if one.rise_margin is None else f" ± {one.rise_margin * 100:.1f}"
    return words.percent(one.rise.mean) + margin


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
        if one is None or one.gain is None or one.gain_margin is None:
            continue
        named = f"{arm.label} ({words.signed(one.gain.mean)} ± {one.gain_margin:.3f})"
        if abs(one.gain.mean) <= one.gain_margin:
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
    control = f"at {longest} tokens against the same targets with exactly the last {summary.train_length} in view"
    return (
        f"By their loss {control} (nats per token that the rest saves), these {'; these '.join(parts)}."
    )


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
        best = max(measured, key=lambda label: _better(measured[label], plain).mean)
        gained, margin = _better(measured[best], plain), _better_margin(measured[best], plain)
        before, after = _result(plain), _result(measured[best])
        if margin is None or gained.mean <= margin:
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


def _better(one: Evaluation, plain: Evaluation) -> Estimate:
    """By how much an evaluation is better than another of the same models, in its own measure."""
    if one.accuracy is not None and plain.accuracy is not None:
        pairs = zip(one.accuracy.values, plain.accuracy.values, strict=True)
    else:
        assert one.loss is not None
        assert plain.loss is not None
        pairs = zip(plain.loss.values, one.loss.values, strict=True)
    return Estimate(tuple(a - b for a, b in pairs))


def _better_margin(one: Evaluation, plain: Evaluation) -> float | None:
    """How far that may be off; of losses by pairs, since both are tested on the same stretches."""
    if one.accuracy is not None and plain.accuracy is not None:
        if one.accuracy_margin is None or plain.accuracy_margin is None:
            return None
        return math.hypot(one.accuracy_margin, plain.accuracy_margin)
    of_text = [margins.of_difference(a, b) for a, b in zip(one.stretches, plain.stretches, strict=True)]
    known = [margin for margin in of_text if margin is not None]
    return max(*known, _better(one, plain).margin or 0.0) if len(known) == len(of_text) else None


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


# Noise


def _noise(summary: Summary) -> str:
    several = [arm.label for arm in summary.arms if len(arm.seeds) > 1]
    single = [arm.label for arm in summary.arms if len(arm.seeds) == 1]
    source = "test sequences"
    if not summary.by_accuracy:
        count = words.plural(summary.stretches, "stretch", "stretches")
        source = f"{count} of text, the same at every length"
    what = "A change of accuracy counts only beyond" if summary.by_accuracy else "± after a number is"
    text = f"{what} half of a 95 % interval over {source}"
    if several and single:
        text += f", and for {words.listed(several)} the wider of that and the interval over seeds."
    else:
        text += ", or over seeds where that is wider." if several else "."
    if not summary.by_accuracy and summary.stretches < margins.FEWEST:
        text = f"The test has {count} of text, fewer than the {margins.FEWEST} it takes to tell a change from noise."
    if several:
        text += (
            " Differences between encodings are claimed by Welch's test at 95 %, corrected for the number of "
            "comparisons, and never when smaller than the spread over seeds."
        )
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
