"""One block of queries with PyTorch's fused CPU kernel, for a bias and a mask that depend on the diagonal only.

The block's mask is a view, with overlapping strides, of the vector in `diagonal`: the kernel reads a dense mask that
no code writes. Strides of a view cannot be negative, so the block's queries are flipped.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..private import cpu_attention
from .work import Work

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def fits(work: Work) -> bool:
    """Whether the kernel supports this call, block by block."""
    q, v = work.q, work.v
    return (
        q.device.type == "cpu"
        and q.dtype in _DTYPES
        and q.shape[-1] == v.shape[-1]
        and cpu_attention() is not None
        and work.diagonals is not None
    )


def dense_rows(x: Tensor) -> Tensor:
    """A copy in float32, so that the result is rounded once, with contiguous rows.

    The kernel reads rows as contiguous and does not check that they are.
    """
    x = x.float()
    return x if x.stride(-1) == 1 else x.contiguous()


def attend(work: Work, k: Tensor, v: Tensor, rows: slice, seen: slice, out: Tensor, lse: Tensor) -> None:
    """Write one block's output and logsumexp, given dense rows of k and v."""
    view = _mask_view(work, rows, seen)
    groups = work.q.shape[1] // k.shape[1]
    kernels = cpu_attention()
    assert kernels is not None  # as `fits` checks
    for g in range(groups):  # the kernel needs as many key heads as query heads
        block, block_lse = kernels[0](
            dense_rows(work.q[:, g::groups, rows].flip(2)), k[:, :, seen], v[:, :, seen],
            attn_mask=view if view is None or view.shape[1] == 1 else view[:, g::groups], scale=work.scale,
        )  # fmt: skip
        out[:, g::groups, rows] = block.flip(2)
        lse[:, g::groups, rows] = block_lse.flip(2)
    if (
        not 0 <= work.mask.offset <= work.mask.k_len - work.mask.q_len
    ):  # otherwise every query sees the key of its own index
        blind = ~work.mask.sees_any(rows, lse.device)
        lse[:, :, rows] = lse[:, :, rows].masked_fill(blind, -math.inf)


def pull_back(
    work: Work, k: Tensor, v: Tensor, rows: slice, seen: slice, grad: Tensor, out: Tensor,
    totals: tuple[Tensor, Tensor, Tensor],
) -> None:  # fmt: skip
    """Add one block's gradients of q, k and v (a bias that needs gradients never comes here)."""
    assert work.lse is not None
    view = _mask_view(work, rows, seen)
    grad_q, grad_k, grad_v = totals
    # Weights are exp(logit - lse): for a row that sees no key, +inf gives weights of 0, -inf gives NaN.
    own_lse = work.lse[:, :, rows].masked_fill(work.lse[:, :, rows] == -math.inf, math.inf)
    groups = work.q.shape[1] // k.shape[1]
    kernels = cpu_attention()
    assert kernels is not None
    for g in range(groups):
        block_grad, q, block_out = [
            dense_rows(x[:, g::groups, rows].flip(2)) for x in (grad, work.q, out)
        ]
        shares = kernels[1](
            block_grad, q, k[:, :, seen], v[:, :, seen], block_out, own_lse[:, g::groups].flip(2), 0.0, False,
            attn_mask=view if view is None or view.shape[1] == 1 else view[:, g::groups], scale=work.scale,
        )  # fmt: skip
        grad_q[:, g::groups, rows] = shares[0].flip(2)
        grad_k[:, :, seen] += shares[1]
        grad_v[:, :, seen] += shares[2]


def _mask_view(work: Work, rows: slice, seen: slice) -> Tensor | None:
    """The block's bias and mask: a view ``[batch or 1, heads or 1, rows, keys]`` of one vector per head."""
    assert work.diagonals is not None
    if not work.parts and work.mask.sees_all:
        return None
    return work.diagonals.tile(rows, seen)
