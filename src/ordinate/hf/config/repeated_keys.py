"""Keys that say again what others said: taken where they agree, told or refused where they do not.

Published files carry many. Which fact a key repeats is read from its words, whatever their order and whatever
fills them up: ``rotary_emb_base``, ``rope_base`` and ``theta`` all state the base. A key with any other word in it
(``rope_local_base``) states something else, and is refused with the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ...bias.alibi import ALiBi
from ...checks import short
from ...encoding import NoPE
from ...rotate.rope import RoPE
from .context_length import reach_of, scalings
from .families.family import Draft
from .plan import ConfigError, Reading
from .reader import Reader


def read_redundant(reader: Reader, draft: Draft) -> None:
    """Compare the keys that nobody asked for with what was read; a stretched length completes the draft.

    Raises:
        ConfigError: One of them contradicts what the model's code does.
    """
    for key, value in reader.values.items():
        if key in reader.used or value is None:
            continue
        if isinstance(value, (int, float)) and not isinstance(value, bool) and states_a_length(key):
            _read_length(reader, draft, key)
        words = _words(key)
        facts = next((echo.facts for echo in _ECHOES if echo.is_stated_by(words)), None)
        expected = facts(draft) if facts else []
        if not expected:
            continue  # nothing to compare it with: refused with the rest
        if not any(value == x and isinstance(value, bool) == isinstance(x, bool) for x in expected):
            raise ConfigError(
                f"{reader.spelled(key)} must agree with what this model's other settings say, "
                f"{short(expected[0])}, got {short(value)}"
            )
        reader.skip(key)
        reader.readings.append(Reading(f"{reader.path}{key}", value, "agrees with what was read"))


def _read_length(reader: Reader, draft: Draft, key: str) -> None:
    start, trained = draft.max_positions, draft.original_max_positions
    if _words(key) & _TRAINED and start is not None and trained in (None, start):
        draft.original_max_positions = reader.integer(
            key, "the length the frequencies were trained at", most=start
        )
        return
    length = reader.integer(key, "the longest context, said again")
    reached = [reach_of(scaling, start) for scaling in scalings(draft.layers)]
    if start is None or length in reached:
        draft.max_positions = length
    elif length != start:
        reader.warn(
            f"{reader.spelled(key)}={length} and {reader.spelled('max_position_embeddings')}={start} differ; "
            f"the second is taken, as transformers does"
        )


def _words(key: str) -> frozenset[str]:
    """``useRotary_pos_emb`` → use, rotary, pos, emb."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower()
    return frozenset(word for word in re.split(r"[^a-z0-9]+", spaced) if word)


def _of(words: str) -> frozenset[str]:
    return frozenset(words.split())


_POSITION = _of("pos position positions positional")
_TABLE = _of("emb embed embedding embeddings")
_FILLER = _of("use is enable enabled") | _POSITION | _TABLE
_SEQUENCE = _of("seq sequence seqlen ctx context positions position")
_TRAINED = _of("trained train training")


def states_a_length(key: str) -> bool:
    """Whether a key is a number of positions. ``max_length`` is none: it ends a generated text.

    Those that no model's code reads are the context said again, or the length that a model is stretched to.

    Example:
        >>> [states_a_length(key) for key in ("n_positions", "max_seq_len", "max_length", "max_relative_positions")]
        [True, True, False, False]
    """
    words = _words(key)
    filler = _of("max n num len length") | _TRAINED | _TABLE
    return bool(words & _SEQUENCE) and words <= _SEQUENCE | filler


@dataclass(frozen=True)
class _Echo:
    """A fact about a whole model that some keys repeat.

    Attributes:
        words: What such a key is made of: one of these sets.
        facts: The values that are true of a model; none where nothing can be said of it as a whole.
        filler: Words that it may have besides.
    """

    words: tuple[str, ...]
    facts: Callable[[Draft], list[Any]]
    filler: frozenset[str] = _FILLER

    def is_stated_by(self, words: frozenset[str]) -> bool:
        return any(_of(one) <= words <= _of(one) | self.filler for one in self.words)


def _common(values: Iterable[Any]) -> list[Any]:
    """The one value that all have, in a list."""
    found = list(dict.fromkeys(values))
    return found if len(found) == 1 else []


def _ropes(draft: Draft) -> list[RoPE]:
    return [layer.encoding for layer in draft.layers if isinstance(layer.encoding, RoPE)]


def _windows(draft: Draft) -> list[Any]:
    return sorted({layer.window for layer in draft.layers if layer.window is not None})


def _turns(draft: Draft) -> list[Any]:
    """True, for a model whose layers all turn; nothing can be said of one where only some do."""
    return _common(isinstance(layer.encoding, RoPE) for layer in draft.layers)


def _still(draft: Draft) -> list[Any]:
    """One layer in so many does not turn."""
    still = [layer.index for layer in draft.layers if not isinstance(layer.encoding, RoPE)]
    step = still[0] + 1 if still else 0
    return [step] if still and still == list(range(step - 1, len(draft.layers), step)) else []


def _encoded(draft: Draft) -> list[Any]:
    """Whether anything tells the model the order of its tokens."""
    return [bool(draft.embeddings) or any(type(x.encoding) is not NoPE for x in draft.layers)]


def _biased(draft: Draft) -> list[Any]:
    return [any(isinstance(layer.encoding, ALiBi) for layer in draft.layers)]


def _kind(draft: Draft) -> list[Any]:
    if _ropes(draft):
        return ["rope", "rotary"]
    return ["alibi"] if _biased(draft) == [True] else []


def _unscaled(draft: Draft) -> list[Any]:
    """Logits divided by the root of head_dim, and by nothing else."""
    return [all(layer.scale is None for layer in draft.layers)]


_TURNED = _of("rope rotary freq frequency") | _TABLE

_ECHOES = (
    _Echo(("sliding window size",), _windows, frozenset()),
    _Echo(("position type", "pos type", "positional type"), _kind, _TABLE | _of("encoding")),
    _Echo(("rope", "rotary"), _turns),
    _Echo(("alibi",), _biased),
    _Echo(
        ("pos enc", "position encoding", "positional encoding"), _encoded, _of("use is enable enabled")
    ),
    _Echo(("nope layer interval", "no rope layer interval"), _still, frozenset()),
    _Echo(
        ("theta", "rope base", "rotary base"),
        lambda draft: _common(x.base for x in _ropes(draft)),
        _TURNED,
    ),
    _Echo(
        ("rope pct", "rotary pct", "rope fraction", "rotary fraction"),
        lambda draft: _common(x.rotary_dim / x.head_dim for x in _ropes(draft)),
        _TURNED,
    ),
    _Echo(
        ("rope interleaved", "rotary interleaved"),
        lambda draft: _common(x.layout == "interleaved" for x in _ropes(draft)),
        _TURNED,
    ),
    _Echo(
        ("causal",),
        lambda draft: _common(layer.causal for layer in draft.layers),
        _of("is use attention attn"),
    ),
    _Echo(("scale attn weights",), _unscaled, frozenset()),
    _Echo(("scale attn by inverse layer idx",), lambda draft: [False], frozenset()),
)
