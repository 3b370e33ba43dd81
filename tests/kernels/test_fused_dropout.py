"""Dropout by the fused kernels: both passes drop the same weights, as many as were asked for."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("triton", reason="the kernels are Triton's")

import triton
import triton.language as tl
from fused_cases import Case, Sizes, assert_at_most_twice_as_wrong, plain, results
from torch import Tensor

import ordinate
from ordinate.kernels.tiles import dropout_factors

# Triton reads the source of its kernels, which run-time shape checks would have wrapped.
pytestmark = [
    pytest.mark.plain,
    # NumPy tells of the weights of hidden keys, which may be anything before they become 0.
    pytest.mark.filterwarnings("ignore:overflow encountered in exp2"),
]


def _dropped_weights(case: Case, leaves: dict, p: float) -> Tensor:
    """With the identity for values the weights after dropout are the output itself."""
    s = case.sizes
    eye = torch.eye(s.k_len, device=case.device).expand(s.batch, s.kv_heads, s.k_len, s.k_len)
    arguments = case.arguments({**leaves, "v": eye}, dropout_p=p)
    torch.manual_seed(11)
    return ordinate.attention(**arguments, impl="fused").detach()


@pytest.mark.parametrize(
    ("bias", "positions"), [("sum_of_all", "aligned"), ("sum_of_all", "shuffled"), ("line", "aligned")]
)
def test_the_backward_pass_drops_what_the_forward_pass_dropped(bias, positions, device):
    sizes = Sizes(35, 39, batch=1, heads=2, kv_heads=1, v_dim=8)
    case, p = Case(bias, "causal", positions, sizes, device=str(device)), 0.4
    leaves = case.leaves()
    full, dropped = (_dropped_weights(case, leaves, p) for p in (0.0, p))
    keep = torch.where(dropped != 0, 1 / (1 - p), 0.0)
    torch.testing.assert_close(dropped, full * keep, rtol=1e-5, atol=1e-7)

    def dense(dtype):
        moved = {name: leaf.detach().to(dtype).requires_grad_() for name, leaf in leaves.items()}
        eye = torch.eye(sizes.k_len, device=device, dtype=dtype).expand(1, 1, -1, -1)
        weights, lse = plain(case.arguments({**moved, "v": eye}), dtype)
        return results(moved, ((weights * keep) @ moved["v"].repeat_interleave(2, dim=1), lse))

    torch.manual_seed(11)
    outputs = ordinate.attention(
        **case.arguments(leaves, dropout_p=p), return_lse=True, impl="fused"
    )  # fmt: skip
    found = results(leaves, outputs)
    assert_at_most_twice_as_wrong(found, dense(torch.float64), dense(torch.float32))


def test_the_share_dropped_is_the_probability_asked_for_and_every_row_drops_its_own(device):
    case = Case("none", "full", sizes=Sizes(40, 64, batch=2, heads=2, kv_heads=1), device=str(device))
    kept = (_dropped_weights(case, case.leaves(), 0.3) != 0).double().cpu()
    deviation = math.sqrt(0.3 * 0.7 / kept.numel())
    torch.testing.assert_close(kept.mean().item(), 0.7, atol=5 * deviation, rtol=0.0)
    # Two independent rows of 64 agree in 37, give or take 4; the same row would agree in 64.
    rows = kept.flatten(0, 2)
    agreement = rows @ rows.T + (1 - rows) @ (1 - rows).T
    agreement.fill_diagonal_(37)
    torch.testing.assert_close(agreement, torch.full_like(agreement, 37), atol=24, rtol=0.0)


@triton.jit
def _kept_kernel(out_ptr, step, N: tl.constexpr):
    qi, kj = tl.arange(0, N) * step, tl.arange(0, N)
    multipliers = dropout_factors(qi[:, None], kj[None, :], 5, 0.5)
    tl.store(out_ptr + tl.arange(0, N)[:, None] * N + kj[None, :], multipliers)


@pytest.mark.parametrize("step", [1, 2**13, 2**26])
def test_queries_however_far_apart_drop_keys_of_their_own(step, device):
    """There are more pairs than numbers of 32 bits from 65,536 queries and keys on."""
    n = 32
    out = torch.empty(n, n, device=device)
    _kept_kernel[(1,)](out, step, N=n)
    agreement = (out[:, None] == out[None]).double().mean(-1).fill_diagonal_(0.5)
    torch.testing.assert_close(agreement, torch.full_like(agreement, 0.5), atol=0.45, rtol=0.0)
