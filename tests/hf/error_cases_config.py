"""The refusals of configs, their extension and multimodal positions, for ``tests/test_errors.py``."""

# ruff: noqa: E501  one case a line, however long
from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from ordinate import RoPE, T5Bias
from ordinate.hf import ConfigError, checkpoint_inv_freq, extend, from_config, mrope_positions
from ordinate.hf.config.config_file import write_config
from ordinate.scaling import Scaling, frequencies

_FOLDER = tempfile.TemporaryDirectory(prefix="ordinate-config-")
HERE = Path(_FOLDER.name)


def file(name: str, content: str) -> str:
    path = HERE / name
    path.write_text(content, encoding="utf-8")
    return str(path)


def read(model_type: str = "llama", **values: Any) -> Any:
    return from_config({"model_type": model_type, **values})


def scaled(**scaling: Any) -> Any:
    return read(rope_scaling=scaling)


class _Odd(Scaling):
    def inv_freq(self, base, dim, lengths=None, device=None):
        return frequencies(base, dim, device)


def _huge() -> str:
    path = HERE / "huge.json"
    with path.open("wb") as large:
        large.truncate(17 * 2**20)
    return str(path)


types = torch.tensor([[0, 1, 1, 0]])
_smollm = {"num_hidden_layers": 4}
_YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1024}

