"""Ways to compute attention with a bias on a CUDA device: ours, and what else there is."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

import ordinate
from ordinate import DistanceBias, PositionEncoding

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
_SMALL_TILES = {"BLOCK_M": 64, "BLOCK_N": 32, "num_stages": 1}  # of FlexAttention


class Kerple(PositionEncoding):
    """KERPLE's logarithmic bias, to stand for any learned vector as long as the sequence."""

    def __init__(self, num_heads: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.rate = nn.Parameter(torch.rand(num_heads) * 2)
        self.spread = nn.Parameter(torch.rand(num_heads))

    def bias(self, q, k, q_positions=None, k_positions=None, *, x=None):
        places = ordinate.positions.resolve(q, k, q_positions, k_positions)
        distance = torch.arange(self.length, device=q.device)
        table = -self.rate[:, None] * torch.log1p(self.spread[:, None] * distance)
        return DistanceBias(table, places, lo=0)


@dataclass
class Candidate:
    """One way to compute a biased attention, with the parameters that learn."""

    name: str
    kind: str
    ours: bool
    attend: Attend
    parameters: list[Tensor]
    reps: int = 60


def fused(encoding: PositionEncoding, name: str, kind: str, **masks: Any) -> Candidate:
    """Ours, causal unless the masks say something else."""
    arguments = {"causal": True, **masks}

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ordinate.attention(q, k, v, encoding, impl="fused", **arguments)

    learning = [p for p in encoding.parameters() if p.requires_grad]
    return Candidate(name, kind, True, attend, learning)


def sdpa(backend: SDPBackend) -> Attend:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return attend


@functools.cache
def causal_blocks(length: int) -> BlockMask:
    return create_block_mask(lambda b, h, q, k: q >= k, None, None, length, length, device="cuda")


def flex(score_mod, blocks: BlockMask, **options) -> Attend:
    compiled = torch.compile(flex_attention, **options.pop("compile", {"dynamic": False}))
    kernel_options = options or None

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return compiled(
            q,
            k,
            v,
            score_mod=score_mod,
            block_mask=blocks,
            kernel_options=kernel_options,
        )

    return attend


def frozen(encoding: PositionEncoding) -> PositionEncoding:
    return encoding.requires_grad_(False)


def candidates(
    batch: int, heads: int, length: int, dim: int, *, slow: bool
) -> Iterator[Callable[[], Candidate]]:
    """Each is made only when its turn comes, for some hold gigabytes.

    Args:
        slow: Also those that take minutes to compile or to run.
    """
    cuda = torch.device("cuda")
    slopes = ordinate.ALiBi(heads).slopes_on(cuda)

    yield lambda: Candidate("cuDNN", "none", False, sdpa(SDPBackend.CUDNN_ATTENTION), [])
    yield lambda: Candidate("flash SDPA", "none", False, sdpa(SDPBackend.FLASH_ATTENTION), [])
    yield lambda: fused(PositionEncoding(), "ordinate", "none")
    yield lambda: fused(ordinate.ALiBi(heads).to(cuda), "ordinate", "ALiBi")
    yield lambda: fused(frozen(ordinate.T5Bias(heads).to(cuda)), "ordinate", "T5 fixed")
    yield lambda: fused(frozen(ordinate.ClippedBias(heads, 64).to(cuda)), "ordinate", "clipped fixed")
    yield lambda: fused(ordinate.T5Bias(heads).to(cuda), "ordinate", "T5 learned")
    yield lambda: fused(Kerple(heads, length).to(cuda), "ordinate", "KERPLE learned")
    yield lambda: fused(ordinate.Shaw(dim, 16).to(cuda), "ordinate", "Shaw learned")

    yield lambda: Candidate("FlexAttention", "none", False, flex(None, causal_blocks(length)), [])
    yield lambda: Candidate(
        "FlexAttention", "ALiBi", False,
        flex(lambda s, b, h, q, k: s - slopes[h] * (q - k), causal_blocks(length)), [],
    )  # fmt: skip
    yield lambda: _dense_alibi(slopes, length)
    if batch == 1 and length <= 4096:
        yield lambda: _shaw_einsum(heads, length, dim)
    yield lambda: _flex_learned_vector(heads, length)
    if slow:
        yield lambda: _flex_learned_as_written(heads, length)
        yield lambda: _flex_learned_vector(heads, length, autotuned=True)


def _dense_alibi(slopes: Tensor, length: int) -> Candidate:
    index = torch.arange(length, device="cuda")
    distance = index[:, None] - index
    mask = torch.where(distance >= 0, -slopes[:, None, None] * distance, -math.inf)[None].bfloat16()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    return Candidate("SDPA, dense mask", "ALiBi", False, attend, [], 20)


def _shaw_einsum(heads: int, length: int, dim: int) -> Candidate:
    """Shaw's layer as tutorials write it: a vector for every pair, contracted with the queries."""
    keys = nn.Parameter(torch.randn(33, dim, device="cuda").bfloat16() * 0.1)
    index = torch.arange(length, device="cuda")
    rows = (index[None, :] - index[:, None]).clamp(-16, 16) + 16
    hidden = torch.ones(length, length, dtype=torch.bool, device="cuda").triu(1)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        logits = (
            q @ k.transpose(-1, -2) + torch.einsum("bhqd,qkd->bhqk", q, F.embedding(rows, keys))
        ) * dim**-0.5
        return torch.softmax(logits.masked_fill(hidden, -math.inf), dim=-1) @ v

    return Candidate("einsum", "Shaw learned", False, attend, [keys], 5)


def _flex_learned_vector(heads: int, length: int, autotuned: bool = False) -> Candidate:
    """FlexAttention at its best known: the buckets expanded to a vector over distances first.

    With its default tiles it does not compile, for want of shared memory; a table as users write it does with small
    ones.
    """
    vector = nn.Parameter(torch.randn(heads, length, device="cuda") * 0.02)
    tuned = {"compile": {"dynamic": False, "mode": "max-autotune-no-cudagraphs"}}
    attend = flex(
        lambda s, b, h, q, k: s + vector[h, (q - k).clamp(min=0)],
        causal_blocks(length),
        **(tuned if autotuned else _SMALL_TILES),
    )
    name = "FlexAttention, vector, autotuned" if autotuned else "FlexAttention, vector"
    return Candidate(name, "T5 learned", False, attend, [vector])


def _flex_learned_as_written(heads: int, length: int) -> Candidate:
    table = nn.Parameter(torch.randn(32, heads, device="cuda") * 0.02)
    buckets = ordinate.T5Bias(heads).buckets(torch.arange(length)).to("cuda")
    attend = flex(
        lambda s, b, h, q, k: s + table[buckets[(q - k).clamp(min=0)], h],
        causal_blocks(length),
        **_SMALL_TILES,
    )
    return Candidate("FlexAttention, as written", "T5 learned", False, attend, [table], 1)


def plain(
    q: Tensor, k: Tensor, v: Tensor, encoding: PositionEncoding, seen: Tensor | None = None
) -> Tensor:
    """Attention as users write it, every step in the dtype of q; causal if nothing else says who sees whom."""
    scale, groups = q.shape[-1] ** -0.5, q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
    logits = q @ k.transpose(-1, -2) * scale
    bias = encoding.bias(q, k)
    if bias is not None:
        logits = logits + (bias.dense() * (scale if bias.scaled else 1.0)).to(q.dtype)
    if seen is None:
        every = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device)
        seen = every.tril(k.shape[2] - q.shape[2])
    return torch.softmax(logits.masked_fill(~seen, -math.inf), dim=-1) @ v
