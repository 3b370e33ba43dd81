"""The gradients of q and of all bias tensors indexed by queries.

The logits are computed again from q, k and the saved logsumexp. With ``p`` the weights and ``g`` the
gradient of the output, the gradient of the logits is ``p · (g·v - shared)``, where ``shared`` is
``g·out`` of the row (less the gradient of its logsumexp).

The stored output is rounded, so ``shared`` has a rounding error. The error is the same for all keys of a row and
does not average out in sums over pairs, such as the gradients of slopes and tables. But the weights of a row
sum to one, so its logit gradients must sum to the gradient of its logsumexp: this kernel measures the
difference and subtracts it from ``shared`` for the kernels after it.
"""

from __future__ import annotations

from collections import namedtuple

import triton
import triton.language as tl

from .arguments import KeysAndValues
from .by_distance import pull_to_ends, pull_to_rows
from .tiles import (
    LOG2E,
    bias_of_head,
    dropout_factors,
    entries_of,
    level_beyond,
    line_over_keys,
    pairs_of,
    reference_position,
    row_term,
    softcap_slope,
    term_beyond,
    tile_and_head,
    tile_logits,
    tokens_of_sequence,
    visible,
)
from .visible_ranges import key_ranges

# What a tile of queries sums over its keys. grad_q: [M, D]; the others are sums per row, [M]. total: of the logits'
# gradients; past: of those at or past the end of the tables; future: of those at or before their start;
# near_weight: of the weights between the ends.
Sums = namedtuple("Sums", "grad_q total past future near_weight future_weight")


# A tile of queries, and what is loaded once for it. tile: [M, D]; grad: [M, DV]; level: [M]; shared: [M]; grad_row: the
# address of the gradients of their rows.
Queries = namedtuple("Queries", "tile grad level shared qi ref slope seed grad_row")


