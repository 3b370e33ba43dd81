"""Runs into arms: every measure of an encoding over its seeds, and nothing that is not in the records."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from . import errors
from .estimate import Estimate
from .gather import Gathered, Run, finite
from .records import Metric

#: The loss may rise this much over the in-length loss before an encoding counts as past its reach.
LOSS_RISE = 0.10
#: On tasks that are right or wrong, the accuracy may fall this much.
ACCURACY_FALL = 0.10
#: On such tasks, a model must be right this often at the training length before it has anything to lose;
#: guessing is right half the time at most.
LEARNED = 0.75
#: A gradient norm this many times the median of the logged ones before it is a spike.
SPIKE = 4.0
_SPIKE_WINDOW = 20


@dataclass(frozen=True)
class Evaluation:
    """One length, over the seeds that were evaluated at it.

    Attributes:
        loss: Nats per token over all targets; `last_loss` over the last ones alone.
        loss_error, accuracy_error: The largest standard error over sequences among the seeds.
        rise: The loss over the run's own in-length loss, less one.
        rise_error: What the evaluation of a limited number of sequences adds to `rise`, one standard error.
        gain_error: The same of `gain`.
        gain: How much lower the loss is than on the same targets with the context cut to the training
            length; negative where more context does harm.
        positions: ``(start, stop, loss)`` along the sequence.
        refused: Why there are no numbers.
    """

    length: int
    loss: Estimate | None = None
    loss_error: float | None = None
    last_loss: Estimate | None = None
    accuracy: Estimate | None = None
    accuracy_error: float | None = None
    rise: Estimate | None = None
    rise_error: float | None = None
    gain: Estimate | None = None
    gain_error: float | None = None
    positions: tuple[tuple[int, int, Estimate], ...] = ()
    refused: str | None = None

    @property
    def perplexity(self) -> float | None:
        """e to the mean loss; None where no float holds it."""
        return math.exp(self.loss.mean) if self.loss is not None and self.loss.mean < 700 else None


@dataclass(frozen=True)
class Stretch:
    """How many times its training length one trained model reaches, by `LOSS_RISE` or `ACCURACY_FALL`.

    Attributes:
        end: What ended it: the limit was ``"crossed"``; nothing further was ``"tested"``, so the factor is
            a lower bound; the next length was ``"refused"``; or the limit was crossed ``"at once"``.
    """

    factor: float
    end: Literal["crossed", "tested", "refused", "at once"]

    def __str__(self) -> str:
        if self.end == "at once":
            return "< 1×"
        number = f"{self.factor:.0f}" if self.factor >= 10 else f"{self.factor:.2g}"
        words = {
            "crossed": f"{number}×",
            "tested": f"≥ {number}×",
            "refused": f"{number}×, then refused",
        }
        return words[self.end]


@dataclass(frozen=True)
class Arm:
    """One encoding over its seeds, or one training-free extension of a trained encoding.

    Attributes:
        extension: What was put on the trained model for evaluation alone, or None.
        diverged: Seeds whose training or in-length loss gave no number; they are named and left out of every mean.
        learned: Whether the model, as it was trained, does at its training length what it was trained for:
            better than the baseline and, on tasks, right often enough. If not, it has no reach.
        training, validation: ``(step, loss)`` while training.
        spikes: Over the seeds, gradient-norm spikes and logged steps.
        settled: How much of the validation loss the last fifth of training still took away.
    """

    spec: str
    extension: str | None
    seeds: tuple[int, ...]
    diverged: tuple[int, ...]
    learned: bool
    train_length: int
    evaluations: tuple[Evaluation, ...]
    stretches: tuple[Stretch, ...]
    training: tuple[tuple[int, Estimate], ...]
    validation: tuple[tuple[int, Estimate], ...]
    spikes: tuple[int, int]
    settled: Estimate | None
    cost: Metric
    tokens_per_second: Estimate | None
    peak_memory_bytes: int | None

    @property
    def label(self) -> str:
        return self.spec if self.extension is None else f"{self.spec} + {self.extension}"

    @cached_property
    def at(self) -> Mapping[int, Evaluation]:
        return {evaluation.length: evaluation for evaluation in self.evaluations}

    @property
    def in_length(self) -> Evaluation | None:
        return self.at.get(self.train_length)

    @property
    def quality(self) -> Estimate | None:
        """In-length accuracy where the task has right and wrong answers, else in-length loss."""
        one = self.in_length
        return None if one is None else one.accuracy or one.loss

    @property
    def furthest(self) -> Evaluation | None:
        """The longest evaluation that gave numbers."""
        measured = [evaluation for evaluation in self.evaluations if evaluation.loss is not None]
        return measured[-1] if measured else None

    @property
    def refusal(self) -> Evaluation | None:
        """The shortest length that was refused."""
        return next((evaluation for evaluation in self.evaluations if evaluation.refused), None)

    @property
    def stretch(self) -> str:
        """The stretch over the seeds: one factor, or the range of them."""
        if not self.learned:
            return "not learned"
        if not self.stretches:
            return "–"
        ordered = sorted(self.stretches, key=lambda one: one.factor)
        low, high = str(ordered[0]), str(ordered[-1])
        return low if low == high else f"{low} to {high}"


@dataclass(frozen=True)
class Summary:
    """A sweep in numbers: its trained arms, their training-free extensions, and what was left out."""

    gathered: Gathered
    arms: tuple[Arm, ...]
    extensions: tuple[Arm, ...]

    @property
    def task(self) -> str:
        return str(self.gathered.sweep.settings["task"])

    @property
    def train_length(self) -> int:
        return self.arms[0].train_length

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(sorted({length for arm in self.arms for length in arm.at}))

    @property
    def baselines(self) -> Mapping[str, float]:
        """What something simpler than a Transformer reaches on the same text, by its name."""
        lines = [one for run in self.gathered.runs for one in run.of_kind("baseline")]
        return {str(one["name"]): float(one["loss"]) for one in lines if finite(one.get("loss"))}

    @property
    def paired(self) -> bool:
        """Whether errors come from pairs: the same stretches of text at every length."""
        lines = (one for run in self.gathered.runs for one in run.of_kind("evaluation"))
        return any(one.get("stretches") for one in lines)

    @property
    def by_accuracy(self) -> bool:
        """Whether the task is one of right and wrong answers."""
        return any(one.accuracy is not None for arm in self.arms for one in arm.evaluations)

    @property
    def seeds(self) -> int:
        """The fewest seeds behind any arm that has numbers."""
        return min((len(arm.seeds) for arm in self.arms if arm.seeds), default=0)


def summarize(gathered: Gathered) -> Summary:
    """Put the runs of a comparison together by encoding, in the order it names them."""
    arms, extensions = [], []
    for spec in dict.fromkeys(gathered.sweep.arms):
        runs = [run for run in gathered.runs if run.spec == spec]
        if runs:
            arms.append(_arm(runs, None))
            extensions += [_arm(runs, extension) for extension in _extensions_of(runs)]
    return Summary(gathered, tuple(arms), tuple(extensions))


def _extensions_of(runs: Sequence[Run]) -> list[str]:
    named = (one.get("extension") for run in runs for one in run.of_kind("evaluation"))
    return list(dict.fromkeys(name for name in named if name is not None))


def _arm(runs: Sequence[Run], extension: str | None) -> Arm:
    train_length = runs[0].config.train_length
    tables = {run.seed: _evaluations_of(run, extension) for run in runs}
    tables = {seed: table for seed, table in tables.items() if table}
    # A rise is over the loss of the model as it was trained, also where an extension has changed it.
    starts = {run.seed: _evaluations_of(run, None).get(train_length) for run in runs}
    diverged = tuple(
        run.seed for run in runs if run.diverged or ((start := starts[run.seed]) and _is_broken(start))
    )
    sound = [run for run in runs if run.seed not in diverged]
    kept = {run.seed: tables[run.seed] for run in sound if run.seed in tables}
    learned = _has_learned([start for run in sound if (start := starts[run.seed])], sound)
    costs = [run.of_kind("cost")[-1] for run in runs if run.of_kind("cost")]
    memory = [cost["peak_memory_bytes"] for cost in costs if cost.get("peak_memory_bytes")]
    return Arm(
        spec=runs[0].spec,
        extension=extension,
        seeds=tuple(kept),
        diverged=diverged,
        learned=learned,
        train_length=train_length,
        evaluations=_merge(kept or tables, starts),
        stretches=tuple(
            _stretch(table, start)
            for seed, table in kept.items()
            if learned and (start := starts[seed]) is not None and finite(start["loss"]) is not None
        ),
        training=_curve(sound, "train"),
        validation=_curve(sound, "validation"),
        spikes=_spikes(runs),
        settled=Estimate.of(_settled(run) for run in sound),
        cost=costs[0] if costs else {},
        tokens_per_second=Estimate.of(cost.get("tokens_per_second") for cost in costs),
        peak_memory_bytes=max(memory, default=None),
    )


def _evaluations_of(run: Run, extension: str | None) -> dict[int, Metric]:
    """Length → record, of the last time it was evaluated."""
    found = [one for one in run.of_kind("evaluation") if one.get("extension") == extension]
    return {int(one["length"]): one for one in sorted(found, key=lambda one: int(one["length"]))}


def _has_learned(starts: Sequence[Metric], runs: Sequence[Run]) -> bool:
    """Whether the mean in-length evaluation is that of a model which has learned its task."""
    baselines = [one["loss"] for run in runs for one in run.of_kind("baseline") if finite(one["loss"])]
    loss = Estimate.of(finite(start["loss"]) for start in starts)
    right = Estimate.of(finite(start.get("accuracy")) for start in starts)
    if right is not None and right.mean < LEARNED:
        return False
    return loss is None or not baselines or loss.mean < min(baselines)


def _is_broken(one: Metric) -> bool:
    """Whether there is a loss, and it is not a number that can be averaged."""
    return one["loss"] is not None and finite(one["loss"]) is None


def _merge(
    tables: Mapping[int, Mapping[int, Metric]], starts: Mapping[int, Metric | None]
) -> tuple[Evaluation, ...]:
    lengths = sorted({length for table in tables.values() for length in table})
    return tuple(
        _evaluation(
            length, [(table[length], starts[seed]) for seed, table in tables.items() if length in table]
        )
        for length in lengths
    )


def _evaluation(length: int, here: Sequence[tuple[Metric, Metric | None]]) -> Evaluation:
    """One length from every seed's line, each beside the line of its own in-length evaluation."""
    refusals = [one["refused"] for one, _ in here if one["refused"]]
    refusals += ["the loss is not a finite number" for one, _ in here if _is_broken(one)]
    if refusals:  # also when other seeds have numbers: their mean would be of the lucky ones
        return Evaluation(length, refused=str(refusals[0]))
    rises, gains = [], []
    for one, start in here:
        loss, windowed = finite(one["loss"]), finite(one["windowed_loss"])
        if loss is not None and windowed is not None:
            gains.append(windowed - loss)
        in_length = None if start is None else finite(start["loss"])
        if loss is not None and in_length:
            rises.append(loss / in_length - 1)
    return Evaluation(
        length=length,
        loss=Estimate.of(finite(one["loss"]) for one, _ in here),
        loss_error=_largest(one["loss_error"] for one, _ in here),
        last_loss=Estimate.of(finite(one.get("last_loss")) for one, _ in here),
        accuracy=Estimate.of(finite(one.get("accuracy")) for one, _ in here),
        accuracy_error=_largest(one.get("accuracy_error") for one, _ in here),
        rise=Estimate.of(rises),
        rise_error=_largest(errors.of_rise(one, start) for one, start in here if start is not None),
        gain=Estimate.of(gains),
        gain_error=_largest(errors.of_gain(one) for one, _ in here),
        positions=_positions([one.get("positions") or [] for one, _ in here]),
    )


