"""The table of families: ``model_type`` → how its positions are read.

Defaults are those of each family's own config class; a test compares them with the installed transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from .family import Family
from .other_families import OTHER
from .rotary_families import ROTARY

FAMILIES: Mapping[str, Family] = MappingProxyType({**ROTARY, **OTHER})

#: Models around a text model: where the text model's settings are, outermost first.
TEXT_PARTS = ("thinker_config", "text_config", "llm_config", "language_config")

#: Outer ``model_type`` → the family of the text model within, for configs that do not name it.
WRAPPERS: Mapping[str, str] = MappingProxyType(
    {
        "qwen2_vl": "qwen2_vl_text",
        "qwen2_5_vl": "qwen2_5_vl_text",
        "qwen3_vl": "qwen3_vl_text",
        "qwen3_vl_moe": "qwen3_vl_moe_text",
        "qwen3_5": "qwen3_5_text",
        "qwen3_5_moe": "qwen3_5_moe_text",
        "gemma3": "gemma3_text",
        "gemma3n": "gemma3n_text",
        "gemma4": "gemma4_text",
        "llama4": "llama4_text",
        "llava": "llama",
        "mistral3": "mistral",
    }
)
