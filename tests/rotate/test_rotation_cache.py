"""Rotations at positions in order are computed once, and nothing else about them changes."""

from __future__ import annotations

import copy
import dataclasses
import gc
import os
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from ordinate import RoPE, scaling
from ordinate.rotate import rotation_cache
from ordinate.scaling import Linear, Scaling


@pytest.fixture(autouse=True)
def _nothing_kept():
    rotation_cache._cache.clear()
    yield
    rotation_cache._cache.clear()


@pytest.fixture
def made(monkeypatch):
    """How many positions were turned into angles."""
    counts: list[int] = []
    at = RoPE._at

    def counted(self, positions, lengths, **options):
        counts.append(positions.shape[-1])
        return at(self, positions, lengths, **options)

    monkeypatch.setattr(RoPE, "_at", counted)
    return counts


def _q_k(q_len=256, k_len=256, dim=16):
    return torch.randn(1, 4, q_len, dim), torch.randn(1, 2, k_len, dim)


def test_layers_that_turn_alike_share_one_rotation(made):
    q, k = _q_k()
    encodings = RoPE(16), RoPE(16), RoPE(16, sections=(2, 3, 3))
    for encoding in encodings:
        turned = encoding.rotate(q, k)
        for x, result in zip((q, k), turned, strict=True):
            expected = encoding.at(torch.arange(256)).apply(x)
            torch.testing.assert_close(result, expected, rtol=0, atol=0)
    assert made == [256] * 7  # one for all three, and one for each of six expectations


@pytest.mark.parametrize(
    "other",
    [
        RoPE(16, base=500.0), RoPE(16, rotary_dim=8), RoPE(16, layout="interleaved"),
        RoPE(16, scaling=scaling.Linear(4)), RoPE(16, scaling=scaling.YaRN(4, 64)),
    ],
    ids=str,
)  # fmt: skip
def test_an_encoding_that_differs_has_a_rotation_of_its_own(other):
    q, k = _q_k(512, 512)
    rope = RoPE(16)
    rope.rotate(q, k)
    for x, result in zip((q, k), other.rotate(q, k), strict=True):
        torch.testing.assert_close(result, other.at(torch.arange(512)).apply(x), rtol=0, atol=0)


def test_a_setting_changed_afterwards_is_seen():
    q, k = _q_k()
    rope = RoPE(16)
    rope.rotate(q, k)
    rope.base = 77.0
    expected = RoPE(16, base=77.0).at(torch.arange(256)).apply(q)
    torch.testing.assert_close(rope.rotate(q, k)[0], expected, rtol=0, atol=0)


def test_queries_at_the_end_of_the_keys_stand_there():
    q, k = _q_k(256, 700)
    rope = RoPE(16)
    rope.rotate(*_q_k())  # the same number of queries, elsewhere
    q_turned, k_turned = rope.rotate(q, k)
    torch.testing.assert_close(q_turned, rope.at(torch.arange(444, 700)).apply(q), rtol=0, atol=0)
    torch.testing.assert_close(k_turned, rope.at(torch.arange(700)).apply(k), rtol=0, atol=0)


def test_what_was_kept_in_inference_serves_training():
    q, k = _q_k()
    rope = RoPE(16)
    with torch.inference_mode():
        rope.rotate(*_q_k(300, 300))
        rope.rotate(q, k)
    q.requires_grad_()
    rope.rotate(q, k)[0].sum().backward()
    assert q.grad is not None


def test_a_scaling_that_looks_at_lengths_or_may_change_is_not_kept():
    class Mutable(Scaling):
        attention_factor = 1.0
        factor = 2.0

        def inv_freq(self, base, dim, lengths=None, device=None):
            return Linear(self.factor).inv_freq(base, dim, lengths, device)

    q, k = _q_k()
    dynamic = RoPE(16, scaling=scaling.DynamicNTK(2, 64))
    dynamic.rotate(q, k, lengths=100)
    first, _ = dynamic.rotate(q, k, lengths=200)
    expected = dynamic.at(torch.arange(256), 200).apply(q)
    torch.testing.assert_close(first, expected, rtol=0, atol=0)
    changing = Mutable()
    rope = RoPE(16, scaling=changing)
    rope.rotate(q, k)
    changing.factor = 8.0
    expected = RoPE(16, scaling=Linear(8.0)).at(torch.arange(256)).apply(q)
    torch.testing.assert_close(rope.rotate(q, k)[0], expected, rtol=0, atol=0)
    assert not rotation_cache._cache


