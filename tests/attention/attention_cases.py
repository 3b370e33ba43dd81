"""Every kind of bias and of mask, each with a second description written out from its definition.

What attention computes is compared with `plain`, a transcription of the formula that shares no code
with the library: masks are decided pair by pair, biases are looked up from distances, and nothing
is done in blocks. Run in float64 it is the oracle; run in the caller's dtype it tells how wrong
plain PyTorch is there, which is the yardstick for everyone else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

import ordinate
from ordinate import DistanceBias, KeyBias, LinearBias, RowBias, SumBias
from ordinate.positions import Places

Leaves = dict[str, Tensor]


@dataclass(frozen=True)
class Shape:
    """The sizes of one call, and where its tokens stand."""

    batch: int = 2
    heads: int = 4
    kv_heads: int = 2
    q_len: int = 37
    k_len: int = 37
    head_dim: int = 8
    v_dim: int = 8
    q_positions: Tensor | None = None
    k_positions: Tensor | None = None

    def positions(self) -> tuple[Tensor, Tensor]:
        """``[batch or 1, seq]`` each; by default keys count from 0 and queries end with them."""
        queries, keys = self.q_positions, self.k_positions
        if keys is None:
            keys = torch.arange(self.k_len)[None]
        if queries is None:
            queries = torch.arange(self.q_len)[None] + self.k_len - self.q_len
        return queries, keys

    def places(self) -> Places:
        return Places.at(*self.positions())

    def distances(self) -> Tensor:
        queries, keys = self.positions()
        return (queries[:, :, None] - keys[:, None, :]).expand(self.batch, self.q_len, self.k_len)


@dataclass(frozen=True)
class BiasCase:
    """One kind of bias: its tensors, the library's description, and the matrix it stands for."""

    name: str
    tensors: Callable[[Shape], Leaves]
    build: Callable[[Leaves, Shape], ordinate.Bias | None]
    matrix: Callable[[Leaves, Shape, float], Tensor | float]  # as added to the logits
    causal_only: bool = False
    value_table: str | None = None  # the leaf of vectors added to the values, if any
    value_clip: int = 0

    def __str__(self) -> str:
        return self.name


def _nothing(leaves: Leaves, shape: Shape, scale: float) -> float:
    return 0.0


def _linear(leaves: Leaves, shape: Shape, *, symmetric: bool) -> Tensor:
    distance = shape.distances()[:, None]
    slopes = leaves["slopes"][None, :, None, None]
    return -slopes * (distance.abs() if symmetric else distance).to(slopes.dtype)


def _clipped(distance: Tensor, lo: int, rows: int) -> Tensor:
    return torch.minimum(torch.maximum(distance, torch.tensor(lo)), torch.tensor(lo + rows - 1)) - lo


def _distance(leaves: Leaves, shape: Shape, lo: int) -> Tensor:
    table = leaves["table"]
    index = _clipped(shape.distances(), lo, table.shape[1])
    return torch.stack([row[index] for row in table], dim=1)


def _row(leaves: Leaves, shape: Shape, lo: int, side: str) -> Tensor:
    features, table = leaves["features"], leaves["row_table"]
    index = _clipped(shape.distances(), lo, table.shape[1])
    heads = []
    for head in range(shape.heads):
        vectors = table[head if len(table) > 1 else 0][index]  # [batch, q, k, rank]
        content = features[:, head, :, None] if side == "query" else features[:, head, None]
        heads.append((vectors * content).sum(-1))
    return torch.stack(heads, dim=1)


def _slopes(shape: Shape) -> Leaves:
    return {"slopes": torch.rand(shape.heads) * 0.3}


def _table(rows: int) -> Callable[[Shape], Leaves]:
    return lambda shape: {"table": torch.randn(shape.heads, rows)}


def _row_tensors(side: str, rows: int, *, shared: bool, values: bool) -> Callable[[Shape], Leaves]:
    def make(shape: Shape) -> Leaves:
        tokens = shape.q_len if side == "query" else shape.k_len
        leaves = {
            "features": torch.randn(shape.batch, shape.heads, tokens, 5),
            "row_table": torch.randn(1 if shared else shape.heads, rows, 5),
        }
        if values:
            leaves["value_table"] = torch.randn(1 if shared else shape.heads, rows, shape.v_dim)
        return leaves

    return make


