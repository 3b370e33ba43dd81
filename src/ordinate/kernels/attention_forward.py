"""Attention forward: one tile of queries against all keys that it sees, with an online softmax."""

from __future__ import annotations

from collections import namedtuple

import triton
import triton.language as tl

from .arguments import KeysAndValues
from .tiles import (
    LOG2E,
    bias_of_head,
    dropout_factors,
    entries_of,
    line_over_keys,
    pairs_of,
    reference_position,
    row_term,
    term_beyond,
    tile_and_head,
    tile_logits,
    tokens_of_sequence,
    visible,
)
from .visible_ranges import key_ranges

# The online softmax of a tile of queries. acc: the weighted sum of values, [M, DV]; total: the sum of weights, [M];
# peak: the greatest logit so far, [M].
Softmax = namedtuple("Softmax", "acc total peak")


# A tile of queries. tile: their vectors, [M, D]; qi: their indices; ref: the position subtracted from all others.
Queries = namedtuple("Queries", "tile qi ref slope seed")


@triton.jit
def _attend(
    softmax, queries, start, end, streamed, bias, tokens, numbers,
    KIND: tl.constexpr, N: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Add the keys of ``[start, end)`` to the online softmax."""
    D: tl.constexpr = KIND.D
    DV: tl.constexpr = KIND.DV
    HEAD_DIM: tl.constexpr = KIND.HEAD_DIM
    V_DIM: tl.constexpr = KIND.V_DIM
    PRECISION: tl.constexpr = KIND.PRECISION
    MASKED: tl.constexpr = PART == 0 or PART == 4 or KIND.ALL_MASKED
    ADDRESSED: tl.constexpr = KIND.COMPLETE and PART == 2
    BEYOND: tl.constexpr = 1 if PART == 1 else (-1 if PART == 3 else 0)
    q_tile, qi, ref, slope, seed = queries
    acc, total, peak = softmax
    k_ptr, v_ptr, k_stride, v_stride = streamed
    k_len = numbers.k_len
    d, dv, columns = tl.arange(0, D), tl.arange(0, DV), tl.arange(0, N)
    rows = tl.arange(0, q_tile.shape[0])
    # A loop over few tiles runs best without a pipeline: the tiles to look up in a short table, and the tiles at
    # the edge of a mask, which are many only with windows or segments.
    EDGE: tl.constexpr = PART == 4 and not (KIND.WINDOWED or KIND.SEGMENTS)
    STAGES: tl.constexpr = 1 if EDGE or (KIND.SHORT and BEYOND == 0) else None
    beyond = term_beyond(
        qi[:, None], numbers.q_len, bias.table, numbers.table_len, bias.row, numbers.row_len,
        KIND.TABLE, KIND.ROW, BEYOND,
    )  # fmt: skip
    zero = tl.zeros([], dtype=tl.int64)  # widens the loop index, which may be a Python int
    for n0 in tl.range(start, end, N, num_stages=STAGES):
        kj = n0 + columns
        # One int64 address per tile, int32 offsets within the tile.
        keys = (k_ptr + (n0 + zero) * k_stride) + (columns[None, :] * k_stride + d[:, None])
        values = (v_ptr + (n0 + zero) * v_stride) + (columns[:, None] * v_stride + dv[None, :])
        if MASKED or D != HEAD_DIM:
            k_tile = tl.load(keys, mask=(kj[None, :] < k_len) & (d[:, None] < HEAD_DIM), other=0.0)
        else:
            k_tile = tl.load(keys)
        scores = tl.dot(q_tile, k_tile, input_precision=PRECISION)  # [M, N]
        pairs = pairs_of(qi[:, None], kj[None, :], tokens, ref, numbers, KIND)
        line = line_over_keys(pairs, columns[None, :], n0 - ref, slope, KIND)
        entries = bias.table
        if ADDRESSED:
            entries = entries_of(
                bias.table, ref - n0 - numbers.table_lo, rows[:, None], columns[None, :], N
            )
        logits = tile_logits(scores, pairs, line, entries, bias, numbers, KIND, BEYOND, ADDRESSED)
        if (KIND.TABLE or KIND.ROW) and BEYOND != 0:
            logits += beyond
        if MASKED:
            seen = visible(qi[:, None], kj[None, :], tokens, numbers, KIND)
            logits = tl.where(seen, logits, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(logits, 1))
        # A row that has seen no key yet has peak -inf, and -inf - -inf is NaN.
        level = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weights = tl.exp2(logits - level[:, None])
        shrink = tl.exp2(peak - level)
        total = total * shrink + tl.sum(weights, 1)
        if KIND.DROPOUT:
            weights *= dropout_factors(qi[:, None], kj[None, :], seed, numbers.dropout_p)
        if MASKED or DV != V_DIM:
            v_tile = tl.load(values, mask=(kj[:, None] < k_len) & (dv[None, :] < V_DIM), other=0.0)
        else:
            v_tile = tl.load(values)
        acc = acc * shrink[:, None]
        acc = tl.dot(weights.to(v_tile.dtype), v_tile, acc, input_precision=PRECISION)
        peak = new_peak
    return Softmax(acc, total, peak)


@triton.jit
def _attention_fwd_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, bias, tokens, range_ptr, seed_ptr,
    q_strides, k_strides, v_strides, out_share, out_strides, bias_strides, token_strides, numbers, limits,
    KIND: tl.constexpr, M: tl.constexpr, N: tl.constexpr, NEAR: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """One tile of queries; with SPLIT one share of its keys. The third grid axis counts the shares.

    With PACKED a tile holds all query heads of a key head, query after query, so that each key is read once for all
    of them. Every per-head number is then a block ``[M, 1]``.
    """
    D: tl.constexpr = KIND.D
    DV: tl.constexpr = KIND.DV
    PACKED: tl.constexpr = KIND.PACKED
    EDGES: tl.constexpr = KIND.COMPLETE or not KIND.ALL_MASKED
    FIRST_EDGE: tl.constexpr = EDGES and (KIND.WINDOWED or KIND.SEGMENTS)
    PAST: tl.constexpr = KIND.TILES_BEYOND
    FUTURE: tl.constexpr = KIND.TILES_BEYOND and not KIND.CAUSAL
    # The runs of tiles that `key_ranges` returns. Loops for runs that cannot occur are not compiled.
    OCCURS: tl.constexpr = (FIRST_EDGE, PAST, True, FUTURE, EDGES)
    heads, groups, q_len, k_len = numbers.heads, numbers.groups, numbers.q_len, numbers.k_len
    tile, bh = tile_and_head()
    tile = tl.num_programs(1) - 1 - tile  # under a causal mask the last tile has the most work
    m0 = tile * M
    if PACKED:
        b, kv_head = bh // (heads // groups), bh % (heads // groups)
        qi = tl.arange(0, M) // groups  # padding rows have indices beyond q_len
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

    q_ptr += b64 * q_strides.batch + h64 * q_strides.head
    streamed = KeysAndValues(
        k_ptr + (b64 * k_strides.batch + kv64 * k_strides.head),
        v_ptr + (b64 * v_strides.batch + kv64 * v_strides.head), k_strides.token, v_strides.token,
    )  # fmt: skip
    head_bias = bias_of_head(bias, bias_strides, b64, h64, numbers)
    tokens = tokens_of_sequence(tokens, token_strides, b64, limits.window)

    q_tile = tl.load(
        q_ptr + qi[:, None].to(tl.int64) * q_strides.token + d[None, :],
        mask=(qi[:, None] < q_len) & (d[None, :] < KIND.HEAD_DIM), other=0.0,
    )  # fmt: skip
    slope, seed = 0.0, 0
    if KIND.LINEAR:
        slope = tl.load(bias.slopes + h)
    if KIND.DROPOUT:
        seed = tl.load(seed_ptr) + (bh[:, None] if PACKED else bh)
    ref = reference_position(m0, tokens.q_positions, k_len - q_len, KIND.ALIGNED)
    queries = Queries(q_tile, qi, ref, slope, seed)

    bounds = key_ranges(m0, range_ptr + b64 * token_strides.ranges, tile, numbers, limits, M, N, KIND)
    low, high = bounds[0], bounds[5]
    if SPLIT:
        share = tl.cdiv(tl.cdiv(high - low, N), tl.num_programs(2)) * N
        low += tl.program_id(2) * share
        high = tl.minimum(low + share, high)
    softmax = Softmax(
        tl.zeros([M, DV], dtype=tl.float32),
        tl.zeros([M], dtype=tl.float32),
        tl.full([M], float("-inf"), dtype=tl.float32),
    )
    for part in tl.static_range(5):
        if OCCURS[part]:
            first, last = bounds[part], bounds[part + 1]
            if SPLIT:
                first, last = tl.maximum(first, low), tl.minimum(last, high)
            softmax = _attend(
                softmax, queries, first, last, streamed, head_bias, tokens, numbers,
                KIND, N if part == 1 or part == 3 else NEAR, part,
            )  # fmt: skip

    acc, total, peak = softmax
    pairs = pairs_of(qi, qi * 0, tokens, ref, numbers, KIND)
    blind = total == 0.0
    lse = tl.where(blind, float("-inf"), peak + tl.log2(tl.where(blind, 1.0, total)))
    if PACKED and KIND.LINEAR:
        slope = tl.reshape(slope, [M])
    lse = (lse - row_term(pairs.q_pos, slope, KIND)) * 0.6931471805599453
    share64 = tl.program_id(2).to(tl.int64)
    row = (share64 * (tl.num_programs(0) * (groups if PACKED else 1)) + bh) * q_len
    tl.store(lse_ptr + row + qi, lse, mask=qi < q_len)
    acc = acc / tl.where(blind, 1.0, total)[:, None]
    dv = tl.arange(0, DV)
    OUT_TYPE: tl.constexpr = out_ptr.dtype.element_ty
    out_ptr += share64 * out_share + b64 * out_strides.batch + h64 * out_strides.head
    tl.store(
        out_ptr + qi[:, None].to(tl.int64) * out_strides.token + dv[None, :],
        acc.to(OUT_TYPE), mask=(qi[:, None] < q_len) & (dv[None, :] < KIND.V_DIM),
    )  # fmt: skip


@triton.jit
def _merge_fwd_kernel(
    shares_ptr, shares_lse_ptr, out_ptr, lse_ptr, out_strides, heads, q_len, shares,
    V_DIM: tl.constexpr, DV: tl.constexpr, SHARES: tl.constexpr,
):  # fmt: skip
    """Merge the shares of one query's keys: each share's output is weighted by the exponential of its logsumexp."""
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
    out_ptr += b.to(tl.int64) * out_strides.batch + h.to(tl.int64) * out_strides.head
    out_ptr += query.to(tl.int64) * out_strides.token
    tl.store(out_ptr + dv, out.to(out_ptr.dtype.element_ty), mask=dv < V_DIM)
    tl.store(lse_ptr + row, lse)
