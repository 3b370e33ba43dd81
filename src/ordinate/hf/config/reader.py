"""`Reader` reads a config key by key: checks values, records uses, and refuses unread keys about positions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...checks import as_int, nearest, refused, short
from ...text import Text
from .plan import ConfigError, Reading

# Larger sizes in a config are a mistake, and building the encodings could exhaust the memory.
MOST_LAYERS = 1 << 14
MOST_HEADS = 1 << 16
MOST_CHANNELS = 1 << 16
MOST_WIDTH = 1 << 24
MOST_POSITIONS = 1 << 40

# A key with a word that begins with one of these is about positions, or about how logits are formed, and must be
# understood. Words begin after an underscore: `composition` does not contain the word `position`.
_CONCERNS_POSITIONS = re.compile(
    r"(?:^|[^a-z])(?:[imx]?rope|longrope|rotary|position|alibi|relative|window|sliding|yarn|ntk|theta|nope|sinusoid|layer_types"
    r"|attention_chunk|attention_bias_|attn_bias_|attn_config|pos_emb|pos_enc|max_distance|buckets"
    r"|temperature_tuning|pre_attn_scalar|attention_multiplier|attn_scale|scale_attn|softmax_scale"
    r"|per_layer_config|logn|sequence_length|seq_len|seq_length|global_attn|local_attention|local_attn)"
)

# Keys with such a word that concern neither positions of text nor its logits.
_UNCONCERNED = re.compile(
    r"^(mlp_layer_types|mtp_.*|.*_dropout|.*dropout.*|.*_token_id|.*_token_index|.*_token|index_.*"
    r"|indexer_.*|memory_.*|tokenizer_.*|use_cache|.*_loss_.*|vision_.*|image_.*"
    r"|video_.*|audio_.*|position_id_per_seconds|seconds_per_chunk|mask_time_.*|mask_feature_.*|_name_or_path|.*_initializer.*)$"
)

# If a file has both the common name of a setting and the family's own name, transformers reads the common one, except
# for these.
_OWN_NAME_FIRST = frozenset({"n_embed", "max_seq_len", "rotary_emb_base", "rotary_pct", "head_dim"})

_MISSING: Any = object()


def checked_integer(name: str, value: object, least: int, most: int) -> int:
    # JSON written by other languages may have 4096.0.
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    try:
        value = as_int(name, value)
    except TypeError:
        raise refused(name, "must be a whole number", short(value), error=ConfigError) from None
    if not least <= value <= most:
        raise refused(
            name,
            "must be between {least} and {most}",
            short(value),
            error=ConfigError,
            least=least,
            most=most,
        )
    return value


def checked_number(
    name: str, value: object, above: float | None, least: float | None, most: float
) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise refused(name, "must be a number", short(value), error=ConfigError)
    low = above if above is not None else least if least is not None else -most
    inside = (value > low if above is not None else value >= low) and value <= most
    if not inside:  # comparisons with NaN are false, so NaN is refused too
        rule = "must be at least {least} and at most {most}"
        if above is not None:
            rule = "must be greater than {least} and at most {most}"
        raise refused(name, rule, short(value), error=ConfigError, least=f"{low:g}", most=f"{most:g}")
    return float(value)


class Reader:
    """A config, or a part of one, that records which keys were read.

    Args:
        values: The config's keys and values.
        defaults: The values that the family's own code uses for absent keys.
        keys: The common name of a key → the family's name: ``{"hidden_size": "n_embd"}``.
        path: The prefix of keys in messages, for parts of a config.
        parent: The reader that this is a part of; both record into one list.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        *,
        defaults: Mapping[str, Any] | None = None,
        keys: Mapping[str, str] | None = None,
        path: str = "",
        parent: Reader | None = None,
    ) -> None:
        self.values, self.defaults, self.keys, self.path = values, defaults or {}, keys or {}, path
        self.readings: list[Reading] = parent.readings if parent else []
        self.warnings: list[str] = parent.warnings if parent else []
        self.used: set[str] = set()

    def spelled(self, key: str) -> str:
        """The key's name in messages: the name in the config, or else the family's name."""
        return f"{self.path}{[*self._given(key), self.keys.get(key, key)][0]}"

    def has(self, key: str) -> bool:
        """Whether the config, not only the defaults, has a value other than null."""
        return bool(self._given(key))

    def _given(self, key: str) -> list[str]:
        """The config's names of a setting; first the name that transformers reads."""
        own = self.keys.get(key, key)
        names = (own, key) if own in _OWN_NAME_FIRST else (key, own)
        return [name for name in dict.fromkeys(names) if self.values.get(name) is not None]

    def peek(self, key: str) -> Any:
        """A value or the family's default, unchecked and unrecorded.

        A null in the config is a value: the family's default does not replace it.
        """
        given = self._given(key)
        if given:
            return self.values[given[0]]
        is_null = self.keys.get(key, key) in self.values or key in self.values
        return None if is_null else self.defaults.get(key)

    def ask(self, key: str, meaning: str, default: Any = _MISSING) -> Any:
        """A value, or the family's default, or ``default``; recorded with its meaning.

        Raises:
            ConfigError: The key is missing and has no default.
        """
        self.skip(key)
        value, given = self.peek(key), self._given(key)
        if value is None and default is _MISSING:
            raise refused(
                self.spelled(key),
                "must be given, it is {meaning}",
                Text("nothing"),
                error=ConfigError,
                meaning=meaning,
            )
        if value is None:
            return default
        if len(given) > 1:
            first, second = (f"{self.path}{name}" for name in given)
            self.warn_if_different(first, value, second, self.values[given[1]])
        source = "" if given else " (not in the config: the family's default)"
        self.readings.append(Reading(self.spelled(key), value, f"{meaning}{source}"))
        return value

    def integer(
        self,
        key: str,
        meaning: str,
        default: Any = _MISSING,
        *,
        least: int = 1,
        most: int = MOST_POSITIONS,
    ) -> Any:
        value = self.ask(key, meaning, default)
        return value if value is default else checked_integer(self.spelled(key), value, least, most)

    def number(
        self,
        key: str,
        meaning: str,
        default: Any = _MISSING,
        *,
        above: float | None = None,
        least: float | None = None,
        most: float = 1e30,
    ) -> Any:
        value = self.ask(key, meaning, default)
        return (
            value if value is default else checked_number(self.spelled(key), value, above, least, most)
        )

    def boolean(self, key: str, meaning: str, default: Any = _MISSING) -> Any:
        value = self.ask(key, meaning, default)
        if value is not default and not isinstance(value, bool):
            raise refused(self.spelled(key), "must be true or false", short(value), error=ConfigError)
        return value

    def choice(self, key: str, meaning: str, choices: Iterable[str], default: Any = _MISSING) -> Any:
        value, choices = self.ask(key, meaning, default), list(choices)
        if value is not default and (not isinstance(value, str) or value not in choices):
            word = value if isinstance(value, str) and len(value) < 60 else ""
            raise refused(
                self.spelled(key), "must be known", short(value),
                error=ConfigError, advice="{near}", near=nearest(word, choices),
            )  # fmt: skip
        return value

    def sequence(
        self, key: str, meaning: str, default: Any = _MISSING, *, length: int | None = None
    ) -> Any:
        value = self.ask(key, meaning, default)
        if value is default:
            return value
        if not isinstance(value, (list, tuple)):
            raise refused(self.spelled(key), "must be a list", short(value), error=ConfigError)
        if length is not None and len(value) != length:
            raise refused(
                self.spelled(key),
                "must have {length} entries",
                f"{len(value)}: {short(value)}",
                error=ConfigError,
                length=length,
            )
        return value

    def part(self, key: str) -> Reader | None:
        """A reader of the mapping under a key, or None if there is no mapping."""
        self.skip(key)
        value, name = self.peek(key), self.spelled(key)
        if value is None:
            return None
        if not isinstance(value, Mapping) or not all(isinstance(word, str) for word in value):
            raise refused(name, "must be a mapping", short(value), error=ConfigError)
        return Reader(value, path=f"{name}.", parent=self)

    def skip(self, *keys: str) -> None:
        """Mark keys as read that have no effect here."""
        self.used |= {name for key in keys for name in (key, self.keys.get(key, key))}

    def fixed(self, key: str, expected: Any) -> None:
        """Refuse a key whose value is given and is not ``expected``."""
        self.skip(key)
        if self.has(key) and self.peek(key) != expected:
            raise refused(
                self.spelled(key),
                "must be {expected}, this model's code knows no other",
                short(self.peek(key)),
                error=ConfigError,
                expected=short(expected),
            )

    def warn(self, template: str, **facts: Any) -> None:
        """Add a sentence to the warnings, once."""
        sentence = Text(template, **facts)
        if sentence not in self.warnings:
            self.warnings.append(sentence)

    def warn_if_different(self, taken: str, value: object, other: str, ignored: object) -> None:
        """Warn if two keys of one setting differ; the first is the one that counts."""
        if value != ignored:
            self.warn(
                "{taken}={value} and {other}={ignored} differ; the first is taken, as transformers does",
                taken=taken,
                value=short(value),
                other=other,
                ignored=short(ignored),
            )

    def refuse_rest(self, concerns: Callable[[str], bool] | None = None) -> None:
        """Refuse the first key that concerns positions and was not read.

        Raises:
            ConfigError: There is such a key, with a value other than null.
        """
        for key, value in self.values.items():
            if key not in self.used and value is not None and (concerns or concerns_positions)(key):
                raise refused(
                    f"{self.path}{key}",
                    "must be a setting that ordinate understands for this model",
                    short(value),
                    error=ConfigError,
                )


def concerns_positions(key: str) -> bool:
    """Whether a key's name is about positions, or about how logits are computed."""
    words = snake_case(key)
    return bool(_CONCERNS_POSITIONS.search(words)) and not _UNCONCERNED.match(words)


def snake_case(key: str) -> str:
    """``useRotary_pos_emb`` → ``use_rotary_pos_emb``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower()
