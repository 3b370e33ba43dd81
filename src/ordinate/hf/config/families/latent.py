"""DeepSeek's latent attention: the first channels of a head are not rotated, the last ones are."""

from __future__ import annotations

import dataclasses

from ..context_length import original_max_positions
from ..plan import LayerPlan
from ..reader import MOST_CHANNELS, Reader
from ..rope_scalings import RopeSource
from ..rope_settings import read_rope, rope_parts
from .family import Dialect, Draft, Family, read_sizes


def read_latent(reader: Reader, family: Family, dialect: Dialect | None) -> Draft:
    """The last ``qk_rope_head_dim`` channels of a head are rotated; the softmax scale is that of the whole head."""
    count, _, _ = read_sizes(reader)
    reader.skip("head_dim", "qk_head_dim", "v_head_dim")
    unrotated = reader.integer(
        "qk_nope_head_dim", "channels of a head that stand still", least=0, most=MOST_CHANNELS
    )
    rotated = reader.integer(
        "qk_rope_head_dim", "channels of a head that turn", least=2, most=MOST_CHANNELS
    )
    context = reader.integer("max_position_embeddings", "the longest context", None)
    rules = family.rope
    interleaved = reader.boolean("rope_interleave", "whether pairs are neighbours in the weights", None)
    if interleaved is not None:
        rules = dataclasses.replace(rules, layout="interleaved" if interleaved else "half")
    part = rope_parts(reader, ["full_attention"])["full_attention"]
    assert part is not None  # flat settings are never null
    encoding = read_rope(RopeSource(part, reader, rotated, "rope_theta", rules, context), dialect)
    scale = encoding.logit_factor * (unrotated + rotated) ** -0.5
    layers = [
        LayerPlan(
            index,
            "full_attention",
            encoding,
            scale=scale,
            head_dim=unrotated + rotated,
            turned_from=unrotated,
        )
        for index in range(count)
    ]
    return Draft(layers, {}, context, original_max_positions([encoding], context))
