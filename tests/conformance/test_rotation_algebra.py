"""What rotations must satisfy for any shape and any positions, drawn by Hypothesis."""

from __future__ import annotations

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import ordinate
from ordinate import RoPE, rerotate, to_half, to_interleaved

from .budgets import assert_within, rotation_budget

POSITIONS = st.integers(-(2**20), 2**20)
LAYOUTS = st.sampled_from(["half", "interleaved"])

# A float64 angle at 2^20 is known to about 2^20 · 2^-52; products and sums of it a few times that.
ANGLE = 2.0**20 * 2.0**-50


@st.composite
def _situations(draw):
    """A RoPE, queries and keys for it (grouped, of any length), and positions for each.

    Numbers are drawn, objects are made in the test: run-time shape checks use `random`, which
    Hypothesis forbids while it draws.
    """
    head_dim = draw(st.integers(1, 8)) * 2
    rotary_dim = draw(st.integers(1, head_dim // 2)) * 2
    base, layout = draw(st.sampled_from([10.0, 1e4, 1e6])), draw(LAYOUTS)
    batch, kv_heads, groups, length = (draw(st.integers(1, n)) for n in (3, 3, 3, 9))
    seed, rows = draw(st.integers(0, 2**16)), draw(st.sampled_from([1, batch]))
    listed = [draw(st.lists(POSITIONS, min_size=length, max_size=length)) for _ in range(rows)]

    def make():
        torch.manual_seed(seed)
        q = torch.randn(batch, kv_heads * groups, length, head_dim, dtype=torch.float64)
        k = torch.randn(batch, kv_heads, length, head_dim, dtype=torch.float64)
        return RoPE(head_dim, base, rotary_dim, layout), q, k, torch.tensor(listed)

    return make


@given(_situations())
@settings(max_examples=40)
def test_rotation_keeps_the_norm_of_every_pair_and_what_does_not_turn(situation):
    rope, q, k, positions = situation()
    for before, after in zip((q, k), rope.rotate(q, k, positions, positions), strict=True):
        torch.testing.assert_close(after.norm(dim=-1), before.norm(dim=-1), rtol=1e-14, atol=1e-14)
        torch.testing.assert_close(
            after[..., rope.rotary_dim :], before[..., rope.rotary_dim :], rtol=0, atol=0
        )


@given(_situations())
@settings(max_examples=40)
def test_scores_depend_on_the_difference_alone(situation):
    rope, q, k, positions = situation()
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)

    def scores(offset: int) -> torch.Tensor:
        turned_q, turned_k = rope.rotate(q, k, positions + offset, positions.flip(-1) + offset)
        return turned_q @ turned_k.mT

    size = float(q.norm(dim=-1).max() * k.norm(dim=-1).max())
    torch.testing.assert_close(scores(12_345), scores(0), rtol=0, atol=8 * ANGLE * size)


@given(_situations(), st.integers(-(2**20), 2**20))
@settings(max_examples=40)
def test_two_turns_are_one_turn_by_the_sum(situation, step):
    """R(b) R(a) = R(a + b), and rerotate knows it."""
    rope, q, _, positions = situation()
    here, there = rope.at(positions), rope.at(positions + step)
    size = float(q.norm(dim=-1).max())
    twice = rope.at(torch.full_like(positions, step)).apply(here.apply(q))
    torch.testing.assert_close(twice, there.apply(q), rtol=0, atol=8 * ANGLE * size)
    moved = rerotate(here.apply(q), here, there)
    torch.testing.assert_close(moved, there.apply(q), rtol=0, atol=8 * ANGLE * size)


@given(_situations())
@settings(max_examples=40)
def test_the_opposite_turn_undoes_it(situation):
    rope, q, _, positions = situation()
    back = rope.at(-positions).apply(rope.at(positions).apply(q))
    torch.testing.assert_close(back, q, rtol=1e-14, atol=1e-14)


@given(_situations())
@settings(max_examples=40)
def test_the_layouts_are_one_rotation_of_permuted_channels(situation):
    rope, q, _, positions = situation()
    half = RoPE(rope.head_dim, rope.base, rope.rotary_dim, "half").at(positions)
    interleaved = RoPE(rope.head_dim, rope.base, rope.rotary_dim, "interleaved").at(positions)

    def permute(x: torch.Tensor, convert) -> torch.Tensor:
        channels = convert(
            torch.arange(float(rope.head_dim)), head_dim=rope.head_dim, rotary_dim=rope.rotary_dim
        )
        return x[..., channels.long()]

    through_half = permute(half.apply(permute(q, to_half)), to_interleaved)
    torch.testing.assert_close(through_half, interleaved.apply(q), rtol=0, atol=0)
    torch.testing.assert_close(permute(permute(q, to_half), to_interleaved), q, rtol=0, atol=0)


@given(_situations(), st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
@settings(max_examples=40)
def test_low_precision_is_the_float64_rotation_rounded_once(situation, dtype):
    rope, q, _, positions = situation()
    q = q.to(dtype)
    exact = rope.at(positions).apply(q.double())
    turned = rope.at(positions).apply(q)
    assert_within(turned, exact, rotation_budget(exact, dtype, rope.rotary_dim, rope.layout))


@given(st.lists(st.integers(1, 4), min_size=2, max_size=4), st.sampled_from(["chunked", "interleaved"]),
       LAYOUTS, st.lists(POSITIONS, min_size=5, max_size=5))  # fmt: skip
@settings(max_examples=40)
def test_equal_axes_are_plain_rope_bit_for_bit(sections, section_layout, layout, where):
    dim = 2 * sum(sections)
    axes = len(sections)
    fits = all(axis + axes * (count - 1) < sum(sections) for axis, count in enumerate(sections) if axis)
    assume(
        section_layout == "chunked" or fits
    )  # the others cannot be dealt out in turn, and are refused
    several = RoPE(dim, layout=layout, sections=sections, section_layout=section_layout)
    q = torch.randn(1, 2, 5, dim)
    positions = torch.tensor([where])
    stacked = torch.stack([positions] * len(sections))
    plain = RoPE(dim, layout=layout).rotate(q, q, positions, positions)
    for ours, theirs in zip(several.rotate(q, q, stacked, stacked), plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@given(_situations())
@settings(max_examples=20)
def test_attention_with_rope_is_permutation_equivariant_in_its_pairs(situation):
    """Tokens shuffled along with their positions give the outputs shuffled."""
    rope, q, k, positions = situation()
    order = torch.randperm(q.shape[2])
    whole = ordinate.attention(q, k, k, rope, q_positions=positions, k_positions=positions)
    shuffled = ordinate.attention(
        q[:, :, order], k[:, :, order], k[:, :, order], rope,
        q_positions=positions[:, order], k_positions=positions[:, order],
    )  # fmt: skip
    torch.testing.assert_close(shuffled, whole[:, :, order], rtol=1e-8, atol=1e-8)
