"""The report's columns: the name of each, its meaning, and its cell for an arm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...entries import catalog
from ...text import Text
from .. import formats
from .estimate import Estimate
from .summary import ACCURACY_FALL, LOSS_RISE, SPIKE, Arm, Evaluation, Settling, Summary

_PLACES = {"none": "none", "embed": "embedding", "rotate": "rotation", "bias": "bias", "scaling": ""}


@dataclass(frozen=True)
class Cell:
    """The text that a reader sees, the value to sort by, and a note with details."""

    text: str
    value: Any = None
    note: str = ""


NOT_MEASURED = Cell(formats.NOTHING)


@dataclass(frozen=True)
class Column:
    """One measure.

    Attributes:
        meaning: One sentence; the report lists it below the table.
    """

    key: str
    title: str
    unit: str
    meaning: str
    cell: Callable[[Arm], Cell]


def columns(summary: Summary) -> list[Column]:
    """The columns of a comparison that have values."""
    variants = dict.fromkeys(
        name for arm in summary.arms for one in arm.evaluations for name in one.variants
    )
    ends = summary.train_length, summary.lengths[-1]
    found = [*_by_length(summary), *(_variant(name, *ends) for name in variants), *_by_arm(summary)]
    silent = (formats.NOTHING, "refused")
    return [
        column
        for column in found
        if any(column.cell(arm).text not in silent for arm in summary.all_arms)
    ]


def _by_length(summary: Summary) -> list[Column]:
    """Columns with measures at the training length and at the longest length."""
    furthest = summary.lengths[-1]
    factor = formats.times(furthest / summary.train_length)
    last = summary.last_tokens
    limit = f"before +{LOSS_RISE * 100:.0f} % loss"
    if summary.by_accuracy:
        limit = f"before −{ACCURACY_FALL * 100:.0f} points right"
    return [
        Column(
            "stretch", "stretch", limit,
            f"How many times the training length the last {last} tokens stay within "
            f"{LOSS_RISE * 100:.0f} % of the loss they have there (tasks: within {ACCURACY_FALL * 100:.0f} points of "
            "the accuracy; whole answers, where only those count), between tested lengths by interpolation; the "
            "range is over seeds.", lambda arm: Cell(arm.stretch, min((s.factor for s in arm.stretches), default=None)),
        ),
        Column(
            "rise", Text("rise at {length}", length=factor), "of the last tokens",
            f"The loss of the last {last} tokens of {furthest} over that of the last ones at the training length, by "
            "the same model; ± is half of a 95 % interval over text and seeds together.",
            lambda arm: at_length(arm, furthest, _rise),
        ),
        Column(
            "accuracy", Text("accuracy at {length}", length=factor), "%",
            f"Share of right answers at {furthest} tokens, mean ± standard deviation over seeds.",
            lambda arm: at_length(arm, furthest, _accuracy),
        ),
        Column(
            "last_accuracy", Text("last answers at {length}", length=factor), "%",
            f"Share of right answers among the last {last} tokens of {furthest}; ± is half of a 95 % interval "
            "over tests and seeds together.", lambda arm: at_length(arm, furthest, _last_accuracy),
        ),
        Column(
            "in_length_loss", "in-length loss", "nats per token", "Loss on unseen text at the training "
            "length, mean ± standard deviation over seeds.", _in_length,
        ),
        Column(
            "in_length_accuracy", "in-length accuracy", "%", "Share of right answers at the training "
            "length, mean ± standard deviation over seeds.", lambda arm: at_length(arm, arm.train_length, _accuracy),
        ),
        Column(
            "last_loss", Text("last tokens at {length}", length=factor), "nats per token", "The loss of the last "
            f"{last} tokens of a sequence of {furthest}: the mean loss of the control, which has exactly the last "
            f"{summary.train_length} tokens in view, plus the mean difference from the control on the same targets, so "
            "that all losses are of the same text. The mean over a long text hides a sudden rise behind the easy "
            "beginning; this column does not.", lambda arm: at_length(arm, furthest, last_tokens),
        ),
        Column(
            "gain", Text("extra context at {length}", length=factor), "nats per token",
            "Windowed control: the loss of the same targets with exactly the last "
            f"{summary.train_length} tokens in view, less the loss with all of the text, over targets that see more. "
            "Above 0 the extra context helps, near 0 the model ignores it, below 0 it does harm; ± is half of a 95 % "
            "interval. A scaling is compared with the control of the model as it was trained.",
            lambda arm: at_length(arm, furthest, _gain),
        ),
    ]  # fmt: skip


def _by_arm(summary: Summary) -> list[Column]:
    """Columns with an arm's name, its cost, and its training."""
    since = next((f"nats since step {arm.settling.start}" for arm in summary.arms if arm.settling), "")
    return [
        Column("type", "type", "", "Where the encoding acts, and whether it is learned.", _type),
        Column(
            "parameters", "parameters", "of the encoding", "Weights of the encoding alone; the rest of "
            "the model is the same in every arm.", _parameters,
        ),
        Column(
            "operations", "operations", "per token", "Arithmetic the encoding adds per token at the "
            "training length, all layers together.", lambda arm: _cost(arm, "operations", formats.count),
        ),
        Column(
            "bytes", "memory traffic", "per token", "Bytes the encoding adds to what is read and written "
            "per token at the training length.", lambda arm: _cost(arm, "bytes", formats.size),
        ),
        Column(
            "spread", "spread over seeds", "% of the loss", "Standard deviation of the in-length loss over "
            "seeds. One seed has none.", _spread,
        ),
        Column(
            "spikes", "gradient spikes", "of logged steps", f"Steps whose gradient norm is more than {SPIKE:g} "
            "times the median of the twenty logged before it, all seeds together.", _spikes,
        ),
        Column(
            "still_learning", "still learning", since, "How much the validation loss changed at "
            "the end of training. A large fall means that the arm was stopped early; a small one, that its loss had "
            "settled, perhaps on a plateau.", _still_learning,
        ),
        Column(
            "tokens_per_second", "speed", "tokens/s", "Tokens trained on per second.", _speed,
        ),
        Column(
            "peak_memory_bytes", "memory", "peak", "Largest memory while training, all seeds.",
            lambda arm: Cell(formats.size(arm.peak_memory_bytes), arm.peak_memory_bytes),
        ),
    ]  # fmt: skip


