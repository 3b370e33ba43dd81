"""The gradients of q and of everything a query owns.

The logits are computed again from q, k and the saved logsumexp. With ``p`` the weights and ``g`` the
gradient of the output, the gradient of the logits is ``p · (g·v - shared)``, where ``shared`` is
``g·out`` of the row (less the gradient of its logsumexp).

The output was rounded when it was stored, and so is ``shared``. Over a row the error is the same for all
keys and cannot average out in a sum over pairs, as gradients of slopes and tables are. But the weights of
a row add up to one, so its logits' gradients must add up to the gradient of its logsumexp: this kernel
measures by how much they do not, and the kernels after it get a ``shared`` without the error.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .by_distance import pull_to_ends, pull_to_rows
from .tiles import (
    LOG2E,
    entries_of,
    far_term,
    kept,
    key_ranges,
    level_beyond,
    line_over_keys,
    reference_position,
    relative_positions,
    row_term,
    softcap_slope,
    tile_and_head,
    tile_logits,
    visible,
)


@triton.jit
def _shared_kernel(
    out_ptr, grad_ptr, lse_ptr, grad_lse_ptr, shared_ptr, level_ptr, table_ptr, row_ptr,
    out_batch, out_head, out_stride, grad_batch, grad_head, grad_stride, row_batch, heads, q_len,
    table_len, row_len, levels,
    V_DIM: tl.constexpr, DV: tl.constexpr, M: tl.constexpr, GRAD_LSE: tl.constexpr,
    TABLE: tl.constexpr, ROW: tl.constexpr,
):  # fmt: skip
    """``shared = grad·out - grad_lse`` for each query, and the level of its logits: their logsumexp in units of log 2.

    A query that sees nothing gets an infinite level, beside which all weights vanish. With a table or rows there are
    two more levels, each ``levels`` numbers further on: past their end, and before their start, one number would be
    added to all logits of a query, and is taken off its level instead.
    """
    tile, bh = tile_and_head()
    b, h = bh // heads, bh % heads
    qi = tile * M + tl.arange(0, M)
    dv = tl.arange(0, DV)
    b64, h64 = b.to(tl.int64), h.to(tl.int64)
    rows = qi[:, None].to(tl.int64)
    inside = (qi[:, None] < q_len) & (dv[None, :] < V_DIM)
    out = tl.load(
        out_ptr + b64 * out_batch + h64 * out_head + rows * out_stride + dv[None, :],
        mask=inside,
        other=0.0,
    ).to(tl.float32)
    grad = tl.load(
        grad_ptr + b64 * grad_batch + h64 * grad_head + rows * grad_stride + dv[None, :],
        mask=inside,
        other=0.0,
    ).to(tl.float32)
    shared = tl.sum(out * grad, 1)
    place = bh.to(tl.int64) * q_len + qi
    if GRAD_LSE:
        shared -= tl.load(grad_lse_ptr + place, mask=qi < q_len, other=0.0)
    tl.store(shared_ptr + place, shared, mask=qi < q_len)
    lse = tl.load(lse_ptr + place, mask=qi < q_len, other=0.0)
    level = tl.where(lse == float("-inf"), float("inf"), lse * LOG2E)
    tl.store(level_ptr + place, level, mask=qi < q_len)
    if TABLE or ROW:
        table_ptr += h64 * table_len
        row_ptr += b64 * row_batch + h64 * q_len * row_len
        past = far_term(qi, q_len, table_ptr, table_len, row_ptr, row_len, TABLE, ROW, 1)
        future = far_term(qi, q_len, table_ptr, table_len, row_ptr, row_len, TABLE, ROW, -1)
        tl.store(level_ptr + levels + place, level - past, mask=qi < q_len)
        tl.store(level_ptr + levels + levels + place, level - future, mask=qi < q_len)


@triton.jit
def _pull_to_queries(
    grad_q, total, past, future, near_weight, future_weight, q_tile, grad_tile, level, shared, start, end,
    k_ptr, v_ptr, k_stride, v_stride, qi, ref, slope, seed,
    table_ptr, key_ptr, row_ptr, key_row_ptr, grad_row_ptr, q_pos_ptr, k_pos_ptr,
    q_index_ptr, k_index_ptr, q_segment_ptr, k_segment_ptr,
    scale, softcap, dropout_p, table_len, table_lo, row_len, row_lo, q_len, k_len, window,
    HEAD_DIM: tl.constexpr, V_DIM: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, N: tl.constexpr,
    LINEAR: tl.constexpr, SYMMETRIC: tl.constexpr, TABLE: tl.constexpr, KEY: tl.constexpr,
    ROW: tl.constexpr, KEY_ROW: tl.constexpr, ALIGNED: tl.constexpr, SOFTCAP: tl.constexpr,
    DROPOUT: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, INDEXED: tl.constexpr,
    SEGMENTS: tl.constexpr, ALL_MASKED: tl.constexpr, PRECISION: tl.constexpr, ENDS: tl.constexpr,
    GRAD_ROW: tl.constexpr, ORDERED: tl.constexpr, BALANCED: tl.constexpr, SHORT: tl.constexpr, WHOLE: tl.constexpr,
    PART: tl.constexpr,
):  # fmt: skip
    MASKED: tl.constexpr = PART == 0 or PART == 4 or ALL_MASKED
    FOUND: tl.constexpr = WHOLE and PART == 2
    FAR: tl.constexpr = 1 if PART == 1 else (-1 if PART == 3 else 0)
    d, dv, columns = tl.arange(0, D), tl.arange(0, DV), tl.arange(0, N)
    rows = tl.arange(0, q_tile.shape[0])
    # A loop over few tiles is best kept small, without a pipeline: over those looked up where a table is short, and
    # over those at the edge of a mask, unless windows or segments make them many.
    EDGE: tl.constexpr = PART == 4 and not (WINDOWED or SEGMENTS)
    STAGES: tl.constexpr = 1 if EDGE or (SHORT and FAR == 0) else None
    zero = tl.zeros([], dtype=tl.int64)  # widens a loop's index, which may be a plain number
    for n0 in tl.range(start, end, N, num_stages=STAGES):
        kj = n0 + columns
        keys = (k_ptr + (n0 + zero) * k_stride) + (columns[None, :] * k_stride + d[:, None])
        values = (v_ptr + (n0 + zero) * v_stride) + (columns[None, :] * v_stride + dv[:, None])
        if MASKED or D != HEAD_DIM:
            k_tile = tl.load(keys, mask=(kj[None, :] < k_len) & (d[:, None] < HEAD_DIM), other=0.0)
        else:
            k_tile = tl.load(keys)
        if MASKED or DV != V_DIM:
            v_tile = tl.load(values, mask=(kj[None, :] < k_len) & (dv[:, None] < V_DIM), other=0.0)
        else:
            v_tile = tl.load(values)
        scores = tl.dot(q_tile, k_tile, input_precision=PRECISION)  # [M, N]
        q_pos, k_pos = relative_positions(
            qi[:, None], kj[None, :], q_pos_ptr, k_pos_ptr, ref, q_len, k_len, ALIGNED
        )
        line = line_over_keys(
            q_pos, k_pos, columns[None, :], n0 - ref, slope, LINEAR, SYMMETRIC, ALIGNED
        )
        entries = table_ptr
        if FOUND:
            entries = entries_of(table_ptr, ref - n0 - table_lo, rows[:, None], columns[None, :], N)
        logits = tile_logits(
            scores, qi[:, None], kj[None, :], q_pos, k_pos, line,
            entries, key_ptr, row_ptr, key_row_ptr,
            scale, softcap, table_len, table_lo, row_len, row_lo, q_len, k_len,
            LINEAR, TABLE, KEY, ROW, KEY_ROW, SOFTCAP, FAR, FOUND,
        )  # fmt: skip
        weights = tl.exp2(logits - level[:, None])
        if MASKED:
            seen = visible(
                qi[:, None], kj[None, :], q_index_ptr, k_index_ptr, q_segment_ptr, k_segment_ptr,
                q_len, k_len, window, CAUSAL, WINDOWED, INDEXED, SEGMENTS,
            )  # fmt: skip
            weights = tl.where(seen, weights, 0.0)
        grad_weights = tl.dot(grad_tile, v_tile, input_precision=PRECISION)
        if DROPOUT:
            grad_weights *= kept(qi[:, None], kj[None, :], seed, dropout_p)
        grad_logits = weights * (grad_weights - shared[:, None])
        if BALANCED or ENDS:
            pull = tl.sum(grad_logits, 1)
            total += pull
        if ENDS:
            if FAR == 1:
                past += pull
            elif FAR == -1:
                future += pull
                future_weight += tl.sum(weights, 1)
            else:
                distance = q_pos - k_pos
                if TABLE:
                    lo, hi = table_lo, table_lo + table_len - 1
                else:
                    lo, hi = row_lo, row_lo + row_len - 1
                is_past = distance >= hi
                is_future = (distance <= lo) & (distance < hi)
                past += tl.sum(tl.where(is_past, grad_logits, 0.0), 1)
                future += tl.sum(tl.where(is_future, grad_logits, 0.0), 1)
                near_weight += tl.sum(tl.where(is_past | is_future, 0.0, weights), 1)
                future_weight += tl.sum(tl.where(is_future, weights, 0.0), 1)
                if GRAD_ROW:
                    pull_to_rows(
                        grad_logits, distance, qi < q_len, kj < k_len, grad_row_ptr + qi.to(tl.int64) * row_len,
                        row_len, row_lo, ALIGNED, ORDERED,
                    )  # fmt: skip
        grad_scores = grad_logits * softcap_slope(scores, scale, softcap, SOFTCAP)
        grad_q = tl.dot(
            grad_scores.to(k_tile.dtype), tl.trans(k_tile), grad_q, input_precision=PRECISION
        )
    return grad_q, total, past, future, near_weight, future_weight


@triton.jit
def _attention_bwd_q_kernel(
    q_ptr, k_ptr, v_ptr, grad_ptr, level_ptr, grad_lse_ptr, shared_ptr, grad_q_ptr, grad_row_ptr,
    past_ptr, future_ptr,
    slopes_ptr, table_ptr, key_ptr, row_ptr, key_row_ptr, q_pos_ptr, k_pos_ptr,
    q_index_ptr, k_index_ptr, q_segment_ptr, k_segment_ptr, range_ptr, seed_ptr,
    q_batch, q_head, q_stride, k_batch, k_head, k_stride, v_batch, v_head, v_stride,
    grad_batch, grad_head, grad_stride, grad_q_batch, grad_q_head, grad_q_stride,
    key_batch, key_head, row_batch, key_row_batch, q_pos_batch, k_pos_batch,
    q_token_batch, k_token_batch, range_batch,
    heads, groups, q_len, k_len, scale, softcap, dropout_p, table_len, table_lo, row_len, row_lo,
    far_lo, far_hi, window, levels,
    HEAD_DIM: tl.constexpr, V_DIM: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, NEAR: tl.constexpr,
    LINEAR: tl.constexpr, SYMMETRIC: tl.constexpr, TABLE: tl.constexpr, KEY: tl.constexpr,
    ROW: tl.constexpr, KEY_ROW: tl.constexpr, ALIGNED: tl.constexpr, SOFTCAP: tl.constexpr,
    DROPOUT: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, INDEXED: tl.constexpr,
    SEGMENTS: tl.constexpr, ALL_MASKED: tl.constexpr, PRECISION: tl.constexpr, GRAD_TABLE_ENDS: tl.constexpr,
    GRAD_ROW: tl.constexpr, ORDERED: tl.constexpr, BALANCED: tl.constexpr, GRAD_LSE: tl.constexpr,
    SHORT: tl.constexpr, WHOLE: tl.constexpr, FAR_TILES: tl.constexpr,
):  # fmt: skip
    """One tile of queries: its gradient, that of its rows, and what it pulls at the two ends of a table."""
    EDGES: tl.constexpr = WHOLE or not ALL_MASKED
    # The runs of tiles that `key_ranges` tells apart; those that cannot occur are not even compiled.
    OCCURS: tl.constexpr = (
        EDGES and (WINDOWED or SEGMENTS),
        FAR_TILES,
        True,
        FAR_TILES and not CAUSAL,
        EDGES,
    )
    ENDS: tl.constexpr = GRAD_TABLE_ENDS or GRAD_ROW
    tile, bh = tile_and_head()
    tile = tl.num_programs(1) - 1 - tile  # under a causal mask the last has most to do
    b, h = bh // heads, bh % heads
    m0 = tile * M
    qi = m0 + tl.arange(0, M)
    d, dv = tl.arange(0, D), tl.arange(0, DV)
    b64, h64, bh64 = b.to(tl.int64), h.to(tl.int64), bh.to(tl.int64)

    q_ptr += b64 * q_batch + h64 * q_head
    k_ptr += b64 * k_batch + h64 // groups * k_head
    v_ptr += b64 * v_batch + h64 // groups * v_head
    grad_ptr += b64 * grad_batch + h64 * grad_head
    table_ptr += h64 * table_len
    key_ptr += b64 * key_batch + h64 * key_head
    row_ptr += b64 * row_batch + h64 * q_len * row_len
    key_row_ptr += b64 * key_row_batch + h64 * k_len * row_len
    grad_row_ptr += bh64 * q_len * row_len
    q_pos_ptr += b64 * q_pos_batch
    k_pos_ptr += b64 * k_pos_batch
    q_index_ptr += b64 * q_token_batch
    k_index_ptr += b64 * k_token_batch
    q_segment_ptr += b64 * q_token_batch
    k_segment_ptr += b64 * k_token_batch

    in_rows = qi < q_len
    rows = qi[:, None].to(tl.int64)
    q_tile = tl.load(
        q_ptr + rows * q_stride + d[None, :], mask=in_rows[:, None] & (d[None, :] < HEAD_DIM), other=0.0
    )
    grad_tile = tl.load(
        grad_ptr + rows * grad_stride + dv[None, :],
        mask=in_rows[:, None] & (dv[None, :] < V_DIM),
        other=0.0,
    )
    slope, seed = 0.0, 0
    if LINEAR:
        slope = tl.load(slopes_ptr + h)
    if DROPOUT:
        seed = tl.load(seed_ptr) + bh
    ref = reference_position(m0, q_pos_ptr, k_len - q_len, ALIGNED)
    q_pos, _ = relative_positions(qi, qi * 0, q_pos_ptr, k_pos_ptr, ref, q_len, k_len, ALIGNED)
    level_ptr += bh64 * q_len + qi
    line_at_query = row_term(q_pos, slope, LINEAR, SYMMETRIC, ALIGNED)
    near_level = tl.load(level_ptr, mask=in_rows, other=float("inf")) + line_at_query
    shared = tl.load(shared_ptr + bh64 * q_len + qi, mask=in_rows, other=0.0)

    bounds = key_ranges(
        m0, range_ptr + b64 * range_batch, tile,
        q_len, k_len, window, far_lo, far_hi,
        M, N, CAUSAL, WINDOWED, INDEXED, SEGMENTS, ALL_MASKED, FAR_TILES, ALIGNED, WHOLE,
    )  # fmt: skip
    grad_q = tl.zeros([M, D], dtype=tl.float32)
    total = tl.zeros([M], dtype=tl.float32)
    past = tl.zeros([M], dtype=tl.float32)
    future = tl.zeros([M], dtype=tl.float32)
    near_weight = tl.zeros([M], dtype=tl.float32)
    future_weight = tl.zeros([M], dtype=tl.float32)
    for part in tl.static_range(5):
        if OCCURS[part]:
            first, last = bounds[part], bounds[part + 1]
            level = near_level
            if (TABLE or ROW) and (part == 1 or part == 3):
                beyond = level_beyond(level_ptr, levels, TABLE, ROW, 2 - part)
                level = tl.load(beyond, mask=in_rows, other=float("inf")) + line_at_query
            grad_q, total, past, future, near_weight, future_weight = _pull_to_queries(
                grad_q, total, past, future, near_weight, future_weight, q_tile, grad_tile, level, shared, first, last,
                k_ptr, v_ptr, k_stride, v_stride, qi, ref, slope, seed,
                table_ptr, key_ptr, row_ptr, key_row_ptr, grad_row_ptr, q_pos_ptr, k_pos_ptr,
                q_index_ptr, k_index_ptr, q_segment_ptr, k_segment_ptr,
                scale, softcap, dropout_p, table_len, table_lo, row_len, row_lo, q_len, k_len, window,
                HEAD_DIM, V_DIM, D, DV, N if part == 1 or part == 3 else NEAR,
                LINEAR, SYMMETRIC, TABLE, KEY, ROW, KEY_ROW, ALIGNED, SOFTCAP, DROPOUT,
                CAUSAL, WINDOWED, INDEXED, SEGMENTS, ALL_MASKED, PRECISION, ENDS, GRAD_ROW,
                ORDERED, BALANCED, SHORT, WHOLE, part,
            )  # fmt: skip
    tl.store(
        grad_q_ptr + b64 * grad_q_batch + h64 * grad_q_head + rows * grad_q_stride + d[None, :],
        (grad_q * scale).to(grad_q_ptr.dtype.element_ty),
        mask=in_rows[:, None] & (d[None, :] < HEAD_DIM),
    )
    if BALANCED:
        surplus = total
        if GRAD_LSE:
            surplus -= tl.load(grad_lse_ptr + bh64 * q_len + qi, mask=in_rows, other=0.0)
        tl.store(shared_ptr + bh64 * q_len + qi, shared + surplus, mask=in_rows)
        if ENDS:
            # Weights add up to one, so that those past the end, often most of them, need not be summed. What is left
            # over where there are none is rounding, and must not reach an entry that nobody sees.
            past_weight = 1.0 - near_weight - future_weight
            past -= surplus * tl.where((past == 0.0) | (past_weight < 1e-5), 0.0, past_weight)
            future -= surplus * future_weight
    if GRAD_TABLE_ENDS:
        tl.store(past_ptr + bh64 * q_len + qi, past, mask=in_rows)
        tl.store(future_ptr + bh64 * q_len + qi, future, mask=in_rows)
    if GRAD_ROW:
        pull_to_ends(past, future, in_rows, grad_row_ptr + qi.to(tl.int64) * row_len, row_len)
