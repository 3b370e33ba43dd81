"""Converting projection weights between the layouts: exact, invertible, and the same attention."""

from __future__ import annotations

import pytest
import torch

from ordinate import MultiHeadAttention, RoPE, to_half, to_interleaved


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(8, None), (8, 4), (6, 2), (2, None), (64, 32)])
def test_the_conversions_undo_each_other_bit_for_bit(head_dim: int, rotary_dim: int | None):
    for shape in ((3 * head_dim, 5), (3 * head_dim,)):
        weight = torch.randn(shape)
        original = weight.clone()
        options = {"head_dim": head_dim, "rotary_dim": rotary_dim}
        there_and_back = to_interleaved(to_half(weight, **options), **options)
        torch.testing.assert_close(there_and_back, original, rtol=0, atol=0)
        torch.testing.assert_close(weight, original, rtol=0, atol=0)


@pytest.mark.parametrize("rotary_dim", [None, 4])
def test_converted_weights_give_the_same_attention(rotary_dim: int | None):
    interleaved = RoPE(8, layout="interleaved", rotary_dim=rotary_dim)
    first = MultiHeadAttention(32, 4, 2, interleaved, bias=True).double()
    second = MultiHeadAttention(32, 4, 2, RoPE(8, rotary_dim=rotary_dim), bias=True).double()
    state = first.state_dict()
    for name in ("q_proj", "k_proj"):
        for kind in ("weight", "bias"):
            state[f"{name}.{kind}"] = to_half(state[f"{name}.{kind}"], head_dim=8, rotary_dim=rotary_dim)
    x = torch.randn(2, 9, 32, dtype=torch.float64)
    second.load_state_dict(first.state_dict())
    assert not torch.allclose(second(x), first(x))  # garbage, and without a word
    second.load_state_dict(state)
    torch.testing.assert_close(second(x), first(x), rtol=1e-12, atol=1e-12)


def test_meta_weights_become_hugging_faces_as_its_conversion_script_does():
    """view(heads, dim/2, 2, in).transpose(1, 2), the permutation of Llama's conversion."""
    weight = torch.randn(4 * 8, 16)
    theirs = weight.view(4, 4, 2, 16).transpose(1, 2).reshape(32, 16)
    torch.testing.assert_close(to_half(weight, head_dim=8), theirs, rtol=0, atol=0)
