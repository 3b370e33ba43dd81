"""The bias types: descriptions of what an encoding adds to the attention logits, not matrices.

Each holds the positions it is looked up with and has four methods:

* ``dense()``: the whole matrix ``[batch or 1, heads, q, k]`` (q is 1 if all queries have the same bias). The
  specification, and used for short lengths.
* ``block(q, k)``: the same bias for a slice of the queries and a slice of the keys.
* ``diagonals()``: one value per diagonal, if every diagonal has a single value (consecutive
  positions and a bias that depends on the distance only).
* ``pullback(grad)``: the gradient of each of its tensors, given the gradient of ``dense()``.

Fast attention calls the last three and never holds the matrix. A learned encoding computes the
tensors here with ordinary autograd; a new encoding needs no kernel.

``distance = q_position - k_position``, so the past is positive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..checks import check_choice, check_instance, check_rank, check_table, refused
from ..numerics import compute_dtype
from ..places import Places
from ..text import Text
from .base import Bias, DiagonalBias, PairBias, ScoreMod, same_batch, unchecked


@dataclass(frozen=True, eq=False)
class LinearBias(DiagonalBias):
    """``-slope · distance`` for each head, or ``-slope · |distance|`` if symmetric (ALiBi)."""

    slopes: Float[Tensor, " heads"]
    places: Places
    symmetric: bool = False
    scaled: bool = False

    def check(self) -> None:
        super().check()
        check_rank("slopes", self.slopes, "heads")

    @property
    def causal_only(self) -> bool:
        return not self.symmetric

    @property
    def heads(self) -> int:
        return self.slopes.shape[0]

    def at(self, distances: Int[Tensor, "batch *shape"]) -> Float[Tensor, "batch heads *shape"]:
        slopes = self.slopes.view(-1, *(1,) * (distances.dim() - 1))
        return -slopes * self._span(distances)[:, None]

    def _span(self, distance: Tensor) -> Tensor:
        return (distance.abs() if self.symmetric else distance).to(compute_dtype(self.slopes.dtype))

    def gradient(
        self, grad: Float[Tensor, "batch heads n"], distances: Int[Tensor, "batch n"]
    ) -> Tensor:
        return -torch.einsum("bhn,bn->h", grad, self._span(distances)).to(self.slopes.dtype)

    def _at_pair(self, head: Tensor, distance: Tensor) -> Tensor:
        return -self.slopes[head] * self._span(distance)


@dataclass(frozen=True, eq=False)
class DistanceBias(DiagonalBias):
    """``table[head, distance - lo]``, constant beyond both ends (T5, clipped, any function of distance)."""

    table: Float[Tensor, "heads distances"]
    places: Places
    lo: int
    scaled: bool = False
    causal_only: bool = False

    def check(self) -> None:
        super().check()
        lo = check_table("table", self.table, "heads, distances", self.lo)
        object.__setattr__(self, "lo", lo)

    @property
    def hi(self) -> int:
        """The largest distance with its own entry."""
        return self.lo + self.table.shape[1] - 1

    @property
    def heads(self) -> int:
        return self.table.shape[0]

    def _rows(self, distance: Tensor) -> Tensor:
        return distance.clamp(self.lo, self.lo + self.table.shape[1] - 1) - self.lo

    def at(self, distances: Int[Tensor, "batch *shape"]) -> Float[Tensor, "batch heads *shape"]:
        return self.table[:, self._rows(distances)].transpose(0, 1)

    def gradient(
        self, grad: Float[Tensor, "batch heads n"], distances: Int[Tensor, "batch n"]
    ) -> Tensor:
        table = torch.zeros_like(self.table, dtype=grad.dtype)
        for row_grad, row_distances in zip(grad, distances, strict=True):
            table.index_add_(1, self._rows(row_distances), row_grad)
        return table.to(self.table.dtype)

    def _at_pair(self, head: Tensor, distance: Tensor) -> Tensor:
        return self.table[head, self._rows(distance)]


@dataclass(frozen=True, eq=False)
class KeyBias(Bias):
    """One number per head and key, the same for every query (cumulative gates: FoX, CABLE).

    What such encodings add per query is constant along the row and cancels in the softmax.
    """

    vector: Float[Tensor, "batch heads k"]
    scaled: bool = False
    causal_only: bool = True

    def check(self) -> None:
        check_rank("vector", self.vector, "batch, heads, keys")

    @property
    def heads(self) -> int:
        return self.vector.shape[1]

    @property
    def shape(self) -> tuple[int, int | None, int]:
        return self.vector.shape[0], None, self.vector.shape[2]

    def block(self, q: slice, k: slice) -> Bias:
        return unchecked(self, vector=self.vector[:, :, k])

    def dense(self) -> Float[Tensor, "batch heads 1 k"]:
        return self.vector[:, :, None]

    def pullback(self, grad: Float[Tensor, "batch heads q k"]) -> tuple[Tensor | None, ...]:
        vector = grad.sum(dim=2)
        if self.vector.shape[0] == 1:
            vector = vector.sum(dim=0, keepdim=True)
        return (vector.to(self.vector.dtype),)

    def _lookup(self):
        rows = self.vector.shape[0]
        return lambda b, h, q, k: self.vector[b if rows > 1 else b * 0, h, k]


@dataclass(frozen=True, eq=False)
class RowBias(PairBias):
    """``features · table[distance]``: a bias that depends on the content of the query, or of the key.

    Shaw's keys have the queries as features and clipped distances; Transformer-XL and DeBERTa fit
    as well. Distances are clipped to the table, which starts at ``lo``.

    Attributes:
        side: Whether ``features`` belong to the queries or to the keys.
        values: A vector per distance that is added to the values (Shaw et al., eq. 3). It acts after the
            softmax; it is a field here so that an explicit ``bias=`` has the complete encoding.
    """

    features: Float[Tensor, "#batch heads tokens rank"]
    table: Float[Tensor, "heads_or_1 distances rank"]
    places: Places
    lo: int
    side: Literal["query", "key"] = "query"
    scaled: bool = True
    causal_only: bool = False
    values: Float[Tensor, "heads_or_1 distances v_dim"] | None = None

    def check(self) -> None:
        super().check()
        check_choice("side", self.side, ("query", "key"))
        check_rank("features", self.features, "batch, heads, tokens, rank")
        lo = check_table("table", self.table, "heads or 1, distances, rank", self.lo)
        object.__setattr__(self, "lo", lo)
        tokens = self.places.q_len if self.side == "query" else self.places.k_len
        if self.features.shape[2] != tokens:
            raise refused(
                "features",
                "must have one row for each {side}, {tokens}",
                self.features.shape[2],
                side=self.side,
                tokens=tokens,
            )
        heads, rank, distances = self.features.shape[1], self.features.shape[3], self.table.shape[1]
        if self.table.shape[0] not in (1, heads) or self.table.shape[2] != rank:
            raise refused(
                "table",
                "must be [{heads} or 1, distances, {rank}] as features are",
                list(self.table.shape),
                heads=heads,
                rank=rank,
            )
        if self.values is not None:
            check_rank("values", self.values, "heads or 1, distances, v_dim")
            if self.values.shape[0] not in (1, heads) or self.values.shape[1] != distances:
                raise refused(
                    "values",
                    "must be [{heads} or 1, {rows}, v_dim] as the table is",
                    list(self.values.shape),
                    heads=heads,
                    rows=distances,
                )

    @property
    def hi(self) -> int:
        """The largest distance with its own entry."""
        return self.lo + self.table.shape[1] - 1

    @property
    def heads(self) -> int:
        return self.features.shape[1]

    @property
    def shape(self) -> tuple[int, int | None, int]:
        rows = max(self.places.batch, self.features.shape[0])
        return rows, self.places.q_len, self.places.k_len

    def block(self, q: slice, k: slice) -> Bias:
        features = self.features[:, :, q if self.side == "query" else k]
        return unchecked(self, features=features, places=self.places.block(q, k))

    def rows(self) -> Int[Tensor, "batch q k"]:
        """The row of the table for each pair of query and key."""
        return self.distances().clamp(self.lo, self.hi) - self.lo

    def _oriented_rows(self) -> Int[Tensor, "batch 1 tokens others"]:
        rows = self.rows()[:, None]
        return rows if self.side == "query" else rows.transpose(-1, -2)

    def _orient(self, matrix: Tensor) -> Tensor:
        return matrix if self.side == "query" else matrix.transpose(-1, -2)

    def projected(self) -> Float[Tensor, "batch heads tokens distances"]:
        """``features · table`` for every distance: per token as many numbers as the table has distances."""
        dtype = compute_dtype(self.features.dtype)
        return self.features.to(dtype) @ self.table.to(dtype).transpose(-1, -2)

    def dense(self) -> Float[Tensor, "batch heads q k"]:
        projected, rows = same_batch(self.projected(), self._oriented_rows())
        picked = projected.gather(-1, rows.expand(-1, projected.shape[1], -1, -1))
        return self._orient(picked)

    def pullback(self, grad: Float[Tensor, "batch heads q k"]) -> tuple[Tensor | None, ...]:
        grad, rows = same_batch(self._orient(grad), self._oriented_rows())
        dtype = grad.dtype
        by_distance = grad.new_zeros(*grad.shape[:-1], self.table.shape[1])
        by_distance.scatter_add_(-1, rows.expand_as(grad), grad)
        features = by_distance @ self.table.to(dtype)
        if self.features.shape[0] == 1:
            features = features.sum(dim=0, keepdim=True)
        table = torch.einsum("bhtn,bhtr->hnr", *same_batch(by_distance, self.features.to(dtype)))
        if self.table.shape[0] == 1:
            table = table.sum(dim=0, keepdim=True)
        # The value term is not part of dense(), so its gradient does not come from here.
        others = len(self.places.given) + (self.values is not None)
        return features.to(self.features.dtype), table.to(self.table.dtype), *[None] * others

    def _lookup(self):
        projected = self.projected()
        rows = projected.shape[0]

        def lookup(b, h, q, k):
            row = self.places.distance_at(b, q, k).clamp(self.lo, self.hi) - self.lo
            token = q if self.side == "query" else k
            return projected[b if rows > 1 else b * 0, h, token, row]

        return lookup


@dataclass(frozen=True, eq=False)
class SumBias(Bias):
    """Several biases that do not merge into one; each has its own ``scaled``."""

    parts: tuple[Bias, ...]

    def check(self) -> None:
        if not self.parts:
            raise refused("parts", "must hold at least one bias", Text("none"))
        for index, part in enumerate(self.parts):
            check_instance(f"parts[{index}]", part, Bias, "must be a bias")
        flat = [inner for part in self.parts for inner in getattr(part, "parts", (part,))]
        object.__setattr__(self, "parts", tuple(flat))

    @property
    def scaled(self) -> bool:
        scaled = {part.scaled for part in self.parts}
        if len(scaled) > 1:
            raise refused(
                "scaled", "must be read from each part of a sum that mixes both", Text("a SumBias")
            )
        return scaled.pop()

    @property
    def causal_only(self) -> bool:
        return any(part.causal_only for part in self.parts)

    @property
    def heads(self) -> int:
        return self.parts[0].heads

    @property
    def shape(self) -> tuple[int, int | None, int]:
        shapes = [part.shape for part in self.parts]
        return max(batch for batch, _, _ in shapes), *shapes[0][1:]

    def block(self, q: slice, k: slice) -> SumBias:
        return SumBias(tuple(part.block(q, k) for part in self.parts))

    def dense(self) -> Float[Tensor, "batch heads q k"]:
        self.scaled  # noqa: B018  a sum that mixes both has no single matrix
        parts = (part.dense() for part in self.parts)
        wide = [part.to(compute_dtype(part.dtype)) for part in parts]
        return torch.stack(torch.broadcast_tensors(*wide)).sum(0)

    def pullback(self, grad: Float[Tensor, "batch heads q k"]) -> tuple[Tensor | None, ...]:
        return tuple(tensor for part in self.parts for tensor in part.pullback(grad))

    def score_mod(self, scale: float | None = None) -> ScoreMod:
        mods = [part.score_mod(scale) for part in self.parts]

        def score_mod(score, b, h, q, k):
            for mod in mods:
                score = mod(score, b, h, q, k)
            return score

        return score_mod

    def tensors(self) -> list[Tensor]:
        return [tensor for part in self.parts for tensor in part.tensors()]

    def computed_in(self, dtype: torch.dtype) -> SumBias:
        return SumBias(tuple([part.computed_in(dtype) for part in self.parts]))

    def flattened(self) -> tuple[list[Tensor], list[int], str]:
        flat = [part.flattened() for part in self.parts]
        tensors = [tensor for of_part, _, _ in flat for tensor in of_part]
        integers = [integer for _, of_part, _ in flat for integer in of_part]
        return tensors, integers, "\n".join([spec for _, _, spec in flat])


def parts_of(bias: Bias | None) -> tuple[Bias, ...]:
    """The summands of a bias: none, itself, or the parts of a `SumBias`."""
    if bias is None:
        return ()
    return bias.parts if isinstance(bias, SumBias) else (bias,)
