"""Bugs found in other libraries, one test each that would catch it in this one."""

from __future__ import annotations

import math

import pytest
import torch
from torch._dynamo.testing import CompileCounter

import ordinate
from ordinate import ALiBi, RoPE, T5Bias, attention, scaling

BF16 = torch.bfloat16


def pair(length: int, dtype=torch.float32, dim: int = 8, batch: int = 1):
    return torch.randn(batch, 2, length, dim).to(dtype), torch.randn(batch, 2, length, dim).to(dtype)


def turned_exactly(rope: RoPE, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Plain RoPE in the half layout, all in float64."""
    half = x.shape[-1] // 2
    angles = positions.double()[:, None] * rope.base ** -(torch.arange(half).double() / half)
    a, b = x.double()[..., :half], x.double()[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


# rotary-embedding-torch: positions in the activation dtype, a spoilt cache, recompiles, xPos step by step


@pytest.mark.parametrize("start", [0, 257, 2049, 2**17, 1_000_003])
@pytest.mark.parametrize("dtype", [torch.float32, BF16, torch.float16], ids=str)
def test_rotation_in_low_precision_is_the_exact_one_rounded_once(dtype, start):
    rope, positions = RoPE(64), torch.arange(start, start + 33)
    q, k = pair(33, dtype, 64)
    turned, _ = rope.rotate(q, k, positions)
    exact = turned_exactly(rope, q, positions)
    half = 32
    norms = (q.double()[..., :half] ** 2 + q.double()[..., half:] ** 2).sqrt().repeat(1, 1, 1, 2)
    rounding = torch.finfo(dtype).eps / 2 * exact.abs() + norms * 2.0**-22
    excess = ((turned.double() - exact).abs() - rounding).clamp(min=0)
    torch.testing.assert_close(excess, torch.zeros_like(excess), rtol=0.0, atol=torch.finfo(dtype).tiny)


def test_no_two_neighbours_among_4096_positions_share_a_rotation_in_bfloat16():
    ones = torch.ones(1, 1, 4096, 64, dtype=BF16)
    turned, _ = RoPE(64).rotate(ones, ones)
    same = (turned[0, 0, 1:] == turned[0, 0, :-1]).all(-1)
    torch.testing.assert_close(same, torch.zeros_like(same))


def test_a_call_in_bfloat16_leaves_later_calls_in_float32_exact():
    used, fresh = RoPE(64), RoPE(64)
    q, k = pair(4096, dim=64)
    used.rotate(q.to(BF16), k.to(BF16))
    torch.testing.assert_close(used.rotate(q, k), fresh.rotate(q, k), rtol=0.0, atol=0.0)


@pytest.mark.plain
@pytest.mark.parametrize("scaled", [None, scaling.DynamicNTK(4.0, 20)], ids=["plain", "dynamic"])
def test_lengths_do_not_recompile_and_nothing_breaks_the_graph(scaled):
    counter = CompileCounter()
    rope = RoPE(8, scaling=scaled)
    torch._dynamo.reset()
    compiled = torch.compile(rope.rotate, fullgraph=True, backend=counter)
    for length in (7, 8, 9, 16, 31, 64, 100):
        q, k = pair(length)
        torch.testing.assert_close(compiled(q, k), rope.rotate(q, k))
    assert counter.frame_count <= 2


@pytest.mark.parametrize(
    "spec", ["rope", "alibi", "t5", "clipped", "shaw", "rope+yarn:factor=4", "rope+alibi"]
)
def test_decoding_step_by_step_equals_the_full_pass(spec):
    encoding = ordinate.create(spec, num_heads=2, head_dim=8, max_positions=16).double()
    layer = ordinate.MultiHeadAttention(16, 2, encoding=encoding).double()
    x, cache = torch.randn(1, 9, 16).double(), ordinate.KVCache()
    steps = [layer(x[:, i : i + 1], cache=cache) for i in range(9)]
    torch.testing.assert_close(torch.cat(steps, dim=1), layer(x))


# positional-encodings, x-transformers: .to(bfloat16) merges positions


@pytest.mark.parametrize("spec", ["rope", "rope+llama3:factor=8,low_freq_factor=1,high_freq_factor=4"])
def test_a_rotation_cast_to_bfloat16_is_still_exact(spec):
    make = {"head_dim": 64, "max_positions": 512}
    cast, kept = ordinate.create(spec, **make).to(BF16), ordinate.create(spec, **make)
    q, k = pair(4096, dim=64)
    torch.testing.assert_close(cast.rotate(q, k), kept.rotate(q, k), rtol=0.0, atol=0.0)


def test_sinusoidal_codes_of_a_module_cast_to_bfloat16_are_still_exact():
    cast, kept = ordinate.Sinusoidal(64).to(BF16), ordinate.Sinusoidal(64)
    x = torch.zeros(1, 4096, 64)
    torch.testing.assert_close(cast.embed(x), kept.embed(x), rtol=0.0, atol=0.0)
    codes = cast.embed(x)[0]
    assert len(codes.unique(dim=0)) == 4096


# HF BLOOM: slope times absolute key index, in bfloat16


def test_alibi_in_bfloat16_tells_every_pair_of_neighbours_apart():
    q, k = (t.to(BF16) for t in pair(4096, dim=4))
    bias = ALiBi(2).to(BF16).bias(q[:, :, -1:], k)
    row = bias.dense()[0, :, 0]
    expected = torch.tensor([0.0625, 0.00390625])[:, None]
    torch.testing.assert_close(row.diff(dim=-1), expected.expand(2, 4095), rtol=0.0, atol=0.0)


def test_alibi_far_from_zero_gives_what_it_gives_at_zero():
    q, k, v = torch.randn(3, 1, 2, 6, 8).to(BF16)
    near = attention(q, k, v, ALiBi(2), causal=True)
    far = attention(q, k, v, ALiBi(2), causal=True, q_positions=torch.arange(6) + 2**20)
    torch.testing.assert_close(far, near, rtol=0.0, atol=0.0)


# HF dynamic and longrope: hidden state, and neighbours in the batch

LENGTH_DEPENDENT = {
    "dynamic": scaling.DynamicNTK(4.0, 16),
    "longrope": scaling.LongRoPE((1, 1, 2, 2), (3, 4, 5, 6), 16),
}


@pytest.mark.parametrize("name", list(LENGTH_DEPENDENT))
def test_what_was_seen_before_changes_nothing(name):
    used, (q, k), (long_q, long_k) = RoPE(8, scaling=LENGTH_DEPENDENT[name]), pair(12), pair(50)
    short, long = used.rotate(q, k), used.rotate(long_q, long_k)
    for _ in range(2):  # long, short, long again
        torch.testing.assert_close(used.rotate(q, k), short, rtol=0.0, atol=0.0)
        torch.testing.assert_close(used.rotate(long_q, long_k), long, rtol=0.0, atol=0.0)
    first_of_long = used.rotate(long_q[:, :, :12], long_k[:, :, :12])[0]
    assert not torch.allclose(first_of_long, long[0][:, :, :12])


@pytest.mark.parametrize("name", list(LENGTH_DEPENDENT))
def test_a_short_row_is_the_same_beside_a_long_one(name):
    rope, (q, k) = RoPE(8, scaling=LENGTH_DEPENDENT[name]), pair(40, batch=2)
    is_token = torch.arange(40) >= torch.tensor([[0], [30]])
    together = rope.rotate(q, k, ordinate.positions.left_padded(is_token))
    alone = rope.rotate(q[1:, :, 30:], k[1:, :, 30:])
    for both, one in zip(together, alone, strict=True):
        torch.testing.assert_close(both[1:, :, 30:], one, rtol=0.0, atol=0.0)


# HF yarn: truncate ignored


def test_yarn_without_truncation_ramps_between_fractions_of_a_pair():
    base, dim, factor, original = 150000.0, 64, 32.0, 4096  # gpt-oss
    yarn = scaling.YaRN(factor, original, truncate=False)
    ends = [
        dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (32.0, 1.0)
    ]
    pairs = torch.arange(32).double()
    kept = 1 - ((pairs - ends[0]) / (ends[1] - ends[0])).clamp(0, 1)
    plain = base ** -(pairs / 32)
    expected = plain * (kept + (1 - kept) / factor)
    torch.testing.assert_close(yarn.inv_freq(base, dim), expected)
    truncated = scaling.YaRN(factor, original).inv_freq(base, dim)
    assert int((truncated != expected).sum()) > 5


# attention-gym: slopes of head counts that are no power of two


@pytest.mark.parametrize("heads", [1, 3, 6, 12, 20, 40, 71])
def test_alibi_slopes_follow_the_authors_rule_for_any_number_of_heads(heads):
    def power_of_two(n):
        start = 2.0 ** (-(2.0 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    def authors(n):
        if math.log2(n).is_integer():
            return power_of_two(n)
        below = 2 ** math.floor(math.log2(n))
        return power_of_two(below) + authors(2 * below)[0::2][: n - below]

    slopes = ALiBi(heads).slopes_on(torch.device("cpu"), torch.float64)
    torch.testing.assert_close(slopes, torch.tensor(authors(heads), dtype=torch.float64))


# Liger: the input overwritten, positions accepted and ignored, no partial rotary


@pytest.mark.parametrize("dtype", [torch.float32, BF16], ids=str)
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rotation_leaves_its_input_bit_for_bit_and_shares_no_memory_with_it(layout, dtype):
    q, k = pair(9, dtype)
    before = q.clone(), k.clone()
    turned = RoPE(8, rotary_dim=4, layout=layout).rotate(q, k)
    torch.testing.assert_close((q, k), before, rtol=0.0, atol=0.0)
    for inputs, output in zip((q, k), turned, strict=True):
        assert inputs.untyped_storage().data_ptr() != output.untyped_storage().data_ptr()


def test_every_argument_of_rotate_changes_something():
    rope, (q, k) = RoPE(8, scaling=scaling.DynamicNTK(4.0, 4)), pair(6)
    plain = rope.rotate(q, k)
    moved_q = rope.rotate(q, k, torch.arange(6) + 3, torch.arange(6))
    assert not torch.allclose(moved_q[0], plain[0])
    moved_k = rope.rotate(q, k, torch.arange(6), torch.arange(6) + 3)
    assert not torch.allclose(moved_k[1], plain[1])
    longer = rope.rotate(q, k, lengths=60)
    assert not torch.allclose(longer[0], plain[0])


def test_every_argument_of_attention_changes_something():
    q, k, v = torch.randn(3, 1, 2, 6, 8)
    encoding, plain = RoPE(8), attention(q, k, v, RoPE(8))
    changes = [
        {"causal": True},
        {"window": 2},
        {"softcap": 0.5},
        {"scale": 2.0},
        {"dropout_p": 0.5},
        {"q_positions": torch.arange(6) * 2},
        {"q_positions": torch.arange(6), "k_positions": torch.arange(6) + 3},
        {"q_segment_ids": torch.tensor([[0, 0, 0, 1, 1, 1]])},
        {"key_padding_mask": torch.arange(6)[None] == 2},
    ]
    for change in changes:
        assert not torch.allclose(attention(q, k, v, encoding, **change), plain), change
    dynamic = RoPE(8, scaling=scaling.DynamicNTK(4.0, 4))
    assert not torch.allclose(attention(q, k, v, dynamic, lengths=60), attention(q, k, v, dynamic))


def test_partial_rotary_turns_the_first_channels_and_passes_the_rest():
    q, k = pair(9)
    turned, _ = RoPE(8, rotary_dim=4).rotate(q, k)
    torch.testing.assert_close(turned[..., 4:], q[..., 4:], rtol=0.0, atol=0.0)
    expected, _ = RoPE(4).rotate(q[..., :4], k[..., :4])
    torch.testing.assert_close(turned[..., :4], expected, rtol=0.0, atol=0.0)


# equinox: a table cached without the base in its key


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize(
    "options",
    [
        ({"base": 1e4}, {"base": 5e5}),
        ({"layout": "half"}, {"layout": "interleaved"}),
        ({"rotary_dim": 8}, {"rotary_dim": 4}),
        ({"scaling": scaling.Linear(2)}, {"scaling": scaling.Linear(4)}),
        ({"scaling": scaling.YaRN(4, 8)}, {"scaling": scaling.YaRN(4, 8, attention_factor=1.0)}),
        (
            {"scaling": scaling.LongRoPE((1, 1, 1, 1), (2, 2, 2, 2), 4)},
            {"scaling": scaling.LongRoPE((1, 1, 1, 1), (2, 2, 2, 3), 4)},
        ),
    ],
    ids=lambda options: str(options[1]),
)
def test_instances_that_differ_in_one_option_differ_in_both_orders(options, order):
    q, k = pair(9)
    results = {index: RoPE(8, **options[index]).rotate(q, k)[0] for index in order}
    assert not torch.allclose(results[0], results[1])
    torch.testing.assert_close(RoPE(8, **options[0]).rotate(q, k)[0], results[0], rtol=0.0, atol=0.0)


# torchtune: a table that does not grow as promised


def test_there_is_no_length_at_which_rope_stops():
    rope = ordinate.create("rope", head_dim=8, max_positions=16)
    q, k = pair(17)
    torch.testing.assert_close(
        rope.rotate(q, k)[0].double(), turned_exactly(rope, q, torch.arange(17)), rtol=0.0, atol=1e-6
    )


def test_a_learned_table_says_where_it_ends():
    with pytest.raises(ValueError, match=r"positions must be in 0 … 15 \(max_positions=16\), got 16"):
        ordinate.create("learned", d_model=8, max_positions=16).embed(torch.zeros(1, 17, 8))


# torchembed: no offset, no position ids, no scaling; a dense ALiBi buffer; bf16 in, fp32 out


@pytest.mark.parametrize("spec", ["rope", "alibi", "t5", "clipped", "shaw", "sinusoidal", "learned"])
def test_the_dtype_that_goes_in_comes_out(spec):
    encoding = ordinate.create(spec, d_model=16, num_heads=2, head_dim=8, max_positions=16)
    q, k, v = torch.randn(3, 1, 2, 6, 8).to(BF16)
    assert attention(q, k, v, encoding, causal=True).dtype == BF16
    assert all(t.dtype == BF16 for t in encoding.rotate(q, k))
    assert encoding.embed(torch.zeros(1, 6, 16, dtype=BF16)).dtype == BF16


def test_alibi_holds_no_matrix_and_its_description_grows_with_the_length_alone():
    alibi = ALiBi(8)
    assert not list(alibi.buffers())
    q = torch.empty(1, 8, 100_000, 1)
    held = sum(tensor.numel() for tensor in alibi.bias(q, q).tensors())
    assert held <= 2 * 100_000 + 8


# FlexAttention: no backward on the CPU for a learned bias


def test_a_learned_bias_has_its_gradient_on_the_cpu():
    t5 = T5Bias(2, num_buckets=8, max_distance=9).double()
    q, k, v = torch.randn(3, 1, 2, 20, 8, dtype=torch.float64)

    def attend(weight):
        return torch.func.functional_call(_Attends(t5), {"t5.weight": weight}, (q, k, v))

    assert torch.autograd.gradcheck(attend, t5.weight, fast_mode=True)
    out = attention(q, k, v, t5, causal=True)
    (grad,) = torch.autograd.grad(out.pow(2).sum(), t5.weight)
    assert bool((grad != 0).all())


class _Attends(torch.nn.Module):
    def __init__(self, t5):
        super().__init__()
        self.t5 = t5

    def forward(self, q, k, v):
        return attention(q, k, v, self.t5, causal=True, impl="chunked")


# MiniMind: where its YaRN is HF's and where it is not


def test_minimind_equals_hf_on_its_own_settings():
    mine = scaling.YaRN(16, 2048, attention_factor=1.0, dialect="minimind")
    hf = scaling.YaRN(16, 2048, attention_factor=1.0)
    torch.testing.assert_close(mine.inv_freq(1e6, 64), hf.inv_freq(1e6, 64), rtol=0.0, atol=0.0)


def test_minimind_clamps_its_ramp_to_the_last_pair_and_has_no_attention_factor():
    mine, hf = scaling.YaRN(4, 131072, dialect="minimind"), scaling.YaRN(4, 131072)
    assert mine.attention_factor == 1.0
    assert hf.attention_factor == pytest.approx(0.1 * math.log(4) + 1)
    # The slow end lies at pair 35 of 32: HF leaves the last pair part of its frequency, MiniMind none.
    last = 10000.0 ** -(31 / 32)
    assert mine.inv_freq(10000.0, 64)[-1].item() == pytest.approx(last / 4)
    assert hf.inv_freq(10000.0, 64)[-1].item() > 1.2 * last / 4


def test_scaling_acts_at_every_length_and_not_only_past_a_table():
    scaled, plain = RoPE(8, scaling=scaling.YaRN(4, 64, attention_factor=1.0)), RoPE(8)
    q, k = pair(5)
    assert not torch.allclose(scaled.rotate(q, k)[0], plain.rotate(q, k)[0])


# einops: a comparison whose result nobody looked at


def test_a_broken_implementation_is_noticed(monkeypatch):
    from ordinate.attending import cpu_block

    q, k, v = torch.randn(3, 1, 2, 40, 8)
    expected = attention(q, k, v, ALiBi(2), causal=True, impl="reference")
    torch.testing.assert_close(attention(q, k, v, ALiBi(2), causal=True, impl="chunked"), expected)
    right = cpu_block._mask_view
    monkeypatch.setattr(cpu_block, "_mask_view", lambda *args: right(*args) * 0.5)  # half the slopes
    with pytest.raises(AssertionError, match="not close"):
        torch.testing.assert_close(attention(q, k, v, ALiBi(2), causal=True, impl="chunked"), expected)
