"""Checkpoints between layouts: the same model, whole or not at all, and never guessed at."""

from __future__ import annotations

import os
import tracemalloc

import pytest
import safetensors.torch
import torch
from patch_models import build, inputs, logits

import ordinate
from ordinate.hf import patch, to_half, to_interleaved, unpatch
from ordinate.hf.patching.rotary import RotaryState
from ordinate.hf.patching.rotations import Form
from ordinate.hf.patching.state import state_of
from ordinate.hf.safetensors_file import SafetensorsFile

OTHER = {"half": "interleaved", "interleaved": "half"}
CONVERT = {"half": to_half, "interleaved": to_interleaved}
# Projections of their own, with norms, fused in blocks, by head or by group, partly turned, latent; layers that
# do not rotate.
KINDS = {
    "Llama 2": "half",
    "Qwen3": "half",
    "Phi-3": "half",
    "GPT-NeoX": "half",
    "Persimmon": "half",
    "Falcon, RoPE": "half",
    "Falcon, grouped": "half",
    "StableLM": "half",
    "SmolLM3": "half",
    "Qwen2-VL": "half",
    "Gemma 3": "half",
    "GLM": "interleaved",
    "DeepSeek-V2": "interleaved",
    "DeepSeek-V3": "interleaved",
    "OLMo 2": "half",
}


def turn_the_other_way(model, layout: str) -> None:
    """Have a patched model rotate in this layout, whatever its own code does."""
    for module in model.modules():
        state = state_of(module)
        if isinstance(state, RotaryState):
            for function, form in state.forms.items():
                state.forms[function] = Form(layout, heads_axis=form.heads_axis)


