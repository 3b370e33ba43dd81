"""Refusals around live models and checkpoints; collected by tests/test_errors.py."""

# ruff: noqa: E501  one case a line, however long
from __future__ import annotations

import json
import os
import pickle
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import safetensors.torch
import torch

sys.path.insert(0, str(Path(__file__).parent))  # run by its path, this file finds its neighbour so

from patch_models import MODELS, build, tokens

from ordinate.files import write_then_move
from ordinate.hf import (
    ConfigError,
    StreamingCache,
    patch,
    register_attention,
    streaming_cache,
    to_half,
    to_interleaved,
    unpatch,
)
from ordinate.hf.patching.masks import MaskDescription
from ordinate.hf.patching.state import state_of

CONFIG = {"model_type": "llama", "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1}
CODEGEN = {
    "model_type": "codegen",
    "n_embd": 32,
    "num_attention_heads": 4,
    "n_layer": 1,
    "rotary_dim": 8,
}
GEMMA_4 = CONFIG | {
    "model_type": "gemma4_text",
    "head_dim": 8,
    "global_head_dim": 8,
    "attention_k_eq_v": True,
}
LEARNED = {"model_type": "gpt2", "n_embd": 32, "n_head": 4, "n_layer": 1, "n_positions": 8}


def patched(name: str = "Llama 2") -> Any:
    model = build(name)
    patch(model)
    return model


def patch_without_transformers() -> Any:
    with mock.patch.dict(sys.modules, {"transformers": None}):
        return patch(torch.nn.Linear(2, 2))


def patch_on_meta() -> Any:
    with torch.device("meta"):
        return patch(MODELS["Llama 2"]())


def patch_bert() -> Any:
    import transformers

    sizes = {
        "vocab_size": 9,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
    }
    return patch(transformers.BertModel(transformers.BertConfig(**sizes)))


def patch_dinov3() -> Any:
    """It turns by where a patch lies in an image, which no position_ids say."""
    import transformers

    sizes = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "image_size": 32,
    }
    return patch(transformers.DINOv3ViTModel(transformers.DINOv3ViTConfig(**sizes)))


