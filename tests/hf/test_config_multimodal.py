"""Positions of text, images and video: known numbers, and parity with the models' own code."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ordinate import RoPE
from ordinate.hf import mrope_positions


def row(*runs: tuple[int, int]) -> list[int]:
    """Token types from (type, how many)."""
    return [kind for kind, count in runs for _ in range(count)]


def test_text_then_an_image_of_two_rows_and_three_columns_then_text():
    types = torch.tensor([row((0, 2), (1, 6), (0, 2))])
    positions, deltas = mrope_positions(types, [(1, 4, 6)])
    assert positions[:, 0].tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6],
    ]
    assert deltas.tolist() == [6 + 1 - 10]


def test_pure_text_is_plain_rope_bit_for_bit():
    positions, deltas = mrope_positions(torch.zeros(2, 9, dtype=torch.int64))
    assert deltas.tolist() == [0, 0]
    q = torch.randn(2, 3, 9, 16)
    axes, plain = RoPE(16, sections=(4, 2, 2)), RoPE(16)
    assert torch.equal(axes.rotate(q, q, positions, positions)[0], plain.rotate(q, q)[0])


def _theirs(style: str, types: torch.Tensor, **given: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The models' own method on a stand-in for the model."""
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

    cls = {"qwen2_vl": Qwen2VLModel, "qwen2_5_vl": Qwen2_5_VLModel, "qwen3_vl": Qwen3VLModel}[style]
    vision = SimpleNamespace(spatial_merge_size=2, tokens_per_second=2.5)
    model = SimpleNamespace(config=SimpleNamespace(vision_config=vision))
    model.get_vision_position_ids = lambda *a, **k: cls.get_vision_position_ids(model, *a, **k)
    grids = {k: None if v is None else torch.tensor(v) for k, v in given.items() if "grid_thw" in k}
    rest = {k: v for k, v in given.items() if "grid_thw" not in k}
    return cls.get_rope_index(model, torch.ones_like(types), types, **grids, **rest)


IMAGES = [(1, 4, 6), (1, 8, 2)]
_SECOND = row((1, 4), (0, 22))
CASES = {
    "qwen2_vl": (row((0, 3), (1, 6), (0, 1), (2, 12), (0, 4)), _SECOND, [(3, 4, 4)], {}),
    "qwen2_5_vl": (row((0, 3), (1, 6), (0, 1), (2, 12), (0, 4)), _SECOND, [(3, 4, 4)], {"seconds": [1.5]}),
    # frames of its video are runs of their own, with text between
    "qwen3_vl": (row((0, 3), (1, 6), (0, 1), (2, 4), (0, 2), (2, 4), (0, 2), (2, 4)), _SECOND, [(3, 4, 4)], {}),
}  # fmt: skip


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("style", CASES)
def test_positions_equal_the_models_own(style: str, padded: bool):
    first, second, videos, extra = CASES[style]
    types = torch.tensor([first, second])
    is_token = torch.ones_like(types, dtype=torch.bool)
    if padded:
        pad = torch.zeros(2, 3, dtype=torch.int64)
        types = torch.cat((pad, types), dim=1)
        is_token = torch.cat((pad.bool(), is_token), dim=1)
    options: dict[str, Any] = {"is_token": is_token if padded else None}
    given: dict[str, Any] = {"image_grid_thw": IMAGES, "video_grid_thw": videos}
    if padded:
        given["attention_mask"] = is_token.long()
    if "seconds" in extra:
        options |= {"seconds_per_grid": extra["seconds"], "tokens_per_second": 2.5}
        given["second_per_grid_ts"] = extra["seconds"]
    ours = mrope_positions(types, IMAGES, videos, style=style, **options)
    positions, deltas = _theirs(style, types, **given)
    torch.testing.assert_close(ours.positions, positions)
    torch.testing.assert_close(ours.deltas, deltas[:, 0])


def test_a_decoded_token_stands_at_its_index_plus_the_delta():
    types = torch.tensor([row((0, 2), (1, 6), (0, 2))])
    longer = torch.tensor([row((0, 2), (1, 6), (0, 5))])
    short, long = mrope_positions(types, [(1, 4, 6)]), mrope_positions(longer, [(1, 4, 6)])
    later = torch.arange(10, 13) + short.deltas
    assert long.positions[:, 0, 10:].tolist() == [later.tolist()] * 3
