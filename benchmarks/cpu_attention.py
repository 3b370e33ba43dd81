"""Biased attention on the CPU: time beside SDPA with a dense mask, and peak memory."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import measure
import ordinate


class Candidate:
    """One way to compute biased causal attention: its parameters, the bias it stands for, and the call."""

    def __init__(
        self,
        bias: ordinate.PositionEncoding,
        call: Callable[[Tensor, Tensor, Tensor], Tensor],
        prepare: Callable[[Tensor, Tensor], None] | None = None,
    ) -> None:
        self.encoding, self.call = bias, call
        self.prepare = prepare or (lambda q, k: None)

    def parameters(self) -> list[Tensor]:
        return [p for p in self.encoding.parameters() if p.requires_grad]


def dense_mask(encoding: ordinate.PositionEncoding, q: Tensor, k: Tensor) -> Tensor:
    """Bias and causal mask as one matrix in the dtype of q, which is what SDPA takes."""
    bias = encoding.bias(q, k)
    future = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(k.shape[2] - q.shape[2] + 1)
    matrix = torch.zeros(()) if bias is None else bias.dense()
    return matrix.masked_fill(future, -math.inf).to(q.dtype)


def frozen(encoding: ordinate.PositionEncoding) -> ordinate.PositionEncoding:
    return encoding.requires_grad_(False)


def by_ordinate(encoding: ordinate.PositionEncoding) -> Candidate:
    return Candidate(encoding, lambda q, k, v: ordinate.attention(q, k, v, encoding, causal=True))


def by_sdpa(encoding: ordinate.PositionEncoding, *, mask_before: bool) -> Candidate:
    if not mask_before:
        return Candidate(
            encoding,
            lambda q, k, v: scaled_dot_product_attention(q, k, v, dense_mask(encoding, q, k)),
        )
    held: list[Tensor] = []

    def prepare(q: Tensor, k: Tensor) -> None:
        held[:] = [dense_mask(encoding, q, k)]

    return Candidate(encoding, lambda q, k, v: scaled_dot_product_attention(q, k, v, held[0]), prepare)


def candidates(heads: int, head_dim: int) -> dict[str, Candidate]:
    torch.manual_seed(1)
    nope = ordinate.NoPE()
    alibi = ordinate.ALiBi(heads)
    t5 = ordinate.T5Bias(heads)
    nn.init.normal_(t5.weight)
    t5_fixed = ordinate.T5Bias(heads)
    t5_fixed.load_state_dict(t5.state_dict())
    clipped = ordinate.ClippedBias(heads, 128)
    nn.init.normal_(clipped.weight)
    return {
        "SDPA causal, no bias": Candidate(
            nope,
            lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] == k.shape[2]),
        ),
        "SDPA, dense mask made before": by_sdpa(alibi, mask_before=True),
        "SDPA, dense mask made inside": by_sdpa(alibi, mask_before=False),
        "ordinate ALiBi": by_ordinate(alibi),
        "ordinate T5, fixed": by_ordinate(frozen(t5_fixed)),
        "SDPA, dense T5, learned": by_sdpa(t5, mask_before=False),
        "ordinate T5, learned": by_ordinate(t5),
        "ordinate clipped, learned": by_ordinate(clipped),
        "ordinate Shaw, learned": by_ordinate(ordinate.Shaw(head_dim, 16)),
    }


def inputs(case: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    heads, q_len, k_len, dim = case["shape"]
    dtype = getattr(torch, case["dtype"])
    torch.manual_seed(0)
    lengths = (q_len, k_len, k_len)
    return tuple(torch.randn(1, heads, n, dim).to(dtype).requires_grad_() for n in lengths)  # type: ignore[return-value]


def run(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Gate every candidate, then time those that are right."""
    q, k, v = inputs(case)
    found = {
        name: c for name, c in candidates(q.shape[1], q.shape[3]).items() if name in case["candidates"]
    }
    gates = {}
    for name, candidate in found.items():
        with torch.no_grad():
            candidate.prepare(q, k)
        gates[name] = check(candidate, q, k, v, backward="forward + backward" in case["directions"])
    right = {name: c for name, c in found.items() if gates[name]["passed"]}
    grad = torch.randn_like(q)

    def forward(candidate: Candidate):
        def timed():
            with torch.no_grad():
                return candidate.call(q, k, v)

        return timed

    def both(candidate: Candidate):
        wanted = [q, k, v, *candidate.parameters()]
        return lambda: torch.autograd.grad(candidate.call(q, k, v), wanted, grad)

    rows = []
    for direction in case["directions"]:
        wrap = forward if direction == "forward" else both
        times = measure.interleaved({n: wrap(c) for n, c in right.items()}, case["repetitions"])
        for name in found:
            row = {"candidate": name, "direction": direction, "gate": gates[name]}
            rows.append(row | times.get(name, {}))
    return rows


def run_memory(case: dict[str, Any]) -> list[dict[str, Any]]:
    """The peak above the inputs of one candidate in one direction, in a process of its own."""
    (name,), (direction,) = case["candidates"], case["directions"]
    # A first call at a small size, so that threads and libraries are not counted.
    _call_once(name, direction, inputs(case | {"shape": (*case["shape"][:1], 64, 64, case["shape"][3])}))
    given = inputs(case)
    extra = measure.peak_extra_mib(lambda: _call_once(name, direction, given))
    return [{"candidate": name, "direction": direction, "peak_extra_mib": extra}]


