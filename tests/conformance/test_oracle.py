"""Every case equals its paper's formula, in every dtype, at every position."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

import ordinate

from . import oracles
from .budgets import assert_within, half_ulp, mean_square, rotation_budget
from .cases import CASES, DTYPES, LOW, Case, cases, causal_only, dtypes

# Row 0 counts from 0; row 1 repeats, jumps and goes back, as packing and padding do.
NEAR = torch.tensor([list(range(11)), [5, 5, 6, 9, 60, 61, 0, 1, 2, 30, 63]])
# Beyond 2^17, where a float32 angle is already off by 2^-7 rad, and before the beginning.
FAR = torch.tensor(
    [[1_000_003, 1_000_004, -1, -70_001, 257, 2049, 131_073, 999_999, 3, 2**20, 40_000]] * 2
)


def _rope(encoding: ordinate.PositionEncoding) -> ordinate.RoPE:
    return next(module for module in encoding.modules() if isinstance(module, ordinate.RoPE))


def _lengths(positions: torch.Tensor) -> list[int]:
    return (positions.amax(dim=-1) + 1).tolist()


def test_every_catalog_entry_has_a_case():
    covered = {entry for case in CASES for entry in case.entries}
    assert covered == set(ordinate.catalog)


def test_every_case_exercises_the_entries_it_names():
    for case in CASES:
        modules = list(case.build().modules())
        present = {type(module) for module in modules}
        present |= {type(module.scaling) for module in modules if isinstance(module, ordinate.RoPE)}
        assert {ordinate.catalog[name].cls for name in case.entries} <= present, case.id


def test_every_case_uses_the_hooks_it_names():
    for case in CASES:
        encoding, x, (q, k, _) = case.build(), case.x(5, torch.float32), case.qkv(5, torch.float32)
        used = {
            "embed": not torch.equal(encoding.embed(x), x),
            "rotate": not torch.equal(encoding.rotate(q, k)[0], q),
            "bias": encoding.bias(q, k) is not None,
        }
        assert {hook for hook, does in used.items() if does} == set(case.hooks), case.id


@cases("embed")
@dtypes()
def test_embed_equals_the_formula_with_one_rounding(case: Case, dtype: torch.dtype):
    encoding, x = case.build(), case.x(11, dtype)
    embedded = encoding.embed(x, NEAR)
    exact = oracles.embed(case.oracle(encoding), x, case.listed(NEAR))
    assert embedded.dtype == dtype
    # Arithmetic is float32 below float64: two roundings there, of the code and of the sum.
    size = x.double().abs() + (exact - x.double()).abs()
    work = 2.0**-52 * 64 if dtype == torch.float64 else 2.0**-23
    assert_within(embedded, exact, half_ulp(exact, dtype) + work * size, "embed")


@cases("rotate")
@dtypes()
@pytest.mark.parametrize("where", [NEAR, FAR], ids=["near", "far"])
def test_rotation_keeps_the_error_rule(case: Case, dtype: torch.dtype, where: torch.Tensor):
    encoding = case.build()
    q, k, _ = case.qkv(11, dtype)
    positions = case.positions(where)
    turned = encoding.rotate(q, k, positions, positions)
    rope, listed = _rope(encoding), case.listed(where)
    for before, after in zip((q, k), turned, strict=True):
        exact = oracles.rotate(case.oracle(encoding), before, listed, _lengths(where))
        assert after.dtype == dtype
        assert_within(
            after, exact, rotation_budget(exact, dtype, rope.rotary_dim, rope.layout), "rotation"
        )


@cases("rotate")
def test_float64_rotation_is_as_exact_as_the_angle(case: Case):
    """The general rule is met by float32 arithmetic too; in float64 only the angle's rounding is left."""
    encoding = case.build()
    q, k, _ = case.qkv(11, torch.float64)
    positions = case.positions(FAR)
    turned, _ = encoding.rotate(q, k, positions, positions)
    exact = oracles.rotate(case.oracle(encoding), q, case.listed(FAR), _lengths(FAR))
    # angle = position · frequency, each with a few roundings of 2^-53 (pow, product, a dynamic base).
    angle_error = (FAR.abs().double() + 8)[:, None, :, None] * 2.0**-49
    assert_within(turned, exact, angle_error * exact.norm(dim=-1, keepdim=True), "float64 rotation")


