"""The gradients of k and v, and of everything a key owns: the twin of `query_gradient`, and run after it.

So is the gradient of a table between its ends, where positions are data: it needs what was measured there.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .by_distance import pull_to_ends, pull_to_rows, pull_to_table
from .tiles import (
    LOG2E,
    between,
    counted_times,
    entries_of,
    kept,
    level_beyond,
    query_ranges,
    reference_position,
    relative_positions,
    softcap_slope,
    tile_and_head,
    tile_logits,
    visible,
)


@triton.jit
def _pull_to_key_rows(
    past, future, grad_logits, distance, in_rows, in_columns, rows, row_len, row_lo,
    ALIGNED: tl.constexpr, ORDERED: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """What a ``[N, M]`` tile pulls at the keys' rows; ends are summed up aside."""
    if FAR == 1:
        past += tl.sum(grad_logits, 1)
    elif FAR == -1:
        future += tl.sum(grad_logits, 1)
    else:
        lo, hi = row_lo, row_lo + row_len - 1
        past += tl.sum(tl.where(distance >= hi, grad_logits, 0.0), 1)
        future += tl.sum(tl.where((distance <= lo) & (distance < hi), grad_logits, 0.0), 1)
        pull_to_rows(grad_logits, distance, in_rows, in_columns, rows, row_len, row_lo, ALIGNED, ORDERED)
    return past, future


@triton.jit
def _span(offsets, first, q_pos, k_pos, SYMMETRIC: tl.constexpr, ALIGNED: tl.constexpr):
    """What a slope is multiplied with: how far a key is before a query, or from it."""
    if ALIGNED:
        span = counted_times(1.0, offsets, first) - k_pos.to(tl.float32)
    else:
        span = between(q_pos, k_pos)
    if SYMMETRIC:
        span = tl.abs(span)
    return span


