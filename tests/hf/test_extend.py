"""``hf.extend`` and ``ordinate extend``: configs that transformers reads as meant, written whole or not at all."""

from __future__ import annotations

import errno
import json
import os
from typing import Any

import pytest
import torch
from hf_cases import config_class, our_frequencies, rotary_module, their_frequencies, turning_layers

from ordinate import RoPE, hf
from ordinate.cli.app import run
from ordinate.hf import ConfigError, diagnose, extend, from_config
from ordinate.hf.config.config_file import write_config
from ordinate.hf.scaling_settings import METHODS
from ordinate.scaling import NTK, DynamicNTK, Linear, Llama3, YaRN

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2,
    "max_position_embeddings": 4096, "rope_theta": 1e4, "vocab_size": 32, "intermediate_size": 64,
}  # fmt: skip


def rope_of(values: dict[str, Any]) -> RoPE:
    encoding = from_config(values).layers[-1].encoding
    assert isinstance(encoding, RoPE)
    return encoding


EXPECTED = {
    "yarn": YaRN(8.0, 4096, 32.0, 1.0),
    "linear": Linear(8.0),
    "dynamic": DynamicNTK(8.0, 4096),
    "llama3": Llama3(8.0, 1.0, 4.0, 4096),
}


def test_every_method_is_tested():
    assert {*EXPECTED, "ntk"} == set(METHODS)


@pytest.mark.parametrize("method", EXPECTED)
def test_the_new_config_has_the_scaling_asked_for(method: str):
    extension = extend(LLAMA, 32768, method)
    assert rope_of(extension.config).scaling == EXPECTED[method]
    assert (extension.original_max_positions, extension.context, extension.to, extension.factor) == (
        4096,
        4096,
        32768,
        8.0,
    )


def test_ntk_is_a_larger_base_and_nothing_else():
    rope = rope_of(extend(LLAMA, 32768, "ntk").config)
    assert rope.scaling is None
    torch.testing.assert_close(rope.inv_freq(), NTK(8.0).inv_freq(1e4, 32), rtol=1e-12, atol=0)


def test_the_source_is_left_as_it_was():
    before = json.dumps(LLAMA)
    extend(LLAMA, 32768)
    assert json.dumps(LLAMA) == before


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {}, "mistral": {"sliding_window": None}, "qwen2": {}, "qwen3": {"head_dim": 32}, "stablelm": {},
    "cohere": {}, "gpt_neox": {}, "gemma2": {"head_dim": 32}, "olmo2": {}, "granite": {}, "phi": {},
    "starcoder2": {}, "smollm3": {"pad_token_id": 0}, "glm4": {"head_dim": 32, "pad_token_id": 0},
    "seed_oss": {"head_dim": 32, "pad_token_id": 0}, "olmo3": {"num_hidden_layers": 4},
    "gemma3_text": {"head_dim": 32, "num_hidden_layers": 6},
}  # fmt: skip


