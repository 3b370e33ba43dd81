"""Sequences behind one another: most of their tiles need no mask, and their names may be any integers."""

from __future__ import annotations

import pytest
import torch
from fused_cases import Case, Sizes, check

pytestmark = [
    pytest.mark.plain,
    # NumPy tells of the weights of hidden keys, which may be anything before they become 0.
    pytest.mark.filterwarnings("ignore:overflow encountered in exp2"),
]


@pytest.mark.usefixtures("_poisoned_memory")
@pytest.mark.parametrize("positions", ["aligned", "gaps"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bias", ["none", "clipped", "every_distance", "sum_of_all"])
def test_sequences_of_many_tiles(bias, causal, positions, device):
    """Of one sequence all, most tiles need no mask; some of these lie beyond the tables."""
    case = Case(bias, "full", positions, Sizes(150, 170, heads=1, kv_heads=1), device=str(device))
    starts = torch.tensor([0, 20, 117], device=device)  # of the second and the third sequence
    q_at, k_at = (torch.arange(length, device=device) for length in (150, 170))
    check(
        case, causal=causal,
        q_segment_ids=torch.searchsorted(starts - 20, q_at, right=True),
        k_segment_ids=torch.searchsorted(starts, k_at, right=True),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.int32, torch.int64])
def test_segments_may_be_named_by_any_integer(dtype, device):
    case = Case("none", "full", device=str(device))
    ids = torch.arange(50, device=device) >= 23
    if dtype == torch.int64:  # of which the lower half is the same
        ids = ids * 2**32
    check(case, q_segment_ids=ids.to(dtype))