def _positions(binned: Sequence[Sequence[Sequence[float]]]) -> tuple[tuple[int, int, Estimate], ...]:
    bins: dict[tuple[int, int], list[float]] = {}
    for run in binned:
        for start, stop, loss in run:
            if finite(loss) is not None:
                bins.setdefault((int(start), int(stop)), []).append(loss)
    return tuple(
        (start, stop, Estimate(tuple(losses)))
        for (start, stop), losses in sorted(bins.items())
        if len(losses) == len(binned)
    )


def _stretch(table: Mapping[int, Metric], start: Metric) -> Stretch:
    """Where one model crosses the limit, between two lengths on a straight line over log length."""
    train_length = int(start["length"])
    by_accuracy = start.get("accuracy") is not None

    def overrun(one: Metric) -> float:
        """Below 0 within the limit, above 0 past it."""
        if by_accuracy:
            return start["accuracy"] - ACCURACY_FALL - one["accuracy"]
        return one["loss"] - start["loss"] * (1 + LOSS_RISE)

    reached: tuple[int, float] | None = None  # the last length within the limit, and how far within
    for length, one in table.items():
        if length < train_length:
            continue
        factor = (reached[0] if reached else train_length) / train_length
        if one["refused"]:
            return Stretch(factor, "refused")
        past = math.inf if _is_broken(one) else overrun(one)
        if past > 0:
            if reached is None:
                return Stretch(0.0, "at once")
            last, before = reached
            return Stretch(factor * (length / last) ** (before / (before - past)), "crossed")
        reached = length, past
    return Stretch((reached[0] if reached else train_length) / train_length, "tested")


