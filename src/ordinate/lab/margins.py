"""How far a number may be off because the text it was tested on is limited: half of a 95 % interval.

A text has easy and hard stretches, and every length is tested on the same ones. So a difference is known
as well as the differences stretch by stretch agree, which is far better than either number. Stretches are
few, so the intervals are Student's; with fewer than `FEWEST` of them nothing can be told, and None says so.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from .estimate import CONFIDENCE, student_quantile

#: Stretches of text, or sequences of a task, that a claim needs.
FEWEST = 5


def of_mean(error: float | None, count: int) -> float | None:
    """Of a mean over so many stretches, from its standard error."""
    if error is None or count < FEWEST:
        return None
    return student_quantile(CONFIDENCE, count - 1) * error


def of_rise(there: Sequence[float], here: Sequence[float]) -> float | None:
    """Of how much higher the losses of the same stretches are in one place than in another, as a share."""
    if len(there) != len(here) or not here:
        return None
    ratio, level = sum(there) / sum(here), statistics.fmean(here)
    return _of_pairs([(a - ratio * b) / level for a, b in zip(there, here, strict=True)])


def of_difference(there: Sequence[float], here: Sequence[float]) -> float | None:
    """The same in nats."""
    if len(there) != len(here):
        return None
    return _of_pairs([a - b for a, b in zip(there, here, strict=True)])


def _of_pairs(differences: Sequence[float]) -> float | None:
    count = len(differences)
    if count < FEWEST:
        return None
    return of_mean(statistics.stdev(differences) / math.sqrt(count), count)
