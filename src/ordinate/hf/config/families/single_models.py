"""Rules of single families: layer types, windows, head_dims and temperatures."""

from __future__ import annotations

from collections.abc import Mapping

from ....checks import refused, short
from ..plan import ConfigError, Temperature
from ..reader import MOST_CHANNELS, MOST_LAYERS, Reader
from .decoders import (
    CHUNKED,
    FULL,
    SLIDING,
    every,
    listed_rotation,
    read_decoder,
    read_indices,
    read_window,
)
from .family import Dialect, Draft, Family


def qwen2_moe_layers(reader: Reader, count: int) -> list[str]:
    """Qwen 2 MoE: every other layer before ``max_window_layers`` is windowed."""
    last = reader.integer("max_window_layers", "layers from this one on see everything", count, least=0)
    windowed = read_window(reader) is not None
    return [SLIDING if windowed and index % 2 == 0 and index < last else FULL for index in range(count)]


def smollm3_layers(reader: Reader, count: int) -> list[str]:
    """SmolLM3: with windows on, the layers without rotation are windowed."""
    windowed = read_window(reader) is not None
    rotates = listed_rotation(reader, [FULL] * count)
    return [SLIDING if windowed and not does else FULL for does in rotates]


def llama4_layers(reader: Reader, count: int) -> list[str]:
    """Llama 4: layers with rotation see chunks, the others everything."""
    return [CHUNKED if rotates else FULL for rotates in listed_rotation(reader, [FULL] * count)]


def llama4_temperature(reader: Reader, parts: Mapping[str, Reader | None]) -> Temperature | None:
    every_so_many = reader.integer("floor_scale", "queries grow once in so many positions")
    scale = reader.number("attn_scale", "how much queries grow with the logarithm", least=0, most=1e6)
    tuned = reader.ask("attn_temperature_tuning", "whether queries grow with their position")
    if not isinstance(tuned, int):  # true or false; the first files have 4, which means true
        raise refused(
            reader.spelled("attn_temperature_tuning"),
            "must be true or false",
            short(tuned),
            error=ConfigError,
        )
    return Temperature(scale, every_so_many, start=1) if tuned else None


def mistral_temperature(reader: Reader, parts: Mapping[str, Reader | None]) -> Temperature | None:
    """Ministral 3: ``llama_4_scaling_beta`` is one of the rotary settings."""
    part = next(iter(parts.values()))
    assert part is not None
    beta = part.number(
        "llama_4_scaling_beta", "how much queries grow with the logarithm", None, least=0, most=1e6
    )
    if beta is None:
        return None
    period = part.integer("original_max_position_embeddings", "queries grow once in so many positions")
    return Temperature(beta, period)


def exaone_layers(reader: Reader, count: int) -> list[str]:
    """EXAONE 4: ``sliding_window_pattern`` is a number as in other families, or a word such as LLLG, repeated."""
    pattern = reader.peek("sliding_window_pattern")
    if not isinstance(pattern, str):
        return every(4, "sliding_window_pattern")(reader, count)
    reader.ask("sliding_window_pattern", "L for a windowed layer, G for one that sees everything")
    if not pattern or set(pattern) - {"L", "G"}:
        raise refused(
            reader.spelled("sliding_window_pattern"),
            "must be a number or made of L and G",
            short(pattern),
            error=ConfigError,
        )
    return [SLIDING if pattern[index % len(pattern)] == "L" else FULL for index in range(count)]


def mllama_layers(reader: Reader, count: int) -> list[str]:
    """Llama 3.2 Vision: the listed layers attend to images only."""
    meaning = "layers that attend to images alone"
    crossing = read_indices(reader, "cross_attention_layers", meaning, MOST_LAYERS)
    return ["cross_attention" if index in crossing else FULL for index in range(count)]


def gemma4_layers(reader: Reader, count: int) -> list[str]:
    """Gemma 4: full attention in every sixth layer, and always in the last."""
    return [*every(6)(reader, count)[:-1], FULL]