def _curve(runs: Sequence[Run], kind: str) -> tuple[tuple[int, Estimate], ...]:
    by_step: dict[int, list[float]] = {}
    for run in runs:
        # A resumed run may have written a step twice; the later line is the one that counts.
        latest = {int(one["step"]): one["loss"] for one in run.of_kind(kind)}
        for step, loss in latest.items():
            if finite(loss) is not None:
                by_step.setdefault(step, []).append(loss)
    # A step that not every seed has would make the mean jump.
    return tuple(
        (step, Estimate(tuple(losses)))
        for step, losses in sorted(by_step.items())
        if len(losses) == len(runs)
    )


def _spikes(runs: Iterable[Run]) -> tuple[int, int]:
    """Gradient-norm spikes and the logged steps they were looked for in."""
    spikes = steps = 0
    for run in runs:
        norms = [
            float(one["grad_norm"]) for one in run.of_kind("train") if one.get("grad_norm") is not None
        ]
        steps += len(norms)
        for index in range(_SPIKE_WINDOW, len(norms)):
            usual = statistics.median(norms[index - _SPIKE_WINDOW : index])
            spikes += not norms[index] <= SPIKE * usual  # a norm that is no number is a spike too
    return spikes, steps


def _settled(run: Run) -> float | None:
    """How much of the loss the last fifth of training took away: near 0 when there was no more to learn."""
    points = {int(one["step"]): finite(one["loss"]) for one in run.of_kind("validation")}
    earlier = [step for step in points if 0 < step <= 0.8 * max(points)]
    if not earlier:
        return None
    before, after = points[max(earlier)], points[max(points)]
    return 1 - after / before if before and after is not None else None


def _largest(values: Iterable[float | None]) -> float | None:
    return max((number for value in values if (number := finite(value)) is not None), default=None)
