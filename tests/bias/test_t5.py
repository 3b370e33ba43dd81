"""T5's buckets: every edge, both directions, as T5's own code."""

from __future__ import annotations

import math

import pytest
import torch

import ordinate
from ordinate import T5Bias
from ordinate.bias.t5 import t5_buckets

BIDIRECTIONAL = [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]
CAUSAL = [*range(16), 16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]


def _first_distances(buckets: torch.Tensor, count: int) -> list[int]:
    return [buckets.tolist().index(bucket) for bucket in range(count)]


def test_first_distance_of_each_bucket_in_both_directions():
    past = t5_buckets(torch.arange(300), 32, 128, bidirectional=True)
    assert _first_distances(past, 16) == BIDIRECTIONAL
    future = t5_buckets(-torch.arange(300), 32, 128, bidirectional=True)
    torch.testing.assert_close(future[1:], past[1:] + 16)
    assert int(past.max()) == 15
    assert int(future.max()) == 31  # not halving would reach 63 in a table of 32 rows


def test_first_distance_of_each_causal_bucket():
    past = t5_buckets(torch.arange(300), 32, 128, bidirectional=False)
    assert _first_distances(past, 32) == CAUSAL
    assert t5_buckets(-torch.arange(300), 32, 128, bidirectional=False).unique().tolist() == [0]


@pytest.mark.parametrize(
    ("relative", "bucket"), [(1, 17), (0, 0), (-1, 1), (8, 24), (-8, 8), (128, 31), (-128, 15)]
)
def test_keys_to_the_right_have_the_upper_half(relative: int, bucket: int):
    """``relative = key - query``, T5's sign; ours counts the other way."""
    assert int(t5_buckets(torch.tensor(-relative), 32, 128, bidirectional=True)) == bucket


@pytest.mark.parametrize("bidirectional", [True, False], ids=["bidirectional", "causal"])
@pytest.mark.parametrize(
    ("buckets", "furthest"), [(32, 128), (8, 20), (64, 256), (12, 1000), (16, 17), (20, 333)]
)
def test_buckets_equal_transformers(buckets: int, furthest: int, bidirectional: bool):
    from transformers.models.t5.modeling_t5 import T5Attention

    distances = torch.arange(-3000, 3000)
    theirs = T5Attention._relative_position_bucket(-distances, bidirectional, buckets, furthest)
    ours = t5_buckets(distances, buckets, furthest, bidirectional)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("bidirectional", [True, False], ids=["encoder", "decoder"])
def test_attention_equals_a_t5_layer(bidirectional: bool):
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(d_model=32, d_kv=8, num_heads=4, is_decoder=not bidirectional, dropout_rate=0.0)
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).eval()
    encoding = T5Bias(4, bidirectional=bidirectional)
    encoding.weight = theirs.relative_attention_bias.weight
    ours = ordinate.MultiHeadAttention(32, 4, encoding=encoding, causal=not bidirectional, scale=1.0)
    pairs = zip((ours.q_proj, ours.k_proj, ours.v_proj, ours.o_proj),
                (theirs.q, theirs.k, theirs.v, theirs.o), strict=True)  # fmt: skip
    for mine, other in pairs:
        torch.nn.init.normal_(other.weight, std=0.3)
        mine.weight = other.weight
    x = torch.randn(2, 40, 32)
    mask = None
    if not bidirectional:
        hidden = torch.ones(40, 40, dtype=torch.bool).triu(1)
        mask = torch.zeros(1, 1, 40, 40).masked_fill(hidden, -math.inf)
    torch.testing.assert_close(ours(x), theirs(x, mask=mask)[0], rtol=1e-5, atol=1e-5)


def test_every_bucket_is_reached_but_one():
    """With both directions bucket 16 would be distance 0 of the future: T5 never uses it."""
    distances = torch.arange(-200, 200)
    assert T5Bias(2).buckets(distances).unique().tolist() == list(range(32))
    reached = T5Bias(2, bidirectional=True).buckets(distances).unique().tolist()
    assert reached == [bucket for bucket in range(32) if bucket != 16]


def test_buckets_do_not_depend_on_the_length():
    """A wrong version shifts distances by their minimum, so that the length moves every bucket."""
    t5 = T5Bias(2, bidirectional=True)
    short, long = (
        t5.bias(q, q).dense()[0, :, :5, :5] for q in (torch.zeros(1, 2, n, 4) for n in (5, 50))
    )
    torch.testing.assert_close(short, long, rtol=0, atol=0)


def test_the_bias_is_not_scaled():
    q = torch.zeros(1, 2, 3, 4)
    assert not T5Bias(2).bias(q, q).scaled


def test_a_lone_query_of_one_direction_needs_no_mask():
    """It is the last, and a causal mask would hide nothing from it."""
    t5, q, k = T5Bias(2), torch.randn(1, 2, 1, 8), torch.randn(1, 2, 7, 8)
    alone, masked = (ordinate.attention(q, k, k, t5, causal=causal) for causal in (False, True))
    torch.testing.assert_close(alone, masked)
