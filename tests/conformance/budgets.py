"""How wrong a result may be, from its dtype and its size, never by taste."""

from __future__ import annotations

import torch
from torch import Tensor


def half_ulp(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Half the distance between the neighbours of ``exact`` in ``dtype``: the cost of one rounding."""
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(exact.abs().clamp(min=info.tiny))  # |exact| in [2^(e-1), 2^e)
    return torch.ldexp(torch.full_like(exact, info.eps / 4), exponent)


def assert_within(actual: Tensor, exact: Tensor, budget: Tensor | float, what: str = "result") -> None:
    """``|actual - exact| <= budget``, element by element."""
    error = (actual.double() - exact).abs()
    excess = (error - budget).clamp(min=0)
    torch.testing.assert_close(
        excess, torch.zeros_like(excess), rtol=0, atol=0,
        msg=lambda found: f"{what} leaves its error budget (largest error {error.max():.3g}): {found}",
    )  # fmt: skip


def pair_norms(x: Tensor, rotary_dim: int, layout: str) -> Tensor:
    """The norm of the pair each channel belongs to; 0 for channels that do not turn."""
    norms = torch.zeros_like(x)
    turning = x[..., :rotary_dim]
    if layout == "interleaved":
        pairs = turning.unflatten(-1, (-1, 2)).norm(dim=-1)
        norms[..., :rotary_dim] = pairs.repeat_interleave(2, dim=-1)
    else:
        pairs = turning.unflatten(-1, (2, -1)).norm(dim=-2)
        norms[..., :rotary_dim] = torch.cat((pairs, pairs), dim=-1)
    return norms


def rotation_budget(exact: Tensor, dtype: torch.dtype, rotary_dim: int, layout: str) -> Tensor:
    """Half a unit in the last place plus 2^-22 of the pair's norm."""
    return half_ulp(exact, dtype) + 2.0**-22 * pair_norms(exact, rotary_dim, layout)


def mean_square(error: Tensor) -> float:
    return float(error.double().square().mean().sqrt())