@cases("bias")
@dtypes()
@pytest.mark.parametrize("where", [NEAR, FAR], ids=["near", "far"])
def test_bias_equals_the_formula(case: Case, dtype: torch.dtype, where: torch.Tensor):
    """A bias is float32 even for bfloat16 inputs, where two distances past 256 would be one."""
    encoding = case.build()
    q, k, _ = case.qkv(11, dtype)
    bias = encoding.bias(q, k, where, where)
    assert bias is not None
    parts = getattr(bias, "parts", (bias,))
    exact = oracles.bias(case.oracle(encoding), q, case.listed(where), case.listed(where), scale=0.5)
    total = sum(
        (part.dense().double() * (0.5 if part.scaled else 1.0)).expand_as(exact) for part in parts
    )
    eps = 2.0**-52 if dtype == torch.float64 else 2.0**-23
    assert_within(total, exact, 8 * eps * (exact.abs() + q.double().norm(dim=-1, keepdim=True)), "bias")


@cases()
@pytest.mark.parametrize("impl", ["auto", "reference", "chunked"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
def test_attention_equals_the_formula_in_float64(case: Case, impl: str, causal: bool):
    if not causal and causal_only(case):
        with pytest.raises(ValueError, match=r"causal must be True .* got False"):
            ordinate.attention(*case.qkv(3, torch.float64), case.build(), causal=False, impl=impl)
        return
    encoding = case.build()
    q, k, v = case.qkv(11, torch.float64)
    queries = q[:, :, 4:]  # fewer queries than keys: aligned to the end
    out = ordinate.attention(
        queries, k, v, encoding, causal=causal, impl=impl,
        q_positions=case.positions(NEAR[:, 4:]), k_positions=case.positions(NEAR),
    )  # fmt: skip
    listed = case.listed(NEAR)
    exact = oracles.attention(
        case.oracle(encoding),
        queries,
        k,
        v,
        [row[4:] for row in listed],
        listed,
        _lengths(NEAR),
        causal=causal,
    )
    torch.testing.assert_close(out, exact, rtol=1e-12, atol=1e-12)


@cases()
@dtypes(torch.float32)
@pytest.mark.parametrize("impl", ["auto", "reference", "chunked"])
def test_float32_attention_is_exact_to_the_rounding_of_its_logits(case: Case, dtype, impl: str):
    encoding, (q, k, v) = case.build(), case.qkv(11, dtype)
    positions, listed, oracle = case.positions(NEAR), case.listed(NEAR), case.oracle(encoding)
    out = ordinate.attention(
        q, k, v, encoding, causal=True, impl=impl, q_positions=positions, k_positions=positions
    )
    exact = oracles.attention(oracle, q, k, v, listed, listed, _lengths(NEAR), causal=True)
    # An error d of every logit changes an average of values by at most 2 d max|v|.
    largest = float(q.norm(dim=-1).max() * k.norm(dim=-1).max()) * 2
    largest += float(oracles.bias(oracle, q, listed, listed).abs().max())
    logit_error = 2.0**-23 * (largest + 8)
    spread = float(v.abs().max()) + max(
        (abs(n) for part in oracle if part.value for d in range(-3, 4) for n in part.value(d)),
        default=0.0,
    )
    assert out.dtype == dtype
    assert_within(out.detach(), exact, 2 * logit_error * spread, "float32 attention")


@cases()
@dtypes(*LOW)
@pytest.mark.parametrize("impl", ["reference", "chunked"])
def test_attention_is_at_most_twice_as_wrong_as_plain_pytorch(case: Case, dtype: torch.dtype, impl: str):
    """Plain PyTorch is given perfectly rotated inputs and a perfect mask, each rounded to the dtype."""
    encoding, length = case.build().requires_grad_(False), 24
    q, k, v = case.qkv(length, dtype, batch=1)
    where = torch.arange(length)[None]
    listed, lengths, oracle = case.listed(where), [length], case.oracle(encoding)
    exact = oracles.attention(oracle, q, k, v, listed, listed, lengths, causal=True)
    plain = _plain_attention(case, oracle, q, k, v, listed)
    if any(part.value is not None for part in oracle):  # what plain attention cannot do is added exactly
        without = [dataclasses.replace(part, value=None) for part in oracle]
        value_term = exact - oracles.attention(without, q, k, v, listed, listed, lengths, causal=True)
        plain = (plain.double() + value_term).to(dtype)

    positions = case.positions(where)
    ours = ordinate.attention(
        q, k, v, encoding, causal=True, impl=impl, q_positions=positions, k_positions=positions
    )
    assert ours.dtype == dtype
    assert mean_square(ours.double() - exact) <= 2 * mean_square(plain.double() - exact)


def _plain_attention(case: Case, oracle, q, k, v, listed) -> torch.Tensor:
    length = q.shape[2]
    scale = math.prod(part.logit_factor for part in oracle) / math.sqrt(q.shape[-1])
    mask = oracles.bias(oracle, q.detach(), listed, listed, scale)
    mask = mask.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -math.inf)
    q, k = (_turn(oracle, part, listed) for part in (q, k))
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask.to(q.dtype), scale=scale, enable_gqa=True
    )


