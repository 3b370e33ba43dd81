"""Rotary settings of a config, old keys and new, into a `RoPE`.

Old: ``rope_theta`` beside ``rope_scaling`` with ``type`` or ``rope_type``. New: ``rope_parameters`` with
everything, either flat or with one mapping per layer type. A value in the mapping goes before one beside
it, ``rope_scaling`` before ``rope_parameters``, as in the code that trained and serves these models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ...checks import short
from ...rotate.layout import Layout
from ...rotate.rope import RoPE
from ...scaling import NTK, DynamicNTK, Linear, Llama3, LongRoPE, Proportional, Scaling, YaRN
from .plan import ConfigError, Reading
from .reader import MOST_CHANNELS, Reader

Dialect = Literal["hf", "paper", "minimind", "deepseek", "gpt-oss"]
DIALECTS: tuple[Dialect, ...] = ("hf", "paper", "minimind", "deepseek", "gpt-oss")


@dataclass(frozen=True)
class RopeRules:
    """What a family's code does that its config does not say.

    Attributes:
        layout: Which channels form a pair.
        dialect: Its reading of YaRN; ``"deepseek"`` multiplies the softmax scale by the square of
            what ``mscale_all_dim`` gives, the others read that key for cos and sin alone.
        section_layout: How the axes of M-RoPE are dealt to the pairs.
        sections: The axes' pairs, where the config does not list them.
        aliases: Names of scalings that stand for others in this family alone.
        kinds: The kinds of scaling that its code takes; by default all.
        fixed_alpha: ``alpha`` beside dynamic scaling stretches the base once and for all (HunYuan).
        reaches_context: ``max_position_embeddings`` is what linear scaling reaches, not where it starts (Gemma 3).
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
    """One layer type's settings and what they refer to."""

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

    Flat settings serve all layer types, or those in ``scaled_types``.
    """
    old, new = model.part("rope_scaling"), model.part("rope_parameters")
    both = old is not None and new is not None and bool(old.values) and model.has("rope_parameters")
    if both and old and new and dict(old.values) != dict(new.values):
        model.warn("rope_scaling and rope_parameters differ; the first is taken, as transformers does")
    part = old if old is not None and old.values else new
    plain = Reader({}, path=f"{model.path}rope_parameters.", parent=model)
    if part is None or not part.values:
        return dict.fromkeys(layer_types, plain)
    nested = [key for key, value in part.values.items() if isinstance(value, Mapping)]
    if not nested:
        if scaled_types is None:
            return dict.fromkeys(layer_types, part)
        if part is new:
            raise ConfigError(
                f"{model.spelled('rope_parameters')} must have one mapping for each layer type of this model, "
                f"got {short(dict(part.values))}"
            )
        if not set(scaled_types) & set(layer_types):
            model.warn(f"{part.path.rstrip('.')} has no effect, no layer is of the type it is for")
        return {kind: part if kind in scaled_types else plain for kind in layer_types}
    return _nested_parts(part, layer_types)


def _nested_parts(part: Reader, layer_types: list[str]) -> dict[str, Reader | None]:
    found: dict[str, Reader | None] = {}
    for layer_type in layer_types:
        if layer_type not in part.values:
            raise ConfigError(
                f"{part.path}{layer_type} must be given, layers are of that type, got {short(list(part.values))}"
            )
        found[layer_type] = part.part(layer_type)
    for key, value in part.values.items():
        if key not in found and isinstance(value, Mapping):
            part.warn(f"{part.path}{key} has no effect, no layer is of that type")
        elif key not in found and value is not None:
            raise ConfigError(
                f"{part.path}{key} must stand within a layer type's settings, got {short(value)}"
            )
    return found


def read_rope(source: RopeSource, dialect: Dialect | None = None) -> RoPE:
    """The rotation of one layer type."""
    part, model = source.part, source.model
    kinds = source.rules.kinds or ("default", *_SCALINGS)
    rope_type = _rope_type(part, {**_ALIASES, **source.rules.aliases}, kinds)
    key, value = _either(
        part, model, source.theta_key, "rope_theta", "the base of the rotary frequencies"
    )
    base = Reader.checked_number(key, value, above=1, least=None, most=1e15)
    rotary_dim, fraction = _rotary_dim(source, proportional=rope_type == "proportional")
    scaling = None
    if rope_type != "default":
        scaling = _SCALINGS[rope_type](source, rotary_dim, fraction, dialect or source.rules.dialect)
    sections, section_layout = _sections(source, rotary_dim // 2)
    _refuse_strangers(part, rope_type)
    try:
        return RoPE(
            source.head_dim, base, None if rotary_dim == source.head_dim else rotary_dim,
            source.rules.layout, scaling, sections, section_layout,
        )  # fmt: skip
    except (ValueError, TypeError, OverflowError) as error:
        where = part.path.rstrip(".")
        raise ConfigError(
            f"{where} must describe a rotation, got {short(dict(part.values))}: {error}"
        ) from None


def _rope_type(part: Reader, aliases: Mapping[str, str], kinds: tuple[str, ...]) -> str:
    """``rope_type``, or the older ``type``; some old names stand for new ones."""
    part.skip("rope_type", "type")
    new, old = part.values.get("rope_type"), part.values.get("type")
    key, given = ("rope_type", new) if new is not None else ("type", old)
    if given is None:
        meant = [key for key in _TYPE_KEYS if part.values.get(key) is not None]
        if meant:
            raise ConfigError(f"{part.path}rope_type must say what {meant[0]} is for, got nothing")
        return "default"
    if not isinstance(given, str) or aliases.get(given, given) not in kinds:
        raise ConfigError(f"{part.path}{key} must be one of {', '.join(kinds)}, got {short(given)}")
    part.readings.append(Reading(f"{part.path}{key}", given, "the kind of frequency scaling"))
    kind = aliases.get(given, given)
    other = aliases.get(old, old) if new is not None and isinstance(old, str) else kind
    if other != kind and "default" not in (kind, other):
        part.warn(f"{part.path}rope_type and {part.path}type differ; rope_type={given!r} is taken")
    return kind


def _either(part: Reader, model: Reader, beside: str, key: str, meaning: str) -> tuple[str, Any]:
    """A value within the mapping, else the one beside it, else the family's; and its name."""
    part.skip(key)
    model.skip(beside)
    if part.values.get(key) is not None:
        value = part.ask(key, meaning)
        if model.has(beside) and model.peek(beside) != value:
            model.warn(
                f"{part.path}{key}={short(value)} and {model.spelled(beside)}={short(model.peek(beside))} "
                f"differ; the first is taken, as transformers does"
            )
        return f"{part.path}{key}", value
    return model.spelled(beside), model.ask(beside, meaning)


