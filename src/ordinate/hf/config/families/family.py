"""`Family`: the function that reads the configs of a family of models, and the defaults of the family's code."""

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
    """Rules of rotation in a family's code that its config does not state.

    Attributes:
        layout: Which channels form a pair.
        dialect: How its code reads YaRN's settings; ``"deepseek"`` multiplies the softmax scale by the square of
            the factor from ``mscale_all_dim``, the others use that key for cos and sin only.
        section_layout: How the axes of M-RoPE are assigned to the pairs.
        sections: The axes' pairs, if the config does not list them.
        aliases: Names that mean another scaling in this family.
        kinds: The kinds of scaling that its code supports; by default all.
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
    """The result of a family's ``read`` function: an incomplete plan."""

    layers: list[LayerPlan]
    embeddings: dict[str, PositionEncoding] = field(default_factory=dict)
    max_positions: int | None = None
    original_max_positions: int | None = None


@dataclass(frozen=True)
class Family:
    """An entry of the table of families.

    Attributes:
        name: The name in reports.
        read: Reads a config of this family.
        defaults: The values that the family's own code uses for absent keys, under our names.
        keys: Our names → the family's, where they differ.
        rope: Rules of its rotation that the config does not state.
        ignored: Keys whose names match positions, but that do not concern them in this family.
        fixed: Keys that its files have and its code does not read → the only value that fits the code.
        rules: Rules of its code that the config does not state; their type depends on ``read``.
    """

    name: str
    read: Callable[[Reader, Family, Dialect | None], Draft]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    rope: RopeRules = field(default_factory=RopeRules)
    ignored: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    rules: Any = None


#: The names of keys of GPT, and of families built from its code.
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
