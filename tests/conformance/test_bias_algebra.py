"""The questions a bias answers agree with its dense form, for any shape and any positions."""

from __future__ import annotations

import dataclasses

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ordinate import Bias, DistanceBias, KeyBias, LinearBias, RowBias, SumBias
from ordinate.positions import Places

HEADS = 3


@st.composite
def _positions(draw, batch: int, length: int):
    """Consecutive (as diagonals need), or any: negative, repeated, far apart."""
    rows = draw(st.sampled_from([1, batch]))
    far = st.integers(-(2**20), 2**20)
    if draw(st.booleans()):
        return [[start + i for i in range(length)] for start in [draw(far) for _ in range(rows)]]
    near_or_far = st.one_of(st.integers(-6, 6), far)
    return [draw(st.lists(near_or_far, min_size=length, max_size=length)) for _ in range(rows)]


@st.composite
def _single(draw, batch: int, q_len: int, k_len: int, scaled: bool):
    """How to make one bias. Numbers are drawn, objects made later: shape checks use `random`, which
    Hypothesis forbids while it draws."""
    kind = draw(st.sampled_from(["linear", "distance", "key", "row"]))
    rows, table_heads = draw(st.sampled_from([1, batch])), draw(st.sampled_from([1, HEADS]))
    q, k = draw(_positions(batch, q_len)), draw(_positions(batch, k_len))
    if q_len == k_len and draw(st.booleans()):
        k = q
    symmetric, size, lo = draw(st.booleans()), draw(st.integers(1, 9)), draw(st.integers(-8, 3))
    side = draw(st.sampled_from(["query", "key"]))

    def make() -> Bias:
        where = Places.at(torch.tensor(q), torch.tensor(k))
        if kind == "key":
            return KeyBias(_random(rows, HEADS, k_len), scaled)
        if kind == "linear":
            return LinearBias(_random(HEADS), where, symmetric, scaled)
        if kind == "distance":
            return DistanceBias(_random(HEADS, size), where, lo, scaled)
        features = _random(rows, HEADS, q_len if side == "query" else k_len, 4)
        return RowBias(features, _random(table_heads, size, 4), where, lo, side, scaled)

    return make


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


@st.composite
def _pairs(draw):
    """Two biases of one shape, both scaled or both not."""
    seed, scaled = draw(st.integers(0, 2**16)), draw(st.booleans())
    shape = draw(st.tuples(st.integers(1, 3), st.integers(1, 7), st.integers(1, 7)))
    makers = [draw(_single(*shape, scaled)) for _ in range(2)]

    def make():
        torch.manual_seed(seed)
        return makers[0](), makers[1](), *shape

    return make


@st.composite
def _biases(draw):
    pair, both = draw(_pairs()), draw(st.booleans())

    def make():
        first, second, *shape = pair()
        return SumBias((first, second)) if both else first, *shape

    return make


def _dense(bias: Bias, batch: int, q_len: int, k_len: int) -> torch.Tensor:
    return bias.dense().expand(batch, HEADS, q_len, k_len)


def _slices(data, length: int) -> slice:
    start = data.draw(st.integers(0, length - 1))
    return slice(start, data.draw(st.integers(start + 1, length)))


@given(_biases(), st.data())
@settings(max_examples=60)
def test_a_block_is_that_block_of_the_dense_form(drawn, data):
    bias, batch, q_len, k_len = drawn()
    q, k = _slices(data, q_len), _slices(data, k_len)
    block = _dense(bias.block(q, k), batch, q.stop - q.start, k.stop - k.start)
    torch.testing.assert_close(
        block, _dense(bias, batch, q_len, k_len)[:, :, q, k], rtol=1e-13, atol=1e-13
    )


@given(_biases())
@settings(max_examples=60)
def test_diagonals_spread_to_the_dense_form(drawn):
    bias, batch, q_len, k_len = drawn()
    for part in getattr(bias, "parts", (bias,)):
        diagonals = part.diagonals()
        if diagonals is None:
            continue
        assert diagonals.shape[1:] == (HEADS, q_len + k_len - 1)
        index = (q_len - 1 - torch.arange(q_len))[:, None] + torch.arange(k_len)
        spread = diagonals[..., index].expand(batch, -1, -1, -1)
        torch.testing.assert_close(spread, _dense(part, batch, q_len, k_len), rtol=0, atol=0)