def _rotary_dim(source: RopeSource, proportional: bool) -> tuple[int, float]:
    """How many channels turn, and the fraction; p-RoPE's fraction is of the pairs, over the whole head."""
    part, model = source.part, source.model
    turning = model.integer("rotary_dim", "channels of a head that turn", None, most=MOST_CHANNELS)
    name, given = model.spelled("rotary_dim"), turning
    fraction = 1.0
    whole = part.peek("partial_rotary_factor") is None and model.peek("partial_rotary_factor") is None
    if turning is None or part.peek("partial_rotary_factor") is not None:
        name, given = _fraction(part, model)
        fraction = Reader.checked_number(name, given, above=0, least=None, most=1)
        turning = source.head_dim if proportional else int(source.head_dim * fraction)
        if whole or turning == source.head_dim:
            name, given = model.spelled("head_dim"), source.head_dim
    else:
        model.skip("partial_rotary_factor")
        part.skip("partial_rotary_factor")
    if not 2 <= turning <= source.head_dim or turning % 2:
        raise ConfigError(
            f"{name} must leave an even number of a head's {source.head_dim} channels to turn, "
            f"got {short(given)}, which leaves {turning}"
        )
    return turning, fraction


def _fraction(part: Reader, model: Reader) -> tuple[str, Any]:
    meaning = "the fraction of a head's channels that turn"
    if part.peek("partial_rotary_factor") is None and model.peek("partial_rotary_factor") is None:
        part.skip("partial_rotary_factor")
        model.skip("partial_rotary_factor")
        return f"{part.path}partial_rotary_factor", 1.0
    return _either(part, model, "partial_rotary_factor", "partial_rotary_factor", meaning)


