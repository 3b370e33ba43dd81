"""Rotations at positions in order are computed once, and nothing else about them changes."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from ordinate import RoPE, scaling
from ordinate.rotate import kept
from ordinate.scaling import Linear, Scaling


@pytest.fixture(autouse=True)
def made(monkeypatch):
    """How many positions were turned into angles."""
    counts: list[int] = []
    at = RoPE._at

    def counted(self, positions, lengths):
        counts.append(positions.shape[-1])
        return at(self, positions, lengths)

    monkeypatch.setattr(RoPE, "_at", counted)
    kept._kept.clear()
    yield counts
    kept._kept.clear()


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


def test_a_scaling_that_looks_at_lengths_or_may_change_is_not_kept(made):
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
    monkeypatch.setattr(kept, "LIMIT_BYTES", 3 * 400 * 8 * 16)
    for length in range(400, 420):
        RoPE(16).rotate(*_q_k(length, length))
    assert len(kept._kept) == 2  # a little longer than what the limit was made for
    RoPE(16).rotate(*_q_k(5000, 5000))
    assert [rotation.angles.shape[1] for rotation in kept._kept.values()] == [5000]


def test_a_captured_graph_computes_its_own(monkeypatch):
    monkeypatch.setattr(kept, "_capturing", lambda device: True)
    RoPE(16).rotate(*_q_k())
    assert not kept._kept


def test_a_rotation_on_meta_is_not_kept():
    RoPE(16).rotate(*(x.to("meta") for x in _q_k()))
    assert not kept._kept


def test_every_scaling_of_ours_is_frozen():
    for name in ("Linear", "NTK", "YaRN", "Llama3", "Proportional"):
        assert dataclasses.is_dataclass(getattr(scaling, name))
        assert getattr(scaling, name).__dataclass_params__.frozen
