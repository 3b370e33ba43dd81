"""Learned codes: one trained row for each position, and none beyond the last."""

from __future__ import annotations

from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..checks import check_features, check_positive_int, check_size, check_within, refused
from ..encoding import PositionEncoding
from ..memory import check_room
from ..numerics import compute_dtype
from ..places import as_positions
from ..positions import sequential


@final
class Learned(PositionEncoding):
    """A trained table of codes added to the embeddings, as in BERT and GPT-2.

    A position without a row is an error, because the table has no code for it.

    Args:
        max_positions: How many positions there are, ``0 … max_positions - 1``.
        offset: Unused rows before the row of position 0 (OPT's checkpoints have 2).

    Example:
        >>> Learned(512, 16).embed(torch.zeros(1, 3, 16)).shape
        torch.Size([1, 3, 16])
    """

    d_model: int
    max_positions: int
    claims = frozenset({"uniqueness"})

    def __init__(self, max_positions: int, d_model: int, offset: int = 0) -> None:
        super().__init__()
        max_positions = check_positive_int("max_positions", max_positions)
        d_model = check_size("d_model", d_model)
        offset = check_positive_int("offset", offset, minimum=0)
        self.max_positions, self.d_model, self.offset = max_positions, d_model, offset
        check_room("max_positions", max_positions + offset, d_model)
        self.weight = nn.Parameter(torch.empty(max_positions + offset, d_model))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # A meta tensor has no data, and filling it makes torch import modules for seconds.
        if not self.weight.is_meta:
            nn.init.normal_(self.weight, std=0.02)  # as BERT and GPT-2 do

    def embed(
        self, x: Float[Tensor, "batch seq d_model"], positions: Int[Tensor, "..."] | None = None
    ) -> Float[Tensor, "batch seq d_model"]:
        check_features("x", x, "batch, seq, d_model", self.d_model)
        batch, seq, _ = x.shape
        rule = "must be in 0 … {last} (max_positions={bound})"
        facts: dict[str, Any] = {"last": self.max_positions - 1, "bound": self.max_positions}
        if positions is None:
            if seq > self.max_positions:
                raise refused("positions", rule, seq - 1, **facts)
            positions = sequential(seq, device=x.device)[None]
        else:
            positions = as_positions("positions", positions, batch=batch, seq=seq, device=x.device)
            check_within("positions", positions, 0, self.max_positions - 1, rule, **facts)
        dtype = compute_dtype(x.dtype)
        codes = nn.functional.embedding(positions + self.offset, self.weight)
        return (x.to(dtype) + codes.to(dtype)).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.max_positions}, {self.d_model}, offset={self.offset}"
