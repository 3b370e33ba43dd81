"""The statistics of a report: how far a number may be off, and what may be said of several at once.

A number is off for two reasons. Another seed would give another model, and another text other answers. The
half widths of the two intervals are combined as the sides of a right angle (Howe 1974, J. Am. Stat. Assoc.
69:789), which holds the truth at least as often as the wider of the two alone.

Whoever says several things is wrong more often than who says one. Claims against a limit are made for all
arms together (`decided`), claims between arms for all pairs together (`compare`): in at most 5 % of
comparisons one of them or more is false.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

#: How sure a claim must be, over all claims made together.
CONFIDENCE = 0.95
#: Stretches of text, or sequences of a task, that a claim needs.
FEWEST = 5
#: Seeds that an order needs: the spread of an arm is next to unknown from two.
FEWEST_SEEDS = 3
#: How often a difference should be seen to count as one that can be seen.
POWER = 0.8

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
        """To the farther end of an interval of so many standard errors.

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

        Of one seed it is about that trained model alone. None where there is too little text to tell.
        """
        of_text = self.margin_of_text(confidence)
        if of_text is None or self.spread is None:
            return of_text
        count = len(self.values)
        of_seeds = student_quantile(confidence, count - 1) * self.spread / math.sqrt(count)
        return _finite(math.hypot(of_text, of_seeds))

    def margin_of_text(self, confidence: float = CONFIDENCE) -> float | None:
        """Half of the interval over text. Seeds are tested on the same text, so they are off by it together."""
        if len(self.text) < len(self.values) or self.pieces < FEWEST:
            return None
        t = student_quantile(confidence, self.pieces - 1)
        off = [math.hypot(*(error.half_width(t) for error in errors)) for errors in self.text]
        return _finite(statistics.fmean(off))

    def over(self, limit: float) -> Estimate:
        """How far it is over a limit."""
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


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def error_of_pairs(there: Sequence[float], here: Sequence[float]) -> float | None:
    """The standard error of the mean difference between losses of the same stretches.

    A text has easy and hard stretches, and every model is tested on the same ones, so a difference is known
    as well as the differences stretch by stretch agree, which is far better than either loss.
    """
    if len(there) != len(here) or len(here) < FEWEST:
        return None
    differences = [a - b for a, b in zip(there, here, strict=True)]
    return statistics.stdev(differences) / math.sqrt(len(differences))


def decided(estimates: Mapping[Name, Estimate], sides: int = 1) -> dict[Name, bool]:
    """Which of several numbers surely lie above 0 (True) or below it (False); of the others nothing is sure.

    Holm's procedure (1979, Scand. J. Stat. 6:65): each number is asked for as much certainty as the numbers
    still open need together, until no further one is sure. None counts that its own interval does not show.

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


# All pairs


@dataclass(frozen=True)
class Comparison:
    """Which arms differ, by all pairs at once.

    Attributes:
        order: The arms, by number, from the lowest values to the highest.
        groups: Those that cannot be told apart, in the same order; every arm is in one or more. Arms without a
            common group differ.
        visible: The difference that such a comparison sees four times in five; None where seeds differ in nothing.
    """

    order: list[int]
    groups: list[list[int]]
    visible: float | None


def compare(
    table: Float[Tensor, "arms seeds"], of_text: Callable[[int, int, float], float | None]
) -> Comparison | None:
    """Which arms differ by more than seeds and text explain, of all pairs with 5 % for any false claim.

    Args:
        table: One number an arm and seed; NaN where there is none.
        of_text: Of two arms and a confidence, half of the interval of their difference over text, or None.

    Returns:
        None with fewer than two arms, or without three seeds that two arms share.
    """
    arms, measured = len(table), (~table.isnan()).double()
    if arms < 2 or (measured @ measured.T).fill_diagonal_(0).max() < FEWEST_SEEDS:
        return None
    differences, margins, spread = two_way(table)
    order: list[int] = differences[:, 0].argsort(stable=True).tolist()
    pairs = [(a, b) for a in range(arms) for b in range(a)]
    confidence = 1 - (1 - CONFIDENCE) / len(pairs)
    text = {pair: of_text(*pair, confidence) for pair in pairs}
    least = 1e-12 * table.nan_to_num().abs().max().item()  # what rounding makes of equal numbers
    apart = [
        (order.index(a), order.index(b))
        for (a, b), off in text.items()
        if off is not None
        and abs(differences[a, b].item()) > max(least, math.hypot(margins[a, b].item(), off))
    ]
    counts, known = measured.sum(1), [off for off in text.values() if off is not None]
    visible, scale = None, spread.item()
    if known and least < scale < math.inf:
        usual = int(counts[counts >= FEWEST_SEEDS].median().item())
        visible = scale * detectable(arms, usual, statistics.median(known) / scale)
    return Comparison(order, [[order[n] for n in group] for group in groups(arms, apart)], visible)


