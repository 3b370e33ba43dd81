"""Position times frequency, for every position an int64 can hold.

In float64 the product has an error of up to ``|position| · frequency · 2⁻⁵³``, and positions beyond 2⁵³ are rounded
before it is formed. So a position is cut in two. Its last bits are multiplied as they are. The rest turns the pair
by a whole number of times, which nobody sees, and by a fraction, which integers keep exactly: counted in units of
2⁻⁶⁴ of a turn, an int64 product overflows by whole turns.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from .direct import somebody_looks_on
from .numerics import constant

#: Positions smaller than this in size are multiplied as they are, with an error of at most 2⁻²⁵.
_NEAR = 2**29

# 1/(2π) in four limbs of 24 bits, the highest first.
_TURNS_PER_RADIAN = (0x28BE60, 0xDB9391, 0x054A7F, 0x09D5F4)
_LIMB = 2.0**24
# By how much each limb of a product of two numbers takes from each limb of one of them.
_PRODUCT = tuple(
    _TURNS_PER_RADIAN[row - column] if row >= column else 0 for row in range(4) for column in range(4)
)


def angles(
    positions: Int[Tensor, "..."],
    inv_freq: Float64[Tensor, "..."],
    *,
    near: bool = False,
    offset: int = 0,
) -> Float64[Tensor, "..."]:
    """Radians, without whole turns of what lies beyond 2²⁹. Both broadcast.

    Args:
        near: Whether the positions are known to be less than 2²⁹ in size. On the CPU they are looked at.
        offset: Added to every position, at most 2²⁹.

    Example:
        >>> angles(torch.tensor([3, 2**62]), torch.tensor(1.0, dtype=torch.float64)).cos()
        tensor([-0.9900, -0.7113], dtype=torch.float64)
    """
    if near or _are_near(positions):
        return (positions + offset).double() * inv_freq
    far = positions.div(_NEAR, rounding_mode="trunc") * _NEAR
    turns, rest = _turns(inv_freq.detach())
    radians = ((far * turns).double() + far.double() * rest) * (2 * math.pi / 2.0**64)
    if inv_freq.requires_grad:  # integers have no gradient
        radians = radians + far.double() * (inv_freq - inv_freq.detach())
    return (positions - far + offset).double() * inv_freq + radians


def _are_near(positions: Tensor) -> bool:
    """Whether a look at the positions, which on other devices would be waited for, finds all of them near."""
    if positions.device.type != "cpu" or somebody_looks_on(positions) or not positions.numel():
        return False
    low, high = torch.aminmax(positions)
    return int(low) > -_NEAR and int(high) < _NEAR


def _turns(inv_freq: Tensor) -> tuple[Tensor, Tensor]:
    """Turns a position, modulo whole ones and in units of 2⁻⁶⁴: the int64 below them, and what is left."""
    # Each of these steps is exact. A limb is the whole part of inv_freq times a power of 2²⁴, without the limbs above.
    scales = constant(tuple(_LIMB**limb for limb in range(1, 5)), torch.float64, inv_freq.device)
    whole = (inv_freq[..., None] * scales).floor()
    above = torch.nn.functional.pad(whole[..., :-1], (1, 0)) * _LIMB
    limbs = (whole - above).long()
    product = constant(_PRODUCT, torch.int64, inv_freq.device).view(4, 4)
    first, second, third, fourth = (limbs[..., None, :] * product).sum(-1).unbind(-1)
    rest = (second & 0xFF).double() * 2.0**-8 + third.double() * 2.0**-32 + fourth.double() * 2.0**-56
    return (first << 16) + (second >> 8), rest
