"""Which keys a tile of queries sees, which queries see a tile of keys, and which of them lie beyond the tables."""

from __future__ import annotations

import triton
import triton.language as tl

from .tiles import RANGE


@triton.jit
def key_ranges(
    m0, range_ptr, tile, numbers, limits, M: tl.constexpr, N: tl.constexpr, KIND: tl.constexpr
):  # fmt: skip
    """Split the keys of a query tile into runs that need a mask, a lookup, or neither.

    Returns ``start <= full_start <= past_end <= future_start <= full_end <= end``, each a multiple of N or the end of
    the visible keys. Tiles outside ``[start, end)`` are invisible; tiles inside ``[full_start, full_end)`` need no
    mask. Of the latter, those before ``past_end`` lie past the tables' end, those from ``future_start`` before
    their start. With ALL_MASKED every tile needs a mask; then all are inside, unless the table is COMPLETE.
    """
    q_len, k_len = numbers.q_len, numbers.k_len
    first = m0 + k_len - q_len  # the key aligned with the tile's first query
    last = first + M - 1
    start, end = 0, k_len
    full_start, full_end = 0, k_len // N * N
    if KIND.CAUSAL and not KIND.INDEXED:
        end = tl.minimum(end, tl.maximum(last + 1, 0))
        full_end = tl.minimum(full_end, tl.maximum(first + 1, 0) // N * N)
    if KIND.WINDOWED and not KIND.INDEXED:
        start = tl.maximum(first - limits.window + 1, 0) // N * N
        full_start = (tl.maximum(last - limits.window + 1, 0) + N - 1) // N * N
        if not KIND.CAUSAL:
            end = tl.minimum(end, tl.maximum(last + limits.window, 0))
            full_end = tl.minimum(full_end, tl.maximum(first + limits.window, 0) // N * N)
    range_ptr += RANGE * tile
    if KIND.SEGMENTS:
        start = tl.maximum(start, tl.load(range_ptr) * N)
        full_start = tl.maximum(full_start, tl.load(range_ptr + 1) * N)
        full_end = tl.minimum(full_end, tl.load(range_ptr + 2) * N)
        end = tl.minimum(end, tl.load(range_ptr + 3) * N)
    if KIND.ALL_MASKED and not KIND.COMPLETE:
        full_start, full_end = start, end
    start = tl.minimum(start, end)
    full_start = tl.maximum(tl.minimum(full_start, end), start)
    if KIND.SEGMENTS:  # a segment may end before the window begins
        full_end = tl.minimum(full_end, end)
    full_end = tl.maximum(full_end, full_start)
    if KIND.COMPLETE:  # the table has no entries for padding queries
        full_end = tl.where(m0 + M > q_len, full_start, full_end)
    past_end, future_start = full_start, full_end
    if KIND.TILES_BEYOND:
        if KIND.ALIGNED:
            past_end = tl.maximum(first - limits.hi + 1, 0) // N * N
            future_start = (tl.maximum(last - limits.lo, 0) + N - 1) // N * N
        else:
            past_end = tl.load(range_ptr + 4) * N
            future_start = tl.load(range_ptr + 5) * N
        past_end = tl.maximum(tl.minimum(past_end, full_end), full_start)
        future_start = tl.maximum(tl.minimum(future_start, full_end), past_end)
        if KIND.CAUSAL:
            future_start = full_end
    return start, full_start, past_end, future_start, full_end, end


@triton.jit
def query_ranges(
    n0, range_ptr, tile, numbers, limits, M: tl.constexpr, N: tl.constexpr, KIND: tl.constexpr
):  # fmt: skip
    """`key_ranges` for the queries of a key tile, in multiples of M.

    Returns ``start <= full_start <= future_end <= past_start <= full_end <= end``: this tile lies in the future of the
    first queries and in the past of the last.
    """
    q_len, k_len = numbers.q_len, numbers.k_len
    first = n0 - (k_len - q_len)  # the query aligned with the tile's first key
    last = first + N - 1
    start, end = 0, q_len
    # Queries beyond q_len have zero gradients, so only keys beyond k_len need a mask.
    full_start, full_end = 0, q_len
    if KIND.COMPLETE:  # but the table has no entries for queries beyond q_len
        full_end = q_len // M * M
    if KIND.CAUSAL and not KIND.INDEXED:
        start = tl.maximum(first, 0) // M * M
        full_start = (tl.maximum(last, 0) + M - 1) // M * M
    if KIND.WINDOWED and not KIND.INDEXED:
        end = tl.minimum(end, tl.maximum(last + limits.window, 0))
        full_end = tl.minimum(full_end, tl.maximum(first + limits.window, 0) // M * M)
        if not KIND.CAUSAL:
            start = tl.maximum(first - limits.window + 1, 0) // M * M
            full_start = (tl.maximum(last - limits.window + 1, 0) + M - 1) // M * M
    range_ptr += RANGE * tile
    if KIND.SEGMENTS:
        start = tl.maximum(start, tl.load(range_ptr) * M)
        full_start = tl.maximum(full_start, tl.load(range_ptr + 1) * M)
        full_end = tl.minimum(full_end, tl.load(range_ptr + 2) * M)
        end = tl.minimum(end, tl.load(range_ptr + 3) * M)
    if KIND.ALL_MASKED and not KIND.COMPLETE:
        full_start, full_end = start, end
    else:
        beyond = n0 + N > k_len
        full_start = tl.where(beyond, start, full_start)
        full_end = tl.where(beyond, start, full_end)
    start = tl.minimum(start, end)
    full_start = tl.maximum(tl.minimum(full_start, end), start)
    full_end = tl.maximum(tl.minimum(full_end, end), full_start)
    future_end, past_start = full_start, full_end
    if KIND.TILES_BEYOND:
        if KIND.ALIGNED:
            future_end = tl.maximum(first + limits.lo + 1, 0) // M * M
            past_start = (tl.maximum(last + limits.hi, 0) + M - 1) // M * M
        else:
            future_end = tl.load(range_ptr + 4) * M
            past_start = tl.load(range_ptr + 5) * M
        future_end = tl.maximum(tl.minimum(future_end, full_end), full_start)
        if KIND.CAUSAL:
            future_end = full_start
        past_start = tl.maximum(tl.minimum(past_start, full_end), future_end)
    return start, full_start, future_end, past_start, full_end, end
