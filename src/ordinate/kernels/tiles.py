"""Helpers of all attention kernels for one tile of logits: bias, mask, dropout, and runs of tiles.

Logits are in units of log 2, so that kernels can use exp2 and log2. Query indices ``qi`` and key indices
``kj`` are shaped to broadcast, ``[M, 1]`` and ``[1, N]`` or the other way round, so the same code
works for tiles of either orientation.
"""

from __future__ import annotations

import os

import triton
import triton.language as tl

from .arguments import BiasPointers, Pairs, Tokens

LOG2E = tl.constexpr(1.4426950408889634)
#: How many numbers `tile_ranges` writes per tile.
RANGE = tl.constexpr(6)
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def tile_and_head():
    """The tile of a program, and its index of batch and head.

    Programs start in the order of the first grid axis. The heads are on this axis, so the tiles with the most work of
    all heads start first; it is also the only axis that may be longer than 65,535.
    """
    return tl.program_id(1), tl.program_id(0)


@triton.jit
def bias_of_head(bias, strides, b64, h64, numbers):
    """The bias pointers of one head of one sequence; with PACKED those of several heads, as ``[M, 1]``."""
    return BiasPointers(
        bias.slopes,
        bias.table + h64 * numbers.table_len,
        bias.key + (b64 * strides.key_batch + h64 * strides.key_head),
        bias.row + (b64 * strides.row_batch + h64 * numbers.q_len * numbers.row_len),
        bias.key_row + (b64 * strides.key_row_batch + h64 * numbers.k_len * numbers.row_len),
    )


@triton.jit
def tokens_of_sequence(tokens, strides, b64, window):
    """The tokens of one row of the batch."""
    return Tokens(
        tokens.q_positions + b64 * strides.q_positions,
        tokens.k_positions + b64 * strides.k_positions,
        tokens.q_index + b64 * strides.queries,
        tokens.k_index + b64 * strides.keys,
        tokens.q_segments + b64 * strides.queries,
        tokens.k_segments + b64 * strides.keys,
        window,
    )


