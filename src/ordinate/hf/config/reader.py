"""Reading a config key by key: every value checked, every use recorded, nothing left over in silence."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...checks import as_int, nearest, short
from .plan import ConfigError, Reading

# Beyond these a config is a mistake, and building what it says could exhaust the memory.
MOST_LAYERS = 1 << 14
MOST_HEADS = 1 << 16
MOST_CHANNELS = 1 << 16
MOST_WIDTH = 1 << 24
MOST_POSITIONS = 1 << 40

# A key in which a word begins so is about positions, or about how logits are formed. It must be understood.
# Words begin after an underscore: a composition is no position.
_CONCERNS_POSITIONS = re.compile(
    r"(?:^|[^a-z])(?:[imx]?rope|longrope|rotary|position|alibi|relative|window|sliding|yarn|ntk|theta|nope|sinusoid|layer_types"
    r"|attention_chunk|attention_bias_|attn_bias_|attn_config|pos_emb|pos_enc|max_distance|buckets"
    r"|temperature_tuning|pre_attn_scalar|attention_multiplier|attn_scale|scale_attn|softmax_scale"
    r"|per_layer_config|logn|sequence_length|seq_len|seq_length|global_attn|local_attention|local_attn)"
)

# These contain such a word and yet say nothing about positions of text or about its logits.
_UNCONCERNED = re.compile(
    r"^(mlp_layer_types|mtp_.*|.*_dropout|.*dropout.*|.*_token_id|.*_token_index|.*_token|index_.*"
    r"|indexer_.*|memory_.*|tokenizer_.*|use_cache|.*_loss_.*|vision_.*|image_.*"
    r"|video_.*|audio_.*|position_id_per_seconds|seconds_per_chunk|mask_time_.*|mask_feature_.*|_name_or_path|.*_initializer.*)$"
)

# transformers takes the common name of a setting where a file has that and the family's own, but for these.
_OWN_NAME_FIRST = frozenset({"n_embed", "max_seq_len", "rotary_emb_base", "rotary_pct", "head_dim"})

_MISSING: Any = object()


class Reader:
    """A config, or a part of one, that remembers what was asked of it.

    Args:
        values: The config's own keys.
        defaults: What the family's own code takes for keys that are left out.
        keys: The family's names for keys that others call otherwise: ``{"hidden_size": "n_embd"}``.
        path: What comes before a key in messages, for parts of a config.
        parent: The reader this is a part of; both record into one list.
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

    def name(self, key: str) -> str:
        """The key as this config spells it: its own name if the family has one, else ours."""
        return self.keys.get(key, key)

    def spelled(self, key: str) -> str:
        """The key as a message names it: as the config has it, or else as the family would."""
        return f"{self.path}{self._find(key) or self.name(key)}"

    def has(self, key: str) -> bool:
        """Whether the config itself holds a value other than null."""
        return self._find(key) is not None

    def _find(self, key: str) -> str | None:
        return next((name for name in self._names(key) if self.values.get(name) is not None), None)

    def _names(self, key: str) -> tuple[str, ...]:
        """The names a setting may have, first the one that transformers takes where a file has both."""
        own = self.name(key)
        return (key,) if own == key else (own, key) if own in _OWN_NAME_FIRST else (key, own)

    def _default(self, key: str) -> Any:
        """The family's value for a key left out. A null in the config is an answer: there is none."""
        present = self.name(key) in self.values or key in self.values
        return None if present else self.defaults.get(key)

    def peek(self, key: str) -> Any:
        """A value, unchecked and unrecorded."""
        found = self._find(key)
        return self._default(key) if found is None else self.values[found]

    def ask(self, key: str, meaning: str, default: Any = _MISSING) -> Any:
        """A value, or the family's default, or ``default``; recorded with what it means.

        Raises:
            ConfigError: The key is missing and nothing stands in for it.
        """
        self.used |= {key, self.name(key)}
        found = self._find(key)
        if found is not None:
            self._warn_of_two_names(key)
            self.readings.append(Reading(f"{self.path}{found}", self.values[found], meaning))
            return self.values[found]
        value = self._default(key)
        if value is not None:
            self.readings.append(
                Reading(self.spelled(key), value, f"{meaning} (not in the config: the family's default)")
            )
            return value
        if default is _MISSING:
            raise ConfigError(f"{self.spelled(key)} must be given, it is {meaning}, got nothing")
        return default

    def _warn_of_two_names(self, key: str) -> None:
        given = [name for name in self._names(key) if self.values.get(name) is not None]
        if len(given) > 1 and self.values[given[0]] != self.values[given[1]]:
            first, second = (f"{self.path}{name}={short(self.values[name])}" for name in given)
            self.warn(f"{first} and {second} differ; the first is taken, as transformers does")

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
        return value if value is default else self.checked_integer(self.spelled(key), value, least, most)

    @staticmethod
    def checked_integer(name: str, value: object, least: int, most: int) -> int:
        # JSON written by other languages may say 4096.0.
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            value = int(value)
        try:
            value = as_int(name, value)
        except TypeError:
            raise ConfigError(f"{name} must be a whole number, got {short(value)}") from None
        if not least <= value <= most:
            raise ConfigError(f"{name} must be between {least} and {most}, got {short(value)}")
        return value

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
        if value is default:
            return value
        return self.checked_number(self.spelled(key), value, above, least, most)

    @staticmethod
    def checked_number(
        name: str, value: object, above: float | None, least: float | None, most: float
    ) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ConfigError(f"{name} must be a number, got {short(value)}")
        low = above if above is not None else least if least is not None else -most
        inside = (value > low if above is not None else value >= low) and value <= most
        if not inside:  # NaN compares as false and lands here too
            rule = f"greater than {low:g}" if above is not None else f"at least {low:g}"
            raise ConfigError(f"{name} must be {rule} and at most {most:g}, got {short(value)}")
        return float(value)

    def boolean(self, key: str, meaning: str, default: Any = _MISSING) -> Any:
        value = self.ask(key, meaning, default)
        if value is not default and not isinstance(value, bool):
            raise ConfigError(f"{self.spelled(key)} must be true or false, got {short(value)}")
        return value

    def choice(self, key: str, meaning: str, choices: Iterable[str], default: Any = _MISSING) -> Any:
        value = self.ask(key, meaning, default)
        choices = list(choices)
        if value is not default and (not isinstance(value, str) or value not in choices):
            close = nearest(value, choices) if isinstance(value, str) and len(value) < 60 else ""
            allowed = close or f"; known: {', '.join(choices)}"
            raise ConfigError(f"{self.spelled(key)} must be known, got {short(value)}{allowed}")
        return value

    def sequence(
        self, key: str, meaning: str, default: Any = _MISSING, *, length: int | None = None
    ) -> Any:
        value = self.ask(key, meaning, default)
        if value is default:
            return value
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{self.spelled(key)} must be a list, got {short(value)}")
        if length is not None and len(value) != length:
            raise ConfigError(
                f"{self.spelled(key)} must have {length} entries, got {len(value)}: {short(value)}"
            )
        return value

    def part(self, key: str, *, defaults: Mapping[str, Any] | None = None) -> Reader | None:
        """The mapping under a key as a reader of its own, or None where there is none."""
        self.used |= {key, self.name(key)}
        found = self._find(key)
        value = self._default(key) if found is None else self.values[found]
        if value is None:
            return None
        name = self.name(key) if found is None else found
        if not isinstance(value, Mapping) or not all(isinstance(word, str) for word in value):
            raise ConfigError(f"{self.path}{name} must be a mapping, got {short(value)}")
        return Reader(value, defaults=defaults, path=f"{self.path}{name}.", parent=self)

    def skip(self, *keys: str) -> None:
        """Keys that are understood and need no reading."""
        self.used |= {name for key in keys for name in (key, self.name(key))}

    def fixed(self, key: str, expected: Any) -> None:
        """A key whose value must be this one, where it is given."""
        self.skip(key)
        if self.has(key) and self.peek(key) != expected:
            raise ConfigError(
                f"{self.spelled(key)} must be {short(expected)}, this model's code knows no other, "
                f"got {short(self.peek(key))}"
            )

    def warn(self, sentence: str) -> None:
        if sentence not in self.warnings:
            self.warnings.append(sentence)

    def refuse_rest(self, concerns: Callable[[str], bool] | None = None) -> None:
        """Refuse the first key that concerns positions and that nobody asked for.

        Raises:
            ConfigError: There is one, with a value other than null.
        """
        for key, value in self.values.items():
            if key in self.used or value is None:
                continue
            if (concerns or concerns_positions)(key):
                raise ConfigError(
                    f"{self.path}{key} must be a setting that ordinate understands for this model, "
                    f"got {short(value)}"
                )


def concerns_positions(key: str) -> bool:
    """Whether a key by its name is about positions, or about how logits are formed."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower()
    return bool(_CONCERNS_POSITIONS.search(words)) and not _UNCONCERNED.match(words)
