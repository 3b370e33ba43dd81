"""The gradient of a distance table, for positions that equal the indices.

All tiles on one diagonal of the logits have the same distances at the same places. So the kernel adds their
gradients tile by tile, in registers, over all queries of a run, and sums the diagonals within the tile
once at the end. No two programs write to one address, so the result is deterministic.
"""

from __future__ import annotations

from collections import namedtuple

import triton
import triton.language as tl

from .arguments import Pairs, Tokens
from .tiles import (
    bias_of_head,
    dropout_factors,
    first_run,
    line_over_keys,
    row_term,
    tile_and_head,
    tile_bounds,
    tile_logits,
    visible,
)


@triton.jit
def _share_a_segment(q_segment_ptr, k_segment_ptr, qi, kj, q_len, k_len, LOOK: tl.constexpr):
    """Whether some query and some key of a tile may share a segment. Without LOOK, the answer is always yes.

    With packed sequences, most tiles of a diagonal lie between two sequences and can be skipped.
    """
    if LOOK:
        q_segment = tl.load(q_segment_ptr + tl.minimum(qi, q_len - 1))
        k_segment = tl.load(k_segment_ptr + tl.minimum(tl.maximum(kj, 0), k_len - 1))
        return (tl.min(q_segment, 0) <= tl.max(k_segment, 0)) & (
            tl.max(q_segment, 0) >= tl.min(k_segment, 0)
        )
    else:
        return True


@triton.jit
def _of_one_segment(
    q_segment_ptr, k_segment_ptr, start, end, shift, q_len, k_len, M: tl.constexpr, N: tl.constexpr
):  # fmt: skip
    """The first run of tiles in ``[start, end)`` that have only one segment."""
    TILES: tl.constexpr = 1024 // N
    full_start, full_end = end, end
    for begin in range(start, end, TILES * M):
        m0 = begin + tl.arange(0, TILES) * M
        q_least, q_greatest = tile_bounds(q_segment_ptr, m0, q_len, M)
        k_least, k_greatest = tile_bounds(k_segment_ptr, m0 + shift, k_len, N)
        same = (q_least == q_greatest) & (k_least == q_least) & (k_greatest == q_least) & (m0 < end)
        full_start, full_end = first_run(full_start, full_end, same, m0, end)
    return full_start, full_end


# The tiles of a diagonal. shift: from the index of a tile's first query to that of its first key; distance: of a
# tile's first query and first key.
Diagonal = namedtuple("Diagonal", "shift distance")


# The tensors of one head: start addresses, and strides between tokens.
Head = namedtuple("Head", "q k v grad level shared q_stride k_stride v_stride grad_stride slope seed")


