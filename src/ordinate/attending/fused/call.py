"""`Launch`: the tensors and settings of one attention call, and the arguments of its kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...kernels.arguments import (
    BiasPointers,
    BiasStrides,
    Kind,
    Limits,
    Numbers,
    Strides,
    TokenPointers,
    TokenStrides,
)
from ...kernels.launch import Step
from ...kernels.tiles import RANGE
from .tiles import ExtraBytes, padded, tells_tiles_apart


@dataclass(eq=False)
class Launch:
    """The tensors and settings of a call, and the kernel arguments that follow from them."""

    q: Tensor
    k: Tensor
    v: Tensor
    slopes: Tensor | None
    table: Tensor | None
    key: Tensor | None
    row: Tensor | None
    key_row: Tensor | None
    q_positions: Tensor | None
    k_positions: Tensor | None
    q_index: Tensor | None
    k_index: Tensor | None
    q_segments: Tensor | None
    k_segments: Tensor | None
    seed: Tensor | None
    symmetric: bool
    aligned: bool
    lo: int
    causal: bool
    window: int | None
    scale: float
    softcap: float | None
    dropout_p: float

    def __post_init__(self) -> None:
        self.q, self.k, self.v = (rows_of_unit_stride(x) for x in (self.q, self.k, self.v))
        for name in ("slopes", "table", "key", "row", "key_row", "q_positions", "k_positions"):
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, value.contiguous())
        self.q_index, self.q_segments = _numbers_of_tokens(self.q_index, self.q_segments)
        self.k_index, self.k_segments = _numbers_of_tokens(self.k_index, self.k_segments)

    def signature(self) -> tuple[Any, ...]:
        """Everything except the contents of the tensors: calls with equal signatures share a launch plan."""
        tensors = (
            self.q, self.k, self.v, self.slopes, self.table, self.key, self.row, self.key_row,
            self.q_positions, self.k_positions, self.q_index, self.k_index, self.q_segments,
            self.k_segments, self.seed,
        )  # fmt: skip
        settings = (
            self.q.device, self.symmetric, self.aligned, self.lo, self.causal, self.window, self.scale,
            self.softcap, self.dropout_p,
        )  # fmt: skip
        return settings + tuple([None if x is None else (x.shape, x.stride(), x.dtype) for x in tensors])

    @property
    def heads(self) -> int:
        return self.q.shape[1]

    @property
    def hi(self) -> int:
        return self.lo + max(_entries(self.table), self._row_entries()) - 1

    def _row_entries(self) -> int:
        return max(_entries(self.row), _entries(self.key_row))

    @property
    def looked_up(self) -> bool:
        """Whether the bias has tables or rows, in which kernels look up every pair between the ends."""
        return any(table is not None for table in (self.table, self.row, self.key_row))

    @property
    def bias_kind(self) -> str:
        """The kind of the bias, by which tile sizes are chosen."""
        if self.looked_up:
            rows = self.row is not None or self.key_row is not None
            if self.whole and not rows:
                return "whole"
            # The lengths of packed sequences are data, so it is unknown how many of their tiles lie beyond the tables.
            return "short" if self.short and self.q_segments is None else "looked up"
        return "none" if self.slopes is None and self.key is None else "line"

    def extra_bytes(self, kernel: str) -> ExtraBytes:
        """The shared memory of a kernel's tiles in addition to q, k, v and their gradients."""
        queries = (self.q_positions, self.q_index, self.q_segments)
        keys = (self.k_positions, self.k_index, self.k_segments, self.key)
        # Sums at distances that are data have another register layout than products. The conversion takes up to 5 bytes
        # a pair as compiled for sm_80 to sm_90, and 10 for sm_100; with 10 for all it fits everywhere.
        scattered = (self.table is not None or self.key_row is not None) and not self.aligned
        return ExtraBytes(
            sum(x.element_size() for x in queries if x is not None),
            sum(x.element_size() for x in keys if x is not None),
            10 if kernel == "keys" and scattered else 0,
        )

    @property
    def short(self) -> bool:
        """Whether most tiles lie beyond the tables, so that kernels look up few tiles."""
        seen = self.k.shape[2] if self.window is None else min(self.k.shape[2], self.window)
        return self.hi > self.lo and 8 * (self.hi - self.lo) < seen

    @property
    def sees_no_future(self) -> bool:
        """Whether no query sees a key at a negative distance, for positions in order.

        With packed sequences, the causal mask goes by separate indices, not by positions.
        """
        return self.causal and self.q_index is None

    @property
    def whole(self) -> bool:
        """Whether the table has an entry for every visible distance."""
        least = 0 if self.sees_no_future else 1 - self.q.shape[2]
        covers = self.lo <= least and self.hi >= self.k.shape[2] - 1
        return self.table is not None and self.aligned and covers

    def tensors(self) -> dict[str, Any]:
        """The bias and token tensors, which every kernel takes."""
        return {
            "seed_ptr": self.seed,
            "bias": BiasPointers(self.slopes, self.table, self.key, self.row, self.key_row),
            "tokens": TokenPointers(
                self.q_positions, self.k_positions, self.q_index, self.k_index, self.q_segments, self.k_segments
            ),
        }  # fmt: skip

    def ranges(self, find_ranges: Step | None) -> Tensor | None:
        """Which tiles may see each other, where positions or segments are data."""
        if find_ranges is None:
            return None
        rows, tiles, _ = find_ranges.grid
        ranges = torch.empty(rows, tiles, RANGE.value, dtype=torch.int32, device=self.q.device)
        find_ranges(
            range_ptr=ranges, q_segment_ptr=self.q_segments, k_segment_ptr=self.k_segments,
            q_pos_ptr=self.q_positions, k_pos_ptr=self.k_positions,
        )  # fmt: skip
        return ranges

    @property
    def has_far_positions(self) -> bool:
        """Whether a kernel must read the positions to find the tiles beyond the tables."""
        return not self.aligned and self.looked_up and tells_tiles_apart(self.q.dtype)

    @property
    def range_rows(self) -> int:
        """How many rows of the batch have their own tile ranges; 1 if all rows share them."""
        tokens = (self.q_segments, self.k_segments, self.q_positions, self.k_positions)
        return max([1, *(x.shape[0] for x in tokens if x is not None)])

    def strides(self) -> dict[str, Any]:
        return {
            "q_strides": strides_of(self.q), "k_strides": strides_of(self.k), "v_strides": strides_of(self.v),
            "bias_strides": BiasStrides(
                _batch_stride(self.key), _head_stride(self.key), _batch_stride(self.row), _batch_stride(self.key_row)
            ),
        }  # fmt: skip

    def token_strides(self, ranges: int = 0) -> TokenStrides:
        q_tokens = self.q_index if self.q_index is not None else self.q_segments
        k_tokens = self.k_index if self.k_index is not None else self.k_segments
        return TokenStrides(
            _batch_stride(self.q_positions), _batch_stride(self.k_positions),
            _batch_stride(q_tokens), _batch_stride(k_tokens), ranges,
        )  # fmt: skip

    def numbers(self) -> Numbers:
        return Numbers(
            heads=self.heads, groups=self.heads // self.k.shape[1], q_len=self.q.shape[2], k_len=self.k.shape[2],
            scale=self.scale, softcap=1.0 if self.softcap is None else self.softcap, dropout_p=self.dropout_p,
            table_len=_entries(self.table), table_lo=self.lo, row_len=self._row_entries(), row_lo=self.lo,
        )  # fmt: skip

    def limits(self) -> Limits:
        # Clamped to q_len + k_len, so that sums with an index do not overflow int32.
        window = 0 if self.window is None else min(self.window, self.q.shape[2] + self.k.shape[2])
        return Limits(self.lo, self.hi, window)

    def kind(self) -> Kind:
        head_dim, v_dim = self.q.shape[-1], self.v.shape[-1]
        return Kind(
            HEAD_DIM=head_dim, V_DIM=v_dim, D=padded(head_dim), DV=padded(v_dim),
            PRECISION="ieee" if self.q.dtype == torch.float32 else "tf32",
            LINEAR=self.slopes is not None, SYMMETRIC=self.symmetric, TABLE=self.table is not None,
            KEY=self.key is not None, ROW=self.row is not None, KEY_ROW=self.key_row is not None,
            ALIGNED=self.aligned, SOFTCAP=self.softcap is not None, DROPOUT=self.dropout_p > 0,
            CAUSAL=self.causal, WINDOWED=self.window is not None,
            INDEXED=self.q_index is not None, SEGMENTS=self.q_segments is not None,
            ALL_MASKED=self.q_index is not None or not tells_tiles_apart(self.q.dtype),
        )  # fmt: skip

    def of_tiles(self, m: int, n: int, *, of_queries: bool) -> dict[str, Any]:
        """More arguments for kernels with separate loops for tiles without a mask and for tiles beyond the tables."""
        tiles = -(-self.q.shape[2] // m) if of_queries else -(-self.k.shape[2] // n)
        apart = tells_tiles_apart(self.q.dtype)
        # With COMPLETE a tile with padding queries is masked for all its keys, which is too slow for the only tile.
        complete = apart and self.whole and self.q.shape[2] >= 2 * m
        return {
            "limits": self.limits(),
            "token_strides": self.token_strides(RANGE.value * tiles * (self.range_rows > 1)),
            "KIND": self.kind()._replace(
                SHORT=self.short, COMPLETE=complete, TILES_BEYOND=apart and self.looked_up and not complete
            ),
        }  # fmt: skip


def _numbers_of_tokens(*numbers: Tensor | None) -> tuple[Tensor | None, ...]:
    """Indices and segments of one side as int32 or int64, with one common stride between rows."""
    rows = next((x.shape[0] for x in numbers if x is not None and x.shape[0] != 1), 1)
    return tuple(
        None if x is None else (x if x.dtype == torch.int32 else x.long()).expand(rows, -1).contiguous()
        for x in numbers
    )


def rows_of_unit_stride(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def empty_as(x: Tensor, dim: int) -> Tensor:
    """An empty ``[batch, heads, seq, dim]`` in the memory order of ``x``: heads inside or outside of seq."""
    batch, heads, seq, _ = x.shape
    if x.stride(-1) == 1 and x.stride(1) < x.stride(2):
        return x.new_empty(batch, seq, heads, dim).transpose(1, 2)
    return x.new_empty(batch, heads, seq, dim)


def strides_of(x: Tensor) -> Strides:
    return Strides(*x.stride()[:3])


def _entries(table: Tensor | None) -> int:
    """How many distances a table or a row has; an absent one has 1, which no kernel looks up."""
    return 1 if table is None else table.shape[-1]


def _batch_stride(x: Tensor | None) -> int:
    return 0 if x is None or x.dim() < 2 or x.shape[0] == 1 else x.stride(0)


def _head_stride(x: Tensor | None) -> int:
    return 0 if x is None or x.shape[1] == 1 else x.stride(1)
