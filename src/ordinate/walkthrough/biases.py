"""Biases on a short sequence: slopes, buckets and clipped distances, and the matrices they make."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..attending.call import scaled_dense
from ..bias.add import parts_of
from ..bias.alibi import ALiBi
from ..bias.clipped import ClippedBias
from ..bias.shaw import Shaw
from ..bias.t5 import T5Bias
from ..bias.types import Bias
from ..encoding import PositionEncoding
from .setting import Example
from .walk import Step, step

_SHOWN_HEADS = 2


def steps_of_alibi(encoding: ALiBi, example: Example) -> list[Step]:
    slopes = encoding.slopes_on(torch.device("cpu"), torch.float64).detach()
    return [
        step(
            "the slope of each head",
            ("head", "slope", "log2", "one logit lower after"),
            [(head, slope, slope.log2(), 1 / slope) for head, slope in enumerate(slopes)],
            formula=f"2^(-{encoding.max_exponent:g}(h+1)/n) for n heads, a power of two; other numbers have the "
            "slopes of the power below, then every other one of the power above",
            note="the last column is in positions",
        ),
        *bias_matrices(encoding, example, causal=not encoding.symmetric),
    ]


def steps_of_t5(encoding: T5Bias, example: Example) -> list[Step]:
    distances = _distances(example)
    buckets = encoding.buckets(distances)
    reach = encoding.max_distance
    listed = torch.arange(-reach if encoding.bidirectional else 0, reach + 1)
    bucket_of = encoding.buckets(listed)
    half = encoding.num_buckets // 2
    upper = (
        f"keys to the right of the query have the upper half, where bucket {half} is never used: "
        "distance 0 is in bucket 0"
    )
    future = upper if encoding.bidirectional else "the future shares bucket 0"
    ranges = []
    for bucket in range(encoding.num_buckets):
        members = listed[bucket_of == bucket]
        if len(members):
            low, high = sorted((int(members[0]), int(members[-1])), key=abs)
            text = _range(low, high, open_ended=abs(high) == reach)
            ranges.append((bucket, text, *encoding.weight[bucket, :_SHOWN_HEADS].detach()))
    return [
        step(
            "the distances of each bucket",
            ("bucket", "query - key", *(f"head {h}" for h in range(min(_SHOWN_HEADS, encoding.num_heads)))),
            ranges,
            formula="near distances have a bucket each, far ones share, logarithmically",
            note=f"weights as they are initialised; {future}",
        ),
        _matrix(f"the bucket of each pair among {example.length} tokens", buckets, causal=False),
        *bias_matrices(encoding, example, causal=not encoding.bidirectional),
    ]  # fmt: skip


def _range(low: int, high: int, *, open_ended: bool) -> str:
    if open_ended:
        return f"{low} and beyond"
    return str(low) if low == high else f"{low} to {high}"


def steps_of_clipped(encoding: ClippedBias, example: Example) -> list[Step]:
    reach = encoding.max_distance
    rows = encoding.buckets(_distances(example))
    return [
        _matrix(
            f"the row of the table for each pair among {example.length} tokens",
            rows,
            causal=False,
            formula=f"clip(query - key, ±{reach}) + {reach}",
        ),
        *bias_matrices(encoding, example, causal=False),
    ]


def steps_of_shaw(encoding: Shaw, example: Example) -> list[Step]:
    reach, dim = encoding.max_distance, encoding.head_dim
    rows = (-_distances(example)).clamp(-reach, reach) + reach
    q, k = example.vectors(1, dim), example.vectors(1, dim, seed=1)
    content = (q @ k.transpose(-1, -2))[0, 0]
    described = encoding.bias(q, k)
    relative = described.dense()[0, 0].detach()
    last = example.length - 1
    return [
        _matrix(
            f"the row of the keys' table for each pair among {example.length} tokens",
            rows,
            causal=False,
            formula=f"clip(key - query, ±{reach}) + {reach}",
        ),
        step(
            f"the scores of query {last}",
            ("key", "row", "q·k", "q·keys[row]", "score"),
            [
                (j, rows[last, j], content[last, j], relative[last, j], (content + relative)[last, j] / math.sqrt(dim))
                for j in range(example.length)
            ],
            formula=f"(q·k + q·keys[row]) / sqrt({dim})",
            note="the position term depends on the query and shares the softmax scale",
        ),
    ]  # fmt: skip


def bias_matrices(encoding: PositionEncoding, example: Example, *, causal: bool) -> list[Step]:
    """What is added to the scores of a short sequence, for the first heads, and of one query further on."""
    dense = dense_bias(encoding, example)
    heads = range(min(_SHOWN_HEADS, dense.shape[0]))
    matrices = [
        _matrix(f"what head {head} adds to the scores", dense[head], causal=causal) for head in heads
    ]
    return [_query(encoding, example), *matrices]


def _query(encoding: PositionEncoding, example: Example) -> Step:
    """The bias of the query at the example's position with the keys before it."""
    place = example.position
    keys = torch.arange(max(place - example.length + 1, 0), place + 1)
    q = example.vectors(example.heads, example.dim)[:, :, :1]
    k = example.vector(example.dim, seed=1).expand(1, example.heads, len(keys), -1)
    x = example.vector(example.dim, seed=2).expand(1, len(keys), -1)
    rows = _summed(encoding, encoding.bias(q, k, torch.tensor([place]), keys, x=x), example.dim)[0, :, 0]
    shown = min(4, rows.shape[0])
    return step(
        f"what a query at position {place} adds to its scores",
        ("key", "distance", *(f"head {head}" for head in range(shown))),
        [(int(key), place - int(key), *rows[:shown, at]) for at, key in enumerate(keys)],
    )


def _summed(encoding: PositionEncoding, bias: Bias | None, dim: int) -> Tensor:
    """A bias in float64, with the softmax scale on the parts that share it."""
    scale = encoding.logit_factor / math.sqrt(dim)
    total = torch.zeros((), dtype=torch.float64)
    for part in parts_of(bias):
        total = total + scaled_dense(part, scale, torch.float64)
    return total.detach()


def dense_bias(encoding: PositionEncoding, example: Example) -> Tensor:
    """``[heads, length, length]`` in float64, with the softmax scale where a bias shares it."""
    q = example.vectors(example.heads, example.dim)
    k = example.vectors(example.heads, example.dim, seed=1)
    x = torch.randn(
        1, example.length, example.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    )
    shape = (1, example.heads, example.length, example.length)
    return (
        torch.zeros(shape, dtype=torch.float64)
        + _summed(encoding, encoding.bias(q, k, x=x), example.dim)
    )[0]


def _distances(example: Example) -> Tensor:
    places = torch.arange(example.length)
    return places[:, None] - places


def _matrix(title: str, matrix: Tensor, *, causal: bool, formula: str = "") -> Step:
    """Queries down, keys across; the future of a causal bias is not there."""
    size = matrix.shape[0]
    columns = ("query", *(f"key {j}" for j in range(size)))
    rows = [(i, *(None if causal and j > i else matrix[i, j] for j in range(size))) for i in range(size)]
    return step(title, columns, rows, formula=formula)
