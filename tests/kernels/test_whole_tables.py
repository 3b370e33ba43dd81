"""Tables along whole diagonals of tiles: with every distance, beside keys that are not there, over packed sequences."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="the kernels are Triton's")

from fused_cases import Case, Sizes, check

import ordinate
from ordinate.positions import Places

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
@pytest.mark.parametrize(
    ("q_len", "more"),
    [
        (50, 1),
        (150, 1),
        (150, 15),
        *(pytest.param(150, more, marks=pytest.mark.slow) for more in (5, -10)),
    ],
)
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
    table = torch.randn(1, 50 - lo, device=device, requires_grad=True)
    bias = ordinate.DistanceBias(table, Places.in_order(50, 50, device=device), lo=lo)
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


@pytest.mark.parametrize(
    "window", [7, 33, *(pytest.param(w, marks=pytest.mark.slow) for w in (1, 16, 17, 40, 200))]
)
@pytest.mark.parametrize("mask", ["window", "causal_window"])
@pytest.mark.parametrize(("q_len", "k_len"), [(70, 151), (151, 70)])
def test_a_windows_edge_may_lie_anywhere_in_a_diagonal_of_tiles(q_len, k_len, mask, window, device):
    lo = 1 - q_len
    q, k, v = (torch.randn(1, 1, length, 16) for length in (q_len, k_len, k_len))
    table = torch.randn(1, k_len - lo, requires_grad=True, device=device)
    bias = ordinate.DistanceBias(table, Places.in_order(q_len, k_len, device=device), lo=lo)
    pull = torch.randn(1, 1, q_len, 16).to(device)
    found, wanted = (
        torch.autograd.grad(
            ordinate.attention(
                *(x.to(device) for x in (q, k, v)), bias=bias, causal=mask == "causal_window", window=window, impl=impl
            ),
            table,
            pull,
        )[0]
        for impl in ("fused", "reference")
    )  # fmt: skip
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("causal", "most"), [(True, 3), (False, 6)])
def test_diagonals_that_a_window_hides_get_no_programs(causal, most, device, monkeypatch):
    from ordinate.kernels.launch import Step

    grids = []
    launch = Step.__call__

    def noted(step, **tensors):
        if step.kernel.__name__ == "_table_grad_kernel":
            grids.append(step.grid)
        launch(step, **tensors)

    monkeypatch.setattr(Step, "__call__", noted)
    q, k, v = (torch.randn(1, 1, 320, 16, device=device) for _ in range(3))
    table = torch.randn(1, 639, device=device, requires_grad=True)
    bias = ordinate.DistanceBias(table, Places.in_order(320, 320, device=device), lo=-319)
    out = ordinate.attention(q, k, v, bias=bias, causal=causal, window=64, impl="fused")
    out.sum().backward()
    ((_, diagonals, _),) = grids
    assert diagonals <= most
