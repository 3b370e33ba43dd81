"""What testing on a limited text adds to the error of a difference, as standard errors.

A text has easy and hard stretches, and all lengths are tested on the same ones. So the error of a
difference is that of the differences stretch by stretch. Without the stretches, the two numbers count as
if measured on texts of their own, which is too wide rather than too narrow.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from .gather import finite
from .records import Metric


def of_rise(one: Metric, start: Metric) -> float | None:
    """Of the loss at a length over the loss at the training length."""
    loss, in_length = finite(one["loss"]), finite(start["loss"])
    if loss is None or not in_length:
        return None
    if one is start:
        return 0.0
    there, here = _stretches(one, 0), _stretches(start, 0)
    ratio = loss / in_length
    if len(there) == len(here) > 1:  # the error of a ratio of two means over pairs
        return _standard_error([a - ratio * b for a, b in zip(there, here, strict=True)]) / in_length
    apart = (one["loss_error"] or 0.0) / in_length, (start["loss_error"] or 0.0) / in_length
    return math.hypot(apart[0], ratio * apart[1])


def of_gain(one: Metric) -> float | None:
    """Of the loss with the context cut less the loss with all of it."""
    whole, cut = _stretches(one, 0), _stretches(one, 1)
    if len(whole) == len(cut) > 1:
        return _standard_error([b - a for a, b in zip(whole, cut, strict=True)])
    return finite(one["loss_error"])


def _stretches(one: Metric, column: int) -> list[float]:
    """The losses of all stretches, or nothing if one of them has none."""
    found = [finite(stretch[column]) for stretch in one.get("stretches") or []]
    return [loss for loss in found if loss is not None] if None not in found else []


def _standard_error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values))
