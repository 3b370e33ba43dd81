"""A rotation applied to q and k together, out of place and in place, with its tables made once."""

from __future__ import annotations

import pytest
import torch

from ordinate import RoPE


def _q_k(dtype=torch.float32):
    return torch.randn(2, 4, 5, 16).to(dtype), torch.randn(2, 2, 5, 16).to(dtype)


def _assert_equal(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_both_in_place_equal_each_out_of_place(dtype, layout):
    q, k = _q_k(dtype)
    encoding = RoPE(16, rotary_dim=8, layout=layout)
    here, there = encoding.at(torch.arange(5)), encoding.at(torch.arange(5) + 100)
    expected = here.apply(q), there.apply(k)
    before = q.clone(), k.clone()
    for turned, alone in zip(here.apply_both(q, k, there), expected, strict=True):
        _assert_equal(turned, alone)
    for now, then in zip((q, k), before, strict=True):
        _assert_equal(now, then)
    results = here.apply_both(q, k, there, inplace=True)
    assert results[0] is q
    assert results[1] is k
    for turned, alone in zip((q, k), expected, strict=True):
        _assert_equal(turned, alone)


@pytest.mark.parametrize("name", ["q", "k"])
def test_in_place_is_refused_where_a_gradient_is_needed(name):
    q, k = _q_k()
    {"q": q, "k": k}[name].requires_grad_()
    rotation = RoPE(16).at(torch.arange(5))
    with pytest.raises(ValueError, match=f"inplace must be False where {name} requires grad, got True"):
        rotation.apply_both(q, k, inplace=True)
    with torch.no_grad():
        rotation.apply_both(q, k, inplace=True)


def test_in_place_is_refused_where_memory_is_shared():
    q, k = _q_k()
    rotation = RoPE(16).at(torch.arange(5))
    with pytest.raises(ValueError, match=r"k must not be an expanded view .*, got \(80, 0, 16, 1\)"):
        rotation.apply_both(q, k[:, :1].clone().expand(-1, 2, -1, -1), inplace=True)
    with pytest.raises(ValueError, match=r"k must be another tensor than q .*, got q twice"):
        rotation.apply_both(q, q, inplace=True)


def test_tables_are_made_once_and_serve_training_after_inference():
    rotation = RoPE(16).at(torch.arange(5))
    with torch.inference_mode():
        first = rotation.cos_sin(torch.float32)
    assert rotation.cos_sin(torch.float32) is first
    assert rotation.cos_sin(torch.float64)[0].dtype == torch.float64
    q, k = (x.requires_grad_() for x in _q_k())
    gradient = torch.randn_like(q)
    rotation.apply_both(q, k)[0].backward(gradient)
    back = RoPE(16).at(-torch.arange(5))
    torch.testing.assert_close(q.grad, back.apply(gradient), rtol=0, atol=1e-6)
