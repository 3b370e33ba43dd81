"""The table of families: ``model_type`` → how its positions are read."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from .biases import read_alibi, read_t5
from .decoders import read_decoder
from .family import Family
from .tables import read_gpt2

_GPT = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "max_position_embeddings": "n_positions",
}
_T5 = {
    "hidden_size": "d_model",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
    "head_dim": "d_kv",
}
_T5_DEFAULTS = {
    "num_hidden_layers": 6, "num_attention_heads": 8, "head_dim": 64,
    "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128,
}  # fmt: skip

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": Family("Llama", read_decoder, {
            "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
            "max_position_embeddings": 2048, "rope_theta": 10000.0}),
        "t5": Family("T5", read_t5, _T5_DEFAULTS, _T5),
        "bloom": Family("BLOOM", read_alibi, {
            "hidden_size": 64, "num_attention_heads": 8, "num_hidden_layers": 2},
            {"num_attention_heads": "n_head", "num_hidden_layers": "n_layer"}),
        "gpt2": Family("GPT-2", read_gpt2, {
            "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12,
            "max_position_embeddings": 1024}, _GPT),
    }
)  # fmt: skip