def gemma4_head_dims(reader: Reader, kinds: list[str]) -> dict[str, int]:
    """Gemma 4: heads are wider in full attention, by ``global_head_dim`` or layer by layer."""
    wide = reader.integer("global_head_dim", "channels of a head in full attention", most=MOST_CHANNELS)
    overrides = reader.part("per_layer_config")
    if overrides is None:
        return {FULL: wide}
    narrow = reader.peek("head_dim")
    widths = [narrow] * len(kinds)
    for key in overrides.values:  # written with leading zeros
        if not key.isdecimal() or len(key) > 8 or int(key) >= len(kinds):
            raise refused(
                f"{overrides.path}{key[:40]}",
                "must be the index of a layer, of {layers}",
                repr(key[:40]),
                error=ConfigError,
                layers=len(kinds),
            )
        layer = overrides.part(key)
        if layer is not None:
            meaning = "channels of a head"
            widths[int(key)] = layer.integer("head_dim", meaning, narrow, most=MOST_CHANNELS)
            layer.refuse_rest()
    found = set(zip(kinds, widths, strict=True))
    for kind in dict.fromkeys(kinds):
        sizes = sorted(width for one, width in found if one == kind)
        if len(sizes) > 1:
            raise refused(
                f"{overrides.path}head_dim",
                "must be one for all of {kind}",
                sizes,
                error=ConfigError,
                kind=kind,
            )
    return dict(found)


def gemma_causal(reader: Reader) -> bool:
    """Gemma 3 and 4 may be bidirectional: ``true``, or ``"all"``; ``"vision"`` is for image tokens only."""
    both = reader.ask("use_bidirectional_attention", "whether text attends in both directions", False)
    if both not in (False, True, "all", "vision"):
        raise refused(
            reader.spelled("use_bidirectional_attention"),
            "must be true, false, 'all' or 'vision'",
            short(both),
            error=ConfigError,
        )
    return both in (False, "vision")


def gemma_window(reader: Reader) -> int | None:
    """In bidirectional attention, half of the window lies on either side."""
    window = read_window(reader)
    if window is None or gemma_causal(reader):
        return window
    return window // 2 + 1


def modernbert_window(reader: Reader) -> int | None:
    """``local_attention`` is the width of the window: a query sees keys up to half of it away."""
    meaning = "the width of the window, both sides together"
    return reader.integer("local_attention", meaning, least=2) // 2 + 1


_MINIMIND_ORIGINAL = 2048
#: The scaling that ``inference_rope_scaling`` of MiniMind turns on (jingyaogong/minimind, 2026).
MINIMIND_SCALING = {
    "type": "yarn", "factor": 16, "original_max_position_embeddings": _MINIMIND_ORIGINAL,
    "beta_fast": 32, "beta_slow": 1, "attention_factor": 1.0,
}  # fmt: skip


def read_minimind(reader: Reader, family: Family, dialect: Dialect | None) -> Draft:
    """Plain rotation, or with ``inference_rope_scaling`` MiniMind's YaRN, for tables longer than 2048 rows.

    MiniMind writes a ``rope_scaling`` into the config but never reads it.
    """
    switched = reader.boolean("inference_rope_scaling", "MiniMind's YaRN, as its code has it")
    context = reader.integer("max_position_embeddings", "the longest context")
    given = reader.values.get("rope_scaling")
    reader.skip("rope_scaling")
    scaled = switched and context > _MINIMIND_ORIGINAL
    if switched and not scaled:
        reader.warn(
            "inference_rope_scaling has no effect up to {original} positions, got {context}",
            original=_MINIMIND_ORIGINAL,
            context=context,
        )
    if given is not None and (not switched or given != MINIMIND_SCALING):
        reader.warn("rope_scaling has no effect, MiniMind's code reads inference_rope_scaling alone")
    scaling = {"rope_scaling": MINIMIND_SCALING if scaled else None}
    inner = Reader(
        {**reader.values, **scaling}, defaults=reader.defaults, keys=reader.keys, parent=reader
    )
    draft = read_decoder(inner, family, dialect)
    reader.used |= inner.used
    return draft