@triton.jit
def lookup(pointers):
    """Load a tile of scattered float32 numbers directly into registers.

    Triton would pipeline a `tl.load`: the tile would take shared memory that keys and values need.
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
    """The addresses of a tile's distances in a table that has every visible distance.

    Args:
        distance: Of the tile's first query and first key, counted from the table's first entry.
        queries, keys: Counted from the tile's first, shaped to broadcast. There are N keys.

    The pairs of a thread have constant address differences, and all pairs on a diagonal have one address. Written as
    one address + queries + keys counted backwards, the compiler sees both and loads each entry once, from one address.
    """
    backwards = (keys ^ (N - 1)).to(tl.int64)  # N - 1 - keys, because N is a power of two
    return (table_ptr + (distance - (N - 1))) + (queries.to(tl.int64) + backwards)


@triton.jit
def pairs_of(qi, kj, tokens, ref, numbers, KIND: tl.constexpr):
    """Indices, and positions minus ``ref``, which fit in int32. Aligned positions are the indices."""
    q_len, k_len = numbers.q_len, numbers.k_len
    if KIND.ALIGNED:
        return Pairs(qi, kj, qi + (k_len - q_len) - ref, kj - ref)
    else:
        q_pos = tl.load(tokens.q_positions + qi, mask=qi < q_len, other=0)
        k_pos = tl.load(tokens.k_positions + kj, mask=kj < k_len, other=0)
        return Pairs(qi, kj, (q_pos - ref).to(tl.int32), (k_pos - ref).to(tl.int32))


@triton.jit
def counted_times(factor, offsets, first):
    """``factor · (first + offsets)`` in float32, for aligned positions.

    Converting an integer to float takes as long as an exponential, and a thread holds half as many columns as logits.
    The term of ``offsets`` is the same for all tiles, so the compiler moves it out of their loop.
    """
    return factor * offsets.to(tl.float32) + factor * (first + tl.zeros([], dtype=tl.int32)).to(
        tl.float32
    )


@triton.jit
def line_over_keys(pairs, columns, first, slope, KIND: tl.constexpr):
    """The linear bias of a tile whose columns are keys, without `row_term`."""
    if not KIND.LINEAR:
        return 0.0
    elif KIND.SYMMETRIC or not KIND.ALIGNED:
        if KIND.ALIGNED:
            distance = pairs.q_pos.to(tl.float32) - counted_times(1.0, columns, first)
        else:
            distance = between(pairs.q_pos, pairs.k_pos)
        return -slope * LOG2E * (tl.abs(distance) if KIND.SYMMETRIC else distance)
    else:
        return counted_times(slope * LOG2E, columns, first)


@triton.jit
def between(q_pos, k_pos):
    """Distances in float32, where positions are data.

    The subtraction is in integers: a tile may hold the end of a long sequence and the start of another one. These
    positions are far apart, although no visible pair is, and float32 would round neighbouring positions to one number.
    """
    return (q_pos - k_pos).to(tl.float32)


@triton.jit
def reference_position(index, pos_ptr, shift, ALIGNED: tl.constexpr):
    """The position at an index, which is subtracted from all positions of its tile."""
    if ALIGNED:
        return index + shift
    else:
        return tl.load(pos_ptr + index)


@triton.jit
def tanh(x):
    # 1 - 2/(e^2x + 1), with the exponential bounded so that it cannot overflow.
    far = 1.0 - 2.0 / (tl.exp2(tl.minimum(x, 20.0) * (2.0 * LOG2E)) + 1.0)
    # Near 0 the subtraction above cancels; the polynomial x + x^3 p(x^2) of Cephes (Moshier 1989) does not.
    z = x * x
    p = ((-5.70498872745e-3 * z + 2.06390887954e-2) * z - 5.37397155531e-2) * z + 1.33314422036e-1
    near = x + x * z * (p * z - 3.33332819422e-1)
    return tl.where(tl.abs(x) < 0.625, near, far)


@triton.jit
def softcap_slope(scores, numbers, KIND: tl.constexpr):
    """The derivative of the softcap at each score."""
    if KIND.SOFTCAP:
        capped = tanh(scores * (numbers.scale / numbers.softcap))
        return 1.0 - capped * capped
    else:
        return 1.0


@triton.jit
def tile_logits(
    scores, pairs, line, entries, bias, numbers,
    KIND: tl.constexpr, BEYOND: tl.constexpr, ADDRESSED: tl.constexpr,
):  # fmt: skip
    """Scaled scores plus bias, without the terms that are one number per query: `row_term` and `term_beyond`.

    Args:
        entries: With ADDRESSED, the tile's addresses in the table.
        BEYOND: Where all of a tile's distances lie: 1 past the end of the tables, -1 before their start, 0 neither:
            then each distance must be looked up. If not 0, a table and rows of queries add one number per query,
            `term_beyond`.

    With PACKED the rows belong to several heads, so a number per key becomes a number per pair.
    """
    qi, kj, q_pos, k_pos = pairs
    if KIND.SOFTCAP:
        logits = numbers.softcap * LOG2E * tanh(scores * (numbers.scale / numbers.softcap))
    else:
        logits = scores * (numbers.scale * LOG2E)
    if KIND.LINEAR:
        logits += line
    if KIND.KEY:
        if KIND.PACKED:
            logits += lookup(bias.key + tl.minimum(kj, numbers.k_len - 1)) * LOG2E
        else:
            logits += tl.load(bias.key + kj, mask=kj < numbers.k_len, other=0.0) * LOG2E
    if KIND.TABLE and BEYOND == 0:
        if not ADDRESSED:
            entries = bias.table + tl.minimum(
                tl.maximum(q_pos - k_pos - numbers.table_lo, 0), numbers.table_len - 1
            )
        logits += lookup(entries) * LOG2E
    if KIND.ROW and BEYOND == 0:
        entry = tl.minimum(tl.maximum(q_pos - k_pos - numbers.row_lo, 0), numbers.row_len - 1)
        row = bias.row + tl.minimum(qi, numbers.q_len - 1).to(tl.int64) * numbers.row_len
        logits += lookup(row + entry) * LOG2E
    if KIND.KEY_ROW:  # rows of keys have the length of the rows of queries
        row = bias.key_row + tl.minimum(kj, numbers.k_len - 1).to(tl.int64) * numbers.row_len
        if BEYOND == 1:
            row += numbers.row_len - 1
        elif BEYOND == 0:
            row += tl.minimum(tl.maximum(q_pos - k_pos - numbers.row_lo, 0), numbers.row_len - 1)
        if BEYOND == 0 or KIND.PACKED:
            logits += lookup(row) * LOG2E
        else:
            logits += tl.load(row) * LOG2E
    return logits


@triton.jit
def term_beyond(
    qi, q_len, table_ptr, table_len, row_ptr, row_len,
    TABLE: tl.constexpr, ROW: tl.constexpr, BEYOND: tl.constexpr,
):  # fmt: skip
    """The bias of a query by table and rows at all distances past their end (BEYOND 1) or before their start (-1)."""
    term = 0.0
    if TABLE and BEYOND != 0:
        term += tl.load(table_ptr + (table_len - 1 if BEYOND == 1 else 0)) * LOG2E
    if ROW and BEYOND != 0:
        row = row_ptr + qi.to(tl.int64) * row_len
        term += tl.load(row + (row_len - 1 if BEYOND == 1 else 0), mask=qi < q_len, other=0.0) * LOG2E
    return term


@triton.jit
def level_beyond(level_ptr, levels, KIND: tl.constexpr, BEYOND: tl.constexpr):
    """The address of the levels minus `term_beyond`, or of the plain levels where there is no such term."""
    if (KIND.TABLE or KIND.ROW) and BEYOND != 0:
        level_ptr += levels
        if BEYOND == -1:
            level_ptr += levels
    return level_ptr


@triton.jit
def row_term(q_pos, slope, KIND: tl.constexpr):
    """The term of a linear bias at aligned positions that is subtracted from a row.

    It cancels in the softmax, but not in the logsumexp.
    """
    if KIND.LINEAR and KIND.ALIGNED and not KIND.SYMMETRIC:
        return slope * LOG2E * q_pos.to(tl.float32)
    else:
        return 0.0


@triton.jit
def visible(qi, kj, tokens, numbers, KIND: tl.constexpr):
    """Whether each query of a tile sees each key."""
    q_len, k_len = numbers.q_len, numbers.k_len
    seen = (qi < q_len) & (kj < k_len)
    if KIND.INDEXED:
        q_index = tl.load(tokens.q_index + qi, mask=qi < q_len, other=0)
        k_index = tl.load(tokens.k_index + kj, mask=kj < k_len, other=0)
        distance = q_index - k_index
    else:
        distance = qi + (k_len - q_len) - kj
    if KIND.CAUSAL:
        seen = seen & (distance >= 0)
    if KIND.WINDOWED:
        if KIND.CAUSAL:
            seen = seen & (distance < tokens.window)
        else:
            seen = seen & (tl.abs(distance) < tokens.window)
    if KIND.SEGMENTS:
        q_segment = tl.load(tokens.q_segments + qi, mask=qi < q_len, other=-1)
        k_segment = tl.load(tokens.k_segments + kj, mask=kj < k_len, other=-2)
        seen = seen & (q_segment == k_segment)
    return seen


@triton.jit
def tile_bounds(values_ptr, starts, length, SIZE: tl.constexpr):
    """The least and the greatest value in each of several tiles of SIZE tokens; tiles may lie beyond the last token."""
    tokens = starts[:, None] + tl.arange(0, SIZE)[None, :]
    values = tl.load(values_ptr + tl.minimum(tl.maximum(tokens, 0), length - 1))
    return tl.min(values, 1), tl.max(values, 1)


@triton.jit
def first_run(start, end, holds, numbers, last):
    """Update the first run ``[start, end)`` in which ``holds`` is true with the next ``numbers``.

    Before anything is found the run is ``[last, last)``. Numbers from ``last`` on do not count.
    """
    start = tl.minimum(start, tl.min(tl.where(holds, numbers, last), 0))
    broken = (numbers > start) & (numbers < last) & (holds == 0)
    return start, tl.minimum(end, tl.min(tl.where(broken, numbers, last), 0))


@triton.jit
def dropout_factors(qi, kj, seed, dropout_p):
    """0 or 1 / (1 - dropout_p) for each pair, the same in every kernel.

    Philox takes queries and keys as two counters: one index per pair would overflow int32.
    """
    first, second = qi + tl.zeros_like(kj), kj + tl.zeros_like(qi)
    bits, _, _, _ = tl.philox(seed, first, second, tl.zeros_like(first), tl.zeros_like(first))
    return tl.where(tl.uint_to_uniform_float(bits) >= dropout_p, 1.0 / (1.0 - dropout_p), 0.0)
