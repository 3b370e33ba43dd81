"""RoPE: known numbers, both layouts against the code that made them known, and its axes."""

from __future__ import annotations

import math

import pytest
import torch

import ordinate
from ordinate import RoPE, scaling

X = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64).reshape(1, 1, 1, 4)


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("half", [-1.98411065, 1.95990067, 2.46237790, 4.01979967]),
        ("interleaved", [-1.14263966, 1.92207560, 2.95985067, 4.02979950]),
    ],
)
def test_four_channels_at_position_one(layout: str, expected: list[float]):
    turned = RoPE(4, layout=layout).at(torch.tensor([1])).apply(X)
    torch.testing.assert_close(
        turned.flatten(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=5e-9
    )


def test_half_layout_equals_llama_in_transformers():
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    q, k = torch.randn(2, 4, 9, 16), torch.randn(2, 2, 9, 16)
    positions = torch.tensor([range(9), range(100, 109)])
    angles = positions[..., None].double() * 10000.0 ** (-torch.arange(0, 16, 2).double() / 16)
    angles = torch.cat((angles, angles), dim=-1)
    theirs = apply_rotary_pos_emb(q, k, angles.cos().float(), angles.sin().float())
    for ours, other in zip(RoPE(16).rotate(q, k, positions, positions), theirs, strict=True):
        torch.testing.assert_close(ours, other, rtol=0, atol=2.0**-21)


def test_interleaved_layout_is_complex_multiplication():
    """polar and view_as_complex, as in the complex form of Meta's code: the same numbers."""
    q, k = torch.randn(2, 4, 9, 16), torch.randn(2, 2, 9, 16)
    angles = torch.outer(torch.arange(9).double(), 1e6 ** (-torch.arange(0, 16, 2).double() / 16))
    turn = torch.polar(torch.ones_like(angles), angles).to(torch.complex64)

    def complex_form(x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turn).flatten(-2)

    for ours, x in zip(RoPE(16, base=1e6, layout="interleaved").rotate(q, k), (q, k), strict=True):
        torch.testing.assert_close(ours, complex_form(x), rtol=0, atol=2.0**-21)


def test_frequencies_at_base_one_million():
    """Often given as 0.001 and 1e-6; they are not round."""
    inv_freq = RoPE(64, base=1e6).inv_freq()
    torch.testing.assert_close(
        inv_freq[15], torch.tensor(1e6 ** (-30 / 64), dtype=torch.float64), rtol=1e-14, atol=0
    )
    torch.testing.assert_close(
        inv_freq[[15, 31]], torch.tensor([0.00154, 1.54e-6]).double(), rtol=2e-3, atol=0
    )


def test_equal_differences_score_equally():
    q, k = torch.randn(2, 1, 1, 1, 64, dtype=torch.float64).unbind()
    rope = RoPE(64)
    near, far = (
        (rope.at(torch.tensor([m])).apply(q) * rope.at(torch.tensor([n])).apply(k)).sum()
        for m, n in ((5, 8), (100, 103))
    )
    torch.testing.assert_close(near, far, rtol=1e-12, atol=1e-12)


def test_partial_rotary_has_exponents_over_the_reduced_dimension():
    rope = RoPE(256, rotary_dim=64)  # GPT-J
    torch.testing.assert_close(rope.inv_freq(), RoPE(64).inv_freq(), rtol=0, atol=0)
    x = torch.randn(1, 2, 5, 256)
    turned, _ = rope.rotate(x, x)
    torch.testing.assert_close(turned[..., 64:], x[..., 64:], rtol=0, atol=0)
    torch.testing.assert_close(turned[..., :64], RoPE(64).rotate(x[..., :64], x[..., :64])[0])


def _axis_of_each_pair(rope: RoPE) -> list[int]:
    """Found from outside: a pair belongs to the axis whose coordinate turns it."""
    ones = torch.ones(1, 1, 1, rope.head_dim)
    pairs = rope.rotary_dim // 2
    owners = [-1] * pairs
    for axis in range(rope.axes):
        positions = torch.zeros(rope.axes, 1, 1, dtype=torch.long)
        positions[axis] = 1_000_000
        turned, _ = rope.rotate(ones, ones, positions, positions)
        for pair in range(pairs):
            if not torch.equal(turned[..., pair], ones[..., pair]):
                assert owners[pair] == -1
                owners[pair] = axis
    return owners


def test_chunked_sections_are_qwen2_vls():
    owners = _axis_of_each_pair(RoPE(128, sections=(16, 24, 24)))
    assert owners == [0] * 16 + [1] * 24 + [2] * 24


def test_interleaved_sections_are_qwen3_vls():
    rope = RoPE(128, sections=(24, 20, 20), section_layout="interleaved")
    assert _axis_of_each_pair(rope) == [0, 1, 2] * 20 + [0] * 4


def test_interleaved_sections_fit_a_partial_rotation():
    rope = RoPE(128, rotary_dim=64, sections=(11, 11, 10), section_layout="interleaved")  # Qwen3.5
    assert _axis_of_each_pair(rope) == [0, 1, 2] * 10 + [0, 1]


def test_text_and_image_in_one_sequence():
    """Two words, an image of 2 by 3 patches, two words: text has equal axes and turns as plain RoPE."""
    t = [0, 1, 2, 2, 2, 2, 2, 2, 5, 6]
    h = [0, 1, 2, 2, 2, 3, 3, 3, 5, 6]
    w = [0, 1, 2, 3, 4, 2, 3, 4, 5, 6]
    q = torch.randn(1, 2, 10, 16)
    positions = torch.tensor([t, h, w])[:, None]
    turned, _ = RoPE(16, sections=(2, 3, 3)).rotate(q, q, positions, positions)
    plain, _ = RoPE(16).rotate(q, q, torch.tensor(t), torch.tensor(t))
    text = [0, 1, 2, 8, 9]  # the first patch stands at (2, 2, 2)
    torch.testing.assert_close(turned[:, :, text], plain[:, :, text], rtol=0, atol=0)
    assert not torch.equal(turned[:, :, 4], plain[:, :, 4])


@pytest.mark.parametrize("offset", [0, 4096, 2**17])
def test_bf16_neighbours_turn_by_different_angles(offset: int):
    """Positions formed in bfloat16 share one rotation past 256; in ours no two rows are equal."""
    x = torch.ones(1, 1, 4096, 64, dtype=torch.bfloat16)
    turned, _ = RoPE(64).rotate(x, x, torch.arange(4096) + offset, torch.arange(4096) + offset)
    assert len(torch.unique(turned[0, 0], dim=0)) == 4096


def test_rerotate_moves_a_cache_between_scalings():
    keys, positions = torch.randn(1, 2, 40, 16), torch.arange(40)
    short = RoPE(16).at(positions)
    long = RoPE(16, scaling=scaling.YaRN(4, 32)).at(positions)
    moved = ordinate.rerotate(short.apply(keys), short, long)
    torch.testing.assert_close(moved, long.apply(keys), rtol=0, atol=float(keys.abs().max()) * 2.0**-20)


def test_the_mscale_of_deepseek_multiplies_the_softmax_scale():
    rope = RoPE(8, scaling=scaling.YaRN(40, 4096, mscale=0.707, mscale_all_dim=0.707))
    q, k, v = torch.randn(3, 1, 2, 6, 8).unbind()
    explicit = ordinate.attention(q, k, v, rope, causal=True, scale=1.58962617 / math.sqrt(8))
    torch.testing.assert_close(ordinate.attention(q, k, v, rope, causal=True), explicit)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_however_the_input_lies_in_memory_the_numbers_are_the_same(layout, dtype):
    rotation = RoPE(16, rotary_dim=12, layout=layout).at(torch.arange(40))
    content = torch.randn(2, 3, 40, 16).to(dtype)
    wanted = rotation.apply(content)
    held = {
        "as models hold it": content.transpose(1, 2).contiguous().transpose(1, 2),
        "channels outermost": content.transpose(-1, -2).contiguous().transpose(-1, -2),
        "a slice at an odd offset": torch.nn.functional.pad(content, (1, 2))[..., 1:17],
        "every second channel": content.repeat_interleave(2, dim=-1)[..., ::2],
    }
    for name, x in held.items():
        torch.testing.assert_close(rotation.apply(x), wanted, rtol=0, atol=0, msg=name)
    one_head = content[:, :1].expand(-1, 3, -1, -1)
    torch.testing.assert_close(rotation.apply(one_head)[:, 2], wanted[:, 0], rtol=0, atol=0)
