"""The gradients of a call whose bias and mask go by diagonals, a learned table's among them.

Bias and mask are together one vector per head, entry n for the n-th diagonal, and so is the gradient of
the bias: each tile of queries and keys adds the sums of its diagonals. With the queries in reverse,
query f and key j lie on diagonal f + j, and a tile's bias is a view of the vector with overlapping
strides. The logsumexp is known by now, so that tiles need not span a row and stay in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ..bias.types import Bias, PairBias
from ..numerics import compute_dtype
from .mask import Mask

# Logits of a tile on the CPU, and its queries: measured, with the keys' gradients to be added to each time.
_LOGITS_PER_TILE = {"cpu": 2**20}
_ROWS_PER_TILE = 256


def fits(parts: tuple[Bias, ...], mask: Mask, softcap: float | None, dropout_p: float) -> bool:
    """Whether bias and mask go by diagonals, and nothing else stands between logits and weights."""
    return (
        softcap is None
        and dropout_p == 0
        and mask.by_distance
        and all(isinstance(part, PairBias) and part.diagonals() is not None for part in parts)
    )


def vector(
    parts: tuple[Bias, ...], mask: Mask, scale: float, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Bias and mask of every diagonal, ``[batch or 1, heads or 1, diagonals]``."""
    count = mask.q_len + mask.k_len - 1
    distance = mask.q_len - 1 - torch.arange(count, device=device) + mask.offset
    total = torch.zeros(1, 1, count, dtype=dtype, device=device)
    for part in parts:
        diagonals = part.diagonals()
        assert diagonals is not None
        diagonals = diagonals.to(dtype)
        total = total + (diagonals * scale if part.scaled else diagonals)
    # Last, for a steep line may be infinite where it is hidden.
    return total.masked_fill(~mask.visible_distances(distance), -math.inf)


def pull_back(
    grad: Tensor,
    lse: Tensor,
    shared: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    parts: tuple[Bias, ...],
    mask: Mask,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, list[Tensor | None]]:
    """The gradients of q, k, v and of every tensor of the parts.

    Args:
        lse: Of each query, finite.
        shared: What is taken from the gradient of all weights of a query alike.
    """
    dtype = compute_dtype(q.dtype)
    batch, heads, q_len, head_dim = q.shape
    kv_heads, k_len, v_dim = v.shape[1:]
    bias = vector(parts, mask, scale, dtype, q.device)

    def fold(x: Tensor) -> Tensor:
        """Query heads that share a key head become more rows of it: ``[batch · kv_heads, groups · rows, …]``."""
        return x.reshape(batch * kv_heads, -1, x.shape[-1])

    def reversed_rows(x: Tensor, less: Tensor, rows: slice) -> Tensor:
        """With one more channel, which makes a product with `keys` or `values` subtract on its way."""
        return fold(torch.cat([x[:, :, rows].to(dtype), -less[:, :, rows, None]], dim=-1).flip(2))

    keys, values = (fold(torch.nn.functional.pad(x.to(dtype), (0, 1), value=1.0)) for x in (k, v))
    grad_q = torch.zeros_like(q, dtype=dtype)
    grad_k, grad_v = torch.zeros_like(keys[..., :head_dim]), torch.zeros_like(values[..., :v_dim])
    sums = bias.new_zeros(batch, heads, q_len + k_len - 1)
    scratch = _Scratch(bias)
    # Weights next to nothing are nothing: subnormal numbers slow the products down several times, and a
    # steep bias is full of them (measured with ALiBi's slopes over 4,096 tokens: 3x).
    negligible = math.log(torch.finfo(dtype).tiny) + 7
    for rows, tiles in _tiles(batch * heads, mask, q.device.type):
        query_rows = reversed_rows(q, lse, rows)
        query_rows[..., :head_dim] *= scale
        grad_rows = reversed_rows(grad, shared, rows)
        height, first = rows.stop - rows.start, q_len - rows.stop  # as counted from the last query
        for seen in tiles:
            shape = (batch, heads, height, seen.stop - seen.start)
            diagonals = slice(first + seen.start, first + height + seen.stop - 1)
            weights, grad_weights, grad_logits = scratch.tile(shape)
            weights.copy_(bias[..., diagonals].unfold(-1, shape[-1], 1))
            fold(weights).baddbmm_(query_rows, keys[:, seen].transpose(1, 2))
            torch.threshold_(weights, negligible, -math.inf).exp_()
            grad_v[:, seen].baddbmm_(fold(weights).transpose(1, 2), grad_rows[..., :v_dim])
            torch.bmm(grad_rows, values[:, seen].transpose(1, 2), out=fold(grad_weights))
            torch.mul(weights, grad_weights, out=grad_logits)
            sums[..., diagonals] += scratch.diagonal_sums()
            folded = fold(grad_logits)
            grad_k[:, seen].baddbmm_(folded.transpose(1, 2), query_rows[..., :head_dim])
            share = (folded @ keys[:, seen, :head_dim]).view(*shape[:-1], head_dim)
            grad_q[:, :, rows].add_(share.flip(2), alpha=scale)
    parts_grads = [share for part in parts for share in _pull_back_sums(part, sums, scale)]
    return grad_q, grad_k.view_as(k), grad_v.view_as(v), parts_grads


def _tiles(heads: int, mask: Mask, device: str) -> Iterator[tuple[slice, list[slice]]]:
    """Ranges of queries, each with ranges of keys that cover all they see."""
    height = max(1, min(_ROWS_PER_TILE, mask.q_len))
    width = max(64, _LOGITS_PER_TILE.get(device, 2**24) // (heads * height))
    for start in range(0, mask.q_len, height):
        rows = slice(start, min(start + height, mask.q_len))
        seen = mask.visible_keys(rows)
        yield (
            rows,
            [slice(n, min(n + width, seen.stop)) for n in range(seen.start, seen.stop, width)],
        )


def _pull_back_sums(part: Bias, sums: Tensor, scale: float) -> tuple[Tensor | None, ...]:
    """The gradients of a part, given the sum of the logits' gradients on each diagonal."""
    assert isinstance(part, PairBias)
    return part.pullback_of_diagonals(sums * scale if part.scaled else sums)


class _Scratch:
    """Memory for one tile after another."""

    def __init__(self, like: Tensor) -> None:
        self._flat = [like.new_empty(0) for _ in range(2)]
        self._padded = like.new_empty(0)

    def tile(self, shape: tuple[int, int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
        """Two matrices to write, and a third that `diagonal_sums` will read."""
        *outer, height, width = shape
        count = math.prod(shape)
        if count > self._flat[0].numel():
            self._flat = [part.new_empty(count) for part in self._flat]
        if self._padded.shape != (*outer, height, width + height):
            self._padded = self._padded.new_zeros(*outer, height, width + height)
        first, second = (part[:count].view(shape) for part in self._flat)
        return first, second, self._padded[..., :width]

    def diagonal_sums(self) -> Tensor:
        """Rows padded by their own number and read one element short shift by one more each row, so that
        diagonals become columns and the sums run along contiguous memory."""
        height = self._padded.shape[-2]
        count = self._padded.shape[-1] - 1
        return self._padded.flatten(-2)[..., : height * count].unflatten(-1, (height, count)).sum(-2)