def _build_row(side: str, lo: int, scaled: bool) -> Callable[[Leaves, Shape], RowBias]:
    return lambda leaves, shape: RowBias(
        leaves["features"],
        leaves["row_table"],
        shape.places(),
        lo=lo,
        side=side,  # type: ignore[arg-type]
        scaled=scaled,
        values=leaves.get("value_table"),
    )


def _row_case(
    name: str, side: str, *, shared: bool, values: bool, scaled: bool, lo: int = -3, rows: int = 7
) -> BiasCase:
    return BiasCase(
        name,
        _row_tensors(side, rows, shared=shared, values=values),
        _build_row(side, lo, scaled),
        lambda leaves, shape, scale: _row(leaves, shape, lo, side) * (scale if scaled else 1.0),
        value_table="value_table" if values else None,
        value_clip=lo,
    )


_KEY = BiasCase(
    "key",
    lambda shape: {"vector": torch.randn(shape.batch, shape.heads, shape.k_len)},
    lambda leaves, shape: KeyBias(leaves["vector"], causal_only=False),
    lambda leaves, shape, scale: leaves["vector"][:, :, None, :],
)
_ROW_QUERY = _row_case("row_query", "query", shared=False, values=False, scaled=True)
_DISTANCE = BiasCase(
    "distance",
    _table(9),
    lambda leaves, shape: DistanceBias(leaves["table"], shape.places(), lo=-4),
    lambda leaves, shape, scale: _distance(leaves, shape, -4),
)
_SYMMETRIC = BiasCase(
    "linear_symmetric",
    _slopes,
    lambda leaves, shape: LinearBias(leaves["slopes"], shape.places(), symmetric=True),
    lambda leaves, shape, scale: _linear(leaves, shape, symmetric=True),
)

BIASES = {
    case.name: case
    for case in (
        BiasCase("none", lambda shape: {}, lambda leaves, shape: None, _nothing),
        BiasCase(
            "linear",
            _slopes,
            lambda leaves, shape: LinearBias(leaves["slopes"], shape.places()),
            lambda leaves, shape, scale: _linear(leaves, shape, symmetric=False),
            causal_only=True,
        ),
        _SYMMETRIC,
        BiasCase(
            "linear_scaled",
            _slopes,
            lambda leaves, shape: LinearBias(
                leaves["slopes"], shape.places(), symmetric=True, scaled=True
            ),
            lambda leaves, shape, scale: _linear(leaves, shape, symmetric=True) * scale,
        ),
        _DISTANCE,
        BiasCase(
            "distance_past_only",
            _table(6),
            lambda leaves, shape: DistanceBias(leaves["table"], shape.places(), lo=0, scaled=True),
            lambda leaves, shape, scale: _distance(leaves, shape, 0) * scale,
        ),
        _KEY,
        _ROW_QUERY,
        _row_case("row_key_shared", "key", shared=True, values=False, scaled=False),
        _row_case("row_values_shared", "query", shared=True, values=True, scaled=True),
        _row_case("row_values_per_head", "query", shared=False, values=True, scaled=True),
        BiasCase(
            "sum_mixing_scaled",
            lambda shape: {
                **_DISTANCE.tensors(shape), **_KEY.tensors(shape), **_ROW_QUERY.tensors(shape)
            },
            lambda leaves, shape: SumBias(
                tuple(case.build(leaves, shape) for case in (_DISTANCE, _KEY, _ROW_QUERY))  # type: ignore[misc]
            ),
            lambda leaves, shape, scale: (
                _DISTANCE.matrix(leaves, shape, scale)
                + _KEY.matrix(leaves, shape, scale)
                + _ROW_QUERY.matrix(leaves, shape, scale)
            ),
        ),
    )
}  # fmt: skip


