"""The fused kernels hide a key whatever its logit is."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="the kernels are Triton's")

from unseen_keys import check_overflow

# Triton reads the source of its kernels, which run-time shape checks would have wrapped.
pytestmark = pytest.mark.plain


@pytest.mark.filterwarnings(
    "ignore:overflow encountered:RuntimeWarning", "ignore:invalid value:RuntimeWarning"
)
@pytest.mark.parametrize(
    ("bias", "mask"),
    [
        ("none", "causal"),
        ("linear", "causal_window"),
        ("distance", "causal"),
        ("row_query", "right_padding"),
    ],
)
def test_a_key_too_large_for_a_logit_reaches_no_query_that_does_not_see_it(bias, mask, device):
    check_overflow("fused", bias, mask, torch.float32, device=str(device))
