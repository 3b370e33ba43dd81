"""MultiHeadAttention: the layers of the documents, and decoding that equals the full pass."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import ordinate
from ordinate import KVCache, MultiHeadAttention, scaling

D_MODEL, HEADS, HEAD_DIM = 32, 4, 8

ENCODINGS = {
    "none": ordinate.NoPE,
    "rope": lambda: ordinate.RoPE(HEAD_DIM),
    "rope_interleaved_partial": lambda: ordinate.RoPE(HEAD_DIM, rotary_dim=4, layout="interleaved"),
    "yarn_deepseek": lambda: ordinate.RoPE(
        HEAD_DIM, scaling=scaling.YaRN(4, 8, mscale=1.0, mscale_all_dim=0.7)
    ),
    "mrope": lambda: ordinate.RoPE(HEAD_DIM, sections=(2, 1, 1)),
    "alibi": lambda: ordinate.ALiBi(HEADS),
    "clipped": lambda: ordinate.ClippedBias(HEADS, 3),
    "t5": lambda: ordinate.T5Bias(HEADS, num_buckets=8, max_distance=9),
    "shaw": lambda: ordinate.Shaw(HEAD_DIM, 3, values=True),
    "rope+alibi+t5": lambda: ordinate.Combined(
        ordinate.RoPE(HEAD_DIM), ordinate.ALiBi(HEADS), ordinate.T5Bias(HEADS)
    ),
}
LENGTH_DEPENDENT = {
    "dynamic": lambda: ordinate.RoPE(HEAD_DIM, scaling=scaling.DynamicNTK(4.0, 5)),
    "longrope": lambda: ordinate.RoPE(
        HEAD_DIM, scaling=scaling.LongRoPE((1, 1, 2, 2), (3, 4, 5, 6), 6, factor=4.0)
    ),
    "dynamic+alibi": lambda: ordinate.Combined(
        ordinate.RoPE(HEAD_DIM, scaling=scaling.DynamicNTK(4.0, 5)), ordinate.ALiBi(HEADS)
    ),
}


def layer_with(encoding, **options) -> MultiHeadAttention:
    options = {"num_kv_heads": 2} | options
    return MultiHeadAttention(D_MODEL, HEADS, encoding=encoding, **options).double()


def inputs(length: int = 11, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, length, D_MODEL, dtype=torch.float64)


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("chunks", [[1] * 11, [6, 1, 1, 3], [11]], ids=str)
@pytest.mark.parametrize("name", list(ENCODINGS))
def test_decoding_equals_the_full_pass(name, chunks, window):
    layer, x, cache = layer_with(ENCODINGS[name](), window=window), inputs(), KVCache()
    steps = [layer(part, cache=cache) for part in x.split(chunks, dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), layer(x))
    assert len(cache) == 11


@pytest.mark.parametrize("name", list(LENGTH_DEPENDENT))
def test_decoding_with_a_known_length_equals_the_full_pass_at_that_length(name):
    layer, x, cache = layer_with(LENGTH_DEPENDENT[name]()), inputs(), KVCache()
    steps = [layer(part, cache=cache, lengths=11) for part in x.split([4, 1, 1, 5], dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), layer(x, lengths=11))


@pytest.mark.parametrize("name", list(LENGTH_DEPENDENT))
def test_each_decoded_token_equals_the_last_of_a_full_pass_of_what_there_is(name):
    layer, x, cache = layer_with(LENGTH_DEPENDENT[name]()), inputs(), KVCache()
    for end in range(1, 12):  # the length at which the frequencies change lies within
        step = layer(x[:, end - 1 : end], cache=cache)
        torch.testing.assert_close(step, layer(x[:, :end])[:, -1:])


@pytest.mark.parametrize("name", [*ENCODINGS, *LENGTH_DEPENDENT])
def test_left_padding_with_a_cache_equals_each_row_alone(name):
    layer = layer_with((ENCODINGS | LENGTH_DEPENDENT)[name]())
    x, padded = inputs(9), torch.tensor([0, 4])
    is_token = torch.arange(9) >= padded[:, None]
    positions, cache = ordinate.positions.left_padded(is_token), KVCache()
    parts = zip(*(t.split([6, 1, 2], dim=1) for t in (x, positions, ~is_token)), strict=True)
    steps = [layer(t, where, cache=cache, key_padding_mask=pad) for t, where, pad in parts]
    together = torch.cat(steps, dim=1)
    for row, count in enumerate(padded.tolist()):
        alone, alone_cache = x[row : row + 1, count:], KVCache()
        lengths = [6 - count, 1, 2]
        expected = [layer(part, cache=alone_cache) for part in alone.split(lengths, dim=1)]
        torch.testing.assert_close(together[row : row + 1, count:], torch.cat(expected, dim=1))


def test_rows_without_padding_may_be_followed_by_rows_with_some():
    layer, x, cache = layer_with(ordinate.RoPE(HEAD_DIM)), inputs(6), KVCache()
    layer(x[:, :4], cache=cache)
    ignored = torch.tensor([[True], [False]])
    layer(x[:, 4:5], cache=cache, key_padding_mask=ignored)
    last = layer(x[:, 5:], cache=cache)
    without = torch.arange(6) != 4
    expected = layer(x[:1, without], torch.arange(6)[without])[:, -1:]
    torch.testing.assert_close(last[:1], expected)
    torch.testing.assert_close(last[1:], layer(x[1:])[:, -1:])


def test_a_grouped_layer_is_a_full_layer_with_its_key_heads_repeated():
    # Query heads share a key head; RoPE turns q and k and never v.
    rope, x = ordinate.RoPE(HEAD_DIM), inputs()
    grouped, full = layer_with(rope), layer_with(rope, num_kv_heads=HEADS)
    full.load_state_dict(
        {
            name: weight.unflatten(0, (2, HEAD_DIM)).repeat_interleave(2, dim=0).flatten(0, 1)
            if name.startswith(("k_proj", "v_proj"))
            else weight
            for name, weight in grouped.state_dict().items()
        }
    )
    torch.testing.assert_close(grouped(x), full(x))


def test_a_grouped_layer_with_complex_rope_written_out():
    layer, x = layer_with(ordinate.RoPE(HEAD_DIM, base=1e6, layout="interleaved")), inputs()
    q = layer.q_proj(x).view(2, 11, HEADS, HEAD_DIM)
    k, v = (p(x).view(2, 11, 2, HEAD_DIM) for p in (layer.k_proj, layer.v_proj))
    angles = torch.outer(torch.arange(11.0).double(), 1e6 ** -(torch.arange(0.0, 8, 2).double() / 8))
    turn = torch.polar(torch.ones_like(angles), angles)[:, None]

    def rotated(t):
        return torch.view_as_real(torch.view_as_complex(t.unflatten(-1, (-1, 2))) * turn).flatten(-2)

    q, k, v = (t.transpose(1, 2) for t in (rotated(q), rotated(k), v))
    k, v = k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)
    scores = q @ k.transpose(-2, -1) / HEAD_DIM**0.5
    scores = scores.masked_fill(torch.ones(11, 11).triu(1).bool(), -torch.inf)
    out = (scores.softmax(-1) @ v).transpose(1, 2).reshape(2, 11, D_MODEL)
    torch.testing.assert_close(layer(x), layer.o_proj(out))


def test_the_shaw_layer_of_document_003_written_out():
    shaw = ordinate.Shaw(HEAD_DIM, 3, values=True)
    layer, x = layer_with(shaw, num_kv_heads=HEADS, causal=False), inputs(7)
    q, k, v = (
        p(x).view(2, 7, HEADS, HEAD_DIM).transpose(1, 2)
        for p in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    rows = torch.tensor([[max(-3, min(3, j - i)) + 3 for j in range(7)] for i in range(7)])
    scores = (
        q @ k.transpose(-2, -1) + torch.einsum("bhid,ijd->bhij", q, shaw.keys[rows])
    ) / HEAD_DIM**0.5
    weights = scores.softmax(-1)
    out = weights @ v + torch.einsum("bhij,ijd->bhid", weights, shaw.values[rows])
    torch.testing.assert_close(layer(x), layer.o_proj(out.transpose(1, 2).flatten(2)))


def test_the_t5_layer_of_document_003_with_its_scale_of_one():
    t5 = ordinate.T5Bias(HEADS, bidirectional=True)
    layer, x = layer_with(t5, num_kv_heads=HEADS, causal=False, scale=1.0), inputs(7)
    q, k, v = (
        p(x).view(2, 7, HEADS, HEAD_DIM).transpose(1, 2)
        for p in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    # Closer than 8, every distance has a bucket of its own; keys to the right have the upper half.
    buckets = torch.tensor([[i - j if j <= i else 16 + j - i for j in range(7)] for i in range(7)])
    scores = q @ k.transpose(-2, -1) + t5.weight[buckets].permute(2, 0, 1)
    out = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(layer(x), layer.o_proj(out))


def test_deepseeks_factor_on_the_softmax_scale_acts_with_and_without_a_cache():
    rope = ordinate.RoPE(HEAD_DIM, scaling=scaling.YaRN(4, 8, mscale=1.0, mscale_all_dim=1.0))
    assert rope.logit_factor > 1.2
    layer, x = layer_with(rope), inputs(5)
    explicit = layer_with(rope, scale=rope.logit_factor / HEAD_DIM**0.5)
    explicit.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(x), explicit(x))
    torch.testing.assert_close(layer(x, cache=KVCache()), explicit(x))


def test_packed_sequences_in_a_layer_do_not_see_each_other():
    layer, x = layer_with(ordinate.RoPE(HEAD_DIM)), inputs(7)
    together = layer(
        x, ordinate.positions.packed([3, 4]), segment_ids=ordinate.positions.segment_ids([3, 4])[None]
    )
    torch.testing.assert_close(together, torch.cat([layer(x[:, :3]), layer(x[:, 3:])], dim=1))


def test_dropout_acts_in_training_only():
    layer, x = layer_with(ordinate.RoPE(HEAD_DIM), dropout_p=0.5), inputs()
    assert not torch.allclose(layer(x), layer(x))
    layer.eval()
    torch.testing.assert_close(layer(x), layer(x), rtol=0.0, atol=0.0)


@pytest.mark.parametrize("name", ["rope", "alibi", "t5", "shaw"])
def test_autocast_computes_attention_in_float32_and_returns_bfloat16(name):
    layer, x = layer_with(ENCODINGS[name]()).float(), inputs().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = layer(x)
    assert half.dtype == torch.bfloat16
    low = layer_with(ENCODINGS[name]()).to(torch.bfloat16)
    low.load_state_dict(layer.state_dict())
    exact, plain = layer(x).detach().double(), low(x.bfloat16()).detach().double()
    budget = 2 * (plain - exact).abs().max() + torch.finfo(torch.bfloat16).eps * exact.abs().max()
    torch.testing.assert_close(half.detach().double(), exact, atol=float(budget), rtol=0.0)


def test_only_parameters_are_saved():
    layer = layer_with(ordinate.Combined(ordinate.RoPE(HEAD_DIM), ordinate.T5Bias(HEADS)))
    names = {name for name, _ in layer.named_parameters()}
    assert set(layer.state_dict()) == names


def test_a_refused_call_leaves_the_cache_as_it_was():
    layer = ordinate.MultiHeadAttention(16, 2, encoding=ordinate.ALiBi(2), causal=False)
    cache = ordinate.KVCache()
    with pytest.raises(ValueError, match="causal must be True"):
        layer(torch.randn(1, 3, 16), cache=cache)
    assert len(cache) == 0
    assert cache.positions is None


class _KeySide(ordinate.PositionEncoding):
    """Position-to-content: keys look at a vector for each distance."""

    reads_keys = True

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(1, 7, 8))

    def bias(self, q, k, q_positions=None, k_positions=None, *, x=None):
        places = ordinate.positions.resolve(q, k, q_positions, k_positions)
        features = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        return ordinate.RowBias(features, self.table, places, lo=-3, side="key")


class _Gates(ordinate.PositionEncoding):
    """Forget gates read from the layer's input, added up along the keys."""

    reads_input = True

    def __init__(self):
        super().__init__()
        self.gate = torch.nn.Linear(16, 2)

    def bias(self, q, k, q_positions=None, k_positions=None, *, x=None):
        kept = torch.nn.functional.logsigmoid(self.gate(x)).transpose(1, 2)
        return ordinate.KeyBias(-kept.cumsum(-1))


