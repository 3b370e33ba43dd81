"""The rotation of pairs of channels, with one rounding."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ..tracing import is_traced
from .layout import Layout

# On the CPU low-precision inputs are widened to float32 in blocks of this many channels per thread, so that the wide
# copy fits in the cache. Smaller blocks are slower on a busy machine: every operation waits for all threads.
_CHANNELS_PER_THREAD = 2**17

# From this many channels on, the compiled loop is faster than PyTorch's operations. Both give the same bits.
_WORTH_A_COMPILED_LOOP = 2**18


def rotate_pairs(
    tensors: Sequence[Float[Tensor, "batch _ seq _"]],
    cos: Float[Tensor, "#batch 1 seq pairs"],
    sin: Float[Tensor, "#batch 1 seq pairs"],
    layout: Layout,
) -> Sequence[Tensor]:
    """``(a, b) -> (a cos - b sin, b cos + a sin)`` for each pair of each tensor, in the dtype of cos and sin."""
    # The fast path is for the CPU and CUDA: other devices may lack complex numbers or operations with out=.
    if is_traced(*tensors) or cos.requires_grad or cos.device.type not in ("cpu", "cuda"):
        return [rotate_pairs_reference(x, cos, sin, layout) for x in tensors]
    learning = [x for x in tensors if x.requires_grad] if torch.is_grad_enabled() else []
    if learning and len(learning) < len(tensors):  # the others are rotated without autograd
        return [rotate_pairs((x,), cos, sin, layout)[0] for x in tensors]
    if not learning:
        return [_rotate_eagerly(x, cos, sin, layout) for x in tensors]
    rotated: tuple[Tensor, ...] = _RotatePairs.apply(cos, sin, layout, *tensors)
    return rotated


def rotate_pairs_reference(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
    """The specification, in plain operations, which torch.compile also fuses best."""
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
    """`rotate_pairs_reference` in fewer passes over memory; its gradient is the inverse rotation."""

    @staticmethod
    def forward(ctx, cos: Tensor, sin: Tensor, layout: Layout, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(cos, sin)
        ctx.layout = layout
        ctx.set_materialize_grads(False)
        return tuple([_rotate_eagerly(x, cos, sin, layout) for x in tensors])

    @staticmethod
    def backward(ctx, *grads: Tensor | None):
        cos, sin = ctx.saved_tensors
        given = [grad for grad in grads if grad is not None]
        turned = iter(rotate_pairs(given, cos, -sin, ctx.layout))
        return None, None, None, *[None if grad is None else next(turned) for grad in grads]


def _rotate_eagerly(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
    x = x.resolve_neg()
    out = torch.empty_like(x)
    suits = (
        x.numel() >= _WORTH_A_COMPILED_LOOP
        and x.device.type == "cpu"
        and x.dtype in (torch.bfloat16, torch.float32)
        and cos.dtype == torch.float32
        and x.stride(-1) == out.stride(-1) == 1
    )
    if suits and _loop_agrees(x.dtype, layout):
        from ..kernels import rope_cpu

        rope_cpu.turn(x, out, cos, sin, interleaved=layout == "interleaved")
        return out
    return _by_operations(x, out, cos, sin, layout)


def _by_operations(x: Tensor, out: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
    rotary_dim = 2 * cos.shape[-1]
    turned = out
    if rotary_dim < x.shape[-1]:
        out[..., rotary_dim:] = x[..., rotary_dim:]
        x, turned = x[..., :rotary_dim], out[..., :rotary_dim]
    if layout == "interleaved":
        cos, sin = (table.repeat_interleave(2, dim=-1) for table in (cos, sin))
    else:
        cos = torch.cat((cos, cos), dim=-1)
    if x.dtype == cos.dtype and (layout == "half" or _pairs_are_complex(x)):
        _turn(x, turned, turned if layout == "half" else _room_like(x, cos.dtype), cos, sin, layout)
        return out
    step = x.shape[-2]
    if x.device.type == "cpu":
        share = _CHANNELS_PER_THREAD * torch.get_num_threads() / max(x.numel(), 1)
        step = max(1, math.ceil(step * min(share, 1.0)))
    wide, spare = (_room_like(x[..., :step, :], cos.dtype) for _ in range(2))
    blocks = zip(*(tensor.split(step, dim=-2) for tensor in (turned, x, cos, sin)), strict=True)
    for to, given, cos_rows, sin_rows in blocks:
        if given.shape[-2] < step:  # the last block
            wide, spare = (part[..., : given.shape[-2], :] for part in (wide, spare))
        wide.copy_(given)
        wide_to = spare if layout == "half" else wide
        _turn(wide, wide_to, spare, cos_rows, sin_rows, layout)
        to.copy_(wide_to)
    return out


@functools.cache
def _loop_agrees(dtype: torch.dtype, layout: Layout) -> bool:
    """Whether Numba works (the extra ``cpu``) and its loop is bitwise equal to PyTorch on this processor.

    PyTorch's operations are fused multiply-adds on most processors, but not on all; and an installed Numba can
    fail in many ways (switched off, without its library, with a NumPy that it does not support).
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 3, 11, 34, generator=generator).to(dtype)
    angles = torch.randn(1, 1, 11, 16, generator=generator)
    cos, sin = angles.cos(), angles.sin()
    try:
        from ..kernels import rope_cpu

        turned = [torch.empty_like(x) for _ in range(2)]
        for threads, out in enumerate(turned, start=1):
            rope_cpu.turn(x, out, cos, sin, interleaved=layout == "interleaved", threads=threads)
    except Exception:
        return False
    expected = _by_operations(x, torch.empty_like(x), cos, sin, layout)
    return all(torch.equal(out, expected) for out in turned)


def _room_like(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Empty, in the memory order of ``x``, so that a copy is contiguous on both sides; channels are adjacent."""
    room = torch.empty_like(x, dtype=dtype)
    return (
        room if room.stride(-1) == 1 else torch.empty_like(room, memory_format=torch.contiguous_format)
    )


def _turn(x: Tensor, out: Tensor, spare: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> None:
    """Rotate ``x`` into ``out``, which may be ``x`` in the interleaved layout and ``spare`` in the other.

    Every product is added by addcmul, whose result does not depend on a channel's place in memory.
    A complex product would take one pass less, but rounds the last few channels of a vectorized run differently.
    """
    if layout == "half":
        a, b = x.chunk(2, dim=-1)
        out_a, out_b = torch.mul(x, cos, out=out).chunk(2, dim=-1)
        out_a.addcmul_(b, sin, value=-1)
        out_b.addcmul_(a, sin)
    else:
        # Multiplying by i turns each pair (a, b) into (-b, a), exactly and with contiguous reads.
        torch.mul(_as_complex(x), 1j, out=_as_complex(spare))
        torch.mul(x, cos, out=out).addcmul_(spare, sin)


def _pairs_are_complex(x: Tensor) -> bool:
    """Whether neighbouring channels can be viewed as complex numbers."""
    *outer, inner = x.stride()
    return inner == 1 and all(stride % 2 == 0 for stride in (*outer, x.storage_offset()))


def _as_complex(x: Tensor) -> Tensor:
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)))
