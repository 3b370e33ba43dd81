"""What an arm does at a length: it holds, it breaks, or the numbers do not say."""

from __future__ import annotations

from typing import Literal

from .summary import ACCURACY_FALL, LOSS_RISE, Arm, Evaluation

#: ``"close"`` is nearer to the limit than the error; ``"returned"`` is within it now, and was past it before;
#: ``"untold"`` has too little text behind it; ``"unknown"`` was not measured.
Verdict = Literal["holds", "breaks", "close", "returned", "refused", "not learned", "untold", "unknown"]


def verdict(arm: Arm, length: int) -> Verdict:
    """Whether an arm is within the limit at a length, beyond what noise explains."""
    one = arm.at.get(length)
    if one is not None and one.refused:
        return "refused"
    if one is None or one.loss is None or arm.in_length is None:
        return "unknown"
    if not arm.learned:
        return "not learned"  # what was never there cannot be lost
    found = _side(arm, one)
    if found != "holds":
        return found
    before = [other for other in arm.evaluations if arm.train_length < other.length < length]
    if any(_side(arm, other) == "breaks" for other in before):
        return "returned"
    crossed = any(stretch.end in ("crossed", "at once") for stretch in arm.stretches)
    return "close" if crossed else "holds"


def _side(arm: Arm, one: Evaluation) -> Verdict:
    start = arm.in_length
    if start is not None and one.accuracy is not None and start.accuracy is not None:
        overrun = start.accuracy.mean - one.accuracy.mean - ACCURACY_FALL
        if one.accuracy_margin is None or start.accuracy_margin is None:
            return "untold"
        margin = max(one.accuracy_margin, start.accuracy_margin)
    elif one.rise is not None:
        overrun = one.rise.mean - LOSS_RISE
        if one.rise_margin is None:
            return "untold"
        margin = one.rise_margin
    else:
        return "unknown"
    if abs(overrun) < margin:
        return "close"
    return "breaks" if overrun > 0 else "holds"
