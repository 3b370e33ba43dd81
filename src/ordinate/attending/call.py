"""One attention call, checked and complete: what every implementation receives."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..bias.types import Bias, RowBias
from .mask import Mask


@dataclass(frozen=True, eq=False)
class Call:
    """q and k are rotated already; nothing here is optional to honour."""

    q: Float[Tensor, "batch heads q_len head_dim"]
    k: Float[Tensor, "batch kv_heads k_len head_dim"]
    v: Float[Tensor, "batch kv_heads k_len v_dim"]
    bias: Bias | None
    parts: tuple[Bias, ...]  #: The summands of the bias.
    mask: Mask
    scale: float
    softcap: float | None
    dropout_p: float
    return_lse: bool

    @property
    def groups(self) -> int:
        """How many query heads share a key head."""
        return self.q.shape[1] // self.k.shape[1]

    @property
    def has_value_term(self) -> bool:
        return any(isinstance(part, RowBias) and part.values is not None for part in self.parts)


Result = tuple[Tensor, Tensor]  # output [batch, heads, q, v_dim], logsumexp [batch, heads, q]


def in_words(number: float) -> str:
    """A number of a call, for a sentence that says why an implementation cannot do it.

    A compiler makes text of a symbol by making it a constant: there would be a graph for every length.
    """
    return "so many" if torch.compiler.is_compiling() else f"{number}"


def scaled_dense(bias: Bias, scale: float, dtype: torch.dtype) -> Tensor:
    """One summand's matrix as it enters the logits."""
    dense = bias.dense().to(dtype)
    return dense * scale if bias.scaled else dense
