"""Rotary families: Llama and its many relatives."""

from __future__ import annotations

from ..encoding import PositionEncoding
from .family import Draft, Family, read_head_dim, read_sizes
from .plan import LayerPlan
from .reader import Reader
from .rope import Dialect, RopeSource, read_rope, rope_parts


def read_decoder(reader: Reader, family: Family, dialect: Dialect | None) -> Draft:
    """Layers that turn q and k, all alike or in a few kinds."""
    count, heads, width = read_sizes(reader)
    head_dim = read_head_dim(reader, heads, width)
    context = reader.integer("max_position_embeddings", "the longest context", None)
    kinds = ["full_attention"]
    encodings: dict[str, PositionEncoding] = {}
    for kind, part in rope_parts(reader, kinds).items():
        assert part is not None
        source = RopeSource(part, reader, head_dim, "rope_theta", family.rope, context)
        encodings[kind] = read_rope(source, dialect)
    layers = [
        LayerPlan(index, kinds[0], encodings[kinds[0]], head_dim=head_dim) for index in range(count)
    ]
    scaling = getattr(encodings[kinds[0]], "scaling", None)
    return Draft(layers, {}, context, getattr(scaling, "original_max_position", context))
