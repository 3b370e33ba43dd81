"""Pictures of biases: slopes, buckets, the matrix each head adds, and the same by distance."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from ..encoding import PositionEncoding
from ..entries import entry_of
from ..parts import part_with
from ..setting import Setting
from ..text import Text, joined
from ..verification.observe import bias_by_distance, causal_only
from ..walkthrough.biases import dense_bias
from .pictures import Axis, Bars, Heatmap, Lines, Picture, Series

_QUERY, _KEY = Axis("query position"), Axis("key position")
_DISTANCE = Axis("distance, query - key (positions)")
_BIAS = Axis("added to the logit")
_MATRIX = 64  # the most tokens of a matrix: more cannot be seen
_ANNOTATED = 24  # tokens up to which a number fits into its cell


def slopes(encoding: PositionEncoding, setting: Setting, subject: str) -> Picture:
    """The slope of each head."""
    values = part_with(encoding, "slopes").slopes_on(torch.device("cpu"), torch.float64).detach()
    names = tuple(str(head) for head in range(len(values)))
    panel = Bars(names, values, Axis("head"), Axis("slope (logits per position)", log=True))
    return Picture("slopes", subject, "the slope of each head", (panel,))


def buckets(encoding: PositionEncoding, setting: Setting, subject: str) -> Picture:
    """The row of the table for each query and key."""
    places = setting.shown(_ANNOTATED, _MATRIX)  # enough to show distances that share a T5 bucket
    part = part_with(encoding, "buckets")
    entry = entry_of(part)
    value = entry.table.row if entry and entry.table else "row"
    rows = part.buckets(places[:, None] - places)
    panel = Heatmap(
        rows, _KEY, _QUERY, value, 0.0, float(rows.amax()), annotated=len(places) <= _ANNOTATED
    )
    past = part.buckets(torch.arange(2 * part.max_distance + 2))
    first = int((past[1:] == past[:-1]).nonzero()[0])
    last = int((past == past[-1]).nonzero()[0])
    shared = (
        Text("distances up to {last} have a {row} each", last=first - 1, row=Text(value))
        if first < last
        else "each distance has its own"
    )
    note = joined(
        shared, Text("all from {first} on share the last", first=last), setting.left_out(len(places))
    )
    return Picture(
        "buckets", subject, Text("the {row} of each query and key", row=Text(value)), (panel,), note
    )


def matrices(encoding: PositionEncoding, setting: Setting, subject: str) -> Picture:
    """What each head adds to the scores of a short sequence, all in one scale."""
    length = len(setting.shown(32, _MATRIX))
    dense = dense_bias(encoding, dataclasses.replace(setting, positions=length))
    if causal_only(encoding, setting):
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        dense = dense.masked_fill(future, float("nan"))
    shown = spread(len(dense), 8)
    seen = dense[shown].nan_to_num()
    limit = float(seen.abs().amax()) or 1.0
    low = -limit if seen.amin() < 0 else 0.0
    high = limit if seen.amax() > 0 or not low else 0.0
    panels = tuple(
        Heatmap(dense[head], _KEY, _QUERY, _BIAS.label, low, high, Text("head {head}", head=head))
        for head in shown
    )
    return Picture(
        "bias",
        subject,
        "what each head adds to the scores",
        panels,
        joined(
            _trained(encoding) or "one scale of colours for all heads",
            heads_left_out(len(shown), len(dense)),
            setting.left_out(length),
        ),
        min(4, len(panels)),
    )


def by_distance(encoding: PositionEncoding, setting: Setting, subject: str) -> Picture:
    """What each head adds, by distance."""
    first = 0 if causal_only(encoding, setting) else -setting.distance
    distances = torch.arange(first, setting.distance + 1)
    rows = bias_by_distance(encoding, setting, distances).detach()
    series = tuple(
        Series(Text("head {head}", head=head), distances, rows[head])
        for head in spread(len(rows), 4 if _trained(encoding) else 8)
    )
    panel = Lines(_DISTANCE, _BIAS, series, ordered=True)
    note = joined(_trained(encoding), heads_left_out(len(series), len(rows)))
    return Picture("distance", subject, "what each head adds, by distance", (panel,), note)


def spread(count: int, most: int) -> list[int]:
    """Up to ``most`` indices below ``count``, evenly from the first to the last.

    Example:
        >>> spread(12, 4)
        [0, 4, 7, 11]
    """
    if count <= most:
        return list(range(count))
    return [round(index * (count - 1) / (most - 1)) for index in range(most)]


def heads_left_out(shown: int, count: int) -> str:
    """A remark for a picture that shows some of the heads."""
    return Text("{shown} of {count} heads", shown=shown, count=count) if shown < count else ""


def _trained(encoding: PositionEncoding) -> str:
    learned = any(True for _ in encoding.parameters())
    return "a learned table as it is initialised, not as training leaves it" if learned else ""


def largest(*matrices: Tensor) -> float:
    """The largest value of several matrices, without NaN."""
    return max(float(matrix.nan_to_num().amax()) for matrix in matrices) or 1.0
