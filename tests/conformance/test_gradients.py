"""Gradients agree with finite differences in float64, parameters included."""

from __future__ import annotations

import pytest
import torch

import ordinate

from .cases import Case, cases

# Row 0 counts from 0, row 1 does not count at all: both ways a bias is looked up.
POSITIONS = torch.tensor([[0, 1, 2, 3, 4], [7, 3, 3, 9, 1]])


def _parameters(encoding: ordinate.PositionEncoding) -> list[torch.Tensor]:
    return [parameter for parameter in encoding.parameters() if parameter.requires_grad]


def _gradcheck(function, *inputs: torch.Tensor, parameters: list[torch.Tensor]) -> None:
    """Parameters are inputs too: perturbed in place, they reach the module that holds them."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    # Random directions rather than every entry: the same verdict in a hundredth of the time.
    torch.autograd.gradcheck(
        lambda *args: function(*args[: len(inputs)]), (*leaves, *parameters), fast_mode=True
    )


@cases("embed")
def test_embed_passes_gradcheck(case: Case):
    encoding = case.build().double()
    _gradcheck(
        lambda x: encoding.embed(x, POSITIONS),
        case.x(5, torch.float64)[..., : case.d_model],
        parameters=_parameters(encoding),
    )


@cases("rotate")
def test_rotate_passes_gradcheck(case: Case):
    encoding, positions = case.build().double(), case.positions(POSITIONS)
    q, k, _ = case.qkv(5, torch.float64)
    _gradcheck(lambda q, k: encoding.rotate(q, k, positions, positions), q, k, parameters=[])


@cases("rotate", "bias")
@pytest.mark.parametrize("impl", ["reference", "chunked"])
def test_attention_passes_gradcheck(case: Case, impl: str):
    encoding, positions = case.build().double(), case.positions(POSITIONS)
    q, k, v = case.qkv(5, torch.float64)
    _gradcheck(
        lambda q, k, v: ordinate.attention(
            q, k, v, encoding, causal=True, impl=impl, q_positions=positions, k_positions=positions
        ),
        q, k, v, parameters=_parameters(encoding),
    )  # fmt: skip


@cases("rotate", "bias")
def test_the_logsumexp_has_gradients_too(case: Case):
    encoding = case.build().double()
    q, k, v = case.qkv(5, torch.float64)

    def lse(q, k, v):
        return ordinate.attention(q, k, v, encoding, causal=True, impl="chunked", return_lse=True)[1]

    _gradcheck(lse, q, k, v, parameters=[p for n, p in encoding.named_parameters() if "values" not in n])


@cases("bias", only=lambda case: bool(list(case.build().parameters())))
def test_every_parameter_receives_a_gradient(case: Case):
    encoding = case.build()
    q, k, v = case.qkv(20, torch.float32)
    out = ordinate.attention(q, k, v, encoding, causal=True)
    grads = torch.autograd.grad((out * torch.randn_like(out)).sum(), _parameters(encoding))
    for grad in grads:
        assert int(grad.count_nonzero()) > 0