@pytest.mark.parametrize("bias", [_KeySide, _Gates])
def test_a_bias_that_reads_keys_or_inputs_decodes_as_it_prefills(bias):
    encoding = ordinate.Combined(ordinate.RoPE(8), bias())
    layer = ordinate.MultiHeadAttention(16, 2, encoding=encoding).double()
    x, cache = torch.randn(2, 6, 16, dtype=torch.float64), ordinate.KVCache()
    steps = [layer(x[:, :2], cache=cache)]
    steps += [layer(x[:, i : i + 1], cache=cache) for i in range(2, 6)]
    torch.testing.assert_close(torch.cat(steps, dim=1), layer(x))


def test_plain_positions_follow_several_axes_in_a_cache():
    layer = ordinate.MultiHeadAttention(16, 2, encoding=ordinate.RoPE(8, sections=(2, 1, 1))).double()
    x, cache = torch.randn(1, 7, 16, dtype=torch.float64), ordinate.KVCache()
    image = ordinate.positions.grid(1, 2, 3)
    steps = [layer(x[:, :6], image, cache=cache), layer(x[:, 6:], torch.tensor([3]), cache=cache)]
    positions = torch.cat((image, torch.full((3, 1, 1), 3)), dim=-1)
    torch.testing.assert_close(torch.cat(steps, dim=1), layer(x, positions))