@triton.jit
def _shared_kernel(
    out_ptr, grad_ptr, lse_ptr, grad_lse_ptr, shared_ptr, level_ptr, table_ptr, row_ptr,
    out_strides, grad_strides, row_batch, heads, q_len, table_len, row_len, levels,
    V_DIM: tl.constexpr, DV: tl.constexpr, M: tl.constexpr, GRAD_LSE: tl.constexpr,
    TABLE: tl.constexpr, ROW: tl.constexpr,
):  # fmt: skip
    """``shared = grad·out - grad_lse`` for each query, and the level of its logits: their logsumexp in units of log 2.

    A query that sees no key gets an infinite level, so that all its weights are 0. With a table or rows there are two
    more levels, each ``levels`` numbers further on: beyond the tables, the bias of a query is one number for all
    keys, so it is subtracted from the query's level instead of being added to each logit.
    """
    tile, bh = tile_and_head()
    b, h = bh // heads, bh % heads
    qi = tile * M + tl.arange(0, M)
    dv = tl.arange(0, DV)
    b64, h64 = b.to(tl.int64), h.to(tl.int64)
    rows = qi[:, None].to(tl.int64)
    inside = (qi[:, None] < q_len) & (dv[None, :] < V_DIM)
    out = tl.load(
        out_ptr
        + b64 * out_strides.batch
        + h64 * out_strides.head
        + rows * out_strides.token
        + dv[None, :],
        mask=inside,
        other=0.0,
    ).to(tl.float32)
    grad = tl.load(
        grad_ptr
        + b64 * grad_strides.batch
        + h64 * grad_strides.head
        + rows * grad_strides.token
        + dv[None, :],
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
        past = term_beyond(qi, q_len, table_ptr, table_len, row_ptr, row_len, TABLE, ROW, 1)
        future = term_beyond(qi, q_len, table_ptr, table_len, row_ptr, row_len, TABLE, ROW, -1)
        tl.store(level_ptr + levels + place, level - past, mask=qi < q_len)
        tl.store(level_ptr + levels + levels + place, level - future, mask=qi < q_len)


@triton.jit
def _pull_to_queries(
    sums, queries, start, end, streamed, bias, tokens, numbers,
    KIND: tl.constexpr, WANTED: tl.constexpr, N: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Add the gradients that a tile of queries gets from the keys of ``[start, end)``."""
    D: tl.constexpr = KIND.D
    DV: tl.constexpr = KIND.DV
    HEAD_DIM: tl.constexpr = KIND.HEAD_DIM
    V_DIM: tl.constexpr = KIND.V_DIM
    PRECISION: tl.constexpr = KIND.PRECISION
    ENDS: tl.constexpr = WANTED.TABLE_ENDS or WANTED.ROW
    MASKED: tl.constexpr = PART == 0 or PART == 4 or KIND.ALL_MASKED
    ADDRESSED: tl.constexpr = KIND.COMPLETE and PART == 2
    BEYOND: tl.constexpr = 1 if PART == 1 else (-1 if PART == 3 else 0)
    q_tile, grad_tile, level, shared, qi, ref, slope, seed, grad_row_ptr = queries
    grad_q, total, past, future, near_weight, future_weight = sums
    k_ptr, v_ptr, k_stride, v_stride = streamed
    q_len, k_len, row_len = numbers.q_len, numbers.k_len, numbers.row_len
    d, dv, columns = tl.arange(0, D), tl.arange(0, DV), tl.arange(0, N)
    rows = tl.arange(0, q_tile.shape[0])
    # A loop over few tiles runs best without a pipeline: the tiles to look up in a short table, and the tiles at
    # the edge of a mask, which are many only with windows or segments.
    EDGE: tl.constexpr = PART == 4 and not (KIND.WINDOWED or KIND.SEGMENTS)
    STAGES: tl.constexpr = 1 if EDGE or (KIND.SHORT and BEYOND == 0) else None
    zero = tl.zeros([], dtype=tl.int64)  # widens the loop index, which may be a Python int
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
        pairs = pairs_of(qi[:, None], kj[None, :], tokens, ref, numbers, KIND)
        line = line_over_keys(pairs, columns[None, :], n0 - ref, slope, KIND)
        entries = bias.table
        if ADDRESSED:
            entries = entries_of(
                bias.table, ref - n0 - numbers.table_lo, rows[:, None], columns[None, :], N
            )
        logits = tile_logits(scores, pairs, line, entries, bias, numbers, KIND, BEYOND, ADDRESSED)
        weights = tl.exp2(logits - level[:, None])
        if MASKED:
            seen = visible(qi[:, None], kj[None, :], tokens, numbers, KIND)
            weights = tl.where(seen, weights, 0.0)
        grad_weights = tl.dot(grad_tile, v_tile, input_precision=PRECISION)
        if KIND.DROPOUT:
            grad_weights *= dropout_factors(qi[:, None], kj[None, :], seed, numbers.dropout_p)
        grad_logits = weights * (grad_weights - shared[:, None])
        if WANTED.BALANCED or ENDS:
            pull = tl.sum(grad_logits, 1)
            total += pull
        if ENDS:
            if BEYOND == 1:
                past += pull
            elif BEYOND == -1:
                future += pull
                future_weight += tl.sum(weights, 1)
            else:
                distance = pairs.q_pos - pairs.k_pos
                if KIND.TABLE:
                    lo, hi = numbers.table_lo, numbers.table_lo + numbers.table_len - 1
                else:
                    lo, hi = numbers.row_lo, numbers.row_lo + row_len - 1
                is_past = distance >= hi
                is_future = (distance <= lo) & (distance < hi)
                past += tl.sum(tl.where(is_past, grad_logits, 0.0), 1)
                future += tl.sum(tl.where(is_future, grad_logits, 0.0), 1)
                near_weight += tl.sum(tl.where(is_past | is_future, 0.0, weights), 1)
                future_weight += tl.sum(tl.where(is_future, weights, 0.0), 1)
                if WANTED.ROW:
                    pull_to_rows(
                        grad_logits, distance, qi < q_len, kj < k_len, grad_row_ptr + qi.to(tl.int64) * row_len,
                        row_len, numbers.row_lo, KIND.ALIGNED, WANTED.ORDERED,
                    )  # fmt: skip
        grad_scores = grad_logits * softcap_slope(scores, numbers, KIND)
        grad_q = tl.dot(
            grad_scores.to(k_tile.dtype), tl.trans(k_tile), grad_q, input_precision=PRECISION
        )
    return Sums(grad_q, total, past, future, near_weight, future_weight)


@triton.jit
def _attention_bwd_q_kernel(
    q_ptr, k_ptr, v_ptr, grad_ptr, level_ptr, grad_lse_ptr, shared_ptr, grads, bias, tokens, range_ptr, seed_ptr,
    q_strides, k_strides, v_strides, grad_strides, grad_q_strides, bias_strides, token_strides,
    numbers, limits, levels,
    KIND: tl.constexpr, WANTED: tl.constexpr, M: tl.constexpr, N: tl.constexpr, NEAR: tl.constexpr,
):  # fmt: skip
    """One tile of queries: the gradients of q and of its rows, and its sums for the two ends of a table."""
    D: tl.constexpr = KIND.D
    DV: tl.constexpr = KIND.DV
    EDGES: tl.constexpr = KIND.COMPLETE or not KIND.ALL_MASKED
    FIRST_EDGE: tl.constexpr = EDGES and (KIND.WINDOWED or KIND.SEGMENTS)
    PAST: tl.constexpr = KIND.TILES_BEYOND
    FUTURE: tl.constexpr = KIND.TILES_BEYOND and not KIND.CAUSAL
    # The runs of tiles that `key_ranges` returns. Loops for runs that cannot occur are not compiled.
    OCCURS: tl.constexpr = (FIRST_EDGE, PAST, True, FUTURE, EDGES)
    ENDS: tl.constexpr = WANTED.TABLE_ENDS or WANTED.ROW
    heads, groups, q_len, row_len = numbers.heads, numbers.groups, numbers.q_len, numbers.row_len
    tile, bh = tile_and_head()
    tile = tl.num_programs(1) - 1 - tile  # under a causal mask the last tile has the most work
    b, h = bh // heads, bh % heads
    m0 = tile * M
    qi = m0 + tl.arange(0, M)
    d, dv = tl.arange(0, D), tl.arange(0, DV)
    b64, h64, bh64 = b.to(tl.int64), h.to(tl.int64), bh.to(tl.int64)

    q_ptr += b64 * q_strides.batch + h64 * q_strides.head
    streamed = KeysAndValues(
        k_ptr + (b64 * k_strides.batch + h64 // groups * k_strides.head),
        v_ptr + (b64 * v_strides.batch + h64 // groups * v_strides.head), k_strides.token, v_strides.token,
    )  # fmt: skip
    grad_ptr += b64 * grad_strides.batch + h64 * grad_strides.head
    head_bias = bias_of_head(bias, bias_strides, b64, h64, numbers)
    grad_row_ptr = grads.row + bh64 * q_len * row_len
    tokens = tokens_of_sequence(tokens, token_strides, b64, limits.window)

    in_rows = qi < q_len
    rows = qi[:, None].to(tl.int64)
    q_tile = tl.load(
        q_ptr + rows * q_strides.token + d[None, :],
        mask=in_rows[:, None] & (d[None, :] < KIND.HEAD_DIM), other=0.0,
    )  # fmt: skip
    grad_tile = tl.load(
        grad_ptr + rows * grad_strides.token + dv[None, :],
        mask=in_rows[:, None] & (dv[None, :] < KIND.V_DIM), other=0.0,
    )  # fmt: skip
    slope, seed = 0.0, 0
    if KIND.LINEAR:
        slope = tl.load(bias.slopes + h)
    if KIND.DROPOUT:
        seed = tl.load(seed_ptr) + bh
    ref = reference_position(m0, tokens.q_positions, numbers.k_len - q_len, KIND.ALIGNED)
    pairs = pairs_of(qi, qi * 0, tokens, ref, numbers, KIND)
    level_ptr += bh64 * q_len + qi
    line_at_query = row_term(pairs.q_pos, slope, KIND)
    near_level = tl.load(level_ptr, mask=in_rows, other=float("inf")) + line_at_query
    shared = tl.load(shared_ptr + bh64 * q_len + qi, mask=in_rows, other=0.0)

    bounds = key_ranges(m0, range_ptr + b64 * token_strides.ranges, tile, numbers, limits, M, N, KIND)
    sums = Sums(
        tl.zeros([M, D], dtype=tl.float32), tl.zeros([M], dtype=tl.float32),
        tl.zeros([M], dtype=tl.float32), tl.zeros([M], dtype=tl.float32),
        tl.zeros([M], dtype=tl.float32), tl.zeros([M], dtype=tl.float32),
    )  # fmt: skip
    for part in tl.static_range(5):
        if OCCURS[part]:
            level = near_level
            if (KIND.TABLE or KIND.ROW) and (part == 1 or part == 3):
                beyond = level_beyond(level_ptr, levels, KIND, 2 - part)
                level = tl.load(beyond, mask=in_rows, other=float("inf")) + line_at_query
            queries = Queries(q_tile, grad_tile, level, shared, qi, ref, slope, seed, grad_row_ptr)
            sums = _pull_to_queries(
                sums, queries, bounds[part], bounds[part + 1], streamed, head_bias, tokens, numbers,
                KIND, WANTED, N if part == 1 or part == 3 else NEAR, part,
            )  # fmt: skip
    grad_q, total, past, future, near_weight, future_weight = sums
    tl.store(
        grads.q + b64 * grad_q_strides.batch + h64 * grad_q_strides.head + rows * grad_q_strides.token + d[None, :],
        (grad_q * numbers.scale).to(grads.q.dtype.element_ty),
        mask=in_rows[:, None] & (d[None, :] < KIND.HEAD_DIM),
    )  # fmt: skip
    if WANTED.BALANCED:
        surplus = total
        if WANTED.LSE:
            surplus -= tl.load(grad_lse_ptr + bh64 * q_len + qi, mask=in_rows, other=0.0)
        tl.store(shared_ptr + bh64 * q_len + qi, shared + surplus, mask=in_rows)
        if ENDS:
            # Weights sum to one, so the weights past the end, often most of them, need not be summed. Without any
            # such weight, the remainder is a rounding error and must not change an entry that no query sees.
            past_weight = 1.0 - near_weight - future_weight
            past -= surplus * tl.where((past == 0.0) | (past_weight < 1e-5), 0.0, past_weight)
            future -= surplus * future_weight
    if WANTED.TABLE_ENDS:
        tl.store(grads.past + bh64 * q_len + qi, past, mask=in_rows)
        tl.store(grads.future + bh64 * q_len + qi, future, mask=in_rows)
    if WANTED.ROW:
        pull_to_ends(past, future, in_rows, grad_row_ptr + qi.to(tl.int64) * row_len, row_len)
