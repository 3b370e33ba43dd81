"""Small configs of every family that the installed transformers has, and what its models do with them."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from typing import Any

import torch
from torch import Tensor

from ordinate import RoPE, hf
from ordinate.hf.config.families.registry import FAMILIES
from ordinate.hf.config.families.rotary_families import ROTARY

# Every family takes from these what its config class has.
SMALL: dict[str, Any] = {
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 6,
    "head_dim": 16, "max_position_embeddings": 64, "vocab_size": 32, "intermediate_size": 32,
    "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None, "n_embd": 64, "n_head": 4, "n_layer": 6,
    "n_positions": 64, "rotary_dim": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8,
    "kv_lora_rank": 8, "q_lora_rank": 8, "sliding_window": 8, "query_pre_attn_scalar": 24,
    "attention_multiplier": 0.3, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2,
    "n_routed_experts": 4, "n_shared_experts": 1, "moe_intermediate_size": 16, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1, "shared_expert_intermediate_size": 16, "moe_num_experts": 4, "moe_k": 2,
    "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 32, "linear_num_key_heads": 2,
    "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "intermediate_size_mlp": 32, "num_codebooks": 2, "text_vocab_size": 32, "laurel_rank": 4,
    "num_kv_shared_layers": 0, "floor_scale": 4,
}  # fmt: skip

_SECTIONS = {"rope_type": "default", "mrope_section": [4, 2, 2]}
#: Where the common settings do not do.
CHANGES: dict[str, dict[str, Any]] = {
    "gemma4_text": {"global_head_dim": 32},
    "cwm": {"bos_token_id": 1},
    "mllama_text_model": {"bos_token_id": 1, "cross_attention_layers": [3]},
    "gpt_oss": {"rope_parameters": {"rope_type": "default", "rope_theta": 150000.0}},
    "qwen2_vl_text": {"rope_parameters": _SECTIONS},
    "qwen2_5_vl_text": {"rope_parameters": _SECTIONS},
    "qwen3_vl_text": {"rope_parameters": _SECTIONS},
    "qwen2_5_omni_text": {"rope_parameters": _SECTIONS},
    "qwen3_omni_moe_text": {"rope_parameters": _SECTIONS},
    "qwen3_vl_moe_text": {"rope_parameters": _SECTIONS},
    "qwen3_5_text": {
        "rope_parameters": {
            "rope_type": "default",
            "mrope_section": [2, 1, 1],
            "partial_rotary_factor": 0.5,
        }
    },
    "qwen3_5_moe_text": {
        "rope_parameters": {
            "rope_type": "default",
            "mrope_section": [2, 1, 1],
            "partial_rotary_factor": 0.5,
        }
    },
}

#: Ours alone: transformers has no code for them.
FOREIGN = {"minimind", "kimi_k2"}
THEIRS = [name for name in FAMILIES if name not in FOREIGN]
TURNING = [name for name in ROTARY if name not in FOREIGN]
#: No RotaryEmbedding class: GPT-J and CodeGen write their own sinusoids.
WITH_CLASS = [name for name in TURNING if name not in ("gptj", "codegen")]


def config_class(name: str) -> type:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[name]


def small_config(name: str, **changes: Any) -> Any:
    cls = config_class(name)
    fields = {field.name for field in dataclasses.fields(cls)}
    chosen = {key: value for key, value in SMALL.items() if key in fields}
    return cls(**{**chosen, **CHANGES.get(name, {}), **changes})


def modeling(name: str) -> Any:
    module = inspect.getmodule(config_class(name))
    assert module is not None
    return importlib.import_module(module.__name__.replace("configuration_", "modeling_"))


def rotary_module(name: str, config: Any) -> Any:
    """The family's own module of frequencies, made from a config."""
    module = modeling(name)
    found = [
        value
        for key, value in vars(module).items()
        if key.endswith("RotaryEmbedding")
        and "Vision" not in key
        and value.__module__ == module.__name__
    ]
    return found[0](config)


def their_frequencies(rotary: Any, layer_type: str) -> tuple[Tensor, float]:
    inv_freq = getattr(rotary, f"{layer_type}_inv_freq", None)
    if inv_freq is None:
        return rotary.inv_freq, rotary.attention_scaling
    return inv_freq, getattr(rotary, f"{layer_type}_attention_scaling")


def our_frequencies(rope: RoPE, length: int | None = None) -> tuple[Tensor, float]:
    factor = 1.0 if rope.scaling is None else rope.scaling.attention_factor
    assert factor is not None
    return hf.checkpoint_inv_freq(rope, length), factor


def turning_layers(plan: hf.Plan) -> dict[str, RoPE]:
    """Layer type → its rotation."""
    return {x.layer_type: x.encoding for x in plan.layers if isinstance(x.encoding, RoPE)}


def bits(tensor: Tensor) -> list[int]:
    return tensor.contiguous().view(torch.int32).tolist()
