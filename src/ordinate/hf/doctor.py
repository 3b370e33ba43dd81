"""The config doctor: explains a plan pair by pair, and finds settings that contradict each other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

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
        scaled: Positions per turn after scaling; infinite for a pair that is not rotated.
        turns: Turns within ``original_max_positions``.
        fate: ``"kept"``, ``"blended"``, ``"interpolated"`` (divided by the full factor) or ``"still"``.
    """

    index: int
    wavelength: float
    scaled: float
    turns: float | None
    fate: str


@dataclass(frozen=True)
class Band:
    """Neighbouring pairs with the same fate."""

    first: int
    last: int
    fate: str


def bands_of(fates: Iterable[str]) -> list[Band]:
    """Runs of pairs with the same fate.

    Example:
        >>> bands_of(["kept", "kept", "interpolated"])
        [Band(first=0, last=1, fate='kept'), Band(first=2, last=2, fate='interpolated')]
    """
    runs = [list(run) for _, run in itertools.groupby(enumerate(fates), key=lambda pair: pair[1])]
    return [Band(run[0][0], run[-1][0], run[0][1]) for run in runs]


def fate_of(ratio: float, least: float) -> str:
    """The fate of a pair, from its new frequency divided by the old one, and the least such ratio of all pairs."""
    if ratio == 0:
        return "still"
    if abs(ratio - 1) < 1e-9:
        return "kept"
    return "interpolated" if ratio < least * (1 + 1e-9) else "blended"


def inv_freq_at(rope: RoPE, length: int | None) -> Float64[Tensor, " pairs"]:
    """The frequencies at one length; it matters only for scalings that depend on the length."""
    lengths = torch.tensor([length]) if rope.length_dependent and length is not None else None
    return rope.inv_freq(lengths).reshape(-1)


@dataclass(frozen=True)
class Group:
    """Layers with the same settings.

    Attributes:
        attention_factor: Multiplies cos and sin, and so the logits of rotated channels by its square.
        logit_factor: Multiplies the softmax scale, for rotated and other channels.
        length: The length that ``pairs`` are computed at, for scalings that depend on it.
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
        """Runs of pairs with the same fate."""
        return bands_of([pair.fate for pair in self.pairs])


@dataclass(frozen=True)
class Diagnosis:
    """The result of `diagnose`; printable, and as plain data by `to_dict`."""

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
        """Plain data for JSON, with None for infinity."""
        values = asdict(self)
        values["read"] = [reading._asdict() for reading in self.read]
        for group, own in zip(values["groups"], self.groups, strict=True):
            group["bands"] = [asdict(band) for band in own.bands]
            for pair in group["pairs"]:
                pair["scaled"] = None if math.isinf(pair["scaled"]) else pair["scaled"]
        return values


def diagnose(plan: Plan) -> Diagnosis:
    """Explain a plan: wavelengths, what scaling does to each pair, the context it reaches, contradictions.

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
        tuple(_notes(plan, effective)),
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
        start = f" (from {layer.turned_from})" if layer.turned_from else ""
        channels = f"{rope.rotary_dim} of {layer.head_dim}{start}"
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
    """A scaling's name and settings, except those that the group has in other fields."""
    if scaling is None:
        return "none"
    elsewhere = {"dialect", "attention_factor", "mscale", "mscale_all_dim", "truncate"}
    settings = {field.name: getattr(scaling, field.name) for field in fields(scaling)}  # type: ignore[arg-type]
    shown = [
        f"{name.replace('_', ' ')} {_shown(value)}"
        for name, value in settings.items()
        if value is not None and name not in elsewhere
    ]
    return f"{type(scaling).__name__}: {', '.join(shown)}"


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return f"{min(value):g} to {max(value):g}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _dialect(scaling: Scaling | None) -> str | None:
    """The dialect of YaRN's settings."""
    if not isinstance(scaling, YaRN):
        return None
    variant = "deepseek" if scaling.mscale_all_dim else "hf" if scaling.truncate else "gpt-oss"
    return variant if scaling.dialect == "hf" else scaling.dialect


def _pairs(rope: RoPE, original: int | None, length: int | None) -> tuple[Pair, ...]:
    before, after = frequencies(rope.base, rope.rotary_dim), inv_freq_at(rope, length)
    if isinstance(
        rope.scaling, (NTK, DynamicNTK, LongRoPE)
    ):  # these scalings do not divide pairs by a factor
        least = float((after / before).min())
    else:
        least = 1 / float(getattr(rope.scaling, "factor", 1.0) or 1.0)
    turn = 2 * math.pi
    return tuple(
        Pair(
            index,
            turn / plain,
            turn / scaled if scaled else math.inf,
            None if original is None else original * plain / turn,
            fate_of(scaled / plain, least),
        )
        for index, (plain, scaled) in enumerate(zip(before.tolist(), after.tolist(), strict=True))
    )


