"""The table of families without rotation: ALiBi, T5, learned tables, sinusoids."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType

from .biases import read_bloom, read_falcon, read_mpt, read_t5
from .embeddings import (
    TableRules,
    bigcode_scale,
    gpt2_scale,
    gpt_neo_layers,
    read_table,
    read_two_stacks,
)
from .family import GPT_KEYS, Family, sizes

_T5 = {
    "hidden_size": "d_model", "num_attention_heads": "num_heads", "num_hidden_layers": "num_layers",
    "head_dim": "d_kv",
}  # fmt: skip
_BLOOM = {"hidden_size": "n_embed", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"}
_BUCKETS = {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128}
_WIDTH = {"hidden_size": "d_model"}
# Keys that the first versions of these models' code wrote and no version reads.
_BART_OLD = ("static_position_embeddings", "extra_pos_embeddings")

# How codes are added. BERT's positions start at row 0; RoBERTa's at the row after the padding's, within the table;
# BART and OPT have two rows more than positions; M2M100 computes sinusoids from the padding's row on.
_BERT = TableRules(causal="is_decoder")
_ROBERTA = TableRules(offset="padding", inside=True, causal="is_decoder")
_BART = TableRules(offset=2)
_SINES_FIRST = TableRules("half")
_M2M = TableRules("endpoint", offset="padding")
_ENCODER = TableRules()


def _stacks(
    width: int, heads: tuple[int, int], layers: tuple[int, int], rows: int | None, **more: object
):
    return {
        "hidden_size": width, "encoder_attention_heads": heads[0], "decoder_attention_heads": heads[1],
        "encoder_layers": layers[0], "decoder_layers": layers[1], "max_position_embeddings": rows, **more,
    }  # fmt: skip


OTHER: Mapping[str, Family] = MappingProxyType({
    # ALiBi
    "bloom": Family("BLOOM", read_bloom,
        {"hidden_size": 64, "num_attention_heads": 8, "num_hidden_layers": 2}, _BLOOM, ignored=("offset_alibi",)),
    "mpt": Family("MPT", read_mpt, sizes(2048, 16, 24, 2048),
        {"hidden_size": "d_model", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers",
         "max_position_embeddings": "max_seq_len"}),
    "falcon": Family("Falcon", read_falcon, sizes(4544, 71, 32, 2048, rope_theta=10000.0, alibi=False), _BLOOM),
    # T5
    "t5": Family("T5", read_t5, {"num_attention_heads": 8, "num_hidden_layers": 6, "head_dim": 64, **_BUCKETS},
        _T5, ignored=("n_positions",)),
    "mt5": Family("mT5", read_t5, {"num_attention_heads": 6, "num_hidden_layers": 8, "head_dim": 64, **_BUCKETS},
        _T5, ignored=("n_positions",)),
    "umt5": Family("UMT5", functools.partial(read_t5, own_tables=True),
        {"num_attention_heads": 6, "num_hidden_layers": 8, "head_dim": 64, **_BUCKETS},
        _T5, ignored=("n_positions",)),
    "switch_transformers": Family("Switch Transformers", read_t5,
        {"num_attention_heads": 12, "num_hidden_layers": 12, "num_decoder_layers": 12, "head_dim": 64, **_BUCKETS},
        _T5, ignored=("n_positions",)),
    # Learned tables, one stack
    "bert": Family("BERT", read_table, sizes(768, 12, 12, 512), rules=_BERT),
    "bert-generation": Family("BERT", read_table, sizes(1024, 16, 24, 512), rules=_BERT),
    "megatron-bert": Family("Megatron BERT", read_table, sizes(1024, 16, 24, 512), rules=_BERT),
    "ernie": Family("ERNIE", read_table, sizes(768, 12, 12, 512), rules=_BERT),
    "electra": Family("ELECTRA", read_table, sizes(256, 4, 12, 512, embedding_size=128),
        rules=TableRules(causal="is_decoder", width_key="embedding_size")),
    "albert": Family("ALBERT", read_table, sizes(4096, 64, 12, 512, embedding_size=128),
        rules=TableRules(width_key="embedding_size")),
    "distilbert": Family("DistilBERT", read_table, sizes(768, 12, 6, 512),
        {"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"},
        ignored=("sinusoidal_pos_embds",), rules=_ENCODER),  # sinusoids only initialize its table
    "roberta": Family("RoBERTa", read_table, sizes(768, 12, 12, 512, pad_token_id=1), rules=_ROBERTA),
    "roberta-prelayernorm": Family("RoBERTa", read_table, sizes(768, 12, 12, 512, pad_token_id=1),
        rules=_ROBERTA),
    "xlm-roberta": Family("XLM-RoBERTa", read_table, sizes(768, 12, 12, 512, pad_token_id=1), rules=_ROBERTA),
    "xlm-roberta-xl": Family("XLM-RoBERTa", read_table, sizes(2560, 32, 36, 514, pad_token_id=1),
        rules=_ROBERTA),
    "camembert": Family("CamemBERT", read_table, sizes(768, 12, 12, 512, pad_token_id=1), rules=_ROBERTA),
    "gpt2": Family("GPT-2", read_table, sizes(768, 12, 12, 1024), GPT_KEYS,
        rules=TableRules(causal=True, scale=gpt2_scale), ignored=("n_ctx",)),
    "openai-gpt": Family("GPT", read_table, sizes(768, 12, 12, 512), GPT_KEYS, rules=TableRules(causal=True)),
    "gpt_bigcode": Family("GPT-BigCode", read_table, sizes(768, 12, 12, 1024), GPT_KEYS,
        rules=TableRules(causal=True, scale=bigcode_scale), ignored=("scale_attention_softmax_in_fp32",)),
    "gpt_neo": Family("GPT-Neo", read_table, sizes(2048, 16, 24, 2048, window_size=256),
        {"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"},
        rules=TableRules(causal=True, scale=lambda *_: 1.0, layer_types=gpt_neo_layers)),
    "opt": Family("OPT", read_table, sizes(768, 12, 12, 2048),
        rules=TableRules(offset=2, causal=True)),
    "biogpt": Family("BioGPT", read_table, sizes(1024, 16, 24, 1024), rules=TableRules(offset=2, causal=True)),
    "clip_text_model": Family("CLIP", read_table, sizes(512, 8, 12, 77), rules=TableRules(causal=True)),
    # Sinusoids, one stack
    "xglm": Family("XGLM", read_table, sizes(1024, 16, 24, 2048),
        {"hidden_size": "d_model", "num_attention_heads": "attention_heads", "num_hidden_layers": "num_layers"},
        rules=TableRules("endpoint", offset=2, causal=True)),
    "ctrl": Family("CTRL", read_table, sizes(1280, 16, 48, 256), GPT_KEYS, rules=TableRules("half", causal=True)),
    # Two stacks
    "bart": Family("BART", read_two_stacks, _stacks(1024, (16, 16), (12, 12), 1024), _WIDTH,
        rules=_BART, ignored=_BART_OLD),
    "mbart": Family("mBART", read_two_stacks, _stacks(1024, (16, 16), (12, 12), 1024), _WIDTH,
        rules=_BART, ignored=_BART_OLD),
    "plbart": Family("PLBART", read_two_stacks, _stacks(768, (12, 12), (6, 6), 1024), _WIDTH,
        rules=_BART, ignored=_BART_OLD),
    "mvp": Family("MVP", read_two_stacks, _stacks(1024, (16, 16), (12, 12), 1024), _WIDTH,
        rules=_BART, ignored=_BART_OLD),
    "blenderbot": Family("Blenderbot", read_two_stacks, _stacks(2560, (32, 32), (2, 24), 128), _WIDTH,
        rules=_ENCODER, ignored=_BART_OLD),
    "blenderbot-small": Family("Blenderbot", read_two_stacks, _stacks(512, (16, 16), (8, 8), 512), _WIDTH,
        rules=_ENCODER, ignored=_BART_OLD),
    "marian": Family("Marian", read_two_stacks, _stacks(1024, (16, 16), (12, 12), 1024), _WIDTH,
        rules=_SINES_FIRST, ignored=_BART_OLD),
    "pegasus": Family("Pegasus", read_two_stacks, _stacks(1024, (16, 16), (12, 12), 1024), _WIDTH,
        rules=_SINES_FIRST, ignored=_BART_OLD),
    "m2m_100": Family("M2M100", read_two_stacks, _stacks(1024, (16, 16), (12, 12), 1024, pad_token_id=1), _WIDTH,
        rules=_M2M),
    "nllb-moe": Family("NLLB", read_two_stacks, _stacks(1024, (16, 16), (12, 12), 1024, pad_token_id=1), _WIDTH,
        rules=_M2M),
    "whisper": Family("Whisper", read_two_stacks,
        _stacks(384, (6, 6), (4, 4), None, max_source_positions=1500, max_target_positions=448), _WIDTH,
        rules=(TableRules("endpoint"), TableRules())),
})  # fmt: skip
