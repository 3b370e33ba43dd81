"""Families that add to the logits: ALiBi's and T5's."""

from __future__ import annotations

import torch

from ..bias.alibi import ALiBi
from ..bias.t5 import T5Bias
from .family import Draft, Family, read_head_dim, read_sizes
from .plan import ConfigError, LayerPlan
from .reader import MOST_CHANNELS, MOST_HEADS, MOST_LAYERS, Reader
from .rope import Dialect


def read_alibi(reader: Reader, family: Family, dialect: Dialect | None) -> Draft:
    """BLOOM: one line per head, the same in all layers."""
    count, heads, width = read_sizes(reader)
    head_dim = read_head_dim(reader, heads, width)
    encoding = ALiBi(heads)
    context = reader.integer("max_position_embeddings", "the longest context", None)
    layers = [LayerPlan(index, "full_attention", encoding, head_dim=head_dim) for index in range(count)]
    return Draft(layers, {}, context, context)


def read_t5(reader: Reader, family: Family, dialect: Dialect | None) -> Draft:
    """T5: an encoder with buckets in both directions, a decoder with buckets of the past.

    A stack shares the table of its first layer; UMT5 has one in every layer. Cross-attention has none.
    """
    count = reader.integer("num_hidden_layers", "the number of encoder layers", most=MOST_LAYERS)
    decoders = reader.integer(
        "num_decoder_layers", "the number of decoder layers", count, least=0, most=MOST_LAYERS
    )
    heads = reader.integer("num_attention_heads", "the number of heads", most=MOST_HEADS)
    head_dim = reader.integer("head_dim", "channels of a head", most=MOST_CHANNELS)
    buckets = reader.integer(
        "relative_attention_num_buckets", "buckets of distances", least=2, most=1 << 16
    )
    furthest = reader.integer(
        "relative_attention_max_distance", "from here on distances share a bucket", most=1 << 20
    )
    encoder_only = reader.peek("is_encoder_decoder") is False
    layers = []
    for stack, amount in (("encoder", count), ("decoder", 0 if encoder_only else decoders)):
        encoding = None
        for index in range(amount):
            if encoding is None or family.options.get("own_tables"):
                encoding = _t5_bias(reader, heads, buckets, furthest, both=stack == "encoder")
            layers.append(
                LayerPlan(
                    index, "full_attention", encoding, scale=1.0, head_dim=head_dim, stack=stack,
                    causal=stack == "decoder",
                )
            )  # fmt: skip
    return Draft(layers)


def _t5_bias(reader: Reader, heads: int, buckets: int, furthest: int, both: bool) -> T5Bias:
    try:
        with torch.device("meta"):
            return T5Bias(heads, buckets, furthest, bidirectional=both)
    except ValueError as error:
        key = reader.spelled("relative_attention_num_buckets")
        raise ConfigError(
            f"{key} and relative_attention_max_distance must fit together: {error}"
        ) from None
