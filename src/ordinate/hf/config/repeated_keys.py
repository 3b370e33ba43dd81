"""Keys that repeat a fact of other keys: accepted if they agree, otherwise a warning or a refusal.

Published files have many. The words of a key determine which fact it repeats, in any order and with common words
such as ``use`` or ``emb`` added: ``rotary_emb_base``, ``rope_base`` and ``theta`` all state the base. A key with any
other word (``rope_local_base``) states another fact, and is refused as an unread key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ...bias.alibi import ALiBi
from ...checks import refused, short
from ...encoding import NoPE
from ...rotate.rope import RoPE
from .context_length import reach_of, scalings
from .families.family import Draft
from .plan import ConfigError, Reading
from .reader import Reader, snake_case


def read_repeated_keys(reader: Reader, draft: Draft) -> None:
    """Compare the unread keys with the facts that were read; put a length after scaling into the draft.

    Raises:
        ConfigError: An unread key contradicts what the model's code does.
    """
    for key, value in reader.values.items():
        if key in reader.used or value is None:
            continue
        if isinstance(value, (int, float)) and not isinstance(value, bool) and states_a_length(key):
            _read_length(reader, draft, key)
        words = _words(key)
        expected = next((fact.values(draft) for fact in _FACTS if fact.is_stated_by(words)), [])
        if not expected:
            continue  # no fact to compare with: refused later as an unread key
        if not any(value == x and isinstance(value, bool) == isinstance(x, bool) for x in expected):
            raise refused(
                reader.spelled(key),
                "must agree with what this model's other settings say, {expected}",
                short(value),
                error=ConfigError,
                expected=short(expected[0]),
            )
        reader.skip(key)
        reader.readings.append(Reading(f"{reader.path}{key}", value, "agrees with what was read"))


def _read_length(reader: Reader, draft: Draft, key: str) -> None:
    context, original = draft.max_positions, draft.original_max_positions
    if _words(key) & _TRAINED and context is not None and original in (None, context):
        meaning = "the length the frequencies were trained at"
        draft.original_max_positions = reader.integer(key, meaning, most=context)
        return
    length = reader.integer(key, "the longest context, said again")
    reached = [reach_of(scaling, context) for scaling in scalings(draft.layers)]
    if context is None or length in reached:
        draft.max_positions = length
    elif length != context:
        reader.warn(
            "{ignored}={length} and {taken}={context} differ; the second is taken, as transformers does",
            ignored=reader.spelled(key),
            length=length,
            taken=reader.spelled("max_position_embeddings"),
            context=context,
        )


def _words(key: str) -> frozenset[str]:
    """``useRotary_pos_emb`` → use, rotary, pos, emb."""
    return frozenset(word for word in re.split(r"[^a-z0-9]+", snake_case(key)) if word)


def _of(words: str) -> frozenset[str]:
    return frozenset(words.split())


_POSITION = _of("pos position positions positional")
_TABLE = _of("emb embed embedding embeddings")
_USE = _of("use is enable enabled")
_FILLER = _USE | _POSITION | _TABLE
_SEQUENCE = _of("seq sequence seqlen ctx context positions position")
_TRAINED = _of("trained train training")


def states_a_length(key: str) -> bool:
    """Whether a key is a number of positions. ``max_length`` is not: it limits the length of generated text.

    Lengths that a model's code does not read repeat the context, or are the length after scaling.

    Example:
        >>> [states_a_length(key) for key in ("n_positions", "max_seq_len", "max_length", "max_relative_positions")]
        [True, True, False, False]
    """
    words = _words(key)
    filler = _of("max n num len length") | _TRAINED | _TABLE
    return bool(words & _SEQUENCE) and words <= _SEQUENCE | filler


@dataclass(frozen=True)
class _Fact:
    """A fact about a whole model that some keys repeat.

    Attributes:
        words: The words of such a key: one of these sets.
        values: The values that hold for a model; none if layers differ.
        filler: Other words that the key may have.
    """

    words: tuple[str, ...]
    values: Callable[[Draft], list[Any]]
    filler: frozenset[str] = _FILLER

    def is_stated_by(self, words: frozenset[str]) -> bool:
        return any(_of(one) <= words <= _of(one) | self.filler for one in self.words)


def _common(values: Iterable[Any]) -> list[Any]:
    """The common value, in a list; an empty list if the values differ."""
    found = list(dict.fromkeys(values))
    return found if len(found) == 1 else []


def _of_ropes(value: Callable[[RoPE], Any]) -> Callable[[Draft], list[Any]]:
    """What all rotations of a model have in common."""
    return lambda draft: _common(
        value(layer.encoding) for layer in draft.layers if isinstance(layer.encoding, RoPE)
    )


def _interval_without_rotation(draft: Draft) -> list[Any]:
    """n, if every n-th layer has no rotation and the others have one."""
    still = [layer.index for layer in draft.layers if not isinstance(layer.encoding, RoPE)]
    step = still[0] + 1 if still else 0
    return [step] if still and still == list(range(step - 1, len(draft.layers), step)) else []


def _has_alibi(draft: Draft) -> list[Any]:
    return [any(isinstance(layer.encoding, ALiBi) for layer in draft.layers)]


def _kind(draft: Draft) -> list[Any]:
    if any(isinstance(layer.encoding, RoPE) for layer in draft.layers):
        return ["rope", "rotary"]
    return ["alibi"] if _has_alibi(draft) == [True] else []


_TURNED = _of("rope rotary freq frequency") | _TABLE
_NO_FILLER: frozenset[str] = frozenset()

_FACTS = (
    _Fact(
        ("sliding window size",),
        lambda draft: sorted({layer.window for layer in draft.layers if layer.window is not None}),
        _NO_FILLER,
    ),
    _Fact(("position type", "pos type", "positional type"), _kind, _TABLE | _of("encoding")),
    _Fact(
        ("rope", "rotary"),
        lambda draft: _common(isinstance(layer.encoding, RoPE) for layer in draft.layers),
    ),
    _Fact(("alibi",), _has_alibi),
    _Fact(
        ("pos enc", "position encoding", "positional encoding"),
        lambda draft: [
            bool(draft.embeddings) or any(type(layer.encoding) is not NoPE for layer in draft.layers)
        ],
        _USE,
    ),
    _Fact(("nope layer interval", "no rope layer interval"), _interval_without_rotation, _NO_FILLER),
    _Fact(("theta", "rope base", "rotary base"), _of_ropes(lambda rope: rope.base), _TURNED),
    _Fact(
        ("rope pct", "rotary pct", "rope fraction", "rotary fraction"),
        _of_ropes(lambda rope: rope.rotary_dim / rope.head_dim),
        _TURNED,
    ),
    _Fact(
        ("rope interleaved", "rotary interleaved"),
        _of_ropes(lambda rope: rope.layout == "interleaved"),
        _TURNED,
    ),
    _Fact(
        ("causal",),
        lambda draft: _common(layer.causal for layer in draft.layers),
        _of("is use attention attn"),
    ),
    # Logits divided by the root of head_dim, and by nothing else.
    _Fact(
        ("scale attn weights",),
        lambda draft: [all(layer.scale is None for layer in draft.layers)],
        _NO_FILLER,
    ),
    _Fact(("scale attn by inverse layer idx",), lambda draft: [False], _NO_FILLER),
)
