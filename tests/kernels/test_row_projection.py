"""Rows of numbers from features and a table: the kernels against float64, forward and both gradients."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="the kernels are Triton's")

# Triton reads the source of its kernels, which run-time shape checks would have wrapped.
pytestmark = pytest.mark.plain

SHAPES = {  # batch, heads, tokens, rank, entries, tables
    "one table for all heads": (2, 3, 65, 16, 33, 1),
    "a table for each head": (2, 3, 65, 16, 33, 3),
    "one entry of one number": (1, 1, 1, 1, 1, 1),
    "more entries than a tile has": (1, 2, 70, 40, 130, 1),
    "many tokens": (1, 1, 600, 8, 5, 1),
    "a wide head": (1, 2, 33, 200, 9, 2),
}


def _leaves(shape: str, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    batch, heads, tokens, rank, entries, tables = SHAPES[shape]
    # Heads inside of tokens, as models hold them.
    features = torch.randn(batch, tokens, heads, rank).to(device, dtype).transpose(1, 2)
    return features.requires_grad_(), torch.randn(tables, entries, rank, device=device).requires_grad_()


@pytest.fixture
def fused_rows():
    from ordinate.attending.fused import (
        rows as fused_rows,  # not while collecting, when shapes may be checked
    )

    return fused_rows


def _exact(features, table, factor):
    return factor * features.double() @ table.double().transpose(-1, -2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_and_their_gradients_are_those_of_a_product_in_float64(shape, dtype, device, fused_rows):
    features, table = _leaves(shape, dtype, device)
    rows, exact = fused_rows.projected(features, table, 0.3), _exact(features, table, 0.3)
    assert rows.dtype == torch.float32
    torch.testing.assert_close(rows.double(), exact, rtol=1e-5, atol=1e-5)
    pull = torch.randn_like(rows)
    found = torch.autograd.grad(rows, (features, table), pull)
    wanted = torch.autograd.grad(exact, (features, table), pull.double())
    tolerance = {"rtol": 1e-5 if dtype == torch.float32 else 1e-3, "atol": 1e-4}
    torch.testing.assert_close(found[0].double(), wanted[0].double(), **tolerance)
    torch.testing.assert_close(found[1].double(), wanted[1].double(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("place", [0, 1])
def test_a_gradient_that_nobody_asks_for_is_not_computed(place, device, fused_rows, monkeypatch):
    leaves = _leaves("one table for all heads", torch.float32, device)
    leaves[1 - place].requires_grad_(False)
    launched = []
    launch = fused_rows.Step.__call__
    monkeypatch.setattr(
        fused_rows.Step, "__call__",
        lambda step, **tensors: launched.append(step.kernel.__name__) or launch(step, **tensors),
    )  # fmt: skip
    fused_rows.projected(*leaves, 1.0).sum().backward()
    assert launched == [
        "_project_kernel",
        ["_features_gradient_kernel", "_table_gradient_kernel"][place],
    ]
    assert leaves[place].grad is not None
    assert leaves[1 - place].grad is None


@pytest.mark.parametrize("empty", ["batch", "tokens"])
def test_nothing_gives_nothing(empty, device, fused_rows):
    features = torch.zeros(
        0 if empty == "batch" else 1, 2, 0 if empty == "tokens" else 5, 8, device=device
    )
    table = torch.randn(1, 3, 8, device=device, requires_grad=True)
    rows = fused_rows.projected(features.requires_grad_(), table, 1.0)
    assert rows.shape == (*features.shape[:3], 3)
    rows.sum().backward()
    assert not table.grad.any()


@pytest.mark.parametrize("shape", ["one table for all heads", "a table for each head"])
@pytest.mark.usefixtures("fused_rows")  # registers them
def test_the_operators_are_sound(shape, device):
    arguments = (*_leaves(shape, torch.float32, device), 0.5)
    torch.library.opcheck(torch.ops.ordinate.row_projection.default, arguments)