def _turn(oracle, x: torch.Tensor, listed) -> torch.Tensor:
    """The exact rotation, differentiably: a rotation is linear, and so are its columns."""
    turned = oracles.rotate(oracle, x.detach(), listed, [len(listed[0])])
    if not x.requires_grad:
        return turned.to(x.dtype)
    basis = torch.eye(x.shape[-1]).double()[:, None].expand(-1, x.shape[2], -1)[None]
    columns = oracles.rotate(oracle, basis, listed, [len(listed[0])])[0]  # [channel, seq, turned]
    return torch.einsum("bhsc,csd->bhsd", x.double(), columns).to(x.dtype)


@cases(only=lambda case: not any(part.scaled for part in case.oracle(case.build())))
@dtypes(*LOW)
def test_gradients_are_at_most_twice_as_wrong_as_plain_pytorch(case: Case, dtype: torch.dtype):
    """Shaw has no counterpart in plain attention: its bias depends on q."""
    encoding, length = case.build().requires_grad_(False), 24
    oracle, where = case.oracle(encoding), torch.arange(length)[None]
    listed, positions = case.listed(where), case.positions(where)
    inputs = case.qkv(length, dtype, batch=1)
    weights = torch.randn_like(inputs[0])

    def gradients(attend, inputs):
        leaves = [t.detach().clone().requires_grad_() for t in inputs]
        out = attend(*leaves)
        return torch.autograd.grad((out * weights.to(out.dtype)).sum(), leaves)

    def ours(q, k, v):
        return ordinate.attention(
            q, k, v, encoding, causal=True, q_positions=positions, k_positions=positions, impl="chunked"
        )

    def plain(q, k, v):
        return _plain_attention(case, oracle, q, k, v, listed)

    exact = gradients(plain, [t.double() for t in inputs])
    for truth, mine, theirs in zip(
        exact, gradients(ours, inputs), gradients(plain, inputs), strict=True
    ):
        assert mine.dtype == dtype
        assert mean_square(mine.double() - truth) <= 2 * mean_square(theirs.double() - truth)


def test_all_four_dtypes_are_tried():
    assert set(DTYPES) == {torch.float64, torch.float32, torch.bfloat16, torch.float16}
