"""Rotary embedding on the CPU: one case is one dtype, one memory layout and one allocator setting."""

from __future__ import annotations

from typing import Any

import torch
from rotary_embedding_torch import RotaryEmbedding as LucidRotary
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from x_transformers.x_transformers import RotaryEmbedding as XRotary
from x_transformers.x_transformers import apply_rotary_pos_emb as x_apply

import measure
import ordinate
from ordinate.rotate import rotation_cache as kept

BASE = 10000.0


def hold(heads: int, seq: int, head_dim: int, dtype: torch.dtype, memory: str) -> Tensor:
    """A tensor ``[1, heads, seq, head_dim]``, laid out as models hold it or contiguous."""
    if memory == "transposed":
        return torch.randn(1, seq, heads, head_dim).to(dtype).transpose(1, 2)
    return torch.randn(1, heads, seq, head_dim).to(dtype)


def exact(x: Tensor, layout: str, first: int = 0, sign: float = 1.0) -> tuple[Tensor, Tensor]:
    """The rotation (its gradient if sign is -1) in float64, and the norm of each channel's pair."""
    dim = x.shape[-1]
    inv_freq = BASE ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = torch.arange(first, first + x.shape[-2], dtype=torch.float64)[:, None] * inv_freq
    wide = x.detach().double()
    split = wide.unflatten(-1, (2, -1)) if layout == "half" else wide.unflatten(-1, (-1, 2))
    axis = -2 if layout == "half" else -1
    a, b = split.unbind(axis)
    cos, sin = angles.cos(), sign * angles.sin()
    turned = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=axis).flatten(-2)
    norm = torch.stack([torch.hypot(a, b)] * 2, dim=axis).flatten(-2)
    return turned, norm


def candidates(q: Tensor, k: Tensor) -> dict[str, tuple[str | None, Any]]:
    """Name → (layout, call). What is made here is not timed; everything in the call is."""
    seq, dim = q.shape[-2:]
    positions = torch.arange(seq)
    half, neighbours = (
        ordinate.RoPE(dim, base=BASE, layout=layout) for layout in ("half", "interleaved")
    )
    half_ready, neighbours_ready = half.at(positions), neighbours.at(positions)
    config = LlamaConfig(hidden_size=q.shape[1] * dim, num_attention_heads=q.shape[1], head_dim=dim)
    cos, sin = LlamaRotaryEmbedding(config)(q, positions[None])
    lucid = LucidRotary(dim)
    freqs, scale = XRotary(dim)(positions)
    inv_freq = BASE ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = positions[:, None].double() * inv_freq
    turns = torch.polar(torch.ones_like(angles), angles).to(torch.complex64)

    def complex_form(x: Tensor) -> Tensor:
        numbers = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(numbers * turns).flatten(-2).to(x.dtype)

    def anew() -> tuple[Tensor, Tensor]:
        kept._kept.clear()
        return half.rotate(q, k)

    return {
        "ordinate": ("half", lambda: half.rotate(q, k)),
        "ordinate, angles made anew": ("half", anew),
        "ordinate, Rotation made before": ("half", lambda: half_ready.apply_both(q, k)),
        "ordinate, interleaved": ("interleaved", lambda: neighbours.rotate(q, k)),
        "ordinate, interleaved, Rotation made before": (
            "interleaved",
            lambda: neighbours_ready.apply_both(q, k),
        ),
        "transformers": ("half", lambda: apply_rotary_pos_emb(q, k, cos, sin)),
        "rotary-embedding-torch": (
            "interleaved",
            lambda: (lucid.rotate_queries_or_keys(q), lucid.rotate_queries_or_keys(k)),
        ),
        "x-transformers": ("interleaved", lambda: (x_apply(q, freqs, scale), x_apply(k, freqs, scale))),
        "complex form": ("interleaved", lambda: (complex_form(q), complex_form(k))),
        "copy": (None, lambda: (q.clone(), k.clone())),
    }


def budget(name: str, dtype: torch.dtype, seq: int) -> float:
    """Allowed error per unit of a pair's norm."""
    eps = torch.finfo(dtype).eps
    if name.startswith("ordinate"):
        return eps / 2 + 2**-22
    # Angles formed in float32 are off by up to half a unit in the last place of the last position; cos, sin,
    # two products and a sum rounded to the dtype are five half units.
    return seq * torch.finfo(torch.float32).eps / 2 + 2**-21 + 5 * eps / 2