@triton.jit
def _pull_to_keys(
    grad_k, grad_v, grad_key, past, future, grad_slope, k_tile, v_tile, start, end,
    q_ptr, grad_ptr, level_ptr, shared_ptr, levels, q_stride, grad_stride, kj, ref, slope, seed,
    table_ptr, key_ptr, row_ptr, key_row_ptr, grad_key_row_ptr, grad_table_ptr, q_pos_ptr, k_pos_ptr,
    q_index_ptr, k_index_ptr, q_segment_ptr, k_segment_ptr,
    scale, softcap, dropout_p, table_len, table_lo, row_len, row_lo, q_len, k_len, window,
    HEAD_DIM: tl.constexpr, V_DIM: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, M: tl.constexpr,
    LINEAR: tl.constexpr, SYMMETRIC: tl.constexpr, TABLE: tl.constexpr, KEY: tl.constexpr,
    ROW: tl.constexpr, KEY_ROW: tl.constexpr, ALIGNED: tl.constexpr, SOFTCAP: tl.constexpr,
    DROPOUT: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, INDEXED: tl.constexpr,
    SEGMENTS: tl.constexpr, ALL_MASKED: tl.constexpr, PRECISION: tl.constexpr, GRAD_KEY: tl.constexpr,
    GRAD_KEY_ROW: tl.constexpr, SCATTER: tl.constexpr, ORDERED: tl.constexpr, GRAD_SLOPE: tl.constexpr,
    EVEN: tl.constexpr, SHORT: tl.constexpr, WHOLE: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    MASKED: tl.constexpr = PART == 0 or PART == 4 or ALL_MASKED
    FOUND: tl.constexpr = WHOLE and PART == 2
    N: tl.constexpr = k_tile.shape[0]
    FAR: tl.constexpr = 1 if PART == 3 else (-1 if PART == 1 else 0)
    d, dv, rows, keys = tl.arange(0, D), tl.arange(0, DV), tl.arange(0, M), tl.arange(0, N)
    # Where few tiles are looked up, their loop is best kept small; where all are, it needs its pipeline.
    STAGES: tl.constexpr = 1 if SHORT and FAR == 0 else None
    level_ptr = level_beyond(level_ptr, levels, TABLE, ROW, FAR)
    zero = tl.zeros([], dtype=tl.int64)  # widens a loop's index, which may be a plain number
    for m0 in tl.range(start, end, M, num_stages=STAGES):
        qi = m0 + rows
        queries = (q_ptr + (m0 + zero) * q_stride) + (rows[:, None] * q_stride + d[None, :])
        gradients = (grad_ptr + (m0 + zero) * grad_stride) + (rows[:, None] * grad_stride + dv[None, :])
        if EVEN:
            q_tile, grad_tile = tl.load(queries), tl.load(gradients)
            level, shared = tl.load(level_ptr + qi), tl.load(shared_ptr + qi)
        else:
            in_rows = qi < q_len
            q_tile = tl.load(queries, mask=in_rows[:, None] & (d[None, :] < HEAD_DIM), other=0.0)
            grad_tile = tl.load(gradients, mask=in_rows[:, None] & (dv[None, :] < V_DIM), other=0.0)
            level = tl.load(level_ptr + qi, mask=in_rows, other=float("inf"))
            shared = tl.load(shared_ptr + qi, mask=in_rows, other=0.0)
        scores = tl.dot(k_tile, tl.trans(q_tile), input_precision=PRECISION)  # [N, M]
        q_pos, k_pos = relative_positions(
            qi[None, :], kj[:, None], q_pos_ptr, k_pos_ptr, ref, q_len, k_len, ALIGNED
        )
        first = m0 + (k_len - q_len) - ref
        level = level[None, :]
        line = 0.0
        if LINEAR:
            if SYMMETRIC or not ALIGNED:
                span = _span(rows[None, :], first, q_pos, k_pos, SYMMETRIC, ALIGNED)
                line = -slope * LOG2E * span
            else:
                line = slope * LOG2E * k_pos.to(tl.float32)
                level += counted_times(slope * LOG2E, rows[None, :], first)  # `row_term`
        entries = table_ptr
        if FOUND:
            entries = entries_of(table_ptr, first - table_lo, rows[None, :], keys[:, None], N)
        logits = tile_logits(
            scores, qi[None, :], kj[:, None], q_pos, k_pos, line,
            entries, key_ptr, row_ptr, key_row_ptr,
            scale, softcap, table_len, table_lo, row_len, row_lo, q_len, k_len,
            LINEAR, TABLE, KEY, ROW, KEY_ROW, SOFTCAP, FAR, FOUND,
        )  # fmt: skip
        weights = tl.exp2(logits - level)
        if MASKED:
            seen = visible(
                qi[None, :], kj[:, None], q_index_ptr, k_index_ptr, q_segment_ptr, k_segment_ptr,
                q_len, k_len, window, CAUSAL, WINDOWED, INDEXED, SEGMENTS,
            )  # fmt: skip
            weights = tl.where(seen, weights, 0.0)
        grad_weights = tl.dot(v_tile, tl.trans(grad_tile), input_precision=PRECISION)  # [N, M]
        dropped = weights
        if DROPOUT:
            keep = kept(qi[None, :], kj[:, None], seed, dropout_p)
            grad_weights *= keep
            dropped = weights * keep
        grad_v = tl.dot(dropped.to(grad_tile.dtype), grad_tile, grad_v, input_precision=PRECISION)
        grad_logits = weights * (grad_weights - shared[None, :])
        if GRAD_KEY:
            grad_key += tl.sum(grad_logits, 1)
        if GRAD_KEY_ROW:
            past, future = _pull_to_key_rows(
                past, future, grad_logits, q_pos - k_pos, kj < k_len, qi < q_len,
                grad_key_row_ptr + kj.to(tl.int64) * row_len, row_len, row_lo, ALIGNED, ORDERED, FAR,
            )  # fmt: skip
        if SCATTER and FAR == 0:
            pull_to_table(
                grad_logits, q_pos - k_pos, kj < k_len, qi < q_len, grad_table_ptr, table_len, table_lo, ORDERED
            )  # fmt: skip
        if GRAD_SLOPE:
            span = _span(rows[None, :], first, q_pos, k_pos, SYMMETRIC, ALIGNED)
            grad_slope -= tl.sum(grad_logits * span, 1)
        grad_scores = grad_logits * softcap_slope(scores, scale, softcap, SOFTCAP)
        grad_k = tl.dot(grad_scores.to(q_tile.dtype), q_tile, grad_k, input_precision=PRECISION)
    return grad_k, grad_v, grad_key, past, future, grad_slope


@triton.jit
def _attention_bwd_kv_kernel(
    q_ptr, k_ptr, v_ptr, grad_ptr, level_ptr, shared_ptr, grad_k_ptr, grad_v_ptr, grad_key_ptr,
    grad_key_row_ptr, grad_table_ptr, grad_slope_ptr,
    slopes_ptr, table_ptr, key_ptr, row_ptr, key_row_ptr, q_pos_ptr, k_pos_ptr,
    q_index_ptr, k_index_ptr, q_segment_ptr, k_segment_ptr, range_ptr, seed_ptr,
    q_batch, q_head, q_stride, k_batch, k_head, k_stride, v_batch, v_head, v_stride,
    grad_batch, grad_head, grad_stride, grad_k_batch, grad_k_head, grad_k_stride,
    grad_v_batch, grad_v_head, grad_v_stride,
    key_batch, key_head, row_batch, key_row_batch, q_pos_batch, k_pos_batch,
    q_token_batch, k_token_batch, range_batch,
    heads, groups, q_len, k_len, scale, softcap, dropout_p, table_len, table_lo, row_len, row_lo,
    far_lo, far_hi, window, levels,
    HEAD_DIM: tl.constexpr, V_DIM: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, NEAR: tl.constexpr,
    LINEAR: tl.constexpr, SYMMETRIC: tl.constexpr, TABLE: tl.constexpr, KEY: tl.constexpr,
    ROW: tl.constexpr, KEY_ROW: tl.constexpr, ALIGNED: tl.constexpr, SOFTCAP: tl.constexpr,
    DROPOUT: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, INDEXED: tl.constexpr,
    SEGMENTS: tl.constexpr, ALL_MASKED: tl.constexpr, PRECISION: tl.constexpr, GRAD_KEY: tl.constexpr,
    GRAD_KEY_ROW: tl.constexpr, SCATTER: tl.constexpr, ORDERED: tl.constexpr, GRAD_SLOPE: tl.constexpr,
    EVEN: tl.constexpr, SHORT: tl.constexpr, WHOLE: tl.constexpr, FAR_TILES: tl.constexpr,
):  # fmt: skip
    """One tile of keys: its gradients, gathered over all query heads that share it."""
    EDGES: tl.constexpr = WHOLE or not ALL_MASKED
    # The runs of tiles that `query_ranges` tells apart; those that cannot occur are not even compiled.
    OCCURS: tl.constexpr = (
        EDGES and (CAUSAL or WINDOWED or SEGMENTS),
        FAR_TILES and not CAUSAL,
        True,
        FAR_TILES,
        EDGES,
    )
    tile, b_and_head = tile_and_head()
    kv_heads = heads // groups
    b, kv_head = b_and_head // kv_heads, b_and_head % kv_heads
    n0 = tile * N
    kj = n0 + tl.arange(0, N)
    d, dv = tl.arange(0, D), tl.arange(0, DV)
    b64, kv64 = b.to(tl.int64), kv_head.to(tl.int64)

    in_rows = kj < k_len
    rows = kj[:, None].to(tl.int64)
    k_tile = tl.load(
        k_ptr + b64 * k_batch + kv64 * k_head + rows * k_stride + d[None, :],
        mask=in_rows[:, None] & (d[None, :] < HEAD_DIM), other=0.0,
    )  # fmt: skip
    v_tile = tl.load(
        v_ptr + b64 * v_batch + kv64 * v_head + rows * v_stride + dv[None, :],
        mask=in_rows[:, None] & (dv[None, :] < V_DIM), other=0.0,
    )  # fmt: skip
    q_pos_ptr += b64 * q_pos_batch
    k_pos_ptr += b64 * k_pos_batch
    q_index_ptr += b64 * q_token_batch
    k_index_ptr += b64 * k_token_batch
    q_segment_ptr += b64 * q_token_batch
    k_segment_ptr += b64 * k_token_batch
    ref = reference_position(n0, k_pos_ptr, 0, ALIGNED)
    bounds = query_ranges(
        n0, range_ptr + b64 * range_batch, tile,
        q_len, k_len, window, far_lo, far_hi,
        M, N, CAUSAL, WINDOWED, INDEXED, SEGMENTS, ALL_MASKED, FAR_TILES, ALIGNED, WHOLE,
    )  # fmt: skip

    grad_k = tl.zeros([N, D], dtype=tl.float32)
    grad_v = tl.zeros([N, DV], dtype=tl.float32)
    for g in range(groups):
        h64 = kv64 * groups + g
        bh64 = b64 * heads + h64
        slope, seed = 0.0, 0
        if LINEAR:
            slope = tl.load(slopes_ptr + h64)
        if DROPOUT:
            seed = tl.load(seed_ptr) + bh64.to(tl.int32)
        grad_key = tl.zeros([N], dtype=tl.float32)
        past = tl.zeros([N], dtype=tl.float32)
        future = tl.zeros([N], dtype=tl.float32)
        grad_slope = tl.zeros([N], dtype=tl.float32)
        # Added up in order, every tile has a table of its own.
        own_table = (b64 * tl.num_programs(1) + tile) * heads if ORDERED else 0
        for part in tl.static_range(5):
            if OCCURS[part]:
                first, last = bounds[part], bounds[part + 1]
                grad_k, grad_v, grad_key, past, future, grad_slope = _pull_to_keys(
                    grad_k, grad_v, grad_key, past, future, grad_slope, k_tile, v_tile, first, last,
                    q_ptr + b64 * q_batch + h64 * q_head, grad_ptr + b64 * grad_batch + h64 * grad_head,
                    level_ptr + bh64 * q_len, shared_ptr + bh64 * q_len, levels,
                    q_stride, grad_stride, kj, ref, slope, seed,
                    table_ptr + h64 * table_len, key_ptr + b64 * key_batch + h64 * key_head,
                    row_ptr + b64 * row_batch + h64 * q_len * row_len,
                    key_row_ptr + b64 * key_row_batch + h64 * k_len * row_len,
                    grad_key_row_ptr + bh64 * k_len * row_len,
                    grad_table_ptr + (own_table + h64) * table_len, q_pos_ptr, k_pos_ptr,
                    q_index_ptr, k_index_ptr, q_segment_ptr, k_segment_ptr,
                    scale, softcap, dropout_p, table_len, table_lo, row_len, row_lo, q_len, k_len, window,
                    HEAD_DIM, V_DIM, D, DV, M if part == 1 or part == 3 else NEAR,
                    LINEAR, SYMMETRIC, TABLE, KEY, ROW, KEY_ROW, ALIGNED, SOFTCAP, DROPOUT,
                    CAUSAL, WINDOWED, INDEXED, SEGMENTS, ALL_MASKED, PRECISION, GRAD_KEY, GRAD_KEY_ROW,
                    SCATTER, ORDERED, GRAD_SLOPE, EVEN, SHORT, WHOLE, part,
                )  # fmt: skip
        if GRAD_KEY:
            tl.store(grad_key_ptr + bh64 * k_len + kj, grad_key, mask=in_rows)
        if GRAD_KEY_ROW:
            key_rows = grad_key_row_ptr + (bh64 * k_len + kj) * row_len
            pull_to_ends(past, future, in_rows, key_rows, row_len)
        if GRAD_SLOPE:
            share = tl.sum(tl.where(in_rows, grad_slope, 0.0), 0)
            tl.store(grad_slope_ptr + bh64 * tl.num_programs(1) + tile, share)
    tl.store(
        grad_k_ptr + b64 * grad_k_batch + kv64 * grad_k_head + rows * grad_k_stride + d[None, :],
        (grad_k * scale).to(grad_k_ptr.dtype.element_ty),
        mask=in_rows[:, None] & (d[None, :] < HEAD_DIM),
    )
    tl.store(
        grad_v_ptr + b64 * grad_v_batch + kv64 * grad_v_head + rows * grad_v_stride + dv[None, :],
        grad_v.to(grad_v_ptr.dtype.element_ty),
        mask=in_rows[:, None] & (dv[None, :] < V_DIM),
    )
