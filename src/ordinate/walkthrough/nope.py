"""No positions: what attention computes when its tokens are shuffled."""

from __future__ import annotations

import torch

from ..attending.api import attention
from ..encoding import PositionEncoding
from ..setting import Setting, normal
from .walk import Step, step


def steps_of_nope(encoding: PositionEncoding, setting: Setting) -> list[Step]:
    """Shuffle the tokens of an attention without positions: the outputs shuffle with them."""
    x = normal(1, 1, setting.length, setting.head_dim)
    order = torch.randperm(setting.length, generator=torch.Generator().manual_seed(0))
    out = attention(x, x, x, impl="reference")
    shuffled = attention(*(x[:, :, order],) * 3, impl="reference")
    assert isinstance(out, torch.Tensor)
    assert isinstance(shuffled, torch.Tensor)
    rows = [
        (place, int(token), shuffled[0, 0, place, 0], out[0, 0, token, 0])
        for place, token in enumerate(order)
    ]
    change = float((shuffled - out[:, :, order]).abs().amax())
    return [
        step(
            f"{setting.length} tokens attend to each other, then again in another order",
            ("place", "token", "channel 0, shuffled", "channel 0 of that token before"),
            rows,
            note=f"every token keeps its output wherever it stands (largest change {change:.1e}): "
            "without positions or a mask, order is invisible",
        )
    ]