@pytest.mark.parametrize("style", ["as written", "as saved by transformers"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", FAMILIES)
def test_transformers_reads_the_new_config_with_our_frequencies(name: str, method: str, style: str):
    """The file, loaded by the family's own config class, gives bit for bit the frequencies we promise."""
    values: dict[str, Any] = {**LLAMA, **FAMILIES[name], "model_type": name}
    if name == "gpt_neox":
        values["rotary_emb_base"] = values.pop("rope_theta")
    cls = config_class(name)
    settings = {key: value for key, value in values.items() if key != "model_type"}
    if style == "as saved by transformers":
        values = json.loads(cls(**settings).to_json_string(use_diff=False))
    extension = extend(values, 32768, method)
    text = json.loads(json.dumps(extension.config))
    theirs = cls.from_dict(text)
    rotary = rotary_module(name, theirs)
    for layer_type, rope in turning_layers(from_config(text)).items():
        inv_freq, factor = their_frequencies(rotary, layer_type)
        torch.testing.assert_close(our_frequencies(rope)[0], inv_freq, rtol=0, atol=0)
        assert our_frequencies(rope)[1] == factor
    again = from_config(theirs)
    assert [x.describe() for x in again.layers] == [x.describe() for x in extension.after.layers]


def test_vllm_finds_the_context_asked_for():
    """vLLM takes original x factor for YaRN, max_position_embeddings x factor for linear and dynamic, and
    max_position_embeddings for llama3 and without a scaling."""
    for method in METHODS:
        config = extend(LLAMA, 32768, method).config
        scaling = config.get("rope_scaling") or {"rope_type": "default"}
        length = config["max_position_embeddings"]
        if scaling["rope_type"] == "yarn":
            length = scaling["original_max_position_embeddings"]
        if scaling["rope_type"] not in ("llama3", "default"):
            length *= scaling["factor"]
        assert length == 32768, method


def test_windowed_layers_keep_their_frequencies():
    values: dict[str, Any] = {
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "max_position_embeddings": 4096,
    }
    after = extend(values, 32768, "yarn").after
    assert after.layers[0].encoding.scaling is None
    assert after.layers[5].encoding.scaling == YaRN(8.0, 4096, 32.0, 1.0)
    kinds = {"full_attention": 1e6, "sliding_attention": 1e4}
    values["rope_parameters"] = {
        kind: {"rope_type": "default", "rope_theta": x} for kind, x in kinds.items()
    }
    nested = extend(values, 32768)
    assert [x.describe() for x in nested.after.layers] == [x.describe() for x in after.layers]


def test_axes_are_kept():
    values = {"model_type": "qwen2_vl", "hidden_size": 1536, "num_attention_heads": 12, "num_hidden_layers": 2,
              "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}, "vision_config": {}}  # fmt: skip
    config = extend(values, 131072).config
    assert config["rope_scaling"]["mrope_section"] == [16, 24, 24]
    rope = rope_of(config)
    assert rope.sections == (16, 24, 24)
    assert rope.scaling == YaRN(4.0, 32768, 32.0, 1.0)


def test_the_text_model_within_another_is_extended():
    config = extend(
        {"model_type": "llava", "text_config": LLAMA, "vision_config": {"a": 1}}, 32768
    ).config
    assert config["vision_config"] == {"a": 1}
    assert config["text_config"]["rope_scaling"]["rope_type"] == "yarn"
    assert config["text_config"]["max_position_embeddings"] == 32768


def test_yarn_extends_yarn_and_keeps_its_options():
    scaling = {"type": "yarn", "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707, "beta_fast": 32,
               "beta_slow": 1, "original_max_position_embeddings": 4096}  # fmt: skip
    values = {"model_type": "deepseek_v2", "max_position_embeddings": 163840, "rope_scaling": scaling}
    extension = extend(values, 327680)
    assert extension.config["rope_scaling"]["factor"] == 80.0
    assert extension.config["rope_scaling"]["mscale_all_dim"] == 0.707
    assert (
        extension.after.layers[0].encoding.logit_factor
        > extension.before.layers[0].encoding.logit_factor
    )


def test_what_a_class_would_add_in_silence_is_written_out():
    config = extend({"model_type": "gpt_oss", "num_hidden_layers": 2}, 262144).config
    assert config["rope_parameters"]["truncate"] is False
    assert config["rope_parameters"]["factor"] == 64.0


def test_the_cost_is_told():
    yarn, dynamic, linear = (extend(LLAMA, 32768, method) for method in ("yarn", "dynamic", "linear"))
    assert yarn.cost.logit_factor == pytest.approx((0.1 * 2.0794415416798357 + 1) ** 2, rel=1e-12)
    assert dynamic.cost.short_context_kept
    assert (dynamic.cost.score_change, linear.cost.logit_factor) == (0.0, 1.0)
    distances = torch.arange(1, 4097).double()[:, None]
    plain, scaled = (
        (distances * x.inv_freq()).cos().mean(-1) for x in (rope_of(LLAMA), rope_of(linear.config))
    )
    worst = (plain - scaled).abs()
    assert linear.cost.score_change == pytest.approx(
        float(worst[linear.cost.at_distance - 1]), rel=1e-12
    )
    assert linear.cost.score_change > 0.9 * float(worst.max())
    assert [band.fate for band in linear.bands] == ["interpolated"]
    assert linear.slowdown == pytest.approx(8.0)


# What is already scaled.

LINEAR: dict[str, Any] = {**LLAMA, "rope_scaling": {"type": "linear", "factor": 4.0}}
GEMMA: dict[str, Any] = {
    "model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "num_hidden_layers": 6,
        "max_position_embeddings": 131072, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
}  # fmt: skip
GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss", "num_hidden_layers": 2, "max_position_embeddings": 131072, "rope_theta": 150000.0,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                     "truncate": False, "original_max_position_embeddings": 4096},
}  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("length", [4096, 16384])
def test_linear_scaling_that_hides_its_original_length_asks_for_it(method: Any, length: int):
    values = {**LINEAR, "max_position_embeddings": length}
    with pytest.raises(
        ConfigError,
        match=f"original_max_positions must be given, whether max_position_embeddings {length} is before",
    ):
        extend(values, 65536, method, replace=True)
    extension = extend(values, 65536, method, original_max_positions=4096, replace=True)
    assert (extension.original_max_positions, extension.context) == (4096, 16384)
    assert diagnose(extension.after).effective_context == 65536
    assert extension.slowdown > 1
    if method == "dynamic":
        assert rope_of(extension.config).scaling == DynamicNTK(16.0, 4096)
    else:
        ratios = rope_of(LLAMA).inv_freq() / rope_of(extension.config).inv_freq()
        assert float(ratios.max()) == pytest.approx(16)


def test_gemma_3s_length_is_the_one_linear_scaling_reaches():
    extension = extend(GEMMA, 524288, "linear")
    text = extension.config["text_config"]
    assert text["rope_scaling"]["factor"] == 32.0
    assert text["max_position_embeddings"] == 524288
    assert extension.slowdown == pytest.approx(4.0)
    assert not any("linear scaling has no original" in w for w in diagnose(extension.before).warnings)


def test_a_second_length_tells_what_linear_scaling_reaches():
    """Vicuna's 16k models: max_position_embeddings is before scaling, max_sequence_length after."""
    extension = extend({**LINEAR, "max_sequence_length": 16384}, 32768, "linear")
    assert (extension.original_max_positions, extension.context) == (4096, 16384)
    assert extension.config["rope_scaling"]["factor"] == 8.0
    again = diagnose(from_config(extension.config))
    assert (again.effective_context, again.original_max_positions) == (32768, 4096)
    assert again.warnings == ()


def test_no_scaling_comes_back_in_the_place_of_the_one_taken_away():
    extension = extend(GPT_OSS, 262144, "ntk", replace=True)
    rope = rope_of(extension.config)
    assert rope.scaling is None
    theirs = config_class("gpt_oss").from_dict(extension.config)
    assert theirs.rope_parameters["rope_type"] == "default"
    assert theirs.rope_parameters["rope_theta"] == rope.base


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "values", [LLAMA, GPT_OSS, {**LLAMA, "original_max_position_embeddings": 2048}], ids=str
)
def test_what_inspect_reads_is_what_was_asked_for(values: dict[str, Any], method: Any):
    extension = extend(values, 262144, method, replace=True)
    assert diagnose(from_config(extension.config)).effective_context == 262144


def test_an_extension_that_would_turn_faster_is_refused():
    short = {**LLAMA, "max_position_embeddings": 8192,
             "rope_scaling": {"type": "yarn", "factor": 16.0, "original_max_position_embeddings": 4096}}  # fmt: skip
    with pytest.raises(
        ConfigError, match=r"would read 16384 positions, and that pair turn 0\.25 times slower"
    ):
        extend(short, 16384)
    alpha = {**LLAMA, "model_type": "hunyuan_v1_dense",
             "rope_scaling": {"type": "dynamic", "factor": 1.0, "alpha": 1000.0}}  # fmt: skip
    with pytest.raises(ConfigError, match="times slower than now"):
        extend(alpha, 8192, "linear")


def test_p_rope_is_not_replaced():
    with pytest.raises(ConfigError, match="p-RoPE's pairs are spread over the whole head"):
        extend({"model_type": "gemma4_text"}, 1 << 20, replace=True)


def test_an_attention_factor_that_is_left_out_is_told_of():
    scaling = {
        "type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 1024,
        "attention_factor": 1.0,
    }
    extension = extend({**LLAMA, "rope_scaling": scaling}, 8192)
    assert "attention_factor" not in extension.config["rope_scaling"]
    (note,) = extension.notes
    assert note.startswith("attention_factor 1.0 belonged to the old factor and is left out")
    assert extend(LLAMA, 8192).notes == ()


def test_a_config_that_cannot_be_written_again_is_refused():
    circular: dict[str, Any] = dict(LLAMA)
    circular["itself"] = circular
    for values, reason in (
        (circular, "Circular"),
        ({**LLAMA, "x": float("nan")}, "not JSON compliant"),
        ({**LLAMA, "x": object()}, "not JSON serializable"),
    ):
        with pytest.raises(ConfigError, match=f"source must hold what JSON can hold, got .*{reason}"):
            extend(values, 8192)


# Files.


def test_a_folder_is_no_file_to_write_over(config, tmp_path, capsys):
    assert run(["extend", str(config), "--to", "8192", "-o", str(tmp_path), "--force"]) == 2
    assert "--output must be a file to write, got the folder" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["config.json"]


def test_a_file_is_not_overwritten_unless_told(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("precious", encoding="utf-8")
    with pytest.raises(ConfigError, match="path must not exist, nothing is overwritten unless told"):
        write_config(LLAMA, path)
    assert path.read_text(encoding="utf-8") == "precious"
    assert os.listdir(tmp_path) == ["config.json"]
    write_config(LLAMA, path, overwrite=True)
    assert json.loads(path.read_text(encoding="utf-8")) == LLAMA
    assert os.listdir(tmp_path) == ["config.json"]


def test_a_write_that_fails_leaves_the_old_file_whole(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    path.write_text("precious", encoding="utf-8")

    def broken(*_):
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="the disk is broken"):
        write_config(LLAMA, path, overwrite=True)
    assert path.read_text(encoding="utf-8") == "precious"
    assert os.listdir(tmp_path) == ["config.json"]


# The command.


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA), encoding="utf-8")
    return path