CASES: list[tuple] = [
    # where a config comes from
    (
        "config from a number",
        lambda: from_config(3),
        ConfigError,
        r"source must be a mapping, a path or a PretrainedConfig, got int",
    ),
    (
        "config from nowhere",
        lambda: from_config("/nowhere/config.json"),
        ConfigError,
        r"source must be a config.json or a folder with one, got '/nowhere/config.json'",
    ),
    (
        "config from an empty folder",
        lambda: from_config(tempfile.mkdtemp(dir=HERE)),
        ConfigError,
        r"source must be a folder with a config.json, got",
    ),
    (
        "config with a null byte in its name",
        lambda: from_config("a\0b"),
        ConfigError,
        r"source must be a config.json or a folder with one, got 'a\\x00b'",
    ),
    (
        "config that is not JSON",
        lambda: from_config(file("bad.json", "{")),
        ConfigError,
        r"source must be valid JSON, got .*bad.json'",
    ),
    (
        "config that is a list",
        lambda: from_config(file("list.json", "[1]")),
        ConfigError,
        r"source must hold a mapping of settings, got \[1\]",
    ),
    (
        "config nested too deeply",
        lambda: from_config(file("deep.json", "[" * 100_000)),
        ConfigError,
        r"source must be valid JSON, got .*nested too deeply",
    ),
    (
        "config as large as weights",
        lambda: from_config(_huge()),
        ConfigError,
        r"source must be a file of at most 16 MiB, got 17825792 bytes",
    ),
    (
        "config with a number for a key",
        lambda: from_config({3: 4}),
        ConfigError,
        r"source must have text for keys, got 3",
    ),
    # which family
    (
        "config of nobody",
        lambda: from_config({}),
        ConfigError,
        r"model_type must be a family that ordinate reads, got None; .*family=",
    ),
    (
        "config of an unknown family",
        lambda: read("acme"),
        ConfigError,
        r"model_type must be a family that ordinate reads, got 'acme'",
    ),
    (
        "config read as a wrong family",
        lambda: from_config({}, family="lama"),
        ConfigError,
        r"family must be a model_type that ordinate reads, got 'lama'; did you mean 'llama'",
    ),
    (
        "config in an unknown dialect",
        lambda: from_config({"model_type": "llama"}, dialect="elvish"),
        ConfigError,
        r"dialect must be one of hf, paper, minimind, deepseek, gpt-oss, got 'elvish'",
    ),
    (
        "unknown text model",
        lambda: read("acme_vl", text_config={"model_type": "acme"}),
        ConfigError,
        r"text_config.model_type must be a family that ordinate reads, got 'acme'",
    ),
    (
        "text model with a number for a key",
        lambda: read("llava", text_config={1: 2}),
        ConfigError,
        r"text_config must have text for keys, got 1",
    ),
    # values
    (
        "a null for a size",
        lambda: read(hidden_size=None),
        ConfigError,
        r"hidden_size must be given, it is the width of the embeddings, got nothing",
    ),
    (
        "heads as text",
        lambda: read(num_attention_heads="32"),
        ConfigError,
        r"num_attention_heads must be a whole number, got '32'",
    ),
    (
        "heads as a fraction",
        lambda: read(num_attention_heads=1.5),
        ConfigError,
        r"num_attention_heads must be a whole number, got 1.5",
    ),
    (
        "no layers",
        lambda: read(num_hidden_layers=0),
        ConfigError,
        r"num_hidden_layers must be between 1 and 16384, got 0",
    ),
    (
        "a googol of layers",
        lambda: read(num_hidden_layers=10**100),
        ConfigError,
        r"num_hidden_layers must be between 1 and 16384, got an integer of 333 bits",
    ),
    (
        "more heads than channels",
        lambda: read(hidden_size=8),
        ConfigError,
        r"hidden_size / num_attention_heads must be between 1 and 65536, got 0",
    ),
    (
        "theta as text",
        lambda: read(rope_theta="1e6"),
        ConfigError,
        r"rope_theta must be a number, got '1e6'",
    ),
    (
        "theta of NaN",
        lambda: read(rope_theta=float("nan")),
        ConfigError,
        r"rope_theta must be greater than 1 and at most 1e\+15, got nan",
    ),
    (
        "a negative theta",
        lambda: read(rope_theta=-1),
        ConfigError,
        r"rope_theta must be greater than 1 .* got -1",
    ),
    (
        "a switch of text",
        lambda: read("qwen2", use_sliding_window="no"),
        ConfigError,
        r"use_sliding_window must be true or false, got 'no'",
    ),
    (
        "relative positions of BERT",
        lambda: read("bert", position_embedding_type="relative_key"),
        ConfigError,
        r"position_embedding_type must be known, got 'relative_key'",
    ),
    (
        "layer types of text",
        lambda: read("gemma2", layer_types="full_attention"),
        ConfigError,
        r"layer_types must be a list, got 'full_attention'",
    ),
    (
        "too few layer types",
        lambda: read("gemma2", layer_types=["full_attention"]),
        ConfigError,
        r"layer_types must have 26 entries, got 1",
    ),
    (
        "an unknown layer type",
        lambda: read("gemma2", num_hidden_layers=1, layer_types=["psychic"]),
        ConfigError,
        r"layer_types\[0\] must be one of .*full_attention.*, got 'psychic'",
    ),
    (
        "rope_scaling of a number",
        lambda: read(rope_scaling=4),
        ConfigError,
        r"rope_scaling must be a mapping, got 4",
    ),
    # what is not understood
    (
        "a switch for rotation nobody knows",
        lambda: read(use_rope=False),
        ConfigError,
        r"use_rope must agree with what this model's other settings say, True, got False",
    ),
    (
        "a scaling factor nobody knows",
        lambda: scaled(type="linear", factor=2.0, gamma=7),
        ConfigError,
        r"rope_scaling.gamma must be a setting that ordinate understands for this model, got 7",
    ),
    (
        "a window beside a text model",
        lambda: read("llava", text_config={"model_type": "llama"}, rope_theta=5),
        ConfigError,
        r"rope_theta must be a setting that ordinate understands .* got 5",
    ),
    # rotary settings
    (
        "an unknown scaling",
        lambda: scaled(type="warp", factor=2),
        ConfigError,
        r"rope_scaling.type must be one of default, linear, .*proportional, got 'warp'",
    ),
    (
        "a factor without a type",
        lambda: scaled(factor=2.0),
        ConfigError,
        r"rope_scaling.rope_type must say what factor is for, got nothing",
    ),
    (
        "half a channel",
        lambda: read("stablelm", partial_rotary_factor=0.01),
        ConfigError,
        r"partial_rotary_factor must leave an even number of a head's 80 channels to turn, got 0.01, which leaves 0",
    ),
    (
        "an odd rotary_dim",
        lambda: read("gptj", rotary_dim=63),
        ConfigError,
        r"rotary_dim must leave an even number of a head's 256 channels to turn, got 63",
    ),
    (
        "axes that do not add up",
        lambda: scaled(type="mrope", mrope_section=[1, 2, 3]),
        ConfigError,
        r"rope_scaling.mrope_section must sum to the 64 pairs that turn, got \[1, 2, 3\]",
    ),
    (
        "axes dealt the other way",
        lambda: scaled(type="mrope", mrope_section=[16, 24, 24], mrope_interleaved=True),
        ConfigError,
        r"rope_scaling.mrope_interleaved must be false for this model.*got true",
    ),
    (
        "axes that leave no room to take turns",
        lambda: read(
            "qwen3_vl_text", rope_scaling={"rope_type": "default", "mrope_section": [2, 31, 31]}
        ),
        ConfigError,
        r"rope_scaling must describe a rotation, got .*sections\[1\] must leave room",
    ),
    (
        "flat settings for layer types",
        lambda: read("gemma3_text", rope_parameters={"rope_type": "default"}),
        ConfigError,
        r"rope_parameters must have one mapping for each layer type of this model, got",
    ),
    (
        "a layer type without settings",
        lambda: read("gemma3_text", rope_parameters={"full_attention": {"rope_theta": 1e4}}),
        ConfigError,
        r"rope_parameters.sliding_attention must be given, layers are of that type",
    ),
    (
        "a setting beside layer types",
        lambda: read(rope_parameters={"full_attention": {"rope_type": "default"}, "factor": 2}),
        ConfigError,
        r"rope_parameters.factor must stand within a layer type's settings, got 2",
    ),
    (
        "YaRN without a length",
        lambda: read(max_position_embeddings=None, rope_scaling={"type": "yarn", "factor": 2.0}),
        ConfigError,
        r"rope_scaling.original_max_position_embeddings must be given, it is the length the frequencies were trained at",
    ),
    (
        "YaRN without a factor",
        lambda: read(
            max_position_embeddings=None,
            rope_scaling={"type": "yarn", "original_max_position_embeddings": 9},
        ),
        ConfigError,
        r"rope_scaling.factor must be given",
    ),
    (
        "dynamic without a length",
        lambda: read(max_position_embeddings=None, rope_scaling={"type": "dynamic", "factor": 2.0}),
        ConfigError,
        r"max_position_embeddings must be given, dynamic scaling starts there",
    ),
    (
        "YaRN's betas reversed",
        lambda: scaled(**_YARN, beta_fast=1, beta_slow=32),
        ConfigError,
        r"rope_scaling.beta_fast must be at least beta_slow 32, got 1",
    ),
    (
        "Llama 3's ends reversed",
        lambda: scaled(rope_type="llama3", factor=8.0, low_freq_factor=4, high_freq_factor=1),
        ConfigError,
        r"rope_scaling.high_freq_factor must be at least low_freq_factor 4, got 1",
    ),
    (
        "too few divisors",
        lambda: scaled(type="longrope", short_factor=[1.0], long_factor=[1.0]),
        ConfigError,
        r"rope_scaling.short_factor must have 64 entries, got 1",
    ),
    # layers without rotation, heads of two sizes
    (
        "too few flags",
        lambda: read("smollm3", **_smollm, no_rope_layers=[1, 0]),
        ConfigError,
        r"no_rope_layers must have 4 entries, got 2",
    ),
    (
        "flags of 2",
        lambda: read("smollm3", **_smollm, no_rope_layers=[1, 0, 2, 1]),
        ConfigError,
        r"no_rope_layers\[2\] must be 0 or 1, got 2",
    ),
    (
        "a layer that is not there",
        lambda: read("gemma4_text", num_hidden_layers=2, per_layer_config={"7": {}}),
        ConfigError,
        r"per_layer_config.7 must be the index of a layer, of 2, got '7'",
    ),
    (
        "heads of three sizes",
        lambda: read("gemma4_text", num_hidden_layers=3, per_layer_config={"0": {"head_dim": 8}}),
        ConfigError,
        r"per_layer_config.head_dim must be one for all of sliding_attention, got \[8, 256\]",
    ),
    (
        "both ways, perhaps",
        lambda: read("gemma3_text", use_bidirectional_attention="perhaps"),
        ConfigError,
        r"use_bidirectional_attention must be true, false, 'all' or 'vision', got 'perhaps'",
    ),
    # families without rotation
    (
        "MPT without ALiBi",
        lambda: read("mpt", attn_config={"alibi": False}),
        ConfigError,
        r"attn_config.alibi must be true, MPT without ALiBi is not supported, got false",
    ),
    (
        "MPT with a prefix",
        lambda: read("mpt", attn_config={"prefix_lm": True}),
        ConfigError,
        r"attn_config.prefix_lm must be false.*got true",
    ),
    (
        "T5 with more buckets than distances",
        lambda: read("t5", relative_attention_num_buckets=512),
        ConfigError,
        r"relative_attention_num_buckets and relative_attention_max_distance must fit together: max_distance",
    ),
    (
        "RoBERTa with too few rows",
        lambda: read("roberta", max_position_embeddings=2),
        ConfigError,
        r"max_position_embeddings must be greater than the 2 rows before position 0, got 2",
    ),
    (
        "sinusoids of odd width",
        lambda: read("marian", d_model=1025),
        ConfigError,
        r"d_model must be even for sinusoids, got 1025",
    ),
    (
        "GPT-Neo's types as words",
        lambda: read("gpt_neo", attention_types=["global"]),
        ConfigError,
        r"attention_types must hold pairs of types and a number, got 'global'",
    ),
    (
        "GPT-Neo with too many layers",
        lambda: read("gpt_neo", attention_types=[[["global"], 99]]),
        ConfigError,
        r"attention_types must describe 24 layers, got",
    ),
    (
        "GPT-Neo with too few layers",
        lambda: read("gpt_neo", attention_types=[[["global"], 9]]),
        ConfigError,
        r"attention_types must describe 24 layers, got 9",
    ),
    (
        "GPT-Neo with an unknown type",
        lambda: read("gpt_neo", num_layers=1, attention_types=[[["lokal"], 1]]),
        ConfigError,
        r"attention_types must be made of 'global' and 'local', got 'lokal'",
    ),
    # plans
    (
        "one encoding of several",
        lambda: read("smollm3", **_smollm).encoding,
        ConfigError,
        r"encoding must be asked of plan.layers or plan.embeddings where they differ, got 2",
    ),
    (
        "frequencies of a bias",
        lambda: checkpoint_inv_freq(T5Bias(2)),
        TypeError,
        r"rope must be a RoPE, got T5Bias",
    ),
    (
        "frequencies of a scaling of one's own",
        lambda: checkpoint_inv_freq(RoPE(8, scaling=_Odd())),
        TypeError,
        r"scaling must be one that checkpoints use, got _Odd",
    ),
    # extend
    (
        "extend by magic",
        lambda: extend({"model_type": "llama"}, 9999, "magic"),
        ConfigError,
        r"method must be one of yarn, ntk, dynamic, linear, llama3, got 'magic'",
    ),
    (
        "extend to less",
        lambda: extend({"model_type": "llama"}, 2048),
        ConfigError,
        r"to must be more than the 2048 positions the model already reads, got 2048",
    ),
    (
        "extend without a length",
        lambda: extend({"model_type": "llama", "max_position_embeddings": None}, 9999),
        ConfigError,
        r"max_position_embeddings must say what the model was trained at, got nothing; give original",
    ),
    (
        "extend MiniMind",
        lambda: extend({"model_type": "minimind"}, 99999),
        ConfigError,
        r"model_type must be one whose code reads its scaling from the config, got 'minimind'",
    ),
    (
        "extend BLOOM",
        lambda: extend({"model_type": "bloom"}, 99999),
        ConfigError,
        r"model_type must be a rotary model.*got 'bloom' \(ALiBi\)",
    ),
    (
        "extend by taking a scaling away",
        lambda: extend({"model_type": "apertus"}, 999999),
        ConfigError,
        r"rope_scaling must be absent or of the method yarn.*got 'llama3'; say replace=True",
    ),
    (
        "extend a pair by its base",
        lambda: extend({"model_type": "llama", "head_dim": 2}, 9999, "ntk"),
        ConfigError,
        r"head_dim must leave at least 4 channels to turn to change the base, got 2",
    ),
    (
        "write where there is a file",
        lambda: write_config({}, file("there.json", json.dumps({}))),
        ConfigError,
        r"path must not exist, nothing is overwritten unless told, got .*there.json",
    ),
    (
        "write where there is no folder",
        lambda: write_config({}, HERE / "no" / "where.json"),
        ConfigError,
        r"path must be in a folder that can be written, got .*where.json': No such file",
    ),
    # multimodal positions
    (
        "token types of rank 1",
        lambda: mrope_positions(types[0]),
        ValueError,
        r"token_types must have shape \[batch, seq\], got \[4\]",
    ),
    (
        "padding of another shape",
        lambda: mrope_positions(types, is_token=torch.ones(1, 3).bool()),
        ValueError,
        r"is_token must be bool with the shape of token_types \[1, 4\], got torch.bool \[1, 3\]",
    ),
    (
        "seconds for frames",
        lambda: mrope_positions(types, seconds_per_grid=[1.0]),
        ValueError,
        r"seconds_per_grid and tokens_per_second must be left out with style 'qwen2_vl'",
    ),
    (
        "an image too many",
        lambda: mrope_positions(types, [(1, 2, 4), (1, 2, 2)]),
        ValueError,
        r"image_grids must have one grid for each run of its tokens, got more grids than runs",
    ),
    (
        "tokens of type 3",
        lambda: mrope_positions(types + 3),
        ValueError,
        r"token_types must be 0 for text, 1 for image and 2 for video, got 3",
    ),
    (
        "an image too few",
        lambda: mrope_positions(types),
        ValueError,
        r"image_grids must have one grid for each run of its tokens, got too few",
    ),
    (
        "an image of another size",
        lambda: mrope_positions(types, [(1, 4, 4)]),
        ValueError,
        r"image_grids must match token_types, got a grid of 4 merged patches for 2 tokens",
    ),
    (
        "an image of two numbers",
        lambda: mrope_positions(types, [(2, 4)]),
        ValueError,
        r"image_grids\[0\] must be \(time, height, width\), got \(2, 4\)",
    ),
    (
        "an image that does not merge",
        lambda: mrope_positions(types, [(1, 3, 4)]),
        ValueError,
        r"image_grids\[0\] must have a height and width that merge_size 2 divides, got \(1, 3, 4\)",
    ),
    (
        "seconds of no video",
        lambda: mrope_positions(types, [(1, 2, 4)], style="qwen2_5_vl", seconds_per_grid=[1.0]),
        ValueError,
        r"seconds_per_grid must have one number for each video, got 1 for 0",
    ),
]

