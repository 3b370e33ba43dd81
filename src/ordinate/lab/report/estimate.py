"""`Estimate`: one quantity measured once per seed, and its error; `decided`: which estimates are significantly not 0.

A number has two sources of error. Another seed gives another model, and another text gives other losses. The
half widths of the two intervals are combined as the root of the sum of their squares (Howe 1974, J. Am. Stat. Assoc.
69:789); the interval then covers the true value at least as often as the wider of the two.

Several claims are wrong more often than one. So claims against a limit are tested for all arms together
(`decided`), claims between arms for all pairs together (`all_pairs.compare`): at most 5 % of comparisons make
one or more false claims.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from .quantiles import student_quantile

#: The confidence of a claim, over all claims made together.
CONFIDENCE = 0.95
#: A claim needs this many stretches of text, or sequences of a task.
FEWEST = 5

Name = TypeVar("Name")


class Error(NamedTuple):
    """The error of one number because the test text is limited.

    Attributes:
        size: The standard error.
        share: The number, if it is a share of right answers, which lies between 0 and 1.
    """

    size: float
    share: float | None = None

    def half_width(self, t: float) -> float:
        """The distance to the farther end of an interval of ``t`` standard errors.

        For a share it is Wilson's interval (1927, J. Am. Stat. Assoc. 22:209), with the number of independent
        answers that would have this standard error (Korn and Graubard 1998, Surv. Methodol.
        24:193). If all are right, or all wrong, the recorded standard error is 1.5 over their number.
        """
        if self.share is None or self.size == 0:
            return t * self.size
        varied = self.share * (1 - self.share)
        count = varied / self.size / self.size or 1.5 / self.size
        shrunk = 1 / (1 + t * t / count)
        centre = abs(0.5 - self.share) * (1 - shrunk)
        return centre + t * shrunk * math.hypot(math.sqrt(varied / count), t / count / 2)


@dataclass(frozen=True)
class Estimate:
    """One quantity, measured once per seed.

    Attributes:
        text: The error of each seed's number because of the text; several independent errors if it is the
            difference of several numbers. Empty if unknown.
        pieces: The number of stretches of text, or sequences of a task, behind each number.

    Example:
        >>> loss = Estimate.of([1.50, 1.54, 1.52])
        >>> round(loss.mean, 2), round(loss.spread, 2)
        (1.52, 0.02)
    """

    values: tuple[float, ...]
    text: tuple[tuple[Error, ...], ...] = ()
    pieces: int = 0

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Estimate | None:
        """An estimate from measured values; None without any."""
        found = tuple(float(value) for value in values if value is not None)
        return cls(found) if found else None

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def spread(self) -> float | None:
        """The sample standard deviation over seeds; None for one seed."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    def margin(self, confidence: float = CONFIDENCE) -> float | None:
        """Half of the confidence interval over text and seeds together (Howe 1974).

        With one seed it covers only that trained model. None if there is too little text.
        """
        of_text = self.margin_of_text(confidence)
        if of_text is None or self.spread is None:
            return of_text
        count = len(self.values)
        of_seeds = student_quantile(confidence, count - 1) * self.spread / math.sqrt(count)
        return finite(math.hypot(of_text, of_seeds))

    def margin_of_text(self, confidence: float = CONFIDENCE) -> float | None:
        """Half of the interval over text. All seeds are tested on the same text, so their errors are correlated."""
        if len(self.text) < len(self.values) or self.pieces < FEWEST:
            return None
        t = student_quantile(confidence, self.pieces - 1)
        off = [math.hypot(*(error.half_width(t) for error in errors)) for errors in self.text]
        return finite(statistics.fmean(off))

    def over(self, limit: float) -> Estimate:
        """The same quantity less a limit."""
        return replace(self, values=tuple(value - limit for value in self.values))

    def written(self, digits: int = 3) -> str:
        """The mean, and with several seeds its spread.

        Example:
            >>> Estimate((1.50, 1.52)).written()
            '1.510 ± 0.014'
        """
        mean = f"{self.mean:.{digits}f}"
        return mean if self.spread is None else f"{mean} ± {self.spread:.{digits}f}"

    def plus_minus(self, digits: int, factor: float = 1.0) -> str:
        """`margin` as text after the mean; empty if there is too little text."""
        margin = self.margin()
        return "" if margin is None else f" ± {margin * factor:.{digits}f}"

    def to_dict(self, margin: bool = False) -> dict[str, float | int | None]:
        """Mean, spread and number of seeds and, if asked for, half of the 95 % interval."""
        found = {"mean": self.mean, "spread": self.spread, "seeds": len(self.values)}
        return {**found, "margin": self.margin()} if margin else found


def finite(value: object) -> float | None:
    """A number that can be averaged, or None for null, NaN and infinity."""
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def error_of_pairs(there: Sequence[float], here: Sequence[float]) -> float | None:
    """The standard error of the mean difference between losses of the same stretches.

    A text has easy and hard stretches, and every model is tested on the same ones. So the error of a difference
    is computed from the differences per stretch, which scatter much less than either loss.
    """
    if len(there) != len(here) or len(here) < FEWEST:
        return None
    differences = [a - b for a, b in zip(there, here, strict=True)]
    return statistics.stdev(differences) / math.sqrt(len(differences))


def decided(estimates: Mapping[Name, Estimate], sides: int = 1) -> dict[Name, bool]:
    """Which estimates are significantly above 0 (True) or below it (False); the others are absent.

    Holm's procedure (1979, Scand. J. Stat. 6:65): each estimate needs the confidence that all undecided estimates
    need together, until no further one is significant. Each decided estimate must also be so by its own interval.

    Args:
        sides: 2 if a value may be exactly 0, so that both claims would be false.
    """
    found: dict[Name, bool] = {}
    while still := {name: one for name, one in estimates.items() if name not in found}:
        confidence = max(CONFIDENCE, 1 - 2 / sides * (1 - CONFIDENCE) / len(still))
        margins = {name: one.margin(confidence) for name, one in still.items()}
        sure = {
            name: still[name].mean > 0
            for name, margin in margins.items()
            if margin is not None and abs(still[name].mean) > margin
        }
        if not sure:
            break
        found |= sure
    return found
