"""Rotate q and k in one launch, at the speed of a memory copy.

Rotating a pair takes six operations and moves eight bytes of bfloat16: the kernel is bound by memory and as fast
as copying q and k. Four choices make it so:

* A program takes ``BLOCK_SEQ`` tokens × ``BLOCK_HEADS`` heads. A row of cos and sin is read once and stays
  in registers for all those heads; read for each head, it would be twice the bytes of the head itself.
* Every access is 16 bytes along the head, in both layouts: pairs half a head apart are two vectors;
  neighbouring pairs are loaded as one vector and split in registers.
* All heads are loaded before the first is stored. The compiler cannot prove that output and input
  do not overlap, and would otherwise wait for each head in turn.
* Programs of all batch rows at the same tokens run at the same time, so a table that the rows share
  is read from memory once.

Arithmetic is float32 without contraction to fused multiply-adds, so each result equals that of
`rotate_pairs_reference` bit for bit.
"""

from __future__ import annotations

from collections import namedtuple
from functools import lru_cache, reduce
from itertools import chain
from operator import or_
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..caches import cleared_by
from .arguments import Strides
from .launch import Step

Ints = tuple[int, ...]
Size = torch.Size


# What the kernel is compiled for. ALIGNMENT: the power of two, up to 16, that divides every stride.
Turn = namedtuple(
    "Turn",
    "HEAD_DIM PAIRS INTERLEAVED INVERSE COPY_REST ALIGNMENT BLOCK_SEQ BLOCK_HEADS BLOCK_PAIRS BLOCK_REST",
)


# The pointers of q or of k.
Pointers = namedtuple("Pointers", "x out cos sin")


