"""Whether a patched model answers as it did: a few tokens through it before and after.

Families that nobody tried may use masks and rotations in ways that no other does. So `patch` has a model
answer two short rows, one of them padded, before and after, and undoes itself where the answers differ.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LENGTH, _PADDING = 12, 4


def answer(model: Any) -> Tensor | None:
    """What a model makes of two rows of tokens, at the tokens that are not padding.

    The model is left as it was: in training or not, with its gradients, and with the generators' state. It is
    asked without autocast, whose rounding would hide a mistake.
    """
    training = [module for module in model.modules() if module.training]
    device = next(model.parameters()).device
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        torch.autocast(device.type, enabled=False),
        torch.no_grad(),
    ):
        given = _inputs(model.config, device)
        model.eval()
        try:
            found = model(**given)
        finally:
            for module in training:
                module.training = True
    out = getattr(found, "logits", getattr(found, "last_hidden_state", None))
    if not isinstance(out, Tensor) or out.shape[:2] != (2, LENGTH):
        return None
    return out[given["attention_mask"].bool()].float()


def _inputs(config: Any, device: torch.device) -> dict[str, Tensor]:
    vocabulary = int(getattr(config.get_text_config(), "vocab_size", 0) or 0)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(min(10, vocabulary - 1), min(1000, vocabulary), (2, LENGTH), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, :_PADDING] = 0
    given = {"input_ids": ids, "attention_mask": mask}
    return {name: tensor.to(device) for name, tensor in given.items()}


def difference(before: Tensor, after: Tensor) -> float:
    """How far two answers are apart, in parts of their size; NaN where only one has it counts as infinite."""
    if not torch.equal(before.isnan(), after.isnan()):
        return float("inf")
    before, after = before.nan_to_num(), after.nan_to_num()
    return float((after - before).norm() / before.norm().clamp(min=1e-30))


def allowed(dtype: torch.dtype) -> float:
    """More than any rounding makes of a deep model, less than any mistake does."""
    return 1e-3 if dtype in (torch.float32, torch.float64) else 0.1