def test_consecutive_positions_have_diagonals_and_others_do_not():
    """Otherwise the test above could pass by never looking."""
    table, there = torch.randn(HEADS, 5), torch.arange(6)[None]
    gap = there + (there > 2)
    assert DistanceBias(table, Places.at(there + 4, there), lo=-2).diagonals() is not None
    assert DistanceBias(table, Places.at(gap, there), lo=-2).diagonals() is None
    assert DistanceBias(table, Places.at(there, gap), lo=-2).diagonals() is None


@given(_biases())
@settings(max_examples=60)
def test_pullback_is_the_gradient_of_the_dense_form(drawn):
    bias, batch, q_len, k_len = drawn()
    grad = torch.randn(batch, HEADS, q_len, k_len, dtype=torch.float64)
    tensors = [t.clone().requires_grad_() if t.is_floating_point() else t for t in bias.tensors()]
    dense = _dense(Bias.rebuild(tensors, *bias.flattened()[1:]), batch, q_len, k_len)
    floats = [tensor for tensor in tensors if tensor.is_floating_point()]
    expected = iter(torch.autograd.grad(dense, floats, grad, allow_unused=True))
    shares = bias.pullback(grad)
    assert len(shares) == len(tensors)
    for tensor, share in zip(tensors, shares, strict=True):
        if not tensor.is_floating_point():
            assert share is None
            continue
        # Sums over up to 2^20 times a slope's gradient: relative to the largest term.
        torch.testing.assert_close(share, next(expected), rtol=1e-10, atol=1e-8)


@given(_biases())
@settings(max_examples=40)
def test_tensors_integers_and_text_rebuild_the_same_bias(drawn):
    bias, *shape = drawn()
    again = Bias.rebuild(*bias.flattened())
    assert type(again) is type(bias)
    assert again.flattened()[1:] == bias.flattened()[1:]
    assert (again.scaled, again.causal_only) == (bias.scaled, bias.causal_only)
    torch.testing.assert_close(_dense(again, *shape), _dense(bias, *shape), rtol=0, atol=0)


@given(_biases())
@settings(max_examples=60)
def test_score_mod_is_the_dense_form_point_by_point(drawn):
    bias, batch, q_len, k_len = drawn()
    scale = 0.25
    b, h, q, k = torch.meshgrid(*(torch.arange(n) for n in (batch, HEADS, q_len, k_len)), indexing="ij")
    score = torch.randn(batch, HEADS, q_len, k_len, dtype=torch.float64)
    expected = score + _dense(bias, batch, q_len, k_len) * (scale if bias.scaled else 1.0)
    found = bias.score_mod(scale)(score, b, h, q, k)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@given(_pairs())
@settings(max_examples=60)
def test_a_sum_is_the_sum_of_the_dense_forms(drawn):
    one, other, *shape = drawn()
    for first, second in ((one, other), (one, one)):  # of equal positions, some merge into one
        if isinstance(first, LinearBias) != isinstance(second, LinearBias):
            continue  # a line and a table merge into a table as long as the distances are: 2^20 here
        total = first + second
        torch.testing.assert_close(
            _dense(total, *shape), _dense(first, *shape) + _dense(second, *shape), rtol=1e-12, atol=1e-9
        )
        assert total.causal_only == (first.causal_only or second.causal_only)


def test_a_line_and_a_table_merge_into_one_table_where_positions_were_left_out():
    explicit = Places.at(torch.arange(4, 9), torch.arange(9))
    line, table = LinearBias(_random(HEADS), explicit), DistanceBias(_random(HEADS, 4), explicit, lo=-1)
    expected = line.dense() + table.dense()
    in_order = Places.in_order(5, 9)
    total = dataclasses.replace(line, places=in_order) + dataclasses.replace(table, places=in_order)
    assert isinstance(total, DistanceBias)
    assert total.causal_only
    torch.testing.assert_close(total.dense(), expected, rtol=1e-13, atol=1e-13)
    apart = line + table  # explicit positions may reach anywhere, and a table as far would be as long
    assert isinstance(apart, SumBias)
    torch.testing.assert_close(apart.dense(), expected, rtol=1e-13, atol=1e-13)
