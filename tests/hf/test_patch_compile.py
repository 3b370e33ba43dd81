"""A patched model has no more compiled graphs than the unpatched one, and is not compiled more often."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from patch_models import MODELS, build, inputs, is_encoder_decoder, tokens
from torch import Tensor, nn

from ordinate.hf import patch, register_attention
from ordinate.hf.patching import attention_interface

pytestmark = [
    pytest.mark.plain,  # compilers cannot see through the shape checker
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),  # BLOOM's GELU
]
close = {"atol": 1e-5, "rtol": 1e-5}
QUICK = [("Llama 2", False), ("T5", True)]
PADDED = [
    "Llama 2",
    "Llama, dynamic",
    "Llama 4",
    "Gemma 4",
    "gpt-oss",
    "Qwen3-VL",
    "GPT-J",
    "BLOOM",
    "T5",
]
CASES = [
    pytest.param(name, mask, marks=() if (name, mask) in QUICK else pytest.mark.slow)
    for name, mask in [*((name, False) for name in MODELS), *((name, True) for name in PADDED)]
]


class Graphs:
    """A quick backend that counts what it is given."""

    def __init__(self, backend: str = "eager") -> None:
        torch._dynamo.reset()
        self.backend, self.count = torch._dynamo.lookup_backend(backend), 0

    def __call__(self, graph: torch.fx.GraphModule, given: list[Tensor]) -> Any:
        self.count += 1
        return self.backend(graph, given)

    def __deepcopy__(self, memo: dict) -> Graphs:
        return self  # `generate` copies its settings


def compiled(model: nn.Module, given: dict[str, Tensor], **options: Any) -> tuple[Tensor, int]:
    """The logits of a compiled call, and how many graphs it took."""
    graphs = Graphs()
    with torch.no_grad():
        logits = torch.compile(model, backend=graphs, **options)(**given, use_cache=False).logits
    return logits, graphs.count


@pytest.mark.parametrize(("name", "mask"), CASES)
def test_a_patched_model_has_no_more_graphs_than_before(name, mask):
    model = build(name)
    given = inputs(model, mask)
    expected, before = compiled(model, given)
    patch(model, check=False)
    found, after = compiled(model, given, fullgraph=before == 1)
    assert after <= before
    if "dynamic" in name or "longrope" in name:  # each row then follows its own length
        found, expected = found[:1], expected[:1]
    elif mask and not is_encoder_decoder(model):
        found, expected = (x[given["attention_mask"].bool()] for x in (found, expected))
    torch.testing.assert_close(found, expected, **close)


def test_attention_by_name_is_one_graph():
    """A layer's class is looked up at its first call, which may be the compiler's."""
    model, given = build("Llama 2"), {"input_ids": tokens()}
    expected, _ = compiled(model, given)
    register_attention()
    model.set_attn_implementation("ordinate")
    attention_interface._own_code_reasons.clear()
    found, graphs = compiled(model, given, fullgraph=True)
    assert graphs == 1
    torch.testing.assert_close(found, expected, **close)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Llama 2", "Gemma 3", "T5", "MPT"])
def test_training_steps_of_many_lengths_are_compiled_no_more_often_than_before(name):
    def train(patched: bool) -> tuple[int, list[Tensor]]:
        model = build(name).train()
        if patched:
            patch(model, check=False)
        graphs = Graphs("aot_eager")
        step = torch.compile(model, backend=graphs, fullgraph=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        for length in (20, 20, 21, 31):
            ids = tokens(length=length)
            given = {"decoder_input_ids": tokens(length=11)} if is_encoder_decoder(model) else {}
            optimizer.zero_grad()
            labels = given.get("decoder_input_ids", ids)
            step(input_ids=ids, labels=labels, use_cache=False, **given).loss.backward()
            optimizer.step()
        return graphs.count, [p.grad for p in model.parameters() if p.grad is not None]

    (before, expected), (after, found) = train(patched=False), train(patched=True)
    assert after <= before
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Llama 2", "T5"])
def test_the_trainer_compiles_a_patched_model(name, tmp_path):
    def train(patched: bool) -> tuple[int, float]:
        model = build(name)
        if patched:
            patch(model)
        ids = tokens(batch=8)
        rows = [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row} for row in ids]
        arguments = transformers.TrainingArguments(
            str(tmp_path), max_steps=3, per_device_train_batch_size=2, learning_rate=1e-3, use_cpu=True,
            torch_compile=True, torch_compile_backend="aot_eager", report_to=[], save_strategy="no",
            disable_tqdm=True, seed=0,
        )  # fmt: skip
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        loss = transformers.Trainer(model, arguments, train_dataset=rows).train().training_loss
        return torch._dynamo.utils.counters["stats"]["unique_graphs"], loss

    (before, expected), (after, found) = train(patched=False), train(patched=True)
    assert 0 < after <= before
    assert found == pytest.approx(expected, rel=1e-4)
