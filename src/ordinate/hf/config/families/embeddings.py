"""Families that add a position code to the embeddings: learned tables and sinusoids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ....checks import refused, short
from ....embed.learned import Learned
from ....embed.sinusoidal import Sinusoidal
from ....encoding import NoPE, PositionEncoding
from ..plan import ConfigError, LayerPlan
from ..reader import MOST_CHANNELS, MOST_HEADS, MOST_LAYERS, MOST_WIDTH, Reader, checked_integer
from .family import Dialect, Draft, Family, read_head_dim, read_sizes


@dataclass(frozen=True)
class TableRules:
    """How a family adds its codes.

    Attributes:
        code: A learned table; the sinusoids of the Transformer authors' code (``"endpoint"``: sines before
            cosines, slowest timescale exactly 10000); or those of their paper, interleaved or sines first.
        offset: Rows before position 0: a number, or ``"padding"`` for the rows up to and including ``pad_token_id``.
        inside: ``max_position_embeddings`` includes the offset's rows (RoBERTa).
        causal: Whether a query sees no later keys; ``"is_decoder"`` if the config has a key for it.
        scale: Layer index, head_dim → the softmax scale, if it is not ``1/sqrt(head_dim)``.
        width_key: The key of the table's width, if it differs from the model's.
    """

    code: Literal["learned", "endpoint", "half", "interleaved"] = "learned"
    offset: int | Literal["padding"] = 0
    inside: bool = False
    causal: bool | Literal["is_decoder"] = False
    width_key: str | None = None
    scale: Callable[[Reader, int, int], float | None] | None = None
    layer_types: Callable[[Reader, int], tuple[list[str], int | None]] | None = None


def read_table(reader: Reader, family: Family, dialect: Dialect | None) -> Draft:
    """One stack with position codes in its embeddings: BERT, GPT-2, OPT, RoBERTa."""
    rules: TableRules = family.rules
    count, heads, width = read_sizes(reader)
    head_dim = read_head_dim(reader, heads, width)
    meaning = "how positions enter; others than absolute are not supported"
    reader.choice("position_embedding_type", meaning, ["absolute"], None)
    causal = rules.causal is True
    if rules.causal == "is_decoder":
        causal = reader.boolean("is_decoder", "whether a query sees no later keys", False)
    if rules.width_key is not None:
        width = reader.integer(rules.width_key, "the width of the embeddings", width, most=MOST_WIDTH)
    rows = reader.integer("max_position_embeddings", "rows of the table of positions")
    encoding, context = _code(reader, rules, rows, width)
    kinds, window = ["full_attention"] * count, None
    if rules.layer_types is not None:
        kinds, window = rules.layer_types(reader, count)
    nothing, stack = NoPE(), "decoder" if causal else "encoder"
    layers = [
        LayerPlan(
            index, kind, nothing, head_dim=head_dim, causal=causal, stack=stack,
            window=window if kind == "sliding_attention" else None,
            scale=rules.scale(reader, index, head_dim) if rules.scale else None,
        )
        for index, kind in enumerate(kinds)
    ]  # fmt: skip
    return Draft(layers, {stack: encoding}, context, context)


def read_two_stacks(reader: Reader, family: Family, dialect: Dialect | None) -> Draft:
    """An encoder and a decoder, each with its own codes: BART, Marian, M2M100, Whisper."""
    rules = family.rules if isinstance(family.rules, tuple) else (family.rules, family.rules)
    width = reader.integer("hidden_size", "the width of the embeddings", most=MOST_WIDTH)
    embeddings: dict[str, PositionEncoding] = {}
    layers: list[LayerPlan] = []
    nothing, context = NoPE(), None
    for stack, rule in zip(("encoder", "decoder"), rules, strict=True):
        depth = _stack_key(reader, stack, "layers", "num_hidden_layers")
        count = reader.integer(depth, f"the number of {stack} layers", least=0, most=MOST_LAYERS)
        breadth = _stack_key(reader, stack, "attention_heads", "num_attention_heads")
        heads = reader.integer(breadth, f"heads of the {stack}", most=MOST_HEADS)
        name = f"{reader.spelled('hidden_size')} / {breadth}"
        head_dim = checked_integer(name, width // heads, 1, MOST_CHANNELS)
        own = "max_source_positions" if stack == "encoder" else "max_target_positions"
        key = own if family.defaults.get(own) else "max_position_embeddings"
        rows = reader.integer(key, f"positions of the {stack}")
        embeddings[stack], context = _code(reader, rule, rows, width)
        layers += [
            LayerPlan(
                index,
                "full_attention",
                nothing,
                head_dim=head_dim,
                stack=stack,
                causal=stack == "decoder",
            )
            for index in range(count)
        ]
    return Draft(layers, embeddings, context, context)


def _stack_key(reader: Reader, stack: str, key: str, common: str) -> str:
    """The key of a stack's size. For the encoder there may be a common name, which overrides the specific one."""
    own = f"{stack}_{key}"
    if stack == "decoder" or not reader.has(common):
        return own
    if reader.has(own):
        names = reader.spelled(common), reader.spelled(own)
        reader.warn_if_different(names[0], reader.peek(common), names[1], reader.peek(own))
    return common


