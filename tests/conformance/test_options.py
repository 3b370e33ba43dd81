"""Every constructor option of every entry does something, and no instance listens to another's."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

import ordinate
from ordinate import scaling

# For each entry: settings that leave room for every option to matter, and another value of each.
_YARN = {"factor": 4.0, "original_max_positions": 4096}
_LONG = {"short_factor": (1.0, 1.1, 1.2, 1.3), "long_factor": (1.0, 2.0, 3.0, 4.0)}
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "none": ({}, {}),
    "sinusoidal": (
        {"d_model": 8},
        {"d_model": 16, "base": 500.0, "layout": "half", "endpoint": True, "offset": 2},
    ),
    "learned": ({"max_positions": 64, "d_model": 8}, {"max_positions": 65, "d_model": 16, "offset": 2}),
    "rope": (
        {"head_dim": 8, "sections": (2, 1, 1)},
        {
            "head_dim": 16,
            "base": 500.0,
            "rotary_dim": 6,
            "layout": "interleaved",
            "scaling": scaling.Linear(2.0),
            "sections": (1, 2, 1),
            "section_layout": "interleaved",
        },
    ),
    "alibi": (
        {"num_heads": 4},
        {
            "num_heads": 6,
            "symmetric": True,
            "trainable": True,
            "heads": slice(0, 2),
            "scaled": True,
            "max_exponent": 4.0,
        },
    ),
    "clipped": ({"num_heads": 4, "max_distance": 5}, {"num_heads": 6, "max_distance": 6}),
    "t5": (
        {"num_heads": 4},
        {"num_heads": 6, "num_buckets": 16, "max_distance": 64, "bidirectional": True},
    ),
    "shaw": ({"head_dim": 8, "max_distance": 3}, {"head_dim": 16, "max_distance": 4, "values": True}),
    "linear": ({"factor": 2.0}, {"factor": 3.0}),
    "ntk": ({"factor": 2.0}, {"factor": 3.0}),
    "dynamic": (
        {"factor": 2.0, "original_max_positions": 8},
        {"factor": 3.0, "original_max_positions": 16},
    ),
    "yarn": (
        {**_YARN, "mscale": 0.7, "mscale_all_dim": 1.4},
        {
            "factor": 8.0,
            "original_max_positions": 128,
            "beta_fast": 2.0,
            "beta_slow": 0.25,
            "attention_factor": 2.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "truncate": False,
            "dialect": "paper",
        },
    ),
    "longrope": (
        {**_LONG, "original_max_positions": 12, "factor": 4.0},
        {
            "short_factor": (2.0, 2.0, 2.0, 2.0),
            "long_factor": (5.0, 5.0, 5.0, 5.0),
            "original_max_positions": 64,
            "factor": 8.0,
            "attention_factor": 2.0,
        },
    ),
    "llama3": (
        {"factor": 8.0, "low_freq_factor": 0.5, "high_freq_factor": 4.0, "original_max_positions": 64},
        {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 2.0, "original_max_positions": 96},
    ),
    "proportional": ({"fraction": 0.5}, {"fraction": 0.75, "factor": 2.0}),
}
CHANGES = [(name, option) for name, (_, changed) in OPTIONS.items() for option in changed]


def _make(name: str, settings: dict[str, Any]) -> ordinate.PositionEncoding:
    torch.manual_seed(0)
    made = ordinate.catalog[name].cls(**settings)
    encoding = ordinate.RoPE(8, scaling=made) if isinstance(made, scaling.Scaling) else made
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter += torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape)
    return encoding


def _fingerprint(encoding: ordinate.PositionEncoding) -> list[torch.Tensor | tuple | float]:
    """Everything an encoding does, on inputs short and long, and what it trains."""
    width = encoding.d_model or 8
    head_dim = encoding.head_dim or 8
    slopes = getattr(encoding, "_slopes", None)
    heads = len(slopes) if slopes else encoding.num_heads or 4
    prints: list[Any] = [encoding.logit_factor, [(n, p.shape) for n, p in encoding.named_parameters()]]
    for length in (7, 24):
        torch.manual_seed(1)
        x, q = torch.randn(1, length, width), torch.randn(1, heads, length, head_dim)
        positions = torch.arange(length)[None]
        if encoding.axes > 1:
            positions = torch.stack((positions, positions // 2, positions % 3))
        prints.append(encoding.embed(x))
        prints.append(encoding.rotate(q, q, positions, positions)[0])
        bias = encoding.bias(q, q)
        if bias is not None:
            prints += [bias.dense(), bias.scaled]
    return [p.detach() if isinstance(p, torch.Tensor) else p for p in prints]


def _same(first: list, second: list) -> bool:
    return all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else a == b
        for a, b in zip(first, second, strict=True)
    )


def test_no_option_is_forgotten():
    for name, entry in ordinate.catalog.items():
        parameters = {} if entry.cls is ordinate.NoPE else inspect.signature(entry.cls).parameters
        assert set(OPTIONS[name][1]) == set(parameters), name


@pytest.mark.parametrize(("name", "option"), CHANGES, ids=[f"{n}-{o}" for n, o in CHANGES])
def test_instances_that_differ_in_one_option_differ(name: str, option: str):
    base, changed = OPTIONS[name]
    other = {**base, option: changed[option]}
    if option == "rotary_dim":
        base, other = {"head_dim": 8}, {"head_dim": 8, "rotary_dim": 6}
    if option == "head_dim" and name == "rope":
        base, other = {"head_dim": 8}, {"head_dim": 16}
    first, second = _fingerprint(_make(name, base)), _fingerprint(_make(name, other))
    assert not _same(first, second)
    # In the other order, and again: what the first instance did is not remembered for the second.
    assert _same(_fingerprint(_make(name, other)), second)
    assert _same(_fingerprint(_make(name, base)), first)