def check(
    name: str, layout: str | None, call: Any, q: Tensor, k: Tensor, grads: tuple
) -> dict[str, Any]:
    """Outputs and gradients against float64, in units of each pair's norm."""
    rotated = call()
    pulled = torch.autograd.grad(rotated, (q, k), grads)
    errors, budgets = {}, {}
    for part, given, got, sign in (
        ("q", q, rotated[0], 1.0), ("k", k, rotated[1], 1.0),
        ("grad q", grads[0], pulled[0], -1.0), ("grad k", grads[1], pulled[1], -1.0),
    ):  # fmt: skip
        if layout is None:
            errors[part], budgets[part] = (
                measure.worst_error(got, given.double()),
                torch.finfo(q.dtype).tiny,
            )
            continue
        expected, norm = exact(given, layout, sign=sign)
        unit = norm.clamp(min=torch.finfo(torch.float32).tiny)
        errors[part] = measure.worst_error(got.double() / unit, expected / unit)
        budgets[part] = budget(name, q.dtype, q.shape[-2])
    return measure.gate(errors, budgets)


def run(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Gate every candidate, then time those that are right, forward and forward with backward."""
    dtype = getattr(torch, case["dtype"])
    q_heads, k_heads, seq, dim = case["shape"]
    q, k = (hold(heads, seq, dim, dtype, case["memory"]) for heads in (q_heads, k_heads))
    q.requires_grad_()
    k.requires_grad_()
    grads = (torch.randn_like(q), torch.randn_like(k))
    calls = candidates(q, k)
    gates = {name: check(name, layout, call, q, k, grads) for name, (layout, call) in calls.items()}
    right = {name: call for name, (_, call) in calls.items() if gates[name]["passed"]}

    def forward(call):
        def timed():
            with torch.no_grad():
                return call()

        return timed

    def both(call):
        return lambda: torch.autograd.grad(call(), (q, k), grads)

    rows = []
    for direction, wrap in (("forward", forward), ("forward + backward", both)):
        times = measure.interleaved(
            {name: wrap(call) for name, call in right.items()}, case["repetitions"]
        )
        for name, (layout, _) in calls.items():
            row = {"candidate": name, "layout": layout, "direction": direction, "gate": gates[name]}
            rows.append(row | times.get(name, {}))
    return rows


def run_token(case: dict[str, Any]) -> list[dict[str, Any]]:
    """One token at a time: what a call costs before it does any work."""
    dtype = getattr(torch, case["dtype"])
    q_heads, k_heads, _, dim = case["shape"]
    q, k = (hold(heads, 1, dim, dtype, "contiguous") for heads in (q_heads, k_heads))
    at = torch.tensor([[case["position"]]])
    rope = ordinate.RoPE(dim, base=BASE)
    ready = rope.at(at)
    config = LlamaConfig(hidden_size=q_heads * dim, num_attention_heads=q_heads, head_dim=dim)
    embedding = LlamaRotaryEmbedding(config)
    cos, sin = embedding(q, at)
    calls = {
        "ordinate": lambda: rope.rotate(q, k, at),
        "ordinate, Rotation made before": lambda: ready.apply_both(q, k),
        "transformers": lambda: apply_rotary_pos_emb(q, k, *embedding(q, at)),
        "transformers, cos and sin made before": lambda: apply_rotary_pos_emb(q, k, cos, sin),
    }
    gates = {}
    for name, call in calls.items():
        expected, norm = exact(q, "half", case["position"])
        error = measure.worst_error(call()[0].double() / norm, expected / norm)
        gates[name] = measure.gate({"q": error}, {"q": budget(name, dtype, case["position"])})
    with torch.no_grad():
        times = measure.interleaved(
            {name: call for name, call in calls.items() if gates[name]["passed"]},
            50 * case["repetitions"],
        )
    return [
        {"candidate": name, "direction": "forward", "gate": gates[name]} | times.get(name, {})
        for name in calls
    ]
