"""Computes a `Summary` from the records of runs: every measure of each encoding over its seeds."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ..records import Metric
from ..tasks import FEWEST_TESTS, TASKS
from .estimate import Error, Estimate, finite
from .gather import Gathered, Run
from .summary import (
    ACCURACY_FALL,
    LEARNED,
    LOSS_RISE,
    SPIKE,
    Arm,
    Bin,
    Evaluation,
    Settling,
    Stretch,
    Summary,
)

_SPIKE_WINDOW = 20


def summarize(gathered: Gathered) -> Summary:
    """Group the runs of a comparison by encoding, in the comparison's order."""
    arms, extensions = [], []
    for spec in dict.fromkeys(gathered.sweep.arms):
        runs = [run for run in gathered.runs if run.spec == spec]
        if runs:
            arms.append(_arm(runs, None))
        named = dict.fromkeys(one.get("extension") for run in runs for one in run.of_kind("evaluation"))
        extensions += [_arm(runs, extension) for extension in named if extension is not None]
    return Summary(gathered, tuple(arms), tuple(extensions))


def _arm(runs: Sequence[Run], extension: str | None) -> Arm:
    train_length = runs[0].config.train_length
    tables = {run.seed: table for run in runs if (table := _evaluations_of(run, extension))}
    # A rise is relative to the loss of the model as trained, also for extensions.
    starts = {run.seed: _evaluations_of(run, None).get(train_length) for run in runs}
    diverged = tuple(
        run.seed for run in runs if run.diverged or ((start := starts[run.seed]) and _is_broken(start))
    )
    sound = [run for run in runs if run.seed not in diverged]
    counted = {run.seed: tables[run.seed] for run in sound if run.seed in tables}
    measured = counted or tables
    lengths = sorted({length for table in measured.values() for length in table})
    unlearned = tuple(run.seed for run in sound if not _has_learned(run, starts[run.seed]))
    costs = [run.of_kind("cost")[-1] for run in runs if run.of_kind("cost")]
    memory = [cost["peak_memory_bytes"] for cost in costs if cost.get("peak_memory_bytes")]
    return Arm(
        spec=runs[0].spec,
        extension=extension,
        seeds=tuple(counted),
        diverged=diverged,
        unlearned=unlearned,
        train_length=train_length,
        evaluations=tuple(
            _evaluation(
                length,
                [(table[length], starts[seed]) for seed, table in measured.items() if length in table],
            )
            for length in lengths
        ),
        stretches=tuple(
            stretch
            for seed, table in counted.items()
            if not unlearned
            and (start := starts[seed])
            and finite(start["loss"]) is not None
            and (stretch := _stretch(table, start)) is not None
        ),
        training=_curve(sound, "train"),
        validation=_curve(sound, "validation"),
        spikes=_spikes(runs),
        settling=_settling(sound),
        cost=costs[0] if costs else {},
        tokens_per_second=Estimate.of(cost.get("tokens_per_second") for cost in costs),
        peak_memory_bytes=max(memory, default=None),
    )


def _evaluations_of(run: Run, extension: str | None) -> dict[int, Metric]:
    """Length → the line of its last evaluation."""
    found = [one for one in run.of_kind("evaluation") if one.get("extension") == extension]
    task = TASKS.get(run.config.task)
    if task is not None and task.measure == "exact match":  # only complete answers count
        names = ("accuracy", "accuracy_error")
        found = [{**one, **{f"last_{name}": one[name] for name in names}} for one in found]
    return {int(one["length"]): one for one in sorted(found, key=lambda one: int(one["length"]))}


def _has_learned(run: Run, start: Metric | None) -> bool:
    """Whether a model has learned its task, by its evaluation at the training length; True without one."""
    loss = None if start is None else finite(start["loss"])
    if start is None or loss is None:
        return True
    inaccurate = start["accuracy"] is not None and start["accuracy"] < LEARNED
    return not inaccurate and all(
        loss < one["loss"] for one in run.of_kind("baseline") if finite(one["loss"])
    )


def _is_broken(one: Metric) -> bool:
    """Whether a loss is NaN or infinite."""
    return one["loss"] is not None and finite(one["loss"]) is None


def _evaluation(length: int, here: Sequence[tuple[Metric, Metric | None]]) -> Evaluation:
    """The evaluation at one length, from each seed's line and its line at the training length."""
    refusals = [one["refused"] for one, _ in here if one["refused"]]
    refusals += ["the loss is not a finite number" for one, _ in here if _is_broken(one)]
    if refusals:  # even if other seeds have numbers: a mean over those would be biased
        return Evaluation(length, refused=str(refusals[0]))
    lines = [one for one, _ in here]
    rises, falls = (
        [change(one, start) for one, start in here if start is not None] for change in (_rise, _fall)
    )
    return Evaluation(
        length=length,
        loss=_measured(lines, "loss", "loss_error"),
        stretches=tuple(tuple(one["stretches"]) for one in lines),
        last_loss=_measured(lines, "last_loss", "last_error"),
        accuracy=_measured(lines, "accuracy", "accuracy_error"),
        last_accuracy=_measured(lines, "last_accuracy", "last_accuracy_error"),
        rise=_estimate(rises, lines),
        fall=_estimate(falls, lines),
        gain=_measured(lines, "gain", "gain_error"),
        positions=_positions(lines),
        variants={
            name: Estimate(tuple(one["variants"][name][0] for one in lines))
            for name in lines[0]["variants"]
            if all(name in one["variants"] for one in lines)
        },
    )


# A seed's number, and its errors over the text; None where the errors are unknown.
Measured = tuple[float, tuple[Error, ...] | None]


