"""The gradients of k, v and all bias tensors indexed by keys. Runs after `query_gradient`, whose `shared` it needs.

Where positions are data, it also computes the gradient of a table between its ends.
"""

from __future__ import annotations

from collections import namedtuple

import triton
import triton.language as tl

from .by_distance import pull_to_ends, pull_to_rows, pull_to_table
from .tiles import (
    LOG2E,
    between,
    bias_of_head,
    counted_times,
    dropout_factors,
    entries_of,
    level_beyond,
    pairs_of,
    reference_position,
    softcap_slope,
    tile_and_head,
    tile_logits,
    tokens_of_sequence,
    visible,
)
from .visible_ranges import query_ranges

# What a tile of keys sums over its queries. grad_k: [N, D]; grad_v: [N, DV]; the others are sums per key, [N]. past:
# of the logits' gradients at or past the end of the rows; future: of those at or before their start.
Sums = namedtuple("Sums", "grad_k grad_v grad_key past future grad_slope")


# A tile of keys. tile: [N, D]; values: [N, DV]; grad_key_row, grad_table: addresses of the gradients of the keys' rows
# and of the table.
Keys = namedtuple("Keys", "tile values kj ref slope seed grad_key_row grad_table")


# The per-query tensors of one head: start addresses, and strides between tokens. levels: the stride between kinds of
# level.
QueriesAndGradients = namedtuple(
    "QueriesAndGradients",
    "q grad level shared levels q_stride grad_stride",
)


@triton.jit
def _pull_to_key_rows(
    past, future, grad_logits, distance, in_rows, in_columns, rows, row_len, row_lo,
    ALIGNED: tl.constexpr, ORDERED: tl.constexpr, BEYOND: tl.constexpr,
):  # fmt: skip
    """Add a ``[N, M]`` tile to the gradients of the keys' rows; the two ends are summed separately."""
    if BEYOND == 1:
        past += tl.sum(grad_logits, 1)
    elif BEYOND == -1:
        future += tl.sum(grad_logits, 1)
    else:
        lo, hi = row_lo, row_lo + row_len - 1
        past += tl.sum(tl.where(distance >= hi, grad_logits, 0.0), 1)
        future += tl.sum(tl.where((distance <= lo) & (distance < hi), grad_logits, 0.0), 1)
        pull_to_rows(grad_logits, distance, in_rows, in_columns, rows, row_len, row_lo, ALIGNED, ORDERED)
    return past, future


@triton.jit
def _span(offsets, first, pairs, KIND: tl.constexpr):
    """The factor of a slope: the distance of a query and a key, or its absolute value."""
    if KIND.ALIGNED:
        span = counted_times(1.0, offsets, first) - pairs.k_pos.to(tl.float32)
    else:
        span = between(pairs.q_pos, pairs.k_pos)
    if KIND.SYMMETRIC:
        span = tl.abs(span)
    return span


