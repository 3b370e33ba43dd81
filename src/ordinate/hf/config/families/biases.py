"""Families that add to the logits: ALiBi and T5."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from ....bias.alibi import ALiBi
from ....bias.t5 import T5Bias
from ....checks import refused
from ..plan import ConfigError, LayerPlan
from ..reader import MOST_CHANNELS, MOST_HEADS, MOST_LAYERS, Reader
from .decoders import read_decoder
from .family import Dialect, Draft, Family, read_head_dim, read_sizes


def read_bloom(reader: Reader, family: Family, dialect: Dialect | None) -> Draft:
    """BLOOM: one slope per head, the same in all layers."""
    context = reader.integer("seq_length", "the length it was trained at", None)
    return _alibi(reader, context)


def read_falcon(reader: Reader, family: Family, dialect: Dialect | None) -> Draft:
    """Falcon: ALiBi, multiplied by the softmax scale with the logits, or rotation."""
    if not reader.boolean("alibi", "ALiBi instead of rotation"):
        return read_decoder(reader, family, dialect)
    reader.skip("rope_theta", "rope_scaling", "rope_parameters")
    return _alibi(reader, _context(reader), scaled=True)


def read_mpt(reader: Reader, family: Family, dialect: Dialect | None) -> Draft:
    """MPT: ALiBi whose smallest slope is a setting."""
    settings = reader.part("attn_config") or Reader({}, path="attn_config.", parent=reader)
    reader.skip("learned_pos_emb")  # not read by the code that has ALiBi
    if not settings.boolean("alibi", "whether ALiBi is used", True):
        raise refused(
            "attn_config.alibi",
            "must be true, MPT without ALiBi is not supported",
            "false",
            error=ConfigError,
        )
    exponent = settings.number(
        "alibi_bias_max", "the gentlest slope is 2 to minus this", 8.0, above=0, most=1e3
    )
    scale = settings.number("softmax_scale", "the softmax scale", None, above=0, most=1e6)
    for key in ("prefix_lm", "attn_uses_sequence_id"):
        if settings.boolean(key, "a mask that is not supported", False):
            raise refused(
                f"attn_config.{key}",
                "must be false, other masks are not supported",
                "true",
                error=ConfigError,
            )
    settings.refuse_rest()
    return _alibi(reader, _context(reader), scale, max_exponent=exponent)


def _context(reader: Reader) -> int | None:
    return reader.integer("max_position_embeddings", "the longest context", None)


def _alibi(reader: Reader, context: int | None, scale: float | None = None, **options: Any) -> Draft:
    count, heads, width = read_sizes(reader)
    head_dim, encoding = read_head_dim(reader, heads, width), ALiBi(heads, **options)
    layers = [
        LayerPlan(index, "full_attention", encoding, scale=scale, head_dim=head_dim)
        for index in range(count)
    ]
    return Draft(layers, {}, context, context)


def read_t5(
    reader: Reader, family: Family, dialect: Dialect | None, *, own_tables: bool = False
) -> Draft:
    """T5: an encoder with buckets in both directions, a decoder with buckets of the past.

    A stack shares the table of its first layer; in UMT5 every layer has its own table. Cross-attention has none.
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
        "relative_attention_max_distance", "from here on distances share a bucket", most=1 << 17
    )
    if reader.peek("is_encoder_decoder") is False:
        decoders = 0
    layers = []
    for stack, amount in (("encoder", count), ("decoder", decoders)):
        encoding = None
        for index in range(amount):
            if encoding is None:
                encoding = _t5_bias(reader, heads, buckets, furthest, bidirectional=stack == "encoder")
            elif own_tables:
                encoding = _with_own_table(encoding)
            layers.append(
                LayerPlan(
                    index, "full_attention", encoding, scale=1.0, head_dim=head_dim, stack=stack,
                    causal=stack == "decoder",
                )
            )  # fmt: skip
    return Draft(layers)


def _t5_bias(reader: Reader, heads: int, buckets: int, furthest: int, bidirectional: bool) -> T5Bias:
    try:
        with torch.device("meta"):
            return T5Bias(heads, buckets, furthest, bidirectional=bidirectional)
    except ValueError as error:
        raise refused(
            reader.spelled("relative_attention_num_buckets"),
            "and relative_attention_max_distance must fit together: {problem}",
            error=ConfigError,
            problem=error,
        ) from None


def _with_own_table(bias: T5Bias) -> T5Bias:
    """A bias of the same shape with its own table; both share what is computed from distances."""
    other = copy.copy(bias)
    other._parameters = {"weight": nn.Parameter(torch.empty(bias.weight.shape, device="meta"))}
    return other
