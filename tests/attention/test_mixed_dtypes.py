"""Tensors of a bias in another dtype than q, k and v, and in another than each other."""

from __future__ import annotations

import itertools

import pytest
import torch
from attention_cases import BIASES, Shape, gradients, leaves_of

import ordinate
from ordinate import DistanceBias, LinearBias, SumBias
from ordinate.positions import Places

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
LENGTH = 12


@pytest.mark.parametrize("impl", ["reference", "chunked"])
@pytest.mark.parametrize("positions", ["in order", "apart"])
@pytest.mark.parametrize("name", [name for name in BIASES if name != "none"])
def test_a_call_computes_in_the_precision_of_its_queries(name, positions, impl):
    at = torch.arange(LENGTH)[None] ** (1 if positions == "in order" else 2)
    case, shape = (
        BIASES[name],
        Shape(q_len=LENGTH, k_len=LENGTH, q_positions=at, k_positions=at),
    )
    drawn = leaves_of(case, shape, torch.float64)
    learning = [leaf for leaf in drawn if leaf not in "qkv"]

    def results(leaves, impl):
        out, lse = ordinate.attention(
            *(leaves[x] for x in "qkv"), bias=case.build(leaves, shape), causal=True,
            return_lse=True, impl=impl,
        )  # fmt: skip
        return {"out": out, "lse": lse, **gradients(leaves, out, lse)}

    # All of the bias's tensors in the second dtype, or the first of them alone and the others in float32.
    for dtype, other, chosen in itertools.product(DTYPES, DTYPES, {len(learning), 1}):
        dtypes = {**dict.fromkeys("qkv", dtype), **dict.fromkeys(learning[:chosen], other)}
        leaves = {
            leaf: tensor.detach().to(dtypes.get(leaf, torch.float32)).requires_grad_()
            for leaf, tensor in drawn.items()
        }
        exact = {leaf: tensor.detach().double().requires_grad_() for leaf, tensor in leaves.items()}
        found, wanted = results(leaves, impl), results(exact, "reference")
        for key, value in found.items():
            eps = torch.finfo(value.dtype).eps
            # The output was rounded to the dtype of q on its way to every gradient.
            eps = eps if key == "lse" else max(eps, torch.finfo(dtype).eps)
            atol = 16 * eps * float(wanted[key].detach().abs().max())
            torch.testing.assert_close(
                value.double(), wanted[key], rtol=0.0, atol=atol,
                msg=lambda m, what=(key, dtype, other, chosen): f"{what}: {m}",
            )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_sum_of_biases_of_16_bits_is_not_rounded_to_16_bits(dtype):
    numbers = torch.arange(9)
    at, apart = Places.at(numbers, numbers), Places.at(numbers**2, numbers**2)
    in_order = Places.in_order(9, 9)
    slopes, more = torch.rand(2, 2).to(dtype)
    tables = torch.randn(2, 2, 5).to(dtype)
    # Merged into one description (lines, tables, one of each), and kept as a list.
    sums = [
        [LinearBias(slopes, at, symmetric=True), LinearBias(more, at, symmetric=True)],
        [DistanceBias(tables[0], at, lo=-2), DistanceBias(tables[1], at, lo=0)],
        [LinearBias(slopes, in_order), DistanceBias(tables[0], in_order, lo=-2)],
        [DistanceBias(tables[0], at, lo=-2), DistanceBias(tables[1], apart, lo=0)],
    ]
    for first, second in sums:
        exact = first.dense().double() + second.dense().double()
        for total in (first + second, SumBias((first, second))):
            torch.testing.assert_close(total.dense().double(), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.plain
def test_a_bias_of_another_precision_compiles():
    def attend(q, slopes):
        places = Places.in_order(q.shape[2], q.shape[2])
        line = LinearBias(slopes, places)
        return ordinate.attention(
            q, q, q, bias=line + DistanceBias(slopes[:, None], places, lo=0), causal=True
        )

    q, slopes = torch.randn(1, 2, 5, 8), torch.rand(2, dtype=torch.float64)
    compiled = torch.compile(attend, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(q, slopes), attend(q, slopes))
