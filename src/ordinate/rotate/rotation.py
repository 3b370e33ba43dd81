"""The rotation itself: pairs of channels turned by angles, exactly and with one rounding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ..checks import check_floating, check_rank
from ..numerics import compute_dtype
from .layout import Layout

# Low-precision inputs are widened to float32 this many positions at a time, so that on the CPU
# the widened copy never leaves the cache (measured: 3x faster than widening all at once).
_CPU_BLOCK = 64


@dataclass(frozen=True)
class Rotation:
    """Angles for every pair of channels of every token: what a rotary encoding does at given positions.

    Made by `RoPE.at`; apply one to as many tensors and layers as stand at the same positions.

    Attributes:
        angles: Radians, in float64. cos and sin are taken of these and rounded once.
        factor: Multiplies the rotated channels (YaRN's attention factor), not the others.
    """

    angles: Float64[Tensor, "batch seq pairs"]
    factor: float
    layout: Layout
    head_dim: int

    def apply(
        self, x: Float[Tensor, "batch heads seq head_dim"], name: str = "x"
    ) -> Float[Tensor, "batch heads seq head_dim"]:
        """Turn ``x``. The first ``2 · pairs`` channels turn, the rest pass through; ``x`` is not modified.

        Arithmetic is float32 (float64 for float64) and rounded once to the dtype of ``x``.
        """
        check_rank(name, x, "batch, heads, seq, head_dim")
        check_floating(name, x)
        if x.shape[-1] != self.head_dim:
            raise ValueError(f"{name} must have head_dim {self.head_dim}, got {x.shape[-1]}")
        rows, seq = self.angles.shape[:2]
        if x.shape[-2] != seq or rows not in (1, x.shape[0]):
            raise ValueError(
                f"{name} must fit a rotation of {rows} rows of {seq} positions, got {list(x.shape)}"
            )
        cos, sin = self.cos_sin(compute_dtype(x.dtype))
        return rotate_pairs(x, cos[:, None], sin[:, None], self.layout)

    def cos_sin(
        self, dtype: torch.dtype
    ) -> tuple[Float[Tensor, "batch seq pairs"], Float[Tensor, "batch seq pairs"]]:
        """cos and sin of the angles times the factor, evaluated in float64 and rounded once to ``dtype``."""
        cos, sin = self.angles.cos(), self.angles.sin()
        if self.factor != 1.0:
            cos, sin = cos * self.factor, sin * self.factor
        return cos.to(dtype), sin.to(dtype)


def rerotate(
    keys: Float[Tensor, "batch heads seq head_dim"], from_: Rotation, to: Rotation
) -> Float[Tensor, "batch heads seq head_dim"]:
    """Move rotated keys to other positions or another scaling, at the cost of one more rounding.

    Each move rounds once, so repeated shifts of one cache drift: keep unrotated keys for those.

    Example:
        >>> rope = ordinate.RoPE(8)
        >>> keys, here, there = torch.randn(1, 2, 3, 8), torch.arange(3), torch.arange(3) + 5
        >>> moved = rerotate(rope.at(here).apply(keys), rope.at(here), rope.at(there))
        >>> torch.testing.assert_close(moved, rope.at(there).apply(keys))
    """
    for field in ("layout", "head_dim"):
        if getattr(from_, field) != getattr(to, field):
            raise ValueError(
                f"to must have the {field} of from_, got {getattr(to, field)!r} "
                f"instead of {getattr(from_, field)!r}"
            )
    if from_.angles.shape[-2:] != to.angles.shape[-2:]:
        raise ValueError(
            f"to must have the seq and pairs of from_, got {list(to.angles.shape[-2:])} "
            f"instead of {list(from_.angles.shape[-2:])}"
        )
    step = Rotation(to.angles - from_.angles, to.factor / from_.factor, to.layout, to.head_dim)
    return step.apply(keys, "keys")


def rotate_pairs(
    x: Float[Tensor, "batch heads seq head_dim"],
    cos: Float[Tensor, "#batch 1 seq pairs"],
    sin: Float[Tensor, "#batch 1 seq pairs"],
    layout: Layout,
) -> Float[Tensor, "batch heads seq head_dim"]:
    """``(a, b) -> (a cos - b sin, b cos + a sin)`` for each pair, in the dtype of cos and sin."""
    if torch.compiler.is_compiling():
        return rotate_pairs_reference(x, cos, sin, layout)
    rotated: Tensor = _RotatePairs.apply(x, cos, sin, layout)
    return rotated


def rotate_pairs_reference(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
    """The specification, in plain operations; also what a compiler fuses best."""
    turning, passing = x[..., : 2 * cos.shape[-1]], x[..., 2 * cos.shape[-1] :]
    a, b = (part.to(cos.dtype) for part in pair_halves(turning, layout))
    turned = (a * cos - b * sin, b * cos + a * sin)
    if layout == "half":
        out = torch.cat(turned, dim=-1)
    else:
        out = torch.stack(turned, dim=-1).flatten(-2)
    return torch.cat((out.to(x.dtype), passing), dim=-1)


def pair_halves(x: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """Views of the first and the second members of all pairs."""
    if layout == "interleaved":
        return x[..., 0::2], x[..., 1::2]
    first, second = x.chunk(2, dim=-1)
    return first, second


class _RotatePairs(torch.autograd.Function):
    """The same numbers in fewer passes over memory; its gradient is the opposite turn."""

    @staticmethod
    def forward(ctx, x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.layout = layout
        return _rotate_eagerly(x, cos, sin, layout)

    @staticmethod
    def backward(ctx, grad: Tensor):
        cos, sin = ctx.saved_tensors
        return rotate_pairs(grad, cos, -sin, ctx.layout), None, None, None


def _rotate_eagerly(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
    out = torch.empty_like(x)
    rotary_dim = 2 * cos.shape[-1]
    out[..., rotary_dim:] = x[..., rotary_dim:]
    x, turned = x[..., :rotary_dim], out[..., :rotary_dim]
    if x.dtype == cos.dtype:
        _turn_into(turned, x, cos, sin, layout)
        return out
    step = _CPU_BLOCK if x.device.type == "cpu" else x.shape[-2]
    for start in range(0, x.shape[-2], max(step, 1)):
        rows = slice(start, start + step)
        wide = x[..., rows, :].to(cos.dtype)
        buffer = torch.empty_like(wide)
        _turn_into(buffer, wide, cos[..., rows, :], sin[..., rows, :], layout)
        turned[..., rows, :] = buffer
    return out


def _turn_into(out: Tensor, x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> None:
    a, b = pair_halves(x, layout)
    out_a, out_b = pair_halves(out, layout)
    torch.mul(a, cos, out=out_a).addcmul_(b, sin, value=-1)
    torch.mul(b, cos, out=out_b).addcmul_(a, sin)
