"""Patched models on a GPU: the same logits and tokens, as many graphs, and steps into a cache of fixed size."""

from __future__ import annotations

import pytest
import torch
from patch_models import build, inputs, logits
from torch import nn

from ordinate.hf import patch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.plain,
    pytest.mark.filterwarnings("default"),  # compilers have warnings of their own
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none"),
]

NAMES = ["Llama 3.1", "Llama, yarn", "gpt-oss", "Gemma 3", "Qwen2-VL", "BLOOM", "T5"]


def on_gpu(name: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    model = build(name).to("cuda")
    return model, {key: value.to("cuda") for key, value in inputs(model, mask=True).items()}


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_tokens_stay(name):
    model, given = on_gpu(name)
    before = logits(model, **given)
    patch(model)
    torch.testing.assert_close(logits(model, **given), before, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("name", NAMES)
def test_a_compiled_step_of_training_stays(name):
    """Through PyTorch's own compiler, kernels and all."""
    model, given = on_gpu(name)
    given.pop("attention_mask")

    def step(forward) -> tuple[torch.Tensor, torch.Tensor]:
        model.zero_grad()
        loss = forward(**given, use_cache=False).logits.float().logsumexp(-1).mean()
        loss.backward()
        return loss.detach(), torch.cat(
            [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        )

    model.train(False)
    loss, gradient = step(model)
    patch(model)
    torch._dynamo.reset()
    found, found_gradient = step(torch.compile(model))
    torch.testing.assert_close(found, loss, atol=1e-4, rtol=1e-4)
    assert (found_gradient - gradient).norm() <= 1e-3 * gradient.norm()


@pytest.mark.parametrize("name", ["Llama 3.1", "Gemma 3", "gpt-oss"])
def test_tokens_from_a_cache_of_fixed_size_stay(name):
    model, given = on_gpu(name)
    options = {"max_new_tokens": 12, "do_sample": False, "cache_implementation": "static"}
    before = model.generate(**given, **options)
    patch(model)
    torch._dynamo.reset()
    assert torch.equal(model.generate(**given, **options), before)
