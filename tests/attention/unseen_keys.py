"""Calls with a key that some queries see and some do not, and whose products are too large or no numbers."""

from __future__ import annotations

import torch
from attention_cases import BIASES, MASKS, Leaves, Shape, leaves_of
from torch import Tensor

import ordinate

KEY = 29
BAD = (3e38, -3e38, float("inf"), float("nan"))


def make(bias: str, mask: str, dtype: torch.dtype, length: int = 37):
    """Leaves, what else the call is given, and which rows of the output do not see `KEY` of the first sequence."""
    case, shape = BIASES[bias], Shape(q_len=length, k_len=length)
    arguments = MASKS[mask].arguments(shape)
    if case.causal_only and not arguments.get("causal"):
        return {}, None, torch.ones(0)
    seen = MASKS[mask].visible(shape) if length < 100 else torch.ones(length, length).tril().bool()[None]
    unseeing = torch.ones(shape.batch, shape.heads, length, dtype=torch.bool)
    unseeing[0] = ~seen[0, :, KEY]
    torch.manual_seed(0)
    leaves = leaves_of(case, shape, dtype)
    return leaves, lambda leaves: {"bias": case.build(leaves, shape), **arguments}, unseeing


def attend(leaves: Leaves, call, impl: str, rows: Tensor, **options) -> tuple[Tensor, Leaves]:
    """The output, and the gradients of what depends on some of its rows."""
    content = [leaves[name] for name in "qkv"]
    out = ordinate.attention(*content, **call(leaves), impl=impl, **options)
    weight = torch.linspace(0.5, 1.5, out.numel()).view_as(out)
    loss = (torch.where(rows[..., None], out, 0.0).float() * weight).sum()
    grads = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    return out.detach(), dict(zip(leaves, grads, strict=True))


def check_overflow(
    impl: str, bias: str, mask: str, dtype: torch.dtype, length: int = 37, device: str = "cpu", **options
) -> None:
    """A finite key whose logit is +inf for those who do not see it and -inf for those who do: nothing may be NaN."""
    leaves, call, unseeing = make(bias, mask, dtype, length)
    if call is None:
        return
    with torch.no_grad():
        sign = torch.where(unseeing[0], 1.0, -1.0)[..., None].to(dtype)
        leaves["q"][0] = sign * (4 + leaves["q"][0].clamp(-3, 3))
        leaves["k"][0, :, KEY] = 1e38
    leaves = {name: leaf.detach().to(device).requires_grad_() for name, leaf in leaves.items()}
    everything = torch.ones_like(unseeing)
    expected, wanted = attend(leaves, call, "reference", everything, **options)
    try:
        found, grads = attend(leaves, call, impl, everything, **options)
    except NotImplementedError:
        return
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 0.05}[dtype]
    for name, wanted_one in {"out": expected, **wanted}.items():
        assert wanted_one.isfinite().all(), (name, "of the reference")
        atol = tolerance * float(wanted_one.abs().max())
        torch.testing.assert_close(
            {"out": found, **grads}[name], wanted_one, rtol=0.0, atol=atol,
            msg=lambda m, name=name: f"{impl}, {dtype}, {name}: {m}",
        )  # fmt: skip
