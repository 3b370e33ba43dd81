"""Biases on a short sequence: slopes, buckets and clipped distances, and the matrices they make."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..bias.alibi import ALiBi
from ..bias.clipped import ClippedBias
from ..bias.shaw import Shaw
from ..bias.t5 import T5Bias
from ..bias.types import Bias
from ..encoding import PositionEncoding
from ..setting import Setting, normal
from ..verification import observe
from .walk import Step, step

_SHOWN_HEADS = 2


def steps_of_alibi(encoding: ALiBi, setting: Setting) -> list[Step]:
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
        *bias_matrices(encoding, setting, causal=not encoding.symmetric),
    ]


def steps_of_t5(encoding: T5Bias, setting: Setting) -> list[Step]:
    distances = _distances(setting)
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
        _matrix(f"the bucket of each pair among {setting.length} tokens", buckets, causal=False),
        *bias_matrices(encoding, setting, causal=not encoding.bidirectional),
    ]  # fmt: skip


def _range(low: int, high: int, *, open_ended: bool) -> str:
    if open_ended:
        return f"{low} and beyond"
    return str(low) if low == high else f"{low} to {high}"


def steps_of_clipped(encoding: ClippedBias, setting: Setting) -> list[Step]:
    reach = encoding.max_distance
    rows = encoding.buckets(_distances(setting))
    return [
        _matrix(
            f"the row of the table for each pair among {setting.length} tokens",
            rows,
            causal=False,
            formula=f"clip(query - key, ±{reach}) + {reach}",
        ),
        *bias_matrices(encoding, setting, causal=False),
    ]


def steps_of_shaw(encoding: Shaw, setting: Setting) -> list[Step]:
    reach, dim = encoding.max_distance, encoding.head_dim
    rows = (-_distances(setting)).clamp(-reach, reach) + reach
    q, k = normal(1, 1, setting.length, dim), normal(1, 1, setting.length, dim, seed=1)
    content = (q @ k.transpose(-1, -2))[0, 0]
    described = encoding.bias(q, k)
    relative = described.dense()[0, 0].detach()
    last = setting.length - 1
    return [
        _matrix(
            f"the row of the keys' table for each pair among {setting.length} tokens",
            rows,
            causal=False,
            formula=f"clip(key - query, ±{reach}) + {reach}",
        ),
        step(
            f"the scores of query {last}",
            ("key", "row", "q·k", "q·keys[row]", "score"),
            [
                (j, rows[last, j], content[last, j], relative[last, j], (content + relative)[last, j] / math.sqrt(dim))
                for j in range(setting.length)
            ],
            formula=f"(q·k + q·keys[row]) / sqrt({dim})",
            note="the position term depends on the query and shares the softmax scale",
        ),
    ]  # fmt: skip


def bias_matrices(encoding: PositionEncoding, setting: Setting, *, causal: bool) -> list[Step]:
    """What is added to the scores of a short sequence, for the first heads, and of one query further on."""
    dense = dense_bias(encoding, setting)
    heads = range(min(_SHOWN_HEADS, dense.shape[0]))
    matrices = [
        _matrix(f"what head {head} adds to the scores", dense[head], causal=causal) for head in heads
    ]
    return [_query(encoding, setting), *matrices]


def _query(encoding: PositionEncoding, setting: Setting) -> Step:
    """The bias of the query at the example's position with the keys before it."""
    place = setting.position
    keys = torch.arange(max(place - setting.length + 1, 0), place + 1)
    q = normal(1, setting.num_heads, setting.length, setting.head_dim)[:, :, :1]
    k = normal(setting.head_dim, seed=1).expand(1, setting.num_heads, len(keys), -1)
    x = normal(setting.d_model, seed=2).expand(1, len(keys), -1)
    bias = encoding.bias(q, k, torch.tensor([place]), keys, x=x)
    rows = _dense(encoding, setting, bias, (*q.shape[:3], len(keys)))[0, :, 0]
    shown = min(4, rows.shape[0])
    return step(
        f"what a query at position {place} adds to its scores",
        ("key", "distance", *(f"head {head}" for head in range(shown))),
        [(int(key), place - int(key), *rows[:shown, at]) for at, key in enumerate(keys)],
    )


def dense_bias(encoding: PositionEncoding, setting: Setting) -> Tensor:
    """``[heads, length, length]`` in float64, with the softmax scale where a bias shares it."""
    q, k = (normal(1, setting.num_heads, setting.length, setting.head_dim, seed=seed) for seed in (0, 1))
    x = normal(1, setting.length, setting.d_model, seed=2)
    return _dense(encoding, setting, encoding.bias(q, k, x=x), (*q.shape[:3], setting.length))[0]


def _dense(
    encoding: PositionEncoding, setting: Setting, bias: Bias | None, shape: tuple[int, ...]
) -> Tensor:
    if bias is None:
        return torch.zeros(shape, dtype=torch.float64)
    return observe.dense_bias(bias, encoding, setting, torch.float64).detach().expand(shape)


def _distances(setting: Setting) -> Tensor:
    places = torch.arange(setting.length)
    return places[:, None] - places


def _matrix(title: str, matrix: Tensor, *, causal: bool, formula: str = "") -> Step:
    """Queries down, keys across; the future of a causal bias is not there."""
    size = matrix.shape[0]
    columns = ("query", *(f"key {j}" for j in range(size)))
    rows = [(i, *(None if causal and j > i else matrix[i, j] for j in range(size))) for i in range(size)]
    return step(title, columns, rows, formula=formula)
