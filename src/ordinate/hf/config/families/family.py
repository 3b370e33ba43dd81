"""What is known of a family of models: the function that reads its configs, and what its own code assumes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ....encoding import PositionEncoding
from ....rotate.layout import Layout
from ..plan import LayerPlan
from ..reader import MOST_CHANNELS, MOST_HEADS, MOST_LAYERS, MOST_WIDTH, Reader, checked_integer

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


@dataclass
class Draft:
    """What the function of a family found: a plan that is not complete."""

    layers: list[LayerPlan]
    embeddings: dict[str, PositionEncoding] = field(default_factory=dict)
    max_positions: int | None = None
    original_max_positions: int | None = None


@dataclass(frozen=True)
class Family:
    """An entry of the table of families.

    Attributes:
        name: The name for people.
        read: Reads a config of this family.
        defaults: What the family's own code takes for keys that a config leaves out, under our names.
        keys: Our names → the family's, where they differ.
        rope: What its rotation does that the config does not say.
        ignored: Keys that sound like positions and say nothing about them in this family.
        fixed: Keys that its files have and its code does not read → the only value that fits the code.
        rules: What its code does that the config does not say; what kind depends on ``read``.
    """

    name: str
    read: Callable[[Reader, Family, Dialect | None], Draft]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    rope: RopeRules = field(default_factory=RopeRules)
    ignored: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    rules: Any = None


#: GPT's names, and those of what was built from its code.
GPT_KEYS = {
    "hidden_size": "n_embd", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer",
    "max_position_embeddings": "n_positions",
}  # fmt: skip


def sizes(width: int, heads: int, layers: int, context: int, **more: Any) -> dict[str, Any]:
    """The defaults of a config class for the sizes that every family has, and more."""
    return {
        "hidden_size": width, "num_attention_heads": heads, "num_hidden_layers": layers,
        "max_position_embeddings": context, **more,
    }  # fmt: skip


def read_sizes(reader: Reader) -> tuple[int, int, int]:
    """The numbers of layers and heads, and the width, which every family has."""
    layers = reader.integer("num_hidden_layers", "the number of layers", most=MOST_LAYERS)
    heads = reader.integer("num_attention_heads", "the number of heads", most=MOST_HEADS)
    width = reader.integer("hidden_size", "the width of the embeddings", most=MOST_WIDTH)
    return layers, heads, width


def read_head_dim(reader: Reader, heads: int, width: int) -> int:
    """``head_dim`` where it is given, else the width divided among the heads."""
    given = reader.integer("head_dim", "channels of a head", None, most=MOST_CHANNELS)
    if given is not None:
        return given
    name = f"{reader.spelled('hidden_size')} / {reader.spelled('num_attention_heads')}"
    return checked_integer(name, width // heads, 1, MOST_CHANNELS)
