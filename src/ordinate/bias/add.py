"""The sum of two biases: merged into one where one bias type can hold both, otherwise a `SumBias`."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from ..numerics import compute_dtype
from .types import Bias, DistanceBias, LinearBias, SumBias, parts_of


def add(first: Bias, second: Bias) -> Bias:
    """The sum of two biases, merged into one where one bias type can hold both."""
    if isinstance(first, SumBias) or isinstance(second, SumBias):
        return SumBias((*parts_of(first), *parts_of(second)))
    merged = _merge(first, second)
    return SumBias((first, second)) if merged is None else merged


def _merge(first: Bias, second: Bias) -> Bias | None:
    kinds = (LinearBias, DistanceBias)
    if not (isinstance(first, kinds) and isinstance(second, kinds)):
        return None
    if first.scaled != second.scaled or not first.places.same_as(second.places):
        return None
    if isinstance(first, LinearBias) and isinstance(second, LinearBias):
        if first.symmetric != second.symmetric:
            return None
        return replace(first, slopes=_widened(first.slopes) + _widened(second.slopes))
    if isinstance(first, DistanceBias) and isinstance(second, DistanceBias):
        lo, hi = min(first.lo, second.lo), max(first.hi, second.hi)
    elif first.places.is_in_order and first.places.aligned and not torch.compiler.is_compiling():
        # A linear bias has no end; if positions were left out, the lengths determine which distances its table needs.
        _, q_len, k_len = first.shape
        table = first if isinstance(first, DistanceBias) else second
        assert isinstance(table, DistanceBias)
        assert q_len is not None
        lo, hi = min(1 - q_len, table.lo), max(k_len - 1, table.hi)
    else:
        return None
    return DistanceBias(
        _tabulate(first, lo, hi) + _tabulate(second, lo, hi),
        first.places,
        lo=lo,
        scaled=first.scaled,
        causal_only=first.causal_only or second.causal_only,
    )


def _tabulate(bias: LinearBias | DistanceBias, lo: int, hi: int) -> Float[Tensor, "heads distances"]:
    distances = torch.arange(lo, hi + 1, device=bias.tensors()[0].device)
    return _widened(bias.at(distances[None])[0])


def _widened(tensor: Tensor) -> Tensor:
    """Widen 16-bit tensors, so that their sums are not rounded to 16 bits."""
    return tensor.to(compute_dtype(tensor.dtype))