def test_the_command_writes_beside_the_old_file_and_says_what_it_does(config, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert run(["extend", str(config), "--to", "32768"]) == 0
    captured = capsys.readouterr()
    new = config.with_name("config-32768.json")
    assert captured.err == f"wrote {new}\n"
    assert captured.out.startswith("Llama  4096 → 32768 positions by yarn\n")
    assert "slowed 8 times" in captured.out
    assert "of turned channels are multiplied by 1.459, at every length" in captured.out
    assert rope_of(json.loads(new.read_text(encoding="utf-8"))).scaling == EXPECTED["yarn"]
    assert json.loads(config.read_text(encoding="utf-8")) == LLAMA


def test_json_is_all_there_is_on_stdout(config, capsys):
    assert (
        run(["extend", str(config.parent), "--to", "8192", "--method", "dynamic", "--json", "--dry-run"])
        == 0
    )
    captured = capsys.readouterr()
    parsed = json.loads(captured.out)
    assert parsed["config"]["rope_scaling"] == {"rope_type": "dynamic", "factor": 2.0}
    assert (parsed["path"], captured.err) == (None, "")
    assert os.listdir(config.parent) == ["config.json"]


def test_in_place_is_over_the_old_file_and_only_when_told(config, capsys):
    assert run(["extend", str(config), "--to", "8192", "--in-place"]) == 0
    assert json.loads(config.read_text(encoding="utf-8"))["max_position_embeddings"] == 8192
    capsys.readouterr()
    assert run(["extend", str(config), "--to", "16384", "-o", str(config)]) == 2
    assert "--force" in capsys.readouterr().err


MISUSE = [
    (["--to", "4096"], "--to must be more than the 4096 positions the model already reads, got 4096"),
    (["--to", "0"], "to must be between 2 and"),
    (["--to", "8192", "--method", "magic"], "method must be one of yarn, ntk, dynamic, linear, llama3, got 'magic'"),
    (["--to", "8192", "--from", "0"], "--from must be between 2 and"),
    (["--to", "8192", "-o", "no/{x}.json"], "--output must be in a folder that can be written, got 'no/{x}.json'"),
    (["--to", "8192", "--in-place", "-o", "x.json"], "--in-place and --output must not be given together"),
    ([], "--to"),
]  # fmt: skip


@pytest.mark.plain
@pytest.mark.parametrize(
    ("arguments", "sentence"), MISUSE, ids=[" ".join(m[0]) or "nothing" for m in MISUSE]
)
def test_misuse_is_one_sentence_a_blank_line_and_a_hint(config, capsys, arguments, sentence):
    assert run(["extend", str(config), *arguments]) == 2
    captured = capsys.readouterr()
    first, blank, last = captured.err.splitlines()
    assert captured.out == ""
    assert sentence in first
    assert blank == ""
    assert last.startswith("hint: ")


def test_help_ends_with_examples_that_run(config, capsys, monkeypatch):
    import re
    import shutil

    assert run(["extend", "--help"]) == 0
    text = capsys.readouterr().out
    examples = re.findall(
        r"^ +ordinate (extend.*?)(?:  +.*)?$", text[text.index("Examples:") :], re.MULTILINE
    )
    assert len(examples) >= 6
    monkeypatch.chdir(config.parent)
    (config.parent / "path" / "to" / "model").mkdir(parents=True)
    for example in examples:
        shutil.copy(config, config.parent / "path" / "to" / "model" / "config.json")
        for path in config.parent.glob("*-*.json"):
            path.unlink()
        assert run(example.split()) == 0, example
        capsys.readouterr()


def test_hf_offers_it():
    assert hf.extend is extend


@pytest.mark.parametrize(
    ("name", "method", "words"),
    [
        ("phi3", "yarn", "rope_scaling.short_factor must be given"),
        ("phi3", "linear", "rope_scaling.rope_type must be one of default, longrope, got 'linear'"),
        ("gptj", "yarn", "rope_scaling.rope_type must be one of default, got 'yarn'"),
        ("gptj", "ntk", "rope_theta must be 10000.0, this model's code knows no other"),
    ],
)
def test_what_a_models_code_would_not_read_is_not_written(name: str, method: Any, words: str):
    with pytest.raises(ConfigError, match=words):
        extend({"model_type": name}, 32768, method)
