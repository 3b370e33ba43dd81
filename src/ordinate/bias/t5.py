"""T5's bias: one trained number for each small distance and for each logarithmic range of large ones."""

from __future__ import annotations

import math
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from ..checks import check_bool, check_size, refused
from ..encoding import PositionEncoding
from ..memory import check_room
from ..numerics import compute_dtype, constant
from ..places import Positions, resolve
from .types import DistanceBias


def t5_buckets(
    distances: Int[Tensor, "*shape"], num_buckets: int, max_distance: int, bidirectional: bool
) -> Int[Tensor, "*shape"]:
    """The bucket of each distance ``query - key``, as T5's own code assigns it.

    Half of the buckets hold one distance each; the others grow logarithmically up to
    ``max_distance``. If bidirectional, each direction has half of the buckets and keys to the right of
    the query (negative distance) have the upper half; if not, all future keys share bucket 0.
    Logarithms are float32, as in the code that the checkpoints were trained with.

    Example:
        >>> t5_buckets(torch.tensor([-1, 0, 1, 8, 128]), 32, 128, bidirectional=True)
        tensor([17,  0,  1,  8, 15])
    """
    offset = torch.zeros_like(distances)
    if bidirectional:
        num_buckets //= 2
        offset = torch.where(distances < 0, num_buckets, 0)
        distances = distances.abs()
    else:
        distances = distances.clamp(min=0)
    exact = num_buckets // 2
    ratio = torch.log(distances.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    shared = exact + (ratio * (num_buckets - exact)).long()
    return offset + torch.where(distances < exact, distances, shared.clamp(max=num_buckets - 1))


def t5_rows(num_buckets: int, max_distance: int, bidirectional: bool) -> tuple[int, tuple[int, ...]]:
    """The least distance with its own entry, and the bucket of each distance from there to the greatest.

    All greater distances share the last bucket. Python numbers, because torch.compile cannot read a tensor's values.
    """
    with torch.device("cpu"):  # also for a module on meta
        past = t5_buckets(
            torch.arange(max_distance + 1), num_buckets, max_distance, bidirectional
        ).tolist()
        hi = past.index(past[-1])
        lo = -hi if bidirectional else 0
        rows = t5_buckets(torch.arange(lo, hi + 1), num_buckets, max_distance, bidirectional)
    return lo, tuple(rows.tolist())


@final
class T5Bias(PositionEncoding):
    """Add one trained number per head and bucket of distances (Raffel et al. 2019, arXiv:1910.10683, 2.1).

    T5 shares one instance among all layers of a stack, and trains without the ``1/sqrt(head_dim)``
    of the logits: pass ``scale=1.0`` to `attention` for its checkpoints. Choose ``max_distance`` no
    longer than the training length, or the last buckets are never trained.

    Attributes:
        weight: ``[num_buckets, num_heads]``, as in T5's checkpoints.

    Example:
        >>> T5Bias(num_heads=8, bidirectional=True).weight.shape
        torch.Size([32, 8])
    """

    num_heads: int
    claims = frozenset({"shift invariance", "bucket coverage"})

    def __init__(
        self,
        num_heads: int,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = False,
    ) -> None:
        super().__init__()
        num_heads = check_size("num_heads", num_heads)
        check_bool("bidirectional", bidirectional)
        num_buckets = check_size("num_buckets", num_buckets, minimum=4 if bidirectional else 2)
        if bidirectional and num_buckets % 2:
            raise refused("num_buckets", "must be even when bidirectional", num_buckets)
        exact = num_buckets // (4 if bidirectional else 2)
        max_distance = check_size("max_distance", max_distance)  # a list has an entry for each distance
        if max_distance <= exact:
            raise refused(
                "max_distance",
                "must be greater than the {exact} exact buckets",
                max_distance,
                exact=exact,
            )
        self.num_heads, self.num_buckets = num_heads, num_buckets
        self.max_distance, self.bidirectional = max_distance, bidirectional
        if (
            self.bidirectional
        ):  # no distance reads row num_buckets/2: it is distance 0 of keys after the query
            self.claims = self.claims - {"bucket coverage"}
        check_room("num_buckets", num_buckets, num_heads)
        self.weight = nn.Parameter(torch.empty(num_buckets, num_heads))
        self._lo, self._rows = t5_rows(num_buckets, max_distance, bidirectional)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # A meta tensor has no data, and filling it makes torch import modules for seconds.
        if not self.weight.is_meta:
            nn.init.normal_(self.weight, std=0.02)

    def buckets(self, distances: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """The bucket of each distance ``query - key``."""
        return t5_buckets(distances, self.num_buckets, self.max_distance, self.bidirectional)

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
        rows = constant(self._rows, torch.int64, self.weight.device)
        # F.embedding, because its gradient is one short kernel; that of indexing is not.
        table = F.embedding(rows, self.weight.to(compute_dtype(q.dtype))).t()
        # A table of one direction has no entry for keys after the query; they would read the entry of distance 0.
        one_way = not self.bidirectional
        return DistanceBias(table, places, lo=self._lo, causal_only=one_way)

    def extra_repr(self) -> str:
        return (
            f"{self.num_heads}, num_buckets={self.num_buckets}, "
            f"max_distance={self.max_distance}, bidirectional={self.bidirectional}"
        )