@pytest.mark.parametrize("name", KINDS)
def test_a_converted_checkpoint_turned_in_its_new_layout_is_the_same_model(tmp_path, name):
    model, layout = build(name), KINDS[name]
    given = inputs(model, mask=False)
    before = logits(model, **given)
    model.save_pretrained(tmp_path / "own")
    report = CONVERT[OTHER[layout]](tmp_path / "own", tmp_path / "other")
    assert report.converted

    converted = type(model).from_pretrained(tmp_path / "other").eval()
    assert not torch.allclose(logits(converted, **given), before, atol=1e-3)  # loads without a word
    patch(converted)
    turn_the_other_way(converted, OTHER[layout])
    assert (logits(converted, **given) - before).abs().max() <= 1e-5 * max(1, before.abs().max())
    unpatch(converted)

    CONVERT[layout](tmp_path / "other", tmp_path / "back")
    ours, theirs = (
        safetensors.torch.load_file(tmp_path / folder / "model.safetensors")
        for folder in ("back", "own")
    )
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_only_queries_and_keys_of_a_fused_projection_move(tmp_path):
    """Falcon: of each group, some queries, a key and a value; a Falcon of old has a group a head."""
    sizes = {"model_type": "falcon", "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1}
    groups = {  # the rows of one group, in heads
        6: {"multi_query": True},
        4: {"new_decoder_architecture": True, "num_kv_heads": 2},
        3: {"multi_query": False},
    }
    for group, more in groups.items():
        weight = torch.randn({6: 6, 4: 8, 3: 12}[group] * 8, 32)
        name = "transformer.h.0.self_attention.query_key_value.weight"
        source, target = tmp_path / f"{group}.safetensors", tmp_path / f"{group}-other.safetensors"
        safetensors.torch.save_file({name: weight}, source)
        to_interleaved(source, target, config=sizes | more)
        after = safetensors.torch.load_file(target)[name].view(-1, group, 8, 32)
        before = weight.view(-1, group, 8, 32)
        assert torch.equal(after[:, -1], before[:, -1])
        turned = ordinate.to_interleaved(before[:, :-1].reshape(-1, 32), head_dim=8)
        assert torch.equal(after[:, :-1].reshape(-1, 32), turned)


def test_each_projection_is_what_the_tensor_function_makes_of_it(tmp_path):
    build("Llama 2").to(torch.bfloat16).save_pretrained(tmp_path / "own")
    report = to_interleaved(tmp_path / "own", tmp_path / "other")
    before, after = (
        safetensors.torch.load_file(tmp_path / name / "model.safetensors") for name in ("own", "other")
    )
    for name, weight in before.items():
        turned = name.endswith(("q_proj.weight", "k_proj.weight"))
        assert (name in report.converted) == turned
        expected = ordinate.to_interleaved(weight, head_dim=16) if turned else weight
        assert after[name].dtype == torch.bfloat16
        assert torch.equal(after[name], expected), name
    assert str(report).endswith(
        f"4 tensors of queries and keys to the interleaved layout, {report.copied} as they were"
    )


def test_a_file_in_metas_names_is_converted_by_a_config(tmp_path):
    config = {"model_type": "llama", "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1}
    tensors = {
        f"layers.0.attention.{name}.weight": torch.randn(32, 32) for name in ("wq", "wk", "wv", "wo")
    }
    safetensors.torch.save_file(tensors, tmp_path / "meta.safetensors", metadata={"format": "pt"})
    to_half(tmp_path / "meta.safetensors", tmp_path / "half.safetensors", config=config)
    after = safetensors.torch.load_file(tmp_path / "half.safetensors")
    for name, weight in tensors.items():
        turned = name.endswith(("wq.weight", "wk.weight"))
        expected = ordinate.to_half(weight, head_dim=8) if turned else weight
        assert torch.equal(after[name], expected), name
    assert SafetensorsFile.open(tmp_path / "half.safetensors").metadata == {
        "format": "pt",
        "rotary_layout": "half",
    }


def test_a_folder_of_shards_keeps_its_index_and_other_files(tmp_path):
    model = build("Llama 2")
    model.save_pretrained(tmp_path / "own", max_shard_size="20KB")
    (tmp_path / "own" / "tokenizer.json").write_text("{}")
    (tmp_path / "own" / "pytorch_model.bin").write_bytes(b"stale weights in the old layout")
    shards = sorted(path.name for path in (tmp_path / "own").glob("*.safetensors"))
    assert len(shards) > 2
    report = to_interleaved(tmp_path / "own", tmp_path / "other")
    assert len(report.converted) == 4
    assert sorted(path.name for path in (tmp_path / "other").glob("*.safetensors")) == shards
    for name in ("tokenizer.json", "config.json", "model.safetensors.index.json"):
        assert (tmp_path / "other" / name).read_bytes() == (tmp_path / "own" / name).read_bytes()
    assert not (tmp_path / "other" / "pytorch_model.bin").exists()
    type(model).from_pretrained(tmp_path / "other")


def test_a_conversion_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    build("Llama 2").save_pretrained(tmp_path / "own")
    calls = []

    def fail(descriptor):
        calls.append(descriptor)
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        to_interleaved(tmp_path / "own", tmp_path / "other")
    single = tmp_path / "own" / "model.safetensors"
    with pytest.raises(OSError, match="no space left"):
        to_interleaved(single, tmp_path / "other.safetensors")
    assert len(calls) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


def test_memory_is_that_of_one_projection(tmp_path):
    config = {
        "model_type": "llama",
        "hidden_size": 512,
        "num_attention_heads": 8,
        "num_hidden_layers": 1,
    }
    tensors = {f"model.layers.0.self_attn.{side}_proj.weight": torch.randn(512, 512) for side in "qk"}
    tensors["model.embed_tokens.weight"] = torch.randn(80_000, 512)  # 156 MiB
    safetensors.torch.save_file(tensors, tmp_path / "own.safetensors")
    del tensors
    tracemalloc.start()  # sees what Python allocates: blocks of the copy and the bytes of a projection
    to_half(tmp_path / "own.safetensors", tmp_path / "other.safetensors", config=config)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40 * 2**20


def test_layers_without_rotation_are_left_as_they_are(tmp_path):
    model = build("SmolLM3")
    model.save_pretrained(tmp_path / "own")
    report = to_interleaved(tmp_path / "own", tmp_path / "other")
    rotating = {i for i, kind in enumerate(model.config.no_rope_layers) if kind}
    assert 0 < len(rotating) < model.config.num_hidden_layers
    assert {int(name.split(".")[2]) for name in report.converted} == rotating


def test_subfolders_are_copied_and_the_report_names_what_is_left_out(tmp_path):
    """A sentence encoder keeps its last layers in subfolders; a cache of downloads has links for files."""
    own, other = tmp_path / "own", tmp_path / "other"
    build("Llama 2").save_pretrained(own)
    for folder in ("1_Pooling", "2_Dense", ".git/lfs"):
        (own / folder).mkdir(parents=True)
    (tmp_path / "blob").write_text("{}")
    (own / "1_Pooling" / "config.json").symlink_to(tmp_path / "blob")
    safetensors.torch.save_file({"linear.weight": torch.ones(2, 2)}, own / "2_Dense/model.safetensors")
    for name in ("2_Dense/pytorch_model.bin", ".git/lfs/blob", "model.gguf"):
        (own / name).write_bytes(b"weights in the old layout")
    report = to_interleaved(own, other)
    assert (other / "1_Pooling" / "config.json").read_text() == "{}"
    assert not (other / "1_Pooling" / "config.json").is_symlink()
    dense = "2_Dense/model.safetensors"
    assert (other / dense).read_bytes() == (own / dense).read_bytes()
    assert report.left_out == (".git", "2_Dense/pytorch_model.bin", "model.gguf")
    assert str(report).endswith("as they were; left out: .git, 2_Dense/pytorch_model.bin, model.gguf")
    left = {path.relative_to(own) for path in own.rglob("*")}
    assert {path.relative_to(other) for path in other.rglob("*")} == {
        path
        for path in left
        if path.parts[0] != ".git" and path.name not in ("pytorch_model.bin", "model.gguf")
    }


def test_norms_are_turned_by_head_however_they_are_stored(tmp_path):
    """Cohere's have a row for each head, StableLM's are a list, OLMo's one long vector."""
    config = {"model_type": "llama", "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1}
    config["num_key_value_heads"] = 2
    layer = "model.layers.0.self_attn."
    tensors = {
        layer + f"{side}_proj.weight": torch.randn(rows, 4) for side, rows in (("q", 32), ("k", 16))
    }
    tensors |= {layer + "q_norm.weight": torch.randn(4, 8), layer + "k_norm.weight": torch.randn(16)}
    tensors |= {layer + f"q_layernorm.norms.{head}.weight": torch.randn(8) for head in range(4)}
    safetensors.torch.save_file(tensors, tmp_path / "own.safetensors")
    report = to_interleaved(tmp_path / "own.safetensors", tmp_path / "other.safetensors", config=config)
    assert set(report.converted) == tensors.keys()
    after = safetensors.torch.load_file(tmp_path / "other.safetensors")
    for name, weight in tensors.items():
        by_channel = weight.flatten() if "norm" in name else weight
        expected = ordinate.to_interleaved(by_channel, head_dim=8).view_as(weight)
        assert torch.equal(after[name], expected), name


def test_layers_that_predict_further_tokens_are_turned_as_the_last(tmp_path):
    """They stand after the layers that the config counts: DeepSeek V3's, GLM-4.5's."""
    config = {"model_type": "glm4_moe", "hidden_size": 32, "num_attention_heads": 4, "head_dim": 8}
    config |= {"num_hidden_layers": 2, "num_nextn_predict_layers": 1}
    tensors = {
        f"model.layers.{layer}.self_attn.{side}_proj.weight": torch.randn(32, 4)
        for layer in range(3)
        for side in "qk"
    }
    safetensors.torch.save_file(tensors, tmp_path / "own.safetensors")
    to_interleaved(tmp_path / "own.safetensors", tmp_path / "other.safetensors", config=config)
    after = safetensors.torch.load_file(tmp_path / "other.safetensors")
    for name, weight in tensors.items():
        expected = ordinate.to_interleaved(weight, head_dim=8, rotary_dim=4)
        assert torch.equal(after[name], expected), name


def test_what_sounds_like_queries_and_is_none_stays(tmp_path):
    """Towers of other senses, and what is around DeepSeek's latent: before its queries, after its keys."""
    config = {
        "model_type": "deepseek_v3",
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_hidden_layers": 1,
    }
    config |= {"kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4}
    rows = {
        "model.layers.0.self_attn.q_a_proj.weight": 8,
        "model.layers.0.self_attn.q_a_layernorm.weight": 8,
        "model.layers.0.self_attn.q_b_proj.weight": 48,
        "model.layers.0.self_attn.kv_a_proj_with_mqa.weight": 12,
        "model.layers.0.self_attn.kv_a_layernorm.weight": 8,
        "model.layers.0.self_attn.kv_b_proj.weight": 64,
        "vision_tower.layers.0.self_attn.q_proj.weight": 48,
        "multi_modal_projector.cross_attn.k_proj.weight": 48,
    }
    tensors = {name: torch.randn(count, 4) for name, count in rows.items()}
    safetensors.torch.save_file(tensors, tmp_path / "own.safetensors")
    report = to_half(tmp_path / "own.safetensors", tmp_path / "other.safetensors", config=config)
    assert {name.split(".")[-2] for name in report.converted} == {"q_b_proj", "kv_a_proj_with_mqa"}
    after = safetensors.torch.load_file(tmp_path / "other.safetensors")
    changed = {name for name in tensors if not torch.equal(after[name], tensors[name])}
    assert changed == set(report.converted)
