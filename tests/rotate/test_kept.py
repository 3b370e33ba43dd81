"""Rotations at positions in order are computed once, and nothing else about them changes."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from ordinate import RoPE, scaling
from ordinate.rotate import kept
from ordinate.scaling import Linear, Scaling


@pytest.fixture(autouse=True)
def _nothing_kept():
    kept._kept.clear()
    yield
    kept._kept.clear()


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
    for encoding in (RoPE(16), RoPE(16), RoPE(16, sections=(2, 3, 3))):
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
    RoPE(16).rotate(q, k)
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
    RoPE(16).rotate(*_q_k())  # the same number of queries, elsewhere
    q_turned, k_turned = RoPE(16).rotate(q, k)
    rope = RoPE(16)
    torch.testing.assert_close(q_turned, rope.at(torch.arange(444, 700)).apply(q), rtol=0, atol=0)
    torch.testing.assert_close(k_turned, rope.at(torch.arange(700)).apply(k), rtol=0, atol=0)


def test_what_was_kept_in_inference_serves_training():
    q, k = _q_k()
    with torch.inference_mode():
        RoPE(16).rotate(q, k)
    q.requires_grad_()
    RoPE(16).rotate(q, k)[0].sum().backward()
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
    assert not kept._kept


def test_tokens_one_at_a_time_are_not_kept():
    for length in range(300, 310):
        RoPE(16).rotate(*_q_k(1, length))
    assert len(kept._kept) == 10  # of the keys; of the queries none
    assert all(rotation.angles.shape[1] >= 300 for rotation in kept._kept.values())


def test_what_is_kept_is_bounded(monkeypatch):
    monkeypatch.setattr(kept, "LIMIT_BYTES", 3 * 420 * 8 * 32)
    for length in range(400, 420):
        q, k = _q_k(length, length)
        RoPE(16).rotate(q, k)
        RoPE(16).rotate(q.double(), k.double())  # has tables of its own
        held = [
            r.angles.nbytes + sum(t.nbytes for pair in r._tables.values() for t in pair)
            for r in kept._kept.values()
        ]
        assert sum(held) <= kept.LIMIT_BYTES
    assert [rotation.angles.shape[1] for rotation in kept._kept.values()] == [417, 418, 419]
    RoPE(16).rotate(*_q_k(417, 417))  # used again, so no longer the oldest
    RoPE(16).rotate(*_q_k(420, 420))
    assert [rotation.angles.shape[1] for rotation in kept._kept.values()] == [419, 417, 420]
    RoPE(16).rotate(*_q_k(5000, 5000))  # too long for the limit
    assert [rotation.angles.shape[1] for rotation in kept._kept.values()] == [419, 417, 420]


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
    kept._kept.clear()
    torch.testing.assert_close(torch.func.functionalize(rope.rotate)(q, k)[0], expected)
    assert not kept._kept
    _equal(rope.rotate(q, k)[0], expected)
    torch.func.functionalize(rope.rotate)(q, k)
    q.requires_grad_()
    rope.rotate(q, k)[0].sum().backward()
    _equal(rope.rotate(q, k)[0], expected)


def _equal(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_threads_that_come_at_once_get_what_is_right(monkeypatch):
    monkeypatch.setattr(kept, "LIMIT_BYTES", 2 * 300 * 8 * 32)
    lengths = range(260, 300)
    inputs = {length: _q_k(length, length) for length in lengths}
    expected = {length: RoPE(16).at(torch.arange(length)).apply(inputs[length][0]) for length in lengths}
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            found = pool.map(lambda length: RoPE(16).rotate(*inputs[length])[0], lengths)
            for length, turned in zip(lengths, found, strict=True):
                _equal(turned, expected[length])


def test_a_captured_graph_computes_its_own(monkeypatch):
    monkeypatch.setattr(kept, "_capturing", lambda device: True)
    RoPE(16).rotate(*_q_k())
    assert not kept._kept


def test_a_rotation_on_meta_is_not_kept():
    RoPE(16).rotate(*(x.to("meta") for x in _q_k()))
    assert not kept._kept


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
    assert not kept._kept


def test_scalings_of_ours_are_kept():
    for ours in (
        Linear(2),
        scaling.NTK(2),
        scaling.YaRN(2, 64),
        scaling.Llama3(2, 1, 4, 64),
        scaling.Proportional(0.5),
    ):
        RoPE(16, scaling=ours).rotate(*_q_k())
    assert len(kept._kept) == 5
