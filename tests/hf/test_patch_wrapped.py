"""A patched model under what brings a module's weights when it is called: sharding, offload, adapters, export."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from patch_models import build, inputs, logits, tokens

from ordinate.hf import patch

close = {"atol": 1e-5, "rtol": 1e-5}
BIASED = ["T5", "UMT5"]


@pytest.mark.parametrize("name", [*BIASED, "Llama 2", "BLOOM", "gpt-oss"])
def test_weights_may_be_offloaded(name):
    from accelerate import cpu_offload

    model = build(name)
    given = inputs(model, mask=True)
    expected = logits(model, **given)
    patch(model)
    cpu_offload(model, execution_device="cpu")
    torch.testing.assert_close(logits(model, **given), expected, **close)


@pytest.mark.parametrize("name", [*BIASED, "Llama 2"])
def test_adapters_of_a_patched_model_learn_what_they_learn_without(name):
    from peft import LoraConfig, get_peft_model

    targets = ["q_proj", "v_proj"] if name == "Llama 2" else ["q", "v", "relative_attention_bias"]

    def gradients(patched: bool) -> dict[str, torch.Tensor]:
        model = build(name).double()  # rounding in float32 would hide a small mistake
        given = inputs(model, mask=False)
        labels = given.get("decoder_input_ids", given["input_ids"])
        if patched:
            patch(model)
        torch.manual_seed(0)
        adapted = get_peft_model(model, LoraConfig(r=2, target_modules=targets, init_lora_weights=False))
        adapted.double()
        adapted(**given, labels=labels).loss.backward()
        return {n: p.grad for n, p in adapted.named_parameters() if p.grad is not None}

    expected, found = gradients(patched=False), gradients(patched=True)
    assert expected.keys() == found.keys()
    for key, gradient in expected.items():
        assert gradient.dtype == torch.float64
        torch.testing.assert_close(found[key], gradient, atol=1e-6, rtol=1e-5)


def make_t5(buckets: int) -> torch.nn.Module:
    """A T5 whose buckets no other model of this process has."""
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=97, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0,
        relative_attention_num_buckets=buckets, decoder_start_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config).eval()


@pytest.mark.plain
@pytest.mark.filterwarnings("ignore:While compiling, we found certain side effects")
@pytest.mark.parametrize("strict", [False, True])
def test_a_patched_model_that_was_never_called_is_exported(strict):
    model = make_t5(buckets=22 + 2 * strict)
    given = inputs(model, mask=True) | {"use_cache": False}
    expected = logits(copy.deepcopy(model), **given)
    patch(model, check=False)
    with torch.no_grad():
        program = torch.export.export(model, (), given, strict=strict)
        found = program.module()(**given).logits
    torch.testing.assert_close(found, expected, **close)


@pytest.mark.plain
@pytest.mark.parametrize(
    "name", ["BLOOM", *(pytest.param(x, marks=pytest.mark.slow) for x in ("Llama 2", "gpt-oss", "T5"))]
)
def test_an_exported_model_takes_rows_of_every_length(name):
    """From two tokens on, as without a patch: nothing that is looked at while exporting narrows it."""
    model = build(name)
    given = inputs(model, mask=True) | {"use_cache": False}
    length = torch.export.Dim("length", min=2, max=200)
    shapes = dict.fromkeys(given) | {"input_ids": {1: length}, "attention_mask": {1: length}}
    patch(model)
    with torch.no_grad():
        exported = torch.export.export(model, (), given, dynamic_shapes=shapes, strict=False).module()
    for count in (2, 31):
        given["input_ids"] = tokens(length=count)
        given["attention_mask"] = torch.ones_like(given["input_ids"])
        torch.testing.assert_close(exported(**given).logits, model(**given).logits, **close)


@pytest.mark.slow
@pytest.mark.plain
@pytest.mark.parametrize("name", [*BIASED, "Llama 2"])
def test_a_patched_model_is_sharded_by_blocks(name, tmp_path):
    """Two processes, FSDP2: each block's weights are whole only while that block is called."""
    program = Path(__file__).with_name("shard_patched.py")
    where = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, str(program), name, str(tmp_path / "meet")],
        env=os.environ | where, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
