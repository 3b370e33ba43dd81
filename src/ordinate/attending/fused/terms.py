"""Fused attention on CUDA: flash-attention speed with any bias, forward and backward.

A bias becomes at most five small float32 tensors: slopes per head, a table over distances, a vector over keys, and
for content-dependent biases the features of queries and of keys, already multiplied with their tables. Ordinary
autograd covers this conversion; the kernels return the gradients of the five tensors.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...bias.types import Bias, DistanceBias, KeyBias, LinearBias, PairBias, RowBias
from ...gpu import reason_against, reason_without_triton
from ...tracing import has_forward_gradients, is_transformed
from ..call import Call, Result, in_words
from ..mask import Mask

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_MAX_HEAD_DIM = 256
# The grid axis of tiles has at most 65,535 entries. Tiles have 32 tokens or more, 16 for wide heads in float32. In
# float32 the gradient of a table with every distance in both directions is limited to half as many: it has as many
# diagonals of tiles as queries and keys have tiles together.
_MAX_TILES = 65_535
# Every query or key has a row, so unclipped rows would take memory quadratic in the length.
_MAX_ROW = 2049
# All tables of a call share one pair of ends; rows are widened for that up to this length only.
_MAX_WIDENED_ROW = 512


def unsupported_reasons(call: Call) -> list[str]:
    q, v = call.q, call.v
    reasons = []
    against = reason_against_machine(q.device)
    if against is not None:
        reasons.append(against)
    if has_forward_gradients():
        reasons.append("its kernels have no forward-mode gradients")
    elif is_transformed():
        reasons.append("its kernels have no rules for torch.func")
    if q.dtype not in _DTYPES:
        reasons.append(
            f"its kernels take float16, bfloat16 and float32, not {q.dtype}".replace("torch.", "")
        )
    width = max(q.shape[-1], v.shape[-1])
    if width > _MAX_HEAD_DIM:
        reasons.append(f"head_dim is at most {_MAX_HEAD_DIM}, not {in_words(width)}")
    wide = q.dtype == torch.float32 and width > 128
    most, length = _MAX_TILES * (16 if wide else 32), max(call.mask.q_len, call.mask.k_len)
    if length > most:
        reasons.append(f"lengths are at most {most}, not {in_words(length)}")
    if call.has_value_term:
        reasons.append("a value term (Shaw's values) acts after the softmax")
    reasons += _bias_reasons(call.parts)
    return reasons


def reason_against_machine(device: torch.device) -> str | None:
    """Why no call can run on this device, or None."""
    return reason_without_triton() if _interpreting() else reason_against(device)


def _interpreting() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def _bias_reasons(parts: tuple[Bias, ...]) -> list[str]:
    kinds = (LinearBias, DistanceBias, KeyBias, RowBias)
    known = [part for part in parts if type(part) in kinds]
    reasons = [f"it does not know {type(part).__name__}" for part in parts if type(part) not in kinds]
    terms = [_term(part) for part in known]
    for term in dict.fromkeys(terms):
        if terms.count(term) > 1:
            reasons.append(f"a sum may have one {term}, not several")
    pairs = [part for part in parts if isinstance(part, PairBias)]
    if not all(pairs[0].places.same_as(other.places) for other in pairs[1:]):
        reasons.append("the parts of a sum must share their positions")
    tables = [part for part in known if isinstance(part, (DistanceBias, RowBias))]
    rows = [part for part in tables if isinstance(part, RowBias)]
    # torch.compile does not support `default`.
    longest = max([0, *[part.table.shape[1] for part in rows]])
    if longest > _MAX_ROW:
        reasons.append(f"rows have at most {_MAX_ROW} distances, not {in_words(longest)}")
    if rows:
        lo, hi = _ends(tables)
        widened = any((part.lo, part.hi) != (lo, hi) for part in rows)
        if widened and hi - lo >= _MAX_WIDENED_ROW:
            reasons.append(
                f"rows would have to be as long as the longest table of the sum, {in_words(hi - lo + 1)}"
            )
    return reasons


def _ends(tables: Sequence[DistanceBias | RowBias]) -> tuple[int, int]:
    return min([part.lo for part in tables]), max([part.hi for part in tables])


def _term(part: Bias) -> str:
    """The kind of a part; a sum has at most one of each. Rows of queries and rows of keys are two kinds."""
    if isinstance(part, RowBias):
        return f"RowBias over {'queries' if part.side == 'query' else 'keys'}"
    return type(part).__name__


@dataclass(frozen=True, eq=False)
class Terms:
    """The parts of a bias as kernel inputs, in the units of the logits."""

    slopes: Tensor | None = None
    symmetric: bool = False
    table: Tensor | None = None
    key: Tensor | None = None
    row: Tensor | None = None
    key_row: Tensor | None = None
    lo: int = 0
    q_positions: Tensor | None = None
    k_positions: Tensor | None = None
    aligned: bool = True


def gather_terms(parts: tuple[Bias, ...], scale: float) -> Terms:
    """Convert each part to float32 in the units of the logits; autograd records this."""
    from .rows import projected  # needs Triton

    slopes = table = key = row = key_row = None
    symmetric, places = False, None
    tables = [part for part in parts if isinstance(part, (DistanceBias, RowBias))]
    lo, hi = _ends(tables) if tables else (0, 0)
    for part in parts:
        if isinstance(part, PairBias):
            places = part.places
        if isinstance(part, LinearBias):
            slopes, symmetric = _as_logits(part.slopes, part, scale), part.symmetric
        elif isinstance(part, DistanceBias):
            # All tables must have the same ends, because the kernels take one pair of ends.
            table = _extend(_as_logits(part.table, part, scale), part.lo, part.hi, lo, hi).contiguous()
        elif isinstance(part, KeyBias):
            key = _as_logits(part.vector, part, scale)
        elif isinstance(part, RowBias):
            rows = projected(part.features, part.table.float(), scale if part.scaled else 1.0)
            rows = _extend(rows, part.lo, part.hi, lo, hi)
            if part.side == "query":
                row = rows
            else:
                key_row = rows
    if places is None:
        return Terms(key=key)
    return Terms(
        slopes, symmetric, table, key, row, key_row, lo,
        None if places.aligned else places.queries, None if places.aligned else places.keys, places.aligned,
    )  # fmt: skip


def _as_logits(values: Tensor, part: Bias, scale: float) -> Tensor:
    return values.float() * scale if part.scaled else values.float()


def _extend(table: Tensor, lo: int, hi: int, new_lo: int, new_hi: int) -> Tensor:
    """Repeat a table's end values so that it runs from ``new_lo`` to ``new_hi``."""
    if (lo, hi) == (new_lo, new_hi):
        return table
    return torch.cat(
        (
            table[..., :1].expand(*table.shape[:-1], lo - new_lo),
            table,
            table[..., -1:].expand(*table.shape[:-1], new_hi - hi),
        ),
        dim=-1,
    )