CASES += [
    (
        "GPT-J without rotation",
        lambda: read("gptj", rotary=False),
        ConfigError,
        r"rotary must be True, this model's code knows no other, got False",
    ),
    (
        "a pattern of other letters",
        lambda: read("exaone4", sliding_window_pattern="LXG"),
        ConfigError,
        r"sliding_window_pattern must be a number or made of L and G, got 'LXG'",
    ),
    (
        "tuned by a word",
        lambda: read("llama4_text", attn_temperature_tuning="yes"),
        ConfigError,
        r"attn_temperature_tuning must be true or false, got 'yes'",
    ),
]

CASES += [
    (
        "axes left out",
        lambda: read("qwen2_vl_text", head_dim=64),
        ConfigError,
        r"rope_parameters.mrope_section must be given for 32 pairs, the model's code assumes \(16, 24, 24\), got nothing",
    ),
    (
        "a scaling GPT-J does not know",
        lambda: read("gptj", rope_scaling={"type": "linear", "factor": 2.0}),
        ConfigError,
        r"rope_scaling.type must be one of default, got 'linear'",
    ),
]


def _circular() -> dict[str, Any]:
    values: dict[str, Any] = {"model_type": "llama"}
    values["itself"] = values
    return values


def _unreadable() -> Any:
    """A file that is there and cannot be read; permissions would not stop every user who runs this."""
    path = file("locked.json", "{}")
    with mock.patch.object(Path, "read_bytes", side_effect=PermissionError(13, "Permission denied")):
        return from_config(path)


