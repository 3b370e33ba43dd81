"""Shaw's relative keys: the index matrix of the paper, its sign and its scale."""

from __future__ import annotations

import math

import torch

import ordinate
from ordinate import Shaw

INDEX = torch.tensor([[2, 3, 4, 4], [1, 2, 3, 4], [0, 1, 2, 3], [0, 0, 1, 2]])


def test_rows_follow_the_papers_index_matrix():
    """k = 2, n = 4: clip(key - query) + k."""
    shaw = Shaw(head_dim=5, max_distance=2)
    with torch.no_grad():
        shaw.keys.copy_(torch.eye(5))
    q = torch.ones(1, 1, 4, 5) * torch.arange(5.0)  # so that q · row r is r
    torch.testing.assert_close(shaw.bias(q, q).dense()[0, 0].long(), INDEX)


def test_the_table_has_one_row_more_than_twice_the_distance_and_is_shared_by_heads():
    shaw = Shaw(head_dim=8, max_distance=16, values=True)
    assert shaw.keys.shape == (33, 8)
    assert shaw.values is not None
    assert shaw.values.shape == (33, 8)


def test_attention_is_the_papers_equations():
    """Eq. 3–5 with the vectors a_ij written out, as document-sized code does it."""
    shaw = Shaw(head_dim=8, max_distance=2, values=True)
    assert shaw.values is not None
    q, k, v = torch.randn(3, 2, 3, 4, 8).unbind()
    vectors, values = shaw.keys[INDEX], shaw.values[INDEX]
    logits = (q @ k.mT + torch.einsum("bhid,ijd->bhij", q, vectors)) / math.sqrt(8)
    weights = logits.softmax(-1)
    expected = weights @ v + torch.einsum("bhij,ijd->bhid", weights, values)
    for impl in ("reference", "chunked"):
        torch.testing.assert_close(ordinate.attention(q, k, v, shaw, impl=impl), expected)


def test_a_query_knows_left_from_right():
    shaw = Shaw(head_dim=4, max_distance=3)
    q = torch.ones(1, 1, 3, 4)
    dense = shaw.bias(q, q).dense()[0, 0]
    assert float(dense[1, 0].detach()) != float(dense[1, 2].detach())