def test_tokens_one_at_a_time_are_not_kept():
    rope = RoPE(16)
    for length in range(300, 310):
        rope.rotate(*_q_k(1, length))
    assert _lengths() == [309]  # of the keys; of the queries none


def _lengths() -> list[int]:
    return [entry.rotation.angles.shape[1] for entry in rotation_cache._cache.values()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_longest_serves_all_lengths_with_the_bits_of_each(dtype, made):
    rope, other = RoPE(16), RoPE(16)
    lengths = (700, 699, 513, 260, 257, 256, 300, 800, 300)
    turned = []
    for length in lengths:
        q, k = (x.to(dtype) for x in _q_k(length, length))
        for encoding in (rope, other):
            turned.append((q, encoding.rotate(q, k)[0]))
    assert made == [700, 800]
    assert _lengths() == [800]
    for x, result in turned:
        _equal(result, rope.at(torch.arange(x.shape[2])).apply(x))
    (entry,) = rotation_cache._cache.values()
    whole, part = (rotation.cos_sin(torch.float32) for rotation in (entry.rotation, entry.first(300)))
    for a, b in zip(
        whole, part, strict=True
    ):  # a view from the same start: aligned as the whole is, and contiguous
        assert a.data_ptr() == b.data_ptr()
        assert b.is_contiguous()


def test_what_no_living_encoding_uses_is_let_go():
    layers = [RoPE(16), RoPE(16), RoPE(16, base=500.0)]
    for layer in (*layers, copy.deepcopy(layers[0]), pickle.loads(pickle.dumps(layers[0]))):
        layer.rotate(*_q_k())
        layer.rotate(*_q_k(256, 600))
    del layer
    assert len(rotation_cache._cache) == 4
    del layers[0]
    assert len(rotation_cache._cache) == 4
    del layers[0]
    assert [key[0][0] for key in rotation_cache._cache] == [500.0] * 2
    memory = [weakref.ref(entry.rotation.angles) for entry in rotation_cache._cache.values()]
    layers.clear()
    gc.collect()
    assert not rotation_cache._cache
    assert [ref() for ref in memory] == [None, None]


def test_what_a_backward_pass_needs_outlives_its_encoding():
    q, k = _q_k()
    q.requires_grad_()
    turned = RoPE(16).rotate(q, k)[0]
    assert not rotation_cache._cache
    turned.sum().backward()
    expected = RoPE(16).at(torch.arange(256)).apply(turned.new_ones(turned.shape))
    back = RoPE(16).at(-torch.arange(256)).apply(turned.new_ones(turned.shape))
    assert not torch.equal(q.grad, expected)
    _equal(q.grad, back)


def test_what_is_kept_is_bounded(monkeypatch):
    monkeypatch.setattr(rotation_cache, "LIMIT_BYTES", 3 * 420 * 8 * 32)
    ropes = {base: RoPE(16, base=base) for base in range(400, 421)}
    for rope in list(ropes.values())[:-1]:
        q, k = _q_k(420, 420)
        rope.rotate(q, k)
        rope.rotate(q.double(), k.double())  # has tables of its own
        held = [
            r.angles.nbytes + sum(t.nbytes for pair in r._tables.values() for t in pair)
            for r in (entry.rotation for entry in rotation_cache._cache.values())
        ]
        assert sum(held) <= rotation_cache.LIMIT_BYTES
    assert [key[0][0] for key in rotation_cache._cache] == [417, 418, 419]
    ropes[417].rotate(*_q_k(300, 300))  # used again, so no longer the oldest
    ropes[420].rotate(*_q_k(420, 420))
    assert [key[0][0] for key in rotation_cache._cache] == [419, 417, 420]
    ropes[419].rotate(*_q_k(5000, 5000))  # too long for the limit
    assert [key[0][0] for key in rotation_cache._cache] == [417, 420, 419]
    assert _lengths() == [420] * 3


@pytest.mark.plain
def test_lengths_on_both_sides_of_what_is_worth_keeping_compile_once():
    counter = CompileCounter()
    rope = RoPE(16)
    rotate = torch.compile(lambda q, k: rope.rotate(q, k), backend=counter, fullgraph=True)  # noqa: PLW0108
    for length in (100, 130, 200, 255, 256, 300, 1000):
        rotate(*_q_k(length, length))
    assert counter.frame_count <= 2


class _Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rope = RoPE(16)

    def forward(self, q, k):
        return self.rope.rotate(q, k)


@pytest.mark.plain
def test_a_model_is_exported_for_any_length():
    _Model()(*_q_k(100, 100))
    length = torch.export.Dim("length", min=2, max=4096)
    exported = torch.export.export(_Model(), _q_k(100, 100), dynamic_shapes=({2: length}, {2: length}))
    q, k = _q_k(700, 700)
    torch.testing.assert_close(exported.module()(q, k)[0], RoPE(16).at(torch.arange(700)).apply(q))


def test_what_was_kept_stays_out_of_traces_and_what_they_make_is_not_kept():
    q, k = _q_k()
    rope = RoPE(16)
    expected = rope.rotate(q, k)[0]
    with FakeTensorMode():
        assert rope.rotate(torch.empty(1, 4, 256, 16), torch.empty(1, 2, 256, 16))[0].shape == (
            1,
            4,
            256,
            16,
        )
    for mode in ("real", "fake"):
        graph = make_fx(lambda q, k: rope.rotate(q, k, None), tracing_mode=mode)(q, k)
        torch.testing.assert_close(graph(q, k)[0], expected)
    rotation_cache._cache.clear()
    torch.testing.assert_close(torch.func.functionalize(rope.rotate)(q, k)[0], expected)
    assert not rotation_cache._cache
    _equal(rope.rotate(q, k)[0], expected)
    assert rotation_cache._cache
    torch.func.functionalize(rope.rotate)(q, k)
    q.requires_grad_()
    rope.rotate(q, k)[0].sum().backward()
    _equal(rope.rotate(q, k)[0], expected)


def _equal(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.parametrize("limit", [2 * 300 * 8 * 32, rotation_cache.LIMIT_BYTES])
def test_threads_that_come_at_once_get_what_is_right(monkeypatch, limit):
    monkeypatch.setattr(rotation_cache, "LIMIT_BYTES", limit)
    lengths = range(260, 300)
    inputs = {length: _q_k(length, length) for length in lengths}
    expected = {length: RoPE(16).at(torch.arange(length)).apply(inputs[length][0]) for length in lengths}
    lasting = RoPE(16)

    def turn(length):
        rope = lasting if length % 2 else RoPE(16)  # encodings come and go
        return rope.rotate(*inputs[length])[0]

    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            for length, turned in zip(lengths, pool.map(turn, lengths), strict=True):
                _equal(turned, expected[length])
    del lasting
    assert not rotation_cache._cache


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_finds_and_adds():
    rope = RoPE(16)
    rope.rotate(*_q_k())
    child = os.fork()
    if not child:
        found = (
            rope.rotate(*_q_k())[0].isfinite().all() and rope.rotate(*_q_k(300, 300))[0].isfinite().all()
        )
        os._exit(0 if found and _lengths() == [300] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert _lengths() == [256]


def test_a_captured_graph_computes_its_own(monkeypatch):
    monkeypatch.setattr(rotation_cache, "is_captured", lambda device: True)
    RoPE(16).rotate(*_q_k())
    assert not rotation_cache._cache


def test_a_rotation_on_meta_is_not_kept():
    RoPE(16).rotate(*(x.to("meta") for x in _q_k()))
    assert not rotation_cache._cache


@dataclasses.dataclass(frozen=True)
class _Uncompared(Scaling):
    factor: float = dataclasses.field(compare=False)

    def inv_freq(self, base, dim, lengths=None, device=None):
        return Linear(self.factor).inv_freq(base, dim, lengths, device)


@dataclasses.dataclass(frozen=True)
class _Listed(_Uncompared):
    factors: list[float] = dataclasses.field(default_factory=list)


class _Derived(scaling.Linear):
    pass


@pytest.mark.parametrize("own", [_Uncompared, _Listed, _Derived])
def test_of_a_scaling_of_ones_own_nothing_is_kept(own):
    q, k = _q_k()
    for factor in (1.0, 4.0):
        expected = RoPE(16, scaling=Linear(factor)).at(torch.arange(256)).apply(q)
        _equal(RoPE(16, scaling=own(factor)).rotate(q, k)[0], expected)
    assert not rotation_cache._cache


def test_scalings_of_ours_are_kept():
    rules = (
        Linear(2),
        scaling.NTK(2),
        scaling.YaRN(2, 64),
        scaling.Llama3(2, 1, 4, 64),
        scaling.Proportional(0.5),
    )
    ropes = [RoPE(16, scaling=rule) for rule in rules]
    for rope in ropes:
        rope.rotate(*_q_k())
    assert len(rotation_cache._cache) == 5
