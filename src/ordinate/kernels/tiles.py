"""What all attention kernels do to one tile of logits: bias, mask, dropout, and where tiles differ.

Logits are kept in units of log 2, so that exp2 and log2 serve. Query indices ``qi`` and key indices
``kj`` come shaped to broadcast, ``[M, 1]`` and ``[1, N]`` or the other way round, so the same code
serves tiles of either orientation.
"""

from __future__ import annotations

import os

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
#: How many numbers `tile_ranges` has for a tile.
RANGE = tl.constexpr(6)
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def tile_and_head():
    """Which tile of which head of which sequence a program has.

    Programs start in the order of the first axis. With the heads along it, the same tile of all of them comes first,
    so that those with most to do lead; and it is the only axis that may be longer than 65,535.
    """
    return tl.program_id(1), tl.program_id(0)


@triton.jit
def lookup(pointers):
    """Load a tile of scattered float32 numbers straight into registers.

    A plain load would be pipelined: the tile would go through shared memory, which keys and values need.
    """
    if INTERPRETED:
        return tl.load(pointers)
    else:
        return tl.inline_asm_elementwise(
            "ld.global.nc.f32 $0, [$1];", "=f,l", [pointers.to(tl.int64, bitcast=True)],
            dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip


@triton.jit
def entries_of(table_ptr, distance, queries, keys, N: tl.constexpr):
    """Where a tile finds its distances in a table that has them all.

    Args:
        distance: From the tile's first key to its first query, counted from the table's first entry.
        queries, keys: Counted from the tile's first, shaped to broadcast. There are N keys.

    A thread's pairs lie a fixed way from each other, and pairs along a diagonal at one place. Written as a sum of
    one address, queries and keys counted backwards, the compiler sees both: it loads each place once, by one address.
    """
    backwards = (keys ^ (N - 1)).to(tl.int64)  # N - 1 - keys, for N is a power of two
    return (table_ptr + (distance - (N - 1))) + (queries.to(tl.int64) + backwards)


@triton.jit
def relative_positions(qi, kj, q_pos_ptr, k_pos_ptr, ref, q_len, k_len, ALIGNED: tl.constexpr):
    """Positions less ``ref``, small enough for int32. Aligned positions are the indices themselves."""
    if ALIGNED:
        return qi + (k_len - q_len) - ref, kj - ref
    else:
        q_pos = tl.load(q_pos_ptr + qi, mask=qi < q_len, other=0)
        k_pos = tl.load(k_pos_ptr + kj, mask=kj < k_len, other=0)
        return (q_pos - ref).to(tl.int32), (k_pos - ref).to(tl.int32)


@triton.jit
def counted_times(factor, offsets, first):
    """Aligned positions in float32, times a factor: counted up from a tile's first.

    Turning an integer into a float takes as long as an exponential, and a thread holds half as many
    columns as logits. What depends on the offsets alone is the same for all tiles, and leaves their loop.
    """
    return factor * offsets.to(tl.float32) + factor * (first + tl.zeros([], dtype=tl.int32)).to(
        tl.float32
    )


@triton.jit
def line_over_keys(
    q_pos,
    k_pos,
    columns,
    first,
    slope,
    LINEAR: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """What a line adds to the logits of a tile whose keys are its columns, but for `row_term`."""
    if not LINEAR:
        return 0.0
    elif SYMMETRIC or not ALIGNED:
        if ALIGNED:
            distance = q_pos.to(tl.float32) - counted_times(1.0, columns, first)
        else:
            distance = between(q_pos, k_pos)
        return -slope * LOG2E * (tl.abs(distance) if SYMMETRIC else distance)
    else:
        return counted_times(slope * LOG2E, columns, first)


@triton.jit
def between(q_pos, k_pos):
    """How far keys are before queries, where positions are data, in float32.

    Subtracted as integers: a tile may hold the end of a long sequence beside the start of another, far from each other
    though none of its pairs that see each other is, and rounded one by one its positions would not be told apart.
    """
    return (q_pos - k_pos).to(tl.float32)


@triton.jit
def reference_position(index, pos_ptr, shift, ALIGNED: tl.constexpr):
    """The position at an index: what the other positions of its tile are counted from."""
    if ALIGNED:
        return index + shift
    else:
        return tl.load(pos_ptr + index)


@triton.jit
def tanh(x):
    # 1 - 2/(e^2x + 1), with the exponential bounded so that it cannot overflow.
    far = 1.0 - 2.0 / (tl.exp2(tl.minimum(x, 20.0) * (2.0 * LOG2E)) + 1.0)
    # Near 0 that difference cancels; the polynomial x + x^3 p(x^2) of Cephes (Moshier 1989) does not.
    z = x * x
    p = ((-5.70498872745e-3 * z + 2.06390887954e-2) * z - 5.37397155531e-2) * z + 1.33314422036e-1
    near = x + x * z * (p * z - 3.33332819422e-1)
    return tl.where(tl.abs(x) < 0.625, near, far)


@triton.jit
def softcap_slope(scores, scale, softcap, SOFTCAP: tl.constexpr):
    """The derivative of the softcap at each score."""
    if SOFTCAP:
        capped = tanh(scores * (scale / softcap))
        return 1.0 - capped * capped
    else:
        return 1.0


@triton.jit
def tile_logits(
    scores, qi, kj, q_pos, k_pos, line, table_ptr, key_ptr, row_ptr, key_row_ptr,
    scale, softcap, table_len, table_lo, row_len, row_lo, q_len, k_len,
    LINEAR: tl.constexpr, TABLE: tl.constexpr, KEY: tl.constexpr,
    ROW: tl.constexpr, KEY_ROW: tl.constexpr, SOFTCAP: tl.constexpr, FAR: tl.constexpr,
    FOUND: tl.constexpr, PACKED: tl.constexpr = False,
):  # fmt: skip
    """Scaled scores plus bias, but for what is one number for a whole row of the tile.

    Of a line that is `row_term`. FAR says on which side of the tables all of a tile's distances lie: 1 past their
    end, -1 before their start, 0 neither, so that each must be looked up; where it is not 0, a table and rows of
    queries have one number for the whole row, `far_term`. FOUND says that ``table_ptr`` are the tile's `entries_of`
    the table. PACKED says that rows are of several heads: what is a number for each key otherwise is then one for
    each pair.
    """
    if SOFTCAP:
        logits = softcap * LOG2E * tanh(scores * (scale / softcap))
    else:
        logits = scores * (scale * LOG2E)
    if LINEAR:
        logits += line
    if KEY:
        if PACKED:
            logits += lookup(key_ptr + tl.minimum(kj, k_len - 1)) * LOG2E
        else:
            logits += tl.load(key_ptr + kj, mask=kj < k_len, other=0.0) * LOG2E
    if TABLE and FAR == 0:
        entries = table_ptr
        if not FOUND:
            entries += tl.minimum(tl.maximum(q_pos - k_pos - table_lo, 0), table_len - 1)
        logits += lookup(entries) * LOG2E
    if ROW and FAR == 0:
        index = tl.minimum(tl.maximum(q_pos - k_pos - row_lo, 0), row_len - 1)
        row = row_ptr + tl.minimum(qi, q_len - 1).to(tl.int64) * row_len
        logits += lookup(row + index) * LOG2E
    if KEY_ROW:  # as long as the rows of queries, and looked up from the other side
        row = key_row_ptr + tl.minimum(kj, k_len - 1).to(tl.int64) * row_len
        if FAR == 1:
            row += row_len - 1
        elif FAR == 0:
            row += tl.minimum(tl.maximum(q_pos - k_pos - row_lo, 0), row_len - 1)
        if FAR == 0 or PACKED:
            logits += lookup(row) * LOG2E
        else:
            logits += tl.load(row) * LOG2E
    return logits


@triton.jit
def far_term(
    qi, q_len, table_ptr, table_len, row_ptr, row_len,
    TABLE: tl.constexpr, ROW: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """What a table and rows of queries add to all logits of a query beyond their end (FAR 1) or start (FAR -1)."""
    term = 0.0
    if TABLE and FAR != 0:
        term += tl.load(table_ptr + (table_len - 1 if FAR == 1 else 0)) * LOG2E
    if ROW and FAR != 0:
        row = row_ptr + qi.to(tl.int64) * row_len
        term += tl.load(row + (row_len - 1 if FAR == 1 else 0), mask=qi < q_len, other=0.0) * LOG2E
    return term


@triton.jit
def level_beyond(level_ptr, levels, TABLE: tl.constexpr, ROW: tl.constexpr, FAR: tl.constexpr):
    """Where the levels are from which `far_term` is taken off already; as they are where it is nothing."""
    if (TABLE or ROW) and FAR != 0:
        level_ptr += levels
        if FAR == -1:
            level_ptr += levels
    return level_ptr


@triton.jit
def row_term(q_pos, slope, LINEAR: tl.constexpr, SYMMETRIC: tl.constexpr, ALIGNED: tl.constexpr):
    """What a line at aligned positions takes off a whole row: cancels in the softmax, but not in its logsumexp."""
    if LINEAR and ALIGNED and not SYMMETRIC:
        return slope * LOG2E * q_pos.to(tl.float32)
    else:
        return 0.0


@triton.jit
def visible(
    qi, kj, q_index_ptr, k_index_ptr, q_segment_ptr, k_segment_ptr,
    q_len, k_len, window,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, INDEXED: tl.constexpr,
    SEGMENTS: tl.constexpr,
):  # fmt: skip
    """Whether each query of a tile sees each key."""
    seen = (qi < q_len) & (kj < k_len)
    if INDEXED:
        q_index = tl.load(q_index_ptr + qi, mask=qi < q_len, other=0)
        k_index = tl.load(k_index_ptr + kj, mask=kj < k_len, other=0)
        distance = q_index - k_index
    else:
        distance = qi + (k_len - q_len) - kj
    if CAUSAL:
        seen = seen & (distance >= 0)
    if WINDOWED:
        if CAUSAL:
            seen = seen & (distance < window)
        else:
            seen = seen & (tl.abs(distance) < window)
    if SEGMENTS:
        q_segment = tl.load(q_segment_ptr + qi, mask=qi < q_len, other=-1)
        k_segment = tl.load(k_segment_ptr + kj, mask=kj < k_len, other=-2)
        seen = seen & (q_segment == k_segment)
    return seen


@triton.jit
def tile_bounds(values_ptr, starts, length, SIZE: tl.constexpr):
    """The least and the greatest value in each of some tiles of SIZE tokens, of which some may be beyond the last."""
    tokens = starts[:, None] + tl.arange(0, SIZE)[None, :]
    values = tl.load(values_ptr + tl.minimum(tl.maximum(tokens, 0), length - 1))
    return tl.min(values, 1), tl.max(values, 1)


@triton.jit
def first_run(start, end, holds, numbers, last):
    """From where to where something holds for the first time, given that for the numbers before these.

    Nothing found yet is a run from ``last`` to ``last``, beyond which numbers do not count.
    """
    start = tl.minimum(start, tl.min(tl.where(holds, numbers, last), 0))
    broken = (numbers > start) & (numbers < last) & (holds == 0)
    return start, tl.minimum(end, tl.min(tl.where(broken, numbers, last), 0))


@triton.jit
def kept(qi, kj, seed, dropout_p):
    """Dropout's multiplier, the same in every kernel that asks for a pair.

    Queries and keys are counters of their own, for numbers of pairs would soon leave int32.
    """
    first, second = qi + tl.zeros_like(kj), kj + tl.zeros_like(qi)
    bits, _, _, _ = tl.philox(seed, first, second, tl.zeros_like(first), tl.zeros_like(first))
    return tl.where(tl.uint_to_uniform_float(bits) >= dropout_p, 1.0 / (1.0 - dropout_p), 0.0)


@triton.jit
def key_ranges(
    m0, range_ptr, tile, q_len, k_len, window, lo, hi,
    M: tl.constexpr, N: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
    INDEXED: tl.constexpr, RANGED: tl.constexpr, ALL_MASKED: tl.constexpr, FAR_TILES: tl.constexpr,
    ALIGNED: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Where the keys of a query tile change their nature, as multiples of N, or at the end of those it sees.

    Returns ``start <= full_start <= past_end <= future_start <= full_end <= end``: tiles outside of
    ``[start, end)`` are invisible, tiles inside ``[full_start, full_end)`` need no mask, and of those the
    ones before ``past_end`` lie beyond the tables' end and the ones from ``future_start`` before their start.
    With ALL_MASKED none can do without a mask; all are inside then, unless a table is WHOLE.
    """
    first = m0 + k_len - q_len  # the key level with the tile's first query
    last = first + M - 1
    start, end = 0, k_len
    full_start, full_end = 0, k_len // N * N
    if CAUSAL and not INDEXED:
        end = tl.minimum(end, tl.maximum(last + 1, 0))
        full_end = tl.minimum(full_end, tl.maximum(first + 1, 0) // N * N)
    if WINDOWED and not INDEXED:
        start = tl.maximum(first - window + 1, 0) // N * N
        full_start = (tl.maximum(last - window + 1, 0) + N - 1) // N * N
        if not CAUSAL:
            end = tl.minimum(end, tl.maximum(last + window, 0))
            full_end = tl.minimum(full_end, tl.maximum(first + window, 0) // N * N)
    range_ptr += RANGE * tile
    if RANGED:
        start = tl.maximum(start, tl.load(range_ptr) * N)
        full_start = tl.maximum(full_start, tl.load(range_ptr + 1) * N)
        full_end = tl.minimum(full_end, tl.load(range_ptr + 2) * N)
        end = tl.minimum(end, tl.load(range_ptr + 3) * N)
    if ALL_MASKED and not WHOLE:
        full_start, full_end = start, end
    start = tl.minimum(start, end)
    full_start = tl.maximum(tl.minimum(full_start, end), start)
    if RANGED:  # a segment may end before the window begins
        full_end = tl.minimum(full_end, end)
    full_end = tl.maximum(full_end, full_start)
    if WHOLE:  # a table has no entries for queries beyond the last
        full_end = tl.where(m0 + M > q_len, full_start, full_end)
    past_end, future_start = full_start, full_end
    if FAR_TILES:
        if ALIGNED:
            past_end = tl.maximum(first - hi + 1, 0) // N * N
            future_start = (tl.maximum(last - lo, 0) + N - 1) // N * N
        else:
            past_end = tl.load(range_ptr + 4) * N
            future_start = tl.load(range_ptr + 5) * N
        past_end = tl.maximum(tl.minimum(past_end, full_end), full_start)
        future_start = tl.maximum(tl.minimum(future_start, full_end), past_end)
        if CAUSAL:
            future_start = full_end
    return start, full_start, past_end, future_start, full_end, end


@triton.jit
def query_ranges(
    n0, range_ptr, tile, q_len, k_len, window, lo, hi,
    M: tl.constexpr, N: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
    INDEXED: tl.constexpr, RANGED: tl.constexpr, ALL_MASKED: tl.constexpr, FAR_TILES: tl.constexpr,
    ALIGNED: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """The same for the queries of a key tile, as multiples of M.

    Returns ``start <= full_start <= future_end <= past_start <= full_end <= end``: as queries run forward,
    the keys of this tile lie first in their future and at last in their past.
    """
    first = n0 - (k_len - q_len)  # the query level with the tile's first key
    last = first + N - 1
    start, end = 0, q_len
    # Queries beyond q_len bring zero gradients, so only keys beyond k_len need a mask.
    full_start, full_end = 0, q_len
    if WHOLE:  # but a table has no entries for them
        full_end = q_len // M * M
    if CAUSAL and not INDEXED:
        start = tl.maximum(first, 0) // M * M
        full_start = (tl.maximum(last, 0) + M - 1) // M * M
    if WINDOWED and not INDEXED:
        end = tl.minimum(end, tl.maximum(last + window, 0))
        full_end = tl.minimum(full_end, tl.maximum(first + window, 0) // M * M)
        if not CAUSAL:
            start = tl.maximum(first - window + 1, 0) // M * M
            full_start = (tl.maximum(last - window + 1, 0) + M - 1) // M * M
    range_ptr += RANGE * tile
    if RANGED:
        start = tl.maximum(start, tl.load(range_ptr) * M)
        full_start = tl.maximum(full_start, tl.load(range_ptr + 1) * M)
        full_end = tl.minimum(full_end, tl.load(range_ptr + 2) * M)
        end = tl.minimum(end, tl.load(range_ptr + 3) * M)
    if ALL_MASKED and not WHOLE:
        full_start, full_end = start, end
    else:
        beyond = n0 + N > k_len
        full_start = tl.where(beyond, start, full_start)
        full_end = tl.where(beyond, start, full_end)
    start = tl.minimum(start, end)
    full_start = tl.maximum(tl.minimum(full_start, end), start)
    full_end = tl.maximum(tl.minimum(full_end, end), full_start)
    future_end, past_start = full_start, full_end
    if FAR_TILES:
        if ALIGNED:
            future_end = tl.maximum(first + lo + 1, 0) // M * M
            past_start = (tl.maximum(last + hi, 0) + M - 1) // M * M
        else:
            future_end = tl.load(range_ptr + 4) * M
            past_start = tl.load(range_ptr + 5) * M
        future_end = tl.maximum(tl.minimum(future_end, full_end), full_start)
        if CAUSAL:
            future_end = full_start
        past_start = tl.maximum(tl.minimum(past_start, full_end), future_end)
    return start, full_start, future_end, past_start, full_end, end
