"""The rules of a family's rotation, and where the settings of one layer type's rotation are read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ...rotate.layout import Layout
from .reader import Reader

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