def as_data(summary: Summary) -> list[dict[str, Any]]:
    """All measures as data: one object per arm, with every length."""
    return [_arm_data(arm) for arm in summary.all_arms]


def _arm_data(arm: Arm) -> dict[str, Any]:
    return {
        "encoding": arm.spec,
        "extension": arm.extension,
        "type": _type(arm).text,
        "seeds": list(arm.seeds),
        "diverged_seeds": list(arm.diverged),
        "learned": arm.learned,
        "parameters": arm.cost.get("parameters"),
        "encoding_parameters": arm.cost.get("encoding_parameters"),
        "operations": arm.cost.get("operations"),
        "bytes": arm.cost.get("bytes"),
        "in_length_loss": _data(arm.in_length.loss if arm.in_length else None),
        "gradient_spikes": {"spikes": arm.spikes[0], "logged_steps": arm.spikes[1]},
        "unlearned_seeds": list(arm.unlearned),
        "still_learning": arm.settling and _settling_data(arm.settling),
        "stretch": [{"factor": one.factor, "end": one.end} for one in arm.stretches],
        "tokens_per_second": _data(arm.tokens_per_second),
        "peak_memory_bytes": arm.peak_memory_bytes,
        "lengths": [
            {
                "length": one.length,
                "loss": _data(one.loss),
                "perplexity": one.perplexity,
                "last_loss": _data(one.last_loss, margin=True),
                "rise": _data(one.rise, margin=True),
                "windowed_gain": _data(one.gain, margin=True),
                "accuracy": _data(one.accuracy, margin=True),
                "last_accuracy": _data(one.last_accuracy, margin=True),
                "fall": _data(one.fall, margin=True),
                "variants": {name: _data(share) for name, share in one.variants.items()},
                "positions": [
                    {"start": start, "stop": stop, **loss.to_dict(margin=True)}
                    for start, stop, loss in one.positions
                ],
                "refused": one.refused,
            }
            for one in arm.evaluations
        ],
    }


def _data(value: Estimate | None, margin: bool = False) -> dict[str, float | int | None] | None:
    return None if value is None else value.to_dict(margin)


def _settling_data(settling: Settling) -> dict[str, Any]:
    steps = {"from_step": settling.start, "to_step": settling.stop, "learning": settling.learning}
    return {**steps, "share": settling.share.to_dict(), "nats": settling.nats.to_dict()}


# Cells


def at_length(arm: Arm, length: int, cell: Callable[[Evaluation], Cell | None]) -> Cell:
    """The result of ``cell`` for the evaluation at one length, if it exists and was not refused."""
    one = arm.at.get(length)
    if one is not None and one.refused:
        return Cell("refused", None, one.refused)
    return (cell(one) if one is not None else None) or NOT_MEASURED


def loss(one: Evaluation) -> Cell | None:
    """The loss over all tokens."""
    return None if one.loss is None else Cell(one.loss.written(), one.loss.mean)


