"""Pictures of codes: all channels of all positions, a channel along positions, a position across channels."""

from __future__ import annotations

import torch

from ..checks import check_within
from ..encoding import PositionEncoding
from ..setting import Setting
from ..text import Text, joined
from ..verification.observe import codes
from .pictures import Axis, Heatmap, Lines, Picture, Series

_POSITION = Axis("position")
_CHANNEL = Axis("channel")
_VALUE = Axis("value of the code")


def code_map(encoding: PositionEncoding, setting: Setting, subject: str) -> Picture:
    """Every channel of every position."""
    matrix = _codes(encoding, setting, setting.shown(64))
    panel = Heatmap(matrix, _CHANNEL, _POSITION, _VALUE.label, -_reach(matrix), _reach(matrix))
    fast_to_slow = hasattr(encoding, "inv_freq") and getattr(encoding, "layout", "") == "interleaved"
    note = (
        "left channels turn fast and tell neighbours apart, right ones slowly and tell far places apart"
    )
    note = joined(note if fast_to_slow else "", setting.left_out(len(matrix)))
    return Picture("codes", subject, "the code of each position", (panel,), note)


def channels(encoding: PositionEncoding, setting: Setting, subject: str) -> Picture:
    """A few channels along the positions."""
    places = setting.shown(128)
    matrix = _codes(encoding, setting, places)
    picked = setting.picked("channels", matrix.shape[1])
    series = tuple(
        Series(Text("channel {channel}", channel=channel), places, matrix[:, channel])
        for channel in picked
    )
    panel = Lines(_POSITION, _VALUE, series)
    note = setting.left_out(len(places))
    return Picture("channels", subject, "some channels along the positions", (panel,), note)


def profile(encoding: PositionEncoding, setting: Setting, subject: str) -> Picture:
    """The code of a few positions across all channels."""
    positions, bound = torch.tensor(setting.at), encoding.max_positions
    if bound is not None:
        rule = "must be in 0 … {last} (max_positions={bound})"
        check_within("at", positions, 0, bound - 1, rule, last=bound - 1, bound=bound)
    matrix = _codes(encoding, setting, positions)
    places = torch.arange(matrix.shape[1])
    series = tuple(
        Series(Text("position {place}", place=place), places, row)
        for place, row in zip(setting.at, matrix, strict=True)
    )
    panel = Lines(_CHANNEL, _VALUE, series)
    return Picture("profile", subject, "the code of some positions across channels", (panel,))


def _codes(encoding: PositionEncoding, setting: Setting, positions: torch.Tensor) -> torch.Tensor:
    return codes(encoding, setting, positions).detach()


def _reach(matrix: torch.Tensor) -> float:
    return float(matrix.abs().amax()) or 1.0
