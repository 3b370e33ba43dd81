"""Clipped relative bias: one trained number for each distance, the same for all beyond the last."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..checks import LARGEST_DISTANCE, check_size
from ..encoding import PositionEncoding
from ..memory import check_room
from ..numerics import compute_dtype
from ..places import Positions, resolve
from .types import DistanceBias


@final
class ClippedBias(PositionEncoding):
    """Add ``weight[clip(distance)]`` to the logits of each head.

    Often called "the T5 bias", but T5 shares entries between large distances (`T5Bias`). This bias has
    ``2 · max_distance + 1`` rows; a distance reads row ``distance + max_distance``.

    Example:
        >>> ClippedBias(num_heads=8, max_distance=128).weight.shape
        torch.Size([257, 8])
    """

    num_heads: int
    claims = frozenset({"shift invariance", "bucket coverage"})

    def __init__(self, num_heads: int, max_distance: int) -> None:
        super().__init__()
        num_heads = check_size("num_heads", num_heads)
        max_distance = check_size("max_distance", max_distance, most=LARGEST_DISTANCE)
        self.num_heads, self.max_distance = num_heads, max_distance
        check_room("max_distance", 2 * max_distance + 1, num_heads)
        self.weight = nn.Parameter(torch.empty(2 * max_distance + 1, num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)

    def buckets(self, distances: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """The row of ``weight`` for each distance ``query - key``."""
        return distances.clamp(-self.max_distance, self.max_distance) + self.max_distance

    def bias(
        self,
        q: Float[Tensor, "batch heads q_len head_dim"],
        k: Float[Tensor, "batch kv_heads k_len head_dim"],
        q_positions: Positions | None = None,
        k_positions: Int[Tensor, "..."] | None = None,
        *,
        x: Float[Tensor, "batch seq d_model"] | None = None,
    ) -> DistanceBias:
        places = resolve(q, k, q_positions, k_positions)
        table = self.weight.t().to(compute_dtype(q.dtype))
        return DistanceBias(table, places, lo=-self.max_distance)

    def extra_repr(self) -> str:
        return f"{self.num_heads}, max_distance={self.max_distance}"
