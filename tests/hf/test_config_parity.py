"""Every family against the installed transformers: defaults, frequencies bit for bit, and what its layers do."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import pytest
import torch
from hf_cases import (
    THEIRS,
    TURNING,
    WITH_CLASS,
    config_class,
    our_frequencies,
    rotary_module,
    small_config,
    their_frequencies,
    turning_layers,
)

from ordinate import RoPE, hf
from ordinate.hf.config.families.registry import FAMILIES

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")

# Written in their code, or under another name there.
_NOT_FIELDS = {
    "rope_theta", "rope_parameters", "partial_rotary_factor", "rope_local_base_freq", "local_rope_theta",
    "global_rope_theta", "global_head_dim", "rotary_dim", "head_dim", "cross_attention_layers",
}  # fmt: skip


def test_there_are_more_than_25_families_of_each_kind_of_comparison():
    assert len(THEIRS) > 100
    assert len(WITH_CLASS) > 50


@pytest.mark.parametrize("name", THEIRS)
def test_defaults_are_those_of_the_familys_config_class(name: str):
    cls, family = config_class(name), FAMILIES[name]
    fields = {field.name: field.default for field in dataclasses.fields(cls)}
    for key, value in family.defaults.items():
        if value is None:
            continue
        own = cls.attribute_map.get(key, key if key in fields else family.keys.get(key, key))
        if own in fields and not (key in _NOT_FIELDS and fields[own] is None):
            assert fields[own] == value, key
        else:
            assert key in _NOT_FIELDS or value is None, f"{key} is no key of {cls.__name__}"


@pytest.mark.parametrize("name", THEIRS)
def test_a_config_without_settings_is_read_as_the_class_would(name: str):
    """What a file leaves out is what the class has; read from the object, nothing changes."""
    if name in ("glm4_moe", "qwen3_omni_moe_text"):  # whose own defaults leave an odd number of channels
        with pytest.raises(hf.ConfigError, match="must leave an even number of a head's"):
            hf.from_config({"model_type": name})
        return
    ours, theirs = hf.from_config({"model_type": name}), hf.from_config(config_class(name)())
    assert [layer.describe() for layer in ours.layers] == [layer.describe() for layer in theirs.layers]
    assert (ours.max_positions, ours.original_max_positions) == (
        theirs.max_positions,
        theirs.original_max_positions,
    )


# Frequencies and attention factor, bit for bit.

_ORIGINAL = {"original_max_position_embeddings": 32}
TYPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
    "yarn": {"rope_type": "yarn", "factor": 5.0, **_ORIGINAL},
    "yarn-options": {
        "rope_type": "yarn", "factor": 40.0, "beta_fast": 9.0, "beta_slow": 2.0, "mscale": 0.7,
        "mscale_all_dim": 1.3, "truncate": False, "original_max_position_embeddings": 2048,
    },
    "yarn-attention": {"rope_type": "yarn", "factor": 5.0, "attention_factor": 1.25, **_ORIGINAL},
    "longrope": {"rope_type": "longrope", "factor": 7.0, **_ORIGINAL},
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **_ORIGINAL,
    },
    "proportional": {"rope_type": "proportional", "factor": 2.0},
}  # fmt: skip


def with_type(name: str, kind: str) -> Any:
    """A small config with this scaling in every layer type."""
    plain = small_config(name)
    turning = turning_layers(hf.from_config(plain))
    made = {}
    for layer_type, rope in turning.items():
        pairs = rope.rotary_dim // 2
        parameters = {"rope_theta": 5e5, **TYPES[kind]}
        if kind == "longrope":
            parameters["short_factor"] = [1 + index / 3 for index in range(pairs)]
            parameters["long_factor"] = [2 + index / 7 for index in range(pairs)]
        fraction = rope.rotary_dim / rope.head_dim
        if fraction != 1 or kind == "proportional":
            parameters["partial_rotary_factor"] = 0.5 if fraction == 1 else fraction
        if rope.sections:
            parameters["mrope_section"] = list(rope.sections)
        made[layer_type] = parameters
    nested = plain.rope_parameters.keys() & made.keys()
    rest = {key: value for key, value in plain.rope_parameters.items() if key not in made and nested}
    chosen = {**rest, **made} if nested else next(iter(made.values()))
    return small_config(name, rope_parameters=chosen)


# Families whose own code refuses most scalings, and families that turn a part of each head, for which
# p-RoPE, whose fraction is of the pairs, means nothing.
_ONLY = {
    "phi3": ("default", "longrope"),
    "phi4_multimodal": ("default", "longrope"),
    "gemma4_text": ("proportional",),
}
_PARTIAL = {
    "gpt_neox", "phi", "stablelm", "nemotron", "persimmon", "glm4_moe", "glm", "glm4", "qwen3_next",
    "qwen3_5_text", "qwen3_5_moe_text",
}  # fmt: skip
SCALED = [
    (name, kind)
    for name in WITH_CLASS
    for kind in TYPES
    if kind in _ONLY.get(name, TYPES) and not (kind == "proportional" and name in _PARTIAL)
]


@pytest.mark.parametrize(("name", "kind"), SCALED, ids=[f"{n}-{k}" for n, k in SCALED])
def test_frequencies_and_attention_factor_equal_transformers_bit_for_bit(name: str, kind: str):
    config = with_type(name, kind)
    rotary, plan = rotary_module(name, config), hf.from_config(config)
    assert turning_layers(plan)
    for layer_type, rope in turning_layers(plan).items():
        theirs, their_factor = their_frequencies(rotary, layer_type)
        ours, our_factor = our_frequencies(rope)
        nested_truncate = kind == "yarn-options" and layer_type in config.rope_parameters
        if nested_truncate:  # they read truncate beside the layer types, where it is not
            assert not torch.equal(ours, theirs)
            rounded = dataclasses.replace(rope.scaling, truncate=True)
            again = RoPE(rope.head_dim, rope.base, scaling=rounded)
            ours, _ = our_frequencies(again)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
        assert our_factor == their_factor
        exact = rope.inv_freq()
        torch.testing.assert_close(our_frequencies(rope)[0].double(), exact, rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize("fraction", [0.19, 0.3, 0.4, 0.55, 0.9, 0.99])
def test_as_many_pairs_turn_as_in_transformers_where_the_fraction_is_not_of_whole_pairs(fraction: float):
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {"rope_type": "proportional", "rope_theta": 5e5, "partial_rotary_factor": fraction}
    config = small_config("llama", rope_parameters=parameters, head_dim=16)
    (rope,) = turning_layers(hf.from_config(config)).values()
    theirs, _ = ROPE_INIT_FUNCTIONS["proportional"](config, torch.device("cpu"))
    assert 0 < int((theirs != 0).sum()) < 8
    torch.testing.assert_close(our_frequencies(rope)[0], theirs, rtol=0, atol=0)
    torch.testing.assert_close(rope.inv_freq() != 0, theirs != 0)


@pytest.mark.parametrize("length", [1, 64, 65, 1000])
@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
@pytest.mark.parametrize("name", ["llama", "qwen2", "stablelm", "cohere", "deepseek_v3"])
def test_frequencies_by_length_equal_transformers_bit_for_bit(name: str, kind: str, length: int):
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = with_type(name, kind)
    (rope,) = turning_layers(hf.from_config(config)).values()
    theirs, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=length)
    torch.testing.assert_close(our_frequencies(rope, length)[0], theirs, rtol=0, atol=0)
    assert our_frequencies(rope, length)[1] == factor


# What layers do: rotation, scale, window, temperature, layer by layer, through transformers' own interface.


class Probe:
    """An attention that records what it is given and answers nothing, so that no layer depends on another."""

    def __init__(self) -> None:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask

        self.seen: list[tuple] = []
        AttentionInterface.register("probe", self)
        AttentionMaskInterface.register("probe", sdpa_mask)

    def __call__(
        self, module, query, key, value, attention_mask=None, scaling=None, sliding_window=None, **_
    ):
        self.seen.append((query, key, scaling, sliding_window))
        batch, heads, length, _ = query.shape
        return query.new_zeros(batch, length, heads, value.shape[-1]), None

    def run(self, model, positions) -> list[tuple]:
        self.seen = []
        ids = torch.arange(1, positions.shape[-1] + 1)[None]
        with torch.no_grad():
            model(input_ids=ids, position_ids=positions, use_cache=False)
        return self.seen


@pytest.fixture(scope="module")
def probe() -> Probe:
    return Probe()


# An attention of its own; models that do not come apart from their images; models with large embeddings.
_ALONE = {
    "gpt_neox_japanese",
    "chameleon",
    "mllama_text_model",
    "qwen2_5_omni_text",
    "qwen3_omni_moe_text",
    "phi4_multimodal",
}
_PROBED = [n for n in WITH_CLASS if n not in _ALONE | {"csm", "aria_text"}]
_SORTING = ("deepseek_v3", "youtu", "glm4_moe_lite")


@pytest.mark.parametrize("name", _PROBED)
def test_layers_rotate_scale_and_window_as_their_model_does(name: str, probe: Probe):
    from transformers import AutoModel

    config = small_config(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = AutoModel.from_config(config, attn_implementation="probe").eval()
    plan = hf.from_config(config)
    layers = [layer for layer in plan.layers if layer.layer_type != "linear_attention"]
    positions = (torch.arange(12) * 5)[None]
    still, turned = probe.run(model, torch.zeros_like(positions)), probe.run(model, positions)
    assert len(layers) == len(still) == len(turned)
    for layer, (q, k, scale, window), (their_q, their_k, _, _) in zip(
        layers, still, turned, strict=True
    ):
        first = layer.turned_from
        if name in _SORTING:  # which sort its interleaved channels into halves as they turn them
            q, k = (torch.cat((x[..., :first], _in_pairs(x[..., first:])), dim=-1) for x in (q, k))
        rotated = layer.encoding.rotate(q[..., first:], k[..., first:], positions, positions)
        ours = [torch.cat((x[..., :first], y), dim=-1) for x, y in zip((q, k), rotated, strict=True)]
        if layer.temperature is not None and name != "llama4_text":
            ours[0] = ours[0] * layer.temperature.at(positions)[:, None, :, None].float()
        theirs = _scores(their_q, their_k)
        torch.testing.assert_close(_scores(*ours), theirs, rtol=0, atol=2e-6 * float(theirs.abs().max()))
        assert scale == pytest.approx(layer.softmax_scale, rel=1e-12)
        assert (window or None) == layer.window


@pytest.mark.parametrize("name", ["llama", "qwen2", "mistral", "gemma2"])
def test_a_decoder_that_is_not_causal_sees_both_ways(name: str):
    """``is_causal`` false, as files of embedding models made from decoders have it; windows on either side."""
    from transformers import AutoModel

    config = small_config(name, is_causal=False, num_hidden_layers=2)
    model = AutoModel.from_config(config, attn_implementation="eager").eval()
    positions = torch.arange(24)
    with torch.no_grad():
        attentions = model(input_ids=positions[None], output_attentions=True).attentions
    layers = hf.from_config(config).layers
    assert [layer.window for layer in layers] == {"mistral": [9, 9], "gemma2": [9, None]}.get(
        name, [None, None]
    )
    for layer, weights in zip(layers, attentions, strict=True):
        assert not layer.causal
        distances = (positions[:, None] - positions).abs()
        assert torch.equal(weights[0, 0] > 0, distances < (layer.window or len(positions)))


def test_llama_4_grows_its_queries_where_it_does_not_turn_them(probe: Probe):
    """By the index of the token, whatever position_ids say: ours follows the positions it is given."""
    from transformers import AutoModel

    runs = []
    for tuned in (True, False):
        config = small_config("llama4_text", attn_temperature_tuning=tuned, num_hidden_layers=4)
        torch.manual_seed(0)
        model = AutoModel.from_config(config, attn_implementation="probe").eval()
        runs.append([q for q, *_ in probe.run(model, torch.arange(12)[None])])
        plan = hf.from_config(config)
        assert [layer.temperature is not None for layer in plan.layers] == [False] * 3 + [tuned]
    layer = hf.from_config(small_config("llama4_text", num_hidden_layers=4)).layers[3]
    assert layer.temperature is not None
    assert [q.shape for q in runs[0]] == [q.shape for q in runs[1]]
    expected = runs[1][3] * layer.temperature.at(torch.arange(12))[:, None].float()
    torch.testing.assert_close(runs[0][3], expected, rtol=1e-6, atol=0)


def _scores(q, k):
    return q @ k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).transpose(-1, -2)


def _in_pairs(x):
    return torch.stack(x.chunk(2, dim=-1), dim=-1).flatten(-2)


@pytest.mark.parametrize("name", ["qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_5_text"])
def test_axes_are_dealt_to_pairs_as_their_model_does(name: str):
    config = small_config(name)
    rotary, rope = (
        rotary_module(name, config),
        next(iter(turning_layers(hf.from_config(config)).values())),
    )
    positions = torch.randint(0, 40, (3, 2, 9))
    cos, sin = rotary(torch.zeros(1), positions)
    q = torch.randn(2, 4, 9, rope.head_dim)
    part = rope.rotary_dim
    half = torch.cat((-q[..., part // 2 : part], q[..., : part // 2]), dim=-1)
    turned = q[..., :part] * cos[:, None] + half * sin[:, None]
    expected = torch.cat((turned, q[..., part:]), dim=-1)
    torch.testing.assert_close(rope.rotate(q, q, positions, positions)[0], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["gptj", "codegen"])
def test_gptj_and_codegen_turn_neighbours_of_the_first_channels(name: str):
    import importlib

    theirs = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    rope = hf.from_config(small_config(name)).encoding
    assert isinstance(rope, RoPE)
    q, positions = torch.randn(1, 2, 7, 16), torch.arange(7)[None]
    table = theirs.create_sinusoidal_positions(64, rope.rotary_dim)
    sin, cos = table[positions].chunk(2, dim=-1)
    turned = theirs.apply_rotary_pos_emb(q[..., :8].transpose(1, 2), sin, cos).transpose(1, 2)
    expected = torch.cat((turned, q[..., 8:]), dim=-1)
    torch.testing.assert_close(rope.rotate(q, q, positions)[0], expected, rtol=0, atol=2e-6)


def test_every_turning_family_is_compared_somewhere():
    compared = {*_PROBED, "gptj", "codegen"}
    assert set(TURNING) - compared == _ALONE | {"csm", "aria_text"}
