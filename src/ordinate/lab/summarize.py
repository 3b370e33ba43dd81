"""Runs into arms: every measure of an encoding over its seeds, and nothing that is not in the records."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from . import margins
from .estimate import Estimate
from .gather import Gathered, Run, finite
from .records import Metric
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
from .tasks import FEWEST_TESTS

_SPIKE_WINDOW = 20


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
    unlearned = tuple(run.seed for run in sound if not _has_learned(run, starts[run.seed]))
    costs = [run.of_kind("cost")[-1] for run in runs if run.of_kind("cost")]
    memory = [cost["peak_memory_bytes"] for cost in costs if cost.get("peak_memory_bytes")]
    return Arm(
        spec=runs[0].spec,
        extension=extension,
        seeds=tuple(kept),
        diverged=diverged,
        unlearned=unlearned,
        train_length=train_length,
        evaluations=_merge(kept or tables, starts),
        stretches=tuple(
            _stretch(table, start)
            for seed, table in kept.items()
            if not unlearned and (start := starts[seed]) and finite(start["loss"]) is not None
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
    """Length → record, of the last time it was evaluated."""
    found = [one for one in run.of_kind("evaluation") if one.get("extension") == extension]
    return {int(one["length"]): one for one in sorted(found, key=lambda one: int(one["length"]))}


def _has_learned(run: Run, start: Metric | None) -> bool:
    """Whether an in-length evaluation is that of a model which has learned its task."""
    loss = None if start is None else finite(start["loss"])
    if start is None or loss is None:
        return True  # nothing says otherwise
    if start["accuracy"] is not None and start["accuracy"] < LEARNED:
        return False
    return all(loss < one["loss"] for one in run.of_kind("baseline") if finite(one["loss"]))


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
    rises, rise_margins = [], []
    for one, start in here:
        loss, in_length = finite(one["loss"]), finite(start["loss"]) if start else None
        if start and loss is not None and in_length:
            rises.append(loss / in_length - 1)
            rise_margins.append(
                0.0 if one is start else margins.of_rise(one["stretches"], start["stretches"])
            )
    lines = [one for one, _ in here]
    estimates = {
        name: Estimate.of(finite(one[name]) for one in lines)
        for name in ("loss", "last_loss", "accuracy", "gain")
    }
    rise = Estimate.of(rises)
    return Evaluation(
        length=length,
        loss=estimates["loss"],
        stretches=tuple(tuple(one["stretches"]) for one in lines),
        last_loss=estimates["last_loss"],
        last_margin=_margin(estimates["last_loss"], _margins(lines, "last_error")),
        accuracy=estimates["accuracy"],
        accuracy_margin=_margin(estimates["accuracy"], _margins(lines, "accuracy_error")),
        rise=rise,
        rise_margin=_margin(rise, rise_margins),
        gain=estimates["gain"],
        gain_margin=_margin(estimates["gain"], _margins(lines, "gain_error")),
        positions=_positions(lines),
        variants={
            name: Estimate(tuple(one["variants"][name][0] for one in lines))
            for name in lines[0]["variants"]
            if all(name in one["variants"] for one in lines)
        },
    )


def _margins(lines: Sequence[Metric], name: str) -> list[float | None]:
    return [margins.of_mean(finite(one[name]), _independent(one)) for one in lines]


def _independent(one: Metric) -> int:
    """How many stretches of text a line is of; or sequences, of which a task has at least that many."""
    return len(one["stretches"]) or FEWEST_TESTS


def _margin(estimate: Estimate | None, of_text: Sequence[float | None]) -> float | None:
    """The wider of the interval over seeds and the widest of one seed's over the text."""
    known = [margin for margin in of_text if margin is not None]
    if estimate is None or len(known) < len(of_text) or not known:
        return None
    return max(*known, estimate.margin or 0.0)


def _positions(lines: Sequence[Metric]) -> tuple[Bin, ...]:
    """The bins that every seed has."""
    bins: dict[tuple[int, int], list[tuple[float, float | None]]] = {}
    for one in lines:
        for start, stop, loss, error in one["positions"]:
            if finite(loss) is not None:
                margin = margins.of_mean(finite(error), _independent(one))
                bins.setdefault((int(start), int(stop)), []).append((loss, margin))
    found = []
    for (start, stop), of_seeds in sorted(bins.items()):
        if len(of_seeds) == len(lines):
            loss = Estimate(tuple(loss for loss, _ in of_seeds))
            found.append(Bin(start, stop, loss, _margin(loss, [margin for _, margin in of_seeds])))
    return tuple(found)


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
        for one in run.of_kind(kind):
            if finite(one["loss"]) is not None:
                by_step.setdefault(int(one["step"]), []).append(one["loss"])
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


def _settling(runs: Sequence[Run]) -> Settling | None:
    """What the end of training took off the validation loss, from the same step on for every seed."""
    curve = _curve(runs, "validation")
    if not curve:
        return None
    stop, after = curve[-1]
    earlier = [(step, loss) for step, loss in curve if step <= 0.8 * stop]
    if not earlier:
        return None
    start, before = earlier[-1]
    nats = [a - b for a, b in zip(before.values, after.values, strict=True)]
    shares = [fall / a if a else 0.0 for fall, a in zip(nats, before.values, strict=True)]
    return Settling(start, stop, Estimate(tuple(shares)), Estimate(tuple(nats)))
