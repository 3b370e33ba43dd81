"""Keys that say again what others said, as real files have them; and words that only look like positions."""

from __future__ import annotations

from typing import Any

import pytest

from ordinate import RoPE
from ordinate.hf import ConfigError, diagnose, from_config
from ordinate.hf.config.reader import concerns_positions

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
    "a base": {"model_type": "lfm2", "theta": 1e6},
    # Keys of LFM2 1.2B, Hy-MT2 7B, Gemma 3n E4B and Llama 4 Maverick.
    "LFM2": {"model_type": "lfm2", "use_pos_enc": True},
    "Hunyuan": {"model_type": "hunyuan_v1_dense", "use_rotary_pos_emb": True},
    "Gemma 3n": {"model_type": "gemma3n_text", "query_pre_attn_scalar": 256},
    "Llama 4": {"model_type": "llama4_text", "nope_layer_interval": 4},
    # The first files of nomic-embed-text have GPT's names and flash-attention's.
    "Nomic": {
        "model_type": "nomic_bert",
        "n_embd": 768,
        "n_head": 12,
        "n_layer": 12,
        "n_positions": 8192,
        "max_trained_positions": 8192,
        "rotary_emb_base": 1000,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "causal": False,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
    },
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
        ("llama", "ropeBase", 7, "10000.0"),
        ("llama", "rope_interleaved", True, "False"),
        ("llama", "nope_layer_interval", 4, ""),
        ("llama4_text", "nope_layer_interval", 3, "4"),
        ("lfm2", "use_pos_enc", False, "True"),
        ("lfm2", "theta", 10000.0, "1000000.0"),
        ("nomic_bert", "rotary_emb_scale_base", 512, ""),
        ("nomic_bert", "rotary_scaling_factor", 2, ""),
        ("nomic_bert", "causal", True, "False"),
        ("nomic_bert", "scale_attn_weights", False, "True"),
        ("stablelm", "is_causal", False, ""),
        ("llama4_text", "is_causal", False, ""),
        ("gemma3_text", "is_causal", False, "True"),
        ("deepseek_v3", "is_causal", False, "True"),
        ("hunyuan_v1_dense", "use_rotary_pos_emb", False, "True"),
        ("gemma3n_text", "query_pre_attn_scalars", 256, ""),
    ],
)
def test_what_disagrees_is_refused(name: str, key: str, value: Any, true: str):
    """Nor what states something else, with nothing to compare it with."""
    rule = f"agree with what .* say, {true}" if true else "be .*"
    with pytest.raises(ConfigError, match=f"^{key} must {rule}, got {value!r}$"):
        from_config({"model_type": name, key: value})


def test_a_length_that_disagrees_is_told_and_not_taken():
    plan = from_config({"model_type": "llama", "max_sequence_length": 512})
    assert plan.max_positions == 2048
    assert plan.warnings == (
        "max_sequence_length=512 and max_position_embeddings=2048 differ; the second is taken, as transformers does",
    )


def test_the_names_of_nomics_first_files_stand_for_its_settings():
    """And beside the names that transformers gave them, as in nomic-embed-text-v1.5, the latter are taken."""
    old = {"model_type": "nomic_bert", "n_embd": 1024, "n_head": 16, "n_layer": 24, "n_positions": 8192,
           "max_trained_positions": 2048, "rotary_emb_base": 5000, "rotary_emb_fraction": 0.5}  # fmt: skip
    plan = from_config(old)
    assert (len(plan.layers), plan.max_positions, plan.original_max_positions) == (24, 8192, 2048)
    assert plan.warnings == ()
    with pytest.raises(ConfigError, match="max_trained_positions must be between 1 and 8192, got 9000"):
        from_config({**old, "max_trained_positions": 9000})
    assert repr(plan.layers[0].encoding) == repr(RoPE(64, base=5000.0, rotary_dim=32))
    both = {"model_type": "nomic_bert", "max_position_embeddings": 2048, "max_trained_positions": 2048,
            "n_positions": 8192, "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"},
            "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False}  # fmt: skip
    plan = from_config(both)
    assert plan.max_positions == 2048
    assert repr(plan.layers[0].encoding) == repr(RoPE(64, base=1000.0))
    assert plan.warnings == (
        "max_position_embeddings=2048 and n_positions=8192 differ; the first is taken, as transformers does",
    )


def test_a_second_length_that_the_scaling_reaches_is_the_context():
    yarn = {"type": "yarn", "factor": 16.0, "original_max_position_embeddings": 8192, "finetuned": True}
    values = {"model_type": "mistral", "max_position_embeddings": 32768, "rope_scaling": yarn}
    assert diagnose(from_config(values)).effective_context == 32768
    found = diagnose(from_config({**values, "max_sequence_length": 131072}))
    assert (found.effective_context, found.original_max_positions, found.warnings) == (131072, 8192, ())


@pytest.mark.parametrize(
    "key", ["rope_new", "mrope_new", "ropeNew", "maxPositionThing", "use_yarn", "no_rope"]
)
def test_a_word_about_positions_is_refused_wherever_it_stands(key: str):
    with pytest.raises(ConfigError, match=f"{key} must be a setting that ordinate understands"):
        from_config({"model_type": "llama", key: 7})
