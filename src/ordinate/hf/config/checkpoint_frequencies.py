"""Frequencies computed like the checkpoints' own code: in float32, operation for operation.

Ordinate computes angles in float64, so its frequencies differ from these by a rounding. Use these to compare a table,
a cache or an engine bit for bit with the code that a model was trained or is served with.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float32
from torch import Tensor

from ...checks import check_positive_int, refused
from ...rotate.rope import RoPE
from ...scaling import NTK, DynamicNTK, Linear, Llama3, LongRoPE, Proportional, YaRN


def checkpoint_inv_freq(rope: RoPE, length: int | None = None) -> Float32[Tensor, " pairs"]:
    """``inv_freq`` as transformers (for MiniMind: MiniMind's code) computes it on the CPU, before the first forward.

    Args:
        length: The sequence's length, for scalings that depend on it.

    Raises:
        TypeError: Not a RoPE, or a scaling that no checkpoint's code has.

    Example:
        >>> checkpoint_inv_freq(RoPE(8))
        tensor([1.0000, 0.1000, 0.0100, 0.0010])
    """
    if not isinstance(rope, RoPE):
        raise refused("rope", "must be a RoPE", type(rope).__name__, error=TypeError)
    if length is not None:
        length = check_positive_int("length", length)
    dim, base, scaling = rope.rotary_dim, rope.base, rope.scaling
    match scaling:
        case None:
            return 1.0 / _periods(base, dim)
        case Linear():
            return 1.0 / _periods(base, dim) / scaling.factor
        case NTK():
            return 1.0 / _periods(base * scaling.factor ** (dim / (dim - 2)), dim)
        case DynamicNTK():
            original = scaling.original_max_positions
            longest = max(length or original, original)
            stretch = (scaling.factor * longest / original) - (scaling.factor - 1)
            return 1.0 / _periods(base * stretch ** (dim / (dim - 2)), dim)
        case YaRN():
            return _yarn(scaling, base, dim)
        case LongRoPE():
            is_long = length is not None and length > scaling.original_max_positions
            divisors = scaling.long_factor if is_long else scaling.short_factor
            return 1.0 / (torch.tensor(divisors, dtype=torch.float32) * _periods(base, dim))
        case Llama3():
            return _llama3(scaling, 1.0 / _periods(base, dim))
        case Proportional():
            rotated = int(scaling.fraction * dim // 2)
            inv_freq = 1.0 / _periods(base, dim)
            inv_freq[rotated:] = 0
            return inv_freq / scaling.factor
        case _:
            raise refused(
                "scaling", "must be one that checkpoints use", type(scaling).__name__, error=TypeError
            )


def _periods(base: float, dim: int) -> Float32[Tensor, " pairs"]:
    """``base^(2i/dim)``, the reciprocal of each frequency."""
    return base ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)


def _yarn(scaling: YaRN, base: float, dim: int) -> Tensor:
    periods = _periods(base, dim)
    if scaling.dialect == "paper":  # no checkpoint uses it; round the exact numbers once
        return scaling.inv_freq(base, dim).float()
    low, high = scaling._ramp_ends(base, dim)
    pairs = torch.arange(dim // 2, dtype=torch.float32)
    if scaling.dialect == "minimind":
        ramp = ((pairs - low) / max(high - low, 0.001)).clamp(0, 1)
        return 1.0 / periods * (1 - ramp + ramp / scaling.factor)
    if low == high:
        high += 0.001
    kept = 1 - ((pairs - low) / (high - low)).clamp(0, 1)
    return 1.0 / (scaling.factor * periods) * (1 - kept) + 1.0 / periods * kept


def _llama3(scaling: Llama3, inv_freq: Tensor) -> Tensor:
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    original, factor = scaling.original_max_positions, scaling.factor
    wavelengths = 2 * math.pi / inv_freq
    is_long, is_short = wavelengths > original / low, wavelengths < original / high
    if low == high:  # the ramp is empty, and the quotient below would be 0/0
        return torch.where(is_long, inv_freq / factor, inv_freq)
    kept = (original / wavelengths - low) / (high - low)
    blended = (1 - kept) * inv_freq / factor + kept * inv_freq
    return torch.where(is_long, inv_freq / factor, torch.where(is_short, inv_freq, blended))
