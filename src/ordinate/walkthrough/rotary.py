"""The steps of RoPE: pairs, angles, rotation, norms, and scores that depend on m - n only."""

from __future__ import annotations

import math

import torch

from ..rotate.rope import RoPE
from ..scaling import describe
from ..setting import Setting, normal
from .walk import Step, step

# (5, 8) and (100, 103), and the differences 0, 10 and -10 at several places.
_PLACES = ((0, 0), (4, 4), (10, 0), (15, 5), (1018, 1008), (6, 16), (16, 26), (5, 8), (100, 103))


def steps_of_rope(rope: RoPE, setting: Setting) -> list[Step]:
    """Every step of turning one query, each number taken from the rotation itself."""
    steps = [_frequencies(rope, setting)]
    position = torch.tensor([setting.position])
    rotation = rope.at(position, lengths=setting.length_for(rope))
    query = normal(rope.head_dim)
    turned = rotation.apply(query.expand(1, 1, 1, -1))[0, 0, 0]
    channels = pairs_of_channels(rope.layout, rope.rotary_dim // 2)
    axes = rope.axes > 1
    cos, sin = (table[0, 0] for table in rotation.cos_sin(torch.float64))
    steps.append(
        step(
            "cut the query into pairs",
            ("pair", "channels", "a", "b"),
            [(i, f"{a}, {b}", query[a], query[b]) for i, (a, b) in enumerate(channels)],
            note=f"layout {rope.layout!r}"
            + (
                f"; the first {rope.rotary_dim} of {rope.head_dim} channels turn"
                if rope.rotary_dim < rope.head_dim
                else ""
            ),
        )
    )
    factor = rotation.factor
    steps.append(
        step(
            f"the angle of each pair at position {setting.position}",
            ("pair", "angle", "cos", "sin") if factor == 1 else ("pair", "angle", "f cos", "f sin"),
            [(i, rotation.angles[0, 0, i], cos[i], sin[i]) for i in range(len(channels))],
            formula="angle = position · w",
            note=("all axes at the same coordinate" if axes else "")
            + ("" if factor == 1 else f"cos and sin times the attention factor f = {factor:.6g}"),
        )
    )
    steps.append(
        step(
            "turn each pair",
            ("pair", "a", "b", "a'", "b'"),
            [(i, query[a], query[b], turned[a], turned[b]) for i, (a, b) in enumerate(channels)],
            formula="a' = a cos - b sin,  b' = b cos + a sin",
        )
    )
    before, after = query.norm(), turned.norm()
    steps.append(
        step(
            "the norm before and after",
            ("before", "after", "quotient"),
            [(before, after, after / before)],
            note="a rotation keeps the length"
            if factor == 1
            else "the attention factor multiplies the length",
        )
    )
    steps.append(_relative(rope, setting))
    return steps


def pairs_of_channels(layout: str, pairs: int) -> list[tuple[int, int]]:
    """The two channels of each pair."""
    if layout == "half":
        return [(i, i + pairs) for i in range(pairs)]
    return [(2 * i, 2 * i + 1) for i in range(pairs)]


def _frequencies(rope: RoPE, setting: Setting) -> Step:
    plain = RoPE(rope.head_dim, base=rope.base, rotary_dim=rope.rotary_dim).inv_freq()
    if rope.scaling is None:
        return step(
            "the frequency of each pair",
            ("pair", "w", "wavelength", f"turns in {setting.train_length}"),
            [(i, w, wavelength(w), _turns(w, setting)) for i, w in enumerate(plain)],
            formula=f"w = {rope.base:g}^(-2·pair/{rope.rotary_dim}),  wavelength = 2π/w positions",
        )
    length = setting.length_for(rope)
    scaled = rope.inv_freq(None if length is None else torch.tensor([length])).reshape(-1)
    note = f"{describe(rope.scaling)}"
    if length is not None:
        note += f"; for a sequence of {length}"
    return step(
        "the frequency of each pair, before and after scaling",
        ("pair", "w", f"turns in {setting.train_length}", "scaled w", "divided by", "wavelength"),
        [
            (i, w, _turns(w, setting), s, w / s if s else None, wavelength(s))
            for i, (w, s) in enumerate(zip(plain, scaled, strict=True))
        ],
        formula=f"w = {rope.base:g}^(-2·pair/{rope.rotary_dim})",
        note=note,
    )


def wavelength(inv_freq: torch.Tensor | float) -> float | None:
    """Positions for a turn; None for a pair that does not turn."""
    speed = float(inv_freq)
    return 2 * math.pi / speed if speed else None


def _turns(inv_freq: torch.Tensor, setting: Setting) -> float:
    return setting.train_length * float(inv_freq) / (2 * math.pi)


def _relative(rope: RoPE, setting: Setting) -> Step:
    q, k = normal(rope.head_dim), normal(rope.head_dim, seed=1)
    length = setting.length_for(rope)
    rows = []
    for m, n in _PLACES:
        turned_q, turned_k = rope.rotate(
            q.expand(1, 1, 1, -1),
            k.expand(1, 1, 1, -1),
            torch.tensor([m]),
            torch.tensor([n]),
            lengths=length,
        )
        rows.append((m, n, m - n, q @ k, (turned_q * turned_k).sum()))
    return step(
        "query at m, key at n",
        ("m", "n", "m - n", "plain q·k", "turned q·k"),
        sorted(rows, key=lambda row: (row[2], row[0])),
        note="equal differences have equal scores; without turning, places would not matter at all",
    )
