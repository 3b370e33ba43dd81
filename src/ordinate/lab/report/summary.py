"""`Summary`: the numbers of a comparison, for each arm at each length, over its seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from ..records import Metric
from ..tasks import Baseline
from .estimate import Estimate, finite
from .gather import Gathered

#: An encoding breaks if the loss of the last tokens rises by more than this share over that at the training length.
#: The mean over a long sequence would hide a sudden rise at its end.
LOSS_RISE = 0.10
#: On tasks with right and wrong answers, it breaks if the accuracy of the last tokens falls by more than this.
ACCURACY_FALL = 0.10
#: On such tasks, a model has learned if its accuracy at the training length reaches this; that of guessing is at
#: most one half.
LEARNED = 0.75
#: A gradient norm this many times the median of those before it is a spike.
SPIKE = 4.0
#: Training was stopped early if the loss fell by more than both of these at its end, as a share and in nats.
STILL_LEARNING, STILL_LEARNING_NATS = 0.03, 0.01
#: A model was trained past its best if its validation loss ends above its lowest by more than both of these.
PAST_BEST, PAST_BEST_NATS = 0.005, 0.005


class Bin(NamedTuple):
    """The loss at positions from ``start`` to before ``stop``."""

    start: int
    stop: int
    loss: Estimate


@dataclass(frozen=True)
class Evaluation:
    """The measures at one length, over the seeds that were evaluated at it.

    Attributes:
        loss: Nats per token over all targets; `last_loss` over the last targets.
        stretches: The loss of every stretch of the text, by seed.
        accuracy: The share of right answers, `last_accuracy` among the last tokens; if only complete answers count,
            both are the same.
        rise: The relative increase of the last tokens' loss over that at the run's training length.
        fall: The decrease of the last tokens' accuracy since the training length.
        gain: For targets that see more than the training length: how much lower their loss is than with exactly the
            training length of tokens visible; negative if more context does harm.
        positions: The loss along the sequence.
        variants: The share of right answers on further test sets.
        refused: Why there are no numbers.
    """

    length: int
    loss: Estimate | None = None
    stretches: tuple[tuple[float, ...], ...] = ()
    last_loss: Estimate | None = None
    accuracy: Estimate | None = None
    last_accuracy: Estimate | None = None
    rise: Estimate | None = None
    fall: Estimate | None = None
    gain: Estimate | None = None
    positions: tuple[Bin, ...] = ()
    variants: Mapping[str, Estimate] = field(default_factory=dict)
    refused: str | None = None

    @property
    def perplexity(self) -> float | None:
        """e to the mean loss; None if that overflows a float."""
        return math.exp(self.loss.mean) if self.loss is not None and self.loss.mean < 700 else None


@dataclass(frozen=True)
class Stretch:
    """The multiple of its training length up to which one model holds, by `LOSS_RISE` or `ACCURACY_FALL`.

    Attributes:
        end: Why it ends: the limit was ``"crossed"``; no longer length was ``"tested"``, so the factor is
            a lower bound; the next length was ``"refused"``; or the limit was crossed ``"at once"``.
    """

    factor: float
    end: Literal["crossed", "tested", "refused", "at once"]

    def __str__(self) -> str:
        if self.end == "at once":
            return "< 1×"
        # Near the training length the second decimal matters: 1.04 is not 1.
        places = 0 if self.factor >= 10 else 1 if self.factor >= 2 else 2
        number = f"{self.factor:.{places}f}"
        number = number.rstrip("0").rstrip(".") if places else number
        words = {
            "crossed": f"{number}×",
            "tested": f"≥ {number}×",
            "refused": f"{number}×, then refused",
        }
        return words[self.end]


@dataclass(frozen=True)
class Settling:
    """The fall of the validation loss at the end of training.

    Attributes:
        start, stop: From the last validation in the first four fifths of training to the end, in steps.
        share: The fall as a share of the loss at ``start``.
        nats: The fall itself.
    """

    start: int
    stop: int
    share: Estimate
    nats: Estimate

    @property
    def learning(self) -> bool:
        """Whether training was stopped early. Both limits count, because a loss near zero may halve by chance."""
        return self.share.mean > STILL_LEARNING and self.nats.mean > STILL_LEARNING_NATS


@dataclass(frozen=True)
class Arm:
    """One encoding over its seeds, or one training-free extension of a trained encoding.

    Attributes:
        extension: The scaling added to the trained model only for evaluation, or None.
        diverged: Seeds whose training or in-length loss is NaN or infinite; they are named and in no mean.
        unlearned: Seeds whose model has not learned at its training length: no better than the baseline or, on
            tasks, not accurate enough. An arm with such a seed has no stretch.
        training, validation: ``(step, loss)`` while training.
        spikes: The numbers of gradient-norm spikes and of logged steps, over the seeds.
        settling: The fall of the validation loss at the end.
    """

    spec: str
    extension: str | None
    seeds: tuple[int, ...]
    diverged: tuple[int, ...]
    unlearned: tuple[int, ...]
    train_length: int
    evaluations: tuple[Evaluation, ...]
    stretches: tuple[Stretch, ...]
    training: tuple[tuple[int, Estimate], ...]
    validation: tuple[tuple[int, Estimate], ...]
    spikes: tuple[int, int]
    settling: Settling | None
    cost: Metric
    tokens_per_second: Estimate | None
    peak_memory_bytes: int | None

    @property
    def label(self) -> str:
        return self.spec if self.extension is None else f"{self.spec} + {self.extension}"

    @property
    def learned(self) -> bool:
        return not self.unlearned

    @property
    def best_step(self) -> int | None:
        """The step with the lowest validation loss, if the loss was clearly higher at the end of training."""
        if not self.validation:
            return None
        step, lowest = min(self.validation, key=lambda point: point[1].mean)
        rise = self.validation[-1][1].mean - lowest.mean
        return step if rise > max(PAST_BEST * lowest.mean, PAST_BEST_NATS) else None

    @cached_property
    def at(self) -> Mapping[int, Evaluation]:
        return {evaluation.length: evaluation for evaluation in self.evaluations}

    @property
    def in_length(self) -> Evaluation | None:
        return self.at.get(self.train_length)

    @property
    def quality(self) -> Estimate | None:
        """In-length accuracy if the task has right and wrong answers, else in-length loss."""
        one = self.in_length
        return None if one is None else one.accuracy or one.loss

    @property
    def furthest(self) -> Evaluation | None:
        """The evaluation at the longest length that has numbers."""
        measured = [evaluation for evaluation in self.evaluations if evaluation.loss is not None]
        return measured[-1] if measured else None

    @property
    def refusal(self) -> Evaluation | None:
        """The evaluation at the shortest refused length."""
        return next((evaluation for evaluation in self.evaluations if evaluation.refused), None)

    @property
    def stretch(self) -> str:
        """The stretch over the seeds as text: one factor, or their range."""
        if self.diverged and not self.seeds:
            return "diverged"
        if not self.learned:
            return "not learned"
        if not self.stretches:
            return "–"
        ordered = sorted(self.stretches, key=lambda one: one.factor)
        low, high = str(ordered[0]), str(ordered[-1])
        return low if low == high else f"{low} to {high}"


@dataclass(frozen=True)
class Summary:
    """The numbers of a sweep: its trained arms, their training-free extensions, and the runs that were left out."""

    gathered: Gathered
    arms: tuple[Arm, ...]
    extensions: tuple[Arm, ...]

    @property
    def task(self) -> str:
        return str(self.gathered.sweep.settings["task"])

    @property
    def all_arms(self) -> tuple[Arm, ...]:
        """The trained arms, then the extensions."""
        return (*self.arms, *self.extensions)

    @property
    def last_tokens(self) -> int:
        """How many tokens count as the last ones of a sequence."""
        return int(self.gathered.sweep.settings["last_tokens"])

    @property
    def train_length(self) -> int:
        return self.arms[0].train_length

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(sorted({length for arm in self.arms for length in arm.at}))

    @property
    def baselines(self) -> Mapping[str, Baseline]:
        """The results of simpler models on the same tests, by name."""
        lines = [one for run in self.gathered.runs for one in run.of_kind("baseline")]
        return {
            one["name"]: Baseline(one["name"], one["loss"], one["accuracy"])
            for one in lines
            if finite(one["loss"])
        }

    @property
    def stretches(self) -> int:
        """The fewest stretches of text behind any loss; 0 for tasks, which have none."""
        lines = [one for run in self.gathered.runs for one in run.of_kind("evaluation")]
        return min((len(one["stretches"]) for one in lines if not one["refused"]), default=0)

    @property
    def by_accuracy(self) -> bool:
        """Whether the task has right and wrong answers."""
        return any(one.accuracy is not None for arm in self.arms for one in arm.evaluations)
