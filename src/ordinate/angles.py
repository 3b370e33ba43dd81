"""Position times frequency, for every position an int64 can hold.

In float64 the product has an error of up to ``|position| · frequency · 2⁻⁵³``, and positions beyond 2⁵³ are rounded
before it. So where positions may be large, frequencies are in turns (1 turn = 2π radians): an int64 in
units of 2⁻⁶⁴ turns, and a remainder. The product of two int64 overflows by whole turns, which change no angle;
the remaining fraction of a turn is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import NamedTuple

import torch
from jaxtyping import Float64, Int, Int64
from torch import Tensor

from .caches import cleared_by
from .numerics import constant
from .tracing import is_captured, is_traced

#: Positions smaller than this in size may be multiplied in float64, with an error of at most 2⁻²⁵.
_NEAR = 2**29

# 1/(2π) in four limbs of 24 bits, the highest first.
_TURNS_PER_RADIAN = (0x28BE60, 0xDB9391, 0x054A7F, 0x09D5F4)
_LIMB = 2.0**24
# The matrix that multiplies a number's limbs by 1/(2π).
_PRODUCT = tuple(
    _TURNS_PER_RADIAN[row - column] if row >= column else 0 for row in range(4) for column in range(4)
)
_UNIT = 2 * math.pi / 2.0**64


class Speeds(NamedTuple):
    """Frequencies, in radians and in turns per position.

    Attributes:
        turns: In units of 2⁻⁶⁴ of a turn, without whole turns.
        rest: The remainder below one unit, in radians.
    """

    inv_freq: Float64[Tensor, "..."]
    turns: Int64[Tensor, "..."]
    rest: Float64[Tensor, "..."]


def angles(
    positions: Int[Tensor, "..."],
    speeds: Float64[Tensor, "..."] | Speeds,
    *,
    near: bool = False,
    offset: int = 0,
) -> Float64[Tensor, "..."]:
    """Radians, up to whole turns. Positions and speeds broadcast.

    Args:
        speeds: Radians per position, or `speeds_of` them.
        near: Whether the positions are known to be less than 2²⁹ in size. On the CPU their values are read.
        offset: Added to every position, at most 2²⁹.

    Example:
        >>> angles(torch.tensor([3, 2**62]), torch.tensor(1.0, dtype=torch.float64)).cos()
        tensor([-0.9900, -0.7113], dtype=torch.float64)
    """
    inv_freq = speeds if isinstance(speeds, Tensor) else speeds.inv_freq
    at = positions + offset if offset else positions  # a sum that overflows does so by whole turns
    if near:
        return at.double() * inv_freq
    looked = positions.device.type == "cpu" and not is_traced(positions)
    if looked and _are_near(positions):
        return at.double() * inv_freq
    _, turns, rest = speeds_of(inv_freq) if isinstance(speeds, Tensor) else speeds
    whole = positions.double() + offset
    radians = torch.add(whole * rest, (at * turns).double(), alpha=_UNIT)
    if inv_freq.requires_grad:  # integers have no gradient
        radians = radians + whole * (inv_freq - inv_freq.detach())
    if not looked:
        return radians
    # The angles of small positions must not depend on whether large positions are in the same call.
    return torch.where((positions > -_NEAR) & (positions < _NEAR), at.double() * inv_freq, radians)


def _are_near(positions: Tensor) -> bool:
    if not positions.numel():
        return True
    low, high = torch.aminmax(positions)
    return int(low) > -_NEAR and int(high) < _NEAR


def speeds_of(inv_freq: Float64[Tensor, "..."]) -> Speeds:
    """Convert radians per position to turns per position."""
    radians = inv_freq.detach()
    # Every step is exact. A limb is the integer part of inv_freq times a power of 2²⁴, minus the limbs above.
    scales = constant(tuple(_LIMB**limb for limb in range(1, 5)), torch.float64, radians.device)
    whole = (radians[..., None] * scales).floor()
    above = torch.nn.functional.pad(whole[..., :-1], (1, 0)) * _LIMB
    limbs = (whole - above).long()
    product = constant(_PRODUCT, torch.int64, radians.device).view(4, 4)
    first, second, third, fourth = (limbs[..., None, :] * product).sum(-1).unbind(-1)
    rest = (second & 0xFF).double() * 2.0**-8 + third.double() * 2.0**-32 + fourth.double() * 2.0**-56
    return Speeds(inv_freq, (first << 16) + (second >> 8), rest * _UNIT)


# Keyed by the settings and the device. The oldest is dropped first.
_speeds: dict[Hashable, Speeds] = {}
_MOST_SPEEDS = 256
cleared_by(_speeds.clear)


def cached_speeds(
    settings: Hashable, home: torch.device, make: Callable[[], Float64[Tensor, " pairs"]]
) -> Float64[Tensor, " pairs"] | Speeds:
    """`speeds_of` frequencies that follow from their settings, cached on devices whose positions are not read.

    On a GPU, computing them takes the host longer than the rotation of a token.
    """
    if is_traced() or home.type in ("cpu", "meta"):
        return make()
    key = (settings, home)
    found = _speeds.get(key)
    if found is None:
        with torch.inference_mode(False):
            found = speeds_of(make())
        if is_captured(home):
            return found  # the memory belongs to the graph
        if len(_speeds) >= _MOST_SPEEDS:
            oldest, *_ = tuple(_speeds)
            _speeds.pop(oldest, None)
        _speeds[key] = found
    return found
