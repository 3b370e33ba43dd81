"""Configs as they are found: old keys and new, nested and flat, complete and not; refusals by name and value."""

# ruff: noqa: E501  a config a line, however long

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ordinate import ALiBi, Learned, NoPE, RoPE, Sinusoidal, T5Bias, hf
from ordinate.hf import ConfigError, from_config
from ordinate.scaling import NTK, DynamicNTK, Linear, Llama3, LongRoPE, Proportional, YaRN

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 3,
    "max_position_embeddings": 8192, "rope_theta": 500000.0,
}  # fmt: skip
_LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}  # fmt: skip


def rope_of(values: dict[str, Any], **options: Any) -> RoPE:
    encoding = from_config(values, **options).layers[0].encoding
    assert isinstance(encoding, RoPE)
    return encoding


# Sources.


def test_a_mapping_a_file_a_folder_and_an_object_say_the_same(tmp_path):
    from transformers import LlamaConfig

    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA), encoding="utf-8")
    theirs = LlamaConfig(**{key: value for key, value in LLAMA.items() if key != "model_type"})
    plans = [from_config(source) for source in (LLAMA, path, str(path), tmp_path, theirs)]
    assert len({repr(plan) for plan in plans}) == 1


def test_reading_a_config_changes_nothing_in_it():
    values = {**LLAMA, "rope_scaling": dict(_LLAMA3)}
    before = json.dumps(values)
    from_config(values)
    assert json.dumps(values) == before


def test_a_byte_order_mark_does_no_harm(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA), encoding="utf-8-sig")
    assert repr(from_config(path)) == repr(from_config(LLAMA))


# Old and new keys.


def test_old_and_new_keys_give_one_rotation():
    old = rope_of({**LLAMA, "rope_scaling": {**_LLAMA3, "type": "llama3"}})
    typed = rope_of({**LLAMA, "rope_scaling": {**_LLAMA3, "rope_type": None, "type": "llama3"}})
    flat = {key: value for key, value in LLAMA.items() if key != "rope_theta"}
    new = rope_of({**flat, "rope_parameters": {**_LLAMA3, "rope_theta": 500000.0}})
    assert repr(old) == repr(typed) == repr(new)
    assert old.scaling == Llama3(8.0, 1.0, 4.0, 1024)
    assert old.base == 500000.0


def test_theta_in_the_new_place_is_never_lost_to_a_default():
    """DeepSpeed #8345: transformers 5 moved rope_theta, and getattr(…, 10000) won in silence."""
    flat = {key: value for key, value in LLAMA.items() if key != "rope_theta"}
    assert rope_of({**flat, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}).base == 1e6
    plan = from_config(flat)
    assert rope_of(flat).base == 10000.0
    (reading,) = [item for item in plan.read if item.key == "rope_theta"]
    assert reading.value == 10000.0
    assert reading.meaning.endswith("(not in the config: the family's default)")


def test_partial_rotary_is_read_in_both_places():
    """transformers #48652: ignored in one of them."""
    beside = {**LLAMA, "model_type": "stablelm", "partial_rotary_factor": 0.5}
    within = {**LLAMA, "model_type": "stablelm", "rope_parameters": {"partial_rotary_factor": 0.5}}
    assert rope_of(beside).rotary_dim == rope_of(within).rotary_dim == 32
    assert rope_of({**LLAMA, "model_type": "stablelm"}).rotary_dim == 16


def test_head_dim_is_read_where_it_is_not_the_width_divided_by_the_heads():
    assert rope_of(LLAMA).head_dim == 64
    assert rope_of({**LLAMA, "head_dim": 96}).head_dim == 96
    assert rope_of({**LLAMA, "head_dim": None}).head_dim == 64
    assert rope_of({"model_type": "gemma", "hidden_size": 3072}).head_dim == 256


def test_a_null_in_a_config_is_an_answer_and_a_missing_key_is_not():
    sizes = {**LLAMA, "model_type": "mistral"}
    assert from_config({**sizes, "sliding_window": None}).layers[0].window is None
    assert from_config({**sizes, "sliding_window": 77}).layers[0].window == 77
    assert from_config(sizes).layers[0].window == 4096


