"""Tables along whole diagonals of tiles: with every distance, beside keys that are not there, over packed sequences."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="the kernels are Triton's")

from fused_cases import Case, Sizes, check

import ordinate

# Triton reads the source of its kernels, which run-time shape checks would have wrapped.
pytestmark = [
    pytest.mark.plain,
    # NumPy tells of the weights of hidden keys, which may be anything before they become 0.
    pytest.mark.filterwarnings("ignore:overflow encountered in exp2"),
]


@pytest.mark.usefixtures("_poisoned_memory")
@pytest.mark.parametrize(
    ("q_len", "k_len"), [(64, 64), (64, 80), (96, 32), (70, 151), (100, 93), (61, 98)]
)
@pytest.mark.parametrize("mask", ["full", "causal", "window", "causal_window"])
@pytest.mark.parametrize(
    "bias", ["every_distance", pytest.param("sum_of_every_distance", marks=pytest.mark.slow)]
)
def test_tables_with_every_distance_where_most_tiles_are_full(bias, mask, q_len, k_len, device):
    check(Case(bias, mask, sizes=Sizes(q_len, k_len, heads=1, kv_heads=1), device=str(device)))


# A program goes along a diagonal for an eighth of the queries at least: several tiles of 16 from 129 on.
@pytest.mark.usefixtures("_poisoned_memory")
@pytest.mark.parametrize(("q_len", "more"), [(50, 1), (150, 1), (150, 5), (150, 15), (150, -10)])
@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize("bias", ["every_distance", "clipped"])
def test_tables_where_diagonals_of_tiles_begin_before_the_first_key(bias, mask, q_len, more, device):
    sizes = Sizes(q_len, q_len + more, heads=1, kv_heads=1)
    check(Case(bias, mask, sizes=sizes, device=str(device)))


@pytest.mark.parametrize("lo", [0, -30])
def test_tables_where_a_causal_mask_counts_from_each_sequence_and_the_bias_from_the_first(lo, device):
    """Of sequences behind one another, a query may see keys that lie in its future as indices go."""
    q, k, v = (torch.randn(50, 1, 16, device=device) for _ in range(3))
    cu_q, cu_k = torch.tensor([0, 2, 50], device=device), torch.tensor([0, 40, 50], device=device)
    at = torch.arange(50, device=device)[None]
    table = torch.randn(1, 50 - lo, device=device, requires_grad=True)
    bias = ordinate.DistanceBias(table, at, at, lo=lo, aligned=True)
    pull = torch.randn(50, 1, 16, device=device)
    found, wanted = (
        torch.autograd.grad(
            ordinate.attention_varlen(q, k, v, cu_q, cu_k, bias=bias, causal=True, impl=impl),
            table,
            pull,
        )[0]
        for impl in ("fused", "reference")
    )
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
