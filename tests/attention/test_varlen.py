"""Packed sequences give what each sequence gives by itself."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import pytest
import torch
from torch.overrides import TorchFunctionMode

import ordinate
from ordinate import scaling
from ordinate.positions import Places

ENCODINGS = {
    "none": ordinate.NoPE,
    "rope": lambda: ordinate.RoPE(8),
    "dynamic": lambda: ordinate.RoPE(8, scaling=scaling.DynamicNTK(4.0, 5)),
    "longrope": lambda: ordinate.RoPE(8, scaling=scaling.LongRoPE((1, 1, 2, 2), (3, 4, 5, 6), 6)),
    "alibi": lambda: ordinate.ALiBi(4, trainable=True),
    "t5": lambda: ordinate.T5Bias(4, num_buckets=8, max_distance=9),
    "shaw": lambda: ordinate.Shaw(8, 3, values=True),
    "rope+alibi": lambda: ordinate.Combined(ordinate.RoPE(8), ordinate.ALiBi(4)),
}
LENGTHS = {
    "the_same_tokens": ([3, 7, 1], None),
    "equal": ([3, 7, 1], [3, 7, 1]),
    "empty": ([0, 4, 0, 5, 0], [0, 4, 0, 5, 0]),
    "more_keys": ([1, 3, 2], [9, 3, 4]),
    "more_queries": ([5, 2], [2, 6]),
    "no_keys_for_one": ([3, 2], [0, 4]),
    "no_queries_for_one": ([0, 2], [3, 4]),
    "nothing": ([0, 0], [0, 0]),
}


def starts(lengths, dtype=torch.int64) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(dtype)


def tokens(q_lengths, k_lengths):
    q = torch.randn(sum(q_lengths), 4, 8, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(sum(k_lengths), 2, 8, dtype=torch.float64, requires_grad=True) for _ in range(2))
    return q, k, v


def one_by_one(q, k, v, q_lengths, k_lengths, encoding, **options):
    """A loop over the sequences, each a batch of one."""
    outputs, logsumexps = [], []
    pieces = zip(q.split(q_lengths), k.split(k_lengths), v.split(k_lengths), strict=True)
    for piece in pieces:
        batch = [x.transpose(0, 1)[None] for x in piece]
        out, lse = ordinate.attention(*batch, encoding, return_lse=True, impl="reference", **options)
        outputs.append(out[0].transpose(0, 1))
        logsumexps.append(lse[0])
    return torch.cat(outputs), torch.cat(logsumexps, dim=1)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("impl", ["reference", "chunked"])
@pytest.mark.parametrize("lengths", list(LENGTHS))
@pytest.mark.parametrize("encoding", list(ENCODINGS))
def test_packed_equals_one_by_one(encoding, lengths, impl, window):
    q_lengths, k_lengths = LENGTHS[lengths]
    k_starts = None if k_lengths is None else starts(k_lengths)
    k_lengths = k_lengths or q_lengths
    made = ENCODINGS[encoding]().double()
    q, k, v = tokens(q_lengths, k_lengths)
    leaves = [q, k, v, *made.parameters()]
    options = {"causal": True, "window": window}
    expected = one_by_one(q, k, v, q_lengths, k_lengths, made, **options)
    actual = ordinate.attention_varlen(
        q, k, v, starts(q_lengths), k_starts, made, return_lse=True, impl=impl, **options
    )
    torch.testing.assert_close(actual, expected)
    weight = torch.randn_like(expected[0])
    for wanted, found in zip(
        torch.autograd.grad((expected[0] * weight).sum(), leaves, allow_unused=True),
        torch.autograd.grad((actual[0] * weight).sum(), leaves, allow_unused=True),
        strict=True,
    ):
        zeros = torch.zeros(()) if wanted is None and found is None else None
        torch.testing.assert_close(
            zeros if found is None else found,
            (torch.zeros_like(found) if found is not None else zeros) if wanted is None else wanted,
        )


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_starts_may_be_32_bit_as_flash_attention_has_them(dtype):
    q, k, v = tokens([3, 4], [3, 4])
    rope = ordinate.RoPE(8)
    actual = ordinate.attention_varlen(q, k, v, starts([3, 4], dtype), encoding=rope)
    torch.testing.assert_close(actual, one_by_one(q, k, v, [3, 4], [3, 4], rope)[0])


def test_an_explicit_bias_spans_all_tokens():
    q, k, v = tokens([3, 4], [3, 4])
    rope, t5 = ordinate.RoPE(8), ordinate.T5Bias(4, num_buckets=8, max_distance=9).double()
    positions = ordinate.positions.packed([3, 4])
    batch = [x.transpose(0, 1)[None] for x in (q, k)]
    bias = t5.bias(*batch, positions)
    rotated = [x[0].transpose(0, 1) for x in rope.rotate(*batch, positions)]
    actual = ordinate.attention_varlen(*rotated, v, starts([3, 4]), bias=bias, causal=True)
    both = ordinate.Combined(rope, t5)
    torch.testing.assert_close(actual, one_by_one(q, k, v, [3, 4], [3, 4], both, causal=True)[0])


def test_given_positions_and_lengths_reach_the_encoding():
    q, k, v = tokens([3, 4], [3, 4])
    rope = ordinate.RoPE(8, scaling=scaling.DynamicNTK(4.0, 5))
    positions, lengths = torch.tensor([4, 5, 6, 0, 2, 4, 9]), torch.tensor([20, 30])
    actual = ordinate.attention_varlen(
        q, k, v, starts([3, 4]), encoding=rope, q_positions=positions, lengths=lengths
    )
    rows = []
    for piece, where, length in zip(
        zip(q.split([3, 4]), k.split([3, 4]), v.split([3, 4]), strict=True),
        positions.split([3, 4]),
        lengths.tolist(),
        strict=True,
    ):
        batch = [x.transpose(0, 1)[None] for x in piece]
        out = ordinate.attention(*batch, rope, q_positions=where, lengths=length, impl="reference")
        rows.append(out[0].transpose(0, 1))
    torch.testing.assert_close(actual, torch.cat(rows))


def test_packed_equals_segments_of_plain_attention():
    q, k, v = tokens([3, 4], [3, 4])
    alibi, batch = ordinate.ALiBi(4), [x.transpose(0, 1)[None] for x in (q, k, v)]
    by_segments = ordinate.attention(
        *batch,
        alibi,
        causal=True,
        q_positions=ordinate.positions.packed([3, 4]),
        q_segment_ids=ordinate.positions.segment_ids([3, 4])[None],
    )
    packed = ordinate.attention_varlen(q, k, v, starts([3, 4]), encoding=alibi, causal=True)
    torch.testing.assert_close(packed, by_segments[0].transpose(0, 1))


class _Quarters(ordinate.PositionEncoding):
    """Four tokens stand at one position, and the first four of a sequence at its first."""

    def bias(self, q, k, q_positions=None, k_positions=None, *, x=None) -> ordinate.DistanceBias:
        places = ordinate.positions.resolve(q, k, q_positions, k_positions)
        table = torch.linspace(0, 3, 41, dtype=q.dtype).repeat(q.shape[1], 1)
        return ordinate.DistanceBias(table, Places.at(places.queries // 4, places.keys // 4), lo=-20)


@pytest.mark.parametrize("impl", ["reference", "chunked"])
def test_positions_that_an_encoding_makes_of_those_it_is_given_are_its_own(impl):
    lengths = [11, 19]
    q, k, v = tokens(lengths, lengths)
    expected, _ = one_by_one(q, k, v, lengths, lengths, _Quarters(), causal=True)
    actual = ordinate.attention_varlen(
        q, k, v, starts(lengths), None, _Quarters(), causal=True, impl=impl
    )
    torch.testing.assert_close(actual, expected)


@dataclass(frozen=True, eq=False)
class _Sink(ordinate.DistanceBias):
    """The first two tokens of a sequence are seen more."""

    def dense(self):
        return super().dense() + 3.0 * (self.places.keys < 2)[:, None, None]


class _Sinks(ordinate.PositionEncoding):
    def bias(self, q, k, q_positions=None, k_positions=None, *, x=None) -> ordinate.DistanceBias:
        places = ordinate.positions.resolve(q, k, q_positions, k_positions)
        return _Sink(torch.zeros(q.shape[1], 3, dtype=q.dtype), places, lo=0)


def test_a_kind_of_bias_that_reads_positions_has_those_within_its_sequence():
    lengths = [11, 19]
    q, k, v = tokens(lengths, lengths)
    expected, _ = one_by_one(q, k, v, lengths, lengths, _Sinks(), causal=True)
    actual = ordinate.attention_varlen(
        q, k, v, starts(lengths), None, _Sinks(), causal=True, impl="reference"
    )
    torch.testing.assert_close(actual, expected)


def test_starts_that_have_changed_are_looked_at_again():
    q, k, v = (torch.randn(5, 2, 4) for _ in range(3))
    cu_seqlens = torch.tensor([0, 2, 5])
    ordinate.attention_varlen(q, k, v, cu_seqlens)
    cu_seqlens.numpy()[1] = 7
    with pytest.raises(ValueError, match="cu_seqlens_q must rise from 0 to the 5 tokens"):
        ordinate.attention_varlen(q, k, v, cu_seqlens)


class _Looks(TorchFunctionMode):
    """Counts how often the numbers of a tensor are looked at."""

    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.Tensor.tolist
        return func(*args, **(kwargs or {}))


def test_where_looking_waits_for_a_device_starts_are_looked_at_once(monkeypatch):
    varlen = importlib.import_module("ordinate.attending.varlen")
    monkeypatch.setattr(varlen, "_reading_waits", lambda starts: True)
    q, more = torch.randn(5, 2, 4), torch.randn(6, 2, 4)
    cu_seqlens = torch.tensor([0, 2, 5])
    with _Looks() as looks:
        for _ in range(3):  # layers
            ordinate.attention_varlen(q, q, q, cu_seqlens)
        assert looks.count == 1
        with pytest.raises(ValueError, match="cu_seqlens_q must rise from 0 to the 6 tokens"):
            ordinate.attention_varlen(more, more, more, cu_seqlens)
        cu_seqlens[1] = 7
        with pytest.raises(ValueError, match="cu_seqlens_q must rise from 0 to the 5 tokens"):
            ordinate.attention_varlen(q, q, q, cu_seqlens)