def patch_pixtral() -> Any:
    """Its images are in one row, with a mask of their own; that shows only when it is called."""
    import transformers

    sizes = {
        "hidden_size": 64,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "image_size": 16,
        "patch_size": 8,
    }
    torch.manual_seed(0)
    model = transformers.PixtralVisionModel(transformers.PixtralVisionConfig(**sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # large weights: a wrong mask changes the answers visibly
            parameter.normal_(std=0.15) if parameter.dim() > 1 else None
    return patch(model)


def patch_what_then_answers_otherwise() -> Any:
    with mock.patch("ordinate.hf.patching.check.allowed", return_value=-1.0):
        return patch(build("Llama 2"))


def patch_adapted() -> Any:
    from peft import LoraConfig, get_peft_model

    return patch(get_peft_model(build("Llama 2"), LoraConfig(target_modules=["q_proj"])))


def another_attention_chosen() -> Any:
    model = dynamic()
    model.set_attn_implementation("eager")
    return model(tokens())


def by_name_where_it_is_left_alone() -> Any:
    model = patched()
    state_of(model.model.layers[0].self_attn).own_code_reason = "it must attend alone"
    return model(tokens())


def register_without_transformers() -> Any:
    with mock.patch.dict(sys.modules, {"transformers": None}):
        return register_attention()


def dynamic() -> Any:
    return patched("Llama, dynamic")


def gap_beside_a_cache() -> Any:
    model, ids = dynamic(), tokens(length=8)
    cache = model(ids[:, :4], use_cache=True).past_key_values
    return model(ids[:, 4:], past_key_values=cache, position_ids=torch.tensor([[4, 5, 7, 8]]))


def two_rotations_without_attention() -> Any:
    from transformers.models.llama import modeling_llama

    model = dynamic()
    x = torch.zeros(1, 4, 3, 16)
    cos, sin = model.model.rotary_emb(x, torch.arange(3)[None])
    for _ in range(2):
        modeling_llama.apply_rotary_pos_emb(x, x, cos, sin)


def deferred_rotation_of_a_static_cache() -> None:
    state = state_of(dynamic().model.layers[0].self_attn)
    rule = {"mask_function": lambda b, h, q, k: q > k, "q_length": 1, "kv_length": 8}
    q = torch.zeros(1, 4, 1, 16)
    state.patch.defer_rotation(None, None, [q, q])
    mask = MaskDescription(rule | {"q_offset": torch.tensor(3)})
    state.patch.rotate_deferred(q, q, mask, aligned=False)


def part_of_a_key_in_a_stream() -> Any:
    return patched("StableLM")(tokens(), past_key_values=streaming_cache(2, 8))


def falcon_with_an_odd_mask() -> Any:
    model = patched("Falcon, ALiBi")
    rule = {"mask_function": lambda b, h, q, k: q > k, "q_length": 3, "kv_length": 3}
    layer, x = model.transformer.h[0].self_attention, torch.zeros(1, 3, 64)
    return layer(x, alibi=torch.zeros(4, 1, 3), attention_mask=MaskDescription(rule))


def padded_stream() -> Any:
    mask = torch.ones(2, 20)
    mask[0, 0] = 0
    return patched()(tokens(), attention_mask=mask, past_key_values=streaming_cache(2, 8))


def cropped_stream() -> Any:
    cache = streaming_cache(2, 8)
    patched()(tokens(), past_key_values=cache)
    cache.layers[0].crop(-1)


def convert(
    write: Callable[[Path], Any],
    name: str = "own.safetensors",
    config: Any = CONFIG,
    target: str = "other",
) -> Any:
    """Convert what ``write`` puts into a folder, in which a refusal leaves nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / name
        write(source)
        before = sorted(Path(folder).rglob("*"))
        try:
            return to_half(source, Path(folder) / target, config=config)
        finally:
            assert sorted(Path(folder).rglob("*")) == before


def file(header: Any, data: bytes = b"") -> Callable[[Path], Any]:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return lambda path: path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def entry(digits: int = 0, **changes: Any) -> Callable[[Path], Any]:
    """A file of one tensor with something else in its header; a size may be written in so many digits."""
    text = json.dumps({"x": _ENTRY | changes})
    return file((text.replace("64", "6" * digits) if digits else text).encode(), b"1234")


def unreadable_weights() -> Any:
    """Permissions would not stop every user who runs this."""
    with mock.patch.object(Path, "open", side_effect=PermissionError(13, "Permission denied")):
        return convert(lambda path: os.close(os.open(path, os.O_CREAT)))


def shrinking_weights() -> Any:
    """A file from which another process takes bytes between the check and the copy."""
    with mock.patch("ordinate.hf.weights.write_then_move") as writing:
        writing.return_value.__exit__.return_value = False
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "own.safetensors"
            weights("q_proj.weight", "k_proj.weight")(source)

            def enter(_: Any) -> Path:
                os.truncate(source, source.stat().st_size - 100)
                return Path(folder) / "other"

            writing.return_value.__enter__ = enter
            return to_half(source, Path(folder) / "other", config=CONFIG)


def written_twice() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        target, source = Path(folder) / "other", Path(folder) / "own.safetensors"
        weights("q_proj.weight", "k_proj.weight")(source)
        with write_then_move(target):
            return to_half(source, target, config=CONFIG)


def weights(
    *names: str, rows: int = 32, layer: str = "layers.0", **metadata: str
) -> Callable[[Path], Any]:
    tensors = {f"{layer}.attn.{name}": torch.zeros(rows, 4) for name in names}
    return lambda path: safetensors.torch.save_file(tensors, path, metadata=metadata or None)


def beside(*layers: str) -> Callable[[Path], Any]:
    """Queries and keys, and those of other layers beside them."""
    names = [f"{layer}.attn.{side}_proj.weight" for layer in ("layers.0", *layers) for side in "qk"]
    return lambda path: safetensors.torch.save_file({x: torch.zeros(32, 4) for x in names}, path)


def folder_with(write: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """A model's folder that can be converted, but for what ``write`` puts there."""

    def make(path: Path) -> None:
        path.mkdir()
        weights("q_proj.weight", "k_proj.weight")(path / "model.safetensors")
        write(path)

    return make


def model_below(path: Path) -> None:
    (path / "checkpoint-5").mkdir()
    weights("q_proj.weight")(path / "checkpoint-5" / "model.safetensors")


def target_at_a_link() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "link").symlink_to("nowhere")
        return to_half(__file__, Path(folder) / "link")


def unwritable_target() -> Any:
    """Permissions would not stop every user who runs this."""
    with mock.patch("tempfile.TemporaryFile", side_effect=PermissionError(13, "Permission denied")):
        return to_half(__file__, Path(__file__).with_name("other"))


def folder_of(name: str) -> Callable[[Path], Any]:
    def write(path: Path) -> None:
        path.mkdir()
        (path / name).write_bytes(b"")

    return write


def half_of_the_files(path: Path) -> None:
    """As after a download that was interrupted: an index, and the first of the files it names."""
    path.mkdir()
    weights("q_proj.weight", "k_proj.weight")(path / "model-1-of-2.safetensors")
    files = {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))