def _notes(plan: Plan, effective: int | None) -> Iterator[str]:
    """Useful facts that are not contradictions."""
    groups = plan.groups()
    for title, layers in groups:
        note = _slow_pairs(layers[0], plan, effective)
        if note is not None:
            yield Text("{layers}: {note}", layers=title, note=note) if len(groups) > 1 else note
    for scaling in scalings(plan.layers):
        if isinstance(scaling, DynamicNTK):
            yield Text(
                "dynamic NTK leaves contexts up to {length} as they were; a cache must hold keys before rotation",
                length=scaling.original_max_positions,
            )
        elif isinstance(scaling, LongRoPE):
            yield Text(
                "LongRoPE switches its divisors at {length} tokens; a cache must hold keys before rotation",
                length=scaling.original_max_positions,
            )
        elif (getattr(scaling, "factor", None) or 1.0) > 1:
            yield Text("the scaling is static: it acts at every length, short contexts included")
    if any(isinstance(encoding, Learned) for encoding in plan.embeddings.values()):
        yield Text("a learned table ends at its last row: a longer input is an error, not a guess")
    if all(type(layer.encoding) is NoPE for layer in plan.layers) and not plan.embeddings:
        yield Text("no layer has an encoding; a causal mask alone tells the order")


def _slow_pairs(layer: LayerPlan, plan: Plan, effective: int | None) -> str | None:
    """A note on pairs that complete no turn within the original length, if the layer sees larger distances."""
    rope, original = layer.encoding, plan.original_max_positions
    if not isinstance(rope, RoPE) or original is None or effective is None:
        return None
    if min(layer.window or math.inf, layer.chunk or math.inf) <= original:
        return None  # the layer sees no larger distances
    plain, scaled = frequencies(rope.base, rope.rotary_dim), inv_freq_at(rope, effective)
    if effective <= original and isinstance(rope.scaling, Linear):
        if not FAMILIES[plan.model_type].rope.reaches_context:
            return None  # unknown whether that length is before or after the scaling
        plain = scaled  # the model was trained at that length with the scaling
    slow = (original * plain < 2 * math.pi) & (scaled > 0)
    if not slow.any():
        return None
    past = int((slow & (effective * scaled > original * plain * (1 + 1e-6))).sum())
    if effective <= original:
        end = Text("past that length they meet angles they were never trained on")
    elif past:
        end = Text(
            "at {length} positions {past} of them go past the angles of that length",
            length=effective,
            past=past,
        )
    else:
        end = Text(
            "the scaling keeps them within the angles of that length up to {length}", length=effective
        )
    slow_pairs = Text(
        "{slow} of {pairs} pairs do not complete a turn within {length} positions",
        slow=int(slow.sum()), pairs=int((scaled > 0).sum()), length=original,
    )  # fmt: skip
    return joined(slow_pairs, end)


def _contradictions(plan: Plan) -> Iterator[str]:
    """Settings that contradict each other."""
    context = plan.max_positions
    known = context != plan.original_max_positions or FAMILIES[plan.model_type].rope.reaches_context
    for scaling in scalings(plan.layers):
        original, reach = getattr(scaling, "original_max_positions", None), reach_of(scaling)
        facts = {"context": context, "original": original, "reach": reach}
        if context is not None and original is not None and original > context:
            yield Text(
                "the original length {original} is longer than max_position_embeddings {context}",
                **facts,
            )
        if isinstance(scaling, Linear) and context is not None and not known:
            yield Text(
                "linear scaling has no original length: whether max_position_embeddings {context} is before or "
                "after the factor {factor}, the config does not say",
                context=context,
                factor=f"{scaling.factor:g}",
            )
        if not isinstance(scaling, YaRN):
            continue
        assert reach is not None
        if context is not None and context == original and reach > context:
            yield Text(
                "max_position_embeddings {context} is the length before scaling; the scaling reaches {reach}",
                **facts,
            )
        elif context is not None and context > reach:
            yield Text(
                "max_position_embeddings {context} promises more than the scaling reaches, "
                "{original} x {factor} = {reach}",
                **facts,
                factor=f"{scaling.factor:g}",
            )
        usual, given = 0.1 * math.log(scaling.factor) + 1, scaling.attention_factor
        if scaling.mscale_all_dim is None and given is not None and abs(given - usual) > 1e-6:
            yield Text(
                "attention factor {given} is not YaRN's 0.1 ln({factor}) + 1 = {usual}",
                given=f"{given:.6g}",
                factor=f"{scaling.factor:g}",
                usual=f"{usual:.6g}",
            )
