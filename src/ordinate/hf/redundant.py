"""Keys that say again what others said: taken where they agree, told or refused where they do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from ..bias.alibi import ALiBi
from ..checks import short
from ..rotate.rope import RoPE
from .family import Draft
from .plan import ConfigError, LayerPlan, Reading
from .reach import reach_of, scalings
from .reader import Reader

#: Lengths that no model's code reads. Files of stretched models keep the stretched length in one of them.
LENGTHS = ("max_sequence_length", "max_seq_length", "max_seq_len", "seq_length", "sequence_length")


def read_redundant(reader: Reader, draft: Draft) -> None:
    """Compare the keys that nobody asked for with what was read; a stretched length completes the draft.

    Raises:
        ConfigError: One of them contradicts what the model's code does.
    """
    for key in LENGTHS:
        if key not in reader.used and reader.has(key):
            _read_length(reader, draft, key)
    for key, facts in _ECHOES.items():
        if key in reader.used or not reader.has(key):
            continue
        expected, value = facts(draft.layers), reader.peek(key)
        if not expected:
            continue  # nothing to compare it with: refused with the rest
        if not any(type(value) is type(x) and value == x for x in expected):
            raise ConfigError(
                f"{reader.spelled(key)} must agree with what this model's other settings say, "
                f"{short(expected[0])}, got {short(value)}"
            )
        reader.skip(key)
        reader.readings.append(Reading(f"{reader.path}{key}", value, "agrees with what was read"))


def _read_length(reader: Reader, draft: Draft, key: str) -> None:
    length = reader.integer(key, "the longest context, said again")
    start = draft.max_positions
    reached = [reach_of(scaling, start) for scaling in scalings(draft.layers)]
    if start is None or length in reached:
        draft.max_positions = length
    elif length != start:
        reader.warn(
            f"{reader.spelled(key)}={length} and {reader.spelled('max_position_embeddings')}={start} differ; "
            f"the second is taken, as transformers does"
        )


def _windows(layers: list[LayerPlan]) -> list[Any]:
    return sorted({layer.window for layer in layers if layer.window is not None})


def _turns(layers: list[LayerPlan]) -> list[Any]:
    """True, for a model whose layers all turn; nothing can be said of one where only some do."""
    turning = {isinstance(layer.encoding, RoPE) for layer in layers}
    return [True] if turning == {True} else [False] if turning == {False} else []


def _biased(layers: list[LayerPlan]) -> list[Any]:
    return [any(isinstance(layer.encoding, ALiBi) for layer in layers)]


def _kind(layers: list[LayerPlan]) -> list[Any]:
    if any(isinstance(layer.encoding, RoPE) for layer in layers):
        return ["rope", "rotary"]
    return ["alibi"] if _biased(layers) == [True] else []


def _fraction(layers: list[LayerPlan]) -> list[Any]:
    """The fraction of a head that turns, also as the whole number 1."""
    found = {x.encoding.rotary_dim / x.encoding.head_dim for x in layers if isinstance(x.encoding, RoPE)}
    return [*found, *(int(x) for x in found if x == 1)] if len(found) == 1 else []


_ECHOES: Mapping[str, Callable[[list[LayerPlan]], list[Any]]] = MappingProxyType(
    {
        "sliding_window_size": _windows,
        "position_embedding_type": _kind,
        "use_rope": _turns,
        "use_rotary": _turns,
        "rotary": _turns,
        "use_alibi": _biased,
        "alibi": _biased,
        "rope_pct": _fraction,
        "rotary_pct": _fraction,
    }
)
