"""The gradients by diagonals, tile by tile, against autograd through the reference."""

from __future__ import annotations

import pytest
import torch

import ordinate
from ordinate.attending import diagonal
from ordinate.positions import Places

MASKS = {
    "open": {},
    "causal": {"causal": True},
    "causal window": {"causal": True, "window": 9},
    "window": {"window": 5},
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize(("q_len", "k_len"), [(37, 37), (11, 90), (40, 13), (1, 70)])
@pytest.mark.parametrize("kv_heads", [1, 3, 6])
def test_gradients_of_many_ragged_tiles_equal_the_reference(monkeypatch, mask, q_len, k_len, kv_heads):
    # Tiles of 8 queries and 64 keys, the smallest width, so that every kind of edge occurs.
    monkeypatch.setattr(diagonal, "_ROWS_PER_TILE", 8)
    monkeypatch.setattr(diagonal, "_LOGITS_PER_TILE", {"cpu": 1})
    encoding = ordinate.Combined(
        ordinate.T5Bias(6, max_distance=20, bidirectional=True),
        ordinate.ALiBi(6, symmetric=True, trainable=True),
    ).double()
    torch.nn.init.normal_(encoding.encodings[0].weight)
    q = torch.randn(2, 6, q_len, 4, dtype=torch.float64, requires_grad=True)
    k = torch.randn(2, kv_heads, k_len, 4, dtype=torch.float64, requires_grad=True)
    v = torch.randn(2, kv_heads, k_len, 5, dtype=torch.float64, requires_grad=True)
    bias = encoding.bias(q, k)
    assert isinstance(bias, (ordinate.DistanceBias, ordinate.SumBias))
    inputs = [q, k, v, *encoding.parameters()]
    grads = []
    for impl in ("reference", "chunked"):
        out, lse = ordinate.attention(q, k, v, encoding, impl=impl, return_lse=True, **mask)
        seen = torch.where(lse.isinf(), 0, lse)
        torch.manual_seed(1)
        total = (out * torch.randn_like(out)).sum() + (seen * torch.randn_like(seen)).sum()
        grads.append(torch.autograd.grad(total, inputs))
    for got, expected in zip(grads[1], grads[0], strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-11)


def test_a_scaled_bias_and_positions_of_its_own_for_each_row_reach_the_table():
    table = torch.randn(3, 9, dtype=torch.float64, requires_grad=True)
    start = torch.tensor([[5], [-3]])
    positions = torch.arange(21) + start
    q, k, v = (torch.randn(2, 3, 21, 4, dtype=torch.float64) for _ in range(3))
    bias = ordinate.DistanceBias(table, Places.at(positions, positions.flip(0)), lo=-4, scaled=True)
    grads = []
    for impl in ("reference", "chunked"):
        out = ordinate.attention(q, k, v, bias=bias, impl=impl)
        weight = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view_as(out)
        grads.append(torch.autograd.grad((out * weight).sum(), table)[0])
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-10, atol=1e-12)


def test_weights_near_the_smallest_number_are_dropped_and_the_gradients_stay_right():
    slopes = torch.tensor([1.0, 0.25], requires_grad=True)
    q, k, v = (torch.randn(1, 2, 400, 8) for _ in range(3))
    positions = torch.arange(400)[None]
    grads = []
    for dtype, impl in ((torch.float64, "reference"), (torch.float32, "chunked")):
        bias = ordinate.LinearBias(slopes.to(dtype), Places.at(positions, positions))
        given = [x.to(dtype).requires_grad_() for x in (q, k, v)]
        out = ordinate.attention(*given, bias=bias, causal=True, impl=impl)
        weight = torch.linspace(-1, 1, out.numel(), dtype=dtype).view_as(out)
        grads.append(torch.autograd.grad((out * weight).sum(), [*given, slopes]))
    for got, expected in zip(grads[1], grads[0], strict=True):
        scale = float(expected.abs().max())
        torch.testing.assert_close(got.double(), expected.double(), rtol=0, atol=2**-18 * scale)
