"""Numbers over seeds: their mean, their spread, and when two of them may be called different."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

#: How sure a claim must be, over all comparisons made together.
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """One quantity, measured once a seed.

    Example:
        >>> loss = Estimate.of([1.50, 1.54, 1.52])
        >>> round(loss.mean, 2), round(loss.spread, 2)
        (1.52, 0.02)
    """

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Estimate | None:
        """An estimate from what was measured; None when nothing was."""
        found = tuple(float(value) for value in values if value is not None)
        return cls(found) if found else None

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def spread(self) -> float | None:
        """The sample standard deviation over seeds; one seed has none."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def margin(self) -> float | None:
        """Half the width of the interval that holds the true mean with 95 % confidence (Student's t)."""
        if self.spread is None:
            return None
        count = len(self.values)
        return student_quantile(CONFIDENCE, count - 1) * self.spread / math.sqrt(count)

    def to_dict(self) -> dict[str, float | int | None]:
        return {"mean": self.mean, "spread": self.spread, "seeds": len(self.values)}


def differ(a: Estimate, b: Estimate, comparisons: int = 1) -> bool:
    """Whether two means differ by more than seeds explain.

    Welch's test at 95 %, divided by the number of comparisons made together (Bonferroni), and never for
    a difference smaller than the larger spread. One seed has no spread, so nothing can be said: False.
    """
    if a.spread is None or b.spread is None:
        return False
    difference = abs(a.mean - b.mean)
    if difference <= max(a.spread, b.spread):
        return False
    of_a, of_b = a.spread**2 / len(a.values), b.spread**2 / len(b.values)
    if of_a + of_b == 0:
        return True
    freedom = (of_a + of_b) ** 2 / (of_a**2 / (len(a.values) - 1) + of_b**2 / (len(b.values) - 1))
    confidence = 1 - (1 - CONFIDENCE) / max(comparisons, 1)
    return difference > student_quantile(confidence, max(1, int(freedom))) * math.sqrt(of_a + of_b)


def student_quantile(confidence: float, freedom: int) -> float:
    """The t that a share ``confidence`` of Student's distribution lies within, both sides together.

    Example:
        >>> round(student_quantile(0.95, 2), 3)
        4.303
    """
    low, high = 0.0, 1.0
    while _share_within(high, freedom) < confidence:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _share_within(middle, freedom) < confidence else (low, middle)
    return high


def _share_within(t: float, freedom: int) -> float:
    """The share of Student's distribution between −t and t (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan2(t, math.sqrt(freedom))
    odd = freedom % 2
    term, total = (math.cos(angle), 0.0) if odd else (1.0, 0.0)
    for step in range(2 + odd, freedom + 1, 2):
        total += term
        term *= (step - 1) / step * math.cos(angle) ** 2
    within = math.sin(angle) * total
    return 2 / math.pi * (angle + within) if odd else within
