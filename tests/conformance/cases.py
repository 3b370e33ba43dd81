"""Named examples of every catalog entry, each with the oracle it must equal."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import ordinate
from ordinate import ALiBi, ClippedBias, Combined, Learned, NoPE, RoPE, Shaw, Sinusoidal, T5Bias, scaling

from . import oracles
from .oracles import Oracle

HEAD_DIM = 8
D_MODEL = 32
MAX_POSITIONS = 64
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
LOW = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Case:
    """One encoding with its options, and what it claims."""

    id: str
    entries: tuple[str, ...]  # the catalog names it exercises
    make: Callable[[], ordinate.PositionEncoding]
    oracle: Callable[[ordinate.PositionEncoding], list[Oracle]]
    hooks: tuple[str, ...]
    num_heads: int = 4
    axes: int = 1
    relative: bool = True  # logits depend on differences of positions alone

    def build(self) -> ordinate.PositionEncoding:
        """The encoding with parameters large enough to matter, the same every time."""
        torch.manual_seed(1)
        encoding = self.make()
        with torch.no_grad():
            for parameter in encoding.parameters():
                parameter += 0.5 * torch.randn(parameter.shape)
        return encoding

    @property
    def d_model(self) -> int:
        return self.num_heads * HEAD_DIM

    def positions(self, positions: Tensor) -> Tensor:
        """Positions ``[batch, seq]``, with different further axes where the encoding has several."""
        if self.axes == 1:
            return positions
        axes = [positions, positions // 2, positions % 3][: self.axes]
        return torch.stack(axes)

    def listed(self, positions: Tensor) -> list:
        """The same as ``[batch][seq][axis]``, for the oracles."""
        located = self.positions(positions)
        located = located[None] if self.axes == 1 else located
        return located.movedim(0, -1).tolist()

    def qkv(self, length: int, dtype: torch.dtype, *, batch: int = 2, kv_heads: int = 2):
        torch.manual_seed(2)
        shapes = [(batch, h, length, HEAD_DIM) for h in (self.num_heads, kv_heads, kv_heads)]
        return tuple(torch.randn(shape, dtype=torch.float64).to(dtype) for shape in shapes)

    def x(self, length: int, dtype: torch.dtype, *, batch: int = 2) -> Tensor:
        torch.manual_seed(3)
        return torch.randn(batch, length, self.d_model, dtype=torch.float64).to(dtype)


def _embed(id: str, entry: str, make, oracle) -> Case:
    return Case(id, (entry,), make, lambda e: [oracle(e)], ("embed",), relative=False)


def _rope(
    id: str, frequencies, *, entries=(), factor=1.0, axes=None, logit_factor=1.0, **options
) -> Case:
    """``frequencies``: what `oracles` says they are."""
    layout = options.get("layout", "half")
    return Case(
        id,
        ("rope", *entries),
        lambda: RoPE(HEAD_DIM, **options),
        lambda e: [oracles.rope(frequencies, layout, factor, axes, logit_factor)],
        ("rotate",),
        axes=len(options.get("sections", (1,))),
    )


def _scaled(id: str, entry: str, scaling_value, frequencies, *, factor=1.0, logit_factor=1.0) -> Case:
    return _rope(
        f"rope+{id}", frequencies, entries=(entry,), factor=factor, logit_factor=logit_factor,
        scaling=scaling_value,
    )  # fmt: skip


def _bias(id: str, entry: str, make, oracle, num_heads: int = 4) -> Case:
    return Case(id, (entry,), make, lambda e: [oracle(e)], ("bias",), num_heads)


_B, _D = 10000.0, HEAD_DIM
_PLAIN = oracles.plain(_B, _D)
_SHORT, _LONG = (1.0, 1.25, 1.5, 2.0), (1.0, 2.0, 4.5, 9.0)
_SECTIONS = (2, 1, 1)
_YARN = 0.1 * math.log(4) + 1


def _magnitude(m: float) -> float:
    return 0.1 * m * math.log(4) + 1


CASES = [
    Case("none", ("none",), NoPE, lambda e: [], ()),
    _embed("sinusoidal", "sinusoidal", lambda: Sinusoidal(D_MODEL), lambda e: oracles.sinusoidal(D_MODEL)),
    _embed("sinusoidal-t2t", "sinusoidal",
           lambda: Sinusoidal(D_MODEL, layout="half", endpoint=True),
           lambda e: oracles.sinusoidal(D_MODEL, layout="half", endpoint=True)),
    _embed("sinusoidal-base-offset", "sinusoidal",
           lambda: Sinusoidal(D_MODEL, base=50.0, offset=2),
           lambda e: oracles.sinusoidal(D_MODEL, base=50.0, offset=2)),
    _embed("learned", "learned", lambda: Learned(MAX_POSITIONS, D_MODEL), lambda e: oracles.learned(e.weight)),
    _embed("learned-offset", "learned",
           lambda: Learned(MAX_POSITIONS, D_MODEL, offset=2), lambda e: oracles.learned(e.weight, 2)),
    _rope("rope", _PLAIN),
    _rope("rope-interleaved", _PLAIN, layout="interleaved"),
    _rope("rope-base", oracles.plain(1e6, _D), base=1e6),
    _rope("rope-partial", oracles.plain(_B, 6), rotary_dim=6),
    _rope("rope-partial-interleaved", oracles.plain(_B, 4), rotary_dim=4, layout="interleaved"),
    _rope("rope-sections", _PLAIN, axes=oracles.chunked_axes(_SECTIONS), sections=_SECTIONS),
    _rope("rope-sections-interleaved", _PLAIN, axes=oracles.interleaved_axes(_SECTIONS),
          sections=_SECTIONS, section_layout="interleaved"),
    _rope("rope-sections-pairs-interleaved", _PLAIN, axes=oracles.chunked_axes((1, 3)),
          sections=(1, 3), layout="interleaved"),
    _scaled("linear", "linear", scaling.Linear(4), [w / 4 for w in _PLAIN]),
    _scaled("ntk", "ntk", scaling.NTK(4), oracles.ntk(_B, _D, 4)),
    _scaled("dynamic", "dynamic", scaling.DynamicNTK(2, 8), oracles.dynamic(_B, _D, 2, 8)),
    _scaled("yarn", "yarn", scaling.YaRN(4, 64), oracles.yarn(_B, _D, 4, 64), factor=_YARN),
    _scaled("yarn-paper", "yarn", scaling.YaRN(4, 64, dialect="paper"),
            oracles.yarn(_B, _D, 4, 64, dialect="paper"), factor=_YARN),
    _scaled("yarn-minimind", "yarn", scaling.YaRN(4, 64, dialect="minimind"),
            oracles.yarn(_B, _D, 4, 64, dialect="minimind")),
    _scaled("yarn-untruncated", "yarn", scaling.YaRN(4, 64, truncate=False, attention_factor=1.5),
            oracles.yarn(_B, _D, 4, 64, truncate=False), factor=1.5),
    _scaled("yarn-deepseek", "yarn", scaling.YaRN(4, 64, 8, 2, mscale=0.7, mscale_all_dim=1.4),
            oracles.yarn(_B, _D, 4, 64, 8, 2), factor=_magnitude(0.7) / _magnitude(1.4),
            logit_factor=_magnitude(1.4) ** 2),
    _scaled("longrope", "longrope", scaling.LongRoPE(_SHORT, _LONG, 8, factor=4),
            oracles.longrope(_B, _D, _SHORT, _LONG, 8), factor=math.sqrt(1 + math.log(4) / math.log(8))),
    _scaled("longrope-short", "longrope", scaling.LongRoPE(_SHORT, _LONG, 4096, attention_factor=1.2),
            oracles.longrope(_B, _D, _SHORT, _LONG, 4096), factor=1.2),
    _scaled("llama3", "llama3", scaling.Llama3(8, 1, 4, 64), oracles.llama3(_B, _D, 8, 1, 4, 64)),
    _scaled("proportional", "proportional", scaling.Proportional(0.75, 2),
            oracles.proportional(_B, _D, 0.75, 2)),
    _bias("alibi", "alibi", lambda: ALiBi(4), lambda e: oracles.alibi(oracles.reference_slopes(4))),
    _bias("alibi-6-heads-symmetric", "alibi", lambda: ALiBi(6, symmetric=True),
          lambda e: oracles.alibi(oracles.reference_slopes(6), symmetric=True), 6),
    _bias("alibi-trainable", "alibi", lambda: ALiBi(4, trainable=True),
          lambda e: oracles.alibi(e.slopes.double().tolist())),
    _bias("alibi-slice", "alibi", lambda: ALiBi(12, heads=slice(6, 10)),
          lambda e: oracles.alibi(oracles.reference_slopes(12)[6:10])),
    _bias("clipped", "clipped", lambda: ClippedBias(4, 5), lambda e: oracles.clipped(e.weight, 5)),
    _bias("t5", "t5", lambda: T5Bias(4), lambda e: oracles.t5(e.weight)),
    _bias("t5-bidirectional", "t5", lambda: T5Bias(4, bidirectional=True),
          lambda e: oracles.t5(e.weight, bidirectional=True)),
    _bias("t5-few-buckets", "t5", lambda: T5Bias(4, num_buckets=8, max_distance=11),
          lambda e: oracles.t5(e.weight, 8, 11)),
    _bias("shaw", "shaw", lambda: Shaw(HEAD_DIM, 3), lambda e: oracles.shaw(e.keys, 3)),
    _bias("shaw-values", "shaw", lambda: Shaw(HEAD_DIM, 3, values=True),
          lambda e: oracles.shaw(e.keys, 3, e.values)),
    Case("sinusoidal+rope", ("sinusoidal", "rope"),
         lambda: Combined(Sinusoidal(D_MODEL), RoPE(HEAD_DIM)),
         lambda e: [oracles.sinusoidal(D_MODEL), oracles.rope(_PLAIN)], ("embed", "rotate"), relative=False),
    Case("rope+alibi", ("rope", "alibi"), lambda: Combined(RoPE(HEAD_DIM), ALiBi(4)),
         lambda e: [oracles.rope(_PLAIN), oracles.alibi(oracles.reference_slopes(4))], ("rotate", "bias")),
    Case("rope+yarn+t5", ("rope", "yarn", "t5"),
         lambda: Combined(RoPE(HEAD_DIM, scaling=scaling.YaRN(4, 64)), T5Bias(4)),
         lambda e: [oracles.rope(oracles.yarn(_B, _D, 4, 64), factor=_YARN),
                    oracles.t5(e.encodings[1].weight)], ("rotate", "bias")),
    Case("alibi+t5", ("alibi", "t5"), lambda: Combined(ALiBi(4), T5Bias(4)),
         lambda e: [oracles.alibi(oracles.reference_slopes(4)), oracles.t5(e.encodings[1].weight)], ("bias",)),
    Case("clipped+t5", ("clipped", "t5"), lambda: Combined(ClippedBias(4, 5), T5Bias(4, bidirectional=True)),
         lambda e: [oracles.clipped(e.encodings[0].weight, 5),
                    oracles.t5(e.encodings[1].weight, bidirectional=True)], ("bias",)),
    Case("shaw+alibi", ("shaw", "alibi"), lambda: Combined(Shaw(HEAD_DIM, 3, values=True), ALiBi(4)),
         lambda e: [oracles.shaw(e.encodings[0].keys, 3, e.encodings[0].values),
                    oracles.alibi(oracles.reference_slopes(4))], ("bias",)),
]  # fmt: skip


def cases(*hooks: str, only: Callable[[Case], bool] = lambda case: True):
    """Parametrise over the cases with one of these hooks; over all if none is named."""
    chosen = [c for c in CASES if (not hooks or set(hooks) & set(c.hooks)) and only(c)]
    return pytest.mark.parametrize("case", chosen, ids=[case.id for case in chosen])


def dtypes(*chosen: torch.dtype):
    return pytest.mark.parametrize(
        "dtype", chosen or DTYPES, ids=lambda d: str(d).removeprefix("torch.")
    )


def causal_only(case: Case) -> bool:
    """Whether the bias may only be used under a causal mask."""
    encoding = case.build()
    q, k, _ = case.qkv(2, torch.float32)
    bias = encoding.bias(q, k)
    return bias is not None and bias.causal_only
