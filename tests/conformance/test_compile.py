"""torch.compile: one graph, no break, and no compile per length."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounter

import ordinate
from ordinate.attending.fused import terms as fused

from .cases import Case, cases

pytestmark = pytest.mark.plain

LENGTHS = (12, 5, 17, 24, 31, 40, 48)

# One of each kind, where a compile takes seconds.
REPRESENTATIVE = {
    "sinusoidal", "learned", "rope", "rope-sections-interleaved", "rope+dynamic", "rope+longrope",
    "rope+alibi", "alibi-trainable", "t5-bidirectional", "shaw-values",
}  # fmt: skip


def _forward(case: Case, encoding):
    def forward(x, q, k, v, positions):
        embedded = encoding.embed(x, positions if case.axes == 1 else None)
        out = ordinate.attention(
            q, k, v, encoding, causal=True, q_positions=positions, k_positions=positions
        )
        return embedded, out

    return forward


def _inputs(case: Case, length: int):
    positions = case.positions(torch.arange(length).expand(2, -1).clone())
    return case.x(length, torch.float32), *case.qkv(length, torch.float32), positions


@cases()
def test_seven_lengths_need_at_most_two_compiles(case: Case):
    torch._dynamo.reset()
    encoding, counter = case.build(), CompileCounter()
    forward = _forward(case, encoding)
    compiled = torch.compile(forward, backend=counter, fullgraph=True)
    for length in LENGTHS:
        inputs = _inputs(case, length)
        for ours, eager in zip(compiled(*inputs), forward(*inputs), strict=True):
            torch.testing.assert_close(ours, eager)
    assert counter.frame_count <= 2


def _every_distance(q, k):
    """A table with an entry for every pair: where it starts follows from a length."""
    places = ordinate.positions.resolve(q, k, None, None)
    table = torch.arange(q.shape[2] + k.shape[2] - 1).cos().expand(q.shape[1], -1)
    return ordinate.DistanceBias(table, places, lo=1 - q.shape[2])


_MASKED = {"causal": True, "window": 3}


@pytest.mark.parametrize(
    ("impl", "options"),
    [
        *((impl, {"causal": True}) for impl in ("auto", "chunked", "reference")),
        *((impl, {"bias": _every_distance, **_MASKED}) for impl in ("auto", "chunked", "reference")),
        ("auto", {"encoding": ordinate.T5Bias(2), "softcap": 3.0, **_MASKED}),
        ("auto", {"encoding": ordinate.Shaw(8, 3, values=True), **_MASKED}),
        ("sdpa", {}),
    ],
    ids=["plain-auto", "plain-chunked", "plain-reference", "table-auto", "table-chunked", "table-reference",
         "t5-auto", "shaw-auto", "full-sdpa"],
)  # fmt: skip
def test_pairs_of_unequal_lengths_need_no_more_compiles_than_lengths(impl, options):
    """What an implementation says against a call, and what a bias is made of, must read no length into text."""
    torch._dynamo.reset()
    counter = CompileCounter()

    def attend(q, k, v):
        given = {**options, "bias": options["bias"](q, k)} if "bias" in options else options
        return ordinate.attention(q, k, v, **given, impl=impl)

    compiled = torch.compile(attend, backend=counter, fullgraph=True)
    for q_len, k_len in ((3, 9), (5, 12), (2, 20), (7, 31)):
        inputs = [torch.randn(2, 2, length, 8) for length in (q_len, k_len, k_len)]
        torch.testing.assert_close(compiled(*inputs), attend(*inputs))
    assert counter.frame_count <= 2


def test_a_length_beyond_a_kernels_reach_is_no_constant_of_a_graph(monkeypatch):
    """The fused kernels' bounds, as if there were a GPU and no call were within them."""
    monkeypatch.setattr(fused, "reason_against", lambda device: None)
    monkeypatch.setattr(fused, "_MAX_TILES", 0)
    monkeypatch.setattr(fused, "_MAX_ROW", 0)
    monkeypatch.setattr(fused, "_MAX_WIDENED_ROW", 0)
    torch._dynamo.reset()
    counter = CompileCounter()

    def attend(q, k, v):
        bias = _every_distance(q, k)
        rows = ordinate.RowBias(q, q[0, :1], bias.places, lo=-1)
        return ordinate.attention(q, k, v, bias=ordinate.SumBias((bias, rows)))

    compiled = torch.compile(attend, backend=counter, fullgraph=True, dynamic=True)
    for q_len, k_len in ((3, 9), (5, 12), (2, 20)):
        inputs = [torch.randn(2, 2, length, 8) for length in (q_len, k_len, k_len)]
        torch.testing.assert_close(compiled(*inputs), attend(*inputs))
    assert counter.frame_count == 1


@cases(only=lambda case: case.id in REPRESENTATIVE)
def test_everything_may_be_dynamic(case: Case):
    """With dynamic=True batch, heads and even plain numbers are symbols to the compiler."""
    torch._dynamo.reset()
    encoding, counter = case.build(), CompileCounter()
    forward = _forward(case, encoding)
    compiled = torch.compile(forward, backend=counter, fullgraph=True, dynamic=True)
    for length in LENGTHS[:3]:
        inputs = _inputs(case, length)
        for ours, eager in zip(compiled(*inputs), forward(*inputs), strict=True):
            torch.testing.assert_close(ours, eager)
    assert counter.frame_count == 1


@cases(only=lambda case: case.id in REPRESENTATIVE)
def test_gradients_compile_too(case: Case):
    torch._dynamo.reset()
    encoding = case.build()
    forward = _forward(case, encoding)
    compiled = torch.compile(forward, backend="aot_eager", fullgraph=True)
    for length in (12, 20):
        grads = []
        for run in (compiled, forward):
            x, q, k, v, positions = _inputs(case, length)
            leaves = [t.requires_grad_() for t in (q, k, v)] + list(encoding.parameters())
            out = run(x, q, k, v, positions)[1]
            torch.manual_seed(0)
            loss = (out * torch.randn_like(out)).sum()
            grads.append(torch.autograd.grad(loss, leaves, materialize_grads=True))
        for ours, eager in zip(*grads, strict=True):
            torch.testing.assert_close(ours, eager, rtol=2e-5, atol=2e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # torch's own
@cases(only=lambda case: case.id in REPRESENTATIVE)
def test_inductor_gives_what_eager_gives(case: Case):
    torch._dynamo.reset()
    encoding = case.build()
    forward = _forward(case, encoding)
    compiled = torch.compile(forward, fullgraph=True)
    for length in (12, 31, 40):
        inputs = _inputs(case, length)
        for ours, eager in zip(compiled(*inputs), forward(*inputs), strict=True):
            torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-5)