@triton.jit
def _turn_tile(
    pointers, x_strides, out_strides, table_rows, batch_index, first_token, first_head, heads, seq,
    TURN: tl.constexpr,
):  # fmt: skip
    """Rotate BLOCK_SEQ tokens of BLOCK_HEADS heads; batch_index and first_token are int64."""
    HEAD_DIM: tl.constexpr = TURN.HEAD_DIM
    PAIRS: tl.constexpr = TURN.PAIRS
    INTERLEAVED: tl.constexpr = TURN.INTERLEAVED
    COPY_REST: tl.constexpr = TURN.COPY_REST
    ALIGNMENT: tl.constexpr = TURN.ALIGNMENT
    BLOCK_SEQ: tl.constexpr = TURN.BLOCK_SEQ
    BLOCK_HEADS: tl.constexpr = TURN.BLOCK_HEADS
    BLOCK_PAIRS: tl.constexpr = TURN.BLOCK_PAIRS
    BLOCK_REST: tl.constexpr = TURN.BLOCK_REST
    x_ptr, out_ptr, cos_ptr, sin_ptr = pointers
    # The compiler only detects multiples of 16; a stride of 8 · 9 elements must be shown as a multiple of 8.
    x_stride_head = x_strides.head // ALIGNMENT * ALIGNMENT
    x_stride_seq = x_strides.token // ALIGNMENT * ALIGNMENT
    x_stride_batch = x_strides.batch // ALIGNMENT * ALIGNMENT
    out_stride_head = out_strides.head // ALIGNMENT * ALIGNMENT
    out_stride_seq = out_strides.token // ALIGNMENT * ALIGNMENT
    out_stride_batch = out_strides.batch // ALIGNMENT * ALIGNMENT

    token = first_token + tl.arange(0, BLOCK_SEQ)[:, None]  # [BLOCK_SEQ, 1]
    pair = tl.arange(0, BLOCK_PAIRS)[None, :]  # [1, BLOCK_PAIRS]
    channel = tl.arange(0, 2 * BLOCK_PAIRS)[None, :]  # [1, 2 · BLOCK_PAIRS]
    rest = tl.arange(0, BLOCK_REST)[None, :]  # [1, BLOCK_REST]: the channels that are not rotated
    is_pair, is_channel, is_rest = pair < PAIRS, channel < 2 * PAIRS, rest < HEAD_DIM - 2 * PAIRS

    table_offset = (batch_index * table_rows + token) * PAIRS + pair
    cos_tile = tl.load(cos_ptr + table_offset, mask=(token < seq) & is_pair, other=0.0)  # float32
    sin_tile = tl.load(sin_ptr + table_offset, mask=(token < seq) & is_pair, other=0.0)
    if TURN.INVERSE:
        sin_tile = -sin_tile

    x_ptr += batch_index * x_stride_batch + first_head.to(tl.int64) * x_stride_head
    out_ptr += batch_index * out_stride_batch + first_head.to(tl.int64) * out_stride_head
    x_token, out_token = token * x_stride_seq, token * out_stride_seq  # [BLOCK_SEQ, 1]

    tiles = ()
    for head in tl.static_range(BLOCK_HEADS):
        row_ptr = x_ptr + tl.full((), head, tl.int64) * x_stride_head + x_token
        is_token = token < tl.where(first_head + head < heads, seq, 0)
        if INTERLEAVED:
            tiles += (tl.load(row_ptr + channel, mask=is_token & is_channel),)
        else:
            tiles += (tl.load(row_ptr + pair, mask=is_token & is_pair),)
            tiles += (tl.load(row_ptr + PAIRS + pair, mask=is_token & is_pair),)
        if COPY_REST:
            tiles += (tl.load(row_ptr + 2 * PAIRS + rest, mask=is_token & is_rest),)

    PER_HEAD: tl.constexpr = (1 if INTERLEAVED else 2) + (1 if COPY_REST else 0)
    for head in tl.static_range(BLOCK_HEADS):
        row_ptr = out_ptr + tl.full((), head, tl.int64) * out_stride_head + out_token
        is_token = token < tl.where(first_head + head < heads, seq, 0)
        if INTERLEAVED:
            x_tile = tl.reshape(tiles[head * PER_HEAD], (BLOCK_SEQ, BLOCK_PAIRS, 2))
            a_tile, b_tile = tl.split(x_tile)
        else:
            a_tile = tiles[head * PER_HEAD]
            b_tile = tiles[head * PER_HEAD + 1]
        a_tile = a_tile.to(tl.float32)  # [BLOCK_SEQ, BLOCK_PAIRS]
        b_tile = b_tile.to(tl.float32)
        turned_a = (a_tile * cos_tile - b_tile * sin_tile).to(out_ptr.dtype.element_ty)
        turned_b = (b_tile * cos_tile + a_tile * sin_tile).to(out_ptr.dtype.element_ty)
        if INTERLEAVED:
            out_tile = tl.reshape(tl.join(turned_a, turned_b), (BLOCK_SEQ, 2 * BLOCK_PAIRS))
            tl.store(row_ptr + channel, out_tile, mask=is_token & is_channel)
        else:
            tl.store(row_ptr + pair, turned_a, mask=is_token & is_pair)
            tl.store(row_ptr + PAIRS + pair, turned_b, mask=is_token & is_pair)
        if COPY_REST:
            rest_tile = tiles[head * PER_HEAD + PER_HEAD - 1]
            tl.store(row_ptr + 2 * PAIRS + rest, rest_tile, mask=is_token & is_rest)