@triton.jit
def _pull_to_diagonal(
    acc, start, end, diagonal, head, bias, tokens, numbers,
    KIND: tl.constexpr, M: tl.constexpr, N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add the logits' gradients of the tiles whose first query is in ``[start, end)``."""
    D: tl.constexpr = KIND.D
    DV: tl.constexpr = KIND.DV
    HEAD_DIM: tl.constexpr = KIND.HEAD_DIM
    V_DIM: tl.constexpr = KIND.V_DIM
    PRECISION: tl.constexpr = KIND.PRECISION
    LOOK: tl.constexpr = KIND.SEGMENTS and MASKED
    shift, distance = diagonal
    (
        q_ptr,
        k_ptr,
        v_ptr,
        grad_ptr,
        level_ptr,
        shared_ptr,
        q_stride,
        k_stride,
        v_stride,
        grad_stride,
        slope,
        seed,
    ) = head
    q_len, k_len = numbers.q_len, numbers.k_len
    d, dv = tl.arange(0, D), tl.arange(0, DV)
    rows, columns = tl.arange(0, M), tl.arange(0, N)
    zero = tl.zeros([], dtype=tl.int64)  # widens the loop index, which may be a Python int
    for m0 in tl.range(start, end, M, num_stages=1 if MASKED else None):
        qi = m0 + rows
        kj = m0 + shift + columns
        if _share_a_segment(tokens.q_segments, tokens.k_segments, qi, kj, q_len, k_len, LOOK):
            queries = (q_ptr + (m0 + zero) * q_stride) + (rows[:, None] * q_stride + d[None, :])
            gradients = (grad_ptr + (m0 + zero) * grad_stride) + (
                rows[:, None] * grad_stride + dv[None, :]
            )
            keys = (k_ptr + (m0 + shift + zero) * k_stride) + (columns[None, :] * k_stride + d[:, None])
            values = (v_ptr + (m0 + shift + zero) * v_stride) + (
                columns[None, :] * v_stride + dv[:, None]
            )
            in_rows, in_columns = qi < q_len, (kj >= 0) & (kj < k_len)
            if MASKED or D != HEAD_DIM:
                q_tile = tl.load(queries, mask=in_rows[:, None] & (d[None, :] < HEAD_DIM), other=0.0)
                k_tile = tl.load(keys, mask=in_columns[None, :] & (d[:, None] < HEAD_DIM), other=0.0)
            else:
                q_tile, k_tile = tl.load(queries), tl.load(keys)
            if MASKED or DV != V_DIM:
                grad_tile = tl.load(gradients, mask=in_rows[:, None] & (dv[None, :] < V_DIM), other=0.0)
                v_tile = tl.load(values, mask=in_columns[None, :] & (dv[:, None] < V_DIM), other=0.0)
            else:
                grad_tile, v_tile = tl.load(gradients), tl.load(values)
            level = tl.load(level_ptr + qi, mask=in_rows, other=float("inf"))
            shared = tl.load(shared_ptr + qi, mask=in_rows, other=0.0)
            scores = tl.dot(q_tile, k_tile, input_precision=PRECISION)  # [M, N]
            q_pos, k_pos = rows[:, None] + distance, columns[None, :]
            pairs = Pairs(qi[:, None], tl.maximum(kj, 0)[None, :], q_pos, k_pos)
            line = line_over_keys(pairs, k_pos, 0, slope, KIND)
            logits = tile_logits(scores, pairs, line, bias.table, bias, numbers, KIND, 0, False)
            level += row_term(rows + distance, slope, KIND)
            weights = tl.exp2(logits - level[:, None])
            if MASKED:
                seen = visible(qi[:, None], tl.maximum(kj, 0)[None, :], tokens, numbers, KIND)
                weights = tl.where(seen & in_columns[None, :], weights, 0.0)
            grad_weights = tl.dot(grad_tile, v_tile, input_precision=PRECISION)
            if KIND.DROPOUT:
                grad_weights *= dropout_factors(qi[:, None], kj[None, :], seed, numbers.dropout_p)
            acc += weights * (grad_weights - shared[:, None])
    return acc


@triton.jit
def _table_grad_kernel(
    q_ptr, k_ptr, v_ptr, grad_ptr, level_ptr, shared_ptr, sums_ptr, bias, tokens, seed_ptr,
    q_strides, k_strides, v_strides, grad_strides, bias_strides, q_token_batch, k_token_batch, numbers, window,
    first_diagonal, diagonals, run, runs,
    KIND: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """``sums[batch · runs, heads, diagonals, 2N]``: entry ``i - j + N - 1`` of a diagonal of M × N tiles, M ≤ N."""
    heads, groups, q_len, k_len = numbers.heads, numbers.groups, numbers.q_len, numbers.k_len
    diagonal, rest = tile_and_head()
    h, part, b = rest % heads, rest // heads % runs, rest // heads // runs
    distance = (first_diagonal + diagonal) * N  # of a tile's first query and first key
    b64, h64 = b.to(tl.int64), h.to(tl.int64)
    bh64 = b64 * heads + h64
    q_ptr += b64 * q_strides.batch + h64 * q_strides.head
    k_ptr += b64 * k_strides.batch + h64 // groups * k_strides.head
    v_ptr += b64 * v_strides.batch + h64 // groups * v_strides.head
    grad_ptr += b64 * grad_strides.batch + h64 * grad_strides.head
    level_ptr += bh64 * q_len
    shared_ptr += bh64 * q_len
    head_bias = bias_of_head(bias, bias_strides, b64, h64, numbers)
    tokens = Tokens(
        None, None, tokens.q_index + b64 * q_token_batch, tokens.k_index + b64 * k_token_batch,
        tokens.q_segments + b64 * q_token_batch, tokens.k_segments + b64 * k_token_batch, window,
    )  # fmt: skip
    slope, seed = 0.0, 0
    if KIND.LINEAR:
        slope = tl.load(bias.slopes + h)
    if KIND.DROPOUT:
        seed = tl.load(seed_ptr) + bh64.to(tl.int32)
    head = Head(
        q_ptr, k_ptr, v_ptr, grad_ptr, level_ptr, shared_ptr,
        q_strides.token, k_strides.token, v_strides.token, grad_strides.token, slope, seed,
    )  # fmt: skip

    shift = k_len - q_len - distance  # from a tile's first query to its first key
    # Skip queries whose tile of keys lies completely before the first or after the last key.
    start = tl.maximum(part * run, tl.cdiv(tl.maximum(-shift - N + 1, 0), M) * M)
    q_end = tl.minimum(part * run + run, q_len)
    end = tl.maximum(tl.minimum(q_end, k_len - shift), start)
    # Among these, the tiles without padding and without hidden pairs: they need no mask.
    full_start = tl.minimum(tl.maximum(start, tl.cdiv(tl.maximum(-shift, 0), M) * M), end)
    last_full = tl.minimum(q_end - M, k_len - shift - N)
    full_end = full_start + tl.maximum(last_full + M - full_start, 0) // M * M
    lowest, highest = -q_len, k_len  # bounds of the visible distances
    if KIND.CAUSAL:
        lowest = 0
    if KIND.WINDOWED:
        highest = window - 1
        if not KIND.CAUSAL:
            lowest = 1 - window
    all_seen = (distance - (N - 1) >= lowest) & (distance + (M - 1) <= highest)
    full_start, full_end = tl.where(all_seen, full_start, start), tl.where(all_seen, full_end, start)
    if KIND.SEGMENTS and not KIND.ALL_MASKED:
        full_start, full_end = _of_one_segment(
            tokens.q_segments, tokens.k_segments, full_start, full_end, shift, q_len, k_len, M, N
        )
    if KIND.ALL_MASKED:
        full_start, full_end = start, start
    acc = tl.zeros([M, N], dtype=tl.float32)
    for third in tl.static_range(3):
        first, last = start, full_start
        if third == 1:
            first, last = full_start, full_end
        if third == 2:
            first, last = full_end, end
        if third == 2 or not KIND.ALL_MASKED:
            acc = _pull_to_diagonal(
                acc, first, last, Diagonal(shift, distance), head, head_bias, tokens, numbers,
                KIND, M, N, third != 1,
            )  # fmt: skip

    # Row i moves i - j + N - 1 to column t, so that a column holds one distance.
    rows, t = tl.arange(0, M), tl.arange(0, 2 * N)
    source = rows[:, None] + (N - 1) - t[None, :]
    inside = (source >= 0) & (source < N)
    skewed = tl.gather(acc, tl.minimum(tl.maximum(source, 0), N - 1), 1)
    sums = tl.sum(tl.where(inside, skewed, 0.0), 0)
    place = rest.to(tl.int64) * diagonals + diagonal
    tl.store(sums_ptr + place * (2 * N) + t, sums)


@triton.jit
def _fold_table_kernel(
    sums_ptr, past_ptr, future_ptr, grad_table_ptr,
    heads, q_len, batch, table_len, table_lo, first_diagonal, diagonals, rows,
    SUMS: tl.constexpr, ENDS: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write entries of one head's gradient: with ENDS the two ends from all queries, the others from ``SUMS``.

    SUMS is ``"diagonals"``, or, where positions are data, ``"tables"`` to be summed, or ``"none"`` if the entries
    are in the table already. There are few programs, so each loads much at a time.
    """
    ROWS: tl.constexpr = 16
    QUERIES: tl.constexpr = 4096
    block, h = tile_and_head()
    h64 = h.to(tl.int64)
    entry = block * BLOCK + tl.arange(0, BLOCK)
    place = grad_table_ptr + h64 * table_len + entry
    if ENDS:
        inside = (entry > 0) & (entry < table_len - 1)
    else:
        inside = entry < table_len
    total = tl.zeros([BLOCK], dtype=tl.float32)
    if SUMS == "diagonals":
        # Each distance lies on two neighbouring diagonals of tiles, N entries further on the one before.
        offset = table_lo + entry + (N - 1) - first_diagonal * N
        diagonal, t = offset // N, offset % N
        after = inside & (offset >= 0) & (diagonal < diagonals)
        before = inside & (offset >= N) & (diagonal <= diagonals)
        for first in range(0, rows, ROWS):
            row = first + tl.arange(0, ROWS)[:, None]
            start = sums_ptr + (row * heads + h64) * diagonals * (2 * N)
            here = tl.load(start + diagonal * (2 * N) + t, mask=after & (row < rows), other=0.0)
            there = tl.load(
                start + (diagonal - 1) * (2 * N) + t + N, mask=before & (row < rows), other=0.0
            )
            total += tl.sum(here + there, 0)
    elif SUMS == "tables":
        for first in range(0, rows, ROWS):
            row = first + tl.arange(0, ROWS)[:, None]
            start = sums_ptr + (row * heads + h64) * table_len
            total += tl.sum(tl.load(start + entry, mask=inside & (row < rows), other=0.0), 0)
    else:
        total = tl.load(place, mask=inside, other=0.0)
    if ENDS:
        # Only programs that hold an end entry sum over queries.
        past = tl.zeros([QUERIES], dtype=tl.float32)
        future = tl.zeros([QUERIES], dtype=tl.float32)
        if (block == 0) | (block == tl.num_programs(1) - 1):
            for b in range(batch):
                start = (b * heads + h64) * q_len
                for first in range(0, q_len, QUERIES):
                    query = first + tl.arange(0, QUERIES)
                    past += tl.load(past_ptr + start + query, mask=query < q_len, other=0.0)
                    future += tl.load(future_ptr + start + query, mask=query < q_len, other=0.0)
        total += tl.where(entry == table_len - 1, tl.sum(past, 0), 0.0)
        total += tl.where(entry == 0, tl.sum(future, 0), 0.0)
    tl.store(place, total, mask=entry < table_len)
