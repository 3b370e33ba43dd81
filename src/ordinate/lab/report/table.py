"""The report's table: which measure stands in which column, as text and as a number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...entries import catalog
from ...text import Text
from .. import formats as words
from .estimate import Estimate
from .summary import ACCURACY_FALL, LOSS_RISE, SPIKE, Arm, Settling, Summary

_PLACES = {"none": "none", "embed": "embedding", "rotate": "rotation", "bias": "bias", "scaling": ""}


@dataclass(frozen=True)
class Cell:
    """What a reader sees, what a program sorts by, and the full story for who asks."""

    text: str
    value: Any = None
    note: str = ""


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
    """The columns for a comparison: those nothing was measured for are left out."""
    furthest = summary.lengths[-1]
    factor = words.times(furthest / summary.train_length)
    everyone = [*summary.arms, *summary.extensions]
    limit = f"before +{LOSS_RISE * 100:.0f} % loss"
    if summary.by_accuracy:
        limit = f"before −{ACCURACY_FALL * 100:.0f} points right"
    found = [
        Column(
            "stretch", "stretch", limit,
            f"How many times the training length the last {_last_tokens(summary)} tokens stay within "
            f"{LOSS_RISE * 100:.0f} % of the loss they have there (tasks: within {ACCURACY_FALL * 100:.0f} points of "
            "the accuracy; whole answers, where only those count), between tested lengths by interpolation; the "
            "range is over seeds.", lambda arm: Cell(arm.stretch, min((s.factor for s in arm.stretches), default=None)),
        ),
        Column(
            "rise", Text("rise at {length}", length=factor), "of the last tokens",
            f"The loss of the last {_last_tokens(summary)} tokens "
            f"of {furthest} over that of the last ones at the training length, by the same model; ± is half of a "
            "95 % interval over text and seeds together.", lambda arm: _rise(arm, furthest),
        ),
        Column(
            "accuracy", Text("accuracy at {length}", length=factor), "%",
            f"Share of right answers at {furthest} tokens, "
            "mean ± standard deviation over seeds.", lambda arm: _accuracy(arm, furthest),
        ),
        Column(
            "last_accuracy", Text("last answers at {length}", length=factor), "%",
            "Share of right answers among the last "
            f"{_last_tokens(summary)} tokens of {furthest}; ± is half of a 95 % interval over tests and seeds "
            "together.", lambda arm: _last_accuracy(arm, furthest),
        ),
        Column(
            "in_length_loss", "in-length loss", "nats per token", "Loss on unseen text at the training "
            "length, mean ± standard deviation over seeds.", _in_length,
        ),
        Column(
            "in_length_accuracy", "in-length accuracy", "%", "Share of right answers at the training "
            "length, mean ± standard deviation over seeds.", lambda arm: _accuracy(arm, arm.train_length),
        ),
        Column(
            "last_loss", Text("last tokens at {length}", length=factor), "nats per token",
            "The loss of the last "
            f"{_last_tokens(summary)} tokens of a sequence of {furthest}, set off against the same targets "
            f"with exactly the last {summary.train_length} tokens in view, so that it is of the same text as "
            "every other loss. The mean over a long text hides a cliff behind the easy beginning; this does "
            "not.", lambda arm: last_tokens(arm, furthest),
        ),
        Column(
            "gain", Text("extra context at {length}", length=factor), "nats per token",
            "Windowed control: the loss of the same "
            f"targets with exactly the last {summary.train_length} tokens in view, less the loss with all of "
            "the text, over targets that see more. Above 0 the model gains by the rest, near 0 it ignores it, "
            "below 0 it is harmed; ± is half of a 95 % interval. A scaling is held against the control of the "
            "model as it was trained.", lambda arm: _gain(arm, furthest),
        ),
        *(_variant(name, summary.train_length, furthest) for name in _variants(summary)),
        Column("type", "type", "", "Where the encoding acts, and whether it is learned.", _type),
        Column(
            "parameters", "parameters", "of the encoding", "Weights of the encoding alone; every model "
            "beside it is the same.", _parameters,
        ),
        Column(
            "operations", "operations", "per token", "Arithmetic the encoding adds per token at the "
            "training length, all layers together.", lambda arm: _cost(arm, "operations", words.count),
        ),
        Column(
            "bytes", "memory traffic", "per token", "Bytes the encoding adds to what is read and written "
            "per token at the training length.", lambda arm: _cost(arm, "bytes", words.size),
        ),
        Column(
            "spread", "spread over seeds", "% of the loss", "Standard deviation of the in-length loss over "
            "seeds: how much luck decides. One seed has none.", _spread,
        ),
        Column(
            "spikes", "gradient spikes", "of logged steps", f"Steps whose gradient norm is more than {SPIKE:g} "
            "times the median of the twenty logged before it, all seeds together.", _spikes,
        ),
        Column(
            "still_learning", "still learning", _since(summary), "What the end of training did to the "
            "validation loss; if that is much, the arm was stopped early, if little, it had come to rest, be it "
            "on a plateau.", _still_learning,
        ),
        Column(
            "tokens_per_second", "speed", "tokens/s", "Tokens trained on per second.", _speed,
        ),
        Column(
            "peak_memory_bytes", "memory", "peak", "Largest memory while training, all seeds.",
            lambda arm: Cell(words.size(arm.peak_memory_bytes), arm.peak_memory_bytes),
        ),
    ]  # fmt: skip
    silent = (words.NOTHING, "refused")
    return [column for column in found if any(column.cell(arm).text not in silent for arm in everyone)]


def as_data(summary: Summary) -> list[dict[str, Any]]:
    """Everything measured, for a program: one object an arm, every length in it."""
    return [_arm_data(arm) for arm in (*summary.arms, *summary.extensions)]


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
        "still_learning": _settling_data(arm.settling),
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
                    {"start": start, "stop": stop, **loss.to_dict(), "margin": loss.margin()}
                    for start, stop, loss in one.positions
                ],
                "refused": one.refused,
            }
            for one in arm.evaluations
        ],
    }


def _data(value: Estimate | None, margin: bool = False) -> dict[str, float | int | None] | None:
    """An estimate and, where there is such a thing, half of its 95 % interval."""
    if value is None:
        return None
    return {**value.to_dict(), "margin": value.margin()} if margin else value.to_dict()


def _settling_data(settling: Settling | None) -> dict[str, Any] | None:
    if settling is None:
        return None
    steps = {"from_step": settling.start, "to_step": settling.stop, "learning": settling.learning}
    return {**steps, "share": settling.share.to_dict(), "nats": settling.nats.to_dict()}


def _type(arm: Arm) -> Cell:
    names = [part.partition(":")[0].strip().lower() for part in arm.spec.split("+")]
    entries = [catalog[name] for name in names if name in catalog]
    places = [_PLACES[entry.hook] for entry in entries if _PLACES[entry.hook]]
    if not places:
        return Cell(words.NOTHING)
    kind = "" if places == ["none"] else ", learned" if any(e.learned for e in entries) else ", fixed"
    return Cell(" + ".join(places) + kind, " + ".join(places) + kind)


def _parameters(arm: Arm) -> Cell:
    own, whole = arm.cost.get("encoding_parameters"), arm.cost.get("parameters")
    if own is None:
        return Cell(words.NOTHING)
    return Cell(words.count(own), own, f"{own:,} of {whole:,} in the whole model" if whole else "")


def _cost(arm: Arm, key: str, written: Callable[[float], str]) -> Cell:
    value = arm.cost.get(key)
    if not isinstance(value, (int, float)):
        return Cell(words.NOTHING)
    return Cell(written(value), value, f"{value:,}")


def _in_length(arm: Arm) -> Cell:
    one = arm.in_length
    if one is None or one.loss is None:
        return Cell(words.NOTHING)
    note = f"perplexity {one.perplexity:.3g}" if one.perplexity is not None else ""
    return Cell(one.loss.written(), one.loss.mean, note)


def _accuracy(arm: Arm, length: int) -> Cell:
    one = arm.at.get(length)
    if one is not None and one.refused:
        return Cell("refused", None, one.refused)
    if one is None or one.accuracy is None:
        return Cell(words.NOTHING)
    scaled = Estimate(tuple(100 * value for value in one.accuracy.values))
    return Cell(scaled.written(1), one.accuracy.mean)


def _last_accuracy(arm: Arm, length: int) -> Cell:
    one = arm.at.get(length)
    if one is not None and one.refused:
        return Cell("refused", None, one.refused)
    if one is None or one.last_accuracy is None or one.last_accuracy == one.accuracy:
        return Cell(words.NOTHING)
    margin = one.last_accuracy.margin()
    off = "" if margin is None else f" ± {margin * 100:.1f}"
    return Cell(f"{one.last_accuracy.mean * 100:.1f}{off}", one.last_accuracy.mean)


def _spread(arm: Arm) -> Cell:
    loss = arm.in_length.loss if arm.in_length else None
    if loss is None:
        return Cell(words.NOTHING)
    if loss.spread is None:
        return Cell("one seed", None, "a spread needs at least two seeds")
    share = loss.spread / loss.mean if loss.mean else 0.0
    return Cell(f"{share * 100:.2f}", share, words.plural(len(loss.values), "seed"))


def _spikes(arm: Arm) -> Cell:
    spikes, steps = arm.spikes
    if not steps:
        return Cell(words.NOTHING)
    note = f"{spikes} of {steps:,} logged steps"
    if arm.diverged:
        note += f"; diverged with seed {words.listed([str(seed) for seed in arm.diverged])}"
    return Cell(f"{spikes}" + (" and diverged" if arm.diverged else ""), spikes, note)


def _still_learning(arm: Arm) -> Cell:
    if arm.settling is None:
        return Cell(words.NOTHING)
    share, nats = arm.settling.share.mean, arm.settling.nats.mean
    return Cell(
        words.signed(-nats), nats, f"{words.percent(-share)} of the loss at step {arm.settling.start}"
    )


def _since(summary: Summary) -> str:
    return next((f"nats since step {arm.settling.start}" for arm in summary.arms if arm.settling), "")


def _rise(arm: Arm, length: int) -> Cell:
    one = arm.at.get(length)
    if one is not None and one.refused:
        return Cell("refused", None, one.refused)
    # On tasks the loss in length may be next to nothing, and a multiple of that says nothing.
    if one is None or one.rise is None or one.loss is None or one.accuracy is not None:
        return Cell(words.NOTHING)
    text = words.percent(one.rise.mean)
    if margin := one.rise.margin():
        text = f"{text.removesuffix(' %')} ± {margin * 100:.1f} %"
    return Cell(text, one.rise.mean, f"loss {one.loss.written()}")


def _gain(arm: Arm, length: int) -> Cell:
    one = arm.at.get(length)
    if one is not None and one.refused:
        return Cell("refused", None, one.refused)
    if one is None or one.gain is None or length == arm.train_length:
        return Cell(words.NOTHING)
    half = one.gain.margin()
    margin = "" if half is None else f" ± {half:.3f}"
    return Cell(words.signed(one.gain.mean) + margin, one.gain.mean)


def _last_tokens(summary: Summary) -> int:
    return int(summary.gathered.sweep.settings["last_tokens"])


def last_tokens(arm: Arm, length: int) -> Cell:
    """The loss of the last tokens of a sequence."""
    one = arm.at.get(length)
    if one is not None and one.refused:
        return Cell("refused", None, one.refused)
    if one is None or one.last_loss is None or one.accuracy is not None:
        return Cell(words.NOTHING)
    half = one.last_loss.margin()
    margin = "" if half is None else f" ± {half:.3f}"
    return Cell(f"{one.last_loss.mean:.3f}{margin}", one.last_loss.mean)


def _variants(summary: Summary) -> list[str]:
    names = (name for arm in summary.arms for one in arm.evaluations for name in one.variants)
    return list(dict.fromkeys(names))


def _variant(name: str, here: int, there: int) -> Column:
    """The share of right answers on a further test set, at the training length and at the longest."""

    def cell(arm: Arm) -> Cell:
        found = [
            one.variants.get(name) if (one := arm.at.get(length)) else None for length in (here, there)
        ]
        if all(share is None for share in found):
            return Cell(words.NOTHING)
        texts = [words.NOTHING if share is None else f"{share.mean * 100:.1f}" for share in found]
        return Cell(" → ".join(texts), None if found[1] is None else found[1].mean)

    return Column(
        name, name, f"% at {here} → {there}", f"Share of right answers on the test set “{name}”.", cell
    )


def _speed(arm: Arm) -> Cell:
    if arm.tokens_per_second is None:
        return Cell(words.NOTHING)
    mean = arm.tokens_per_second.mean
    return Cell(words.count(mean), mean, f"{mean:,.0f} tokens/s")