@triton.jit
def _pull_to_keys(
    sums, keys, start, end, streamed, bias, tokens, numbers,
    KIND: tl.constexpr, WANTED: tl.constexpr, M: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Add the gradients that a tile of keys gets from the queries of ``[start, end)``."""
    D: tl.constexpr = KIND.D
    DV: tl.constexpr = KIND.DV
    HEAD_DIM: tl.constexpr = KIND.HEAD_DIM
    V_DIM: tl.constexpr = KIND.V_DIM
    PRECISION: tl.constexpr = KIND.PRECISION
    MASKED: tl.constexpr = PART == 0 or PART == 4 or KIND.ALL_MASKED
    ADDRESSED: tl.constexpr = KIND.COMPLETE and PART == 2
    BEYOND: tl.constexpr = 1 if PART == 3 else (-1 if PART == 1 else 0)
    k_tile, v_tile, kj, ref, slope, seed, grad_key_row_ptr, grad_table_ptr = keys
    grad_k, grad_v, grad_key, past, future, grad_slope = sums
    q_ptr, grad_ptr, level_ptr, shared_ptr, levels, q_stride, grad_stride = streamed
    q_len, k_len, row_len = numbers.q_len, numbers.k_len, numbers.row_len
    N: tl.constexpr = k_tile.shape[0]
    d, dv, rows, columns = tl.arange(0, D), tl.arange(0, DV), tl.arange(0, M), tl.arange(0, N)
    # A loop that looks up few tiles runs best without a pipeline; a loop over all tiles needs its pipeline.
    STAGES: tl.constexpr = 1 if KIND.SHORT and BEYOND == 0 else None
    level_ptr = level_beyond(level_ptr, levels, KIND, BEYOND)
    zero = tl.zeros([], dtype=tl.int64)  # widens the loop index, which may be a Python int
    for m0 in tl.range(start, end, M, num_stages=STAGES):
        qi = m0 + rows
        queries = (q_ptr + (m0 + zero) * q_stride) + (rows[:, None] * q_stride + d[None, :])
        gradients = (grad_ptr + (m0 + zero) * grad_stride) + (rows[:, None] * grad_stride + dv[None, :])
        if WANTED.EVEN:
            q_tile, grad_tile = tl.load(queries), tl.load(gradients)
            level, shared = tl.load(level_ptr + qi), tl.load(shared_ptr + qi)
        else:
            in_rows = qi < q_len
            q_tile = tl.load(queries, mask=in_rows[:, None] & (d[None, :] < HEAD_DIM), other=0.0)
            grad_tile = tl.load(gradients, mask=in_rows[:, None] & (dv[None, :] < V_DIM), other=0.0)
            level = tl.load(level_ptr + qi, mask=in_rows, other=float("inf"))
            shared = tl.load(shared_ptr + qi, mask=in_rows, other=0.0)
        scores = tl.dot(k_tile, tl.trans(q_tile), input_precision=PRECISION)  # [N, M]
        pairs = pairs_of(qi[None, :], kj[:, None], tokens, ref, numbers, KIND)
        first = m0 + (k_len - q_len) - ref
        level = level[None, :]
        line = 0.0
        if KIND.LINEAR:
            if KIND.SYMMETRIC or not KIND.ALIGNED:
                span = _span(rows[None, :], first, pairs, KIND)
                line = -slope * LOG2E * span
            else:
                line = slope * LOG2E * pairs.k_pos.to(tl.float32)
                level += counted_times(slope * LOG2E, rows[None, :], first)  # `row_term`
        entries = bias.table
        if ADDRESSED:
            entries = entries_of(
                bias.table, first - numbers.table_lo, rows[None, :], columns[:, None], N
            )
        logits = tile_logits(scores, pairs, line, entries, bias, numbers, KIND, BEYOND, ADDRESSED)
        weights = tl.exp2(logits - level)
        if MASKED:
            seen = visible(qi[None, :], kj[:, None], tokens, numbers, KIND)
            weights = tl.where(seen, weights, 0.0)
        grad_weights = tl.dot(v_tile, tl.trans(grad_tile), input_precision=PRECISION)  # [N, M]
        dropped = weights
        if KIND.DROPOUT:
            factors = dropout_factors(qi[None, :], kj[:, None], seed, numbers.dropout_p)
            grad_weights *= factors
            dropped = weights * factors
        grad_v = tl.dot(dropped.to(grad_tile.dtype), grad_tile, grad_v, input_precision=PRECISION)
        grad_logits = weights * (grad_weights - shared[None, :])
        if WANTED.KEY:
            grad_key += tl.sum(grad_logits, 1)
        if WANTED.KEY_ROW:
            past, future = _pull_to_key_rows(
                past, future, grad_logits, pairs.q_pos - pairs.k_pos, kj < k_len, qi < q_len,
                grad_key_row_ptr + kj.to(tl.int64) * row_len, row_len, numbers.row_lo,
                KIND.ALIGNED, WANTED.ORDERED, BEYOND,
            )  # fmt: skip
        if WANTED.TABLE and BEYOND == 0:
            pull_to_table(
                grad_logits, pairs.q_pos - pairs.k_pos, kj < k_len, qi < q_len,
                grad_table_ptr, numbers.table_len, numbers.table_lo, WANTED.ORDERED,
            )  # fmt: skip
        if WANTED.SLOPE:
            span = _span(rows[None, :], first, pairs, KIND)
            grad_slope -= tl.sum(grad_logits * span, 1)
        grad_scores = grad_logits * softcap_slope(scores, numbers, KIND)
        grad_k = tl.dot(grad_scores.to(q_tile.dtype), q_tile, grad_k, input_precision=PRECISION)
    return Sums(grad_k, grad_v, grad_key, past, future, grad_slope)


@triton.jit
def _attention_bwd_kv_kernel(
    q_ptr, k_ptr, v_ptr, grad_ptr, level_ptr, shared_ptr, grads, bias, tokens, range_ptr, seed_ptr,
    q_strides, k_strides, v_strides, grad_strides, grad_k_strides, grad_v_strides,
    bias_strides, token_strides, numbers, limits, levels,
    KIND: tl.constexpr, WANTED: tl.constexpr, M: tl.constexpr, N: tl.constexpr, NEAR: tl.constexpr,
):  # fmt: skip
    """One tile of keys: its gradients, summed over all query heads that share it."""
    D: tl.constexpr = KIND.D
    DV: tl.constexpr = KIND.DV
    EDGES: tl.constexpr = KIND.COMPLETE or not KIND.ALL_MASKED
    FIRST_EDGE: tl.constexpr = EDGES and (KIND.CAUSAL or KIND.WINDOWED or KIND.SEGMENTS)
    PAST: tl.constexpr = KIND.TILES_BEYOND
    FUTURE: tl.constexpr = KIND.TILES_BEYOND and not KIND.CAUSAL
    # The runs of tiles that `query_ranges` returns. Loops for runs that cannot occur are not compiled.
    OCCURS: tl.constexpr = (FIRST_EDGE, FUTURE, True, PAST, EDGES)
    heads, groups, k_len, row_len = numbers.heads, numbers.groups, numbers.k_len, numbers.row_len
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
        k_ptr + b64 * k_strides.batch + kv64 * k_strides.head + rows * k_strides.token + d[None, :],
        mask=in_rows[:, None] & (d[None, :] < KIND.HEAD_DIM), other=0.0,
    )  # fmt: skip
    v_tile = tl.load(
        v_ptr + b64 * v_strides.batch + kv64 * v_strides.head + rows * v_strides.token + dv[None, :],
        mask=in_rows[:, None] & (dv[None, :] < KIND.V_DIM), other=0.0,
    )  # fmt: skip
    tokens = tokens_of_sequence(tokens, token_strides, b64, limits.window)
    ref = reference_position(n0, tokens.k_positions, 0, KIND.ALIGNED)
    bounds = query_ranges(n0, range_ptr + b64 * token_strides.ranges, tile, numbers, limits, M, N, KIND)

    grad_k = tl.zeros([N, D], dtype=tl.float32)
    grad_v = tl.zeros([N, DV], dtype=tl.float32)
    for g in range(groups):
        h64 = kv64 * groups + g
        bh64 = b64 * heads + h64
        slope, seed = 0.0, 0
        if KIND.LINEAR:
            slope = tl.load(bias.slopes + h64)
        if KIND.DROPOUT:
            seed = tl.load(seed_ptr) + bh64.to(tl.int32)
        sums = Sums(
            grad_k, grad_v, tl.zeros([N], dtype=tl.float32), tl.zeros([N], dtype=tl.float32),
            tl.zeros([N], dtype=tl.float32), tl.zeros([N], dtype=tl.float32),
        )  # fmt: skip
        # For sums in a fixed order, every tile writes to its own table.
        own_table = (b64 * tl.num_programs(1) + tile) * heads if WANTED.ORDERED else 0
        for part in tl.static_range(5):
            if OCCURS[part]:
                streamed = QueriesAndGradients(
                    q_ptr + b64 * q_strides.batch + h64 * q_strides.head,
                    grad_ptr + b64 * grad_strides.batch + h64 * grad_strides.head,
                    level_ptr + bh64 * numbers.q_len, shared_ptr + bh64 * numbers.q_len, levels,
                    q_strides.token, grad_strides.token,
                )  # fmt: skip
                head_bias = bias_of_head(bias, bias_strides, b64, h64, numbers)
                keys = Keys(
                    k_tile, v_tile, kj, ref, slope, seed, grads.key_row + bh64 * k_len * row_len,
                    grads.table + (own_table + h64) * numbers.table_len,
                )  # fmt: skip
                sums = _pull_to_keys(
                    sums, keys, bounds[part], bounds[part + 1], streamed, head_bias, tokens, numbers,
                    KIND, WANTED, M if part == 1 or part == 3 else NEAR, part,
                )  # fmt: skip
        grad_k, grad_v, grad_key, past, future, grad_slope = sums
        if WANTED.KEY:
            tl.store(grads.key + bh64 * k_len + kj, grad_key, mask=in_rows)
        if WANTED.KEY_ROW:
            key_rows = grads.key_row + (bh64 * k_len + kj) * row_len
            pull_to_ends(past, future, in_rows, key_rows, row_len)
        if WANTED.SLOPE:
            share = tl.sum(tl.where(in_rows, grad_slope, 0.0), 0)
            tl.store(grads.slope + bh64 * tl.num_programs(1) + tile, share)
    tl.store(
        grads.k + b64 * grad_k_strides.batch + kv64 * grad_k_strides.head + rows * grad_k_strides.token + d[None, :],
        (grad_k * numbers.scale).to(grads.k.dtype.element_ty),
        mask=in_rows[:, None] & (d[None, :] < KIND.HEAD_DIM),
    )  # fmt: skip
    tl.store(
        grads.v + b64 * grad_v_strides.batch + kv64 * grad_v_strides.head + rows * grad_v_strides.token + dv[None, :],
        grad_v.to(grads.v.dtype.element_ty),
        mask=in_rows[:, None] & (dv[None, :] < KIND.V_DIM),
    )  # fmt: skip
