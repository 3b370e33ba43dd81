"""Quantiles of Student's distribution and of the studentized range."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch


@lru_cache(4096)
def student_quantile(confidence: float, freedom: int) -> float:
    """The t for which a share ``confidence`` of Student's distribution lies between −t and t.

    Example:
        >>> round(student_quantile(0.95, 2), 3)
        4.303
    """
    return _quantile(lambda t: _share_within(t, freedom), confidence)


def _quantile(share: Callable[[float], float], confidence: float) -> float:
    low, high = 0.0, 1.0
    while share(high) < confidence:
        high *= 2
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if share(middle) < confidence else (low, middle)
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


@lru_cache(256)
def studentized_range_quantile(confidence: float, count: int, freedom: int) -> float:
    """The quantile of the range of ``count`` normal numbers divided by an independent estimate of their spread.

    Both integrals (Harter 1960, Ann. Math. Stat. 31:1122) are sums at equal steps, which for functions as
    smooth as these, that vanish at both ends, are exact to many digits (Trefethen and Weideman 2014, SIAM Rev. 56:385).

    Example:
        >>> round(studentized_range_quantile(0.95, 3, 10), 2)
        3.88
    """
    width = 8 / math.sqrt(2 * freedom)
    log = torch.linspace(-16 / freedom - width, min(width, 3.0), 481, dtype=torch.float64)
    weight = torch.exp(freedom * (log - log.exp().square() / 2 + 0.5))  # of the estimate e^log
    weight /= weight.sum()
    z = torch.linspace(-8, 8, 241, dtype=torch.float64)
    density = torch.exp(-z.square() / 2)
    density /= density.sum()

    def share(q: float) -> float:
        """The probability of a range below q estimates: the lowest number is z, all others at most that much above."""
        reach = (z[:, None] + q * log.exp()).clamp(max=40.0)
        within = torch.special.ndtr(reach) - torch.special.ndtr(z)[:, None]
        return (count * density @ within.clamp_min(0) ** (count - 1) @ weight).item()

    return _quantile(share, confidence)