def _segments(mask: Mask) -> tuple[Tensor | None, Tensor | None]:
    """Segments of queries and keys. Padding gets segments without queries, each next to its own sequence's segment."""
    q_segments, k_segments, padding = mask.q_segments, mask.k_segments, mask.key_padding
    if padding is None:
        return q_segments, k_segments
    if q_segments is None or k_segments is None:
        return padding.new_zeros(1, mask.q_len, dtype=torch.int32), padding.to(torch.int32)
    # Tokens get even ids, padding the odd id after them. Tiles of keys are skipped by their smallest and largest id,
    # so padding with an id far from its sequence's would make queries of other sequences visit the tile.
    return 2 * q_segments.long(), 2 * k_segments.long() + padding


def operator_inputs(call: Call) -> tuple:
    """The arguments of `operator.attention` for a call, in its order."""
    mask = call.mask
    terms = gather_terms(call.parts, call.scale)
    q_segments, k_segments = _segments(mask)
    seed = None
    if call.dropout_p:
        seed = torch.randint(2**31 - 1, (), dtype=torch.int32, device=call.q.device)
    return (
        call.q, call.k, call.v,
        terms.slopes, terms.table, terms.key, terms.row, terms.key_row,
        terms.q_positions, terms.k_positions,
        mask.q_index, mask.k_index, q_segments, k_segments, seed,
        terms.symmetric, terms.aligned, terms.lo, mask.causal, mask.window,
        call.scale, call.softcap, call.dropout_p,
    )  # fmt: skip


def run(call: Call) -> Result:
    from . import operator  # registers the operators; needs Triton

    return operator.attention(*operator_inputs(call))
