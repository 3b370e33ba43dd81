"""`from_config`: a config into a plan."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

from ..checks import nearest
from .families import FAMILIES
from .plan import ConfigError, Plan
from .reader import Reader, short
from .rope import DIALECTS, Dialect
from .source import load


class ConfigObject(Protocol):
    """Anything with ``to_dict()``, such as a PretrainedConfig of transformers."""

    def to_dict(self) -> dict[str, Any]: ...


def from_config(
    source: Mapping[str, Any] | str | os.PathLike[str] | ConfigObject,
    *,
    family: str | None = None,
    dialect: Dialect | None = None,
) -> Plan:
    """Read how a model knows the order of its tokens from its config. Nothing of it is executed.

    Args:
        source: A mapping, the path of a config.json or of a model's folder, or a PretrainedConfig.
        family: Read the config as one of this ``model_type`` instead of its own: for a model that
            ordinate does not know and that you know to be built like one that it does.
        dialect: Read YaRN's settings in this dialect instead of the family's own.

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
        raise ConfigError(f"dialect must be one of {', '.join(DIALECTS)}, got {short(dialect)}")
    if family is not None and (not isinstance(family, str) or family not in FAMILIES):
        close = nearest(family, FAMILIES) if isinstance(family, str) and len(family) < 60 else ""
        raise ConfigError(f"family must be a model_type that ordinate reads, got {short(family)}{close}")
    model_type = values.get("model_type") if family is None else family
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ConfigError(
            f"model_type must be a family that ordinate reads, got {short(model_type)}; "
            f"if it is built like one of them, say so with family=…"
        )
    found = FAMILIES[model_type]
    reader = Reader(values, defaults=found.defaults, keys=found.keys)
    reader.skip("model_type", *found.ignored)
    draft = found.read(reader, found, dialect)
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
