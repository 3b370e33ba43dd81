"""The table of properties: name, meaning, measurement, and whether every encoding must have it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..encoding import Combined, PositionEncoding
from ..parts import hooks_of
from ..setting import Setting
from . import context, geometry, order, serving, spectrum, training
from .report import Measurement


@dataclass(frozen=True)
class Property:
    """Attributes:
    required: Every encoding must have it; others are judged only where an encoding claims them.
    """

    name: str
    short: str
    meaning: str
    measure: Callable[[PositionEncoding, Setting], Measurement]
    required: bool = False


_ALL = (
    Property("permutation equivariance", "perm",
             "attention alone is blind to order, with it not",
             order.permutation_equivariance, required=True),
    Property("uniqueness", "uniq", "no two positions look alike", order.uniqueness),
    Property("determinism", "same", "the same call gives the same bits, whatever came before",
             order.determinism, required=True),
    Property("inputs untouched", "pure", "no tensor passed in is written to, nor the process changed",
             order.inputs_untouched, required=True),
    Property("boundedness", "bound", "every entry of a code lies in [-1, 1]", geometry.boundedness),
    Property("shift invariance", "shift", "moving all tokens together changes no score",
             geometry.shift_invariance),
    Property("linear shift map", "map", "one matrix takes the code of any p to that of p + k",
             geometry.linear_shift_map),
    Property("norm preservation", "norm", "rotating a vector leaves its length as it was",
             geometry.norm_preservation),
    Property("decay with distance", "decay", "the further a key, the lower its score",
             geometry.decay_with_distance),
    Property("wavelengths", "wave", "each pair of channels turns at the constant speed it states",
             spectrum.wavelengths),
    Property("slopes", "slope", "each head's bias falls in a straight line, at its own rate",
             spectrum.slopes),
    Property("bucket coverage", "bucket", "every table row serves some run of distances",
             spectrum.bucket_coverage),
    Property("rows apart", "rows", "each row of a batch by its own positions, as if alone",
             context.rows_apart, required=True),
    Property("gaps", "gaps", "tokens at positions with gaps and in no order, as two at a time",
             context.gaps, required=True),
    Property("every length", "len", "a token's answer is the same in rows of 1 to 4096",
             context.every_length, required=True),
    Property("grouped queries", "group", "shared key heads answer as the same heads repeated",
             context.grouped_queries, required=True),
    Property("gradients", "grad", "training computes the same, and each gradient is its slope",
             training.gradients, required=True),
    Property("decode equals prefill", "dec", "token by token with a cache, or all at once: one answer",
             serving.decode_equals_prefill, required=True),
    Property("packed equals separate", "pack", "sequences packed in a row, or each alone: one answer",
             serving.packed_equals_separate, required=True),
    Property("dtype collisions", "dtype", "low precision merges no neighbouring positions",
             serving.dtype_collisions, required=True),
    Property("low precision", "low", "float32 and lower answer as float64 does, but for rounding",
             serving.low_precision, required=True),
    Property("past training length", "past", "a finite, new answer beyond it, or an error that names it",
             serving.past_training_length, required=True),
)  # fmt: skip

#: Name → `Property`, in the order they are reported.
PROPERTIES: Mapping[str, Property] = MappingProxyType({item.name: item for item in _ALL})

# A combination has these only if every part that acts has them.
_OF_ALL_PARTS = frozenset({"shift invariance", "decay with distance"})


def claims_of(encoding: PositionEncoding) -> frozenset[str]:
    """What an encoding claims; of a combination, what its parts' claims amount to together.

    Parts that act in different places keep their claims, but scores are sums: shift invariance and
    decay need every part. Parts that act in the same place spoil each other's other claims.
    """
    if not isinstance(encoding, Combined):
        return frozenset(encoding.claims)
    acting = [part for part in encoding.encodings if hooks_of(part)]
    if not acting:
        return frozenset(encoding.claims)
    claims = [claims_of(part) for part in acting]
    shared = frozenset.intersection(*claims) & _OF_ALL_PARTS
    apart = sum(len(hooks_of(part)) for part in acting) == len(hooks_of(encoding))
    own = frozenset().union(*claims) - _OF_ALL_PARTS if apart else frozenset()
    return frozenset(encoding.claims) | shared | own
