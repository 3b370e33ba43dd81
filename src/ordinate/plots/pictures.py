"""A picture as numbers: what every backend draws, what ``--json`` prints and what tests compare.

A kind of picture is computed once into these values; matplotlib and plotly only draw them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor

from ..text import Text


@dataclass(frozen=True)
class Axis:
    """A label with its unit, whether the scale is logarithmic, its ends, and where it has numbers.

    Attributes:
        limits: The first and the last value; default: those of what is drawn.
        ticks: Where numbers are written; default: the backend's choice.
    """

    label: str
    log: bool = False
    limits: tuple[float, float] | None = None
    ticks: tuple[float, ...] = ()


@dataclass(frozen=True)
class Style:
    """How a series looks, where one thing must look the same in several pictures.

    Attributes:
        color: As ``#rrggbb``.
        dash, marker: Which of a backend's line styles and markers; counted around when there are fewer.
    """

    color: str
    dash: int = 0
    marker: int = 0


@dataclass(frozen=True, eq=False)
class Series:
    """One curve, or a set of points, with its name in the legend.

    Attributes:
        quiet: Drawn thin and grey: what others are compared with.
        low, high: The edges of a band around the curve, such as a spread over seeds.
        style: Default: by the place among the other series.
        end: Why the curve stops at its last point, which gets a cross; the legend says it after the name.
    """

    name: str
    x: Tensor
    y: Tensor
    points: bool = False
    quiet: bool = False
    low: Tensor | None = None
    high: Tensor | None = None
    style: Style | None = None
    end: str = ""

    @property
    def label(self) -> str:
        """The name in the legend."""
        return Text("{name} ({end})", name=self.name, end=self.end) if self.end else self.name


@dataclass(frozen=True)
class Mark:
    """A labelled line across a panel, at a value of x or of y."""

    axis: Literal["x", "y"]
    at: float
    label: str


@dataclass(frozen=True, eq=False)
class Lines:
    """Curves over one axis.

    Attributes:
        ordered: The series are steps of one thing (heads 0, 1, 2 …) and take colours from a ramp.
    """

    x: Axis
    y: Axis
    series: tuple[Series, ...]
    title: str = ""
    marks: tuple[Mark, ...] = ()
    ordered: bool = False


@dataclass(frozen=True, eq=False)
class Heatmap:
    """A matrix, its first row on top; NaN is a place that does not exist.

    Attributes:
        value: What the colours mean.
        low, high: The values the colours run from and to, shared among panels. With 0 between them it is the middle.
        row_names, column_names: In place of numbers along the axes.
        annotated: Write every number into its cell.
    """

    matrix: Tensor
    x: Axis
    y: Axis
    value: str
    low: float
    high: float
    title: str = ""
    row_names: tuple[str, ...] = ()
    column_names: tuple[str, ...] = ()
    annotated: bool = False

    @property
    def diverging(self) -> bool:
        """Whether values have both signs, so that zero needs a colour of its own."""
        return self.low < 0 < self.high


@dataclass(frozen=True, eq=False)
class Bars:
    """One bar for each name."""

    names: tuple[str, ...]
    values: Tensor
    x: Axis
    y: Axis
    title: str = ""


@dataclass(frozen=True, eq=False)
class Plane:
    """Points that move in a plane, one track for each name: ``tracks[name, step] = (x, y)``."""

    names: tuple[str, ...]
    tracks: Tensor
    x: Axis
    y: Axis
    step: str
    title: str = ""


Panel = Lines | Heatmap | Bars | Plane


@dataclass(frozen=True, eq=False)
class Picture:
    """Panels under one title.

    Attributes:
        subject: What is drawn, usually the spec of an encoding; empty where the title says it.
        note: What to see, one sentence.
        columns: How many panels stand side by side.
    """

    kind: str
    subject: str
    title: str
    panels: tuple[Panel, ...]
    note: str = ""
    columns: int = 1

    @property
    def heading(self) -> str:
        """Subject and title as one line."""
        return f"{self.subject}: {self.title}" if self.subject else self.title

    def to_dict(self) -> dict[str, Any]:
        """Everything in it, numbers unrounded; what does not exist is None."""
        return _plain(self)


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _numbers(value)
    if isinstance(value, (Picture, Lines, Heatmap, Bars, Plane, Series, Style, Mark, Axis)):
        named = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        return {"type": type(value).__name__.lower(), **named}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _numbers(tensor: Tensor) -> Any:
    if tensor.dim() > 1:
        return [_numbers(row) for row in tensor]
    if not tensor.is_floating_point():
        return tensor.tolist()
    finite = torch.isfinite(tensor).tolist()
    return [number if real else None for number, real in zip(tensor.tolist(), finite, strict=True)]
