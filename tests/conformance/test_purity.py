"""A call leaves no trace: not in its inputs, not in the module, not in the rest of the batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import ordinate

from .cases import DTYPES, Case, cases, dtypes

NEAR, LONG = 7, 30  # below and above the length the dynamic scalings are made for


def _call(case: Case, encoding, dtype: torch.dtype, length: int = NEAR) -> list[Tensor]:
    """Everything an encoding does to one set of inputs."""
    x, (q, k, v) = case.x(length, dtype), case.qkv(length, dtype)
    positions = case.positions(torch.arange(length).expand(2, -1))
    results = [encoding.embed(x, positions if case.axes == 1 else None)]
    results += encoding.rotate(q, k, positions, positions)
    results.append(
        ordinate.attention(q, k, v, encoding, causal=True, q_positions=positions, k_positions=positions)
    )
    return [result.detach().clone() for result in results]


def _assert_equal(first: list[Tensor], second: list[Tensor]) -> None:
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@cases()
@dtypes()
def test_inputs_are_left_bit_for_bit(case: Case, dtype: torch.dtype):
    encoding = case.build()
    x, (q, k, v) = case.x(NEAR, dtype), case.qkv(NEAR, dtype)
    positions = case.positions(torch.arange(NEAR).expand(2, -1).clone())
    inputs = [x, q, k, v, positions]
    before = [tensor.clone() for tensor in inputs]
    embedded = encoding.embed(x, positions if case.axes == 1 else None)
    turned = encoding.rotate(q, k, positions, positions)
    ordinate.attention(q, k, v, encoding, causal=True, q_positions=positions, k_positions=positions)
    _assert_equal(inputs, before)
    if case.hooks:  # nor do results share memory with what was given
        for result in (embedded, *turned):
            result.detach().fill_(
                7.0
            ) if result is not x and result is not q and result is not k else None
        _assert_equal(inputs, before)


@cases()
@dtypes()
def test_the_second_call_equals_the_first(case: Case, dtype: torch.dtype):
    encoding = case.build()
    _assert_equal(_call(case, encoding, dtype), _call(case, encoding, dtype))


@cases()
@pytest.mark.parametrize("length", [NEAR, LONG], ids=["short", "long"])
def test_what_was_called_before_changes_nothing(case: Case, length: int):
    """Other dtypes and other lengths first, in both orders, against a module that has seen nothing."""
    for order in (DTYPES, DTYPES[::-1]):
        used = case.build()
        for dtype in order:
            _call(case, used, dtype, LONG)
            _call(case, used, dtype, NEAR)
        for dtype in DTYPES:
            _assert_equal(_call(case, used, dtype, length), _call(case, case.build(), dtype, length))


@cases()
def test_calls_in_inference_mode_do_not_poison_training(case: Case):
    encoding = case.build()
    with torch.inference_mode():
        _call(case, encoding, torch.float32)
    q, k, v = (t.requires_grad_() for t in case.qkv(NEAR, torch.float32))
    out = ordinate.attention(q, k, v, encoding, causal=True, impl="reference")
    torch.autograd.grad(out.sum(), (q, k, v))


@cases()
@dtypes(torch.float32, torch.bfloat16)
def test_neighbours_in_the_batch_change_nothing(case: Case, dtype: torch.dtype):
    """A short row beside a long one: dynamic NTK and LongRoPE are chosen row by row."""
    encoding = case.build().requires_grad_(False)
    q, k, _ = case.qkv(NEAR, dtype)
    x = case.x(NEAR, dtype)
    rows = torch.stack((torch.arange(NEAR), torch.arange(NEAR) + LONG))
    positions = case.positions(rows)
    together = encoding.rotate(q, k, positions, positions)
    embedded = encoding.embed(x, rows)
    for b in range(2):
        one = case.positions(rows[b : b + 1])
        alone = encoding.rotate(q[b : b + 1], k[b : b + 1], one, one)
        _assert_equal([tensor[b : b + 1] for tensor in together], list(alone))
        _assert_equal([embedded[b : b + 1]], [encoding.embed(x[b : b + 1], rows[b : b + 1])])
        bias = encoding.bias(q, k, rows, rows) if case.axes == 1 else None
        if bias is not None:
            own = encoding.bias(q[b : b + 1], k[b : b + 1], rows[b : b + 1], rows[b : b + 1])
            parts = zip(getattr(bias, "parts", (bias,)), getattr(own, "parts", (own,)), strict=True)
            for whole, part in parts:
                dense = whole.dense()
                dense = dense[b : b + 1] if dense.shape[0] > 1 else dense
                # RowBias projects by a matrix product, whose summation order may follow the batch.
                tolerance = 1e-6 if isinstance(part, ordinate.RowBias) else 0.0
                torch.testing.assert_close(part.dense(), dense, rtol=0, atol=tolerance)


@cases("rotate", only=lambda case: case.build().length_dependent)
def test_a_longer_row_would_have_changed_a_shared_table(case: Case):
    """The test above is not vacuous: at the long row's length the short row turns differently."""
    if case.id.endswith("short"):
        return  # both rows are short of its 4096
    encoding, (q, k, _) = case.build(), case.qkv(NEAR, torch.float32)
    own, _ = encoding.rotate(q, k)
    shared, _ = encoding.rotate(q, k, lengths=LONG + NEAR)
    assert not torch.equal(own, shared)


@cases("rotate")
@dtypes()
def test_memory_layout_does_not_matter(case: Case, dtype: torch.dtype):
    """[batch, seq, heads, head_dim] seen through a transpose, as models hold it."""
    encoding, (q, k, _) = case.build(), case.qkv(NEAR, dtype)
    strided = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k)]
    assert not strided[0].is_contiguous()
    _assert_equal(list(encoding.rotate(*strided)), list(encoding.rotate(q, k)))
