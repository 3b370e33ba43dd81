"""MiniMind: one setting turns on a YaRN whose numbers are in its code (jingyaogong/minimind, 2026)."""

from __future__ import annotations

from ..reader import Reader
from ..rope_rules import Dialect
from .decoders import read_decoder
from .family import Draft, Family

_ORIGINAL = 2048
#: The scaling that ``inference_rope_scaling`` turns on.
SCALING = {
    "type": "yarn", "factor": 16, "original_max_position_embeddings": _ORIGINAL,
    "beta_fast": 32, "beta_slow": 1, "attention_factor": 1.0,
}  # fmt: skip


def read_minimind(reader: Reader, family: Family, dialect: Dialect | None) -> Draft:
    """Plain rotation, or with the switch on MiniMind's YaRN, for tables longer than 2048 rows.

    A ``rope_scaling`` in the config is written by MiniMind and never read back: the switch decides.
    """
    switched = reader.boolean("inference_rope_scaling", "MiniMind's YaRN, as its code has it")
    context = reader.integer("max_position_embeddings", "the longest context")
    given = reader.values.get("rope_scaling")
    reader.skip("rope_scaling")
    scaled = switched and context > _ORIGINAL
    if switched and not scaled:
        reader.warn(
            "inference_rope_scaling has no effect up to {original} positions, got {context}",
            original=_ORIGINAL,
            context=context,
        )
    if given is not None and (not switched or given != SCALING):
        reader.warn("rope_scaling has no effect, MiniMind's code reads inference_rope_scaling alone")
    scaling = {"rope_scaling": SCALING if scaled else None}
    inner = Reader(
        {**reader.values, **scaling}, defaults=reader.defaults, keys=reader.keys, parent=reader
    )
    draft = read_decoder(inner, family, dialect)
    reader.used |= inner.used
    return draft
