"""One answer however a sequence arrives: whole, prefilled and decoded, packed or padded."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import ordinate
from ordinate import KVCache, MultiHeadAttention

from .cases import Case, cases, causal_only

LENGTHS = (9, 5, 13)  # of the sequences; dynamic scalings are trained for 8


def _layer(case: Case, causal: bool = True) -> MultiHeadAttention:
    encoding = case.build()
    torch.manual_seed(4)
    layer = MultiHeadAttention(case.d_model, case.num_heads, 2, encoding, causal=causal)
    return layer.double()


def _positions(case: Case, *rows: Tensor) -> Tensor:
    return case.positions(torch.stack(rows))


def _gradients(layer: MultiHeadAttention, out: Tensor, x: Tensor) -> list[Tensor]:
    """Of a fixed weighting of the outputs, with respect to the input and every parameter."""
    torch.manual_seed(5)
    weights = torch.randn(out.shape[1:], dtype=out.dtype)
    leaves = [x, *layer.parameters()]
    grads = torch.autograd.grad((out * weights).sum(), leaves, allow_unused=True)
    return [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, grads, strict=True)]


def _assert_same(layer, x, actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-11)
    pairs = zip(_gradients(layer, actual, x), _gradients(layer, expected, x), strict=True)
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def _run(layer, x, positions, **options) -> Tensor:
    """Embedding and layer; an encoding's `embed` comes before the first layer."""
    return layer(layer.encoding.embed(x, positions), positions, **options)


def _whole(case: Case, layer, x: Tensor, length: int | None = None) -> Tensor:
    positions = _positions(case, torch.arange(x.shape[1]))
    return _run(layer, x, positions, lengths=x.shape[1] if length is None else length)


@cases()
@pytest.mark.parametrize("prefill", [0, 6], ids=["from-nothing", "after-prefill"])
def test_full_pass_equals_prefill_and_single_steps(case: Case, prefill: int):
    layer, length = _layer(case), 11
    x = case.x(length, torch.float64).requires_grad_()
    positions, cache, parts = _positions(case, torch.arange(length)), KVCache(), []
    steps = [slice(0, prefill)] if prefill else []
    steps += [slice(i, i + 1) for i in range(prefill, length)]
    for step in steps:
        parts.append(_run(layer, x[:, step], positions[..., step], cache=cache, lengths=length))
    assert len(cache) == length
    _assert_same(layer, x, torch.cat(parts, dim=1), _whole(case, layer, x))


@cases(only=lambda case: case.axes == 1)
def test_a_cache_counts_positions_by_itself(case: Case):
    layer, length = _layer(case), 7
    x = case.x(length, torch.float64)
    cache = KVCache()
    embedded = layer.encoding.embed(x)
    steps = [layer(embedded[:, i : i + 1], cache=cache, lengths=length) for i in range(length)]
    torch.testing.assert_close(torch.cat(steps, dim=1), layer(embedded), rtol=1e-11, atol=1e-11)


@cases()
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
def test_packed_sequences_equal_separate_ones(case: Case, causal: bool):
    if not causal and causal_only(case):
        causal = True  # such a bias is refused otherwise, see test_oracle
    layer = _layer(case, causal)
    x = case.x(sum(LENGTHS), torch.float64, batch=1).requires_grad_()
    separate = torch.cat([_whole(case, layer, part) for part in x.split(LENGTHS, dim=1)], dim=1)
    token_lengths = torch.repeat_interleave(torch.tensor(LENGTHS), torch.tensor(LENGTHS))[None]
    packed = _run(
        layer, x, _positions(case, ordinate.positions.packed(LENGTHS)), lengths=token_lengths,
        segment_ids=ordinate.positions.segment_ids(LENGTHS)[None],
    )  # fmt: skip
    _assert_same(layer, x, packed, separate)


@cases()
@pytest.mark.parametrize("impl", ["reference", "chunked"])
def test_attention_varlen_equals_separate_calls(case: Case, impl: str):
    encoding = case.build().double()
    q, k, v = (t.transpose(1, 2)[0] for t in case.qkv(sum(LENGTHS), torch.float64, batch=1))
    starts = torch.tensor([0, 9, 14, 27])
    packed = _positions(case, ordinate.positions.packed(LENGTHS))
    packed = packed if case.axes > 1 else packed[0]
    out = ordinate.attention_varlen(
        q,
        k,
        v,
        starts,
        encoding=encoding,
        causal=True,
        impl=impl,
        q_positions=packed,
        k_positions=packed,
    )
    for length, begin, end in zip(LENGTHS, starts[:-1], starts[1:], strict=True):
        one = [t[begin:end].transpose(0, 1)[None] for t in (q, k, v)]
        positions = _positions(case, torch.arange(length))
        alone = ordinate.attention(
            *one, encoding, causal=True, impl=impl, q_positions=positions, k_positions=positions
        )
        torch.testing.assert_close(out[begin:end], alone[0].transpose(0, 1), rtol=1e-11, atol=1e-11)


@cases()
def test_left_padded_rows_equal_separate_ones(case: Case):
    layer, longest = _layer(case), max(LENGTHS)
    x = case.x(longest, torch.float64, batch=3).requires_grad_()
    padding = torch.tensor([[i < longest - n for i in range(longest)] for n in LENGTHS])
    positions = case.positions(ordinate.positions.left_padded(~padding))
    padded = _run(layer, x, positions, key_padding_mask=padding, lengths=torch.tensor(LENGTHS))
    kept = torch.cat([row[longest - n :] for row, n in zip(padded, LENGTHS, strict=True)])[None]
    alone = [_whole(case, layer, x[b : b + 1, longest - n :]) for b, n in enumerate(LENGTHS)]
    _assert_same(layer, x, kept, torch.cat(alone, dim=1))


@cases()
def test_a_left_padded_batch_decodes_as_its_rows_do(case: Case):
    """Padding, cache and positions at once: what generation of a batch does."""
    layer, prompt, new = _layer(case), 6, 3
    lengths = torch.tensor([4, 6])
    x = case.x(prompt + new, torch.float64)
    padding = torch.tensor([[True, True] + [False] * 4, [False] * 6])
    plain = torch.cat(
        (ordinate.positions.left_padded(~padding), lengths[:, None] + torch.arange(new)), 1
    )
    positions, cache, finals = case.positions(plain), KVCache(), lengths + new
    _run(
        layer,
        x[:, :prompt],
        positions[..., :prompt],
        cache=cache,
        key_padding_mask=padding,
        lengths=finals,
    )
    steps = [
        _run(layer, x[:, i : i + 1], positions[..., i : i + 1], cache=cache, lengths=finals)
        for i in range(prompt, prompt + new)
    ]
    for b, skipped in enumerate((2, 0)):
        alone = _whole(case, layer, x[b : b + 1, skipped:])
        torch.testing.assert_close(
            torch.cat(steps, dim=1)[b : b + 1], alone[:, -new:], rtol=1e-11, atol=1e-11
        )


@cases()
def test_a_prefix_does_not_see_what_follows(case: Case):
    layer = _layer(case)
    x = case.x(12, torch.float64)
    whole = _whole(case, layer, x)
    prefix = _whole(case, layer, x[:, :7], length=12)
    torch.testing.assert_close(prefix, whole[:, :7], rtol=1e-11, atol=1e-11)
