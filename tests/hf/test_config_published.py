"""Whole config.json files from public repositories: each is read, or refused for a reason that stands beside it.

A line of published_configs.jsonl is one file: where it was read (repository, path, commit; a path that ends in .jsonl
is a log that printed the file whole), what its model's layers do, and every key and value it has. What they do was
worked out by hand from the file and the model's own code:

    rope         [head_dim, channels that turn, base, layout] of the layers with full attention, or of all
    local        the same of windowed layers, where it differs
    scaling      [class, its settings] of ``rope``
    full         which layers see everything, as slices; the others are windowed
    still        which layers do not turn; ``turning``: the only ones that do
    bias         [class, heads, and T5's buckets and distance]
    embeddings   stack: [class, width]
    warned       the warnings, in order
    refused      the error without ``family``, and ``because``: why it is right
"""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hf_cases import WITH_CLASS, bits, our_frequencies, rotary_module, their_frequencies, turning_layers

from ordinate import ALiBi, Learned, NoPE, RoPE, Sinusoidal, T5Bias
from ordinate.hf import ConfigError, LayerPlan, from_config

FILES: dict[str, dict[str, Any]] = {
    line["name"]: line
    for line in map(
        json.loads, Path(__file__).with_name("published_configs.jsonl").read_text("utf-8").splitlines()
    )
}
READ = [name for name, file in FILES.items() if "layers" in file["says"]]


def test_there_are_sixty_files_each_with_its_source():
    sources = {(file["repo"], file["path"]) for file in FILES.values()}
    assert len(sources) == len(FILES) >= 60
    for file in FILES.values():
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", file["repo"])
        assert re.fullmatch(r"[0-9a-f]{40}", file["commit"])
        assert file["path"].endswith((".json", ".jsonl"))
    assert len({file["config"].get("model_type") for file in FILES.values()}) >= 40


@pytest.mark.parametrize("name", [name for name, file in FILES.items() if "refused" in file["says"]])
def test_a_file_that_cannot_be_read_is_refused_for_its_reason(name: str):
    says = FILES[name]["says"]
    assert says["because"]
    with pytest.raises(ConfigError, match=says["refused"]):
        from_config(FILES[name]["config"])


def among(where: str, count: int) -> set[int]:
    slices = (slice(*(int(x) if x else None for x in part.split(":"))) for part in where.split(","))
    return {index for part in slices for index in range(count)[part]}


def check_rope(layer: LayerPlan, expected: list[Any], scaling: list[Any] | None):
    rope = layer.encoding
    assert isinstance(rope, RoPE)
    assert [rope.head_dim, rope.rotary_dim, rope.base, rope.layout] == expected
    assert type(rope.scaling).__name__ == (scaling[0] if scaling else "NoneType")
    for key, value in (scaling[1] if scaling else {}).items():
        assert getattr(rope.scaling, key) == value, key


@pytest.mark.parametrize("name", READ)
def test_a_published_file_is_read_as_its_model_was_made(name: str):
    says = FILES[name]["says"]
    plan = from_config(FILES[name]["config"], family=says.get("family"))
    count = says["layers"]
    assert len(plan.layers) == count
    assert plan.max_positions == says["context"]
    assert "trained" not in says or plan.original_max_positions == says["trained"]
    warned = says.get("warned", [])
    assert len(plan.warnings) == len(warned)
    assert all(map(re.search, warned, plan.warnings))
    assert any(layer.causal for layer in plan.layers) == says.get("causal", True)
    full = among(says.get("full", "::"), count)
    turning = among(says.get("turning", "::"), count) - among(says.get("still", "0:0"), count)
    for index, layer in enumerate(plan.layers):
        assert layer.causal == (layer.stack == "decoder")
        assert layer.window == (None if index in full else says["window"])
        assert layer.chunk == (says.get("chunk") if index in turning else None)
        if "scale" in says:
            assert layer.softmax_scale == pytest.approx(says["scale"], rel=1e-12)
        if "rope" in says and index in turning:
            everywhere = index in full or "local" not in says
            check_rope(
                layer,
                says["rope"] if everywhere else says["local"],
                says.get("scaling") if everywhere else None,
            )
            assert layer.encoding.sections == (tuple(says["sections"]) if "sections" in says else None)
        elif "bias" in says:
            check_bias(layer, says["bias"])
        else:
            assert type(layer.encoding) is NoPE
    embeddings = {}
    for stack, code in plan.embeddings.items():
        assert isinstance(code, (Learned, Sinusoidal))
        assert not isinstance(code, Learned) or code.max_positions == says["context"]
        embeddings[stack] = [type(code).__name__, code.d_model]
    assert embeddings == says.get("embeddings", {})


def check_bias(layer: LayerPlan, expected: list[Any]):
    bias = layer.encoding
    assert isinstance(bias, (ALiBi, T5Bias))
    found = [type(bias).__name__, bias.num_heads]
    assert (
        found + ([bias.num_buckets, bias.max_distance] if isinstance(bias, T5Bias) else []) == expected
    )


def their_config(name: str) -> Any:
    """transformers' own reading of the text model's settings in a file."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    values = copy.deepcopy(FILES[name]["config"])
    values["model_type"] = FILES[name]["says"].get("family", values["model_type"])
    while values["model_type"] not in CONFIG_MAPPING:
        values = values["language_config"]
    if values.get("pad_token_id", 0) is None:
        del values["pad_token_id"]  # which some of its classes refuse
    return CONFIG_MAPPING[values["model_type"]].from_dict(values).get_text_config()


TURNING = [name for name in READ if "rope" in FILES[name]["says"] and name != "GPT-J 6B"]


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", TURNING)
def test_frequencies_of_a_published_file_are_those_of_transformers(name: str):
    """Bit for bit. GPT-J writes its sinusoids down without a class that could be asked."""
    config = their_config(name)
    assert config.model_type in (*WITH_CLASS, "falcon")
    rotary = rotary_module(config.model_type, config)
    plan = from_config(FILES[name]["config"], family=FILES[name]["says"].get("family"))
    for layer_type, rope in turning_layers(plan).items():
        ours, theirs = our_frequencies(rope), their_frequencies(rotary, layer_type)
        assert bits(ours[0]) == bits(theirs[0])
        assert ours[1] == theirs[1]
