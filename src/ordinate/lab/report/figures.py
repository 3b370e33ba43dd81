"""The charts of a report, each a `plots.Picture`: drawn for the report's page, its PNG files and the web page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch

from ...plots.palette import ON_LIGHT_AND_DARK
from ...plots.pictures import Axis, Lines, Mark, Picture, Series, Style
from ...text import Text, sentences
from .estimate import Estimate
from .summary import Arm, Evaluation, Summary

*COLOURS, GREY = ON_LIGHT_AND_DARK

# An axis with fewer numbers is hard to read.
_FEWEST_TICKS = 4

# Training losses vary from batch to batch, so a curve shows this many means of neighbouring steps.
_TRAINING_POINTS = 60

_MARGINS = "Bands are 95 % intervals, over text and seeds together."

Points = Sequence[tuple[float, Estimate]]


def charts(summary: Summary) -> list[Picture]:
    """Every chart that has numbers."""
    styles = styles_of(summary)
    found = [
        _accuracy(summary, styles),
        _perplexity(summary, styles),
        _positions(summary, styles),
        _gain(summary, styles),
        _extensions(summary, styles),
        _training(summary, styles),
    ]
    return [chart for chart in found if chart is not None]


def styles_of(summary: Summary) -> dict[str, Style]:
    """The style of each arm in every chart; colour is never the only difference."""
    styles: dict[str, Style] = {}
    named = [arm for arm in summary.arms if arm.label not in ("none", "nope")]
    for number, arm in enumerate(named):
        again = number // len(COLOURS)  # with more arms than colours, dashes differ
        styles[arm.label] = Style(COLOURS[number % len(COLOURS)], 2 * again % 4, number + 1)
    for arm in summary.arms:
        styles.setdefault(arm.label, Style(GREY, 1, 0))  # the control: no position at all
    # An extended encoding has its own colour; the extensions get the other colours.
    taken = {styles[arm.spec].color for arm in summary.extensions}
    free = [colour for colour in COLOURS if colour not in taken] or COLOURS
    for number, arm in enumerate(summary.extensions):
        dash = 1 + number // len(free) % 3
        styles[arm.label] = Style(free[number % len(free)], dash, number + 1)
    return styles


def _perplexity_of(loss: float) -> float:
    """e to the loss, limited to 1 … 1e87: no perplexity is lower, and no model is worse."""
    return math.exp(max(0.0, min(loss, 200.0)))


def _perplexity(summary: Summary, styles: Mapping[str, Style]) -> Picture | None:
    note = sentences(
        Text(
            "Each model was trained at {length} tokens and is tested, unchanged, at every length.",
            length=summary.train_length,
        ),
        "Lower is better; a flat curve holds.",
        _bands(summary),
    )
    series = _by_length(summary.arms, styles, lambda one: one.loss, scale=_perplexity_of)
    levels = {one.name: _perplexity_of(one.loss) for one in summary.baselines.values()}
    x, y = _tested_at(summary), _log_axis("perplexity per token", series, levels.values())
    return _chart("perplexity", "Perplexity against length", note, x, y, series, summary, levels)


def _accuracy(summary: Summary, styles: Mapping[str, Style]) -> Picture | None:
    share = Text("The share of right answers of the task “{task}”.", task=summary.task)
    series = _by_length(summary.arms, styles, lambda one: one.accuracy, scale=lambda share: 100 * share)
    x, y = _tested_at(summary), Axis("right answers (%)", limits=(-3, 103))
    return _chart(
        "accuracy",
        "Right answers against length",
        sentences(share, _bands(summary)),
        x,
        y,
        series,
        summary,
    )


def _positions(summary: Summary, styles: Mapping[str, Style]) -> Picture | None:
    longest, series = summary.lengths[-1], []
    for arm in summary.arms:
        one = arm.furthest
        if one is not None and one.positions:
            points = [((each.start + each.stop) / 2, each.loss) for each in one.positions]
            name: str = arm.label
            if one.length != longest:
                name = Text("{arm} (tested at {length})", arm=arm.label, length=one.length)
            series.append(_series(name, styles[arm.label], points, margins=True))
    control = Text(
        "Every position is compared on the same text: a point differs from the model's loss with exactly the last "
        "{length} tokens in view by as much as its own targets do.",
        length=summary.train_length,
    )
    note = sentences(
        Text("Where in a sequence of {length} tokens the loss comes from.", length=longest),
        "At the start every arm lacks context; positions past the dashed line were never seen in training.",
        "" if summary.by_accuracy else control,
        _MARGINS,
    )
    first = min((one.x[0].item() for one in series), default=math.inf)
    doublings = [2**power for power in range(longest.bit_length()) if first <= 2**power]
    x = Axis("position in the sequence (tokens)", log=True, ticks=_readable(doublings))
    y = Axis("loss (nats per token)")
    return _chart("positions", "Loss by position in the text", note, x, y, series, summary)


def _gain(summary: Summary, styles: Mapping[str, Style]) -> Picture | None:
    note = sentences(
        Text(
            "The loss of the same targets with exactly the last {length} tokens in view, less the loss with all of the "
            "text, over targets that see more.",
            length=summary.train_length,
        ),
        "Above zero the model uses the extra context; at zero the model ignores it, and a flat perplexity is no merit; "
        "below zero the extra context does harm.",
        _MARGINS,
    )
    series = _by_length(summary.arms, styles, lambda one: one.gain, margins=True)
    x, y = _tested_at(summary), Axis("loss saved (nats per token)")
    return _chart(
        "context", "What the extra context is worth", note, x, y, series, summary, {"ignored": 0.0}
    )


def _extensions(summary: Summary, styles: Mapping[str, Style]) -> Picture | None:
    if not summary.extensions:
        return None
    note = sentences(
        "The trained model as it is, and with its frequencies rescaled for evaluation alone: no weight is changed.",
        _bands(summary),
    )
    extended = {arm.spec for arm in summary.extensions}
    arms = [arm for arm in summary.arms if arm.spec in extended] + list(summary.extensions)
    series = _by_length(arms, styles, lambda one: one.loss, scale=_perplexity_of)
    x, y = _tested_at(summary), _log_axis("perplexity per token", series)
    return _chart("extensions", "Stretched without training", note, x, y, series, summary)


def _training(summary: Summary, styles: Mapping[str, Style]) -> Picture | None:
    series, width = [], 1
    for arm in summary.arms:
        width = max(1, len(arm.training) // _TRAINING_POINTS)
        points = [_mean_step(arm.training[at : at + width]) for at in range(0, len(arm.training), width)]
        if points:
            series.append(_series(arm.label, styles[arm.label], points))
    means = Text("The training loss, each point the mean of {width} logged steps.", width=width)
    note = sentences(
        means if width > 1 else "The training loss.",
        "Every arm has the same model, the same batches in the same order and the same number of steps.",
        _bands(summary),
    )
    levels = {one.name: one.loss for one in summary.baselines.values()}
    x, y = Axis("step"), Axis("training loss (nats per token)")
    return _chart("training", "Training", note, x, y, series, None, levels)


def _mean_step(points: Sequence[tuple[int, Estimate]]) -> tuple[float, Estimate]:
    """The mean of neighbouring steps as one point."""
    seeds = zip(*(loss.values for _, loss in points), strict=True)  # every seed logs the same steps
    means = tuple(sum(of_seed) / len(of_seed) for of_seed in seeds)
    return sum(step for step, _ in points) / len(points), Estimate(means)


def _bands(summary: Summary) -> str:
    counts = {len(arm.seeds) for arm in summary.arms}
    if max(counts) < 2:
        return "One seed each, so there are no bands."
    seeds, up_to = max(counts), Text("up to ") if len(counts) > 1 else ""
    return Text("Bands are one standard deviation over {up_to}{seeds} seeds.", up_to=up_to, seeds=seeds)


# Parts of a chart


def _chart(
    kind: str, title: str, note: str, x: Axis, y: Axis, series: Sequence[Series],
    summary: Summary | None, levels: Mapping[str, float] | None = None,
) -> Picture | None:  # fmt: skip
    """Curves over one axis, marked at the training length if a summary is given, and at named levels."""
    marks = [Mark("y", level, name) for name, level in (levels or {}).items()]
    if summary is not None:
        trained = Text("trained at {length}", length=summary.train_length)
        marks.insert(0, Mark("x", float(summary.train_length), trained))
    panel = Lines(x, y, tuple(series), marks=tuple(marks))
    return Picture(kind, "", title, (panel,), note) if series else None


def _by_length(
    arms: Iterable[Arm],
    styles: Mapping[str, Style],
    measure: Callable[[Evaluation], Estimate | None],
    *,
    scale: Callable[[float], float] = float,
    margins: bool = False,
) -> list[Series]:
    """One measure of each arm over the lengths it was tested at."""
    found = []
    for arm in arms:
        points = [(one.length, value) for one in arm.evaluations if (value := measure(one)) is not None]
        end = Text("refused from {length}", length=arm.refusal.length) if arm.refusal else ""
        if points:
            found.append(_series(arm.label, styles[arm.label], points, scale, margins, end))
    return found


def _series(
    name: str,
    style: Style,
    points: Points,
    scale: Callable[[float], float] = float,
    margins: bool = False,
    end: str = "",
) -> Series:
    """Means with a band of one standard deviation over seeds, or of ``margins``: half of a 95 % interval."""
    halves = [(value.margin() if margins else value.spread) or 0.0 for _, value in points]

    def line(side: int) -> torch.Tensor:
        values = [
            scale(value.mean + side * half) for (_, value), half in zip(points, halves, strict=True)
        ]
        return torch.tensor(values, dtype=torch.float64)

    x = torch.tensor([float(place) for place, _ in points], dtype=torch.float64)
    low, high = (line(-1), line(1)) if any(halves) else (None, None)
    return Series(name, x, line(0), low=low, high=high, style=style, end=end)


# Axes


def _tested_at(summary: Summary) -> Axis:
    return Axis("length tested at (tokens)", log=True, ticks=_readable(summary.lengths))


def _readable(lengths: Sequence[int]) -> tuple[int, ...]:
    """The lengths whose labels do not overlap on a logarithmic axis."""
    apart = (lengths[-1] / lengths[0]) ** (1 / 14) if lengths and lengths[0] else 1
    shown: list[int] = []
    for length in lengths:
        if not shown or length >= shown[-1] * apart:
            shown.append(length)
    return tuple(shown)


def _log_axis(label: str, series: Sequence[Series], levels: Iterable[float] = ()) -> Axis:
    """A logarithmic axis with ticks that covers all curves, bands and levels."""
    edges = [edge for one in series for edge in (one.y, one.low, one.high) if edge is not None]
    covered = [*levels, *(value for edge in edges for value in edge.tolist())]
    ticks = log_ticks(min(covered), max(covered)) if covered else ()
    return Axis(label, log=True, ticks=ticks)


def log_ticks(low: float, high: float) -> tuple[float, ...]:
    """Round numbers from ``low`` to ``high`` for a logarithmic axis: as few as make it readable.

    Example:
        >>> log_ticks(1, 2000), log_ticks(99, 101)
        ((1.0, 10.0, 100.0, 1000.0), (99.0, 99.5, 100.0, 100.5, 101.0))
    """
    choices = ([tick for tick in ticks if low <= tick <= high] for ticks in _tick_choices(low, high))
    return next((tuple(ticks) for ticks in choices if len(ticks) >= _FEWEST_TICKS), (low,))


def _tick_choices(low: float, high: float) -> Iterator[list[float]]:
    """From the coarsest to the finest: steps of each decade, then equal steps."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7)):
        yield [float(f"{step * 10.0**power:.3g}") for power in powers for step in steps]
    largest = 10.0 ** math.ceil(math.log10(max(high - low, 1e-9 * high)))
    for size in (largest / 10**finer / part for finer in range(11) for part in (1, 2, 5)):
        count = range(math.ceil(low / size), math.floor(high / size) + 1)
        yield [float(f"{number * size:.12g}") for number in count]
