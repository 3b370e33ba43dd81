"""The clipped bias: one number a head and distance, the same for all beyond the last."""

from __future__ import annotations

import torch

from ordinate import ClippedBias, T5Bias


def test_rows_are_distance_plus_max_distance():
    clipped = ClippedBias(num_heads=2, max_distance=3)
    with torch.no_grad():
        clipped.weight.copy_(torch.arange(7.0)[:, None].expand(7, 2))
    q = torch.zeros(1, 2, 6, 4)
    expected = (torch.arange(6)[:, None] - torch.arange(6)).clamp(-3, 3) + 3
    torch.testing.assert_close(clipped.bias(q, q).dense()[0, 1], expected.float())


def test_it_has_a_row_for_each_side_and_one_for_itself():
    assert ClippedBias(num_heads=8, max_distance=128).weight.shape == (257, 8)


def test_it_is_not_t5s_bias():
    """Two far distances T5 puts into one bucket have rows of their own here."""
    q = torch.zeros(1, 2, 60, 4)
    clipped, t5 = ClippedBias(2, 128).bias(q, q).dense(), T5Bias(2).bias(q, q).dense()
    assert len(t5[0, 0, 59].unique()) < 32
    assert len(clipped[0, 0, 59].unique()) == 60


def test_queries_far_apart_share_the_last_row():
    clipped = ClippedBias(2, 4)
    q = torch.zeros(1, 2, 2, 4)
    positions = torch.tensor([0, 2**20])
    dense = clipped.bias(q, q, positions, positions).dense()[0]
    torch.testing.assert_close(dense[:, 1, 0], clipped.weight[8], rtol=0, atol=0)
    torch.testing.assert_close(dense[:, 0, 1], clipped.weight[0], rtol=0, atol=0)
