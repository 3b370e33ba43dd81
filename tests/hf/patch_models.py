"""Small models of every family, with random weights so large that a wrong position changes the logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

VOCABULARY = 97
_TINY = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_T5 = {
    "vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4,
    "dropout_rate": 0.0, "decoder_start_token_id": 0,
}  # fmt: skip
_LATENT = {  # DeepSeek's compressed keys
    "num_key_value_heads": 4, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 16, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
}  # fmt: skip
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}


def _model(config: str, kind: str | None = None, **changes: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        made = getattr(transformers, f"{config}Config")(**(_TINY | changes))
        return getattr(transformers, kind or f"{config}ForCausalLM")(made)

    return make


def _t5(name: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        config = getattr(transformers, f"{name}Config")(**_T5)
        return getattr(transformers, f"{name}ForConditionalGeneration")(config)

    return make


def _qwen_vl(name: str, interleaved: bool) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        sections = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}
        if interleaved:
            sections["mrope_interleaved"] = True
        text = _TINY | {"head_dim": 16, "rope_parameters": sections, "vocab_size": VOCABULARY + 4}
        names = ["image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"]
        special = {name: VOCABULARY + index for index, name in enumerate(names)}
        vision = {
            "depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 2,
            "intermediate_size": 64, "out_hidden_size": 64, "deepstack_visual_indexes": [],
            "num_position_embeddings": 16,
        }  # fmt: skip
        config = getattr(transformers, f"{name}Config")(
            text_config=text, vision_config=vision, **special
        )
        return getattr(transformers, f"{name}ForConditionalGeneration")(config)

    return make


def rope(**parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 1e4} | parameters}


MODELS: dict[str, Callable[[], nn.Module]] = {
    "Llama 2": _model("Llama"),
    "Llama 3.1": _model(
        "Llama",
        **rope(
            rope_type="llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        ),
    ),
    "Llama, linear": _model("Llama", **rope(rope_type="linear", factor=4.0)),
    "Llama, dynamic": _model("Llama", **rope(rope_type="dynamic", factor=2.0)),
    "Llama, yarn": _model("Llama", rope_parameters=_YARN),
    "Llama 4": _model(
        "Llama4Text",
        "Llama4ForCausalLM",
        head_dim=16,
        intermediate_size_mlp=64,
        num_local_experts=2,
        num_hidden_layers=4,
        attention_chunk_size=8,
    ),
    "Mistral": _model("Mistral", sliding_window=8),
    "Mixtral": _model("Mixtral", num_local_experts=4),
    "Qwen2": _model("Qwen2"),
    "Qwen3": _model("Qwen3", head_dim=16),
    "Qwen3 MoE": _model(
        "Qwen3Moe", head_dim=16, num_experts=4, moe_intermediate_size=32, num_experts_per_tok=2
    ),
    "Qwen2-VL": _qwen_vl("Qwen2VL", interleaved=False),
    "Qwen3-VL": _qwen_vl("Qwen3VL", interleaved=True),
    "Gemma": _model("Gemma", head_dim=16),
    "Gemma 2": _model("Gemma2", head_dim=16, sliding_window=8),
    "Gemma 3": _model(
        "Gemma3Text", "Gemma3ForCausalLM", head_dim=16, sliding_window=8, num_hidden_layers=6
    ),
    "Gemma 4": _model(
        "Gemma4Text",
        "Gemma4ForCausalLM",
        head_dim=16,
        global_head_dim=32,
        sliding_window=8,
        num_hidden_layers=6,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=VOCABULARY,
    ),
    "Phi": _model("Phi"),
    "Phi-3": _model("Phi3"),
    "Phi-3, longrope": _model(
        "Phi3",
        original_max_position_embeddings=128,
        **rope(
            rope_type="longrope",
            short_factor=[1.0 + i / 8 for i in range(8)],
            long_factor=[2.0 + i for i in range(8)],
            original_max_position_embeddings=128,
        ),
    ),
    "DeepSeek-V2": _model("DeepseekV2", q_lora_rank=None, **_LATENT),
    "DeepSeek-V3": _model(
        "DeepseekV3",
        q_lora_rank=16,
        **_LATENT,
        rope_parameters=_YARN | {"factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0},
    ),
    "gpt-oss": _model(
        "GptOss",
        head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=8,
        rope_parameters=_YARN | {"factor": 32.0, "truncate": False},
    ),
    "GPT-NeoX": _model("GPTNeoX"),
    "GPT-J": _model("GPTJ", n_embd=64, n_head=4, n_layer=2, rotary_dim=8, n_positions=256),
    "GLM": _model("Glm", head_dim=16),
    "GLM-4": _model("Glm4", head_dim=16),
    "Cohere": _model("Cohere"),
    "Cohere 2": _model("Cohere2", sliding_window=8, num_hidden_layers=4),
    "SmolLM3": _model("SmolLM3", num_hidden_layers=4),
    "StableLM": _model("StableLm"),
    "OLMo 2": _model("Olmo2"),
    "Granite": _model("Granite"),
    "Starcoder2": _model("Starcoder2"),
    "Persimmon": _model("Persimmon"),
    "Nemotron": _model("Nemotron", head_dim=16),
    "EXAONE 4": _model("Exaone4", sliding_window=8),
    "ERNIE 4.5": _model("Ernie4_5", head_dim=16),
    "Falcon, RoPE": _model("Falcon"),
    "Falcon, grouped": _model("Falcon", new_decoder_architecture=True, num_kv_heads=2),
    "Falcon, ALiBi": _model(
        "Falcon", alibi=True, multi_query=False, parallel_attn=False, bias=True, num_kv_heads=4
    ),
    "BLOOM": _model("Bloom", n_layer=2, n_head=6, hidden_size=48),
    "MPT": _model("Mpt", d_model=48, n_heads=6, n_layers=2, max_seq_len=128),
    "T5": _t5("T5"),
    "mT5": _t5("MT5"),
    "UMT5": _t5("UMT5"),
}


def build(name: str | Callable[[], nn.Module]) -> nn.Module:
    """A model, by name or by how it is made, whose attention is sharp enough that a wrong position shows in the logits.

    No weight is alike in all channels, as those of fresh norms are: channels that change places unnoticed show.
    """
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    make = MODELS[name] if isinstance(name, str) else name
    model = make().eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "embed" not in parameter_name:
                parameter.normal_(std=0.15)
            if parameter.dim() == 1:
                parameter.add_(torch.empty_like(parameter).uniform_(-0.3, 0.3))
            if "relative_attention_bias" in parameter_name:
                parameter.normal_()
    return model


def is_encoder_decoder(model: nn.Module) -> bool:
    return bool(model.config.is_encoder_decoder)


def tokens(batch: int = 2, length: int = 20) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, VOCABULARY, (batch, length), generator=generator)


def left_padding(ids: Tensor, by: int = 7) -> Tensor:
    """An attention_mask whose second row starts with padding."""
    mask = torch.ones_like(ids)
    mask[1, :by] = 0
    return mask


def inputs(model: nn.Module, mask: bool) -> dict[str, Tensor]:
    ids = tokens()
    given = {"input_ids": ids}
    if mask:
        given["attention_mask"] = left_padding(ids)
    if is_encoder_decoder(model):
        given["decoder_input_ids"] = tokens(length=11)
    return given


def logits(model: nn.Module, **given: Any) -> Tensor:
    """The logits of real tokens; what padding predicts means nothing."""
    with torch.no_grad():
        found = model(**given).logits
    if "attention_mask" in given and not is_encoder_decoder(model):
        return found[given["attention_mask"].bool()]
    return found