def test_torch_func_sees_through_a_rotation():
    rope, x = ordinate.RoPE(8), torch.randn(1, 2, 5, 8, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(rope.rotate(x, x)[0].sin().sum(), x)
    torch.testing.assert_close(torch.func.grad(lambda q: rope.rotate(q, q)[0].sin().sum())(x), expected)


def test_a_class_made_again_under_its_name_is_another_class():
    def make(sign):
        @dataclasses.dataclass(frozen=True, eq=False)
        class Signed(ordinate.KeyBias):
            def dense(self):
                return sign * self.vector[:, :, None]

        return Signed

    first = make(1.0)(torch.tensor([[[3.0]]]))
    make(-1.0)
    rebuilt = ordinate.Bias.rebuild(*first.flattened())
    torch.testing.assert_close(rebuilt.dense(), first.dense())


def test_a_line_and_a_table_far_out_stay_as_small_as_they_are():
    both = ordinate.Combined(ordinate.ALiBi(2), ordinate.T5Bias(2))
    q, k = torch.randn(1, 2, 1, 8), torch.randn(1, 2, 4, 8)
    bias = both.bias(q, k, torch.tensor([2**40]), torch.arange(4) + 2**40 - 3)
    assert sum(tensor.numel() for tensor in bias.tensors()) < 1000
