"""Files as published models have them: every key they carry, old ones and stray ones included.

Values are the facts of each model's config.json, shortened where a list is long.
"""

# ruff: noqa: E501  a config a line, however long
from __future__ import annotations

from typing import Any

import pytest
import torch

from ordinate import NoPE, RoPE, hf
from ordinate.hf import ConfigError, from_config
from ordinate.scaling import Llama3, YaRN

FILES: dict[str, tuple[dict[str, Any], str]] = {
    "Llama 2 7B": (
        {"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "max_position_embeddings": 4096, "model_type": "llama",
         "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "pretraining_tp": 1, "rope_scaling": None,
         "torch_dtype": "float16", "use_cache": True, "vocab_size": 32000},
        "RoPE(128, base=10000, layout='half')"),
    "Mistral 7B v0.2": (
        {"model_type": "mistral", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
         "max_position_embeddings": 32768, "rope_theta": 1000000.0, "sliding_window": None},
        "RoPE(128, base=1e+06, layout='half')"),
    "SmolLM2 1.7B": (
        {"model_type": "llama", "hidden_size": 2048, "num_attention_heads": 32, "num_hidden_layers": 24, "max_position_embeddings": 8192,
         "is_llama_config": True, "rope_interleaved": False, "rope_scaling": None, "rope_theta": 130000, "transformers.js_config": {}},
        "RoPE(64, base=130000, layout='half')"),
    "DeepSeek R1 Distill Qwen 7B": (
        {"model_type": "qwen2", "hidden_size": 3584, "num_attention_heads": 28, "num_hidden_layers": 28, "max_position_embeddings": 131072,
         "max_window_layers": 28, "rope_theta": 10000, "sliding_window": 4096, "use_mrope": False, "use_sliding_window": False},
        "RoPE(128, base=10000, layout='half')"),
    "Qwen 3 MoE": (
        {"model_type": "qwen3_moe", "hidden_size": 2048, "num_attention_heads": 32, "num_hidden_layers": 48, "head_dim": 128,
         "max_position_embeddings": 40960, "max_window_layers": 48, "rope_theta": 1000000.0, "rope_scaling": None,
         "sliding_window": None, "use_sliding_window": False, "decoder_sparse_step": 1},
        "RoPE(128, base=1e+06, layout='half')"),
    "GPT-J 6B": (
        {"model_type": "gptj", "n_embd": 4096, "n_head": 16, "n_inner": None, "n_layer": 28, "n_positions": 2048, "rotary": True,
         "rotary_dim": 64, "scale_attn_weights": True, "summary_type": "cls_index", "task_specific_params": {"text-generation": {"temperature": 1.0}}},
        "RoPE(256, base=10000, layout='interleaved', rotary_dim=64)"),
    "Pythia": (
        {"model_type": "gpt_neox", "hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 6, "max_position_embeddings": 2048,
         "rotary_emb_base": 10000, "rotary_pct": 0.25, "use_parallel_residual": True},
        "RoPE(64, base=10000, layout='half', rotary_dim=16)"),
    "Phi-2": (
        {"model_type": "phi", "hidden_size": 2560, "num_attention_heads": 32, "num_hidden_layers": 32, "max_position_embeddings": 2048,
         "partial_rotary_factor": 0.4, "qk_layernorm": False, "rope_scaling": None, "rope_theta": 10000.0},
        "RoPE(80, base=10000, layout='half', rotary_dim=32)"),
    "Command R7B": (
        {"model_type": "cohere2", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32, "head_dim": 128,
         "max_position_embeddings": 8192, "order_of_interleaved_layers": "local_attn_first", "position_embedding_type": "rope_gptj",
         "rope_scaling": None, "rope_theta": 50000, "rotary_pct": 1.0, "sliding_window": 4096, "sliding_window_pattern": 4,
         "use_embedding_sharing": True, "logit_scale": 0.25},
        "RoPE(128, base=50000, layout='interleaved')"),
    "EXAONE 4.0 32B": (
        {"model_type": "exaone4", "hidden_size": 5120, "num_attention_heads": 40, "num_hidden_layers": 4, "head_dim": 128,
         "max_position_embeddings": 131072, "sliding_window": 4096, "sliding_window_pattern": "LLLG", "rope_theta": 1000000,
         "rope_scaling": {"factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}},
        "Llama3(factor=16.0"),
    "ModernBERT": (
        {"model_type": "modernbert", "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 22, "global_attn_every_n_layers": 3,
         "global_rope_theta": 160000.0, "local_attention": 128, "local_rope_theta": 10000.0, "max_position_embeddings": 8192,
         "position_embedding_type": "absolute", "classifier_pooling": "mean", "deterministic_flash_attn": False},
        "RoPE(64, base=160000, layout='half')"),
    "Kimi K2": (
        {"model_type": "kimi_k2", "hidden_size": 7168, "num_attention_heads": 64, "num_hidden_layers": 61, "max_position_embeddings": 131072,
         "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "rope_theta": 50000.0, "routed_scaling_factor": 2.827,
         "rope_scaling": {"beta_fast": 1.0, "beta_slow": 1.0, "factor": 32.0, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn"}},
        "layout='interleaved'"),
    "MiniMax M2": (
        {"model_type": "minimax_m2", "hidden_size": 3072, "num_attention_heads": 48, "num_hidden_layers": 62, "head_dim": 128,
         "max_position_embeddings": 196608, "rope_theta": 5000000, "rotary_dim": 64, "attn_type_list": [1] * 62},
        "RoPE(128, base=5e+06, layout='half', rotary_dim=64)"),
    "T5 small": (
        {"model_type": "t5", "d_ff": 2048, "d_kv": 64, "d_model": 512, "n_positions": 512, "num_heads": 8, "num_layers": 6,
         "relative_attention_num_buckets": 32, "is_encoder_decoder": True},
        "T5Bias(8, num_buckets=32"),
    "BLOOM 176B": (
        {"model_type": "bloom", "attention_softmax_in_fp32": True, "hidden_size": 14336, "n_layer": 70, "num_attention_heads": 112,
         "offset_alibi": 100, "seq_length": 2048, "slow_but_exact": False, "masked_softmax_fusion": True},
        "ALiBi(112"),
    "MPT 7B": (
        {"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "max_seq_len": 2048, "learned_pos_emb": True, "init_config": {"name": "kaiming_normal_"},
         "attn_config": {"alibi": True, "alibi_bias_max": 8, "attn_impl": "torch", "attn_pdrop": 0, "attn_type": "multihead_attention",
                         "attn_uses_sequence_id": False, "clip_qkv": None, "prefix_lm": False, "qk_ln": False, "softmax_scale": None}},
        "ALiBi(32"),
    "Opus-MT": (
        {"model_type": "marian", "d_model": 512, "decoder_attention_heads": 8, "decoder_layers": 6, "encoder_attention_heads": 8, "encoder_layers": 6,
         "extra_pos_embeddings": 58101, "max_position_embeddings": 512, "num_hidden_layers": 6, "scale_embedding": True, "static_position_embeddings": True},
        "Sinusoidal(512, base=10000, layout='half'"),
    "Llama 3.2 Vision": (
        {"model_type": "mllama", "image_token_index": 128256, "vision_config": {"model_type": "mllama_vision_model"},
         "text_config": {"model_type": "mllama_text_model", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 40, "cross_attention_layers": [3, 8, 13],
                         "max_position_embeddings": 131072, "rope_theta": 500000.0,
                         "rope_scaling": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}}},
        "Llama3(factor=8.0"),
}  # fmt: skip


@pytest.mark.parametrize("name", [n for n in FILES if n != "Kimi K2"])
def test_a_published_file_is_read_whole(name: str):
    values, words = FILES[name]
    plan = from_config(values)
    assert words in repr(plan)
    assert plan.warnings == ()


def test_kimis_betas_are_equal_and_make_a_step_not_a_ramp():
    """beta_fast = beta_slow = 1: pairs that turn once or more are kept, the others divided."""
    plan = from_config(FILES["Kimi K2"][0])
    scaling = plan.layers[0].encoding.scaling
    assert isinstance(scaling, YaRN)
    from hf_cases import rotary_module, small_config

    kept = scaling.kept(50000.0, 64)
    turns = 4096 * 50000.0 ** (-torch.arange(0, 64, 2).double() / 64) / (2 * torch.pi)
    assert int(((kept > 0) & (kept < 1)).sum()) == 0
    assert kept[turns > 1].tolist() == [1.0] * int((turns > 1).sum())
    assert not kept[turns < 1].any()
    parameters = {**FILES["Kimi K2"][0]["rope_scaling"], "rope_type": "yarn", "rope_theta": 50000.0}
    theirs = rotary_module(
        "deepseek_v3", small_config("deepseek_v3", qk_rope_head_dim=64, rope_parameters=parameters)
    )
    torch.testing.assert_close(
        hf.checkpoint_inv_freq(plan.layers[0].encoding), theirs.inv_freq, rtol=0, atol=0
    )
    assert plan.layers[0].scale == pytest.approx(
        (0.1 * torch.log(torch.tensor(32.0)).item() + 1) ** 2 / 192**0.5, rel=1e-6
    )


def test_llama_4_scout_does_not_blend():
    text = {"model_type": "llama4_text", "num_hidden_layers": 4, "attention_chunk_size": 8192, "attn_scale": 0.1, "attn_temperature_tuning": 4,
            "floor_scale": 8192, "for_llm_compressor": False, "max_position_embeddings": 10485760, "no_rope_layers": [], "rope_theta": 500000.0,
            "rope_scaling": {"factor": 16.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}}  # fmt: skip
    plan = from_config(
        {
            "model_type": "llama4",
            "text_config": text,
            "vision_config": {"rope_theta": 10000},
            "boi_token_index": 200080,
        }
    )
    rope = plan.layers[0].encoding
    assert isinstance(rope, RoPE)
    assert rope.scaling == Llama3(16.0, 1.0, 1.0, 8192)
    assert plan.layers[3].temperature == hf.Temperature(0.1, 8192, 1)
    from transformers import Llama4TextConfig
    from transformers.models.llama4.modeling_llama4 import Llama4TextRotaryEmbedding

    theirs = Llama4TextRotaryEmbedding(
        Llama4TextConfig.from_dict({**text, "attn_temperature_tuning": True})
    )
    torch.testing.assert_close(hf.checkpoint_inv_freq(rope), theirs.inv_freq, rtol=0, atol=0)
    ratio = rope.inv_freq() / RoPE(128, base=500000.0).inv_freq()
    assert set(ratio.round(decimals=6).tolist()) == {1.0, 0.0625}


def test_layers_of_llama_3_2_vision_that_see_images_have_no_encoding():
    plan = from_config(FILES["Llama 3.2 Vision"][0])
    still = [layer.index for layer in plan.layers if type(layer.encoding) is NoPE]
    assert still == [3, 8, 13]
    assert plan.layers[3].layer_type == "cross_attention"


def test_a_word_for_a_pattern_of_layers():
    plan = from_config(FILES["EXAONE 4.0 32B"][0])
    assert [layer.window for layer in plan.layers] == [4096, 4096, 4096, None]
    assert [type(layer.encoding) is NoPE for layer in plan.layers] == [False, False, False, True]


def test_stray_keys_are_held_to_the_one_value_that_is_true():
    with pytest.raises(
        ConfigError, match=r"rotary must be True, this model's code knows no other, got False"
    ):
        from_config({**FILES["GPT-J 6B"][0], "rotary": False})


def test_settings_around_a_text_model_may_repeat_its_own_and_nothing_else():
    inner = FILES["Llama 2 7B"][0]
    around = {"model_type": "llava", "text_config": inner, "max_position_embeddings": 4096}
    assert from_config(around).max_positions == 4096
    with pytest.raises(ConfigError, match=r"max_position_embeddings must be a setting .* got 99"):
        from_config({**around, "max_position_embeddings": 99})