def _sections(source: RopeSource, pairs: int) -> tuple[tuple[int, ...] | None, Any]:
    """M-RoPE's pairs per axis."""
    part = source.part
    listed = part.sequence("mrope_section", "pairs of each axis of M-RoPE", None)
    part.skip("mrope_interleaved")
    if listed is None:
        assumed = source.rules.sections
        if assumed is not None and sum(assumed) != pairs:
            raise ConfigError(
                f"{part.path}mrope_section must be given for {pairs} pairs, the model's code assumes {assumed}, "
                f"got nothing"
            )
        return assumed, source.rules.section_layout
    for index, count in enumerate(listed):
        Reader.checked_integer(f"{part.path}mrope_section[{index}]", count, 1, MOST_CHANNELS)
    if sum(listed) != pairs:
        raise ConfigError(
            f"{part.path}mrope_section must sum to the {pairs} pairs that turn, got {short(listed)}"
        )
    layout = source.rules.section_layout
    interleaved = part.boolean("mrope_interleaved", "whether axes take turns among the pairs", None)
    if interleaved is not None and interleaved != (layout == "interleaved"):
        raise ConfigError(
            f"{part.path}mrope_interleaved must be {str(not interleaved).lower()} for this model, whose code "
            f"deals axes {layout}, got {str(interleaved).lower()}"
        )
    return tuple(int(count) for count in listed), layout


# Every sub-key that some scaling reads. A known key that the type at hand does not read is a warning;
# an unknown one is refused.
_TYPE_KEYS: dict[str, frozenset[str]] = {
    "factor": frozenset({"linear", "dynamic", "yarn", "longrope", "llama3", "proportional"}),
    "original_max_position_embeddings": frozenset({"yarn", "longrope", "llama3"}),
    "attention_factor": frozenset({"yarn", "longrope"}),
    "beta_fast": frozenset({"yarn"}),
    "beta_slow": frozenset({"yarn"}),
    "mscale": frozenset({"yarn"}),
    "mscale_all_dim": frozenset({"yarn"}),
    "truncate": frozenset({"yarn"}),
    "short_factor": frozenset({"longrope"}),
    "long_factor": frozenset({"longrope"}),
    "low_freq_factor": frozenset({"llama3"}),
    "high_freq_factor": frozenset({"llama3"}),
}
# Whether weights were tuned for the scaling, and a copy of the model's own length: not what the scaling is.
_HARMLESS = ("finetuned", "max_position_embeddings")


def _refuse_strangers(part: Reader, rope_type: str) -> None:
    part.skip(*_HARMLESS)
    for key, readers in _TYPE_KEYS.items():
        if part.values.get(key) is not None and rope_type not in readers:
            part.skip(key)
            part.warn(f"{part.path}{key} has no effect with rope_type {rope_type!r}")
    part.refuse_rest(lambda key: True)


def _factor(part: Reader, default: Any = None) -> Any:
    meaning = "how many times the original length is to be reached"
    given = (default,) if default is not None else ()
    return part.number("factor", meaning, *given, least=1, most=1e9)


def _original(source: RopeSource) -> int:
    """The length the frequencies were trained at: beside the mapping, in it, or the model's own."""
    part, model, key = source.part, source.model, "original_max_position_embeddings"
    meaning = "the length the frequencies were trained at"
    if model.has(key):
        beside = model.integer(key, meaning, least=2)
        if part.has(key) and part.peek(key) != beside:
            model.warn(
                f"{model.spelled(key)}={beside} and {part.spelled(key)}={short(part.peek(key))} differ; "
                f"the first is taken, as transformers does"
            )
        part.skip(key)
        return beside
    if part.has(key):
        return part.integer(key, meaning, least=2)
    if source.max_positions is None:
        raise ConfigError(f"{part.spelled(key)} must be given, it is {meaning}, got nothing")
    part.warn(
        f"{part.spelled(key)} is missing; {model.spelled('max_position_embeddings')}="
        f"{source.max_positions} is taken, as transformers does"
    )
    return source.max_positions


def _linear(source: RopeSource, dim: int, fraction: float, dialect: Dialect) -> Scaling:
    return Linear(_factor(source.part))


def _dynamic(source: RopeSource, dim: int, fraction: float, dialect: Dialect) -> Scaling:
    if source.rules.fixed_alpha:
        alpha = source.part.number("alpha", "a fixed stretch of the base", None, least=1, most=1e9)
        if alpha is not None:
            source.part.skip(*_TYPE_KEYS)  # which its files fill in, and its code does not read
            return NTK(alpha)
    if source.max_positions is None:
        key = source.model.spelled("max_position_embeddings")
        raise ConfigError(f"{key} must be given, dynamic scaling starts there, got nothing")
    return DynamicNTK(_factor(source.part), source.max_positions)


