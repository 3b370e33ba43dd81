"""Attention forward: one tile of queries against all the keys it sees, with a running softmax."""

from __future__ import annotations

import triton
import triton.language as tl

from .tiles import (
    LOG2E,
    entries_of,
    far_term,
    kept,
    key_ranges,
    line_over_keys,
    reference_position,
    relative_positions,
    row_term,
    tile_and_head,
    tile_logits,
    visible,
)


@triton.jit
def _attend(
    acc, total, peak, q_tile, start, end,
    k_ptr, v_ptr, k_stride, v_stride, qi, ref, slope, seed,
    table_ptr, key_ptr, row_ptr, key_row_ptr, q_pos_ptr, k_pos_ptr,
    q_index_ptr, k_index_ptr, q_segment_ptr, k_segment_ptr,
    scale, softcap, dropout_p, table_len, table_lo, row_len, row_lo, q_len, k_len, window,
    HEAD_DIM: tl.constexpr, V_DIM: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, N: tl.constexpr,
    LINEAR: tl.constexpr, SYMMETRIC: tl.constexpr, TABLE: tl.constexpr, KEY: tl.constexpr,
    ROW: tl.constexpr, KEY_ROW: tl.constexpr, ALIGNED: tl.constexpr, SOFTCAP: tl.constexpr,
    DROPOUT: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, INDEXED: tl.constexpr,
    SEGMENTS: tl.constexpr, ALL_MASKED: tl.constexpr, PRECISION: tl.constexpr, SHORT: tl.constexpr, WHOLE: tl.constexpr,
    PACKED: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Take the keys of ``[start, end)`` into the running output, total weight and peak logit."""
    MASKED: tl.constexpr = PART == 0 or PART == 4 or ALL_MASKED
    FOUND: tl.constexpr = WHOLE and PART == 2
    FAR: tl.constexpr = 1 if PART == 1 else (-1 if PART == 3 else 0)
    d, dv, columns = tl.arange(0, D), tl.arange(0, DV), tl.arange(0, N)
    rows = tl.arange(0, q_tile.shape[0])
    # A loop over few tiles is best kept small, without a pipeline: over those looked up where a table is short, and
    # over those at the edge of a mask, unless windows or segments make them many.
    EDGE: tl.constexpr = PART == 4 and not (WINDOWED or SEGMENTS)
    STAGES: tl.constexpr = 1 if EDGE or (SHORT and FAR == 0) else None
    far = far_term(qi[:, None], q_len, table_ptr, table_len, row_ptr, row_len, TABLE, ROW, FAR)
    zero = tl.zeros([], dtype=tl.int64)  # widens a loop's index, which may be a plain number
    for n0 in tl.range(start, end, N, num_stages=STAGES):
        kj = n0 + columns
        # One wide address a tile, narrow offsets within it.
        keys = (k_ptr + (n0 + zero) * k_stride) + (columns[None, :] * k_stride + d[:, None])
        values = (v_ptr + (n0 + zero) * v_stride) + (columns[:, None] * v_stride + dv[None, :])
        if MASKED or D != HEAD_DIM:
            k_tile = tl.load(keys, mask=(kj[None, :] < k_len) & (d[:, None] < HEAD_DIM), other=0.0)
        else:
            k_tile = tl.load(keys)
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
            LINEAR, TABLE, KEY, ROW, KEY_ROW, SOFTCAP, FAR, FOUND, PACKED,
        )  # fmt: skip
        if (TABLE or ROW) and FAR != 0:
            logits += far
        if MASKED:
            seen = visible(
                qi[:, None], kj[None, :], q_index_ptr, k_index_ptr, q_segment_ptr, k_segment_ptr,
                q_len, k_len, window, CAUSAL, WINDOWED, INDEXED, SEGMENTS,
            )  # fmt: skip
            logits = tl.where(seen, logits, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(logits, 1))
        # While a row has seen nothing its peak is -inf, and subtracting that would make NaN.
        level = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weights = tl.exp2(logits - level[:, None])
        shrink = tl.exp2(peak - level)
        total = total * shrink + tl.sum(weights, 1)
        if DROPOUT:
            weights *= kept(qi[:, None], kj[None, :], seed, dropout_p)
        if MASKED or DV != V_DIM:
            v_tile = tl.load(values, mask=(kj[:, None] < k_len) & (dv[None, :] < V_DIM), other=0.0)
        else:
            v_tile = tl.load(values)
        acc = acc * shrink[:, None]
        acc = tl.dot(weights.to(v_tile.dtype), v_tile, acc, input_precision=PRECISION)
        peak = new_peak
    return acc, total, peak


@triton.jit
def _attention_fwd_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr,
    slopes_ptr, table_ptr, key_ptr, row_ptr, key_row_ptr, q_pos_ptr, k_pos_ptr,
    q_index_ptr, k_index_ptr, q_segment_ptr, k_segment_ptr, range_ptr, seed_ptr,
    q_batch, q_head, q_stride, k_batch, k_head, k_stride, v_batch, v_head, v_stride,
    out_share, out_batch, out_head, out_stride, key_batch, key_head, row_batch, key_row_batch,
    q_pos_batch, k_pos_batch, q_token_batch, k_token_batch, range_batch,
    heads, groups, q_len, k_len, scale, softcap, dropout_p, table_len, table_lo, row_len, row_lo,
    far_lo, far_hi, window,
    HEAD_DIM: tl.constexpr, V_DIM: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, NEAR: tl.constexpr,
    LINEAR: tl.constexpr, SYMMETRIC: tl.constexpr, TABLE: tl.constexpr, KEY: tl.constexpr,
    ROW: tl.constexpr, KEY_ROW: tl.constexpr, ALIGNED: tl.constexpr, SOFTCAP: tl.constexpr,
    DROPOUT: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, INDEXED: tl.constexpr,
    SEGMENTS: tl.constexpr, ALL_MASKED: tl.constexpr, PRECISION: tl.constexpr, SHORT: tl.constexpr, WHOLE: tl.constexpr,
    FAR_TILES: tl.constexpr, SPLIT: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """One tile of queries; with SPLIT one share of its keys, the shares running along the third axis.

    With PACKED the rows of the tile are all query heads of a key head, query after query, so that each key is
    read once for all of them. Whatever belongs to a head is then a block ``[M, 1]``.
    """
    EDGES: tl.constexpr = WHOLE or not ALL_MASKED
    # The runs of tiles that `key_ranges` tells apart; those that cannot occur are not even compiled.
    OCCURS: tl.constexpr = (
        EDGES and (WINDOWED or SEGMENTS),
        FAR_TILES,
        True,
        FAR_TILES and not CAUSAL,
        EDGES,
    )
    tile, bh = tile_and_head()
    tile = tl.num_programs(1) - 1 - tile  # under a causal mask the last has most to do
    m0 = tile * M
    if PACKED:
        b, kv_head = bh // (heads // groups), bh % (heads // groups)
        qi = tl.arange(0, M) // groups  # beyond q_len where rows are left over
        row_head = kv_head * groups + tl.arange(0, M) % groups
        h, bh = row_head[:, None], b * heads + row_head
    else:
        b, h = bh // heads, bh % heads
        qi = m0 + tl.arange(0, M)
    d = tl.arange(0, D)
    b64, h64 = b.to(tl.int64), h.to(tl.int64)
    if PACKED:
        kv64 = kv_head.to(tl.int64)
    else:
        kv64 = h64 // groups

    q_ptr += b64 * q_batch + h64 * q_head
    k_ptr += b64 * k_batch + kv64 * k_head
    v_ptr += b64 * v_batch + kv64 * v_head
    table_ptr += h64 * table_len
    key_ptr += b64 * key_batch + h64 * key_head
    row_ptr += b64 * row_batch + h64 * q_len * row_len
    key_row_ptr += b64 * key_row_batch + h64 * k_len * row_len
    q_pos_ptr += b64 * q_pos_batch
    k_pos_ptr += b64 * k_pos_batch
    q_index_ptr += b64 * q_token_batch
    k_index_ptr += b64 * k_token_batch
    q_segment_ptr += b64 * q_token_batch
    k_segment_ptr += b64 * k_token_batch

    q_tile = tl.load(
        q_ptr + qi[:, None].to(tl.int64) * q_stride + d[None, :],
        mask=(qi[:, None] < q_len) & (d[None, :] < HEAD_DIM), other=0.0,
    )  # fmt: skip
    slope, seed = 0.0, 0
    if LINEAR:
        slope = tl.load(slopes_ptr + h)
    if DROPOUT:
        seed = tl.load(seed_ptr) + (bh[:, None] if PACKED else bh)
    ref = reference_position(m0, q_pos_ptr, k_len - q_len, ALIGNED)

    bounds = key_ranges(
        m0, range_ptr + b64 * range_batch, tile,
        q_len, k_len, window, far_lo, far_hi,
        M, N, CAUSAL, WINDOWED, INDEXED, SEGMENTS, ALL_MASKED, FAR_TILES, ALIGNED, WHOLE,
    )  # fmt: skip
    low, high = bounds[0], bounds[5]
    if SPLIT:
        share = tl.cdiv(tl.cdiv(high - low, N), tl.num_programs(2)) * N
        low += tl.program_id(2) * share
        high = tl.minimum(low + share, high)
    acc = tl.zeros([M, DV], dtype=tl.float32)
    total = tl.zeros([M], dtype=tl.float32)
    peak = tl.full([M], float("-inf"), dtype=tl.float32)
    for part in tl.static_range(5):
        if OCCURS[part]:
            first, last = bounds[part], bounds[part + 1]
            if SPLIT:
                first, last = tl.maximum(first, low), tl.minimum(last, high)
            acc, total, peak = _attend(
                acc, total, peak, q_tile, first, last,
                k_ptr, v_ptr, k_stride, v_stride, qi, ref, slope, seed,
                table_ptr, key_ptr, row_ptr, key_row_ptr, q_pos_ptr, k_pos_ptr,
                q_index_ptr, k_index_ptr, q_segment_ptr, k_segment_ptr,
                scale, softcap, dropout_p, table_len, table_lo, row_len, row_lo, q_len, k_len, window,
                HEAD_DIM, V_DIM, D, DV, N if part == 1 or part == 3 else NEAR,
                LINEAR, SYMMETRIC, TABLE, KEY, ROW, KEY_ROW, ALIGNED, SOFTCAP, DROPOUT,
                CAUSAL, WINDOWED, INDEXED, SEGMENTS, ALL_MASKED, PRECISION, SHORT, WHOLE, PACKED, part,
            )  # fmt: skip

    q_pos, _ = relative_positions(qi, qi * 0, q_pos_ptr, k_pos_ptr, ref, q_len, k_len, ALIGNED)
    blind = total == 0.0
    lse = tl.where(blind, float("-inf"), peak + tl.log2(tl.where(blind, 1.0, total)))
    if PACKED and LINEAR:
        slope = tl.reshape(slope, [M])
    lse = (lse - row_term(q_pos, slope, LINEAR, SYMMETRIC, ALIGNED)) * 0.6931471805599453
    share64 = tl.program_id(2).to(tl.int64)
    row = (share64 * (tl.num_programs(0) * (groups if PACKED else 1)) + bh) * q_len
    tl.store(lse_ptr + row + qi, lse, mask=qi < q_len)
    acc = acc / tl.where(blind, 1.0, total)[:, None]
    dv = tl.arange(0, DV)
    OUT_TYPE: tl.constexpr = out_ptr.dtype.element_ty
    out_ptr += share64 * out_share + b64 * out_batch + h64 * out_head
    tl.store(
        out_ptr + qi[:, None].to(tl.int64) * out_stride + dv[None, :],
        acc.to(OUT_TYPE), mask=(qi[:, None] < q_len) & (dv[None, :] < V_DIM),
    )  # fmt: skip


@triton.jit
def _merge_fwd_kernel(
    shares_ptr, shares_lse_ptr, out_ptr, lse_ptr, out_batch, out_head, out_stride, heads, q_len, shares,
    V_DIM: tl.constexpr, DV: tl.constexpr, SHARES: tl.constexpr,
):  # fmt: skip
    """One query, whose keys were shared out: each share's output weighs as much as its logits' exponentials."""
    query, bh = tile_and_head()
    b, h = bh // heads, bh % heads
    rows = tl.num_programs(0).to(tl.int64) * q_len
    row = bh.to(tl.int64) * q_len + query
    share, dv = tl.arange(0, SHARES), tl.arange(0, DV)
    parts = tl.load(shares_lse_ptr + share * rows + row, mask=share < shares, other=float("-inf"))
    peak = tl.max(parts, 0)
    level = tl.where(peak == float("-inf"), 0.0, peak)
    weights = tl.exp2((parts - level) * LOG2E)
    total = tl.sum(weights, 0)
    blind = total == 0.0
    lse = tl.where(blind, float("-inf"), level + tl.log2(tl.where(blind, 1.0, total)) / LOG2E)
    values = tl.load(
        shares_ptr + (share[:, None] * rows + row) * V_DIM + dv[None, :],
        mask=(share[:, None] < shares) & (dv[None, :] < V_DIM), other=0.0,
    )  # fmt: skip
    out = tl.sum(values * weights[:, None], 0) / tl.where(blind, 1.0, total)
    out_ptr += b.to(tl.int64) * out_batch + h.to(tl.int64) * out_head + query.to(tl.int64) * out_stride
    tl.store(out_ptr + dv, out.to(out_ptr.dtype.element_ty), mask=dv < V_DIM)
    tl.store(lse_ptr + row, lse)
