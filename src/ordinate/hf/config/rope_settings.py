"""Rotary settings of a config, old keys and new, into a `RoPE`.

Old keys: ``rope_theta``, and ``rope_scaling`` with ``type`` or ``rope_type``. New: ``rope_parameters`` with
everything, either flat or with one mapping per layer type. A value in the mapping overrides one outside of
it, and ``rope_scaling`` overrides ``rope_parameters``, as in the code that trained and serves these models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ...checks import refused, short
from ...rotate.layout import Layout
from ...rotate.rope import RoPE
from ...scaling import NTK, DynamicNTK, Linear, Llama3, LongRoPE, Proportional, Scaling, YaRN
from .plan import ConfigError, Reading
from .reader import MOST_CHANNELS, Reader, checked_integer, checked_number

Dialect = Literal["hf", "paper", "minimind", "deepseek", "gpt-oss"]
DIALECTS: tuple[Dialect, ...] = ("hf", "paper", "minimind", "deepseek", "gpt-oss")


@dataclass(frozen=True)
class RopeRules:
    """What a family's code does that its config does not say.

    Attributes:
        layout: Which channels form a pair.
        dialect: Its reading of YaRN; ``"deepseek"`` multiplies the softmax scale by the square of
            what ``mscale_all_dim`` gives, the others read that key for cos and sin alone.
        section_layout: How the axes of M-RoPE are assigned to the pairs.
        sections: The axes' pairs, where the config does not list them.
        aliases: Names of scalings that mean others in this family alone.
        kinds: The kinds of scaling that its code takes; by default all.
        fixed_alpha: ``alpha`` in dynamic scaling enlarges the base at every length (HunYuan).
        reaches_context: ``max_position_embeddings`` is the length after linear scaling, not before it (Gemma 3).
    """

    layout: Layout = "half"
    dialect: Dialect = "hf"
    section_layout: Literal["chunked", "interleaved"] = "chunked"
    sections: tuple[int, ...] | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    kinds: tuple[str, ...] | None = None
    fixed_alpha: bool = False
    reaches_context: bool = False


@dataclass(frozen=True)
class RopeSource:
    """One layer type's settings, and the model's settings that they refer to."""

    part: Reader
    model: Reader
    head_dim: int
    theta_key: str
    rules: RopeRules
    max_positions: int | None


def rope_parts(
    model: Reader, layer_types: list[str], scaled_types: tuple[str, ...] | None = None
) -> dict[str, Reader | None]:
    """The rotary settings of each layer type; None for a layer type that has no rotation.

    Flat settings hold for all layer types, or for those in ``scaled_types``.
    """
    old, new = model.part("rope_scaling"), model.part("rope_parameters")
    part = old if old is not None and old.values else new
    plain = Reader({}, path=f"{model.path}rope_parameters.", parent=model)
    if part is None or not part.values:
        return dict.fromkeys(layer_types, plain)
    if part is old and new and model.has("rope_parameters") and dict(old.values) != dict(new.values):
        model.warn("rope_scaling and rope_parameters differ; the first is taken, as transformers does")
    if any(isinstance(value, Mapping) for value in part.values.values()):
        return _nested_parts(part, layer_types)
    if scaled_types is None:
        return dict.fromkeys(layer_types, part)
    if part is new:
        raise refused(
            model.spelled("rope_parameters"),
            "must have one mapping for each layer type of this model",
            short(dict(part.values)),
            error=ConfigError,
        )
    if not set(scaled_types) & set(layer_types):
        model.warn("{key} has no effect, no layer is of the type it is for", key=part.path.rstrip("."))
    return {kind: part if kind in scaled_types else plain for kind in layer_types}


def _nested_parts(part: Reader, layer_types: list[str]) -> dict[str, Reader | None]:
    for layer_type in layer_types:
        if layer_type not in part.values:
            raise refused(
                f"{part.path}{layer_type}",
                "must be given, layers are of that type",
                short(list(part.values)),
                error=ConfigError,
            )
    for key, value in part.values.items():
        if key not in layer_types and isinstance(value, Mapping):
            part.warn("{key} has no effect, no layer is of that type", key=f"{part.path}{key}")
        elif key not in layer_types and value is not None:
            raise refused(
                f"{part.path}{key}",
                "must stand within a layer type's settings",
                short(value),
                error=ConfigError,
            )
    return {layer_type: part.part(layer_type) for layer_type in layer_types}


def read_rope(source: RopeSource, dialect: Dialect | None = None) -> RoPE:
    """The rotation of one layer type."""
    part, model = source.part, source.model
    kinds = source.rules.kinds or ("default", *_SCALINGS)
    rope_type = _rope_type(part, {**_ALIASES, **source.rules.aliases}, kinds)
    meaning = "the base of the rotary frequencies"
    name, value = _inner_or_outer(part, "rope_theta", model, source.theta_key, meaning)
    base = checked_number(name, value, above=1, least=None, most=1e15)
    rotary_dim, fraction = _rotary_dim(source, proportional=rope_type == "proportional")
    scaling = None
    if rope_type != "default":
        scaling = _SCALINGS[rope_type](source, rotary_dim, fraction, dialect or source.rules.dialect)
    sections = _sections(source, rotary_dim // 2)
    _refuse_unknown_keys(part, rope_type)
    try:
        return RoPE(
            source.head_dim, base, None if rotary_dim == source.head_dim else rotary_dim,
            source.rules.layout, scaling, sections, source.rules.section_layout,
        )  # fmt: skip
    except (ValueError, TypeError, OverflowError) as error:
        raise refused(
            part.path.rstrip("."),
            "must describe a rotation",
            f"{short(dict(part.values))}: {error}",
            error=ConfigError,
        ) from None


def _rope_type(part: Reader, aliases: Mapping[str, str], kinds: tuple[str, ...]) -> str:
    """``rope_type``, or the older ``type``; some old names mean new ones."""
    part.skip("rope_type", "type")
    new, old = part.values.get("rope_type"), part.values.get("type")
    key, given = ("rope_type", new) if new is not None else ("type", old)
    if given is None:
        options = [key for key in _TYPE_KEYS if part.values.get(key) is not None]
        if options:
            raise refused(
                f"{part.path}rope_type",
                "must say what {option} is for",
                "nothing",
                error=ConfigError,
                option=options[0],
            )
        return "default"
    if not isinstance(given, str) or aliases.get(given, given) not in kinds:
        raise refused(
            f"{part.path}{key}",
            "must be one of {choices}",
            short(given),
            error=ConfigError,
            choices=", ".join(kinds),
        )
    part.readings.append(Reading(f"{part.path}{key}", given, "the kind of frequency scaling"))
    kind = aliases.get(given, given)
    other = aliases.get(old, old) if new is not None and isinstance(old, str) else kind
    if other != kind and "default" not in (kind, other):
        part.warn(
            "{path}rope_type and {path}type differ; rope_type={given} is taken",
            path=part.path,
            given=repr(given),
        )
    return kind


def _inner_or_outer(part: Reader, key: str, model: Reader, outer: str, meaning: str) -> tuple[str, Any]:
    """The name and value of a setting: in the mapping, else outside of it, else the family's default."""
    part.skip(key)
    model.skip(outer)
    if part.values.get(key) is None:
        return model.spelled(outer), model.ask(outer, meaning)
    value = part.ask(key, meaning)
    if model.has(outer):
        model.warn_if_different(f"{part.path}{key}", value, model.spelled(outer), model.peek(outer))
    return f"{part.path}{key}", value


