"""``rows = features · table``: one row per token of the numbers that a content-dependent bias looks up.

PyTorch would first convert the features to float32, then multiply without tensor cores, and the same for both
gradients. Here features are read in their own dtype. 16-bit features are multiplied with the float32 table by three
tensor-core products, as close to float64 as one product in float32; float32 features use no tensor cores.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .tiles import tile_and_head


@triton.jit
def _tile(ptr, rows, columns, stride, height, width):
    """A tile of a matrix in float32, zero beyond its edges."""
    inside = (rows[:, None] < height) & (columns[None, :] < width)
    place = rows[:, None].to(tl.int64) * stride + columns[None, :]
    return tl.load(ptr + place, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _project_kernel(
    features_ptr, table_ptr, rows_ptr, features_strides, table_head,
    heads, tokens, entries, factor,
    RANK: tl.constexpr, M: tl.constexpr, N: tl.constexpr, R: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The rows of one tile of tokens of one head, with all entries of the table."""
    tile, bh = tile_and_head()
    b64, h64, bh64 = (bh // heads).to(tl.int64), (bh % heads).to(tl.int64), bh.to(tl.int64)
    features_ptr += b64 * features_strides.batch + h64 * features_strides.head
    table_ptr += h64 * table_head
    rows_ptr += bh64 * tokens * entries
    token = tile * M + tl.arange(0, M)
    for n0 in range(0, entries, N):
        entry = n0 + tl.arange(0, N)
        rows = tl.zeros([M, N], dtype=tl.float32)
        for r0 in range(0, RANK, R):
            rank = r0 + tl.arange(0, R)
            features = _tile(features_ptr, token, rank, features_strides.token, tokens, RANK)
            table = _tile(table_ptr, entry, rank, RANK, entries, RANK)
            rows = tl.dot(features, tl.trans(table), rows, input_precision=PRECISION)
        tl.store(
            rows_ptr + token[:, None].to(tl.int64) * entries + entry[None, :], rows * factor,
            mask=(token[:, None] < tokens) & (entry[None, :] < entries),
        )  # fmt: skip


@triton.jit
def _features_gradient_kernel(
    grad_rows_ptr, table_ptr, grad_features_ptr, grad_strides, table_head,
    heads, tokens, entries, factor,
    RANK: tl.constexpr, M: tl.constexpr, N: tl.constexpr, R: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of the features for one tile of tokens of one head."""
    tile, bh = tile_and_head()
    b64, h64, bh64 = (bh // heads).to(tl.int64), (bh % heads).to(tl.int64), bh.to(tl.int64)
    grad_features_ptr += b64 * grad_strides.batch + h64 * grad_strides.head
    table_ptr += h64 * table_head
    grad_rows_ptr += bh64 * tokens * entries
    token = tile * M + tl.arange(0, M)
    for r0 in range(0, RANK, R):
        rank = r0 + tl.arange(0, R)
        grad = tl.zeros([M, R], dtype=tl.float32)
        for n0 in range(0, entries, N):
            entry = n0 + tl.arange(0, N)
            grad_rows = _tile(grad_rows_ptr, token, entry, entries, tokens, entries)
            table = _tile(table_ptr, entry, rank, RANK, entries, RANK)
            grad = tl.dot(grad_rows, table, grad, input_precision=PRECISION)
        tl.store(
            grad_features_ptr + token[:, None].to(tl.int64) * grad_strides.token + rank[None, :],
            (grad * factor).to(grad_features_ptr.dtype.element_ty),
            mask=(token[:, None] < tokens) & (rank[None, :] < RANK),
        )


@triton.jit
def _table_gradient_kernel(
    features_ptr, grad_rows_ptr, sums_ptr, features_strides,
    heads, tokens, entries, factor, run, runs,
    RANK: tl.constexpr, M: tl.constexpr, N: tl.constexpr, R: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """``sums[batch · heads · runs, entries, rank]``: one block of entries, over the tokens of one run of one head."""
    block, rest = tile_and_head()
    part, bh = rest % runs, rest // runs
    b64, h64, bh64 = (bh // heads).to(tl.int64), (bh % heads).to(tl.int64), bh.to(tl.int64)
    features_ptr += b64 * features_strides.batch + h64 * features_strides.head
    grad_rows_ptr += bh64 * tokens * entries
    entry = block * N + tl.arange(0, N)
    rank = tl.program_id(2) * R + tl.arange(0, R)
    total = tl.zeros([N, R], dtype=tl.float32)
    for m0 in range(part * run, tl.minimum(part * run + run, tokens), M):
        token = m0 + tl.arange(0, M)
        grad_rows = _tile(grad_rows_ptr, token, entry, entries, tokens, entries)
        features = _tile(features_ptr, token, rank, features_strides.token, tokens, RANK)
        total = tl.dot(tl.trans(grad_rows), features, total, input_precision=PRECISION)
    tl.store(
        sums_ptr + (rest.to(tl.int64) * entries + entry[:, None]) * RANK + rank[None, :], total * factor,
        mask=(entry[:, None] < entries) & (rank[None, :] < RANK),
    )  # fmt: skip
