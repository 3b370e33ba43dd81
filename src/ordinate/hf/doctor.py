"""The config doctor: what a plan means, pair by pair, and where a config contradicts itself."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch

from ..embed.learned import Learned
from ..encoding import NoPE
from ..rotate.rope import RoPE
from ..scaling import NTK, DynamicNTK, Linear, LongRoPE, Scaling, YaRN, frequencies
from ..text import Text, joined
from .config.context_length import effective_context, reach_of, scalings
from .config.families.registry import FAMILIES
from .config.plan import LayerPlan, Plan, Reading, describe_encoding


@dataclass(frozen=True)
class Pair:
    """One pair of channels.

    Attributes:
        wavelength: Positions per turn as trained, before scaling.
        scaled: Positions per turn after scaling; infinite for a pair that stands still.
        turns: Turns within the length it was trained at.
        fate: ``"kept"``, ``"blended"``, ``"interpolated"`` (divided by the whole factor) or ``"still"``.
    """

    index: int
    wavelength: float
    scaled: float
    turns: float | None
    fate: str


@dataclass(frozen=True)
class Band:
    """Neighbouring pairs of one fate."""

    first: int
    last: int
    fate: str


def bands_of(fates: Iterable[str]) -> list[Band]:
    """Runs of one fate, from the fate of each pair.

    Example:
        >>> bands_of(["kept", "kept", "interpolated"])
        [Band(first=0, last=1, fate='kept'), Band(first=2, last=2, fate='interpolated')]
    """
    found = []
    for fate, run in itertools.groupby(enumerate(fates), key=lambda pair: pair[1]):
        indices = [index for index, _ in run]
        found.append(Band(indices[0], indices[-1], fate))
    return found


@dataclass(frozen=True)
class Group:
    """Layers that are alike.

    Attributes:
        attention_factor: Multiplies cos and sin, and so turned channels' logits by its square.
        logit_factor: Multiplies the softmax scale, on turned and unturned channels alike.
        length: For scalings that depend on it, the length that ``pairs`` are shown at.
    """

    title: str
    layer_type: str
    encoding: str
    base: float | None
    layout: str | None
    channels: str | None
    scaling: str | None
    dialect: str | None
    attention_factor: float | None
    logit_factor: float
    softmax_scale: float
    window: int | None
    chunk: int | None
    causal: bool
    length: int | None
    pairs: tuple[Pair, ...]

    @property
    def bands(self) -> list[Band]:
        """Runs of pairs with one fate."""
        return bands_of([pair.fate for pair in self.pairs])


@dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` found; printable, and plain data by `to_dict`."""

    family: str
    model_type: str
    layers: int
    max_positions: int | None
    original_max_positions: int | None
    effective_context: int | None
    embeddings: dict[str, str]
    groups: tuple[Group, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    read: tuple[Reading, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; what is infinite is None there."""
        values = asdict(self)
        values["read"] = [reading._asdict() for reading in self.read]
        for group, own in zip(values["groups"], self.groups, strict=True):
            group["bands"] = [asdict(band) for band in own.bands]
            for pair in group["pairs"]:
                pair["scaled"] = None if math.isinf(pair["scaled"]) else pair["scaled"]
        return values


def diagnose(plan: Plan) -> Diagnosis:
    """Explain a plan: wavelengths, what becomes of each pair, the context it reaches, contradictions.

    Example:
        >>> plan = ordinate.hf.from_config({"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 4.0}})
        >>> diagnose(plan).groups[0].bands
        [Band(first=0, last=63, fate='interpolated')]
    """
    effective = effective_context(plan)
    groups = tuple(_group(title, layers[0], plan, effective) for title, layers in plan.groups())
    return Diagnosis(
        plan.family,
        plan.model_type,
        len(plan.layers),
        plan.max_positions,
        plan.original_max_positions,
        effective,
        {stack: describe_encoding(encoding) for stack, encoding in plan.embeddings.items()},
        groups,
        tuple(_notes(plan)),
        (*plan.warnings, *_contradictions(plan)),
        plan.read,
    )


def _group(title: str, layer: LayerPlan, plan: Plan, effective: int | None) -> Group:
    encoding = layer.encoding
    rope = encoding if isinstance(encoding, RoPE) else None
    scaling = rope.scaling if rope else None
    length = effective if scaling is not None and scaling.length_dependent else None
    channels = None
    if rope is not None:
        first, last = layer.turned_from, layer.turned_from + rope.rotary_dim
        channels = (
            f"{rope.rotary_dim} of {layer.head_dim} (from {first})"
            if first
            else f"{last} of {layer.head_dim}"
        )
    return Group(
        title,
        layer.layer_type,
        describe_encoding(encoding),
        rope.base if rope else None,
        rope.layout if rope else None,
        channels,
        None if rope is None else _settings(scaling),
        _dialect(scaling),
        None if rope is None else 1.0 if scaling is None else scaling.attention_factor,
        encoding.logit_factor,
        layer.softmax_scale,
        layer.window,
        layer.chunk,
        layer.causal,
        length,
        _pairs(rope, plan.original_max_positions, length) if rope else (),
    )


def _settings(scaling: Scaling | None) -> str:
    """A scaling's name and what was set, without what is said elsewhere."""
    if scaling is None:
        return "none"
    elsewhere = {"dialect", "attention_factor", "mscale", "mscale_all_dim", "truncate"}
    parts = []
    for field in fields(scaling):  # type: ignore[arg-type]
        value = getattr(scaling, field.name)
        if value is None or field.name in elsewhere:
            continue
        if isinstance(value, tuple):
            value = f"{min(value):g} to {max(value):g}"
        shown = f"{value:g}" if isinstance(value, float) else value
        parts.append(f"{field.name.replace('_', ' ')} {shown}")
    return f"{type(scaling).__name__}: {', '.join(parts)}"


def _dialect(scaling: Scaling | None) -> str | None:
    """By which name YaRN's reading is known."""
    if not isinstance(scaling, YaRN):
        return None
    if scaling.dialect != "hf":
        return scaling.dialect
    if scaling.mscale_all_dim:
        return "deepseek"
    return "hf" if scaling.truncate else "gpt-oss"


def _pairs(rope: RoPE, trained: int | None, length: int | None) -> tuple[Pair, ...]:
    plain = frequencies(rope.base, rope.rotary_dim)
    lengths = None if length is None else torch.tensor([length])
    scaled = rope.inv_freq(lengths).reshape(-1)
    factor = _whole_factor(rope.scaling, plain, scaled)
    rows = []
    for index, (before, after) in enumerate(zip(plain.tolist(), scaled.tolist(), strict=True)):
        turns = None if trained is None else trained * before / (2 * math.pi)
        after_length = 2 * math.pi / after if after else math.inf
        fate = _fate(after / before, factor)
        rows.append(Pair(index, 2 * math.pi / before, after_length, turns, fate))
    return tuple(rows)


def _whole_factor(scaling: Scaling | None, plain: torch.Tensor, scaled: torch.Tensor) -> float:
    """What a fully interpolated pair is divided by; for searched or length-bound scalings, the most that is."""
    if isinstance(scaling, (NTK, DynamicNTK, LongRoPE)):
        return float((plain / scaled).max())
    return float(getattr(scaling, "factor", 1.0) or 1.0)


def _fate(ratio: float, factor: float) -> str:
    if ratio == 0:
        return "still"
    if abs(ratio - 1) < 1e-9:
        return "kept"
    return "interpolated" if abs(ratio * factor - 1) < 1e-9 else "blended"


def _notes(plan: Plan) -> list[str]:
    """What is no contradiction and worth knowing."""
    notes: list[str] = []
    groups = plan.groups()
    for title, layers in groups:
        note = _slow_pairs(layers[0], plan)
        if note is not None:
            notes.append(Text("{layers}: {note}", layers=title, note=note) if len(groups) > 1 else note)
    for scaling in scalings(plan.layers):
        if isinstance(scaling, DynamicNTK):
            notes.append(
                Text(
                    "dynamic NTK leaves contexts up to {length} as they were; a cache must hold keys before rotation",
                    length=scaling.original_max_positions,
                )
            )
        elif isinstance(scaling, LongRoPE):
            notes.append(
                Text(
                    "LongRoPE switches its divisors at {length} tokens; a cache must hold keys before rotation",
                    length=scaling.original_max_positions,
                )
            )
        elif (getattr(scaling, "factor", None) or 1.0) > 1:
            notes.append("the scaling is static: it acts at every length, short contexts included")
    if any(isinstance(encoding, Learned) for encoding in plan.embeddings.values()):
        notes.append("a learned table ends at its last row: a longer input is an error, not a guess")
    if all(type(layer.encoding) is NoPE for layer in plan.layers) and not plan.embeddings:
        notes.append("no layer has an encoding; a causal mask alone tells the order")
    return notes


def _slow_pairs(layer: LayerPlan, plan: Plan) -> str | None:
    """What becomes of pairs that never completed a turn in training, in a layer that sees that far."""
    rope, trained, effective = layer.encoding, plan.original_max_positions, effective_context(plan)
    if not isinstance(rope, RoPE) or trained is None or effective is None:
        return None
    if min(layer.window or math.inf, layer.chunk or math.inf) <= trained:
        return None  # no two tokens that see each other are further apart
    plain = frequencies(rope.base, rope.rotary_dim)
    scaled = rope.inv_freq(torch.tensor([effective]) if rope.length_dependent else None).reshape(-1)
    if effective <= trained and isinstance(rope.scaling, Linear):
        if not FAMILIES[plan.model_type].rope.reaches_context:
            return (
                None  # whether the scaling reaches that length or starts there, the config does not say
            )
        plain = scaled  # it was trained at that length with the scaling
    slow = (trained * plain < 2 * math.pi) & (scaled > 0)
    count = int(slow.sum())
    if not count:
        return None
    past = int((slow & (effective * scaled > trained * plain * (1 + 1e-6))).sum())
    if effective <= trained:
        fate: str = "past that length they meet angles they were never trained on"
    elif past:
        fate = Text(
            "at {length} positions {past} of them go past the angles of that length",
            length=effective,
            past=past,
        )
    else:
        fate = Text(
            "the scaling keeps them within the angles of that length up to {length}", length=effective
        )
    slow_pairs = Text(
        "{slow} of {pairs} pairs do not complete a turn within {length} positions",
        slow=count, pairs=int((scaled > 0).sum()), length=trained,
    )  # fmt: skip
    return joined(slow_pairs, fate)


def _contradictions(plan: Plan) -> list[str]:
    """Settings that do not fit each other."""
    found: list[str] = []
    context = plan.max_positions
    for scaling in scalings(plan.layers):
        original = getattr(scaling, "original_max_positions", None)
        if original is not None and context is not None and original > context:
            found.append(
                Text(
                    "the original length {original} is longer than max_position_embeddings {context}",
                    original=original,
                    context=context,
                )
            )
        if isinstance(scaling, YaRN) and context is not None:
            reach = reach_of(scaling)
            assert reach is not None
            if context == original and reach > context:
                found.append(
                    Text(
                        "max_position_embeddings {context} is the length before scaling; the scaling reaches {reach}",
                        context=context,
                        reach=reach,
                    )
                )
            elif context > reach:
                found.append(
                    Text(
                        "max_position_embeddings {context} promises more than the scaling reaches, "
                        "{original} x {factor} = {reach}",
                        context=context,
                        original=original,
                        factor=f"{scaling.factor:g}",
                        reach=reach,
                    )
                )
        told = context != plan.original_max_positions or FAMILIES[plan.model_type].rope.reaches_context
        if isinstance(scaling, Linear) and context is not None and not told:
            found.append(
                Text(
                    "linear scaling has no original length: whether max_position_embeddings {context} is before or "
                    "after the factor {factor}, the config does not say",
                    context=context,
                    factor=f"{scaling.factor:g}",
                )
            )
        if isinstance(scaling, YaRN):
            usual = 0.1 * math.log(scaling.factor) + 1
            given = scaling.attention_factor
            if scaling.mscale_all_dim is None and given is not None and abs(given - usual) > 1e-6:
                found.append(
                    Text(
                        "attention factor {given} is not YaRN's 0.1 ln({factor}) + 1 = {usual}",
                        given=f"{given:.6g}",
                        factor=f"{scaling.factor:g}",
                        usual=f"{usual:.6g}",
                    )
                )
    return found
