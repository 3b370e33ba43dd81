"""Families that add a code to the embeddings: learned tables and sinusoids."""

from __future__ import annotations

import torch

from ..embed.learned import Learned
from ..encoding import NoPE
from .family import Draft, Family, read_head_dim, read_sizes
from .plan import LayerPlan
from .reader import Reader
from .rope import Dialect


def read_gpt2(reader: Reader, family: Family, dialect: Dialect | None) -> Draft:
    """GPT-2: a learned table, and a softmax scale that may vary by layer."""
    count, heads, width = read_sizes(reader)
    head_dim = read_head_dim(reader, heads, width)
    context = reader.integer("max_position_embeddings", "rows of the learned table")
    scaled = reader.boolean("scale_attn_weights", "whether logits are divided by sqrt(head_dim)", True)
    by_layer = reader.boolean(
        "scale_attn_by_inverse_layer_idx", "whether layer i divides logits by i + 1 as well", False
    )
    with torch.device("meta"):
        table = Learned(context, width)
    nothing, layers = NoPE(), []
    for index in range(count):
        scale = None
        if by_layer or not scaled:
            scale = (head_dim**-0.5 if scaled else 1.0) / (index + 1 if by_layer else 1)
        layers.append(LayerPlan(index, "full_attention", nothing, scale=scale, head_dim=head_dim))
    return Draft(layers, {"decoder": table}, context, context)