def _call_once(name: str, direction: str, given: tuple[Tensor, Tensor, Tensor]) -> Any:
    q, k, v = given
    candidate = candidates(q.shape[1], q.shape[3])[name]
    with torch.no_grad():
        candidate.prepare(q, k)
        if direction == "forward":
            return candidate.call(q, k, v)
    out = candidate.call(q, k, v)
    return torch.autograd.grad(out, [q, k, v, *candidate.parameters()], torch.ones_like(out))


def check(candidate: Candidate, q: Tensor, k: Tensor, v: Tensor, *, backward: bool) -> dict[str, Any]:
    """A sample of queries against float64: the output, and every gradient if only they have one.

    The budget is twice the error of PyTorch in the same dtype, plus a rounding. PyTorch is the worse of its
    eager softmax and its fused kernel: what recomputes weights from a logsumexp, as the kernel and chunked
    attention do, is several times further from float64 in float32 gradients than what keeps the weights.
    """
    torch.manual_seed(2)
    rows = torch.linspace(0, q.shape[2] - 1, min(q.shape[2], 48)).long().unique()
    grad = torch.zeros_like(q)
    grad[:, :, rows] = torch.randn(q.shape[0], q.shape[1], len(rows), v.shape[3]).to(q.dtype)
    out = candidate.call(q, k, v)
    got = [out[:, :, rows]]
    if backward:
        got += torch.autograd.grad(out, [q, k, v, *candidate.parameters()], grad)
    sample = Sample(candidate.encoding, q, k, v, rows, grad, backward)
    exact, eager = sample.eager(torch.float64), sample.eager(q.dtype)
    exact_fixed, fused = sample.eager(torch.float64, fixed=True), sample.fused()

    errors, eager_errors, fused_errors, budgets = {}, {}, {}, {}
    names = ["out", "grad q", "grad k", "grad v", *(["grad bias"] * len(candidate.parameters()))]
    for index, (name, one, expected) in enumerate(zip(names, got, exact, strict=False)):
        errors[name] = measure.worst_error(one, expected)
        eager_errors[name] = measure.worst_error(eager[index], expected)
        fused_errors[name] = 0.0
        if index < len(fused):
            fused_errors[name] = measure.worst_error(fused[index], exact_fixed[index])
        rounding = torch.finfo(one.dtype).eps * float(expected.abs().max())
        budgets[name] = 2 * max(eager_errors[name], fused_errors[name]) + rounding
    verdict = measure.gate(errors, budgets)
    spoken = verdict["quantity"]
    return verdict | {"eager_error": eager_errors[spoken], "fused_error": fused_errors[spoken]}


@dataclass(frozen=True)
class Sample:
    """Some of the queries, by PyTorch alone. Results: the output, then gradients of q, k, v and the bias."""

    encoding: ordinate.PositionEncoding
    q: Tensor
    k: Tensor
    v: Tensor
    rows: Tensor
    grad: Tensor
    backward: bool

    def eager(self, dtype: torch.dtype, *, fixed: bool = False) -> list[Tensor]:
        """softmax(q·k·scale + bias)·v, every operation in ``dtype``; a fixed bias takes no gradient."""
        encoding = copy.deepcopy(self.encoding).to(dtype)
        q, k, v = self._inputs(dtype)
        queries = q[:, :, self.rows]
        mask = self._mask(encoding, queries, k)
        logits = queries @ k.transpose(-1, -2) / math.sqrt(q.shape[3])
        out = torch.softmax(logits + (mask.detach() if fixed else mask), dim=-1) @ v
        trained = [] if fixed else [p for p in encoding.parameters() if p.requires_grad]
        return self._results(out, [q, k, v, *trained], dtype)

    def fused(self) -> list[Tensor]:
        """PyTorch's fused kernel, which takes the bias as a fixed dense mask."""
        q, k, v = self._inputs(self.q.dtype)
        queries = q[:, :, self.rows]
        with torch.no_grad():
            mask = self._mask(self.encoding, queries, k)
        out = scaled_dot_product_attention(queries, k, v, mask)
        return self._results(out, [q, k, v], self.q.dtype)

    def _inputs(self, dtype: torch.dtype) -> list[Tensor]:
        return [x.detach().to(dtype).requires_grad_() for x in (self.q, self.k, self.v)]

    def _mask(self, encoding: ordinate.PositionEncoding, queries: Tensor, k: Tensor) -> Tensor:
        keys = torch.arange(k.shape[2])
        positions = self.rows + k.shape[2] - self.q.shape[2]
        bias = encoding.bias(queries, k, positions, keys)
        matrix = queries.new_zeros(1, 1, 1, 1)
        if bias is not None:
            matrix = bias.dense() * (1 / math.sqrt(k.shape[3]) if bias.scaled else 1.0)
        return matrix.to(queries.dtype).masked_fill(keys > positions[:, None], -math.inf)

    def _results(self, out: Tensor, wanted: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
        if not self.backward:
            return [out.detach()]
        grad = self.grad[:, :, self.rows].to(dtype)
        return [out.detach(), *torch.autograd.grad(out, wanted, grad)]