CASES += [
    (
        "extend linear scaling",
        lambda: extend(
            {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 4.0}}, 65536, "linear"
        ),
        ConfigError,
        r"original_max_positions must be given, whether max_position_embeddings 2048 is before or after linear scaling by 4 the config does not say, got nothing",
    ),
    (
        "extend by turning faster",
        lambda: extend(
            {
                "model_type": "llama",
                "max_position_embeddings": 8192,
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 16.0,
                    "original_max_position_embeddings": 4096,
                },
            },
            16384,
        ),
        ConfigError,
        r"original_max_positions must be a length from which yarn slows the slowest pair and reaches 16384, got 4096",
    ),
    (
        "extend p-RoPE",
        lambda: extend({"model_type": "gemma4_text"}, 1 << 20, replace=True),
        ConfigError,
        r"rope_parameters must be of a kind that a scaling can stand beside.*got 'proportional'",
    ),
    (
        "extend what cannot be written",
        lambda: extend(_circular(), 9999),
        ConfigError,
        r"source must hold what JSON can hold, got .*Circular reference",
    ),
    (
        "write over a folder",
        lambda: write_config({}, HERE, overwrite=True),
        ConfigError,
        r"path must be a file to write, got the folder",
    ),
    (
        "a file that cannot be read",
        _unreadable,
        ConfigError,
        r"source must be a file that can be read, got .*locked.json': Permission denied",
    ),
    (
        "a key that says otherwise",
        lambda: read(rope_pct=0.5),
        ConfigError,
        r"rope_pct must agree with what this model's other settings say, 1.0, got 0.5",
    ),
]
