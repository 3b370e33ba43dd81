"""Positions are integers: made, packed, padded, and resolved where they are left out."""

from __future__ import annotations

import pytest
import torch

from ordinate import positions


def _equal(actual: torch.Tensor, expected: list) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected))


def test_sequential_counts_on_from_a_start():
    _equal(positions.sequential(3, start=7), [7, 8, 9])


def test_packed_sequences_count_from_zero_each():
    _equal(positions.packed([2, 3, 1]), [0, 1, 0, 1, 2, 0])
    _equal(positions.segment_ids([2, 3, 1]), [0, 0, 1, 1, 1, 2])
    _equal(positions.packed(torch.tensor([1, 2])), [0, 0, 1])


def test_left_padding_starts_at_the_first_token():
    mask = torch.tensor([[False, False, True, True], [True, True, True, True]])
    _equal(positions.left_padded(mask), [[0, 0, 0, 1], [0, 1, 2, 3]])


def test_a_grid_is_row_major():
    _equal(positions.grid(2, 3)[:, 0], [[0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]])
    assert positions.grid(2, 3, 4).shape == (3, 1, 24)


def test_randomized_positions_are_sorted_distinct_and_anew_for_every_row():
    drawn = positions.randomized(20, 100, batch=64, generator=torch.Generator().manual_seed(0))
    assert bool((drawn.diff(dim=-1) > 0).all())
    assert int(drawn.min()) >= 0
    assert int(drawn.max()) <= 99
    assert len(torch.unique(drawn, dim=0)) == 64
    assert len(drawn.unique()) == 100


def test_left_out_positions_align_queries_to_the_end_of_the_keys():
    q, k = torch.zeros(1, 2, 3, 4), torch.zeros(1, 1, 5, 4)
    places = positions.resolve(q, k, None, None)
    queries, keys = places.queries, places.keys
    _equal(queries, [[2, 3, 4]])
    _equal(keys, [[0, 1, 2, 3, 4]])


@pytest.mark.parametrize("given", ["q_positions", "k_positions"])
def test_one_given_position_serves_both_when_lengths_agree(given: str):
    q = torch.zeros(2, 2, 3, 4)
    arguments = {"q_positions": None, "k_positions": None, given: torch.tensor([5, 1, 7])}
    places = positions.resolve(q, q, **arguments)
    for found in (places.queries, places.keys):
        _equal(found, [[5, 1, 7]])


@pytest.mark.plain
def test_one_given_position_is_refused_when_lengths_differ():
    q, k = torch.zeros(1, 2, 3, 4), torch.zeros(1, 1, 5, 4)
    with pytest.raises(ValueError, match=r"k_positions must be given .* got 3 queries and 5 keys"):
        positions.resolve(q, k, torch.arange(3), None)
    with pytest.raises(ValueError, match=r"q_positions must be given .* got 3 queries and 5 keys"):
        positions.resolve(q, k, None, torch.arange(5))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_any_integer_dtype_will_do(dtype: torch.dtype):
    q = torch.zeros(1, 1, 3, 4)
    queries = positions.resolve(q, q, torch.tensor([200, 1, 7]).to(dtype), None).queries
    _equal(queries, [[200, 1, 7]])
