"""Pictures of rotations: pairs in the plane, cosines along positions, wavelengths, and wavelengths under scalings."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .. import scaling
from ..encoding import PositionEncoding
from ..parts import part_with
from ..setting import Setting
from ..text import Text
from ..verification.spectrum import declared_frequencies
from ..walkthrough.rotary import pairs_of_channels
from .pictures import Axis, Lines, Mark, Picture, Plane, Series

_POSITION = Axis("position")
_PAIR = Axis("pair")
_WAVELENGTH = Axis("wavelength (positions)", log=True)


def plane(encoding: PositionEncoding, setting: Setting, subject: str) -> Picture:
    """A query with 1 in the first channel of each pair, rotated to each position."""
    rope = part_with(encoding, "rotation")
    places = setting.shown(24, most=256)
    x = torch.zeros(1, 1, len(places), rope.head_dim, dtype=torch.float64)
    channels = pairs_of_channels(rope.layout, rope.rotary_dim // 2)
    for first, _ in channels:
        x[..., first] = 1
    turned = rope.at(places, lengths=setting.length_for(rope)).apply(x)[0, 0]
    picked = setting.picked("pairs", len(channels), last=len(channels) // 4)
    tracks = torch.stack([turned[:, channels[pair]] for pair in picked])
    names = tuple(Text("pair {pair}", pair=pair) for pair in picked)
    axes = (Axis("first channel of the pair"), Axis("second channel"))
    title = "a pair turns by its own angle at every position"
    return Picture(
        "rotation",
        subject,
        title,
        (Plane(names, tracks, *axes, "position"),),
        setting.left_out(len(places)),
    )


def waves(encoding: PositionEncoding, setting: Setting, subject: str) -> Picture:
    """The cosine of the angle of a few pairs."""
    rope = part_with(encoding, "waves")
    places = setting.shown(256)
    rotation = rope.at(places, lengths=setting.length_for(rope))
    cos, _ = rotation.cos_sin(torch.float64)
    turn = _wavelength(rotation.angles[0, -1] / places[-1])
    # One scale for all panels, a little wider than the curves; a scaling's factor may exceed 1.
    end = 1.08 * max(1.0, float(cos.abs().amax()))
    panels = tuple(
        Lines(
            _POSITION,
            Axis("cos of the angle", limits=(-end, end)),
            (Series(Text("pair {pair}", pair=pair), places, cos[0, :, pair]),),
            Text(
                "pair {pair}: a turn in {positions} positions",
                pair=pair,
                positions=f"{float(turn[pair]):.4g}",
            ),
        )
        for pair in setting.picked("pairs", cos.shape[-1])
    )
    return Picture("waves", subject, "cosines along the positions", panels)


def wavelengths(encoding: PositionEncoding, setting: Setting, subject: str) -> Picture:
    """How many positions each pair takes for a turn, with the training length for comparison."""
    rope: Any = next(
        (part for part in encoding.modules() if getattr(part, "scaling", None) is not None), None
    )
    declared = declared_frequencies(encoding, setting.length_for(encoding))
    assert declared is not None
    pairs = torch.arange(len(declared))
    series = [Series("wavelength", pairs, _wavelength(declared), points=True)]
    if rope is not None:
        plain = _wavelength(scaling.frequencies(rope.base, rope.rotary_dim))
        series = [Series("before scaling", pairs, plain, points=True, quiet=True),
                  Series("after scaling", pairs, series[0].y, points=True)]  # fmt: skip
    mark = Mark(
        "y", float(setting.train_length), Text("training length {length}", length=setting.train_length)
    )
    inside = int((_wavelength(declared) <= setting.train_length).sum())
    note = Text(
        "{inside} of {pairs} pairs make a whole turn within the training length",
        inside=inside,
        pairs=len(declared),
    )
    panel = Lines(_PAIR, _WAVELENGTH, tuple(series), marks=(mark,))
    return Picture("wavelengths", subject, "the wavelength of each pair", (panel,), note)


def scalings(encoding: PositionEncoding, setting: Setting, subject: str) -> Picture:
    """The frequency bands of one rotation under each scaling, side by side."""
    rope = part_with(encoding, "scalings")
    length, factor = setting.train_length, _factor(rope, setting)
    compared: dict[str, scaling.Scaling | None] = {
        "original": None,
        "linear": scaling.Linear(factor),
        "NTK": scaling.NTK(factor),
        "YaRN": scaling.YaRN(factor, length),
        "Llama 3": scaling.Llama3(factor, 1.0, 4.0, length),
    }
    plain = scaling.frequencies(rope.base, rope.rotary_dim)
    panels = []
    for name, rule in compared.items():
        scaled = plain if rule is None else rule.inv_freq(rope.base, rope.rotary_dim)
        panels.append(_bands(name, plain, scaled, length, factor))
    note = Text(
        "stretched {factor} times from {length} positions; grey: before scaling",
        factor=f"{factor:g}",
        length=length,
    )
    title = "wavelengths under each scaling"
    return Picture("scalings", subject, title, tuple(panels), note, columns=len(panels))


def _factor(rope: Any, setting: Setting) -> float:
    """The factor asked for, else that of the encoding's own scaling, else 8."""
    own = getattr(rope.scaling, "factor", None) or 1
    return setting.factor or (own if own > 1 else 8.0)


def _bands(name: str, plain: Tensor, scaled: Tensor, length: int, factor: float) -> Lines:
    """One scaling: pairs that are unchanged, divided in part, or divided by the factor."""
    pairs, divided = torch.arange(len(plain)), plain / scaled
    kept = divided < 1 + 1e-9
    whole = (divided > factor * (1 - 1e-9)) & ~kept
    masks = {
        "kept": kept,
        "in between": ~kept & ~whole,
        Text("frequency divided by {factor}", factor=f"{factor:g}"): whole,
    }
    found = [
        Series(label, pairs[mask], _wavelength(scaled[mask]), points=True)
        for label, mask in masks.items()
    ]
    before = Series("before scaling", pairs, _wavelength(plain), quiet=True)
    mark = Mark("y", float(length), Text("training length {length}", length=length))
    return Lines(_PAIR, _WAVELENGTH, (before, *found), name, (mark,))


def _wavelength(inv_freq: Tensor) -> Tensor:
    return 2 * math.pi / inv_freq