def both_files(path: Path) -> None:
    """As Mistral publishes them: the same weights twice, each in its own layout."""
    path.mkdir()
    weights("q_proj.weight", "k_proj.weight")(path / "model.safetensors")
    weights("wq.weight", "wk.weight")(path / "consolidated.safetensors")


_ENTRY = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}

CASES = [
    # patch
    ("patch without transformers", patch_without_transformers, ImportError, r"patch needs transformers: pip install 'ordinate\[hf\]'"),
    ("patch a layer", lambda: patch(torch.nn.Linear(2, 2)), TypeError, r"model must be a PreTrainedModel of transformers, got Linear"),
    ("patch with another impl", lambda: patch(build("Llama 2"), impl="flash"), ValueError, r"impl must be one of .* got 'flash'"),
    ("patch twice", lambda: patch(patched()), ValueError, r"model must not be patched already, got a patched LlamaForCausalLM"),
    ("patch on meta", patch_on_meta, ValueError, r"model must have its weights loaded, got LlamaForCausalLM on the meta device"),
    ("patch BERT", patch_bert, ValueError, r"model must rotate queries and keys or bias its logits by position \(RoPE, T5, ALiBi\).*got BertModel \(its attention layers have neither a rotation nor a bias that ordinate knows\)"),
    ("patch Pixtral", patch_pixtral, ValueError, r"model must rotate queries and keys .* got PixtralVisionModel \(.*PixtralAttention: it attends"),
    ("patch DINOv3", patch_dinov3, ValueError, r"model must rotate queries and keys .* got DINOv3ViTModel \(DINOv3ViTRopePositionEmbedding: it makes no rotations from position_ids\)$"),
    ("patch a model that then answers otherwise", patch_what_then_answers_otherwise, ValueError, r"model must answer as before once it is patched, got LlamaForCausalLM with answers \S+ of their size apart \(tokens\); it is left as it was"),
    ("patch an adapted model", patch_adapted, TypeError, r"model must be a PreTrainedModel of transformers, such as get_base_model\(\) gives, got PeftModel"),
    ("another attention chosen", another_attention_chosen, NotImplementedError, r"attn_implementation must be 'ordinate' where cached keys are rotated anew .*, got 'eager': choose it by set_attn_implementation\('ordinate'\), or unpatch the model"),
    ("ordinate by name where attention is left alone", by_name_where_it_is_left_alone, NotImplementedError, r"attn_implementation must not be 'ordinate' for LlamaAttention, for it must attend alone, got 'ordinate'"),
    ("register without transformers", register_without_transformers, ImportError, r"register_attention needs transformers: pip install 'ordinate\[hf\]'"),
    ("check is a number", lambda: patch(build("Llama 2"), check=1), TypeError, r"check must be True or False, got 1"),
    ("unpatch a model", lambda: unpatch(build("Llama 2")), ValueError, r"model must be one that patch was given, got LlamaForCausalLM"),
    ("unpatch a name", lambda: unpatch("llama"), ValueError, r"model must be one that patch was given, got str"),
    ("pickle a patched model", lambda: pickle.dumps(patched()), TypeError, r"model must be unpatched before it is pickled whole .*got a patched one"),
    ("pickle a patched BLOOM", lambda: pickle.dumps(patched("BLOOM")), TypeError, r"model must be unpatched before it is pickled whole .*got a patched one"),
    ("a gap beside a cache", gap_beside_a_cache, NotImplementedError, r"position_ids must be consecutive with a cache and a scaling that depends on the length.*got others"),
    ("keys that are rotated late in a static cache under a mask of other rules", deferred_rotation_of_a_static_cache, NotImplementedError, r"past_key_values must not be a static cache where cached keys are rotated anew .* got a static one"),
    ("two rotations without attention", two_rotations_without_attention, NotImplementedError, r"queries and keys must be rotated whole and together, and go to attention unchanged.*got a layer that does it in another way"),
    ("part of a key in a stream", part_of_a_key_in_a_stream, NotImplementedError, r"past_key_values must not be a streaming cache where keys are not known to be cached unrotated .*rotates a part of them.*got those of layer 0"),
    ("Falcon with an odd mask", falcon_with_an_odd_mask, NotImplementedError, r"attention_mask must be causal, with padding at most, for Falcon's ALiBi, got another kind"),
    # streams
    ("a stream of no tokens", lambda: StreamingCache(sinks=2, window=0), ValueError, r"window must be at least 1, got 0"),
    ("a stream of half a token", lambda: streaming_cache(sinks=0.5), TypeError, r"sinks must be an int, got 0.5"),
    ("a stream in a model that is not patched", lambda: build("Llama 2")(tokens(), past_key_values=streaming_cache(2, 8)), RuntimeError, r"past_key_values must not be a streaming cache unless the model is patched, got one"),
    ("a padded stream", padded_stream, ValueError, r"attention_mask must be all ones with a streaming cache.*got padding"),
    ("weights of a stream", lambda: patched()(tokens(), past_key_values=streaming_cache(2, 8), output_attentions=True), NotImplementedError, r"past_key_values must not be a streaming cache in a call that the model's own code answers.*got one"),
    ("a stream of convolutions", lambda: streaming_cache().get_conv_state(0), NotImplementedError, r"past_key_values must not be a streaming cache in a model with layers that cache something else than keys and values .*got one"),
    ("a cropped stream", cropped_stream, NotImplementedError, r"a streaming cache must not be cropped, what it dropped is gone, got crop\(\)"),
    # checkpoints
    ("no source", lambda: to_half("nowhere.safetensors", "x"), ValueError, r"source must be a safetensors file or a model's folder, got 'nowhere.safetensors'"),
    ("a target that is there", lambda: to_interleaved(__file__, __file__), FileExistsError, r"target must not exist, got '.*error_cases_models.py'"),
    ("a target at a link that leads nowhere", target_at_a_link, FileExistsError, r"target must not exist, got '.*link'"),
    ("a target of too long a name", lambda: to_half(__file__, Path(__file__).with_name("a" * 250)), ValueError, r"target must be in a folder that can be written, with room for the name '.a+\.\.\.a+.ordinate-partial' too, got '.*a+': File name too long"),
    ("a target that cannot be written", unwritable_target, ValueError, r"target must be in a folder that can be written, with room for the name '.other.ordinate-partial' too, got '.*other': Permission denied"),
    ("a target with a null byte", lambda: to_half(__file__, Path(__file__).with_name("a\0")), ValueError, r"target must be in a folder that can be written.* got '.*a\\x00': embedded null byte"),
    ("a source of too long a name", lambda: to_half("a" * 300, "x"), ValueError, r"source must be a safetensors file or a model's folder, got 'a+\.\.\.a+'"),
    ("a target nowhere", lambda: to_half(__file__, "/no/folder/x"), ValueError, r"target must be in a folder that exists, got '/no/folder/x'"),
    ("no config", lambda: convert(weights("q_proj.weight"), config=None), ConfigError, r"source must be a .*config.json"),
    ("no rotation", lambda: convert(weights("q_proj.weight"), config=LEARNED), ConfigError, r"config must be of a model with RoPE, got GPT-2"),
    ("pickled weights", lambda: convert(folder_of("pytorch_model.bin"), name="model"), ValueError, r"source must hold weights as safetensors, got pytorch_model.bin"),
    ("no weights", lambda: convert(folder_of("README.md"), name="model"), ValueError, r"source must hold weights as safetensors, got none"),
    ("half of the weights", lambda: convert(half_of_the_files, name="model"), ValueError, r"source must hold every file that model.safetensors.index.json names, got no 'model-2-of-2.safetensors'"),
    ("weights in both layouts", lambda: convert(both_files, name="model"), ValueError, r"source must hold the layers of one model once, got 'layers.0.attn.wq.weight' and 'layers.0.attn.q_proj.weight'"),
    ("an empty file", lambda: convert(lambda path: path.write_bytes(b"")), ValueError, r"source must be a safetensors file, got own.safetensors of 0 bytes"),
    ("text", lambda: convert(lambda path: path.write_text("weights")), ValueError, r"source must be a safetensors file, got own.safetensors of 7 bytes"),
    ("a header past its file", lambda: convert(lambda path: path.write_bytes((2**63).to_bytes(8, "little") + b"{}")), ValueError, r"source must be a safetensors file, got own.safetensors of 10 bytes"),
    ("a header that is not JSON", lambda: convert(file(b"{not json")), ValueError, r"source must be a safetensors file, got own.safetensors with a header that cannot be read"),
    ("a header that is a list", lambda: convert(file([1, 2])), ValueError, r"with a header that cannot be read"),
    ("a tensor without offsets", lambda: convert(file({"x": {"dtype": "U8", "shape": [4]}})), ValueError, r"'x' must have a dtype, a shape and data_offsets in the header, got {'dtype': 'U8', 'shape': \[4\]}"),
    ("a header of nested lists", lambda: convert(file(b"[" * 200_000)), ValueError, r"with a header that cannot be read"),
    ("a name twice", lambda: convert(file(b'{"x": 1, "x": 2}')), ValueError, r"with a header that cannot be read"),
    ("half a character", lambda: convert(file(b'{"\\ud800": 1}')), ValueError, r"with a header that cannot be read"),
    ("a number of 5,000 digits", lambda: convert(entry(shape=[64], digits=5000)), ValueError, r"with a header that cannot be read"),
    ("a number of 4,000 digits", lambda: convert(entry(shape=[64], digits=4000)), ValueError, r"shape of 'x' must be a list of sizes, got \[an integer of \d+ bits\]"),
    ("a shape too small", lambda: convert(entry(shape=[3])), ValueError, r"data_offsets of 'x' must be as far apart as U8 \[3\] is long, got \[0, 4\]"),
    ("a shape without end", lambda: convert(entry(shape=[2**62] * 9)), ValueError, r"data_offsets of 'x' must be as far apart as U8 .* is long, got \[0, 4\]"),
    ("an unknown dtype", lambda: convert(entry(dtype="F17")), ValueError, r"dtype of 'x' must be one of safetensors, got 'F17'"),
    ("a dtype that is a list", lambda: convert(entry(dtype=["U8"])), ValueError, r"dtype of 'x' must be one of safetensors, got \['U8'\]"),
    ("a part of a row", lambda: convert(entry(shape=[64.9, 64])), ValueError, r"shape of 'x' must be a list of sizes, got \[64.9, 64\]"),
    ("a negative size", lambda: convert(entry(shape=[-2, -2])), ValueError, r"shape of 'x' must be a list of sizes, got \[-2, -2\]"),
    ("a size that is true", lambda: convert(entry(shape=[True, 4])), ValueError, r"shape of 'x' must be a list of sizes, got \[True, 4\]"),
    ("infinite offsets", lambda: convert(file(b'{"x": {"dtype": "U8", "shape": [4], "data_offsets": [0, 1e999]}}', b"1234")), ValueError, r"data_offsets of 'x' must be two sizes, got \[0, inf\]"),
    ("three offsets", lambda: convert(entry(data_offsets=[0, 2, 4])), ValueError, r"data_offsets of 'x' must be two sizes, got \[0, 2, 4\]"),
    ("metadata of numbers", lambda: convert(file({"__metadata__": {"format": 1}})), ValueError, r"__metadata__ of own.safetensors must be text by names, got {'format': 1}"),
    ("weights that are a folder", lambda: convert(lambda path: (path / "model.safetensors").mkdir(parents=True), name="model"), ValueError, r"source must be a safetensors file, got model.safetensors, which is not a file"),
    ("weights that cannot be read", unreadable_weights, ValueError, r"source must be a file that can be read, got own.safetensors: Permission denied"),
    ("weights that shrink", shrinking_weights, ValueError, r"source must stay as it is while it is read, got \d+ bytes less"),
    ("a projection that is a number", lambda: convert(file({"layers.0.attn.q_proj.weight": {"dtype": "U8", "shape": [], "data_offsets": [0, 1]}}, b"1")), ValueError, r"'layers.0.attn.q_proj.weight' must have 4 × 8 rows by the config, got 1"),
    ("a projection of no rows", lambda: convert(weights("q_proj.weight", rows=0)), ValueError, r"'layers.0.attn.q_proj.weight' must have 4 × 8 rows by the config, got 0"),
    ("rows of half bytes", lambda: convert(file({"layers.0.attn.q_proj.weight": {"dtype": "F4", "shape": [32, 1], "data_offsets": [0, 16]}}, b"1234" * 4)), ValueError, r"must have rows of whole bytes, got F4 \[32, 1\]"),
    ("a latent without its rotated channels", lambda: convert(weights("kv_a_proj_with_mqa.weight", rows=4), config=CONFIG | {"kv_lora_rank": 4}), ValueError, r"'layers.0.attn.kv_a_proj_with_mqa.weight' must have 1 × 12 rows by the config, got 4"),
    ("a latent of a width not told", lambda: convert(weights("kv_a_proj_with_mqa.weight")), ConfigError, r"kv_lora_rank must be given, it is channels of the latent, got nothing"),
    ("heads that are text", lambda: convert(weights("qkv_proj.weight", rows=96), config=CONFIG | {"num_key_value_heads": "4"}), ConfigError, r"num_key_value_heads must be a whole number, got '4'"),
    ("a target that is being written", written_twice, FileExistsError, r"target must not be written by two processes at once \(remove '.other.ordinate-partial' next to it if none does\), got '.*other'"),
    ("a file cut short", lambda: convert(file({"x": _ENTRY}, b"123")), ValueError, r"source must be a whole file, got own.safetensors of \d+ bytes instead of \d+"),
    ("a gap between tensors", lambda: convert(file({"x": _ENTRY | {"data_offsets": [2, 6]}}, b"123456")), ValueError, r"source must have its tensors end to end, got a gap at 'x'"),
    ("neither queries nor keys", lambda: convert(weights("o_proj.weight")), ValueError, r"source must hold projections of queries, got none in own.safetensors"),
    ("no queries", lambda: convert(weights("k_proj.weight")), ValueError, r"source must hold projections of queries, got 'layers.0.attn.k_proj.weight' in own.safetensors"),
    ("no keys", lambda: convert(weights("q_proj.weight")), ValueError, r"source must hold projections of keys, got 'layers.0.attn.q_proj.weight' in own.safetensors"),
    ("other rows", lambda: convert(weights("q_proj.weight", rows=30)), ValueError, r"'layers.0.attn.q_proj.weight' must have 4 × 8 rows by the config, got 30"),
    ("other heads", lambda: convert(weights("q_proj.weight", "k_proj.weight", rows=64)), ValueError, r"'layers.0.attn.k_proj.weight' must have 4 × 8 rows by the config, got 64"),
    ("other heads of keys", lambda: convert(weights("k_proj.weight", rows=24), config=CONFIG | {"num_key_value_heads": 2}), ValueError, r"'layers.0.attn.k_proj.weight' must have 2 × 8 rows by the config, got 24"),
    ("heads of another size", lambda: convert(weights("q_proj.weight", "k_proj.weight"), config=CONFIG | {"head_dim": 16}), ValueError, r"'layers.0.attn.k_proj.weight' must have 4 × 16 rows by the config, got 32"),
    ("a norm of another size", lambda: convert(weights("q_norm.weight", rows=3)), ValueError, r"'layers.0.attn.q_norm.weight' must have 1 × 8 or 4 × 8 rows by the config, got 12"),
    ("values that are keys", lambda: convert(weights("q_proj.weight", "k_proj.weight"), config=GEMMA_4), ConfigError, r"attention_k_eq_v must be false where keys are to turn, got True"),
    ("quantized", lambda: convert(weights("q_proj.weight", "k_proj.weight", "q_proj.qzeros")), ValueError, r"source must hold queries and keys as plain weights and biases of known names in 1 layers, got 'layers.0.attn.q_proj.qzeros'"),
    ("adapted, by peft's names", lambda: convert(weights("k_proj.weight", "q_proj.base_layer.weight")), ValueError, r"source must hold queries and keys as plain weights and biases of known names in 1 layers, got 'layers.0.attn.q_proj.base_layer.weight'"),
    ("an adapter beside its base", lambda: convert(weights("q_proj.weight", "k_proj.weight", "q_proj.lora_B.weight")), ValueError, r"source must hold queries and keys as plain weights and biases of known names in 1 layers, got 'layers.0.attn.q_proj.lora_B.weight'"),
    ("a norm by another name", lambda: convert(weights("q_proj.weight", "k_proj.weight", "qk_norm.scale")), ValueError, r"source must hold queries and keys as plain weights and biases of known names in 1 layers, got 'layers.0.attn.qk_norm.scale'"),
    ("queries by another name", lambda: convert(weights("key.weight", layer="encoder.layer.0")), ValueError, r"source must hold queries and keys as plain weights and biases of known names in 1 layers, got 'encoder.layer.0.attn.key.weight'"),
    ("more layers than the config's", lambda: convert(beside("layers.1")), ValueError, r"source must hold queries and keys as plain weights and biases of known names in 1 layers, got 'layers.1.attn.k_proj.weight'"),
    ("two models", lambda: convert(beside("draft.layers.0")), ValueError, r"source must hold the layers of one model once, got 'draft.layers.0.attn.q_proj.weight' and 'layers.0.attn.q_proj.weight'"),
    ("a model in a subfolder", lambda: convert(folder_with(model_below), name="model"), ValueError, r"source must hold queries and keys beside its config.json only, got 'layers.0.attn.q_proj.weight' in the folder 'checkpoint-5'"),
    ("a link to nothing", lambda: convert(folder_with(lambda path: (path / "vocab.txt").symlink_to("gone")), name="model"), ValueError, r"source must hold files, links to files and folders, got '.*model/vocab.txt', which is none"),
    ("a link to a folder", lambda: convert(folder_with(lambda path: (path / "again").symlink_to(".")), name="model"), ValueError, r"source must hold files, links to files and folders, got '.*model/again', which is none"),
    ("a pipe", lambda: convert(folder_with(lambda path: os.mkfifo(path / "pipe")), name="model"), ValueError, r"source must hold files, links to files and folders, got '.*model/pipe', which is none"),
    ("fused in another way", lambda: convert(weights("query_key_value.weight", rows=96)), ValueError, r"source must be of a known kind of fused projection, got 'layers.0.attn.query_key_value.weight'"),
    ("fused with other heads than the config's", lambda: convert(weights("query_key_value.weight", rows=96), config=CONFIG | {"model_type": "falcon"}), ValueError, r"'layers.0.attn.query_key_value.weight' must have 6 × 8 rows by the config, got 96"),
    ("fused in quarters", lambda: convert(weights("qkv_proj.weight", rows=96), config=CODEGEN), ValueError, r"source must be of a known kind of fused projection, got 'layers.0.attn.qkv_proj.weight'"),
    ("converted already", lambda: convert(weights("q_proj.weight", "k_proj.weight", rotary_layout="half")), ValueError, r"source must not be in the half layout already, got own.safetensors"),
]  # fmt: skip
