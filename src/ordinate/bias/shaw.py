"""Shaw's relative keys: the query is multiplied with a trained vector for each distance."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..checks import LARGEST_DISTANCE, check_bool, check_features, check_size
from ..encoding import PositionEncoding
from ..memory import check_room
from ..numerics import compute_dtype
from ..places import Positions, resolve
from .types import RowBias


@final
class Shaw(PositionEncoding):
    """Score queries against vectors for clipped distances (Shaw et al. 2018, arXiv:1803.02155, eq. 3–4).

    ``logit = q·(k + keys[clip(key - query)]) · scale``, so the position term shares the softmax scale.
    Tables are shared by all heads, in the paper's order: row ``clip(k_position - q_position) + max_distance``.

    Args:
        values: Also add a trained vector for the distance to each value. The paper's ablation finds
            it dispensable; the ``reference`` and ``chunked`` implementations compute it.

    Example:
        >>> shaw = Shaw(head_dim=16, max_distance=4)
        >>> q = k = v = torch.randn(1, 2, 5, 16)
        >>> ordinate.attention(q, k, v, shaw).shape
        torch.Size([1, 2, 5, 16])
    """

    head_dim: int
    claims = frozenset({"shift invariance", "bucket coverage"})

    def __init__(self, head_dim: int, max_distance: int, values: bool = False) -> None:
        super().__init__()
        head_dim = check_size("head_dim", head_dim)
        max_distance = check_size("max_distance", max_distance, most=LARGEST_DISTANCE)
        check_bool("values", values)
        self.head_dim, self.max_distance = head_dim, max_distance
        rows = 2 * max_distance + 1
        check_room("max_distance", rows, head_dim, itemsize=8 if values else 4)
        self.keys = nn.Parameter(torch.empty(rows, head_dim))
        self.values = nn.Parameter(torch.empty(rows, head_dim)) if values else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for table in (self.keys, self.values):
            if table is not None:
                nn.init.xavier_uniform_(table)  # as tensor2tensor does

    def bias(
        self,
        q: Float[Tensor, "batch heads q_len head_dim"],
        k: Float[Tensor, "batch kv_heads k_len head_dim"],
        q_positions: Positions | None = None,
        k_positions: Int[Tensor, "..."] | None = None,
        *,
        x: Float[Tensor, "batch seq d_model"] | None = None,
    ) -> RowBias:
        check_features("q", q, "batch, heads, seq, head_dim", self.head_dim)
        places = resolve(q, k, q_positions, k_positions)
        dtype = compute_dtype(q.dtype)
        # The paper's distance is key - query, that of a bias query - key: the same rows in reverse.
        return RowBias(
            features=q,
            table=self.keys.flip(0)[None].to(dtype),
            places=places,
            lo=-self.max_distance,
            values=None if self.values is None else self.values.flip(0)[None].to(dtype),
        )

    def extra_repr(self) -> str:
        return f"{self.head_dim}, max_distance={self.max_distance}, values={self.values is not None}"