def last_tokens(one: Evaluation) -> Cell | None:
    """The loss of the last tokens of a sequence."""
    found = one.last_loss
    if found is None or one.accuracy is not None:
        return None
    return Cell(f"{found.mean:.3f}{found.plus_minus(3)}", found.mean)


def _rise(one: Evaluation) -> Cell | None:
    # On tasks the in-length loss may be close to 0, so a multiple of it is meaningless.
    if one.rise is None or one.loss is None or one.accuracy is not None:
        return None
    text = formats.percent(one.rise.mean)
    if one.rise.margin():
        text = f"{text.removesuffix(' %')}{one.rise.plus_minus(1, 100)} %"
    return Cell(text, one.rise.mean, f"loss {one.loss.written()}")


def _accuracy(one: Evaluation) -> Cell | None:
    if one.accuracy is None:
        return None
    percent = Estimate(tuple(100 * value for value in one.accuracy.values))
    return Cell(percent.written(1), one.accuracy.mean)


def _last_accuracy(one: Evaluation) -> Cell | None:
    share = one.last_accuracy
    if share is None or share == one.accuracy:
        return None
    return Cell(f"{share.mean * 100:.1f}{share.plus_minus(1, 100)}", share.mean)


def _gain(one: Evaluation) -> Cell | None:
    if one.gain is None:
        return None
    return Cell(formats.signed(one.gain.mean) + one.gain.plus_minus(3), one.gain.mean)


def _variant(name: str, here: int, there: int) -> Column:
    """The share of right answers on a further test set, at the training length and at the longest."""

    def cell(arm: Arm) -> Cell:
        found = [
            one.variants.get(name) if (one := arm.at.get(length)) else None for length in (here, there)
        ]
        if all(share is None for share in found):
            return NOT_MEASURED
        texts = [formats.NOTHING if share is None else f"{share.mean * 100:.1f}" for share in found]
        return Cell(" → ".join(texts), None if found[1] is None else found[1].mean)

    return Column(
        name, name, f"% at {here} → {there}", f"Share of right answers on the test set “{name}”.", cell
    )


def _in_length(arm: Arm) -> Cell:
    one = arm.in_length
    if one is None or one.loss is None:
        return NOT_MEASURED
    note = f"perplexity {one.perplexity:.3g}" if one.perplexity is not None else ""
    return Cell(one.loss.written(), one.loss.mean, note)


def _type(arm: Arm) -> Cell:
    names = [part.partition(":")[0].strip().lower() for part in arm.spec.split("+")]
    entries = [catalog[name] for name in names if name in catalog]
    places = [_PLACES[entry.hook] for entry in entries if _PLACES[entry.hook]]
    if not places:
        return NOT_MEASURED
    kind = "" if places == ["none"] else ", learned" if any(e.learned for e in entries) else ", fixed"
    return Cell(" + ".join(places) + kind, " + ".join(places) + kind)


def _parameters(arm: Arm) -> Cell:
    own, whole = arm.cost.get("encoding_parameters"), arm.cost.get("parameters")
    if own is None:
        return NOT_MEASURED
    return Cell(formats.count(own), own, f"{own:,} of {whole:,} in the whole model" if whole else "")


def _cost(arm: Arm, key: str, written: Callable[[float], str]) -> Cell:
    value = arm.cost.get(key)
    if not isinstance(value, (int, float)):
        return NOT_MEASURED
    return Cell(written(value), value, f"{value:,}")


def _spread(arm: Arm) -> Cell:
    found = arm.in_length.loss if arm.in_length else None
    if found is None:
        return NOT_MEASURED
    if found.spread is None:
        return Cell("one seed", None, "a spread needs at least two seeds")
    share = found.spread / found.mean if found.mean else 0.0
    return Cell(f"{share * 100:.2f}", share, formats.plural(len(found.values), "seed"))


def _spikes(arm: Arm) -> Cell:
    spikes, steps = arm.spikes
    if not steps:
        return NOT_MEASURED
    note = f"{spikes} of {steps:,} logged steps"
    if arm.diverged:
        note += f"; diverged with seed {formats.numbers(arm.diverged)}"
    return Cell(f"{spikes}" + (" and diverged" if arm.diverged else ""), spikes, note)


def _still_learning(arm: Arm) -> Cell:
    if arm.settling is None:
        return NOT_MEASURED
    share, nats = arm.settling.share.mean, arm.settling.nats.mean
    note = f"{formats.percent(-share)} of the loss at step {arm.settling.start}"
    return Cell(formats.signed(-nats), nats, note)


def _speed(arm: Arm) -> Cell:
    if arm.tokens_per_second is None:
        return NOT_MEASURED
    mean = arm.tokens_per_second.mean
    return Cell(formats.count(mean), mean, f"{mean:,.0f} tokens/s")
