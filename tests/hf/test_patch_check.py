"""Before `patch` says that a model answers as before it has asked it, and what it could not ask it says."""

from __future__ import annotations

import pytest
import torch
import transformers
from patch_models import _TINY, build, left_padding, tokens

from ordinate.hf import patch

close = {"atol": 1e-5, "rtol": 1e-5}


def sharp(model):
    """A model whose attention is sharp enough that a wrong mask shows."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "embed" not in name:
                parameter.normal_(std=0.15)
    return model.eval()


def recurrent_gemma():
    sizes = _TINY | {"lru_width": 64, "head_dim": 16, "sliding_window": 8, "num_hidden_layers": 3}
    torch.manual_seed(0)
    return sharp(transformers.RecurrentGemmaForCausalLM(transformers.RecurrentGemmaConfig(**sizes)))


def test_a_mask_of_fewer_keys_than_there_are_is_the_models_own():
    """RecurrentGemma decodes with a mask of one key, which its own code takes for all keys alike."""
    model, ids = recurrent_gemma(), tokens()
    more = {
        "max_new_tokens": 6,
        "do_sample": False,
        "return_dict_in_generate": True,
        "output_logits": True,
    }
    run = lambda: model.generate(ids, attention_mask=left_padding(ids), **more)  # noqa: E731
    expected = run()
    patch(model)
    found = run()
    assert torch.equal(found.sequences, expected.sequences)
    torch.testing.assert_close(torch.stack(found.logits), torch.stack(expected.logits), **close)


@pytest.mark.parametrize("name", ["T5", "UMT5"])
def test_a_padded_prompt_may_be_fed_in_pieces(name):
    model, ids = build(name), tokens()
    more = {"max_new_tokens": 4, "do_sample": False, "prefill_chunk_size": 4}
    run = lambda: model.generate(ids, attention_mask=left_padding(ids), **more)  # noqa: E731
    expected = run()
    patch(model)
    assert torch.equal(run(), expected)