SCALINGS = {
    "linear": ({"type": "linear", "factor": 4}, Linear(4.0)),
    "dynamic": ({"type": "dynamic", "factor": 2.0}, DynamicNTK(2.0, 8192)),
    "yarn": ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}, YaRN(4.0, 2048, 32.0, 1.0)),
    "yarn from two lengths": (
        {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 2048},
        YaRN(4.0, 2048, 32.0, 1.0),
    ),
    "yarn with an explicit factor": (
        {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048, "attention_factor": 1.5},
        YaRN(4.0, 2048, 32.0, 1.0, 1.5),
    ),
    "longrope": (
        {"type": "longrope", "short_factor": [1.0] * 32, "long_factor": [4] * 32, "original_max_position_embeddings": 2048},
        LongRoPE((1.0,) * 32, (4.0,) * 32, 2048, 4.0),
    ),
    "su": (
        {"type": "su", "short_factor": [1.0] * 32, "long_factor": [4] * 32, "original_max_position_embeddings": 2048},
        LongRoPE((1.0,) * 32, (4.0,) * 32, 2048, 4.0),
    ),
    "llama3": (_LLAMA3, Llama3(8.0, 1.0, 4.0, 1024)),
    "proportional": ({"rope_type": "proportional", "partial_rotary_factor": 0.25}, Proportional(0.25, 1.0)),
    "default": ({"rope_type": "default"}, None),
    "an empty mapping": ({}, None),
}  # fmt: skip


@pytest.mark.parametrize("kind", SCALINGS)
def test_every_scaling_is_read(kind: str):
    settings, expected = SCALINGS[kind]
    assert rope_of({**LLAMA, "rope_scaling": settings}).scaling == expected


def test_hunyuans_alpha_stretches_the_base_once_and_means_nothing_elsewhere():
    from hf_cases import config_class, rotary_module

    scaling = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "beta_fast": 32, "mscale": 1.0}
    values = {
        **LLAMA,
        "model_type": "hunyuan_v1_dense",
        "rope_theta": 10000.0,
        "rope_scaling": scaling,
        "head_dim": 64,
    }
    rope = rope_of(values)
    assert rope.scaling == NTK(1000.0)
    theirs = rotary_module("hunyuan_v1_dense", config_class("hunyuan_v1_dense").from_dict(values))
    torch.testing.assert_close(hf.checkpoint_inv_freq(rope), theirs.inv_freq, rtol=0, atol=0)
    with pytest.raises(
        ConfigError, match=r"rope_scaling\.alpha must be a setting that ordinate understands"
    ):
        from_config({**LLAMA, "rope_scaling": scaling})


def test_a_window_that_no_layer_has_is_warned_of():
    plan = from_config({**LLAMA, "sliding_window": 77})
    assert plan.layers[0].window is None
    assert plan.warnings == ("sliding_window 77 has no effect, no layer of this model is windowed",)


def test_the_length_beside_the_mapping_goes_before_the_one_within():
    """Phi-3 keeps it there."""
    settings = {"type": "longrope", "short_factor": [1.0] * 32, "long_factor": [2.0] * 32}
    plan = from_config(
        {
            **LLAMA,
            "model_type": "phi3",
            "rope_scaling": settings,
            "original_max_position_embeddings": 4096,
        }
    )
    scaling = plan.layers[0].encoding.scaling
    assert scaling.original_max_positions == plan.original_max_positions == 4096
    assert scaling.attention_factor == math.sqrt(1 + math.log(2) / math.log(4096))


# YaRN's dialects.

_DEEPSEEK = {
    "type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707,
    "original_max_position_embeddings": 4096,
}  # fmt: skip


def test_deepseek_multiplies_the_softmax_scale_of_the_whole_head():
    layer = from_config({"model_type": "deepseek_v2", "rope_scaling": _DEEPSEEK}).layers[0]
    assert layer.head_dim == 192
    assert layer.turned_from == 128
    assert layer.scale == pytest.approx(1.58962617 * 192**-0.5, abs=1e-9)
    assert layer.encoding.scaling.attention_factor == 1.0
    assert layer.encoding.layout == "interleaved"