def _rotary_dim(source: RopeSource, proportional: bool) -> tuple[int, float]:
    """How many channels turn, and the fraction; p-RoPE's fraction is of the pairs, over the whole head."""
    part, model, key = source.part, source.model, "partial_rotary_factor"
    turning = model.integer("rotary_dim", "channels of a head that turn", None, most=MOST_CHANNELS)
    name, given, fraction = model.spelled("rotary_dim"), turning, 1.0
    part.skip(key)
    model.skip(key)
    if turning is None or part.peek(key) is not None:
        if part.peek(key) is not None or model.peek(key) is not None:
            meaning = "the fraction of a head's channels that turn"
            name, given = _inner_or_outer(part, key, model, key, meaning)
            fraction = checked_number(name, given, above=0, least=None, most=1)
        turning = source.head_dim if proportional else int(source.head_dim * fraction)
        if turning == source.head_dim:
            name, given = model.spelled("head_dim"), source.head_dim
    if not 2 <= turning <= source.head_dim or turning % 2:
        raise refused(
            name,
            "must leave an even number of a head's {channels} channels to turn",
            f"{short(given)}, which leaves {turning}",
            error=ConfigError,
            channels=source.head_dim,
        )
    return turning, fraction


def _sections(source: RopeSource, pairs: int) -> tuple[int, ...] | None:
    """M-RoPE's pairs per axis."""
    part, rules = source.part, source.rules
    name = f"{part.path}mrope_section"
    listed = part.sequence("mrope_section", "pairs of each axis of M-RoPE", None)
    part.skip("mrope_interleaved")
    if listed is None:
        if rules.sections is not None and sum(rules.sections) != pairs:
            raise refused(
                name,
                "must be given for {pairs} pairs, the model's code assumes {assumed}",
                "nothing",
                error=ConfigError,
                pairs=pairs,
                assumed=rules.sections,
            )
        return rules.sections
    counts = tuple(
        checked_integer(f"{name}[{index}]", count, 1, MOST_CHANNELS)
        for index, count in enumerate(listed)
    )
    if sum(counts) != pairs:
        raise refused(
            name,
            "must sum to the {pairs} pairs that turn",
            short(listed),
            error=ConfigError,
            pairs=pairs,
        )
    interleaved = part.boolean("mrope_interleaved", "whether axes take turns among the pairs", None)
    if interleaved is not None and interleaved != (rules.section_layout == "interleaved"):
        raise refused(
            f"{part.path}mrope_interleaved",
            "must be {expected} for this model, whose code deals axes {layout}",
            str(interleaved).lower(),
            error=ConfigError,
            expected=str(not interleaved).lower(),
            layout=rules.section_layout,
        )
    return counts


