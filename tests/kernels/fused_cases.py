"""Kinds of bias, mask, position and size for the fused kernels, and how wrong an answer may be.

The oracle is `reference` in float64. The yardstick is plain PyTorch with every step in the caller's
dtype. Everything is made on the CPU, so that all machines see the same numbers, and moved to a device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import ordinate
from ordinate import DistanceBias, KeyBias, LinearBias, RowBias, SumBias
from ordinate.attending import api
from ordinate.attending.call import scaled_dense
from ordinate.bias.t5 import t5_buckets
from ordinate.positions import Places

Leaves = dict[str, Tensor]


@dataclass(frozen=True)
class Sizes:
    q_len: int = 50
    k_len: int = 50
    batch: int = 1
    heads: int = 2
    kv_heads: int = 2
    head_dim: int = 16
    v_dim: int = 16


# Tiles are 32 × 16 in the interpreter: every length here ends inside of one.
SIZES = {
    "equal": Sizes(),
    "grouped": Sizes(q_len=37, k_len=37, heads=4, kv_heads=2, head_dim=24, v_dim=20),
    "fewer_queries": Sizes(q_len=33, k_len=71, kv_heads=1, head_dim=8, v_dim=40),
    "more_queries": Sizes(q_len=71, k_len=33, head_dim=20),
    "batch": Sizes(q_len=35, k_len=35, batch=2, kv_heads=1, v_dim=5),
}


@dataclass(frozen=True)
class Positions:
    """Where queries and keys stand; `aligned` positions are the indices and need not be read."""

    queries: Tensor
    keys: Tensor
    aligned: bool = False

    def on(self, device: torch.device | str) -> Positions:
        return Positions(self.queries.to(device), self.keys.to(device), self.aligned)

    @functools.cached_property
    def places(self) -> Places:
        """One for all parts of a sum."""
        if self.aligned:
            return Places.in_order(self.queries.shape[1], self.keys.shape[1], device=self.queries.device)
        return Places.at(self.queries, self.keys)


def positions_of(kind: str, sizes: Sizes) -> Positions:
    b, q, k = sizes.batch, sizes.q_len, sizes.k_len
    queries, keys = torch.arange(q)[None] + k - q, torch.arange(k)[None]
    generator = torch.Generator().manual_seed(5)
    rows = torch.arange(b)[:, None] * 11
    kinds = {
        "aligned": lambda: (queries, keys),
        "indices_as_data": lambda: (queries, keys),
        "far_out": lambda: (queries + 2**20 + 2, keys + 2**20),
        "gaps": lambda: (queries * 3 + 1, keys * 3),
        "reversed": lambda: (queries.flip(1), keys.flip(1)),
        "repeated": lambda: (queries // 3, keys // 3),
        "shuffled": lambda: (
            torch.randperm(q, generator=generator)[None],
            torch.randperm(k, generator=generator)[None],
        ),
        "rows_of_their_own": lambda: (queries + rows, keys + rows // 2 - 3),
        "rows_of_keys": lambda: (queries, keys * (1 + rows)),
        # The end of a long document and the start of another, which must be segments of their own.
        "two_documents": lambda: tuple(at + 2**22 * (at < k // 2) for at in (queries, keys)),
    }
    return Positions(*kinds[kind](), aligned=kind == "aligned")


POSITIONS = (
    "aligned", "gaps", "aligned", "shuffled", "aligned", "reversed", "far_out", "aligned",
    "rows_of_their_own", "indices_as_data", "repeated", "aligned", "rows_of_keys",
)  # fmt: skip


@dataclass(frozen=True)
class BiasCase:
    """The tensors a bias learns, and how they become one."""

    leaves: Callable[[Sizes], Leaves]
    build: Callable[[Leaves, Positions], ordinate.Bias | None]
    causal_only: bool = False


def _linear(**options) -> Callable[[Leaves, Positions], LinearBias]:
    return lambda leaves, at: LinearBias(leaves["slopes"], at.places, **options)


def _distance(lo: int, **options) -> Callable[[Leaves, Positions], DistanceBias]:
    return lambda leaves, at: DistanceBias(leaves["table"], at.places, lo=lo, **options)


def _t5(bidirectional: bool) -> Callable[[Leaves, Positions], DistanceBias]:
    def build(leaves: Leaves, at: Positions) -> DistanceBias:
        distances = torch.arange(-20 if bidirectional else 0, 21, device=leaves["buckets"].device)
        buckets = t5_buckets(distances, num_buckets=8, max_distance=20, bidirectional=bidirectional)
        table = leaves["buckets"][:, buckets]
        return DistanceBias(table, at.places, lo=int(distances[0]))

    return build


def _kerple(leaves: Leaves, at: Positions) -> DistanceBias:
    """``-a · log(1 + b·|distance|)`` (Chi et al. 2022), one entry for every distance there is."""
    lo = int(at.queries.min() - at.keys.max())
    hi = int(at.queries.max() - at.keys.min())
    a, b = leaves["a"].exp(), leaves["b"].exp()
    distances = torch.arange(lo, hi + 1, device=a.device).abs().to(a.dtype)
    table = -a[:, None] * torch.log1p(b[:, None] * distances)
    return DistanceBias(table, at.places, lo=lo)


def _every_distance(sizes: Sizes) -> Leaves:
    return {"table": torch.randn(sizes.heads, sizes.q_len + sizes.k_len - 1)}


def _to_the_last_query(leaves: Leaves, at: Positions) -> DistanceBias:
    """No entry more than there are distances between indices, so that the ends are seen, and nothing beyond them."""
    lo = 1 - at.queries.shape[1]
    return DistanceBias(leaves["table"], at.places, lo=lo)


def _gates(leaves: Leaves, at: Positions) -> KeyBias:
    """FoX (Lin et al. 2025): the log of what forget gates have let through, summed up to each key."""
    gates = torch.nn.functional.logsigmoid(leaves["gates"] + 2).cumsum(-1)
    return KeyBias(-gates, causal_only=False)


def _row(lo: int, *, scaled: bool = True) -> Callable[[Leaves, Positions], RowBias]:
    return lambda leaves, at: RowBias(
        leaves["features"], leaves["row_table"], at.places,
        lo=lo, scaled=scaled,
    )  # fmt: skip


def _key_row(lo: int, *, scaled: bool = True) -> Callable[[Leaves, Positions], RowBias]:
    return lambda leaves, at: RowBias(
        leaves["key_features"], leaves["key_row_table"], at.places,
        lo=lo, side="key", scaled=scaled,
    )  # fmt: skip


def _slopes(sizes: Sizes) -> Leaves:
    return {"slopes": torch.rand(sizes.heads) * 0.3}


def _table(rows: int) -> Callable[[Sizes], Leaves]:
    return lambda sizes: {"table": torch.randn(sizes.heads, rows)}


def _row_leaves(rows: int, *, shared: bool) -> Callable[[Sizes], Leaves]:
    return lambda sizes: {
        "features": torch.randn(sizes.batch, sizes.heads, sizes.q_len, 6),
        "row_table": torch.randn(1 if shared else sizes.heads, rows, 6),
    }


def _key_row_leaves(rows: int, *, shared: bool) -> Callable[[Sizes], Leaves]:
    """Shared are the table among heads and the features among the rows of a batch."""
    return lambda sizes: {
        "key_features": torch.randn(1 if shared else sizes.batch, sizes.heads, sizes.k_len, 6),
        "key_row_table": torch.randn(1 if shared else sizes.heads, rows, 6),
    }


def _shared_gates(sizes: Sizes) -> Leaves:
    return {"gates": torch.randn(1, sizes.heads, sizes.k_len)}


def _all(*makers: Callable[[Sizes], Leaves]) -> Callable[[Sizes], Leaves]:
    return lambda sizes: {name: leaf for make in makers for name, leaf in make(sizes).items()}


def _sum(*parts: Callable[[Leaves, Positions], ordinate.Bias]) -> Callable[[Leaves, Positions], SumBias]:
    return lambda leaves, at: SumBias(tuple(build(leaves, at) for build in parts))


BIASES = {
    "none": BiasCase(lambda sizes: {}, lambda leaves, at: None),
    "line": BiasCase(_slopes, _linear(), causal_only=True),
    "line_symmetric": BiasCase(_slopes, _linear(symmetric=True)),
    "line_symmetric_scaled": BiasCase(_slopes, _linear(symmetric=True, scaled=True)),
    "t5_causal": BiasCase(lambda sizes: {"buckets": torch.randn(sizes.heads, 8)}, _t5(False)),
    "t5_both_ways": BiasCase(lambda sizes: {"buckets": torch.randn(sizes.heads, 8)}, _t5(True)),
    "clipped": BiasCase(_table(7), _distance(-3)),
    "clipped_far_past": BiasCase(_table(5), _distance(9, scaled=True)),
    "one_distance": BiasCase(_table(1), _distance(0)),
    "longer_than_any": BiasCase(_table(401), _distance(-200)),
    "kerple": BiasCase(
        lambda sizes: {"a": torch.randn(sizes.heads), "b": torch.randn(sizes.heads)}, _kerple
    ),
    "every_distance": BiasCase(_every_distance, _to_the_last_query),
    "gates": BiasCase(
        lambda sizes: {"gates": torch.randn(sizes.batch, sizes.heads, sizes.k_len)}, _gates
    ),
    "row": BiasCase(_row_leaves(7, shared=False), _row(-3)),
    "row_shared": BiasCase(_row_leaves(12, shared=True), _row(0, scaled=False)),
    "row_of_keys": BiasCase(_key_row_leaves(7, shared=False), _key_row(-3)),
    "row_of_keys_shared": BiasCase(_key_row_leaves(12, shared=True), _key_row(0, scaled=False)),
    "row_of_keys_of_one_distance": BiasCase(_key_row_leaves(1, shared=False), _key_row(2)),
    # Of sums, all tables start and end in different places.
    "both_rows": BiasCase(
        _all(_row_leaves(6, shared=True), _key_row_leaves(9, shared=False)), _sum(_row(-4), _key_row(-2))
    ),
    "sum": BiasCase(
        _all(_slopes, _table(9), _row_leaves(5, shared=True), _shared_gates),
        _sum(_linear(symmetric=True), _distance(-6, scaled=True), _gates, _row(-1)),
    ),
    "sum_of_every_distance": BiasCase(
        _all(_every_distance, _row_leaves(5, shared=True)), _sum(_to_the_last_query, _row(-1))
    ),
    "sum_of_all": BiasCase(
        _all(
            _slopes,
            _table(9),
            _row_leaves(5, shared=True),
            _shared_gates,
            _key_row_leaves(7, shared=True),
        ),
        _sum(_linear(symmetric=True), _distance(-6, scaled=True), _gates, _row(-1), _key_row(-5)),
    ),
}


def _segments(length: int, rows: int = 1, sequences: int = 3) -> Tensor:
    """Runs of one sequence each, of other lengths in other rows."""
    index = torch.arange(length)[None] + 7 * torch.arange(rows)[:, None]
    return index * sequences // (length + 7 * rows)


def _padding(sizes: Sizes) -> Tensor:
    """On the left, on the right and in between; the last row of several is nothing else."""
    index = torch.arange(sizes.k_len)
    padding = (index < 5) | (index % 13 == 7) | (index >= sizes.k_len - 3)
    padding = padding.repeat(sizes.batch, 1)
    padding[1:] = True
    return padding


MASKS: dict[str, Callable[[Sizes], dict]] = {
    "full": lambda sizes: {},
    "causal": lambda sizes: {"causal": True},
    "window": lambda sizes: {"window": 9},
    "causal_window": lambda sizes: {"causal": True, "window": 23},
    "segments": lambda sizes: {
        "q_segment_ids": _segments(sizes.q_len, sizes.batch),
        "k_segment_ids": _segments(sizes.k_len),
    },
    "interleaved_segments": lambda sizes: {
        "q_segment_ids": torch.arange(sizes.q_len)[None] % 3,
        "k_segment_ids": torch.arange(sizes.k_len)[None] % 4,  # some queries see nothing, nobody sees 3
    },
    "padding": lambda sizes: {"key_padding_mask": _padding(sizes)},
    "all_at_once": lambda sizes: {
        "causal": True,
        "window": 31,
        "q_segment_ids": _segments(sizes.q_len, sizes.batch),
        "k_segment_ids": _segments(sizes.k_len, sizes.batch),
        "key_padding_mask": _padding(sizes)[:1],
    },
}


@dataclass(frozen=True)
class Case:
    """One call: everything it is given, on one device."""

    bias: str
    mask: str = "causal"
    positions: str = "aligned"
    sizes: Sizes = SIZES["equal"]
    dtype: torch.dtype = torch.float32
    device: str = "cpu"

    def leaves(self) -> Leaves:
        """q, k, v and what the bias learns, which is held in float32."""
        s = self.sizes
        made = {
            "q": torch.randn(s.batch, s.heads, s.q_len, s.head_dim).to(self.dtype),
            "k": torch.randn(s.batch, s.kv_heads, s.k_len, s.head_dim).to(self.dtype),
            "v": torch.randn(s.batch, s.kv_heads, s.k_len, s.v_dim).to(self.dtype),
            **BIASES[self.bias].leaves(s),
        }
        return {name: leaf.to(self.device).requires_grad_() for name, leaf in made.items()}

    def arguments(self, leaves: Leaves, **options) -> dict:
        """What `ordinate.attention` is called with."""
        case = BIASES[self.bias]
        mask = {
            name: value.to(self.device) if isinstance(value, Tensor) else value
            for name, value in MASKS[self.mask](self.sizes).items()
        }
        if case.causal_only:
            mask["causal"] = True
        at = positions_of(self.positions, self.sizes).on(self.device)
        content = {name: leaves[name] for name in ("q", "k", "v")}
        return {**content, "bias": case.build(leaves, at), **mask, **options}


def plain(arguments: dict, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """``softmax(q·k · scale + bias) · v`` as a user would write it, with every step in ``dtype``."""
    call = api._prepare(**arguments)
    k, v = (x.to(dtype).repeat_interleave(call.groups, dim=1) for x in (call.k, call.v))
    logits = call.q.to(dtype) @ k.transpose(-1, -2) * call.scale
    if call.softcap is not None:
        logits = call.softcap * torch.tanh(logits / call.softcap)
    for part in call.parts:
        logits = logits + scaled_dense(part, call.scale, dtype)
    visible = call.mask.dense(logits.device)
    blind = ~visible.any(-1, keepdim=True)
    logits = logits.masked_fill(~visible & ~blind, -torch.inf)
    weights = logits.softmax(-1).masked_fill(blind, 0.0)
    return weights @ v, logits.logsumexp(-1).masked_fill(blind[..., 0], -torch.inf)


def results(leaves: Leaves, outputs: tuple[Tensor, Tensor]) -> Leaves:
    """The outputs by name, and the gradient of a fixed combination of them for every leaf."""
    out, lse = outputs
    generator = torch.Generator().manual_seed(7)
    # Of numbers that every dtype has: the gradient of the output is not rounded on its way in.
    pulls = [torch.randn(x.shape, generator=generator).bfloat16().double() for x in (out, lse)]
    finite = lse.masked_fill(lse.isinf(), 0.0)
    loss = (out.double() * pulls[0].to(out.device)).sum()
    loss = loss + (finite.double() * pulls[1].to(out.device)).sum()
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
        assert gradient is not None, f"{name} got no gradient"
        assert gradient.dtype == leaf.dtype, f"gradient of {name} is {gradient.dtype}"
    named = {f"grad of {name}": grad for name, grad in zip(leaves, gradients, strict=True)}
    return {"out": out.detach(), "lse": lse.detach(), **named}


def exact_results(case: Case, leaves: Leaves, **options) -> Leaves:
    """Of `reference` in float64."""
    double = {name: leaf.detach().double().requires_grad_() for name, leaf in leaves.items()}
    arguments = case.arguments(double, **options)
    return results(double, ordinate.attention(**arguments, return_lse=True, impl="reference"))


#: Of one number a token. Gradients among them cancel: their terms are as large as the largest of these. All others
#: are sums over tokens, whose terms may be as large as anything.
_OF_TOKENS = (
    "out", "grad of q", "grad of k", "grad of v", "grad of gates", "grad of features", "grad of key_features",
)  # fmt: skip


def assert_at_most_twice_as_wrong(found: Leaves, exact: Leaves, rough: Leaves) -> None:
    """As plain PyTorch: twice its largest error, and two roundings of a logit.

    The rounding of a logit is a relative error of its weight, and grows with the logits' size.
    """
    finite = {name: x[x.isfinite()] for name, x in exact.items() if x.isfinite().any()}
    sizes = {name: float(x.abs().max()) for name, x in finite.items()}
    largest = max(sizes.values(), default=0.0)
    largest_of_tokens = max((sizes.get(name, 0.0) for name in _OF_TOKENS), default=0.0)
    logit = 4.0 + (float(finite["lse"].abs().max()) if "lse" in finite else 0.0)
    for name, wanted in exact.items():
        assert found[name].shape == wanted.shape
        if wanted.numel() == 0:
            continue
        actual, yardstick = found[name].double(), rough[name].double()
        infinite = wanted.isinf()
        torch.testing.assert_close(actual.isinf(), infinite, msg=f"{name} is infinite elsewhere")
        actual, wanted, yardstick = (x.masked_fill(infinite, 0.0) for x in (actual, wanted, yardstick))
        size = largest_of_tokens if name in _OF_TOKENS else largest
        if name in ("out", "lse"):
            size = sizes.get(name, 0.0)
        budget = 2 * float((yardstick - wanted).abs().max())
        budget += 2 * torch.finfo(torch.float32).eps * logit * size
        budget += torch.finfo(found[name].dtype).eps * float(wanted.abs().max())
        torch.testing.assert_close(
            actual, wanted, atol=budget, rtol=0.0, msg=lambda text, name=name: f"{name}: {text}"
        )


def check(case: Case, **options) -> None:
    """Outputs and all gradients of the fused kernels, against float64."""
    leaves = case.leaves()
    before = {name: leaf.detach().clone() for name, leaf in leaves.items()}
    arguments = case.arguments(leaves, **options)
    outputs = ordinate.attention(**arguments, return_lse=True, impl="fused")
    assert outputs[0].dtype == case.dtype
    assert outputs[1].dtype == torch.float32
    found = results(leaves, outputs)
    rough = results(leaves, plain(case.arguments(leaves, **options), case.dtype))
    assert_at_most_twice_as_wrong(found, exact_results(case, leaves, **options), rough)
    for name, leaf in leaves.items():
        torch.testing.assert_close(leaf.detach(), before[name], rtol=0, atol=0)


def check_merged_results_of_queries_that_see_nothing(impl: str, device: torch.device) -> None:
    """Merging by `logaddexp`, as rings and cascades do, pulls by NaN at logsumexps that are both -inf."""
    content = [torch.randn(1, 2, 20, 16, device=device, requires_grad=True) for _ in range(3)]
    encoding = ordinate.T5Bias(2).to(device)
    hidden = (torch.arange(20, device=device) < 3)[None]  # so that the first three queries see nothing
    outputs = [
        ordinate.attention(
            *content, encoding, causal=True, key_padding_mask=hidden, return_lse=True, impl=impl
        )
        for _ in range(2)
    ]
    lse = torch.logaddexp(outputs[0][1], outputs[1][1])
    loss = lse.masked_fill(lse == -torch.inf, 0.0).sum() + outputs[0][0].sum()
    found = torch.autograd.grad(loss, [*content, encoding.weight])
    assert all(gradient.isfinite().all() for gradient in found)
    assert all(gradient.abs().sum() > 0 for gradient in found)
