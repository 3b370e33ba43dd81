"""The scaling of each ``rope_type``, read from the rotary settings of a config."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...checks import refused
from ...scaling import NTK, DynamicNTK, Linear, Llama3, LongRoPE, Proportional, Scaling, YaRN
from ...text import Text
from .families.family import Dialect, RopeRules
from .plan import ConfigError
from .reader import Reader, checked_number


@dataclass(frozen=True)
class RopeSource:
    """The rotary settings of one layer type, and the model's settings that they refer to."""

    part: Reader
    model: Reader
    head_dim: int
    theta_key: str
    rules: RopeRules
    max_positions: int | None


# Every sub-key that some scaling reads. A known key that the scaling does not read is a warning;
# an unknown one is refused.
TYPE_KEYS: dict[str, frozenset[str]] = {
    "factor": frozenset({"linear", "dynamic", "yarn", "longrope", "llama3", "proportional"}),
    "original_max_position_embeddings": frozenset({"yarn", "longrope", "llama3"}),
    "attention_factor": frozenset({"yarn", "longrope"}),
    **dict.fromkeys(
        ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"), frozenset({"yarn"})
    ),
    **dict.fromkeys(("short_factor", "long_factor"), frozenset({"longrope"})),
    **dict.fromkeys(("low_freq_factor", "high_freq_factor"), frozenset({"llama3"})),
}

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


def _dynamic(source: RopeSource, dim: int, fraction: float, dialect: Dialect) -> Scaling:
    if source.rules.fixed_alpha:
        alpha = source.part.number("alpha", "a fixed stretch of the base", None, least=1, most=1e9)
        if alpha is not None:
            source.part.skip(*TYPE_KEYS)  # its files have these keys, but its code does not read them
            return NTK(alpha)
    if source.max_positions is None:
        raise refused(
            source.model.spelled("max_position_embeddings"),
            "must be given, dynamic scaling starts there",
            Text("nothing"),
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
    if dialect != "deepseek":  # only DeepSeek's code multiplies the softmax scale
        mscale = whole = None
    ramp: Any = dialect if dialect in ("paper", "minimind") else "hf"
    return YaRN(factor, original, fast, slow, attention, mscale, whole, truncate, ramp)


def _from_mscales(part: Reader, factor: float, mscale: float | None, whole: float | None) -> float:
    """Transformers' factor of cos and sin: the quotient of two mscales; it does not read a single one."""
    if mscale and whole:  # transformers treats 0 like an absent key
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
            Text("nothing"),
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


SCALINGS: dict[str, Callable[[RopeSource, int, float, Dialect], Scaling]] = {
    "linear": lambda source, *_: Linear(source.part.number("factor", _FACTOR, least=1, most=1e9)),
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
    "proportional": lambda source, dim, fraction, dialect: Proportional(
        fraction, source.part.number("factor", _FACTOR, 1.0, least=1, most=1e9)
    ),
}
