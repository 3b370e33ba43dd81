"""`from_config`: the plan of a config."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from ...checks import nearest, one_of, refused, short
from ...text import Text
from .config_file import check_settings, load
from .families.family import DIALECTS, Dialect, Family
from .families.registry import FAMILIES, TEXT_PARTS, WRAPPERS
from .plan import ConfigError, Plan
from .reader import Reader
from .repeated_keys import read_repeated_keys


@runtime_checkable
class ConfigObject(Protocol):
    """Anything with ``to_dict()``, such as a PretrainedConfig of transformers."""

    def to_dict(self) -> dict[str, Any]: ...


def from_config(
    source: Mapping[str, Any] | str | os.PathLike[str] | ConfigObject,
    *,
    family: str | None = None,
    dialect: Dialect | None = None,
) -> Plan:
    """Read a model's position encodings from its config. No code of the model is executed.

    Args:
        source: A mapping, the path of a config.json or of a model's folder, or a PretrainedConfig.
        family: Read the config as one of this ``model_type`` instead of its own: for a model that
            ordinate does not support but that is built like a supported one.
        dialect: Read YaRN's settings in this dialect instead of the family's.

    Raises:
        ConfigError: Something about positions is missing, contradictory or not understood; one
            sentence with the key and its value.

    Example:
        >>> plan = from_config({"model_type": "llama", "hidden_size": 512, "num_attention_heads": 8,
        ...                     "num_hidden_layers": 2, "rope_theta": 5e5})
        >>> plan.layers[0].encoding
        RoPE(64, base=500000, layout='half')
    """
    values = load(source)
    if dialect is not None and dialect not in DIALECTS:
        raise refused(
            "dialect",
            "must be one of {choices}",
            short(dialect),
            error=ConfigError,
            choices=", ".join(DIALECTS),
        )
    if family is not None and (not isinstance(family, str) or family not in FAMILIES):
        raise refused(
            "family",
            "must be a model_type that ordinate reads",
            short(family),
            error=ConfigError,
            advice="{near}",
            near=nearest(family, FAMILIES) if isinstance(family, str) and len(family) < 60 else "",
        )
    found, model_type, reader = text_reader(values, family)
    reader.skip("model_type", *found.ignored)
    for key, value in found.fixed.items():
        reader.fixed(key, value)
    draft = found.read(reader, found, dialect)
    read_repeated_keys(reader, draft)
    reader.refuse_rest()
    return Plan(
        found.name,
        model_type,
        tuple(draft.layers),
        MappingProxyType(draft.embeddings),
        draft.max_positions,
        draft.original_max_positions,
        tuple(reader.readings),
        tuple(reader.warnings),
    )


def text_reader(values: dict[str, Any], family: str | None = None) -> tuple[Family, str, Reader]:
    """The family of the text model, its ``model_type``, and a reader of its settings."""
    path, values, model_type = text_settings(values, family)
    found = FAMILIES[model_type]
    return found, model_type, Reader(values, defaults=found.defaults, keys=found.keys, path=path)


def text_settings(
    values: dict[str, Any], family: str | None = None, path: str = ""
) -> tuple[str, dict[str, Any], str]:
    """The path of the text model's settings, these settings, and the text model's family."""
    model_type = values.get("model_type") if family is None else family
    if isinstance(model_type, str) and model_type in FAMILIES:
        return path, values, model_type
    inner = next((key for key in TEXT_PARTS if isinstance(values.get(key), Mapping)), None)
    within = WRAPPERS.get(model_type) if isinstance(model_type, str) else None
    if inner is not None:
        text = check_settings(values[inner], f"{path}{inner}")
        named = text.get("model_type")
        known = isinstance(named, str) and (named in FAMILIES or named in WRAPPERS)
        if not known and within is None and not any(key in text for key in TEXT_PARTS):
            raise refused(f"{path}{inner}.model_type", _KNOWN_FAMILY, short(named), error=ConfigError)
        # Position settings outside of the text model may repeat the text model's settings; others are refused.
        outside = {key: value for key, value in values.items() if key not in text or text[key] != value}
        Reader(outside, path=path).refuse_rest()
        return text_settings(text, None if known else within, f"{path}{inner}.")
    if within is not None:  # old files of these models have the text model's keys at the top level
        return path, values, within
    # An unknown name is often a new family and not a typing error, so only a very similar name is suggested.
    word = model_type.lower() if isinstance(model_type, str) and len(model_type) < 60 else ""
    close = difflib.get_close_matches(word, [*FAMILIES, *WRAPPERS], n=1, cutoff=0.75)
    raise refused(
        f"{path}model_type", _KNOWN_FAMILY, short(model_type), error=ConfigError,
        advice="; if it is built like one of them, say so with {option}{near}", option=Text("family=…"),
        near=Text("; did you mean {names}?", names=one_of(close)) if close else "",
    )  # fmt: skip


_KNOWN_FAMILY = "must be a family that ordinate reads"
