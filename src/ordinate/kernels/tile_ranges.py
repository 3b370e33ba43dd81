"""Which tiles of queries and keys may see each other, where segments or positions are data."""

from __future__ import annotations

import triton
import triton.language as tl

from .tiles import RANGE, first_run, tile_and_head, tile_bounds


@triton.jit
def _tile_ranges_kernel(
    q_segment_ptr, k_segment_ptr, q_pos_ptr, k_pos_ptr, range_ptr,
    q_token_batch, k_token_batch, q_pos_batch, k_pos_batch, q_len, k_len, far_lo, far_hi,
    M: tl.constexpr, N: tl.constexpr, OF_QUERIES: tl.constexpr, SEGMENTS: tl.constexpr, FAR: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One tile of queries against all tiles of keys, or the other way round, BLOCK at a time.

    Writes RANGE numbers for this tile, counted in tiles of the other side. ``[start, end)`` holds all tiles that may
    share a segment with it: their ranges of segment ids overlap. ``[full_start, full_end)``: these tiles and this
    tile have one and the same segment. Of the tiles in ``[start, end)``, those before ``leading_end`` lie beyond the
    tables on one side, those from ``trailing_start`` on the other side.
    """
    tile, b = tile_and_head()
    b64 = b.to(tl.int64)
    OWN: tl.constexpr = M if OF_QUERIES else N
    OTHER: tl.constexpr = N if OF_QUERIES else M
    own_len, other_len = q_len, k_len
    if not OF_QUERIES:
        own_len, other_len = k_len, q_len
    q_segment_ptr += b64 * q_token_batch
    k_segment_ptr += b64 * k_token_batch
    q_pos_ptr += b64 * q_pos_batch
    k_pos_ptr += b64 * k_pos_batch
    own = tile + tl.arange(0, 1)
    if SEGMENTS:
        own_segment_ptr, other_segment_ptr = q_segment_ptr, k_segment_ptr
        if not OF_QUERIES:
            own_segment_ptr, other_segment_ptr = k_segment_ptr, q_segment_ptr
        least, greatest = tile_bounds(own_segment_ptr, own * OWN, own_len, OWN)
    if FAR:
        own_pos_ptr, other_pos_ptr = q_pos_ptr, k_pos_ptr
        if not OF_QUERIES:
            own_pos_ptr, other_pos_ptr = k_pos_ptr, q_pos_ptr
        own_first, own_last = tile_bounds(own_pos_ptr, own * OWN, own_len, OWN)

    others = tl.cdiv(other_len, OTHER) + tl.zeros(
        [], dtype=tl.int32
    )  # Triton specializes a length of 1 to a constant
    start, end = others, others * 0
    full_start, full_end = others, others
    leading_end, trailing_start = others, others * 0
    for begin in range(0, others, BLOCK):
        number = begin + tl.arange(0, BLOCK)
        meets = number < others
        same = meets
        if SEGMENTS:
            low, high = tile_bounds(other_segment_ptr, number * OTHER, other_len, OTHER)
            meets = meets & (low <= greatest) & (high >= least)
            same = meets & (low == high) & (least == greatest)
        start = tl.minimum(start, tl.min(tl.where(meets, number, others), 0))
        end = tl.maximum(end, tl.max(tl.where(meets, number + 1, 0), 0))
        full_start, full_end = first_run(full_start, full_end, same, number, others)
        if FAR:
            first, last = tile_bounds(other_pos_ptr, number * OTHER, other_len, OTHER)
            if OF_QUERIES:  # the keys before a query are its past (positive distances)
                leads, trails = own_first - last >= far_hi, own_last - first <= far_lo
            else:
                leads, trails = last - own_first <= far_lo, first - own_last >= far_hi
            leading_end = tl.minimum(
                leading_end, tl.min(tl.where(meets & (leads == 0), number, others), 0)
            )
            trailing_start = tl.maximum(
                trailing_start, tl.max(tl.where(meets & (trails == 0), number + 1, 0), 0)
            )
    range_ptr += (b64 * tl.num_programs(1) + tile) * RANGE
    tl.store(range_ptr, tl.minimum(start, end))
    tl.store(range_ptr + 1, full_start)
    tl.store(range_ptr + 2, full_end)
    tl.store(range_ptr + 3, end)
    tl.store(range_ptr + 4, leading_end)
    tl.store(range_ptr + 5, trailing_start)