def test_other_families_leave_the_softmax_scale_alone_unless_told_otherwise():
    values = {**LLAMA, "rope_scaling": {**_DEEPSEEK, "mscale": 1.0}}
    plain = rope_of(values)
    assert plain.logit_factor == 1.0
    expected = (0.1 * math.log(40) + 1) / (0.0707 * math.log(40) + 1)
    assert plain.scaling.attention_factor == pytest.approx(expected, rel=1e-14)
    assert rope_of(values, dialect="deepseek").logit_factor == pytest.approx(1.58962617, abs=5e-9)


@pytest.mark.parametrize("dialect", ["hf", "deepseek"])
@pytest.mark.parametrize(
    ("mscales", "named"),
    [
        ({"mscale": 0.707}, ("mscale",)),
        ({"mscale_all_dim": 0.707}, ("mscale_all_dim",)),
        ({"mscale": 0, "mscale_all_dim": 0.707}, ("mscale_all_dim",)),
        ({"mscale": 0.707, "mscale_all_dim": 0}, ("mscale",)),
        ({"mscale": 0.707, "mscale_all_dim": 1.0}, ()),
        ({"mscale": 0}, ()),
    ],
)
def test_one_mscale_alone_is_not_read_as_in_transformers_and_that_is_said(
    dialect: str, mscales: dict[str, float], named: tuple[str, ...]
):
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import yarn_apply_mscale

    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096, **mscales}
    plan = from_config({**LLAMA, "rope_scaling": scaling}, dialect=dialect)
    config = transformers.LlamaConfig(rope_parameters={**scaling, "rope_theta": 1e4})
    _, factor = ROPE_INIT_FUNCTIONS["yarn"](config, torch.device("cpu"))
    assert plan.encoding.scaling.attention_factor == factor
    if dialect == "deepseek":
        assert plan.encoding.logit_factor == yarn_apply_mscale(scaling, 1.0)
    assert plan.warnings == tuple(
        f"rope_scaling.{key}=0.707 does not change cos and sin without the other mscale, as in transformers: "
        "they are multiplied by 1.13863"
        for key in named
    )


def test_each_named_dialect_reads_one_config_its_own_way():
    settings = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
    values = {**LLAMA, "hidden_size": 64, "rope_theta": 1e4, "rope_scaling": settings}
    third = {d: float(rope_of(values, dialect=d).inv_freq()[2]) for d in ("hf", "paper", "gpt-oss")}
    expected = {"hf": 0.00625, "paper": 0.003046652, "gpt-oss": 0.005056972}
    assert third == pytest.approx(expected, abs=5e-10)
    assert rope_of(values, dialect="minimind").scaling.attention_factor == 1.0
    assert rope_of(values, dialect="hf").scaling == rope_of(values).scaling


def test_gpt_oss_does_not_round_the_ramp():
    plan = from_config({"model_type": "gpt_oss"})
    assert plan.layers[0].encoding.scaling == YaRN(32.0, 4096, 32.0, 1.0, truncate=False)
    assert [layer.window for layer in plan.layers[:4]] == [128, None, 128, None]


# MiniMind.