def _yarn(source: RopeSource, dim: int, fraction: float, dialect: Dialect) -> Scaling:
    part, original = source.part, _original(source)
    factor = part.number(
        "factor", "how many times the original length is to be reached", None, least=1, most=1e9
    )
    if factor is None:
        factor = _implied_factor(source, original)
    attention = part.number("attention_factor", "multiplies cos and sin", None, above=0, most=1e6)
    mscale = part.number("mscale", "DeepSeek's factor on cos and sin", None, least=0, most=1e6)
    whole = part.number("mscale_all_dim", "DeepSeek's factor on whole logits", None, least=0, most=1e6)
    fast = part.number("beta_fast", "pairs that turn more often are kept", 32.0, above=0, most=1e9)
    slow = part.number(
        "beta_slow", "pairs that turn less often are interpolated", 1.0, above=0, most=1e9
    )
    truncate = part.boolean("truncate", "whether the ramp's ends are rounded to whole pairs", None)
    if fast < slow:
        raise ConfigError(
            f"{part.spelled('beta_fast')} must be at least beta_slow {slow:g}, got {fast:g}"
        )
    if truncate is None:
        truncate = dialect != "gpt-oss"
    if attention is None and dialect != "minimind":
        attention = _from_mscales(part, factor, mscale, whole)
    if dialect != "deepseek":  # whose code alone multiplies the softmax scale
        mscale = whole = None
    ramp: Any = dialect if dialect in ("paper", "minimind") else "hf"
    return YaRN(factor, original, fast, slow, attention, mscale, whole, truncate, ramp)


def _from_mscales(part: Reader, factor: float, mscale: float | None, whole: float | None) -> float:
    """What transformers multiplies cos and sin by: the quotient of two mscales, and one alone is not read."""
    if mscale and whole:  # a 0 is none to transformers
        return (0.1 * mscale * math.log(factor) + 1) / (0.1 * whole * math.log(factor) + 1)
    attention = 0.1 * math.log(factor) + 1
    for key, value in (("mscale", mscale), ("mscale_all_dim", whole)):
        if value:
            part.warn(
                f"{part.spelled(key)}={value:g} does not change cos and sin without the other mscale, as in "
                f"transformers: they are multiplied by {attention:.6g}"
            )
    return attention


def _implied_factor(source: RopeSource, original: int) -> float:
    """The factor of a config that gives both lengths and no factor."""
    key = source.part.spelled("factor")
    if source.max_positions is None:
        raise ConfigError(f"{key} must be given, it is how far the context is stretched, got nothing")
    source.part.warn(
        f"{key} is missing; {source.max_positions} / {original} is taken, as transformers does"
    )
    return max(source.max_positions / original, 1.0)


def _longrope(source: RopeSource, dim: int, fraction: float, dialect: Dialect) -> Scaling:
    part, original = source.part, _original(source)
    divisors = {}
    for key in ("short_factor", "long_factor"):
        listed = part.sequence(key, f"divisors of the {dim // 2} pairs", length=dim // 2)
        divisors[key] = tuple(
            Reader.checked_number(f"{part.spelled(key)}[{i}]", x, 0, None, 1e12)
            for i, x in enumerate(listed)
        )
    factor = part.number(
        "factor", "the extension the attention factor is formed from", None, above=0, most=1e9
    )
    if factor is None and source.max_positions is not None:
        factor = source.max_positions / original
    attention = part.number("attention_factor", "multiplies cos and sin", None, above=0, most=1e6)
    return LongRoPE(divisors["short_factor"], divisors["long_factor"], original, factor, attention)


def _llama3(source: RopeSource, dim: int, fraction: float, dialect: Dialect) -> Scaling:
    part = source.part
    low = part.number("low_freq_factor", "pairs that turn less often are divided", above=0, most=1e9)
    high = part.number("high_freq_factor", "pairs that turn more often are kept", above=0, most=1e9)
    if high < low:
        raise ConfigError(
            f"{part.spelled('high_freq_factor')} must be at least low_freq_factor {low:g}, got {high:g}"
        )
    return Llama3(_factor(part), low, high, _original(source))


def _proportional(source: RopeSource, dim: int, fraction: float, dialect: Dialect) -> Scaling:
    return Proportional(fraction, _factor(source.part, 1.0))


_SCALINGS: dict[str, Callable[[RopeSource, int, float, Dialect], Scaling]] = {
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
    "proportional": _proportional,
}
_ALIASES = {"su": "longrope", "mrope": "default"}  # Phi-3's and Qwen2-VL's first configs
