"""Sequences behind one another, and padding: few of their tiles need a mask, and tiles nobody sees are not read."""

from __future__ import annotations

import pytest
import torch
from fused_cases import Case, Sizes, check, check_merged_results_of_queries_that_see_nothing

import ordinate

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


def test_merged_results_of_queries_that_see_nothing_pull_at_no_key(device):
    check_merged_results_of_queries_that_see_nothing("fused", device)


@pytest.mark.parametrize("sizes", [Sizes(40, 40), Sizes(3, 50), Sizes(2, 90, heads=4, kv_heads=1)])
@pytest.mark.parametrize("bias", ["line", "line_symmetric", "sum_of_all"])
def test_documents_far_apart_in_one_tile_keep_the_distances_within_them(bias, sizes, device):
    """Positions of another document must not round those of one's own."""
    document = torch.arange(sizes.k_len, device=device) >= sizes.k_len // 2
    check(
        Case(bias, "causal", "two_documents", sizes, device=str(device)),
        q_segment_ids=document[-sizes.q_len :], k_segment_ids=document,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.int32, torch.int64])
def test_segments_may_be_named_by_any_integer(dtype, device):
    case = Case("none", "full", device=str(device))
    ids = torch.arange(50, device=device) >= 23
    if dtype == torch.int64:  # of which the lower half is the same
        ids = ids * 2**32
    check(case, q_segment_ids=ids.to(dtype))


@pytest.mark.usefixtures("_poisoned_memory")
@pytest.mark.parametrize("padded", ["left", "right"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bias", ["none", "clipped", "every_distance", "sum_of_all"])
def test_padding_of_many_tiles(bias, causal, padded, device):
    """Of two rows, one is padded by less than a tile."""
    sizes = Sizes(100, 120, batch=2, heads=1, kv_heads=1)
    padding = torch.arange(120) >= torch.tensor([[50], [117]])
    padding = padding.flip(1) if padded == "left" else padding
    check(
        Case(bias, "full", sizes=sizes, device=str(device)),
        causal=causal,
        key_padding_mask=padding.to(device),
    )


@pytest.mark.parametrize("bias", ["none", "line", "clipped", "every_distance"])
def test_tiles_of_padding_are_not_read(bias, device):
    """No tile is longer than 128 tokens, and none that is visited reaches as far as what is poisoned."""
    case = Case(bias, "full", sizes=Sizes(384, 384, heads=1, kv_heads=1), device=str(device))
    leaves = case.leaves()
    with torch.no_grad():
        for name in ("k", "v"):
            leaves[name][:, :, 256:] = torch.nan
    padding = (torch.arange(384, device=device) >= 120)[None]
    out = ordinate.attention(**case.arguments(leaves, key_padding_mask=padding), impl="fused")
    for gradient in torch.autograd.grad(out.sum(), list(leaves.values())):
        assert gradient.isfinite().all()


@pytest.mark.parametrize(
    ("of_queries", "of_keys", "names"),
    [
        (torch.int32, torch.int32, (0, 1)),
        (torch.int32, torch.int32, (-(2**31), 2**31 - 1)),
        (torch.uint8, torch.uint8, (0, 255)),
        (torch.uint16, torch.uint16, (0, 65535)),
        (torch.bool, torch.bool, (False, True)),
        (torch.int64, torch.int64, (1 - 2**62, 2**62 - 1)),
        (torch.int64, torch.int8, (-128, 127)),
    ],
)
def test_padding_beside_segments_of_any_name(of_queries, of_keys, names, device):
    """Also beside the last integer of a kind, and of queries that are named by wider ones."""
    first, second = names
    at = torch.arange(50, device=device)
    ids = torch.where(at < 20, first, second)
    check(
        Case("none", "full", device=str(device)), key_padding_mask=(at % 7 == 3)[None],
        q_segment_ids=ids.to(of_queries), k_segment_ids=ids.to(of_keys),
    )  # fmt: skip


def test_padding_behind_a_sequence_does_not_make_it_meet_others(device):
    """Tiles are told apart by the least and the greatest name in them."""
    from ordinate.attending import api
    from ordinate.attending.fused import terms as fused

    tokens = torch.arange(60, device=device)
    q = k = v = torch.zeros(1, 1, 60, 8, device=device)
    call = api._prepare(
        q, k, v, q_segment_ids=tokens // 20, key_padding_mask=tokens % 20 > 14, causal=True
    )
    q_segments, k_segments = fused._segments(call.mask)
    assert (k_segments.diff() >= 0).all()
    assert torch.equal(q_segments == k_segments, (tokens % 20 <= 14)[None])


@pytest.mark.parametrize("shift", [-24, 0, 40])
@pytest.mark.parametrize("start", [0, 16 * 40])
@pytest.mark.parametrize(
    "starts", [[], [700], [5, 16 * 64], [16 * k for k in range(60)], [16 * 63, 16 * 64], [3, 1100]]
)
def test_the_first_run_of_tiles_of_one_sequence_along_a_diagonal(starts, start, shift, device):
    """Looked for among 64 tiles at a time; here are 75."""
    from segment_runs import first_run_kernel

    tokens, end = torch.arange(1250), 1200
    ids = torch.searchsorted(torch.tensor(starts, dtype=torch.int64), tokens, right=True).int()
    found = torch.empty(2, dtype=torch.int32, device=device)
    first_run_kernel[(1,)](
        ids.to(device), ids.to(device), found, start, end, shift, 1250, 1250, M=16, N=16
    )
    of_one = [
        len({*ids[m0 : m0 + 16].tolist(), *ids[(m0 + shift + tokens[:16]).clamp(0, 1249)].tolist()}) == 1
        for m0 in range(start, end, 16)
    ]
    first = of_one.index(True) if True in of_one else len(of_one)
    length = [*of_one[first:], False].index(False)
    assert found.tolist() == [start + 16 * first, start + 16 * (first + length)]
