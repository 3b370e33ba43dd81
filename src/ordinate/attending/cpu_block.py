"""One block of queries through PyTorch's fused CPU kernel.

A bias that depends on distance alone, and a causal or windowed mask, are together one vector per
head: entry n holds the n-th diagonal. Seen through overlapping strides that vector *is* the block's
mask, so the kernel reads a dense mask nobody ever wrote. Its strides run forward only, hence the
block's queries are flipped.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..bias.types import Bias
from ..private import cpu_attention
from . import diagonal
from .mask import Mask

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def fits(
    q: Tensor,
    v: Tensor,
    parts: tuple[Bias, ...],
    mask: Mask,
    softcap: float | None,
    dropout_p: float,
) -> bool:
    """Whether the kernel can do this call, block by block."""
    return (
        q.device.type == "cpu"
        and cpu_attention() is not None
        and q.dtype in _DTYPES
        and q.shape[-1] == v.shape[-1]
        and softcap is None
        and dropout_p == 0
        and mask.by_distance
        and all(part.diagonals() is not None for part in parts)
    )


def dense_rows(x: Tensor) -> Tensor:
    """In float32, so that the result is rounded once, and with rows of adjacent numbers.

    The kernel reads every row as adjacent, and does not check that it is.
    """
    x = x.float()
    return x if x.stride(-1) == 1 else x.contiguous()


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    parts: tuple[Bias, ...],
    mask: Mask,
    scale: float,
    rows: slice,
    seen: slice,
    out: Tensor,
    lse: Tensor,
) -> None:
    """Write one block's output and logsumexp."""
    if seen.start == seen.stop:
        return
    view = _mask_view(q, parts, mask, scale, rows, seen)
    groups = q.shape[1] // k.shape[1]
    forward, _ = _kernels()
    for g in range(groups):  # the kernel wants as many key heads as query heads
        block, block_lse = forward(
            dense_rows(q[:, g::groups, rows].flip(2)),
            k[:, :, seen],
            v[:, :, seen],
            attn_mask=None if view is None else view[:, g::groups] if view.shape[1] > 1 else view,
            scale=scale,
        )
        out[:, g::groups, rows] = block.flip(2)
        lse[:, g::groups, rows] = block_lse.flip(2)
    blind = ~_sees_any(mask, rows, q.device)
    lse[:, :, rows] = lse[:, :, rows].masked_fill(blind, -math.inf)


def pull_back(
    grad: Tensor,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    parts: tuple[Bias, ...],
    mask: Mask,
    scale: float,
    rows: slice,
    seen: slice,
    grad_q: Tensor,
    grad_k: Tensor,
    grad_v: Tensor,
) -> None:
    """Add one block's share to the gradients of q, k and v (a bias that needs its own goes another way)."""
    view = _mask_view(q, parts, mask, scale, rows, seen)
    # Weights are exp(logit - lse): a row that sees nothing gets weights of 0 from +inf, of NaN from -inf.
    own_lse = lse[:, :, rows].masked_fill(lse[:, :, rows] == -math.inf, math.inf)
    groups = q.shape[1] // k.shape[1]
    _, backward = _kernels()
    for g in range(groups):
        flipped = [dense_rows(x[:, g::groups, rows].flip(2)) for x in (grad, q, out)]
        shares = backward(
            flipped[0],
            flipped[1],
            k[:, :, seen],
            v[:, :, seen],
            flipped[2],
            own_lse[:, g::groups].flip(2),
            0.0,
            False,
            attn_mask=None if view is None else view[:, g::groups] if view.shape[1] > 1 else view,
            scale=scale,
        )
        grad_q[:, g::groups, rows] = shares[0].flip(2)
        grad_k[:, :, seen] += shares[1]
        grad_v[:, :, seen] += shares[2]


def _kernels() -> tuple[Any, Any]:
    found = cpu_attention()
    assert found is not None  # `fits` has asked
    return found


def _mask_view(
    q: Tensor, parts: tuple[Bias, ...], mask: Mask, scale: float, rows: slice, seen: slice
) -> Tensor | None:
    """The block's bias and mask as ``[batch or 1, heads or 1, rows, keys]`` over one vector a head."""
    cut = mask.block(rows, seen)
    if cut.sees_all and not parts:
        return None
    blocks = tuple(part.block(rows, seen) for part in parts)
    return diagonal.vector(blocks, cut, scale, torch.float32, q.device).unfold(-1, cut.k_len, 1)


def _sees_any(mask: Mask, rows: slice, device: torch.device) -> Tensor:
    index = torch.arange(rows.start, rows.stop, device=device) + mask.offset
    first, last = torch.zeros_like(index), torch.full_like(index, mask.k_len - 1)
    if mask.causal:
        last = torch.minimum(last, index)
    if mask.window is not None:
        first = torch.maximum(first, index - mask.window + 1)
        if not mask.causal:
            last = torch.minimum(last, index + mask.window - 1)
    return first <= last
