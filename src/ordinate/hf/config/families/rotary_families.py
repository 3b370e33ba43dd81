"""The table of families with rotation: the defaults and rules of each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from .decoders import (
    FULL,
    SLIDING,
    DecoderRules,
    by_index,
    every,
    from_layer,
    from_multiplier,
    from_multiplier_or_default,
    from_scalar,
    full_or_sliding,
    listed_rotation,
    only_windowed,
    read_decoder,
    unscaled,
    windowed_rotation,
)
from .family import GPT_KEYS, Family, RopeRules, sizes
from .latent import read_latent
from .single_models import (
    exaone_layers,
    gemma4_head_dims,
    gemma4_layers,
    gemma_causal,
    gemma_window,
    llama4_layers,
    llama4_temperature,
    mistral_temperature,
    mllama_layers,
    modernbert_window,
    qwen2_moe_layers,
    read_minimind,
    smollm3_layers,
)

_NEOX = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}
# The first files, for its own code, have GPT's names of keys.
_NOMIC = {**GPT_KEYS, "rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_emb_fraction"}
# Their code has a fixed base and no scaling.
_GPTJ_FIXED = {"rotary": True, "scale_attn_weights": True, "rope_theta": 10000.0}
_GPTJ = RopeRules("interleaved", kinds=("default",))
_PHI3 = RopeRules(aliases={"yarn": "longrope"}, kinds=("default", "longrope"))
_HALVES = RopeRules()
_REACHED = RopeRules(reaches_context=True)
_PAIRS = RopeRules("interleaved")
_LATENT = RopeRules("interleaved", "deepseek")
_BOTH_WAYS = DecoderRules(causal=False)
_WINDOW_IN_ALL = DecoderRules(windows_all=True)
_FROM_LAYER = DecoderRules(from_layer)
_GRANITE = DecoderRules(scale=from_multiplier)
_LINEAR = "linear_attention"


def _rotary(
    width: int,
    heads: int,
    layers: int,
    context: int,
    theta: float,
    head_dim: int | None = None,
    **more: Any,
) -> dict[str, Any]:
    return sizes(width, heads, layers, context, rope_theta=theta, head_dim=head_dim, **more)


def _plain(
    name: str,
    *given: Any,
    rope: RopeRules = _HALVES,
    rules: DecoderRules | None = None,
    ignored: tuple[str, ...] = (),
    fixed: Mapping[str, Any] = MappingProxyType({}),
    **more: Any,
) -> Family:
    sized = _rotary(*given, **more)
    return Family(name, read_decoder, sized, rope=rope, rules=rules, ignored=ignored, fixed=fixed)


_GPT_OSS = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
_APERTUS = {
    "rope_type": "llama3", "rope_theta": 12000000.0, "factor": 8.0, "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0,
}  # fmt: skip
_CWM = {
    "rope_theta": 1000000.0, "factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192, "rope_type": "llama3",
}  # fmt: skip
_MINISTRAL3 = {
    "type": "yarn", "rope_theta": 1000000.0, "factor": 16.0, "original_max_position_embeddings": 16384,
    "beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip
_GEMMA4 = {
    SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
}
_MROPE = RopeRules(sections=(16, 24, 24))
_MROPE_IN_TURN = RopeRules(section_layout="interleaved", sections=(24, 20, 20))
_QWEN3_5 = RopeRules(section_layout="interleaved", sections=(11, 11, 10))

ROTARY: Mapping[str, Family] = MappingProxyType({
    # Llama, and models built like it
    "llama": _plain("Llama", 4096, 32, 32, 2048, 10000.0),
    "arcee": _plain("Arcee", 2560, 32, 32, 4096, 10000.0),
    "aria_text": _plain("Aria", 4096, 32, 32, 2048, 10000.0),
    "apertus": _plain("Apertus", 4096, 32, 32, 65536, 12000000.0, rope_parameters=_APERTUS),
    "bitnet": _plain("BitNet", 2560, 20, 30, 2048, 500000.0),
    "csm": _plain("CSM", 2048, 32, 16, 2048, 500000.0),
    "flex_olmo": _plain("FlexOlmo", 4096, 32, 32, 4096, 500000.0),
    "gemma": _plain("Gemma", 3072, 16, 28, 8192, 10000.0, 256),
    "jais2": _plain("Jais 2", 3328, 26, 32, 8192, 10000.0),
    "olmo": _plain("OLMo", 4096, 32, 32, 2048, 10000.0),
    "olmo2": _plain("OLMo 2", 4096, 32, 32, 2048, 10000.0),
    "olmoe": _plain("OLMoE", 2048, 16, 16, 4096, 10000.0),
    "seed_oss": _plain("Seed-OSS", 4096, 80, 64, 524288, 10000.0, 128),
    "solar_open": _plain("Solar Open", 4096, 64, 48, 131072, 1000000.0, 128),
    "hunyuan_v1_dense": _plain("HunYuan", 4096, 32, 32, 2048, 10000.0, rope=RopeRules(fixed_alpha=True)),
    "hunyuan_v1_moe": _plain("HunYuan MoE", 4096, 32, 32, 2048, 10000.0, rope=RopeRules(fixed_alpha=True)),
    "hy_v3": _plain("Hy 3", 4096, 64, 80, 131072, 11158840.0, 128),
    "hyperclovax": _plain("HyperCLOVA X", 4096, 32, 32, 2048, 10000.0,
        rules=DecoderRules(scale=from_multiplier_or_default)),
    "chameleon": _plain("Chameleon", 4096, 32, 32, 4096, 10000.0),
    "granite": _plain("Granite", 4096, 32, 32, 2048, 10000.0, rules=_GRANITE, attention_multiplier=1.0),
    "granitemoe": _plain("Granite MoE", 4096, 32, 32, 2048, 10000.0, rules=_GRANITE, attention_multiplier=1.0),
    "granitemoeshared": _plain("Granite MoE", 4096, 32, 32, 2048, 10000.0, rules=_GRANITE, attention_multiplier=1.0),
    "eurobert": _plain("EuroBERT", 768, 12, 12, 8192, 10000.0, rules=_BOTH_WAYS),
    "nomic_bert": Family("Nomic BERT", read_decoder, _rotary(768, 12, 12, 2048, 1000.0), _NOMIC, rules=_BOTH_WAYS),
    "minimind": Family("MiniMind", read_minimind,
        _rotary(768, 8, 8, 32768, 1e6, inference_rope_scaling=False), rope=RopeRules(dialect="minimind")),
    # A window in every layer
    "mistral": _plain("Mistral", 4096, 32, 32, 131072, 10000.0, rules=_WINDOW_IN_ALL, sliding_window=4096),
    "mixtral": _plain("Mixtral", 4096, 32, 32, 131072, 1000000.0, rules=_WINDOW_IN_ALL),
    "starcoder2": _plain("StarCoder 2", 3072, 24, 30, 4096, 10000.0, rules=_WINDOW_IN_ALL),
    "qwen3_moe": _plain("Qwen 3 MoE", 2048, 32, 24, 32768, 10000.0, rules=_WINDOW_IN_ALL,
        sliding_window=4096, use_sliding_window=False),
    "phi3": _plain("Phi-3", 3072, 32, 32, 4096, 10000.0, rules=_WINDOW_IN_ALL,
        rope=_PHI3, original_max_position_embeddings=4096),
    "phi4_multimodal": _plain("Phi-4 multimodal", 3072, 32, 32, 131072, 10000.0, rules=_WINDOW_IN_ALL,
        rope=_PHI3, original_max_position_embeddings=4096),
    "ministral": _plain("Ministral", 4096, 32, 32, 131072, 10000.0, rules=DecoderRules(full_or_sliding),
        sliding_window=4096),
    "ministral3": _plain("Ministral 3", 4096, 32, 34, 262144, 10000.0, 128, rope_parameters=_MINISTRAL3,
        rules=DecoderRules(windows_all=True, temperature=mistral_temperature)),
    # Windows in some layers
    "qwen2": _plain("Qwen 2", 4096, 32, 32, 32768, 10000.0, rules=_FROM_LAYER,
        sliding_window=4096, use_sliding_window=False, max_window_layers=28, fixed={"use_mrope": False}),
    "qwen2_moe": _plain("Qwen 2 MoE", 2048, 16, 24, 32768, 10000.0, rules=DecoderRules(qwen2_moe_layers),
        sliding_window=4096, use_sliding_window=False, max_window_layers=28),
    "qwen3": _plain("Qwen 3", 4096, 32, 32, 32768, 10000.0, 128, rules=_FROM_LAYER,
        sliding_window=4096, use_sliding_window=False, max_window_layers=28, fixed={"use_mrope": False}),
    "dots1": _plain("dots.llm1", 4608, 32, 62, 2048, 10000.0, rules=_FROM_LAYER,
        sliding_window=4096, max_window_layers=62),
    "gemma2": _plain("Gemma 2", 2304, 8, 26, 8192, 10000.0, 256,
        rules=DecoderRules(every(2), scale=from_scalar), sliding_window=4096, query_pre_attn_scalar=256),
    "vaultgemma": _plain("VaultGemma", 2304, 8, 26, 8192, 10000.0, 256,
        rules=DecoderRules(every(2), scale=from_scalar), sliding_window=4096, query_pre_attn_scalar=256),
    "gemma3_text": _plain("Gemma 3", 2304, 8, 26, 131072, 1000000.0, 256, rope_local_base_freq=10000.0,
        rope=_REACHED,
        rules=DecoderRules(every(6, "sliding_window_pattern"), scale=from_scalar, scaled_types=(FULL,),
            theta={SLIDING: "rope_local_base_freq"}, window=gemma_window, causal=gemma_causal),
        sliding_window=4096, query_pre_attn_scalar=256, ignored=("_sliding_window_pattern",)),
    "gemma3n_text": _plain("Gemma 3n", 2048, 8, 35, 32768, 1000000.0, 256, rope_local_base_freq=10000.0,
        rope=_REACHED,
        rules=DecoderRules(every(5), scale=unscaled, scaled_types=(FULL,),
            theta={SLIDING: "rope_local_base_freq"}), sliding_window=512),
    "gemma4_text": _plain("Gemma 4", 2304, 8, 30, 131072, 10000.0, 256, rope_parameters=_GEMMA4,
        rules=DecoderRules(gemma4_layers, scale=unscaled, scaled_types=(FULL,), head_dims=gemma4_head_dims,
            window=gemma_window, causal=gemma_causal),
        sliding_window=512, global_head_dim=512),
    "gpt_oss": _plain("gpt-oss", 2880, 64, 36, 131072, 150000.0, 64, rope=RopeRules(dialect="hf"),
        rules=DecoderRules(every(2)), sliding_window=128, rope_parameters=_GPT_OSS),
    "olmo3": _plain("OLMo 3", 4096, 32, 32, 2048, 500000.0,
        rules=DecoderRules(every(4), scaled_types=(FULL,)), sliding_window=4096),
    "cohere2": _plain("Cohere 2", 8192, 64, 40, 8192, 10000.0, rope=_PAIRS,
        rules=DecoderRules(every(4, "sliding_window_pattern"), rotates=windowed_rotation), sliding_window=4096,
        fixed={"position_embedding_type": "rope_gptj", "rotary_pct": 1.0,
               "order_of_interleaved_layers": "local_attn_first"}),
    "exaone4": _plain("EXAONE 4", 4096, 32, 32, 2048, 10000.0,
        rules=DecoderRules(exaone_layers, rotates=windowed_rotation), sliding_window=4096),
    "exaone_moe": _plain("EXAONE MoE", 4096, 32, 32, 2048, 10000.0,
        rules=DecoderRules(exaone_layers, rotates=windowed_rotation), sliding_window=4096),
    "afmoe": _plain("AFM MoE", 2048, 16, 32, 16384, 10000.0, 128,
        rules=DecoderRules(every(4, "global_attn_every_n_layers"), rotates=only_windowed), sliding_window=1024),
    "cwm": _plain("CWM", 6144, 48, 64, 131072, 1000000.0, 128, rules=DecoderRules(every(4, from_first=True)),
        sliding_window=8192, rope_parameters=_CWM),
    "modernbert": _plain("ModernBERT", 768, 12, 22, 8192, 160000.0, local_rope_theta=10000.0, local_attention=128,
        rules=DecoderRules(every(3, "global_attn_every_n_layers", from_first=True), scaled_types=(FULL, SLIDING),
            window=modernbert_window, causal=False,
            theta={FULL: "global_rope_theta", SLIDING: "local_rope_theta"}), global_rope_theta=160000.0,
        ignored=("position_embedding_type",)),
    # Layers without rotation
    "smollm3": _plain("SmolLM3", 2048, 16, 36, 32768, 2000000.0, use_sliding_window=False,
        rules=DecoderRules(smollm3_layers, rotates=listed_rotation)),
    "llama4_text": _plain("Llama 4", 5120, 40, 48, 131072, 500000.0, 128, rope=_PAIRS,
        rules=DecoderRules(llama4_layers, rotates=listed_rotation, temperature=llama4_temperature,
            temperature_unrotated=True),
        attention_chunk_size=8192, floor_scale=8192, attn_scale=0.1, attn_temperature_tuning=True),
    # Attention in some layers only
    "qwen3_next": _plain("Qwen 3 Next", 2048, 16, 48, 32768, 10000.0, 256, partial_rotary_factor=0.25,
        rules=DecoderRules(every(4, "full_attention_interval", others=_LINEAR))),
    "qwen3_5_text": _plain("Qwen 3.5", 4096, 16, 32, 32768, 10000.0, 256, partial_rotary_factor=0.25,
        rope=_QWEN3_5, rules=DecoderRules(every(4, "full_attention_interval", others=_LINEAR))),
    "qwen3_5_moe_text": _plain("Qwen 3.5 MoE", 2048, 16, 40, 32768, 10000.0, 256, partial_rotary_factor=0.25,
        rope=_QWEN3_5, rules=DecoderRules(every(4, "full_attention_interval", others=_LINEAR))),
    "mllama_text_model": _plain("Llama 3.2 Vision", 4096, 32, 40, 131072, 500000.0, rules=DecoderRules(mllama_layers),
        cross_attention_layers=[3, 8, 13, 18, 23, 28, 33, 38]),
    "lfm2": _plain("LFM2", 2560, 32, 32, 128000, 1000000.0, rules=DecoderRules(by_index)),
    # Part of each head
    "gpt_neox": Family("GPT-NeoX", read_decoder,
        _rotary(6144, 64, 44, 2048, 10000.0, partial_rotary_factor=0.25), _NEOX),
    "gpt_neox_japanese": Family("GPT-NeoX Japanese", read_decoder,
        _rotary(2560, 32, 32, 2048, 10000.0, partial_rotary_factor=1.0), _NEOX),
    "phi": _plain("Phi", 2048, 32, 24, 2048, 10000.0, partial_rotary_factor=0.5),
    "stablelm": _plain("StableLM", 2560, 32, 32, 4096, 10000.0, partial_rotary_factor=0.25,
        fixed={"is_causal": True}),
    "nemotron": _plain("Nemotron", 6144, 48, 32, 4096, 10000.0, partial_rotary_factor=0.5,
        fixed={"is_causal": True}),
    "persimmon": _plain("Persimmon", 4096, 64, 36, 16384, 10000.0, partial_rotary_factor=0.5),
    "glm4_moe": _plain("GLM-4 MoE", 4096, 96, 46, 131072, 10000.0, partial_rotary_factor=0.5),
    "minimax_m2": _plain("MiniMax M2", 3072, 48, 62, 196608, 5000000.0, 128),
    # Neighbouring channels form a pair
    "gptj": Family("GPT-J", read_decoder, _rotary(4096, 16, 28, 2048, 10000.0, rotary_dim=64), GPT_KEYS, _GPTJ,
        fixed=_GPTJ_FIXED),
    "codegen": Family("CodeGen", read_decoder, _rotary(4096, 16, 28, 2048, 10000.0, rotary_dim=64), GPT_KEYS, _GPTJ,
        fixed=_GPTJ_FIXED),
    "glm": _plain("GLM-4", 4096, 32, 40, 131072, 10000.0, 128, rope=_PAIRS, partial_rotary_factor=0.5),
    "glm4": _plain("GLM-4", 4096, 32, 40, 131072, 10000.0, 128, rope=_PAIRS, partial_rotary_factor=0.5),
    "cohere": _plain("Cohere", 8192, 64, 40, 8192, 500000.0, rope=_PAIRS),
    "helium": _plain("Helium", 2560, 20, 24, 4096, 100000.0, 128, rope=_PAIRS),
    "ernie4_5": _plain("ERNIE 4.5", 1024, 16, 18, 131072, 500000.0, 128, rope=_PAIRS),
    "ernie4_5_moe": _plain("ERNIE 4.5 MoE", 2560, 20, 28, 131072, 500000.0, rope=_PAIRS),
    # Latent attention
    "deepseek_v2": Family("DeepSeek V2", read_latent, _rotary(4096, 32, 32, 2048, 10000.0, None,
        qk_nope_head_dim=128, qk_rope_head_dim=64), rope=_LATENT),
    "deepseek_v3": Family("DeepSeek V3", read_latent, _rotary(7168, 128, 61, 4096, 10000.0, None,
        qk_nope_head_dim=128, qk_rope_head_dim=64, rope_interleave=True), rope=_LATENT),
    "kimi_k2": Family("Kimi K2", read_latent, _rotary(7168, 128, 61, 4096, 10000.0, None,
        qk_nope_head_dim=128, qk_rope_head_dim=64, rope_interleave=True), rope=_LATENT),
    "youtu": Family("Youtu", read_latent, _rotary(2048, 16, 32, 131072, 10000.0, None,
        qk_nope_head_dim=128, qk_rope_head_dim=64, rope_interleave=True), rope=_LATENT),
    "glm4_moe_lite": Family("GLM-4 MoE Lite", read_latent, _rotary(2048, 20, 47, 202752, 10000.0, None,
        qk_nope_head_dim=192, qk_rope_head_dim=64, rope_interleave=True), {"qk_rope_head_dim": "head_dim"}, _LATENT),
    "minicpm3": Family("MiniCPM 3", read_latent, _rotary(2560, 40, 62, 32768, 10000.0, None,
        qk_nope_head_dim=64, qk_rope_head_dim=32), rope=RopeRules(dialect="deepseek")),
    # Several axes
    "qwen2_5_omni_text": _plain("Qwen2.5-Omni", 3584, 28, 28, 32768, 1000000.0, rope=_MROPE, rules=_FROM_LAYER,
        sliding_window=32768, use_sliding_window=False, max_window_layers=28),
    "qwen3_omni_moe_text": _plain("Qwen3-Omni", 2048, 28, 28, 32768, 1000000.0, rope=_MROPE_IN_TURN,
        rules=_WINDOW_IN_ALL),
    "qwen2_vl_text": _plain("Qwen2-VL", 8192, 64, 80, 32768, 1000000.0, rope=_MROPE, rules=_FROM_LAYER,
        sliding_window=4096, use_sliding_window=False, max_window_layers=80),
    "qwen2_5_vl_text": _plain("Qwen2.5-VL", 8192, 64, 80, 32768, 1000000.0, rope=_MROPE, rules=_FROM_LAYER,
        sliding_window=4096, use_sliding_window=False, max_window_layers=80),
    "qwen3_vl_text": _plain("Qwen3-VL", 4096, 32, 32, 128000, 500000.0, 128, rope=_MROPE_IN_TURN),
    "qwen3_vl_moe_text": _plain("Qwen3-VL MoE", 2048, 16, 24, 128000, 500000.0, rope=_MROPE_IN_TURN),
})  # fmt: skip
