"""Few queries of grouped heads: one program reads a key head once, for all the query heads that share it."""

from __future__ import annotations

import pytest
import torch
from fused_cases import (
    BIASES,
    MASKS,
    POSITIONS,
    Case,
    Sizes,
    assert_at_most_twice_as_wrong,
    check,
    plain,
)

import ordinate

# Triton reads the source of its kernels, which run-time shape checks would have wrapped.
pytestmark = [
    pytest.mark.plain,
    # NumPy tells of the weights of hidden keys, which may be anything before they become 0.
    pytest.mark.filterwarnings("ignore:overflow encountered in exp2"),
]


def _sizes(groups: int, q_len: int, *, kv_heads: int = 2, batch: int = 2, k_len: int = 75) -> Sizes:
    heads = groups * kv_heads
    return Sizes(q_len, k_len, batch=batch, heads=heads, kv_heads=kv_heads, head_dim=16, v_dim=24)


def _plan():
    """How the one forward pass since the last test was launched."""
    from ordinate.attending.fused import plans as fused_plans  # not while collecting

    (plan,) = (p for p in fused_plans._plans.values() if isinstance(p, fused_plans.ForwardPlan))
    return plan


def _turns(kinds, turn: int) -> str:
    return list(kinds)[turn % len(kinds)]


@torch.no_grad()
def _check_outputs(case: Case) -> None:
    """Against `reference` in float64. The backward pass knows nothing of how the forward pass went."""
    leaves = case.leaves()
    double = {name: leaf.double() for name, leaf in leaves.items()}
    found = ordinate.attention(**case.arguments(leaves), return_lse=True, impl="fused")
    exact = ordinate.attention(**case.arguments(double), return_lse=True, impl="reference")
    rough = plain(case.arguments(leaves), case.dtype)
    named = (dict(zip(("out", "lse"), x, strict=True)) for x in (found, exact, rough))
    assert_at_most_twice_as_wrong(*named)


@pytest.mark.usefixtures("_poisoned_memory")
@pytest.mark.parametrize("q_len", [1, 2, 3, 4])
@pytest.mark.parametrize("groups", [1, 2, 4, 8])
def test_rows_of_a_tile_are_the_heads_of_a_group(groups, q_len, device):
    sizes = _sizes(groups, q_len)
    _check_outputs(Case("sum_of_all", _turns(MASKS, groups + q_len), sizes=sizes, device=str(device)))
    packed = groups > 1 and groups * q_len <= 16
    plan = _plan()
    assert packed == plan.attend.arguments["KIND"].PACKED
    assert plan.attend.grid[0] == sizes.batch * (sizes.kv_heads if packed else sizes.heads)


@pytest.mark.usefixtures("_poisoned_memory")
@pytest.mark.parametrize("bias", BIASES)
def test_every_row_has_the_bias_of_its_head(bias, device):
    turn = list(BIASES).index(bias)
    case = Case(
        bias, _turns(MASKS, turn), _turns(POSITIONS, turn), _sizes(3, 1 + turn % 5), device=str(device)
    )
    _check_outputs(case)
    assert _plan().attend.arguments["KIND"].PACKED


@pytest.mark.slow
@pytest.mark.usefixtures("_poisoned_memory")
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("bias", BIASES)
def test_every_row_has_the_bias_of_its_head_under_every_mask(bias, mask, device):
    turn = list(BIASES).index(bias) + 3 * list(MASKS).index(mask)
    case = Case(bias, mask, _turns(POSITIONS, turn), _sizes(4, 1 + turn % 4), device=str(device))
    _check_outputs(case)
    assert _plan().attend.arguments["KIND"].PACKED


@pytest.mark.slow
@pytest.mark.usefixtures("_poisoned_memory")
def test_keys_of_many_tiles_are_shared_out_among_programs(device):
    check(Case("sum_of_all", "causal", sizes=_sizes(4, 2, kv_heads=1, k_len=600), device=str(device)))
    plan = _plan()
    assert plan.attend.arguments["KIND"].PACKED
    assert plan.shares > 1


@pytest.mark.usefixtures("_poisoned_memory")
def test_softcap_and_heads_inside_of_tokens(device):
    case = Case("clipped", "causal", sizes=_sizes(4, 3), device=str(device))
    leaves = {
        name: leaf.detach().transpose(1, 2).contiguous().transpose(1, 2) if name in "qkv" else leaf
        for name, leaf in case.leaves().items()
    }
    arguments = case.arguments(leaves, softcap=0.7)
    found, expected = (ordinate.attention(**arguments, impl=impl) for impl in ("fused", "reference"))
    assert found.transpose(1, 2).is_contiguous()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("groups", [2, 3, 8])
@pytest.mark.parametrize("q_len", [1, 2])
def test_packed_heads_drop_the_same_pairs_as_heads_alone(groups, q_len, device, monkeypatch):
    from ordinate.attending.fused import plans as fused_plans  # not while collecting

    sizes = _sizes(groups, q_len, k_len=40)
    case = Case("sum_of_all", "causal", sizes=sizes, device=str(device))
    # With the identity for values the weights after dropout are the output itself.
    eye = torch.eye(40, device=device).expand(sizes.batch, sizes.kv_heads, -1, -1)
    arguments = case.arguments({**case.leaves(), "v": eye}, dropout_p=0.4)

    def dropped():
        fused_plans._plans.clear()
        torch.manual_seed(11)
        weights = ordinate.attention(**arguments, impl="fused").detach()
        return weights, _plan().attend.arguments["KIND"].PACKED

    packed, is_packed = dropped()
    monkeypatch.setattr(fused_plans, "_packs", lambda *_: False)
    alone, alone_is_packed = dropped()
    assert (is_packed, alone_is_packed) == (True, False)
    assert 0.3 < (packed != 0).double().mean() < 0.9
    torch.testing.assert_close(packed != 0, alone != 0)
    torch.testing.assert_close(packed, alone, rtol=1e-5, atol=1e-7)
