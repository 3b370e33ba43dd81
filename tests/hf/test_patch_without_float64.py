"""Patched models on devices without float64."""

from __future__ import annotations

import pytest
import torch
from patch_models import MODELS, VOCABULARY

from ordinate import hf

pytestmark = pytest.mark.plain


@pytest.mark.parametrize("name", ["Llama 3.1", "Llama, dynamic", "T5"])
def test_a_patched_model_does_without_float64(name, without_float64):
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    tokens = torch.randint(3, VOCABULARY, (2, 40))
    options = {"decoder_input_ids": tokens} if name == "T5" else {}
    with without_float64(), torch.no_grad():
        hf.patch(model)
        model(tokens, **options)
        model.generate(tokens, max_new_tokens=2, do_sample=False)
        hf.unpatch(model)
