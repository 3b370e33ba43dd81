"""Compares all pairs of arms at once: which arms differ, and which differences are detectable."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from .estimate import CONFIDENCE
from .quantiles import student_quantile, studentized_range_quantile

#: An order needs this many seeds: two seeds give no useful estimate of an arm's spread.
FEWEST_SEEDS = 3
#: A difference is visible if at least this share of comparisons detects it.
POWER = 0.8


@dataclass(frozen=True)
class Comparison:
    """Which arms differ, from all pairs at once.

    Attributes:
        order: The arms' numbers, from the lowest values to the highest.
        groups: Arms without a significant difference, in the same order; every arm is in one or more. Arms without
            a common group differ.
        visible: The difference that such a comparison detects four times in five; None if seeds do not differ.
    """

    order: list[int]
    groups: list[list[int]]
    visible: float | None


def compare(
    table: Float[Tensor, "arms seeds"], of_text: Callable[[int, int, float], float | None]
) -> Comparison | None:
    """Which arms differ by more than seeds and text explain; 5 % for any false claim among all pairs.

    Args:
        table: One number per arm and seed; NaN if absent.
        of_text: (arm, arm, confidence) → half of the interval of their difference over text, or None.

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
    least = 1e-12 * table.nan_to_num().abs().max().item()  # the rounding error between equal numbers
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
    """Differences between arms, half of their intervals over seeds, and the residual spread.

    Arms with one seed share its weights and batches. So a number is modelled as an effect of the arm, plus an effect
    of the seed, plus a residual (the two-way layout without interaction: Scheffé 1959, The Analysis of Variance,
    ch. 4), fitted by least squares if runs are missing. There are too few seeds to estimate the spread of one arm, so
    residuals are pooled over all arms, with (arms − 1)(seeds − 1) degrees of freedom, and all pairs are compared by
    the studentized range (Tukey 1953; with unequal numbers Kramer 1956, Biometrics 12:307).

    Pooling assumes that all arms have the same variance. Two rules cover arms that do not. An arm with a variance
    above the pooled one counts with its own variance. And two arms differ only if Student's paired test agrees, which
    uses no other arms. (The tests simulate arms that scatter up to a hundred times as much as others: from five seeds
    on at most 5 % of comparisons make a false claim, with three seeds at most 7 %.)
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
    # The expected squared residual of a cell, in variances: less than 1, because the fit includes the cell.
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
    """The difference between two arms that a comparison detects four times in five, in residual spreads.

    Simulated with a fixed seed: a two-way layout of random numbers, and the difference at which a pair becomes
    significant.

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
    """The largest sets without a pair in ``apart``, by inserting and absorbing (Piepho 2004, J. Comput. Graph.
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
