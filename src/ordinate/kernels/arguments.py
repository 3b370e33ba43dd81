"""The named tuples that attention kernels take, and those that their helpers pass on.

Triton takes a tuple apart when it compiles a kernel: a bundle costs no more than its fields as arguments of their own.
Fields in capitals are known at compile time.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

# Inside a kernel all of them are Triton's own.
_Pointer: TypeAlias = Any
_Number: TypeAlias = Any
_Tensor: TypeAlias = Any


class BiasPointers(NamedTuple):
    """The parts of a bias in float32, contiguous. In a kernel each pointer of an absent part is another tensor's."""

    slopes: _Pointer  # [heads]
    table: _Pointer  # [heads, table_len]
    key: _Pointer  # [batch, heads, k_len]
    row: _Pointer  # [batch, heads, q_len, row_len]
    key_row: _Pointer  # [batch, heads, k_len, row_len]


class TokenPointers(NamedTuple):
    """What is known of each token, where it is data: ``[batch, seq]``."""

    q_positions: _Pointer
    k_positions: _Pointer
    q_index: _Pointer
    k_index: _Pointer
    q_segments: _Pointer
    k_segments: _Pointer


class IndexPointers(NamedTuple):
    """The same for kernels that only run where positions are aligned."""

    q_index: _Pointer
    k_index: _Pointer
    q_segments: _Pointer
    k_segments: _Pointer


class Strides(NamedTuple):
    """Of ``[batch, heads, seq, dim]`` with unit stride along dim."""

    batch: _Number
    head: _Number
    token: _Number


class BiasStrides(NamedTuple):
    """From one row of the batch to the next, or one head to the next; 0 where they share."""

    key_batch: _Number
    key_head: _Number
    row_batch: _Number
    key_row_batch: _Number


class TokenStrides(NamedTuple):
    """From one row of the batch to the next; 0 where they share."""

    q_positions: _Number
    k_positions: _Number
    queries: _Number  # of indices and segments
    keys: _Number
    ranges: _Number


class Numbers(NamedTuple):
    """The numbers of a call. A table starts at distance ``table_lo``, rows at ``row_lo``."""

    heads: _Number
    groups: _Number
    q_len: _Number
    k_len: _Number
    scale: _Number
    softcap: _Number
    dropout_p: _Number
    table_len: _Number
    table_lo: _Number
    row_len: _Number
    row_lo: _Number


class Limits(NamedTuple):
    """The first and the last distance of tables and rows, and the window."""

    lo: _Number
    hi: _Number
    window: _Number


class Kind(NamedTuple):
    """What a kernel is compiled for."""

    HEAD_DIM: int
    V_DIM: int
    D: int  # HEAD_DIM, padded
    DV: int
    PRECISION: str
    LINEAR: bool
    SYMMETRIC: bool
    TABLE: bool
    KEY: bool
    ROW: bool
    KEY_ROW: bool
    ALIGNED: bool
    SOFTCAP: bool
    DROPOUT: bool
    CAUSAL: bool
    WINDOWED: bool
    INDEXED: bool
    SEGMENTS: bool
    ALL_MASKED: bool
    SHORT: bool = False
    COMPLETE: bool = False  # the table has every distance that is seen
    TILES_BEYOND: bool = False  # tiles beyond the tables' ends have loops of their own
    PACKED: bool = False  # the rows of a tile are of all query heads that share keys


class QueryGradients(NamedTuple):
    """Where the gradients of what a query owns go."""

    q: _Pointer
    row: _Pointer
    past: _Pointer
    future: _Pointer


class WantedOfQueries(NamedTuple):
    """Which gradients the kernel of the queries computes, and how."""

    TABLE_ENDS: bool
    ROW: bool
    ORDERED: bool
    BALANCED: bool
    LSE: bool


class KeyGradients(NamedTuple):
    """Where the gradients of what a key owns go, and those of slopes and of a table at positions that are data."""

    k: _Pointer
    v: _Pointer
    key: _Pointer
    key_row: _Pointer
    table: _Pointer
    slope: _Pointer


class WantedOfKeys(NamedTuple):
    """Which gradients the kernel of the keys computes, and how."""

    KEY: bool
    KEY_ROW: bool
    TABLE: bool
    ORDERED: bool
    SLOPE: bool
    EVEN: bool  # queries fill their tiles, so that loads need no bounds


class KeysAndValues(NamedTuple):
    """The keys and values of one head: where they start, and strides from token to token."""

    k: _Pointer
    v: _Pointer
    k_stride: _Number
    v_stride: _Number


class Tokens(NamedTuple):
    """The tokens of one sequence, and the window: what the mask needs to know of them."""

    q_positions: _Pointer
    k_positions: _Pointer
    q_index: _Pointer
    k_index: _Pointer
    q_segments: _Pointer
    k_segments: _Pointer
    window: _Number


class Pairs(NamedTuple):
    """The queries and keys of a tile, shaped to broadcast: their indices, and their positions in int32."""

    qi: _Tensor
    kj: _Tensor
    q_pos: _Tensor
    k_pos: _Tensor
