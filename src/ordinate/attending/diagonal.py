"""Calls whose bias and mask depend on the diagonal only: one vector for both, and the gradients of such a call.

Bias and mask together are one vector per head, entry n for the n-th diagonal. With the queries in reverse, query f
and key j lie on diagonal f + j, so the bias of a tile is a view of the vector with overlapping strides; the matrix is
never written. The gradient of the bias is such a vector, too: each tile adds the sums of its diagonals. In a
backward pass the logsumexp is known, so tiles need not span a row and fit in the processor's cache.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..bias.base import Bias, DiagonalBias
from .mask import Mask

# The most logits and queries of a tile on the CPU. Measured: each tile adds to the gradients of all its keys.
_LOGITS_PER_TILE = {"cpu": 2**20}
_ROWS_PER_TILE = 256


@dataclass(frozen=True, eq=False)
class Diagonals:
    """Bias and mask of all queries and of the keys that any of them sees.

    Attributes:
        vector: ``[batch or 1, heads or 1, diagonals]``, -inf where hidden.
        parts: The bias, of these keys.
        seen: The keys.
    """

    vector: Tensor
    parts: tuple[Bias, ...]
    seen: slice
    q_len: int

    def of_tile(self, rows: slice, seen: slice) -> slice:
        """The diagonals of a tile."""
        first = self.q_len - rows.stop + seen.start - self.seen.start
        return slice(first, first + rows.stop - rows.start + seen.stop - seen.start - 1)

    def tile(self, rows: slice, seen: slice) -> Tensor:
        """``[batch or 1, heads or 1, rows, keys]``, with the rows in reverse."""
        return self.vector[..., self.of_tile(rows, seen)].unfold(-1, seen.stop - seen.start, 1)


def describe(
    parts: tuple[Bias, ...], mask: Mask, scale: float, dtype: torch.dtype, device: torch.device
) -> Diagonals | None:
    """Bias and mask of every diagonal; None if they do not depend on the diagonal only."""
    if not mask.by_distance:
        return None
    rows, seen = slice(0, mask.q_len), slice(0, mask.k_len)
    if mask.window is not None:
        seen = mask.visible_keys(rows)
        parts, mask = tuple([part.block(rows, seen) for part in parts]), mask.block(rows, seen)
    vector = torch.zeros(1, 1, max(0, mask.q_len + mask.k_len - 1), dtype=dtype, device=device)
    for part in parts:
        diagonals = of_part(part, scale, dtype)
        if diagonals is None:
            return None
        vector = vector + diagonals
    if not mask.sees_all:
        distance = mask.q_len - 1 + mask.offset - torch.arange(vector.shape[-1], device=device)
        # The mask is applied last, because a steep linear bias may be infinite at masked distances.
        vector = vector.masked_fill(~mask.visible_distances(distance), -math.inf)
    return Diagonals(vector, parts, seen, mask.q_len)


def of_part(part: Bias, scale: float, dtype: torch.dtype) -> Tensor | None:
    """What a part adds to the logits of each diagonal; None if a diagonal has more than one number."""
    diagonals = part.diagonals()
    if diagonals is None:
        return None
    return diagonals.to(dtype) * scale if part.scaled else diagonals.to(dtype)


def pull_back(
    grad: Tensor, lse: Tensor, shared: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Diagonals,
    mask: Mask, scale: float,
) -> tuple[Tensor, Tensor, Tensor, list[Tensor | None]]:  # fmt: skip
    """The gradients of q, k, v and of every tensor of the bias.

    Args:
        lse: Of each query, finite.
        shared: Subtracted from the gradients of all weights of a query.
    """
    dtype = bias.vector.dtype
    batch, heads, _, head_dim = q.shape
    kv_heads, _, v_dim = v.shape[1:]

    def fold(x: Tensor) -> Tensor:
        """Query heads that share a key head become more rows of it: ``[batch · kv_heads, groups · rows, …]``."""
        return x.reshape(batch * kv_heads, -1, x.shape[-1])

    def reversed_rows(x: Tensor, less: Tensor, rows: slice) -> Tensor:
        """Rows in reverse with one more channel, so that a product with `keys` or `values` subtracts ``less``."""
        return fold(torch.cat([x[:, :, rows].to(dtype), -less[:, :, rows, None]], dim=-1).flip(2))

    keys = fold(torch.nn.functional.pad(k.to(dtype), (0, 1), value=1.0))
    values = fold(torch.nn.functional.pad(v.to(dtype), (0, 1), value=1.0))
    grad_q = torch.zeros_like(q, dtype=dtype)
    grad_k, grad_v = torch.zeros_like(keys[..., :head_dim]), torch.zeros_like(values[..., :v_dim])
    sums = bias.vector.new_zeros(batch, heads, bias.vector.shape[-1])
    scratch = _Scratch(bias.vector)
    # Weights near the smallest normal number count as 0: subnormal weights make matrix products slower (3x, measured
    # with ALiBi's slopes over 4,096 tokens), and a steep bias has many of them.
    negligible = math.log(torch.finfo(dtype).tiny) + 7
    for rows, tiles in _tiles(batch * heads, mask, q.device.type):
        query_rows = reversed_rows(q, lse, rows)
        query_rows[..., :head_dim] *= scale
        grad_rows = reversed_rows(grad, shared, rows)
        for seen in tiles:
            shape = (batch, heads, rows.stop - rows.start, seen.stop - seen.start)
            weights, grad_weights, grad_logits = scratch.tile(shape)
            diagonals = bias.of_tile(rows, seen)
            weights.copy_(bias.vector[..., diagonals].unfold(-1, shape[-1], 1))
            folded, folded_grad = fold(weights), fold(grad_weights)
            folded.baddbmm_(query_rows, keys[:, seen].transpose(1, 2))
            torch.threshold_(weights, negligible, -math.inf).exp_()
            grad_v[:, seen].baddbmm_(folded.transpose(1, 2), grad_rows[..., :v_dim])
            torch.bmm(grad_rows, values[:, seen].transpose(1, 2), out=folded_grad)
            torch.mul(weights, grad_weights, out=grad_logits)
            sums[..., diagonals] += scratch.diagonal_sums()
            folded = fold(grad_logits)
            grad_k[:, seen].baddbmm_(folded.transpose(1, 2), query_rows[..., :head_dim])
            share = (folded @ keys[:, seen, :head_dim]).view(*shape[:-1], head_dim)
            grad_q[:, :, rows].add_(share.flip(2), alpha=scale)
    shares: list[Tensor | None] = []
    for part in bias.parts:
        assert isinstance(part, DiagonalBias)
        shares += part.pullback_of_diagonals(sums * scale if part.scaled else sums)
    return grad_q, grad_k.view_as(k), grad_v.view_as(v), shares


def _tiles(heads: int, mask: Mask, device: str) -> list[tuple[slice, list[slice]]]:
    """Ranges of queries, each with ranges of keys that cover all their visible keys."""
    tiles: list[tuple[slice, list[slice]]] = []
    height = max(1, min(_ROWS_PER_TILE, mask.q_len))
    width = max(64, _LOGITS_PER_TILE.get(device, 2**24) // (heads * height))
    for start in range(0, mask.q_len, height):
        rows = slice(start, min(start + height, mask.q_len))
        seen = mask.visible_keys(rows)
        tiles.append((rows, []))
        for first in range(seen.start, seen.stop, width):
            tiles[-1][1].append(slice(first, min(first + width, seen.stop)))
    return tiles


class _Scratch:
    """Buffers that all tiles reuse."""

    def __init__(self, like: Tensor) -> None:
        self._flat = (like.new_empty(0), like.new_empty(0))
        self._padded = self._flat[0]

    def tile(self, shape: tuple[int, int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
        """Two matrices to write to, and a third that `diagonal_sums` reads."""
        *outer, height, width = shape
        count = math.prod(shape)
        first, second = self._flat
        if count > first.numel():
            first, second = self._flat = (first.new_empty(count), first.new_empty(count))
        if self._padded.shape != (*outer, height, width + height):
            self._padded = self._padded.new_zeros(*outer, height, width + height)
        return first[:count].view(shape), second[:count].view(shape), self._padded[..., :width]

    def diagonal_sums(self) -> Tensor:
        """Sum each diagonal of the third matrix.

        Its rows are padded by their own number. Read with rows one element shorter, each row is shifted by one more, so
        diagonals become columns and the sums run along contiguous memory.
        """
        height = self._padded.shape[-2]
        count = self._padded.shape[-1] - 1
        return self._padded.flatten(-2)[..., : height * count].unflatten(-1, (height, count)).sum(-2)
