"""What a query does not see has no say in its output, be it too large for a logit, infinite or NaN."""

from __future__ import annotations

import pytest
import torch
from unseen_keys import BAD, KEY, attend, check_overflow, make

import ordinate
from ordinate.attending import work
from ordinate.positions import Places

ENOUGH = [
    "causal",
    "causal_window",
    "window",
    "one_row_of_segments_and_causal",
    "right_padding",
    "everything",
]


@pytest.fixture(autouse=True)
def _several_blocks(monkeypatch):
    monkeypatch.setitem(work._LOGITS_PER_BLOCK, "cpu", 1)


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("mask", ENOUGH)
@pytest.mark.parametrize("bias", ["none", "linear", "distance", "key", "row_query", "row_values_shared"])
def test_a_key_too_large_for_a_logit_reaches_no_query_that_does_not_see_it(bias, mask, softcap):
    for impl in ("chunked", "sdpa", "auto"):
        for dtype in (torch.float32, torch.bfloat16):
            check_overflow(impl, bias, mask, dtype, softcap=softcap)


@pytest.mark.parametrize("bias", ["none", "linear", "distance"])
def test_so_it_is_for_long_sequences(bias):
    """PyTorch's kernels take 512 keys at a time."""
    for impl in ("chunked", "auto"):
        check_overflow(impl, bias, "causal", torch.float32, length=600)


@pytest.mark.parametrize("mask", ["full", "window_of_one", "padding", *ENOUGH])
@pytest.mark.parametrize("bad", BAD, ids=str)
def test_rows_are_those_of_the_reference_for_any_key(bad, mask):
    """Gradients have no NaN that the reference lacks, either."""
    for bias in ("none", "distance", "row_query"):
        for dtype in (torch.float32, torch.float64):
            leaves, call, unseeing = make(bias, mask, dtype)
            if call is None:
                continue
            with torch.no_grad():
                leaves["k"][0, :, KEY, 0] = bad  # alone: sums of such terms depend on their order
            expected, grads = attend(leaves, call, "reference", unseeing)
            assert expected[unseeing].isfinite().all()
            found, found_grads = attend(leaves, call, "chunked", unseeing)
            torch.testing.assert_close(
                found, expected, rtol=2e-3, atol=2e-3, equal_nan=True,
                msg=lambda m, case=(bias, dtype): f"{case}: {m}",
            )  # fmt: skip
            for name, grad in found_grads.items():
                assert not (~grad.isfinite() & grads[name].isfinite()).any(), (bias, dtype, name)
            auto, _ = attend(leaves, call, "auto", unseeing)
            torch.testing.assert_close(auto[unseeing], expected[unseeing], rtol=2e-3, atol=2e-3)


def test_packed_sequences_do_not_spoil_each_other():
    q, k, v = (torch.randn(11, 2, 8) for _ in range(3))
    starts = torch.tensor([0, 4, 11])
    k[9] = torch.inf
    for encoding in (None, ordinate.ALiBi(2)):
        both = [
            ordinate.attention_varlen(q, k, v, starts, encoding=encoding, causal=True, impl=impl)
            for impl in ("auto", "reference")
        ]
        assert both[1][:9].isfinite().all()
        torch.testing.assert_close(*both, equal_nan=True)


def test_a_bias_that_is_infinite_where_it_is_hidden_hides_nothing_else():
    q, k, v = (torch.randn(1, 2, 40, 8, requires_grad=True) for _ in range(3))
    at = torch.arange(40)[None]
    steep = ordinate.LinearBias(torch.full((2,), 1e38, requires_grad=True), Places.at(at, at))
    leaves = [q, k, v, steep.slopes]
    found, expected = [], []
    for impl, results in (("chunked", found), ("reference", expected)):
        out = ordinate.attention(q, k, v, bias=steep, causal=True, impl=impl)
        results += [out.detach(), *torch.autograd.grad(out.sum(), leaves)]
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert found[0].isfinite().all()


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_a_bias_of_a_key_spoils_no_gradient_of_what_its_queries_do_not_see(bad):
    """Cumulative gates, say, are computed from content: a token's own are NaN where it is."""
    q, k, v = (torch.randn(1, 2, 40, 8, requires_grad=True) for _ in range(3))
    at = torch.arange(40)[None]
    gates, table = torch.randn(1, 2, 40), torch.randn(2, 80, requires_grad=True)
    gates[:, :, KEY] = bad
    bias = ordinate.KeyBias(gates) + ordinate.DistanceBias(table, Places.at(at, at), lo=-40)
    grads = []
    for impl in ("reference", "chunked"):
        out = ordinate.attention(q, k, v, bias=bias, causal=True, window=7, impl=impl)
        assert out[:, :, :KEY].isfinite().all()
        grads.append(torch.autograd.grad(out[:, :, :KEY].sum(), [q, k, v, table]))
    for wanted, found in zip(*grads, strict=True):
        assert not (~found.isfinite() & wanted.isfinite()).any()