@triton.jit(
    do_not_specialize=["q_table_rows", "k_table_rows", "batch", "q_heads", "k_heads", "q_len", "k_len"]
)
def _rope_turn_kernel(
    q_ptr, k_ptr, q_out_ptr, k_out_ptr,  # [batch, heads, seq, HEAD_DIM], unit stride along HEAD_DIM
    q_cos_ptr, q_sin_ptr, k_cos_ptr, k_sin_ptr,  # [batch or 1, seq, PAIRS] float32, contiguous
    q_strides, k_strides, q_out_strides, k_out_strides,
    q_table_rows, k_table_rows,  # seq, or 0 where all batch rows share one table
    batch, q_heads, k_heads, q_len, k_len,
    TURN: tl.constexpr,
):  # fmt: skip
    """Grid: one axis; groups of heads of q, then of k, vary fastest, then batch rows, then tokens."""
    BLOCK_SEQ: tl.constexpr = TURN.BLOCK_SEQ
    BLOCK_HEADS: tl.constexpr = TURN.BLOCK_HEADS
    q_groups = (q_heads + BLOCK_HEADS - 1) // BLOCK_HEADS
    groups = q_groups + (k_heads + BLOCK_HEADS - 1) // BLOCK_HEADS
    program = tl.program_id(0)
    group = program % groups
    batch_index = (program // groups % batch).to(tl.int64)
    first_token = (program // groups // batch).to(tl.int64) * BLOCK_SEQ
    if group < q_groups:
        if first_token < q_len:
            _turn_tile(
                Pointers(q_ptr, q_out_ptr, q_cos_ptr, q_sin_ptr), q_strides, q_out_strides, q_table_rows,
                batch_index, first_token, group * BLOCK_HEADS, q_heads, q_len, TURN,
            )  # fmt: skip
    elif first_token < k_len:
        _turn_tile(
            Pointers(k_ptr, k_out_ptr, k_cos_ptr, k_sin_ptr), k_strides, k_out_strides, k_table_rows,
            batch_index, first_token, (group - q_groups) * BLOCK_HEADS, k_heads, k_len, TURN,
        )  # fmt: skip


class Tiling(NamedTuple):
    """The size of a program: it takes ``block_seq`` tokens of ``block_heads`` heads."""

    block_seq: int
    block_heads: int
    num_warps: int


# Where all channels are rotated, a thread that loads 64 bytes before it stores any takes 48 registers, so about twenty
# programs of two warps share a multiprocessor and have 80 KiB in flight, more than memory latency needs. Larger
# programs read cos and sin less often, but the L2 cache makes that cheap, and a short launch waits longer for the last.
_BYTES_PER_THREAD = 64
_NUM_WARPS = 2
_MAX_BLOCK_SEQ = 64
_MAX_BLOCK_HEADS = 8
# About four programs for each multiprocessor of a large GPU; fewer would leave some of them idle.
_ENOUGH_PROGRAMS = 512


@lru_cache(maxsize=1024)
def choose_tiling(
    *, batch: int, heads: int, seq: int, head_dim: int, pairs: int, itemsize: int, copy_rest: bool
) -> Tiling:
    """Choose sizes by three rules, in this order.

    1. Tokens: as many as give every thread one 16-byte vector of the first members of the pairs.
    2. Heads: as many as fit the bytes a thread may hold, since each saves reading cos and sin again.
    3. If these give too few programs to fill the device, fewer heads per program; if there are fewer
       tokens than rule 1 asks for (decoding), fewer warps.

    Args:
        heads: Of q and k together.
        copy_rest: Whether channels that are not rotated are copied as well.
    """
    block_pairs = triton.next_power_of_2(pairs)
    lanes_per_token = max(1, block_pairs * itemsize // 16)
    block_seq = min(max(1, 32 * _NUM_WARPS // lanes_per_token), _MAX_BLOCK_SEQ)
    block_seq = min(block_seq, triton.next_power_of_2(seq))
    num_warps = min(max(1, block_seq * lanes_per_token // 32), _NUM_WARPS)

    rest = triton.next_power_of_2(head_dim - 2 * pairs) if copy_rest else 0
    bytes_per_head = block_seq * (2 * block_pairs + rest) * itemsize
    block_heads = min(max(1, 32 * num_warps * _BYTES_PER_THREAD // bytes_per_head), _MAX_BLOCK_HEADS)
    block_heads = 1 << (block_heads.bit_length() - 1)
    while block_heads > 1 and batch * -(-seq // block_seq) * -(-heads // block_heads) < _ENOUGH_PROGRAMS:
        block_heads //= 2
    return Tiling(block_seq, block_heads, num_warps)


def turn(
    q: Tensor, k: Tensor, q_out: Tensor, k_out: Tensor,
    q_cos: Tensor, q_sin: Tensor, k_cos: Tensor, k_sin: Tensor,
    *, interleaved: bool, inverse: bool, tiling: Tiling | None = None,
) -> None:  # fmt: skip
    """Write the rotated q and k into ``q_out`` and ``k_out``, which may be q and k themselves.

    Nothing is checked here: q, k and the outputs must have one dtype, one device, one head_dim and unit
    stride along it; the tables must be contiguous float32 ``[batch or 1, seq, pairs]``. ``k`` may
    have no heads.

    Args:
        inverse: Rotate by the negative angle, which is the gradient.
        tiling: Sizes to use instead of `choose_tiling`'s, for measurements.
    """
    if q.numel() + k.numel() == 0:
        return
    step = _step(
        q.shape, k.shape, q.stride(), k.stride(), q_out.stride(), k_out.stride(), q_cos.shape, k_cos.shape,
        q.dtype, q.device, q_out is q, interleaved, inverse, tiling,
    )  # fmt: skip
    step(
        q_ptr=q, k_ptr=k, q_out_ptr=q_out, k_out_ptr=k_out,
        q_cos_ptr=q_cos, q_sin_ptr=q_sin, k_cos_ptr=k_cos, k_sin_ptr=k_sin,
    )  # fmt: skip


@lru_cache(maxsize=1024)
def _step(
    q_shape: Size, k_shape: Size, q_stride: Ints, k_stride: Ints, q_out_stride: Ints, k_out_stride: Ints,
    q_table: Size, k_table: Size, dtype: torch.dtype, device: torch.device,
    in_place: bool, interleaved: bool, inverse: bool, tiling: Tiling | None,
) -> Step:  # fmt: skip
    """The launch for tensors like these; kernels are compiled for a dtype and loaded on a device."""
    batch, q_heads, q_len, head_dim = q_shape
    k_heads, k_len, pairs = k_shape[1], k_shape[2], q_table[2]
    strides = {
        "q_strides": Strides(*q_stride[:3]), "k_strides": Strides(*k_stride[:3]),
        "q_out_strides": Strides(*q_out_stride[:3]), "k_out_strides": Strides(*k_out_stride[:3]),
    }  # fmt: skip
    # The largest power of two, up to 16, that divides every stride is their lowest common set bit.
    bits = reduce(or_, chain(*strides.values()), 16)
    copy_rest = 2 * pairs < head_dim and not in_place
    if tiling is None:
        tiling = choose_tiling(
            batch=batch, heads=q_heads + k_heads, seq=max(q_len, k_len), head_dim=head_dim,
            pairs=pairs, itemsize=dtype.itemsize, copy_rest=copy_rest,
        )  # fmt: skip
    block_seq, block_heads, num_warps = tiling
    groups = -(-q_heads // block_heads) - (-k_heads // block_heads)
    programs = groups * batch * -(-max(q_len, k_len) // block_seq)
    numbers = {
        "q_table_rows": 0 if q_table[0] == 1 else q_len, "k_table_rows": 0 if k_table[0] == 1 else k_len,
        "batch": batch, "q_heads": q_heads, "k_heads": k_heads, "q_len": q_len, "k_len": k_len,
        "TURN": Turn(
            head_dim, pairs, interleaved, inverse, copy_rest, bits & -bits, block_seq, block_heads,
            triton.next_power_of_2(pairs), triton.next_power_of_2(max(1, head_dim - 2 * pairs)),
        ),
        "num_warps": num_warps, "enable_fp_fusion": False,
    }  # fmt: skip
    return Step(_rope_turn_kernel, (programs,), strides | numbers)


for _cached in (choose_tiling, _step):
    cleared_by(_cached.cache_clear)
