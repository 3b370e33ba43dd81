"""`Call`: the checked arguments of one attention call, which every implementation receives."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..bias.types import Bias, RowBias
from .mask import Mask


@dataclass(frozen=True, eq=False)
class Call:
    """One attention call; q and k are rotated. An implementation must honour every field."""

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
    """A number of a call as text, for the reasons why an implementation does not support it.

    Under `torch.compile`, formatting a symbolic length would make it a constant and compile a graph for every length.
    """
    return "so many" if torch.compiler.is_compiling() else f"{number}"


def scaled_dense(bias: Bias, scale: float, dtype: torch.dtype) -> Tensor:
    """The matrix that one summand of the bias adds to the logits."""
    dense = bias.dense().to(dtype)
    return dense * scale if bias.scaled else dense