def _measured(lines: Sequence[Metric], name: str, error: str) -> Estimate | None:
    share = "accuracy" in name
    pairs = [(finite(one.get(name)), finite(one.get(error))) for one in lines]
    return _estimate([_with_error(value, size, share) for value, size in pairs], lines)


def _with_error(value: float | None, size: float | None, share: bool = False) -> Measured | None:
    if value is None:
        return None
    return value, None if size is None else (Error(size, value if share else None),)


def _estimate(found: Sequence[Measured | None], lines: Sequence[Metric]) -> Estimate | None:
    known = [one for one in found if one is not None]
    if not known or len(known) < len(found):  # a mean over some of the seeds would be biased
        return None
    text = tuple(errors for _, errors in known if errors is not None)
    # Tasks have no stretches, but at least FEWEST_TESTS sequences.
    pieces = min(len(one["stretches"]) or FEWEST_TESTS for one in lines)
    return Estimate(tuple(value for value, _ in known), text, pieces)


def _rise(one: Metric, start: Metric) -> Measured | None:
    """The relative increase of the last tokens' loss over that at the training length."""
    here, there = finite(one["last_loss"]), finite(start["last_loss"])
    if here is None or not there or there < 0:
        return None
    if one == start:
        return 0.0, ()
    rise = finite(here / there - 1)
    errors = [finite(one["last_error"]), finite(start["last_error"]), finite(start["loss_error"])]
    if rise is None:
        return None
    if None in errors:
        return rise, None
    of_one, of_start, of_level = (error or 0.0 for error in errors)
    # Both are the control's loss over all the text plus the difference of the last tokens from it. The correlation
    # of these three is not recorded, so their errors are summed, which is an upper bound.
    level = 0.0 if start["windowed_loss"] is None else abs(rise) * of_level
    return rise, (Error((of_one + abs(1 + rise) * of_start + level) / there),)


def _fall(one: Metric, start: Metric) -> Measured | None:
    """The decrease of the last answers' accuracy since the training length; two errors, as the questions differ."""
    here, there = finite(one.get("last_accuracy")), finite(start.get("last_accuracy"))
    if here is None or there is None:  # older records do not have these
        return None
    if one == start:
        return 0.0, ()
    errors = finite(start["last_accuracy_error"]), finite(one["last_accuracy_error"])
    if errors[0] is None or errors[1] is None:
        return there - here, None
    return there - here, (Error(errors[0], there), Error(errors[1], here))


def _positions(lines: Sequence[Metric]) -> tuple[Bin, ...]:
    """The bins that every seed has."""
    bins = defaultdict(list)
    for start, stop, loss, error in (row for one in lines for row in one["positions"]):
        if (found := _with_error(finite(loss), finite(error))) is not None:
            bins[int(start), int(stop)].append(found)
    return tuple(
        Bin(start, stop, estimate)
        for (start, stop), found in sorted(bins.items())
        if len(found) == len(lines) and (estimate := _estimate(found, lines))
    )


def _stretch(table: Mapping[int, Metric], start: Metric) -> Stretch | None:
    """Where the last tokens of one model cross the limit, interpolated linearly over log length."""
    train_length = int(start["length"])
    change, limit = (_rise, LOSS_RISE) if start["accuracy"] is None else (_fall, ACCURACY_FALL)
    reached: tuple[int, float] | None = None  # the last length within the limit, and the margin left
    for length, one in table.items():
        if length < train_length:
            continue
        factor = (reached[0] if reached else train_length) / train_length
        if one["refused"]:
            return Stretch(factor, "refused")
        changed = (math.inf,) if _is_broken(one) else change(one, start)
        if changed is None:
            return None
        past = changed[0] - limit
        if past > 0:
            if reached is None:
                return Stretch(0.0, "at once")
            last, before = reached
            return Stretch(factor * (length / last) ** (before / (before - past)), "crossed")
        reached = length, past
    return Stretch((reached[0] if reached else train_length) / train_length, "tested")


def _curve(runs: Sequence[Run], kind: str) -> tuple[tuple[int, Estimate], ...]:
    by_step = defaultdict(list)
    for one in (one for run in runs for one in run.of_kind(kind)):
        if finite(one["loss"]) is not None:
            by_step[int(one["step"])].append(one["loss"])
    # Without a step that some seeds lack, which would make the mean jump.
    return tuple(
        (step, Estimate(tuple(losses)))
        for step, losses in sorted(by_step.items())
        if len(losses) == len(runs)
    )


def _spikes(runs: Iterable[Run]) -> tuple[int, int]:
    """The number of gradient-norm spikes, and of logged steps."""
    spikes = steps = 0
    for run in runs:
        norms = [
            float(one["grad_norm"]) for one in run.of_kind("train") if one.get("grad_norm") is not None
        ]
        steps += len(norms)
        for index in range(_SPIKE_WINDOW, len(norms)):
            usual = statistics.median(norms[index - _SPIKE_WINDOW : index])
            spikes += not norms[index] <= SPIKE * usual  # NaN is a spike too
    return spikes, steps


def _settling(runs: Sequence[Run]) -> Settling | None:
    """The fall of the validation loss at the end of training, from the same step for every seed."""
    curve = _curve(runs, "validation")
    earlier = [point for point in curve if point[0] <= 0.8 * curve[-1][0]]
    if not earlier:
        return None
    (start, before), (stop, after) = earlier[-1], curve[-1]
    nats = [a - b for a, b in zip(before.values, after.values, strict=True)]
    shares = [fall / a if a else 0.0 for fall, a in zip(nats, before.values, strict=True)]
    return Settling(start, stop, Estimate(tuple(shares)), Estimate(tuple(nats)))