def _code(reader: Reader, rules: TableRules, rows: int, width: int) -> tuple[PositionEncoding, int]:
    """The encoding of a table with this many rows, and its number of positions."""
    offset = rules.offset
    if offset == "padding":
        pad = reader.integer(
            "pad_token_id", "positions count from the row after the padding's", least=0, most=MOST_WIDTH
        )
        offset = pad + 1
    assert isinstance(offset, int)
    if rules.inside and rows <= offset:
        raise refused(
            reader.spelled("max_position_embeddings"),
            "must be greater than the {offset} rows before position 0",
            rows,
            error=ConfigError,
            offset=offset,
        )
    rows -= offset if rules.inside else 0
    if rules.code == "learned":
        with torch.device("meta"):
            return Learned(rows, width, offset), rows
    if width % 2:
        raise refused(
            reader.spelled("hidden_size"), "must be even for sinusoids", width, error=ConfigError
        )
    layout: Literal["interleaved", "half"] = "interleaved" if rules.code == "interleaved" else "half"
    return Sinusoidal(width, layout=layout, endpoint=rules.code == "endpoint", offset=offset), rows


def gpt2_scale(reader: Reader, index: int, head_dim: int) -> float | None:
    """GPT-2: logits may be unscaled, and may also be divided by the layer's number."""
    scaled = reader.boolean("scale_attn_weights", "whether logits are divided by sqrt(head_dim)", True)
    by_layer = reader.boolean(
        "scale_attn_by_inverse_layer_idx", "whether layer i divides logits by i + 1 as well", False
    )
    if scaled and not by_layer:
        return None
    return (head_dim**-0.5 if scaled else 1.0) / (index + 1 if by_layer else 1)


def bigcode_scale(reader: Reader, index: int, head_dim: int) -> float | None:
    scaled = reader.boolean("scale_attn_weights", "whether logits are divided by sqrt(head_dim)", True)
    return None if scaled else 1.0


def gpt_neo_layers(reader: Reader, count: int) -> tuple[list[str], int | None]:
    """GPT-Neo: ``[[["global", "local"], 12]]`` names types and how often the group repeats."""
    groups = reader.sequence("attention_types", "groups of layer types and how often they repeat", None)
    listed = reader.sequence("attention_layers", "the type of each layer", None)
    window = reader.integer("window_size", "keys a query sees in local layers")
    words: list[object] = ["global", "local"] * count
    if groups is not None:
        words = _repeated_groups(groups, count)
    else:
        words = words[:count] if listed is None else list(listed)
    if len(words) != count:
        raise refused(
            "attention_types", "must describe {count} layers", len(words), error=ConfigError, count=count
        )
    names = {"global": "full_attention", "local": "sliding_attention"}
    for word in words:
        if not isinstance(word, str) or word not in names:
            raise refused(
                "attention_types", "must be made of 'global' and 'local'", short(word), error=ConfigError
            )
    return [names[str(word)] for word in words], window


def _repeated_groups(groups: Sequence[Any], count: int) -> list[object]:
    """The types of all layers, from groups of types and how often each group repeats."""
    words: list[object] = []
    for group in groups:
        is_pair = isinstance(group, (list, tuple)) and len(group) == 2
        if not is_pair or not isinstance(group[0], (list, tuple)):
            raise refused(
                "attention_types",
                "must hold pairs of types and a number",
                short(group),
                error=ConfigError,
            )
        times = checked_integer("attention_types", group[1], 1, MOST_LAYERS)
        if len(group[0]) * times > count:
            raise refused(
                "attention_types",
                "must describe {count} layers",
                short(groups),
                error=ConfigError,
                count=count,
            )
        words += list(group[0]) * times
    return words
