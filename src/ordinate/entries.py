"""Every encoding and scaling by name, and the small language that makes one from a line of text."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from . import scaling
from .bias.alibi import ALiBi
from .bias.clipped import ClippedBias
from .bias.shaw import Shaw
from .bias.t5 import T5Bias
from .checks import check_at_most, check_positive_int, nearest
from .embed.learned import Learned
from .embed.sinusoidal import Sinusoidal
from .encoding import Along, Combined, NoPE, PositionEncoding
from .rotate.rope import RoPE
from .spec import MOST_CHARACTERS, MOST_PARTS, quoted, read_value, split
from .table_size import LARGEST_TABLE, numbers_in_table


@dataclass(frozen=True)
class Entry:
    """One line of the catalog."""

    name: str
    cls: type
    hook: Literal["none", "embed", "rotate", "bias", "scaling"]
    learned: bool
    year: int
    paper: str
    formula: str
    used_by: str
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_scaling(self) -> bool:
        return self.hook == "scaling"


_ENTRIES = (
    Entry("none", NoPE, "none", False, 2022, "arXiv:2203.16634",
          "nothing: a causal mask alone betrays the order", "every fourth layer of Llama 4, SmolLM3"),
    Entry("sinusoidal", Sinusoidal, "embed", False, 2017, "arXiv:1706.03762",
          "x[p] + [sin(p·w_i), cos(p·w_i)],  w_i = base^(-2i/d)", "the Transformer, Marian, Whisper's encoder"),
    Entry("learned", Learned, "embed", True, 2018, "arXiv:1810.04805",
          "x[p] + weight[p]", "BERT, GPT-2, OPT"),
    Entry("rope", RoPE, "rotate", False, 2021, "arXiv:2104.09864",
          "pairs of q[p], k[p] turned by p·base^(-2i/d)", "Llama, Qwen, Mistral, Gemma, DeepSeek"),
    Entry("alibi", ALiBi, "bias", False, 2021, "arXiv:2108.12409",
          "q·k/sqrt(d) - m_h·(i - j)", "BLOOM, MPT, Falcon-RW"),
    Entry("clipped", ClippedBias, "bias", True, 2018, "arXiv:1803.02155",
          "q·k/sqrt(d) + weight_h[clip(i - j)]", "tutorials; the scalar form of Shaw's clipped distances",
          {"max_distance": 128}),
    Entry("t5", T5Bias, "bias", True, 2019, "arXiv:1910.10683",
          "q·k + weight_h[bucket(i - j)]", "T5, mT5, UL2"),
    Entry("shaw", Shaw, "bias", True, 2018, "arXiv:1803.02155",
          "q·(k + keys[clip(j - i)])/sqrt(d)", "Music Transformer, Wav2Vec2-BERT, SeamlessM4T v2",
          {"max_distance": 16}),
    Entry("linear", scaling.Linear, "scaling", False, 2023, "arXiv:2306.15595",
          "w_i / s", "LongChat, early Llama 2 extensions"),
    Entry("ntk", scaling.NTK, "scaling", False, 2023, "arXiv:2309.00071",
          "base -> base·s^(d/(d-2))", "Code Llama's larger base, in effect"),
    Entry("dynamic", scaling.DynamicNTK, "scaling", False, 2023, "arXiv:2309.00071",
          "base -> base·(f·S/L - f + 1)^(d/(d-2))", "Qwen 1, InternLM"),
    Entry("yarn", scaling.YaRN, "scaling", False, 2023, "arXiv:2309.00071",
          "w_i·(kept_i + (1 - kept_i)/s)", "Qwen 2.5 and 3, DeepSeek V2 and V3, gpt-oss, MiniMind"),
    Entry("longrope", scaling.LongRoPE, "scaling", False, 2024, "arXiv:2402.13753",
          "w_i / searched_i", "Phi-3, MiniCPM"),
    Entry("llama3", scaling.Llama3, "scaling", False, 2024, "arXiv:2407.21783",
          "w_i kept, blended or divided, by wavelength", "Llama 3.1, 3.2, 3.3"),
    Entry("proportional", scaling.Proportional, "scaling", False, 2024, "arXiv:2410.06205",
          "w_i for the fastest pairs, 0 for the rest", "Gemma 4"),
)  # fmt: skip

#: Name → `Entry`, in the order an introduction would take.
catalog: Mapping[str, Entry] = MappingProxyType({entry.name: entry for entry in _ENTRIES})

_ALIASES = {"nope": "none"}


def create(
    spec: str,
    *,
    d_model: int | None = None,
    num_heads: int | None = None,
    head_dim: int | None = None,
    max_positions: int | None = None,
) -> PositionEncoding:
    """An encoding from its name and options: ``"rope:base=1e6"``, ``"rope+yarn:factor=4"``, ``"rope+alibi"``.

    Options follow a colon, separated by commas. After ``+`` a scaling modifies the rotation before it
    and an encoding is combined with what came before; ``axis=0`` among the options of any encoding makes it
    read that coordinate of positions with several, as `Along` does.

    Args:
        d_model, num_heads, head_dim, max_positions: What the model has; each encoding takes what it
            needs. ``head_dim`` defaults to ``d_model / num_heads``; ``max_positions`` is also the length a
            scaling starts from, unless its options say ``original_max_positions``.

    Raises:
        ValueError: An unknown name or option (with the nearest known ones), a value that cannot be
            read, or a dimension the encoding needs and was not given.

    Example:
        >>> create("rope+yarn:factor=4", head_dim=64, max_positions=2048).scaling.factor
        4
    """
    given = (
        ("d_model", d_model),
        ("num_heads", num_heads),
        ("head_dim", head_dim),
        ("max_positions", max_positions),
    )
    d_model, num_heads, head_dim, max_positions = (
        None if value is None else check_positive_int(name, value) for name, value in given
    )
    if head_dim is None and d_model and num_heads and d_model % num_heads == 0:
        head_dim = d_model // num_heads  # else head_dim is missing, which only some encodings mind
    context = {
        "d_model": d_model,
        "num_heads": num_heads,
        "head_dim": head_dim,
        "max_positions": max_positions,
        "original_max_positions": max_positions,
    }
    made: list[tuple[Entry, dict[str, Any]]] = []
    axes: list[int | None] = []
    for entry, options in parse(spec):
        axis = None if entry.is_scaling else options.pop("axis", None)
        arguments = _arguments(entry, options, context, spec)
        numbers = numbers_in_table(entry, arguments)
        check_at_most(f"numbers in the table of {entry.name}", numbers, LARGEST_TABLE)
        if not entry.is_scaling:
            made.append((entry, arguments))
            axes.append(axis)
            continue
        if not made or made[-1][0].cls is not RoPE:
            before = made[-1][0].name if made else "nothing"
            raise ValueError(
                f"scaling {entry.name!r} must follow rope in spec {quoted(spec)}, got {before}"
            )
        if made[-1][1].get("scaling") is not None:
            raise ValueError(
                f"rope must have one scaling in spec {quoted(spec)}, got a second, {entry.name!r}"
            )
        made[-1][1]["scaling"] = entry.cls(**arguments)
    encodings: list[PositionEncoding] = []
    for (entry, arguments), axis in zip(made, axes, strict=True):
        encoding = entry.cls(**arguments)
        encodings.append(encoding if axis is None else Along(encoding, axis))
    return encodings[0] if len(encodings) == 1 else Combined(*encodings)


def parse(spec: str) -> list[tuple[Entry, dict[str, Any]]]:
    """The encodings and scalings a spec names, each with the options it gives; nothing is made yet.

    Example:
        >>> [(entry.name, options) for entry, options in parse("rope:base=1e+6+yarn:factor=4")]
        [('rope', {'base': 1000000.0}), ('yarn', {'factor': 4})]
    """
    if not isinstance(spec, str) or not spec.strip():
        raise ValueError(f"spec must be text such as 'rope:base=1e6', got {spec!r}")
    check_at_most("characters of a spec", len(spec), MOST_CHARACTERS)
    parts = re.split(r"\+(?=\s*[A-Za-z])", spec)
    check_at_most("encodings and scalings of a spec", len(parts), MOST_PARTS)
    return [_parse_part(text, spec) for text in parts]


def _parse_part(text: str, spec: str) -> tuple[Entry, dict[str, Any]]:
    name, _, listed = text.strip().partition(":")
    name = name.strip().lower()
    entry = catalog.get(_ALIASES.get(name, name))
    if entry is None:
        raise ValueError(
            f"unknown encoding {quoted(name)} in spec {quoted(spec)}{nearest(name, catalog)}"
        )
    options = {}
    for option in split(listed, spec) if listed.strip() else []:
        key, equals, value = (part.strip() for part in option.partition("="))
        if not equals or not key or not value:
            raise ValueError(
                f"option must be written name=value in spec {quoted(spec)}, got {quoted(option)}"
            )
        if key in options:
            raise ValueError(
                f"option {quoted(key)} must be given once in spec {quoted(spec)}, got it twice"
            )
        options[key] = read_value(value, spec)
    return entry, options


def _arguments(
    entry: Entry, options: dict[str, Any], context: dict[str, Any], spec: str
) -> dict[str, Any]:
    # The bare base class takes nn.Module's arbitrary arguments, which are no options.
    parameters = {} if entry.cls is NoPE else dict(inspect.signature(entry.cls).parameters)
    for key in options:
        if key not in parameters:
            hint = nearest(key, parameters) if parameters else "; it has no options"
            raise ValueError(
                f"unknown option {quoted(key)} of {entry.name!r} in spec {quoted(spec)}{hint}"
            )
    arguments = {**{k: v for k, v in entry.defaults.items() if k in parameters}, **options}
    for key, parameter in parameters.items():
        if key in arguments:
            continue
        if context.get(key) is not None and parameter.default is parameter.empty:
            arguments[key] = context[key]
        elif parameter.default is parameter.empty:
            where = f"create(…, {key}=…)" if key in context else f"'{entry.name}:{key}=…'"
            if key == "original_max_positions":
                where = "create(…, max_positions=…)"
            raise ValueError(f"{entry.name!r} in spec {quoted(spec)} needs {key}; give it as {where}")
    return arguments
