"""Which tiles have to do with each other: what the kernel says of them holds for all their tokens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytestmark = pytest.mark.plain

M, N = 32, 16
LENGTHS = (90, 101)


def _ranges(
    q_segments: Tensor, k_segments: Tensor, q_positions: Tensor, k_positions: Tensor, lo, hi, of_queries
):
    from ordinate.kernels.launch import Step
    from ordinate.kernels.tile_ranges import _tile_ranges_kernel

    q_len, k_len = q_segments.shape[1], k_segments.shape[1]
    rows = max(x.shape[0] for x in (q_segments, k_segments, q_positions, k_positions))
    strides = {
        name: 0 if x.shape[0] == 1 else x.stride(0)
        for name, x in (
            ("q_token_batch", q_segments), ("k_token_batch", k_segments),
            ("q_pos_batch", q_positions), ("k_pos_batch", k_positions),
        )
    }  # fmt: skip
    tiles = -(-q_len // M) if of_queries else -(-k_len // N)
    found = torch.full((rows, tiles, 6), -1, dtype=torch.int32, device=q_segments.device)
    step = Step(
        _tile_ranges_kernel, (rows, tiles),
        {**strides, "q_len": q_len, "k_len": k_len, "far_lo": lo, "far_hi": hi, "M": M, "N": N,
         "OF_QUERIES": of_queries, "SEGMENTS": True, "FAR": True, "BLOCK": 4},
    )  # fmt: skip
    step(
        q_segment_ptr=q_segments, k_segment_ptr=k_segments, q_pos_ptr=q_positions, k_pos_ptr=k_positions,
        range_ptr=found,
    )  # fmt: skip
    return found.cpu()


def _segments(kind: str, length: int) -> Tensor:
    index = torch.arange(length)
    kinds = {
        "one": index * 0,
        "three": index * 3 // length,
        "many": index // 7,
        "interleaved": index % 2,
        "falling": 3 - index * 4 // length,
        "comes back": (index // 33) % 2,
    }
    return kinds[kind][None].to(torch.int32)


def _positions(kind: str, length: int) -> Tensor:
    index = torch.arange(length)
    kinds = {
        "indices": index,
        "start anew": index % 47,
        "reversed": -index,
        "shuffled": torch.randperm(length, generator=torch.Generator().manual_seed(1)),
    }
    return kinds[kind][None]


@pytest.mark.parametrize("of_queries", [True, False])
@pytest.mark.parametrize("positions", ["indices", "start anew", "reversed", "shuffled"])
@pytest.mark.parametrize("segments", ["one", "three", "many", "interleaved", "falling", "comes back"])
def test_what_is_said_of_a_tile_holds_for_its_tokens(segments, positions, of_queries, device):
    lo, hi = -3, 20
    q_segments, k_segments = (
        torch.cat([_segments(kind, length) for kind in (segments, "three")]) for length in LENGTHS
    )
    k_segments = k_segments if segments == "three" else k_segments[:1]
    q_positions, k_positions = (_positions(positions, length) for length in LENGTHS)
    inputs = (q_segments, k_segments, q_positions, k_positions)
    found = _ranges(*(x.to(device) for x in inputs), lo, hi, of_queries)
    same = q_segments[:, :, None] == k_segments[:, None, :]
    distance = (q_positions[:, :, None] - k_positions[:, None, :]).expand_as(same)
    own, other = (M, N) if of_queries else (N, M)
    leads, trails = (distance >= hi, distance <= lo) if of_queries else (distance <= lo, distance >= hi)
    if not of_queries:
        same, leads, trails = (x.transpose(1, 2) for x in (same, leads, trails))
    for row, tile in torch.cartesian_prod(torch.arange(2), torch.arange(found.shape[1])).tolist():
        start, full_start, full_end, end, leading_end, trailing_start = found[row, tile].tolist()
        of_tile = slice(own * tile, own * tile + own)
        for number in range(-(-same.shape[2] // other)):
            pairs = (row, of_tile, slice(other * number, other * number + other))
            meets = bool(same[pairs].any())
            assert start <= number < end or not meets
            assert bool(same[pairs].all()) or not full_start <= number < full_end
            if meets and number < leading_end:
                assert bool(leads[pairs].all())
            if meets and number >= trailing_start:
                assert bool(trails[pairs].all())


@pytest.mark.parametrize("of_queries", [True, False])
@pytest.mark.parametrize(("lo", "hi"), [(-1, 20), (-1, 1), (-500, 500)])
def test_no_tile_is_visited_masked_or_looked_up_in_vain(lo, hi, of_queries, device):
    """Where sequences lie one after the other, and so do their tokens, numbers follow from the tokens' alone."""
    starts = [torch.tensor([0, 30, 65]), torch.tensor([0, 20, 70])]
    q_segments, k_segments = (
        (torch.searchsorted(first, torch.arange(length), right=True) - 1)[None].int()
        for first, length in zip(starts, LENGTHS, strict=True)
    )
    q_positions, k_positions = (torch.arange(length)[None] for length in LENGTHS)
    inputs = (q_segments, k_segments, q_positions, k_positions)
    found = _ranges(*(x.to(device) for x in inputs), lo, hi, of_queries)
    same = q_segments[0, :, None] == k_segments[0]
    distance = q_positions[0, :, None] - k_positions[0]
    own, other = (M, N) if of_queries else (N, M)
    leads, trails = (distance >= hi, distance <= lo) if of_queries else (distance <= lo, distance >= hi)
    if not of_queries:
        same, leads, trails = same.T, leads.T, trails.T
    others = -(-same.shape[1] // other)
    for tile in range(found.shape[1]):
        blocks = [
            (slice(own * tile, own * tile + own), slice(other * n, other * n + other))
            for n in range(others)
        ]
        meets = [n for n in range(others) if same[blocks[n]].any()]
        full = [n for n in meets if same[blocks[n]].all()]
        near_lead = [n for n in meets if not leads[blocks[n]].all()]
        near_trail = [n for n in meets if not trails[blocks[n]].all()]
        assert found[0, tile].tolist() == [
            meets[0], full[0] if full else others, full[-1] + 1 if full else others, meets[-1] + 1,
            near_lead[0] if near_lead else others, near_trail[-1] + 1 if near_trail else 0,
        ]  # fmt: skip
