"""Dropout: the right share is dropped, the rest makes up for it, and the backward pass drops the same."""

from __future__ import annotations

import math

import pytest
import torch

import ordinate
from ordinate.attending import work

IMPLEMENTATIONS = ["reference", "chunked", "sdpa"]


@pytest.fixture(autouse=True)
def _several_blocks(monkeypatch):
    monkeypatch.setitem(work._LOGITS_PER_BLOCK, "cpu", 1)


def weights(impl: str, dropout_p: float, length: int = 64) -> torch.Tensor:
    """Attention weights after dropout: with the identity for values, that is the output itself."""
    generator = torch.Generator().manual_seed(3)
    q, k = torch.randn(2, 2, 4, length, 8, generator=generator, dtype=torch.float64)
    v = torch.eye(length, dtype=torch.float64).expand(2, 4, length, length)
    return ordinate.attention(q, k, v, causal=True, dropout_p=dropout_p, impl=impl)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_a_weight_is_dropped_or_divided_by_what_is_kept(impl):
    full, dropped = weights(impl, 0.0), weights(impl, 0.3)
    kept = dropped != 0
    torch.testing.assert_close(dropped, torch.where(kept, full / 0.7, torch.zeros_like(full)))


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_the_share_dropped_is_the_probability_asked_for(impl):
    seen = weights(impl, 0.0) != 0
    share = (weights(impl, 0.3)[seen] != 0).double().mean()
    deviation = math.sqrt(0.3 * 0.7 / int(seen.sum()))
    torch.testing.assert_close(share, torch.tensor(0.7).double(), atol=5 * deviation, rtol=0.0)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_no_two_rows_heads_or_blocks_drop_the_same_keys(impl):
    kept = (weights(impl, 0.5)[:, :, 32:, :32] != 0).flatten(0, 2).double()
    # Two independent rows of 32 agree in 16 places, give or take 3; the same row would agree in 32.
    agreement = kept @ kept.T + (1 - kept) @ (1 - kept).T
    agreement.fill_diagonal_(16)
    torch.testing.assert_close(agreement, torch.full_like(agreement, 16), atol=15, rtol=0.0)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_every_call_drops_anew_and_a_seed_repeats_it(impl):
    torch.manual_seed(11)
    first, second = weights(impl, 0.5), weights(impl, 0.5)
    torch.manual_seed(11)
    torch.testing.assert_close(weights(impl, 0.5), first, rtol=0.0, atol=0.0)
    assert int((first != 0).ne(second != 0).sum()) > 0


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("impl", ["reference", "chunked"])
def test_the_backward_pass_drops_what_the_forward_pass_dropped(impl, values):
    shaw = ordinate.Shaw(4, 3, values=values).double()
    tensors = [torch.randn(1, 2, 19, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]

    def attend(q, k, v, *tables):
        torch.manual_seed(5)
        return ordinate.attention(q, k, v, shaw, causal=True, dropout_p=0.4, impl=impl)

    assert torch.autograd.gradcheck(attend, (*tensors, *shaw.parameters()), fast_mode=True)


def test_sdpa_backward_drops_what_its_forward_dropped():
    tensors = [torch.randn(1, 2, 19, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]

    def attend(q, k, v):
        torch.manual_seed(5)
        return ordinate.attention(q, k, v, causal=True, dropout_p=0.4, impl="sdpa")

    assert torch.autograd.gradcheck(attend, tensors, fast_mode=True)