def test_minimind_is_its_own_config_exactly():
    """Base 1e6, factor 16, original 2048, beta 32/1, attention_factor 1.0, behind inference_rope_scaling."""
    off, on = (
        from_config({"model_type": "minimind", "inference_rope_scaling": x}) for x in (False, True)
    )
    assert off.layers[0].encoding.scaling is None
    rope = on.layers[0].encoding
    assert (rope.base, rope.head_dim, rope.layout, len(on.layers)) == (1e6, 96, "half", 8)
    assert rope.scaling == YaRN(16.0, 2048, 32.0, 1.0, 1.0, dialect="minimind")
    assert (on.max_positions, on.original_max_positions) == (32768, 2048)
    dim, ratio = 96, lambda turns: 96 * math.log(2048 / (turns * 2 * math.pi)) / (2 * math.log(1e6))
    low, high = max(math.floor(ratio(32)), 0), min(math.ceil(ratio(1)), dim // 2 - 1)
    ramp = ((torch.arange(dim // 2).float() - low) / max(high - low, 0.001)).clamp(0, 1)
    expected = 1.0 / (1e6 ** (torch.arange(0, dim, 2).float() / dim)) * (1 - ramp + ramp / 16)
    torch.testing.assert_close(hf.checkpoint_inv_freq(rope), expected, rtol=0, atol=0)


def test_minimind_scales_by_the_length_of_its_table_and_reads_no_other_switch():
    short = from_config(
        {"model_type": "minimind", "inference_rope_scaling": True, "max_position_embeddings": 2048}
    )
    assert short.layers[0].encoding.scaling is None
    assert any("no effect up to 2048" in warning for warning in short.warnings)
    other = from_config({"model_type": "minimind", "rope_scaling": {"type": "linear", "factor": 2}})
    assert other.layers[0].encoding.scaling is None
    assert any("rope_scaling has no effect" in warning for warning in other.warnings)


# Layers that differ.


def test_gemma_3_has_two_bases_and_scales_one():
    values = {
        "model_type": "gemma3_text", "num_hidden_layers": 7, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "sliding_window": 1024,
        "query_pre_attn_scalar": 168,
    }  # fmt: skip
    plan = from_config(values)
    sliding, full = plan.layers[0], plan.layers[5]
    assert [layer.layer_type[:4] for layer in plan.layers] == ["slid"] * 5 + ["full", "slid"]
    assert (sliding.encoding.base, sliding.encoding.scaling, sliding.window) == (1e4, None, 1024)
    assert (full.encoding.base, full.encoding.scaling, full.window) == (1e6, Linear(8.0), None)
    assert full.scale == pytest.approx(168**-0.5)
    assert len({id(layer.encoding) for layer in plan.layers}) == 2


def test_new_settings_by_layer_type_give_the_same():
    old = from_config({"model_type": "gemma3_text", "num_hidden_layers": 7, "rope_theta": 2e6})
    new = from_config(
        {
            "model_type": "gemma3_text",
            "num_hidden_layers": 7,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 2e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        }
    )
    assert repr(old) == repr(new)


def test_an_old_base_of_olmo_3_is_for_all_its_layers():
    """transformers gives it to layers without a window alone; the others get the class's default in silence."""
    from transformers import Olmo3Config

    ours = from_config({"model_type": "olmo3", "rope_theta": 7e4})
    assert {layer.encoding.base for layer in ours.layers} == {7e4}
    theirs = Olmo3Config.from_dict({"model_type": "olmo3", "rope_theta": 7e4}).rope_parameters
    assert {theirs[kind]["rope_theta"] for kind in theirs} == {7e4, 5e5}


def test_smollm_3_has_layers_without_rotation():
    plan = from_config({"model_type": "smollm3", "num_hidden_layers": 8})
    assert [type(layer.encoding) is NoPE for layer in plan.layers] == [False, False, False, True] * 2
    listed = from_config({"model_type": "smollm3", "num_hidden_layers": 3, "no_rope_layers": [0, 1, 1]})
    assert [type(layer.encoding) is NoPE for layer in listed.layers] == [True, False, False]
    with pytest.raises(ConfigError, match=r"encoding must be asked of plan\.layers"):
        _ = plan.encoding


def test_llama_4_turns_within_chunks_and_grows_queries_elsewhere():
    plan = from_config({"model_type": "llama4_text", "num_hidden_layers": 4})
    turning, still = plan.layers[0], plan.layers[3]
    assert (turning.chunk, turning.encoding.layout, turning.temperature) == (8192, "interleaved", None)
    assert (still.chunk, type(still.encoding), still.temperature) == (
        None,
        NoPE,
        hf.Temperature(0.1, 8192, 1),
    )
    assert float(still.temperature.at(torch.tensor(8191))) == pytest.approx(1.06931472, abs=5e-9)


def test_qwen_3_next_attends_in_one_layer_of_four():
    plan = from_config({"model_type": "qwen3_next", "num_hidden_layers": 4})
    assert [layer.layer_type for layer in plan.layers] == ["linear_attention"] * 3 + ["full_attention"]
    assert type(plan.layers[0].encoding) is NoPE
    assert plan.layers[3].encoding.rotary_dim == 64


def test_gemma_4_has_two_sizes_of_heads_and_p_rope_in_the_wide_ones():
    plan = from_config({"model_type": "gemma4_text", "num_hidden_layers": 6})
    narrow, wide = plan.layers[0], plan.layers[5]
    assert (narrow.head_dim, narrow.encoding.scaling, narrow.scale) == (256, None, 1.0)
    assert (wide.head_dim, wide.encoding.scaling, wide.encoding.base) == (
        512,
        Proportional(0.25, 1.0),
        1e6,
    )


# Text models within others.


def test_the_text_model_within_a_multimodal_one_is_read():
    inner = {**LLAMA, "rope_scaling": _LLAMA3}
    plan = from_config(
        {"model_type": "llava", "text_config": inner, "vision_config": {"hidden_size": 1}}
    )
    assert plan.family == "Llama"
    assert repr(plan) == repr(from_config(inner))
    assert {item.key for item in plan.read if "rope" in item.key} >= {"text_config.rope_theta"}


def test_an_unknown_model_around_a_known_text_model_is_read():
    plan = from_config(
        {"model_type": "somethingnew_vl", "text_config": {**LLAMA, "model_type": "qwen3"}}
    )
    assert plan.family == "Qwen 3"


def test_gemma_3_of_four_billion_leaves_its_heads_to_the_class():
    """Its file has neither num_attention_heads nor head_dim in text_config."""
    text = {"hidden_size": 2560, "num_hidden_layers": 34, "model_type": "gemma3_text", "sliding_window": 1024,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}  # fmt: skip
    plan = from_config({"model_type": "gemma3", "text_config": text, "vision_config": {}})
    assert plan.layers[0].head_dim == 256


def test_qwen2_vl_is_read_from_its_first_flat_files_and_from_nested_ones():
    text = {
        "hidden_size": 1536, "num_attention_heads": 12, "num_hidden_layers": 2, "max_position_embeddings": 32768,
        "rope_theta": 1000000.0, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        "use_sliding_window": False, "sliding_window": 32768, "max_window_layers": 28,
    }  # fmt: skip
    flat = from_config(
        {"model_type": "qwen2_vl", **text, "vision_config": {}, "vision_start_token_id": 151652}
    )
    nested = from_config(
        {"model_type": "qwen2_vl", "text_config": {**text, "model_type": "qwen2_vl_text"}}
    )
    assert repr(flat) == repr(nested)
    rope = flat.encoding
    assert (rope.sections, rope.section_layout) == ((16, 24, 24), "chunked")


def test_qwen3_vl_deals_axes_in_turn():
    text = {"model_type": "qwen3_vl_text", "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20],
            "rope_type": "default"}, "rope_theta": 5000000}  # fmt: skip
    rope = from_config({"model_type": "qwen3_vl", "text_config": text}).encoding
    assert (rope.sections, rope.section_layout, rope.base) == ((24, 20, 20), "interleaved", 5e6)


# Families without rotation.


def test_t5_shares_a_table_among_the_layers_of_a_stack_and_umt5_does_not():
    t5, umt5 = from_config({"model_type": "t5"}), from_config({"model_type": "umt5"})
    assert len({id(layer.encoding) for layer in t5.layers}) == 2
    assert len({id(layer.encoding) for layer in umt5.layers}) == len(umt5.layers) == 16
    encoder, decoder = t5.layers[0], t5.layers[-1]
    assert (encoder.encoding.bidirectional, decoder.encoding.bidirectional) == (True, False)
    assert (encoder.causal, decoder.causal, encoder.scale) == (False, True, 1.0)
    assert encoder.encoding.weight.device.type == "meta"


@pytest.mark.parametrize("name", ["t5", "mt5", "umt5"])
def test_t5_tables_have_the_shapes_of_the_models(name: str):
    from transformers import AutoModel

    values = {"num_layers": 2, "num_heads": 4, "d_model": 32, "d_ff": 32, "d_kv": 8, "vocab_size": 16,
              "relative_attention_num_buckets": 20, "relative_attention_max_distance": 50}  # fmt: skip
    plan = from_config({"model_type": name, **values})
    from hf_cases import config_class

    model = AutoModel.from_config(config_class(name)(**values))
    tables = [p for key, p in model.named_parameters() if "relative_attention_bias" in key]
    own = list(dict.fromkeys(layer.encoding for layer in plan.layers))
    assert [tuple(p.shape) for p in tables] == [tuple(x.weight.shape) for x in own]
    attention = model.encoder.block[0].layer[0].SelfAttention
    distances = torch.arange(-80, 81)
    settings = () if name == "umt5" else (True, 20, 50)
    theirs = attention._relative_position_bucket(-distances, *settings)
    torch.testing.assert_close(own[0].buckets(distances), theirs)


def test_alibi_comes_in_three_dialects():
    bloom = from_config(
        {"model_type": "bloom", "n_head": 12, "hidden_size": 96, "n_layer": 2, "offset_alibi": 100}
    )
    falcon = from_config(
        {"model_type": "falcon", "alibi": True, "num_attention_heads": 12, "hidden_size": 96}
    )
    mpt = from_config({"model_type": "mpt", "n_heads": 12, "d_model": 96, "attn_config": {"alibi": True, "alibi_bias_max": 16,
                       "softmax_scale": 0.25}})  # fmt: skip
    assert [(p.encoding.scaled, p.encoding.max_exponent) for p in (bloom, falcon, mpt)] == [
        (False, 8.0), (True, 8.0), (False, 16.0)]  # fmt: skip
    assert isinstance(bloom.encoding, ALiBi)
    assert mpt.layers[0].scale == 0.25
    assert isinstance(from_config({"model_type": "falcon"}).encoding, RoPE)


TABLES = {
    "bert": ({}, 512, 0), "gpt2": ({}, 1024, 0), "opt": ({}, 2048, 2),
    "roberta": ({"max_position_embeddings": 514}, 512, 2), "xlm-roberta": ({"pad_token_id": 4}, 507, 5),
    "electra": ({}, 512, 0), "distilbert": ({}, 512, 0), "gpt_bigcode": ({}, 1024, 0), "biogpt": ({}, 1024, 2),
}  # fmt: skip


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script`:DeprecationWarning"
)  # GPT-BigCode compiles its softmax
@pytest.mark.parametrize("name", TABLES)
def test_learned_tables_have_the_rows_of_the_models_and_start_where_they_start(name: str):
    from hf_cases import config_class
    from transformers import AutoModel

    values, positions, offset = TABLES[name]
    plan = from_config({"model_type": name, **values})
    table = plan.encoding
    assert isinstance(table, Learned)
    assert (table.max_positions, table.offset, table.weight.device.type) == (positions, offset, "meta")
    assert plan.max_positions == positions
    with torch.device("meta"):
        model = AutoModel.from_config(config_class(name)(**values))
    (theirs,) = [p for key, p in model.named_parameters() if "position" in key or "wpe" in key]
    assert theirs.shape == table.weight.shape


def test_sinusoids_equal_those_of_the_models():
    from transformers.models.ctrl.modeling_ctrl import positional_encoding
    from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
    from transformers.models.whisper.modeling_whisper import sinusoids
    from transformers.models.xglm.modeling_xglm import XGLMSinusoidalPositionalEmbedding

    marian = MarianSinusoidalPositionalEmbedding(40, 16)
    theirs = {
        "marian": marian.create_weight(),
        "m2m_100": M2M100SinusoidalPositionalEmbedding(40, 16, 1).weights[2:],
        "xglm": XGLMSinusoidalPositionalEmbedding(40, 16, 1).weights[2:],
        "whisper": sinusoids(40, 16),
        "ctrl": positional_encoding(40, 16, torch.float32),
    }
    sizes = {"d_model": 16, "n_embd": 16, "n_head": 2, "attention_heads": 2, "encoder_attention_heads": 2,
             "decoder_attention_heads": 2}  # fmt: skip
    for name, weights in theirs.items():
        plan = from_config({"model_type": name, **sizes})
        encoding = next(iter(plan.embeddings.values()))
        assert isinstance(encoding, Sinusoidal)
        codes = encoding.codes(torch.arange(40)).float()
        torch.testing.assert_close(
            codes, torch.as_tensor(weights)[:40].float(), rtol=0, atol=5e-6, msg=name
        )


def test_whisper_computes_one_table_and_learns_the_other():
    plan = from_config({"model_type": "whisper"})
    assert [type(plan.embeddings[stack]) for stack in ("encoder", "decoder")] == [Sinusoidal, Learned]
    assert plan.embeddings["decoder"].max_positions == plan.max_positions == 448


def test_gpt_2_may_scale_logits_by_layer():
    plan = from_config({"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": True})
    assert [layer.softmax_scale for layer in plan.layers[:3]] == pytest.approx([1 / 8, 1 / 16, 1 / 24])
    assert from_config({"model_type": "gpt2"}).layers[0].scale is None


def test_gpt_neo_has_global_and_local_layers_and_no_scale():
    plan = from_config(
        {"model_type": "gpt_neo", "num_layers": 4, "attention_types": [[["global", "local"], 2]]}
    )
    assert [layer.window for layer in plan.layers] == [None, 256, None, 256]
    assert plan.layers[0].scale == 1.0


# Contradictions are said, not hidden.

CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"rope_scaling": {"type": "linear", "factor": 2.0, "beta_fast": 32}}, "rope_scaling.beta_fast has no effect"),
    ({"rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 2.0}}, "rope_type and rope_scaling.type differ"),
    ({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}},
     "rope_scaling and rope_parameters differ"),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": 3e4}}, "rope_theta=500000.0 differ"),
    ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, "original_max_position_embeddings is missing"),
    ({"rope_scaling": {"type": "yarn", "factor": None, "original_max_position_embeddings": 2048}}, "factor is missing"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "words"), CONTRADICTIONS, ids=[words for _, words in CONTRADICTIONS])
def test_contradictions_are_warnings(change: dict[str, Any], words: str):
    plan = from_config({**LLAMA, **change})
    assert any(words in warning for warning in plan.warnings), plan.warnings
    assert words in repr(plan)


def test_a_clean_config_has_no_warnings():
    assert (
        from_config({**LLAMA, "rope_scaling": _LLAMA3, "max_position_embeddings": 8192}).warnings == ()
    )


def test_what_was_read_names_its_keys():
    plan = from_config({**LLAMA, "rope_scaling": _LLAMA3})
    read = {item.key: item.value for item in plan.read}
    assert read["rope_scaling.factor"] == 8.0
    assert read["rope_theta"] == 500000.0
    assert read["hidden_size"] == 512
    assert all(item.meaning for item in plan.read)


def test_keys_that_do_not_concern_positions_are_left_alone():
    harmless = {"vocab_size": 3, "torch_dtype": "float16", "attention_dropout": 0.1, "attention_bias": True,
                "quantization_config": {"bits": 4}, "auto_map": {"AutoConfig": "evil.py"}, "pretraining_tp": 1,
                "temperature": 1.0, "_name_or_path": "x"}  # fmt: skip
    assert repr(from_config({**LLAMA, **harmless})) == repr(from_config(LLAMA))


def test_a_plan_prints_itself():
    text = repr(from_config({"model_type": "gemma3_text", "num_hidden_layers": 12}))
    assert text.splitlines()[0] == "Gemma 3 (gemma3_text), 12 layers"
    assert "layers 0–4, 6–10" in text
    assert "layers 5, 11" in text
    assert "window 4096" in text


def test_a_familys_name_can_be_said_for_an_unknown_model():
    values = {**LLAMA, "model_type": "acme_lm"}
    with pytest.raises(
        ConfigError, match=r"model_type must be a family that ordinate reads, got 'acme_lm'"
    ):
        from_config(values)
    assert from_config(values, family="llama").family == "Llama"


def test_a_checkpoint_of_a_learned_table_loads_into_the_plan():
    table = from_config({"model_type": "gpt2", "n_positions": 6, "n_embd": 12}).encoding
    weight = torch.randn(6, 12)
    table.to_empty(device="cpu").load_state_dict({"weight": weight})
    torch.testing.assert_close(table.embed(torch.zeros(1, 6, 12))[0], weight)


def test_t5_bias_is_a_t5_bias():
    assert isinstance(from_config({"model_type": "mt5"}).layers[0].encoding, T5Bias)


def test_tables_of_umt5_are_separate_parameters_of_separate_modules():
    first, second = (layer.encoding for layer in from_config({"model_type": "umt5"}).layers[:2])
    for encoding, value in ((first, 1.0), (second, 2.0)):
        encoding.to_empty(device="cpu")
        torch.nn.init.constant_(encoding.weight, value)
    q = torch.zeros(1, 6, 3, 4)
    assert [float(x.bias(q, q).dense().detach().mean()) for x in (first, second)] == [1.0, 2.0]