@dataclass(frozen=True)
class MaskCase:
    """Arguments that hide keys, and whether a pair is hidden, decided one pair at a time."""

    name: str
    arguments: Callable[[Shape], dict] = field(default=lambda shape: {})

    def visible(self, shape: Shape) -> Tensor:
        """``[batch, q, k]``, from the words of the interface."""
        given = self.arguments(shape)
        window, causal = given.get("window"), given.get("causal", False)
        q_ids, k_ids, padding = (
            given[name].tolist() if name in given else None
            for name in ("q_segment_ids", "k_segment_ids", "key_padding_mask")
        )
        seen = torch.zeros(shape.batch, shape.q_len, shape.k_len, dtype=torch.bool)
        for b in range(shape.batch):
            for i in range(shape.q_len):
                level = i + shape.k_len - shape.q_len  # the key this query is level with
                for j in range(shape.k_len):
                    hidden = causal and j > level
                    if window is not None:
                        hidden |= level - j >= window or (not causal and j - level >= window)
                    if q_ids is not None and k_ids is not None:
                        hidden |= q_ids[b % len(q_ids)][i] != k_ids[b % len(k_ids)][j]
                    if padding is not None:
                        hidden |= padding[b % len(padding)][j]
                    seen[b, i, j] = not hidden
        return seen

    def __str__(self) -> str:
        return self.name


