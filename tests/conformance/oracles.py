"""The papers' formulas in float64, one number at a time. Nothing here calls ordinate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Vector = list[float]
Frequencies = Callable[[int], Vector]  # of the sequence's length


@dataclass(frozen=True)
class Oracle:
    """What an encoding does to one token, or to one pair of tokens."""

    code: Callable[[int], Vector] | None = None  # of a position, added to the embedding
    turn: Callable[[Vector, Sequence[int], int], Vector] | None = None  # of head, position, length
    logit: Callable[[int, Vector, int], float] | None = None  # of head index, query, distance
    scaled: bool = False  # whether the logit is multiplied by the softmax scale
    value: Callable[[int], Vector] | None = None  # of a distance, added to the value
    logit_factor: float = 1.0


# Absolute codes.


def sinusoidal(d: int, base=10000.0, layout="interleaved", endpoint=False, offset=0) -> Oracle:
    """Vaswani et al. 2017, 3.5; with ``endpoint`` tensor2tensor's get_timing_signal_1d."""

    def code(position: int) -> Vector:
        pairs = []
        for i in range(d // 2):
            frequency = base ** (-i / (d // 2 - 1)) if endpoint else base ** (-2 * i / d)
            angle = (position + offset) * frequency
            pairs.append((math.sin(angle), math.cos(angle)))
        if layout == "half":
            return [sine for sine, _ in pairs] + [cosine for _, cosine in pairs]
        return [number for pair in pairs for number in pair]

    return Oracle(code=code)


def learned(weight: Tensor, offset=0) -> Oracle:
    rows = weight.double().tolist()
    return Oracle(code=lambda position: rows[position + offset])


# Rotary frequencies: each returns base^(-2i/d) as its scaling changes it.


def plain(base: float, d: int) -> Vector:
    return [base ** (-2 * i / d) for i in range(d // 2)]


def ntk(base: float, d: int, s: float) -> Vector:
    return plain(base * s ** (d / (d - 2)), d)


def dynamic(base: float, d: int, f: float, original: int) -> Frequencies:
    """Hugging Face's "dynamic"."""
    return lambda length: ntk(base, d, f * max(length, original) / original - (f - 1))


def yarn(
    base: float, d: int, s: float, original: int, fast=32.0, slow=1.0, truncate=True, dialect="hf"
) -> Vector:
    """Peng et al. 2023: eq. 18–19 for the paper, the authors' code for "hf", MiniMind's for "minimind"."""

    def index_of(turns: float) -> float:
        return d * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = index_of(fast), index_of(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, d // 2 - 1 if dialect == "minimind" else d - 1)
    result = []
    for i, frequency in enumerate(plain(base, d)):
        if dialect == "paper":
            turns = original * frequency / (2 * math.pi)
            ramp = 1 - min(max((turns - slow) / (fast - slow), 0.0), 1.0)
        elif dialect == "minimind":
            ramp = min(max((i - low) / max(high - low, 0.001), 0.0), 1.0)
        else:
            ramp = min(max((i - low) / (high - low if high != low else 0.001), 0.0), 1.0)
        result.append(frequency * (1 - ramp) + frequency / s * ramp)
    return result


def longrope(
    base: float, d: int, short: Sequence[float], long: Sequence[float], original: int
) -> Frequencies:
    def frequencies(length: int) -> Vector:
        divisors = short if length <= original else long
        return [1 / (divisors[i] * base ** (2 * i / d)) for i in range(d // 2)]

    return frequencies


def llama3(base: float, d: int, factor: float, low: float, high: float, original: int) -> Vector:
    """Meta's llama-models: by wavelength, not by frequency."""
    result = []
    for frequency in plain(base, d):
        wavelength = 2 * math.pi / frequency
        if wavelength < original / high:
            result.append(frequency)
        elif wavelength > original / low:
            result.append(frequency / factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            result.append((1 - smooth) * frequency / factor + smooth * frequency)
    return result


def proportional(base: float, d: int, fraction: float, factor=1.0) -> Vector:
    turning = int(fraction * d // 2)
    return [w / factor if i < turning else 0.0 for i, w in enumerate(plain(base, d))]


# Rotation.


def chunked_axes(sections: Sequence[int]) -> list[int]:
    return [axis for axis, count in enumerate(sections) for _ in range(count)]


def interleaved_axes(sections: Sequence[int]) -> list[int]:
    """Qwen3-VL: all pairs time, then every third overwritten by height, every third by width."""
    axes = [0] * sum(sections)
    for axis in range(1, len(sections)):
        for pair in range(axis, sections[axis] * len(sections), len(sections)):
            axes[pair] = axis
    return axes


def rope(
    frequencies: Vector | Frequencies,
    layout="half",
    factor=1.0,
    axes: Sequence[int] | None = None,
    logit_factor=1.0,
) -> Oracle:
    """Su et al. 2021, eq. 13–15. Channels beyond the frequencies' pairs pass through."""

    def turn(head: Vector, position: Sequence[int], length: int) -> Vector:
        omegas = frequencies(length) if callable(frequencies) else frequencies
        pairs, turned = len(omegas), list(head)
        for i, omega in enumerate(omegas):
            first, second = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, i + pairs)
            angle = position[axes[i] if axes and len(position) > 1 else 0] * omega
            cos, sin = factor * math.cos(angle), factor * math.sin(angle)
            turned[first] = head[first] * cos - head[second] * sin
            turned[second] = head[second] * cos + head[first] * sin
        return turned

    return Oracle(turn=turn, logit_factor=logit_factor)


# Biases: distance = query - key, the past is positive.


def reference_slopes(heads: int) -> Vector:
    """Press et al. 2021, by the recursion of the authors' code."""
    if math.log2(heads).is_integer():
        start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [start**n for n in range(1, heads + 1)]
    below = 2 ** math.floor(math.log2(heads))
    return reference_slopes(below) + reference_slopes(2 * below)[0::2][: heads - below]


def alibi(slopes: Sequence[float], symmetric=False) -> Oracle:
    return Oracle(logit=lambda h, q, distance: -slopes[h] * (abs(distance) if symmetric else distance))


def clipped(weight: Tensor, max_distance: int) -> Oracle:
    rows = weight.double().tolist()
    clip = lambda distance: min(max(distance, -max_distance), max_distance)  # noqa: E731
    return Oracle(logit=lambda h, q, distance: rows[clip(distance) + max_distance][h])


def t5_bucket(distance: int, buckets: int, max_distance: int, bidirectional: bool) -> int:
    """Raffel et al. 2019, 2.1, after tensorflow/mesh; ``relative = key - query``."""
    relative, first = -distance, 0
    if bidirectional:
        buckets //= 2
        first = buckets if relative > 0 else 0
        n = abs(relative)
    else:
        n = max(-relative, 0)
    exact = buckets // 2
    if n < exact:
        return first + n
    growth = math.log(n / exact) / math.log(max_distance / exact)
    return first + min(exact + int(growth * (buckets - exact)), buckets - 1)


def t5(weight: Tensor, buckets=32, max_distance=128, bidirectional=False) -> Oracle:
    rows = weight.double().tolist()
    return Oracle(
        logit=lambda h, q, distance: rows[t5_bucket(distance, buckets, max_distance, bidirectional)][h]
    )


def shaw(keys: Tensor, max_distance: int, values: Tensor | None = None) -> Oracle:
    """Shaw et al. 2018, eq. 3–5: rows by clip(key - query), inside the softmax scale."""
    key_rows = keys.double().tolist()
    value_rows = None if values is None else values.double().tolist()

    def row(distance: int) -> int:
        return min(max(-distance, -max_distance), max_distance) + max_distance

    return Oracle(
        logit=lambda h, q, distance: sum(a * b for a, b in zip(q, key_rows[row(distance)], strict=True)),
        scaled=True,
        value=None if value_rows is None else lambda distance: value_rows[row(distance)],
    )


# Attention.


def attention(
    oracles: Sequence[Oracle], q: Tensor, k: Tensor, v: Tensor, q_positions, k_positions, lengths, *,
    causal: bool, scale: float | None = None,
) -> Tensor:  # fmt: skip
    """softmax(q·k · scale + bias) · v in float64; positions ``[batch][seq][axis]``, lengths ``[batch]``."""
    q, k, v = q.double(), k.double(), v.double()
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    if scale is None:
        scale = math.prod(oracle.logit_factor for oracle in oracles) / math.sqrt(q.shape[-1])
    logits = rotate(oracles, q, q_positions, lengths) @ rotate(oracles, k, k_positions, lengths).mT
    logits = logits * scale + bias(oracles, q, q_positions, k_positions, scale)
    if causal:
        q_len, k_len = logits.shape[-2:]
        hidden = torch.ones(q_len, k_len, dtype=torch.bool).triu(1 + k_len - q_len)
        logits = logits.masked_fill(hidden, -math.inf)
    weights = torch.softmax(logits, dim=-1)
    out = weights @ v
    for oracle in oracles:
        if oracle.value is not None:
            vectors = [
                [[oracle.value(qp[0] - kp[0]) for kp in k_row] for qp in q_row]
                for q_row, k_row in zip(q_positions, k_positions, strict=True)
            ]
            out = out + torch.einsum(
                "bhqk,bqkd->bhqd", weights, torch.tensor(vectors, dtype=torch.float64)
            )
    return out


def rotate(oracles: Sequence[Oracle], x: Tensor, positions, lengths) -> Tensor:
    """Every head of every token turned, in float64; ``x`` is ``[batch, heads, seq, head_dim]``."""
    x = x.double()
    for oracle in oracles:
        if oracle.turn is not None:
            x = torch.tensor(
                [
                    [[oracle.turn(v, p, n) for v, p in zip(head, row, strict=True)] for head in heads]
                    for heads, row, n in zip(x.tolist(), positions, lengths, strict=True)
                ],
                dtype=torch.float64,
            )
    return x


def bias(oracles: Sequence[Oracle], q: Tensor, q_positions, k_positions, scale: float = 1.0) -> Tensor:
    """The matrix ``[batch, heads, q, k]`` added to the logits, in float64; q before rotation."""
    batch, heads = q.shape[:2]
    total = torch.zeros(batch, heads, q.shape[2], len(k_positions[0]), dtype=torch.float64)
    queries = q.double().tolist()
    for oracle in oracles:
        if oracle.logit is None:
            continue
        for b in range(batch):
            for h in range(heads):
                for i, qp in enumerate(q_positions[b]):
                    for j, kp in enumerate(k_positions[b]):
                        logit = oracle.logit(h, queries[b][h][i], qp[0] - kp[0])
                        total[b, h, i, j] += logit * scale if oracle.scaled else logit
    return total


def embed(oracles: Sequence[Oracle], x: Tensor, positions) -> Tensor:
    """``x`` and its codes, in float64."""
    x = x.double()
    for oracle in oracles:
        if oracle.code is not None:
            x = x + torch.tensor(
                [[oracle.code(p[0]) for p in row] for row in positions], dtype=torch.float64
            )
    return x