def two_way(
    table: Float[Tensor, "*draws arms seeds"],
) -> tuple[
    Float[Tensor, "*draws arms arms"], Float[Tensor, "*draws arms arms"], Float[Tensor, "*draws"]
]:
    """Differences between arms, half of their intervals over seeds, and the spread that is left over.

    Arms of one seed share its weights and batches. So a number is that of its arm, plus that of its seed, plus
    what is left (the two-way layout without interaction: Scheffé 1959, The Analysis of Variance, ch. 4), fitted
    by least squares where runs are missing. Seeds are too few to know the spread of one arm by, so what is
    left is pooled over all arms, with (arms − 1)(seeds − 1) degrees of freedom, and all pairs are compared by
    the studentized range (Tukey 1953; with unequal numbers Kramer 1956, Biometrics 12:307).

    Pooling takes it that arms scatter alike. For those that do not there are two rules. An arm that scatters
    more than the pool counts with its own variance. And two arms differ only if Student's test of their pairs
    says so, too, which knows nothing of the other arms. (The tests simulate arms that scatter up to a hundred
    times as much as others: the 5 % are kept from five seeds on, and three seeds make at most 7 % of them.)
    """
    table = table.double()
    arms, seeds = table.shape[-2:]
    measured = ~table.isnan().reshape(-1, arms, seeds)[0]
    arm, seed = measured.nonzero(as_tuple=True)
    design = torch.cat([torch.eye(arms).double()[arm], torch.eye(seeds).double()[seed][:, 1:]], 1)
    covariance = torch.linalg.pinv(design.T @ design, hermitian=True)
    cells = table[..., arm, seed]
    fitted = cells @ design @ covariance
    left = (cells - fitted @ design.T).square()
    # What a cell is expected to have left over, in variances: less than 1, for it was fitted to.
    expected = 1 - (design @ covariance * design).sum(1)
    freedom = round(expected.sum().item())
    pooled = left.sum(-1, keepdim=True) / freedom
    of_arms = torch.eye(arms).double()[arm]
    own = left @ of_arms / (expected @ of_arms).clamp_min(1e-9)
    variance = torch.maximum(own, pooled)
    of_effects = covariance[:arms, :arms]
    counted = of_effects.diag()[:, None] + of_effects.diag() - 2 * of_effects
    variance = (variance[..., :, None] + variance[..., None, :]) / 2 * counted.clamp_min(0)
    tukey = studentized_range_quantile(CONFIDENCE, arms, freedom) / math.sqrt(2) * variance.sqrt()
    effects = fitted[..., :arms]
    differences = effects[..., :, None] - effects[..., None, :]
    return differences, torch.maximum(tukey, _paired_margins(table, measured)), pooled[..., 0].sqrt()


def _paired_margins(table: Tensor, measured: Tensor) -> Tensor:
    """Half of Student's interval of each pair's own differences, seed by seed; infinite with too few seeds."""
    both = (measured[:, None] & measured[None]).double()
    count = both.sum(-1)
    pairs = torch.where(both.bool(), table[..., :, None, :] - table[..., None, :, :], 0.0)
    mean = pairs.sum(-1) / count.clamp_min(1)
    scatter = ((pairs - mean[..., None]).square() * both).sum(-1)
    t = torch.full_like(count, math.inf)
    for number in count.unique().int().tolist():
        if number >= FEWEST_SEEDS:
            t[count == number] = student_quantile(CONFIDENCE, number - 1)
    return (t * (scatter / (count * (count - 1)).clamp_min(1)).sqrt()).nan_to_num(math.inf, math.inf)


@lru_cache(256)
def detectable(arms: int, seeds: int, text: float = 0.0) -> float:
    """The difference between two arms that a comparison sees four times in five, in spreads that are left over.

    From random numbers with a fixed seed: the two-way layout of them, and by how much a pair would have had
    to differ.

    Args:
        text: Half of a pair's interval over text, in the same unit.

    Example:
        >>> f"{detectable(arms=8, seeds=5):.1f}"
        '2.9'
    """
    draws = max(1, min(5000, 2_000_000 // (arms * arms * seeds)))
    rng = torch.Generator().manual_seed(0)
    noise = torch.randn(draws, arms, seeds, generator=rng, dtype=torch.float64)
    differences, margins, _ = two_way(noise)
    pairs = arms * (arms - 1) // 2
    error = text / student_quantile(1 - (1 - CONFIDENCE) / pairs, 1000)
    differences = differences + error * torch.randn(
        differences.shape, generator=rng, dtype=torch.float64
    )
    needed = torch.hypot(margins, torch.tensor(text).double()) - differences
    a, b = torch.triu_indices(arms, arms, 1)
    return needed[:, a, b].flatten()[:10_000_000].quantile(POWER).item()


def groups(count: int, apart: Iterable[tuple[int, int]]) -> list[list[int]]:
    """The largest sets no two of which are apart, by inserting and absorbing (Piepho 2004, J. Comput. Graph.
    Stat. 13:456).

    Example:
        >>> groups(4, [(0, 2), (0, 3), (1, 3), (2, 3)])
        [[0, 1], [1, 2], [3]]
    """
    found = [frozenset(range(count))]
    for pair in apart:
        split = [group for group in found if group.issuperset(pair)]
        parts = {group - {one} for group in split for one in pair}
        kept = [group for group in found if group not in split]
        found = kept + [one for one in parts if not any(one < other for other in (*kept, *parts))]
        found = list(dict.fromkeys(found))
    return sorted(sorted(group) for group in found)


# Quantiles


@lru_cache(4096)
def student_quantile(confidence: float, freedom: int) -> float:
    """The t that a share ``confidence`` of Student's distribution lies within, both sides together.

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
    """The q that the range of so many normal numbers, over an independent estimate of their spread, stays below.

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
        """Of ranges below q estimates: the lowest number is z, and all others are at most so much above."""
        reach = (z[:, None] + q * log.exp()).clamp(max=40.0)
        within = torch.special.ndtr(reach) - torch.special.ndtr(z)[:, None]
        return (count * density @ within.clamp_min(0) ** (count - 1) @ weight).item()

    return _quantile(share, confidence)