def _ids(length: int, *, rows: int = 2, sequences: int = 3) -> Tensor:
    starts = torch.tensor([[1, length // 2], [length // 3, length - 1]])[:rows]
    return (torch.arange(length)[None, :, None] >= starts[:, None, :]).sum(-1) % sequences


def _padding(shape: Shape, *, left: bool = True, everything: bool = False) -> Tensor:
    counts = torch.tensor([0, max(shape.k_len // 3, 1)])[:, None]
    index = torch.arange(shape.k_len)[None]
    padding = index < counts if left else index >= shape.k_len - counts
    if everything:
        padding[0] = True
    return padding[: shape.batch]


MASKS = {
    case.name: case
    for case in (
        MaskCase("full"),
        MaskCase("causal", lambda shape: {"causal": True}),
        MaskCase("window", lambda shape: {"window": 5}),
        MaskCase("causal_window", lambda shape: {"causal": True, "window": 5}),
        MaskCase("window_of_one", lambda shape: {"causal": True, "window": 1}),
        MaskCase(
            "segments",
            lambda shape: {
                "q_segment_ids": _ids(shape.q_len)[: shape.batch],
                "k_segment_ids": _ids(shape.k_len)[: shape.batch],
            },
        ),
        MaskCase(
            "one_row_of_segments_and_causal",
            lambda shape: {
                "causal": True,
                "q_segment_ids": _ids(shape.q_len, rows=1),
                "k_segment_ids": _ids(shape.k_len, rows=1),
            },
        ),
        MaskCase("padding", lambda shape: {"key_padding_mask": _padding(shape)}),
        MaskCase("right_padding", lambda shape: {"key_padding_mask": _padding(shape, left=False)}),
        MaskCase(
            "everything_padded_in_one_row",
            lambda shape: {"key_padding_mask": _padding(shape, everything=True)},
        ),
        MaskCase(
            "left_padding_and_causal",
            lambda shape: {"causal": True, "key_padding_mask": _padding(shape)},
        ),
        MaskCase(
            "everything",
            lambda shape: {
                "causal": True,
                "window": 6,
                "q_segment_ids": _ids(shape.q_len),
                "k_segment_ids": _ids(shape.k_len),
                "key_padding_mask": _padding(shape),
            },
        ),
    )
}


def leaves_of(bias: BiasCase, shape: Shape, dtype: torch.dtype) -> Leaves:
    """Random q, k, v and bias tensors. A bias is held in float32 at least, as encodings hold theirs."""
    b, d = shape.batch, shape.head_dim
    made = {
        "q": torch.randn(b, shape.heads, shape.q_len, d).to(dtype),
        "k": torch.randn(b, shape.kv_heads, shape.k_len, d).to(dtype),
        "v": torch.randn(b, shape.kv_heads, shape.k_len, shape.v_dim).to(dtype),
    }
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    made |= {name: tensor.to(wide) for name, tensor in bias.tensors(shape).items()}
    return {name: tensor.requires_grad_() for name, tensor in made.items()}


def plain(
    leaves: Leaves,
    bias: BiasCase,
    mask: MaskCase,
    shape: Shape,
    dtype: torch.dtype,
    *,
    softcap: float | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """``softmax(softcap(q·k · scale) + bias) · v`` and its logsumexp, with every step in ``dtype``."""
    leaves = {name: tensor.to(dtype) for name, tensor in leaves.items()}
    scale = shape.head_dim**-0.5 if scale is None else scale
    groups = shape.heads // shape.kv_heads
    kv_head = [head // groups for head in range(shape.heads)]
    k, v = leaves["k"][:, kv_head], leaves["v"][:, kv_head]
    logits = torch.einsum("bhid,bhjd->bhij", leaves["q"], k) * scale
    if softcap is not None:
        logits = torch.tanh(logits / softcap) * softcap
    logits = logits + bias.matrix(leaves, shape, scale)

    visible = mask.visible(shape)[:, None].expand_as(logits)
    blind = ~visible.any(-1, keepdim=True)
    if shape.k_len == 0:
        return logits @ v, logits.sum(-1) - torch.inf
    # Sums over the visible keys alone; a blind row has none and stays 0.
    lowest = torch.finfo(dtype).min
    top = logits.masked_fill(~visible, lowest).amax(-1, keepdim=True).detach()
    top = torch.where(blind, torch.zeros_like(top), top)
    # where() before exp(): a hidden logit far above the visible ones must not overflow on the way.
    powers = torch.where(visible, logits - top, torch.zeros_like(logits)).exp() * visible
    total = powers.sum(-1, keepdim=True)
    weights = powers / torch.where(blind, torch.ones_like(total), total)
    out = torch.einsum("bhij,bhjd->bhid", weights, v)
    if bias.value_table is not None:
        table = leaves[bias.value_table]
        index = _clipped(shape.distances(), bias.value_clip, table.shape[1])
        for_head = [table[head if len(table) > 1 else 0][index] for head in range(shape.heads)]
        out = out + torch.einsum("bhij,bhijd->bhid", weights, torch.stack(for_head, dim=1))
    lse = torch.where(blind, torch.ones_like(total), total).log() + top
    return out, torch.where(blind, torch.full_like(lse, -torch.inf), lse)[..., 0]


def gradients(leaves: Leaves, out: Tensor, lse: Tensor | None = None) -> Leaves:
    """Of a fixed random combination of the output, and of the finite logsumexps if given."""
    generator = torch.Generator().manual_seed(7)
    weight = torch.randn(out.shape, generator=generator)
    loss = (out.double() * weight.double()).sum()
    if lse is not None:
        pull = torch.randn(lse.shape, generator=generator).double()
        loss = loss + (torch.where(lse.isfinite(), lse, torch.zeros_like(lse)).double() * pull).sum()
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, retain_graph=True)
    return {
        name: torch.zeros_like(leaf) if grad is None else grad
        for (name, leaf), grad in zip(leaves.items(), found, strict=True)
    }


def as_double(leaves: Leaves) -> Leaves:
    return {name: leaf.detach().double().requires_grad_() for name, leaf in leaves.items()}


def assert_as_good_as_plain(
    actual: Leaves, exact: Leaves, plain_results: Leaves, *, dtype: torch.dtype
) -> None:
    """At most twice as wrong as plain PyTorch in the same dtype, with room for roundings that cannot be helped.

    Those are one of each result to its own dtype, and a few in the dtype of the arithmetic of the
    largest quantity in the problem: what cancels exactly in one order of summation may not in another.
    """
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    roundings = 64 if dtype == torch.float64 else 16  # in float64 the oracle is no better than the rest
    finite = [x.detach()[x.isfinite()].abs().max() for x in exact.values() if x.isfinite().any()]
    largest = max(finite, default=torch.zeros(()))
    for name, wanted in exact.items():
        found, rough = actual[name].detach(), plain_results[name].detach()
        assert found.shape == wanted.shape, f"{name}: {found.shape} instead of {wanted.shape}"
        if wanted.numel() == 0:
            continue
        infinite = wanted.isinf()
        torch.testing.assert_close(found.isinf(), infinite, msg=f"{name} is infinite elsewhere")
        eps = torch.finfo(found.dtype).eps
        found, wanted, rough = (
            x.detach().double().masked_fill(infinite, 0.0) for x in (found, wanted, rough)
        )
        budget = 2 * (rough - wanted).abs().max() + eps * wanted.abs().max()
        terms = 2 if name == "grad of slopes" else 1  # each of them is multiplied with a distance
        budget = budget + terms * roundings * torch.finfo(wide).eps * largest
        torch.testing.assert_close(
            found, wanted, atol=float(budget), rtol=0.0, msg=lambda m, name=name: f"{name}: {m}"
        )
