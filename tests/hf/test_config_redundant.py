"""Keys that say again what others said, as real files have them; and words that only look like positions."""

from __future__ import annotations

from typing import Any

import pytest

from ordinate.hf import ConfigError, diagnose, from_config
from ordinate.hf.reader import concerns_positions

AGREEING: dict[str, dict[str, Any]] = {
    "gemma-2-9b": {"model_type": "gemma2", "sliding_window": 4096, "sliding_window_size": 4096},
    "pixtral": {"model_type": "llama", "is_composition": True},
    "words": {"model_type": "llama", "use_decomposition": True, "properties": 3},
    "a kind": {"model_type": "llama", "position_embedding_type": "rope"},
    "a switch": {"model_type": "llama", "use_rope": True, "alibi": False},
    "a fraction": {"model_type": "llama", "rope_pct": 1.0},
    "a part": {"model_type": "phi", "rope_pct": 0.5},
    "a length": {"model_type": "llama", "max_position_embeddings": 4096, "seq_length": 4096},
    "bloom": {"model_type": "bloom", "alibi": True},
}


@pytest.mark.parametrize("values", AGREEING.values(), ids=AGREEING)
def test_what_agrees_is_read_and_recorded(values: dict[str, Any]):
    plan = from_config(values)
    assert plan.warnings == ()
    recorded = {reading.key for reading in plan.read}
    assert {key for key in values if concerns_positions(key)} <= recorded


@pytest.mark.parametrize(
    ("name", "key", "value", "true"),
    [
        ("gemma2", "sliding_window_size", 2048, "4096"),
        ("llama", "position_embedding_type", "absolute", "'rope'"),
        ("llama", "use_rope", False, "True"),
        ("llama", "use_rope", 1, "True"),
        ("llama", "use_alibi", True, "False"),
        ("phi", "rope_pct", 0.25, "0.5"),
        ("llama", "rotary_pct", float("nan"), "1.0"),
    ],
)
def test_what_disagrees_is_refused(name: str, key: str, value: Any, true: str):
    with pytest.raises(ConfigError, match=f"^{key} must agree with what .* say, {true}, got {value!r}$"):
        from_config({"model_type": name, key: value})


def test_a_length_that_disagrees_is_told_and_not_taken():
    plan = from_config({"model_type": "llama", "max_sequence_length": 512})
    assert plan.max_positions == 2048
    assert plan.warnings == (
        "max_sequence_length=512 and max_position_embeddings=2048 differ; the second is taken, as transformers does",
    )


def test_a_second_length_that_the_scaling_reaches_is_the_context():
    yarn = {"type": "yarn", "factor": 16.0, "original_max_position_embeddings": 8192, "finetuned": True}
    values = {"model_type": "mistral", "max_position_embeddings": 32768, "rope_scaling": yarn}
    assert diagnose(from_config(values)).effective_context == 32768
    found = diagnose(from_config({**values, "max_sequence_length": 131072}))
    assert (found.effective_context, found.original_max_positions, found.warnings) == (131072, 8192, ())


@pytest.mark.parametrize(
    "key", ["rope_new", "mrope_new", "ropeBase", "maxPositionThing", "use_yarn", "no_rope"]
)
def test_a_word_about_positions_is_refused_wherever_it_stands(key: str):
    with pytest.raises(ConfigError, match=f"{key} must be a setting that ordinate understands"):
        from_config({"model_type": "llama", key: 7})
