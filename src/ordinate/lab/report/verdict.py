"""The verdict on each arm at a length: it holds, it breaks, or why neither is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from .estimate import Estimate, decided
from .summary import ACCURACY_FALL, LOSS_RISE, Arm

#: ``"close"``: closer to the limit than the error. ``"returned"``: past the limit at a shorter length, now within it.
#: ``"unrecorded"``: the records have no loss of the last tokens. ``"unknown"``: not measured.
Verdict = Literal[
    "holds",
    "breaks",
    "close",
    "returned",
    "refused",
    "not learned",
    "too little text",
    "unrecorded",
    "unknown",
]


def verdicts(arms: Sequence[Arm], length: int) -> dict[str, Verdict]:
    """Whether each arm's last tokens are within the limit at a length, by a significance test.

    All arms are tested together, so that at most 5 % of comparisons make one or more false claims.
    """
    found = {arm.label: _without_numbers(arm, length) for arm in arms}
    measured = {
        arm.label: one for arm in arms if found[arm.label] is None and (one := overrun(arm, length))
    }
    past = decided(measured)
    shorter = {
        (arm.label, other.length): one
        for arm in arms
        for other in arm.evaluations
        if past.get(arm.label) is False and arm.train_length < other.length < length
        if (one := overrun(arm, other.length)) is not None
    }
    left = {label for (label, _), broke in decided(shorter).items() if broke}
    for arm in arms:
        if arm.label not in measured:
            continue
        broke = past.get(arm.label)
        crossed = any(stretch.end in ("crossed", "at once") for stretch in arm.stretches)
        if measured[arm.label].margin() is None:
            found[arm.label] = "too little text"
        elif broke is not None and (broke or not crossed):
            found[arm.label] = "breaks" if broke else "holds"
        else:
            found[arm.label] = "returned" if arm.label in left else "close"
    return {label: verdict or "unknown" for label, verdict in found.items()}


def overrun(arm: Arm, length: int) -> Estimate | None:
    """How far the last tokens are past the limit at a length; negative within the limit."""
    one = arm.at[length]
    if one.fall is not None:
        return one.fall.over(ACCURACY_FALL)
    return None if one.rise is None or one.accuracy is not None else one.rise.over(LOSS_RISE)


def _without_numbers(arm: Arm, length: int) -> Verdict | None:
    one = arm.at.get(length)
    if one is not None and one.refused:
        return "refused"
    if one is None or one.loss is None or arm.in_length is None:
        return "unknown"
    if not arm.learned:
        return "not learned"
    return "unrecorded" if overrun(arm, length) is None else None
