"""What the report draws, as data: the same curves become a picture and a part of the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from . import words
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


@dataclass(frozen=True)
class Style:
    """How an arm looks in every figure; colour is never the only difference."""

    colours: tuple[str, str]
    marker: int
    dash: int


@dataclass(frozen=True)
class Curve:
    """One line with the band of one standard deviation over seeds around it.

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
        ticks: Where the x axis has its numbers; empty for anywhere.
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


def _perplexity_of(loss: float) -> float:
    """e to the loss, for an axis that ends at 1e87: no model is worse than that in an interesting way."""
    return math.exp(min(loss, 200.0))


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
        levels={name: _perplexity_of(loss) for name, loss in summary.baselines.items()},
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
        f"The share of exactly right answers of the task “{summary.task}”. {_bands(summary)}",
        "length tested at (tokens)",
        "right answers (%)",
        tuple(curve for curve in curves if curve.x),
        log_x=True,
        train_length=summary.train_length,
        ticks=summary.lengths,
    )


def _positions(summary: Summary, styles: dict[str, Style]) -> Chart:
    curves = []
    for arm in summary.arms:
        one = arm.furthest
        if one is None or not one.positions:
            continue
        middles = tuple((start + stop) / 2 for start, stop, _ in one.positions)
        losses = [loss for _, _, loss in one.positions]
        curves.append(_band(arm, styles[arm.label], middles, losses, _stops(arm, summary)))
    return Chart(
        "positions",
        "Loss by position in the text",
        f"Where in a sequence of {summary.lengths[-1]} tokens the loss comes from. At the start everyone lacks "
        f"context; past the dashed line lie positions no model saw in training. {_bands(summary)}",
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
    curves = [
        _by_length(arm, styles[arm.label], lambda one: one.gain, lambda gain: gain)
        for arm in summary.arms
    ]
    past = [curve for curve in curves if curve.x and curve.x[-1] > summary.train_length]
    return Chart(
        "context",
        "What the extra context is worth",
        f"The loss with the context cut to at most {summary.train_length} tokens, less the loss with all of it, "
        "on the same targets. Above zero the model makes use of what was cut; at zero it ignores it, and a "
        "flat perplexity is no merit; below zero it is harmed.",
        "length tested at (tokens)",
        "loss saved (nats per token)",
        tuple(past),
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
    curves = []
    for arm in summary.arms:
        points = arm.validation or arm.training
        steps = tuple(float(step) for step, _ in points)
        curves.append(_band(arm, styles[arm.label], steps, [loss for _, loss in points], ""))
    which = "validation" if any(arm.validation for arm in summary.arms) else "training"
    return Chart(
        "training",
        "Training",
        f"The {which} loss at the training length. Every arm has the same model, the same batches in the same "
        f"order and the same number of steps. {_bands(summary)}",
        "step",
        f"{which} loss (nats per token)",
        tuple(curve for curve in curves if curve.x),
        levels=dict(summary.baselines),
    )


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
