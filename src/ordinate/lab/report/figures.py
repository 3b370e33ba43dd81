"""What the report draws, as data: the same curves become a picture and a part of the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from .. import formats as words
from .estimate import Estimate
from .summary import Arm, Evaluation, Summary

# Okabe and Ito's colours without black and yellow, which one of two backgrounds would swallow, each for
# a light and a dark page; told apart also by those who see no red or no green.
COLOURS = (
    ("#0072b2", "#4aa8e0"),  # blue
    ("#d55e00", "#f2803a"),  # vermilion
    ("#009e73", "#1fc79a"),  # green
    ("#cc79a7", "#e39ac3"),  # purple
    ("#b07800", "#e6a817"),  # orange
    ("#56b4e9", "#8fd0f7"),  # sky
)
GREY = ("#767676", "#9a9a9a")  # the control: no position at all


# With fewer numbers an axis cannot be read.
_FEWEST_TICKS = 4

# Training losses jump from batch to batch; so many means show where they go.
_TRAINING_POINTS = 60


@dataclass(frozen=True)
class Style:
    """How an arm looks in every figure; colour is never the only difference."""

    colours: tuple[str, str]
    marker: int
    dash: int


@dataclass(frozen=True)
class Curve:
    """One line with a band around it: one standard deviation over seeds, or what the caption says.

    Attributes:
        end: A remark at its last point, such as why it stops there.
    """

    label: str
    style: Style
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    end: str = ""


@dataclass(frozen=True)
class Chart:
    """One figure.

    Attributes:
        key: Its file's name.
        caption: What to look at.
        log_x, log_y: Whether an axis is logarithmic; lengths are so to the base 2.
        train_length: Where to draw the line between what was trained on and what was not.
        levels: Horizontal lines, by what they mean.
        y_range: The y axis from here to there; None for what the curves need.
        ticks, y_ticks: Where the axes have their numbers; empty for anywhere.
    """

    key: str
    title: str
    caption: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    log_x: bool = False
    log_y: bool = False
    train_length: int | None = None
    levels: dict[str, float] = field(default_factory=dict)
    ticks: tuple[int, ...] = ()
    y_range: tuple[float, float] | None = None

    @property
    def y_ticks(self) -> tuple[float, ...]:
        """Round numbers along a logarithmic axis: the fewest that are enough to read it by."""
        if not self.log_y:
            return ()
        low = min([*self.levels.values(), *(min(curve.low) for curve in self.curves)])
        high = max([*self.levels.values(), *(max(curve.high) for curve in self.curves)])
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for steps in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7)):
            found = [float(f"{step * 10.0**power:.3g}") for power in powers for step in steps]
            within = tuple(tick for tick in found if low <= tick <= high)
            if len(within) >= _FEWEST_TICKS:
                return within
        # Not even half a decade: equal steps, the coarsest that are enough.
        step = 10.0 ** math.ceil(math.log10(max(high - low, 1e-9 * high)))
        while True:
            for part in (1, 2, 5):
                size = step / part
                ticks = range(math.ceil(low / size), math.floor(high / size) + 1)
                if len(ticks) >= _FEWEST_TICKS or size < 1e-9 * high:
                    return tuple(float(f"{tick * size:.12g}") for tick in ticks) or (low,)
            step /= 10


def charts(summary: Summary) -> list[Chart]:
    """Every figure there are numbers for."""
    styles = _styles(summary.arms)
    found = [
        _accuracy(summary, styles) if summary.by_accuracy else None,
        _perplexity(summary, styles),
        _positions(summary, styles),
        _gain(summary, styles),
        _extensions(summary, styles),
        _training(summary, styles),
    ]
    return [chart for chart in found if chart is not None and chart.curves]


def _styles(arms: Sequence[Arm]) -> dict[str, Style]:
    styles, number = {}, 0
    for arm in arms:
        if arm.label in ("none", "nope"):
            styles[arm.label] = Style(GREY, 0, 1)
        else:
            again = number // len(COLOURS)  # more arms than colours: the dashes tell them apart
            styles[arm.label] = Style(COLOURS[number % len(COLOURS)], number + 1, 2 * again % 4)
            number += 1
    return styles


Measure = Callable[[Evaluation], Estimate | None]


def _by_length(arm: Arm, style: Style, measure: Measure, scale: Callable[[float], float]) -> Curve:
    points = [(one.length, value) for one in arm.evaluations if (value := measure(one)) is not None]
    refusal = arm.refusal
    return Curve(
        label=arm.label,
        style=style,
        x=tuple(length for length, _ in points),
        y=tuple(scale(value.mean) for _, value in points),
        low=tuple(scale(value.mean - (value.spread or 0)) for _, value in points),
        high=tuple(scale(value.mean + (value.spread or 0)) for _, value in points),
        end=f"refused from {refusal.length}" if refusal else "",
    )


def _with_margins(curve: Curve, values: Sequence[Estimate]) -> Curve:
    """The same with another band: half of a 95 % interval to each side."""
    pairs = [(y, value.margin()) for y, value in zip(curve.y, values, strict=True)]
    return replace(
        curve,
        low=tuple(y - (margin or 0) for y, margin in pairs),
        high=tuple(y + (margin or 0) for y, margin in pairs),
    )


def _perplexity_of(loss: float) -> float:
    """e to the loss, for an axis from 1, below which no band makes sense, to 1e87, above which no model does."""
    return math.exp(max(0.0, min(loss, 200.0)))


def _perplexity(summary: Summary, styles: dict[str, Style]) -> Chart:
    curves = [
        _by_length(arm, styles[arm.label], lambda one: one.loss, _perplexity_of) for arm in summary.arms
    ]
    return Chart(
        "perplexity",
        "Perplexity against length",
        f"Each model was trained at {summary.train_length} tokens and is tested, unchanged, at every "
        f"length. Lower is better, flat is holding. {_bands(summary)}",
        "length tested at (tokens)",
        "perplexity per token",
        tuple(curve for curve in curves if curve.x),
        log_x=True,
        log_y=True,
        train_length=summary.train_length,
        levels={one.name: _perplexity_of(one.loss) for one in summary.baselines.values()},
        ticks=summary.lengths,
    )


def _accuracy(summary: Summary, styles: dict[str, Style]) -> Chart:
    curves = [
        _by_length(arm, styles[arm.label], lambda one: one.accuracy, lambda share: 100 * share)
        for arm in summary.arms
    ]
    return Chart(
        "accuracy",
        "Right answers against length",
        f"The share of right answers of the task “{summary.task}”. {_bands(summary)}",
        "length tested at (tokens)",
        "right answers (%)",
        tuple(curve for curve in curves if curve.x),
        log_x=True,
        train_length=summary.train_length,
        ticks=summary.lengths,
        y_range=(-3, 103),
    )


def _positions(summary: Summary, styles: dict[str, Style]) -> Chart:
    curves = []
    for arm in summary.arms:
        one = arm.furthest
        if one is None or not one.positions:
            continue
        middles = tuple((each.start + each.stop) / 2 for each in one.positions)
        losses = [each.loss for each in one.positions]
        curve = _band(arm, styles[arm.label], middles, losses, _stops(arm, summary))
        curves.append(_with_margins(curve, losses))
    control = (
        ""
        if summary.by_accuracy
        else "Every position is compared on the same text: a point is off the model's loss with exactly the "
        f"last {summary.train_length} tokens in view by what its own targets are off it. "
    )
    return Chart(
        "positions",
        "Loss by position in the text",
        f"Where in a sequence of {summary.lengths[-1]} tokens the loss comes from. At the start everyone lacks "
        f"context; past the dashed line lie positions no model saw in training. {control}Bands are 95 % "
        "intervals, over text and seeds together.",
        "position in the sequence (tokens)",
        "loss (nats per token)",
        tuple(curves),
        log_x=True,
        train_length=summary.train_length,
    )


def _stops(arm: Arm, summary: Summary) -> str:
    one = arm.furthest
    return f"tested at {one.length}" if one is not None and one.length != summary.lengths[-1] else ""


def _gain(summary: Summary, styles: dict[str, Style]) -> Chart:
    curves = []
    for arm in summary.arms:
        curve = _by_length(arm, styles[arm.label], lambda one: one.gain, lambda gain: gain)
        measured = [one.gain for one in arm.evaluations if one.gain is not None]
        curves += [_with_margins(curve, measured)] if curve.x else []
    return Chart(
        "context",
        "What the extra context is worth",
        f"The loss of the same targets with exactly the last {summary.train_length} tokens in view, less the loss "
        "with all of the text, over targets that see more. Above zero the model makes use of the rest; at zero "
        "it ignores it, and a flat perplexity is no merit; below zero it is harmed. Bands are 95 % intervals, "
        "over text and seeds together.",
        "length tested at (tokens)",
        "loss saved (nats per token)",
        tuple(curves),
        log_x=True,
        train_length=summary.train_length,
        levels={"ignored": 0.0},
        ticks=summary.lengths,
    )


def _extensions(summary: Summary, styles: dict[str, Style]) -> Chart:
    extended = {arm.spec for arm in summary.extensions}
    bases = [arm for arm in summary.arms if arm.spec in extended]
    shown = [_by_length(arm, styles[arm.label], lambda one: one.loss, _perplexity_of) for arm in bases]
    # The base keeps its colour; its extensions start from the others.
    free = [pair for pair in COLOURS if pair not in [styles[arm.label].colours for arm in bases]]
    for number, arm in enumerate(summary.extensions):
        style = Style(free[number % len(free)], number + 1, 1 + number // len(free) % 3)
        shown.append(_by_length(arm, style, lambda one: one.loss, _perplexity_of))
    return Chart(
        "extensions",
        "Stretched without training",
        "The trained model as it is, and with its frequencies rescaled for evaluation alone: not one weight "
        f"is changed. {_bands(summary)}",
        "length tested at (tokens)",
        "perplexity per token",
        tuple(curve for curve in shown if curve.x) if summary.extensions else (),
        log_x=True,
        log_y=True,
        train_length=summary.train_length,
        ticks=summary.lengths,
    )


def _training(summary: Summary, styles: dict[str, Style]) -> Chart:
    curves, width = [], 1
    for arm in summary.arms:
        width = max(1, len(arm.training) // _TRAINING_POINTS)
        points = [_mean_step(arm.training[at : at + width]) for at in range(0, len(arm.training), width)]
        steps = tuple(step for step, _ in points)
        curves.append(_band(arm, styles[arm.label], steps, [loss for _, loss in points], ""))
    mean = f", each point the mean of {width} logged steps" if width > 1 else ""
    return Chart(
        "training",
        "Training",
        f"The training loss{mean}. Every arm has the same model, the same batches in the same "
        f"order and the same number of steps. {_bands(summary)}",
        "step",
        "training loss (nats per token)",
        tuple(curve for curve in curves if curve.x),
        levels={one.name: one.loss for one in summary.baselines.values()},
    )


def _mean_step(points: Sequence[tuple[int, Estimate]]) -> tuple[float, Estimate]:
    """Neighbouring steps as one point."""
    seeds = zip(*(loss.values for _, loss in points), strict=True)  # every seed logs the same steps
    means = tuple(sum(of_seed) / len(of_seed) for of_seed in seeds)
    return sum(step for step, _ in points) / len(points), Estimate(means)


def _band(arm: Arm, style: Style, x: tuple[float, ...], values: Sequence[Estimate], end: str) -> Curve:
    return Curve(
        arm.label,
        style,
        x,
        tuple(value.mean for value in values),
        tuple(value.mean - (value.spread or 0) for value in values),
        tuple(value.mean + (value.spread or 0) for value in values),
        end,
    )


def _bands(summary: Summary) -> str:
    counts = {len(arm.seeds) for arm in summary.arms}
    if counts == {1}:
        return "One seed each, so there are no bands."
    seeds = words.plural(max(counts), "seed")
    return f"Bands are one standard deviation over {'up to ' if len(counts) > 1 else ''}{seeds}."
