"""An estimate: one quantity measured once a seed, how far it may be off, and which of several are surely past a limit.

A number is off for two reasons. Another seed would give another model, and another text other losses. The
half widths of the two intervals are combined as the sides of a right angle (Howe 1974, J. Am. Stat. Assoc.
69:789); the interval then holds the truth at least as often as the wider of the two alone.

Several claims are wrong more often than one. Claims against a limit are therefore made for all arms together
(`decided`), claims between arms for all pairs together (`all_pairs.compare`): in at most 5 % of comparisons one
or more of them is false.
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
#: Stretches of text, or sequences of a task, that a claim needs.
FEWEST = 5

Name = TypeVar("Name")


class Error(NamedTuple):
    """How far one number may be off because the text it was tested on is limited.

    Attributes:
        size: Its standard error.
        share: The number, if it is a share of right answers, which cannot be less than none or more than all.
    """

    size: float
    share: float | None = None

    def half_width(self, t: float) -> float:
        """The distance to the farther end of an interval of ``t`` standard errors.

        Of a share Wilson's interval (1927, J. Am. Stat. Assoc. 22:209), with the number of answers that
        would have this standard error if each were independent (Korn and Graubard 1998, Surv. Methodol.
        24:193). Where all are right, or all wrong, a standard error is recorded as 1.5 over their number.
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
    """One quantity, measured once a seed.

    Attributes:
        text: How far the number of each seed may be off because of the text; several independent errors where
            it is the difference of as many numbers. Empty if that is not known.
        pieces: Of how many stretches of text, or sequences of a task, each number is.

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

    def margin(self, confidence: float = CONFIDENCE) -> float | None:
        """Half of the interval that holds the truth this often, over text and seeds together (Howe 1974).

        With one seed it is about that trained model alone. None where there is too little text.
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
        """The mean with the spread over seeds, where there is one.

        Example:
            >>> Estimate((1.50, 1.52)).written()
            '1.510 ± 0.014'
        """
        mean = f"{self.mean:.{digits}f}"
        return mean if self.spread is None else f"{mean} ± {self.spread:.{digits}f}"

    def plus_minus(self, digits: int, factor: float = 1.0) -> str:
        """`margin` as a sentence has it after the mean; nothing where there is too little text to tell."""
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
    comes from the differences stretch by stretch, which scatter far less than either loss.
    """
    if len(there) != len(here) or len(here) < FEWEST:
        return None
    differences = [a - b for a, b in zip(there, here, strict=True)]
    return statistics.stdev(differences) / math.sqrt(len(differences))


def decided(estimates: Mapping[Name, Estimate], sides: int = 1) -> dict[Name, bool]:
    """Which of several numbers surely lie above 0 (True) or below it (False); numbers that are not sure are absent.

    Holm's procedure (1979, Scand. J. Stat. 6:65): each number needs the confidence that all undecided numbers
    need together, until no further one is sure. No number counts as sure unless its own interval shows it.

    Args:
        sides: 2 where a number may be exactly 0, so that both claims would be false.
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
