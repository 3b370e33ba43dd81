"""ALiBi: slopes for every head count, as the authors' code, BLOOM and MPT have them."""

from __future__ import annotations

import math

import pytest
import torch

import ordinate
from ordinate import ALiBi
from ordinate.bias.alibi import alibi_slopes

_SQRT = [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
KNOWN = {
    1: [2**-8],
    2: [2**-4, 2**-8],
    3: [2**-4, 2**-8, 2**-2],
    4: [2**-2, 2**-4, 2**-6, 2**-8],
    6: [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3],
    8: [2**-n for n in range(1, 9)],
    12: [2**-n for n in range(1, 9)] + _SQRT,
    16: [2 ** (-n / 2) for n in range(1, 17)],
}


@pytest.mark.parametrize("heads", KNOWN)
def test_slopes_are_the_authors(heads: int):
    torch.testing.assert_close(torch.tensor(alibi_slopes(heads)), torch.tensor(KNOWN[heads]))


def test_slopes_of_eight_heads_multiply_to_two_to_the_minus_36():
    assert math.prod(alibi_slopes(8)) == 2.0**-36


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 6, 8, 12, 14, 20, 32, 40, 71, 112])
def test_slopes_equal_bloom_and_mpt(heads: int):
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    ours = torch.tensor(alibi_slopes(heads))
    bloom = build_alibi_tensor(torch.ones(1, 3), heads, torch.float32)[:, 0, 1]
    torch.testing.assert_close(ours, bloom, rtol=1e-5, atol=0)  # its powers accumulate in float32
    mpt = -build_mpt_alibi_tensor(heads, 2)[:, 0, 0]
    torch.testing.assert_close(ours, mpt, rtol=2.0**-22, atol=0)


def test_bloom_and_ours_weigh_keys_alike_under_a_causal_mask():
    """BLOOM adds slope · key index: a constant per query apart, which softmax does not see."""
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    q, k, v = torch.randn(3, 1, 6, 9, 8).unbind()
    theirs = build_alibi_tensor(torch.ones(1, 9), 6, torch.float32).reshape(1, 6, 1, 9)
    hidden = torch.ones(9, 9, dtype=torch.bool).triu(1)
    logits = (q @ k.mT / math.sqrt(8) + theirs).masked_fill(hidden, -math.inf)
    ours = ordinate.attention(q, k, v, ALiBi(6), causal=True)
    torch.testing.assert_close(ours, logits.softmax(-1) @ v)


def test_the_bias_is_not_divided_by_the_root_of_head_dim():
    q = k = torch.zeros(1, 2, 4, 64)
    bias = ALiBi(2).bias(q, k)
    assert not bias.scaled
    torch.testing.assert_close(bias.dense()[0, :, 3, 0], -3 * torch.tensor([2**-4, 2**-8]))


def test_far_tokens_are_told_apart_in_bf16():
    """Slope · absolute index in bf16 gives 257 and 256 one value; the difference is exact here."""
    q = k = torch.zeros(1, 8, 600, 8, dtype=torch.bfloat16)
    bias = ALiBi(8).bias(q, k).dense()[0, 0, -1]
    torch.testing.assert_close(bias.diff(), torch.full((599,), 0.5))


def test_further_tokens_score_lower():
    q = k = torch.zeros(1, 6, 50, 8)
    rows = ALiBi(6).bias(q, k).dense()[0, :, -1]  # the last query, keys from far to near
    assert bool((rows.diff(dim=-1) > 0).all())


def test_slices_of_the_heads_are_slices_of_the_slopes():
    q = torch.zeros(1, 4, 5, 8)
    whole = ALiBi(12).bias(torch.zeros(1, 12, 5, 8), q).dense()
    for start in (0, 4, 8):
        part = ALiBi(12, heads=slice(start, start + 4)).bias(q, q).dense()
        torch.testing.assert_close(part, whole[:, start : start + 4], rtol=0, atol=0)


@pytest.mark.parametrize("heads", [4, 6, 8, 12])
@pytest.mark.parametrize("exponent", [2, 8, 16])
def test_another_exponent_is_mpts_alibi_bias_max(heads: int, exponent: int):
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    mpt = -build_mpt_alibi_tensor(heads, 2, alibi_bias_max=exponent)[:, 0, 0]
    torch.testing.assert_close(torch.tensor(alibi_slopes(heads, exponent)), mpt, rtol=1e-6, atol=0)


def test_a_scaled_line_is_multiplied_by_the_softmax_scale_as_falcons_is():
    q = k = torch.zeros(1, 4, 6, 16)
    v = torch.eye(6).expand(1, 4, 6, 6)
    weights = ordinate.attention(q, k, v, ALiBi(4, scaled=True), causal=True)
    distances = torch.arange(6)[:, None] - torch.arange(6)
    logits = -torch.tensor(alibi_slopes(4))[:, None, None] * distances / 16**0.5
    logits = logits.masked_fill(distances < 0, -torch.inf)
    torch.testing.assert_close(weights[0], logits.softmax(-1))
