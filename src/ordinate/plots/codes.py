"""Pictures of codes: the whole table as a map, a channel along positions, a position across channels."""

from __future__ import annotations

import torch

from ..encoding import PositionEncoding
from ..text import Text, joined
from ..verification.observe import codes
from .pictures import Axis, Heatmap, Lines, Picture, Series
from .view import View

_POSITION = Axis("position")
_CHANNEL = Axis("channel")
_VALUE = Axis("value of the code")


def code_map(encoding: PositionEncoding, view: View, subject: str) -> Picture:
    """Every channel of every position."""
    matrix = _codes(encoding, view, view.places(encoding, 64))
    panel = Heatmap(matrix, _CHANNEL, _POSITION, _VALUE.label, -_reach(matrix), _reach(matrix))
    fast_to_slow = hasattr(encoding, "inv_freq") and getattr(encoding, "layout", "") == "interleaved"
    note = (
        "left channels turn fast and tell neighbours apart, right ones slowly and tell far places apart"
    )
    note = joined(note if fast_to_slow else "", view.left_out(len(matrix)))
    return Picture("codes", subject, "the code of each position", (panel,), note)


def channels(encoding: PositionEncoding, view: View, subject: str) -> Picture:
    """A few channels along the positions."""
    places = view.places(encoding, 128)
    matrix = _codes(encoding, view, places)
    picked = view.picked("channels", matrix.shape[1])
    series = tuple(
        Series(Text("channel {channel}", channel=channel), places, matrix[:, channel])
        for channel in picked
    )
    panel = Lines(_POSITION, _VALUE, series)
    note = view.left_out(len(places))
    return Picture("channels", subject, "some channels along the positions", (panel,), note)


def profile(encoding: PositionEncoding, view: View, subject: str) -> Picture:
    """The whole code of a few positions."""
    matrix = _codes(encoding, view, torch.tensor(view.at))
    places = torch.arange(matrix.shape[1])
    series = tuple(
        Series(Text("position {place}", place=place), places, row)
        for place, row in zip(view.at, matrix, strict=True)
    )
    panel = Lines(_CHANNEL, _VALUE, series)
    return Picture("profile", subject, "the code of some positions across channels", (panel,))


def _codes(encoding: PositionEncoding, view: View, positions: torch.Tensor) -> torch.Tensor:
    return codes(encoding, view.setting(encoding), positions).detach()


def _reach(matrix: torch.Tensor) -> float:
    return float(matrix.abs().amax()) or 1.0
