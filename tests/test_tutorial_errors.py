"""What tutorials get wrong about position encodings, and the right thing that is shipped here."""

from __future__ import annotations

import math

import pytest
import torch

import ordinate
from ordinate import ALiBi, ClippedBias, RoPE, Shaw, T5Bias, attention, scaling
from ordinate.bias.t5 import t5_buckets


def _copied_buckets(distances, num_buckets=32, max_distance=128):
    """The widely copied rule, its logarithm mended: half of the buckets is added, and they are not halved first."""
    exact, far = num_buckets // 2, distances.abs()
    shared = (
        exact + ((far / exact).log() / math.log(max_distance / exact) * (num_buckets - exact)).long()
    )
    rows = torch.where(far < exact, far, shared.clamp(max=num_buckets - 1))
    return rows + (distances < 0) * (num_buckets // 2)


def test_the_copied_t5_rule_reaches_row_47_of_32_and_fails_from_17_tokens_on():
    assert int(_copied_buckets(torch.arange(-5000, 5001)).max()) == 47
    for tokens, highest in ((16, 31), (17, 32)):
        assert int(_copied_buckets(torch.arange(1 - tokens, tokens)).max()) == highest


def test_t5_buckets_of_both_directions_stay_within_the_table():
    both = t5_buckets(torch.arange(-5000, 5001), 32, 128, bidirectional=True)
    assert both.unique().tolist() == [*range(16), *range(17, 32)]  # distance 0 lies to neither side
    causal = t5_buckets(torch.arange(-5000, 5001), 32, 128, bidirectional=False)
    assert causal.unique().tolist() == list(range(32))


@pytest.mark.parametrize(
    ("bidirectional", "last", "starts"), [(True, 15, 91), (False, 31, 113)], ids=["both", "causal"]
)
def test_the_last_t5_bucket_starts_where_t5s_does(bidirectional, last, starts):
    buckets = t5_buckets(torch.arange(200), 32, 128, bidirectional=bidirectional)
    assert buckets.tolist().index(last) == starts
    assert set(buckets[starts:].tolist()) == {last}


def test_t5_takes_keys_on_the_right_for_the_upper_half():
    # In T5's words rel = key - query: +1 -> 17 and -1 -> 1.
    distances = torch.tensor([-1, 1])  # query - key
    assert t5_buckets(distances, 32, 128, bidirectional=True).tolist() == [17, 1]
    t5 = T5Bias(1, bidirectional=True)
    with torch.no_grad():
        t5.weight.copy_(torch.arange(32.0)[:, None])
    q = torch.zeros(1, 1, 3, 4)
    matrix = t5.bias(q, q).dense()[0, 0]
    torch.testing.assert_close(matrix, torch.tensor([[0.0, 17, 18], [1, 0, 17], [2, 1, 0]]))


def test_alibi_slopes_are_powers_and_not_multiples():
    slopes = ALiBi(8).slopes_on(torch.device("cpu"))
    torch.testing.assert_close(slopes, torch.tensor([2.0**-i for i in range(1, 9)]), rtol=0.0, atol=0.0)


def test_alibi_is_causal_unless_said_otherwise():
    q, k, v = torch.randn(3, 1, 2, 5, 8)
    with pytest.raises(ValueError, match=r"causal must be True with this bias.*got False"):
        attention(q, k, v, ALiBi(2))
    symmetric = ALiBi(2, symmetric=True).bias(q, k).dense()
    torch.testing.assert_close(symmetric, symmetric.transpose(-1, -2), rtol=0.0, atol=0.0)
    past = torch.ones(5, 5).tril().bool()
    causal = ALiBi(2).bias(q, k).dense()
    torch.testing.assert_close(causal[..., past], symmetric[..., past], rtol=0.0, atol=0.0)


def test_four_t5_buckets_follow_the_real_rule_on_both_sides():
    # Two buckets a side: one for the token itself, one for everything further away.
    matrix = t5_buckets(torch.arange(4)[:, None] - torch.arange(4)[None], 4, 8, bidirectional=True)
    assert matrix.tolist() == [[0, 3, 3, 3], [1, 0, 3, 3], [1, 1, 0, 3], [1, 1, 1, 0]]


def test_t5_attends_without_the_square_root_of_the_head_dimension():
    t5 = T5Bias(2)
    q, k, v = torch.randn(3, 1, 2, 5, 16)
    logits = q @ k.transpose(-1, -2) + t5.bias(q, k).dense()
    expected = logits.masked_fill(torch.ones(5, 5).triu(1).bool(), -math.inf).softmax(-1) @ v
    torch.testing.assert_close(attention(q, k, v, t5, causal=True, scale=1.0), expected)


def test_the_clipped_table_and_the_t5_bias_are_two_encodings():
    clipped, t5 = ClippedBias(2, max_distance=128), T5Bias(2, max_distance=128, bidirectional=True)
    assert clipped.weight.shape == (257, 2)
    assert t5.weight.shape == (32, 2)
    far = torch.tensor([60, 61])
    rows = t5.buckets(far)
    assert rows[0] == rows[1]  # T5 shares a number where the clipped table has two
    q = torch.zeros(1, 2, 129, 4)
    line = clipped.bias(q, q).dense()[0, 0, -1]
    assert len(line.unique()) == 129


def test_a_bias_is_heads_by_queries_by_keys_on_the_callers_device():
    q, k = torch.zeros(1, 3, 5, 4, device="meta"), torch.zeros(1, 3, 7, 4, device="meta")
    for encoding in (ClippedBias(3, 4), T5Bias(3), ALiBi(3), Shaw(4, 2)):
        matrix = encoding.to("meta").bias(q, k).dense()
        assert matrix.shape == (1, 3, 5, 7)
        assert matrix.device.type == "meta"


def test_dividing_positions_is_linear_interpolation_and_yarn_is_another_thing():
    q, k = torch.randn(2, 1, 1, 4, 64)
    positions = torch.arange(4) * 8
    divided = RoPE(64).rotate(q, k, positions // 8)
    linear = RoPE(64, scaling=scaling.Linear(8)).rotate(q, k, positions)
    torch.testing.assert_close(linear, divided)
    plain = RoPE(64).inv_freq()
    yarn = RoPE(64, scaling=scaling.YaRN(8, 2048))
    torch.testing.assert_close(yarn.inv_freq()[0], plain[0], rtol=0.0, atol=0.0)  # the fastest stays
    torch.testing.assert_close(yarn.inv_freq()[-1], plain[-1] / 8)  # the slowest is divided
    assert yarn.scaling is not None
    assert yarn.scaling.attention_factor == pytest.approx(0.1 * math.log(8) + 1)


def test_the_frequencies_of_pairs_15_and_31_at_base_one_million():
    freqs = RoPE(64, base=1e6).inv_freq()
    expected = torch.tensor([1e6 ** (-30 / 64), 1e6 ** (-62 / 64)], dtype=torch.float64)
    torch.testing.assert_close(freqs[[15, 31]], expected)
    assert [f"{f:.3g}" for f in freqs[[15, 31]].tolist()] == ["0.00154", "1.54e-06"]


def test_a_complex_product_is_four_multiplications_and_two_additions_and_the_same_numbers():
    rope = RoPE(8, layout="interleaved")
    q, k = torch.randn(2, 1, 2, 6, 8, dtype=torch.float64)
    angles = torch.arange(6).double()[:, None] * rope.inv_freq()
    turn = torch.polar(torch.ones_like(angles), angles)
    by_complex = torch.view_as_real(torch.view_as_complex(q.unflatten(-1, (-1, 2))) * turn).flatten(-2)
    a, b = q[..., 0::2], q[..., 1::2]
    by_hand = torch.stack(
        (a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), dim=-1
    ).flatten(-2)
    turned, _ = rope.rotate(q, k)
    torch.testing.assert_close(turned, by_complex)
    torch.testing.assert_close(turned, by_hand)


def test_a_product_of_turned_vectors_is_one_of_the_key_turned_by_n_minus_m():
    rope = RoPE(8)
    q, k = torch.randn(2, 8, dtype=torch.float64)

    def turn(x, position):
        return rope.at(torch.tensor([position])).apply(x[None, None, None]).flatten()

    for m, n in ((0, 0), (10, 0), (15, 5), (6, 16), (100, 103), (5, 8)):
        both = turn(q, m) @ turn(k, n)
        torch.testing.assert_close(both, q @ turn(k, n - m))
        # Turned the other way, the table is the mirror of itself.
        torch.testing.assert_close(turn(q, n) @ turn(k, m), q @ turn(k, m - n))
        assert m == n or not torch.allclose(both, q @ turn(k, m - n))


def test_shapes_are_batch_heads_seq_head_dim_throughout():
    q, k, v = torch.randn(2, 8, 10, 64), torch.randn(2, 2, 10, 64), torch.randn(2, 2, 10, 64)
    turned_q, turned_k = RoPE(64, base=1e6).rotate(q, k)
    assert turned_q.shape == q.shape
    assert turned_k.shape == k.shape
    assert attention(q, k, v, RoPE(64, base=1e6), causal=True).shape == (2, 8, 10, 64)


def test_plain_rope_meets_angles_past_its_training_length_that_it_never_saw():
    # Why it does not extrapolate: the slow pairs have not turned once within the training length, so
    # every later position shows them an angle of its own; interpolation brings it back within.
    trained, longer = 2048, 8192
    reached = RoPE(64).inv_freq() * (trained - 1)
    never_turned = reached < 2 * math.pi
    assert 5 < int(never_turned.sum()) < 32
    later = RoPE(64).inv_freq() * (longer - 1)
    assert bool((later[never_turned] > reached[never_turned]).all())
    within = RoPE(64, scaling=scaling.Linear(4)).inv_freq() * (longer - 1)
    assert bool((within <= RoPE(64).inv_freq() * trained).all())


@pytest.mark.parametrize("impl", ["reference", "chunked", "sdpa"])
def test_without_positions_the_output_is_permuted_with_the_input_and_not_unchanged(impl):
    q, k, v = torch.randn(3, 1, 2, 9, 8, dtype=torch.float64)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    out = attention(q, k, v, ordinate.NoPE(), impl=impl)
    shuffled = attention(q[:, :, order], k[:, :, order], v[:, :, order], ordinate.NoPE(), impl=impl)
    torch.testing.assert_close(shuffled, out[:, :, order])
    assert not torch.allclose(shuffled, out)
    rotated = attention(q[:, :, order], k[:, :, order], v[:, :, order], RoPE(8))
    assert not torch.allclose(rotated, attention(q, k, v, RoPE(8))[:, :, order])