# Every sub-key that some scaling reads. A known key that the scaling does not read is a warning;
# an unknown one is refused.
_TYPE_KEYS: dict[str, frozenset[str]] = {
    "factor": frozenset({"linear", "dynamic", "yarn", "longrope", "llama3", "proportional"}),
    "original_max_position_embeddings": frozenset({"yarn", "longrope", "llama3"}),
    "attention_factor": frozenset({"yarn", "longrope"}),
    **dict.fromkeys(
        ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"), frozenset({"yarn"})
    ),
    **dict.fromkeys(("short_factor", "long_factor"), frozenset({"longrope"})),
    **dict.fromkeys(("low_freq_factor", "high_freq_factor"), frozenset({"llama3"})),
}
# Whether weights were tuned for the scaling, and a copy of the model's own length: neither changes the scaling.
_WITHOUT_EFFECT = ("finetuned", "max_position_embeddings")


def _refuse_unknown_keys(part: Reader, rope_type: str) -> None:
    part.skip(*_WITHOUT_EFFECT)
    for key, readers in _TYPE_KEYS.items():
        if part.values.get(key) is not None and rope_type not in readers:
            part.skip(key)
            part.warn(
                "{key} has no effect with rope_type {rope_type}",
                key=f"{part.path}{key}",
                rope_type=repr(rope_type),
            )
    part.refuse_rest(lambda key: True)


_FACTOR = "how many times the original length is to be reached"


def _original_max_positions(source: RopeSource) -> int:
    """The length the frequencies were trained at: outside of the mapping, in it, or the model's own."""
    part, model, key = source.part, source.model, "original_max_position_embeddings"
    meaning = "the length the frequencies were trained at"
    if model.has(key):
        outer = model.integer(key, meaning, least=2)
        if part.has(key):
            model.warn_if_different(model.spelled(key), outer, part.spelled(key), part.peek(key))
        part.skip(key)
        return outer
    if part.has(key) or source.max_positions is None:
        return part.integer(key, meaning, least=2)
    part.warn(
        "{key} is missing; {value} is taken, as transformers does",
        key=part.spelled(key),
        value=f"{model.spelled('max_position_embeddings')}={source.max_positions}",
    )
    return source.max_positions


def _linear(source: RopeSource, dim: int, fraction: float, dialect: Dialect) -> Scaling:
    return Linear(source.part.number("factor", _FACTOR, least=1, most=1e9))


def _dynamic(source: RopeSource, dim: int, fraction: float, dialect: Dialect) -> Scaling:
    if source.rules.fixed_alpha:
        alpha = source.part.number("alpha", "a fixed stretch of the base", None, least=1, most=1e9)
        if alpha is not None:
            source.part.skip(*_TYPE_KEYS)  # its files have these keys, and its code does not read them
            return NTK(alpha)
    if source.max_positions is None:
        raise refused(
            source.model.spelled("max_position_embeddings"),
            "must be given, dynamic scaling starts there",
            "nothing",
            error=ConfigError,
        )
    return DynamicNTK(source.part.number("factor", _FACTOR, least=1, most=1e9), source.max_positions)


def _yarn(source: RopeSource, dim: int, fraction: float, dialect: Dialect) -> Scaling:
    part, original = source.part, _original_max_positions(source)
    factor = part.number("factor", _FACTOR, None, least=1, most=1e9)
    if factor is None:
        factor = _implied_factor(source, original)
    attention = part.number("attention_factor", "multiplies cos and sin", None, above=0, most=1e6)
    mscale = part.number("mscale", "DeepSeek's factor on cos and sin", None, least=0, most=1e6)
    whole = part.number("mscale_all_dim", "DeepSeek's factor on whole logits", None, least=0, most=1e6)
    fast = part.number("beta_fast", "pairs that turn more often are kept", 32.0, above=0, most=1e9)
    slow = part.number(
        "beta_slow", "pairs that turn less often are interpolated", 1.0, above=0, most=1e9
    )
    truncate = part.boolean(
        "truncate", "whether the ramp's ends are rounded to whole pairs", dialect != "gpt-oss"
    )
    if fast < slow:
        raise refused(
            part.spelled("beta_fast"),
            "must be at least beta_slow {slow}",
            f"{fast:g}",
            error=ConfigError,
            slow=f"{slow:g}",
        )
    if attention is None and dialect != "minimind":
        attention = _from_mscales(part, factor, mscale, whole)
    if dialect != "deepseek":  # whose code alone multiplies the softmax scale
        mscale = whole = None
    ramp: Any = dialect if dialect in ("paper", "minimind") else "hf"
    return YaRN(factor, original, fast, slow, attention, mscale, whole, truncate, ramp)


def _from_mscales(part: Reader, factor: float, mscale: float | None, whole: float | None) -> float:
    """What transformers multiplies cos and sin by: the quotient of two mscales; it does not read one alone."""
    if mscale and whole:  # to transformers, 0 is as good as none
        return (0.1 * mscale * math.log(factor) + 1) / (0.1 * whole * math.log(factor) + 1)
    attention = 0.1 * math.log(factor) + 1
    for key, value in (("mscale", mscale), ("mscale_all_dim", whole)):
        if value:
            part.warn(
                "{key}={value} does not change cos and sin without the other mscale, as in transformers: "
                "they are multiplied by {attention}",
                key=part.spelled(key),
                value=f"{value:g}",
                attention=f"{attention:.6g}",
            )
    return attention


def _implied_factor(source: RopeSource, original: int) -> float:
    """The factor of a config that gives both lengths and no factor."""
    key = source.part.spelled("factor")
    if source.max_positions is None:
        raise refused(
            key,
            "must be given, it is {meaning}",
            "nothing",
            error=ConfigError,
            meaning="how far the context is stretched",
        )
    source.part.warn(
        "{key} is missing; {value} is taken, as transformers does",
        key=key,
        value=f"{source.max_positions} / {original}",
    )
    return max(source.max_positions / original, 1.0)


def _longrope(source: RopeSource, dim: int, fraction: float, dialect: Dialect) -> Scaling:
    part, original = source.part, _original_max_positions(source)
    short_factor, long_factor = (
        _divisors(part, key, dim // 2) for key in ("short_factor", "long_factor")
    )
    factor = part.number(
        "factor", "the extension the attention factor is formed from", None, above=0, most=1e9
    )
    if factor is None and source.max_positions is not None:
        factor = source.max_positions / original
    attention = part.number("attention_factor", "multiplies cos and sin", None, above=0, most=1e6)
    return LongRoPE(short_factor, long_factor, original, factor, attention)


def _divisors(part: Reader, key: str, pairs: int) -> tuple[float, ...]:
    listed = part.sequence(key, f"divisors of the {pairs} pairs", length=pairs)
    name = part.spelled(key)
    return tuple(checked_number(f"{name}[{i}]", x, 0, None, 1e12) for i, x in enumerate(listed))


def _llama3(source: RopeSource, dim: int, fraction: float, dialect: Dialect) -> Scaling:
    part = source.part
    low = part.number("low_freq_factor", "pairs that turn less often are divided", above=0, most=1e9)
    high = part.number("high_freq_factor", "pairs that turn more often are kept", above=0, most=1e9)
    if high < low:
        raise refused(
            part.spelled("high_freq_factor"),
            "must be at least low_freq_factor {low}",
            f"{high:g}",
            error=ConfigError,
            low=f"{low:g}",
        )
    factor = part.number("factor", _FACTOR, least=1, most=1e9)
    return Llama3(factor, low, high, _original_max_positions(source))


def _proportional(source: RopeSource, dim: int, fraction: float, dialect: Dialect) -> Scaling:
    return Proportional(fraction, source.part.number("factor", _FACTOR, 1.0, least=1, most=1e9))


_SCALINGS: dict[str, Callable[[RopeSource, int, float, Dialect], Scaling]] = {
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
    "proportional": _proportional,
}
_ALIASES = {"su": "longrope", "mrope": "default"}  # names in the first configs of Phi-3 and Qwen2-VL
