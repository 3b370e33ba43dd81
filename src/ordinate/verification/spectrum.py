"""Properties of wavelengths, slopes and buckets."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from ..attending.api import attention
from ..encoding import Combined, PositionEncoding
from ..parts import hooks_of
from ..setting import COUNT, Setting
from .observe import bias_by_distance, causal_only, codes, need, turned
from .order import ROUNDING
from .report import Measurement, NotApplicable, short

_FAR = 2**17  # distances: some biases make a table that long
_IMPURE = 2.0**-20  # relative: what is left of a channel once its tone is taken out
_MISREAD = 1e-4  # relative: how well a frequency is known from a few thousand positions
_STILL = 1e-9  # radians a position: nothing that turns is slower


def declared_frequencies(
    encoding: nn.Module, length: int | None = None
) -> Float64[Tensor, " pairs"] | None:
    """The ``inv_freq`` that an encoding or a part of it declares, as a method or as a buffer."""
    for module in encoding.modules():
        inv_freq = getattr(module, "inv_freq", None)
        if isinstance(inv_freq, Tensor):
            return inv_freq.double()
        if callable(inv_freq):
            dependent = length is not None and getattr(module, "length_dependent", False)
            declared = inv_freq(torch.tensor([length])) if dependent else inv_freq()
            return declared.double().reshape(-1)
    return None


def wavelengths(encoding: PositionEncoding, setting: Setting) -> Measurement:
    """Every channel is a pure tone, and the frequencies are those the encoding declares.

    A pure tone of frequency w satisfies ``s(p + m) + s(p - m) = 2 cos(m w) s(p)``. So each channel's w
    is measured without knowing how channels are paired, with the longest stride m that is less than a
    quarter turn. Each part of a combination is measured by itself.
    """
    if isinstance(encoding, Combined):
        parts = [part for part in encoding.encodings if _has_frequencies(part)]
        if not parts:
            raise NotApplicable("it has no frequencies")
        results = [wavelengths(part, setting) for part in parts]
        return next((result for result in results if not result.holds), results[0])
    if not _has_frequencies(encoding):
        raise NotApplicable("it has no frequencies")
    declared, notes = declared_frequencies(encoding, 2 * setting.train_length), []
    # Keys of a rotation first, so that the numbers reported below are those of queries.
    for look in (codes,) if "embed" in hooks_of(encoding) else (partial(turned, keys=True), turned):
        measured, impurity = _tones(look, encoding, setting)
        notes += [] if impurity <= _IMPURE else ["channels are not pure tones"]
        if declared is not None:
            error = _disagreement(measured, declared, _copies(encoding, setting))
            notes += [] if error <= _MISREAD else [f"inv_freq says otherwise, by {error:.1e}"]
    turning = measured[measured > _STILL]
    if len(turning) == 0:
        return Measurement(False, 0, "positions", "nothing turns")
    slowest, fastest = 2 * math.pi / float(turning.amin()), 2 * math.pi / float(turning.amax())
    share = float((measured >= 2 * math.pi / setting.train_length).double().mean())
    sentence = f"{fastest:.3g} to {{}} positions a turn; {share:.0%} turn within {setting.train_length}"
    return Measurement(not notes, slowest, "positions", "; ".join([sentence, *dict.fromkeys(notes)]))


def _has_frequencies(encoding: PositionEncoding) -> bool:
    declared = declared_frequencies(encoding) is not None or "wavelengths" in encoding.claims
    return declared and bool(hooks_of(encoding) & {"embed", "rotate"})


def _disagreement(measured: Tensor, declared: Tensor, copies: int) -> float:
    """The largest relative error between the measured and the declared frequencies, both sorted."""
    expected = torch.zeros_like(measured)  # channels beyond the pairs do not turn
    channels = declared.repeat_interleave(2).repeat(copies)
    if len(channels) > len(expected):
        return math.inf
    expected[: len(channels)] = channels
    expected, measured = expected.sort().values, measured.sort().values
    # A frequency of 0 is measured as a very small one.
    return float(((measured - expected).abs() / expected.clamp(min=_STILL / _MISREAD)).amax())


def _copies(encoding: PositionEncoding, setting: Setting) -> int:
    """How often the frequencies recur among the channels: once in a code, once a head in a rotation."""
    return 1 if "embed" in hooks_of(encoding) else setting.num_heads


def _tones(
    look: Callable[..., Tensor], encoding: PositionEncoding, setting: Setting
) -> tuple[Tensor, float]:
    """The frequency of each channel, and the largest relative departure from a pure tone."""
    room = setting.within(2**21)
    centre = torch.arange(64) * 61 % max(room // 4, 1) + room // 2
    here = look(encoding, setting, centre)
    power = here.square().sum(dim=0).clamp(min=1e-300)
    frequency = torch.zeros(here.shape[1], dtype=torch.float64)
    impurity = torch.zeros_like(frequency)
    stride = 1
    while stride < room // 4:
        around = look(encoding, setting, centre + stride) + look(encoding, setting, centre - stride)
        cosine = (around * here).sum(dim=0) / (2 * power)
        angle = torch.acos(cosine.clamp(-1, 1))
        # The first stride counts for all channels, a longer one for those it turns by less than a quarter.
        chosen = (
            torch.ones_like(angle, dtype=torch.bool) if stride == 1 else frequency * stride < math.pi / 2
        )
        frequency = torch.where(chosen, angle / stride, frequency)
        off = (around - 2 * cosine * here).norm(dim=0) / power.sqrt()
        impurity = torch.maximum(impurity, torch.where(chosen, off, 0.0))
        stride *= 4
    return frequency, float(impurity.amax())


def slopes(encoding: PositionEncoding, setting: Setting) -> Measurement:
    """Each head's bias is a straight line down into the past, each at its own rate."""
    distances = torch.cat((torch.arange(setting.count), setting.octaves(_FAR))).unique()
    rows = bias_by_distance(encoding, setting, distances)
    slope = -(rows[:, -1] - rows[:, 0]) / distances[-1]
    off = float((rows + slope[:, None] * distances - rows[:, :1]).abs().amax())
    straight = off <= ROUNDING * float(rows.abs().amax())
    if not straight:
        return Measurement(False, off, "logits", "biases stray from a straight line by {}")
    distinct = len(torch.unique(slope)) == len(slope)
    falling = bool((slope > 0).all())
    gentlest = short(float(slope.amin()))
    sentence = f"{len(slope)} straight lines, {gentlest} to {{}} per position"
    sentence += "" if distinct else "; heads share a slope"
    sentence += "" if falling else "; not all fall"
    return Measurement(distinct and falling, float(slope.amax()), "logits per position", sentence)


def bucket_coverage(encoding: PositionEncoding, setting: Setting) -> Measurement:
    """Every trained entry is reached by some distance, and distances that share one are neighbours.

    An entry is reached if it has a gradient in attention.
    """
    need("bias", encoding)
    acting = encoding.encodings if isinstance(encoding, Combined) else [encoding]
    parameters = [p for part in acting if "bias" in hooks_of(part) for p in part.parameters()]
    tables = [parameter for parameter in parameters if parameter.dim() > 1]
    if not tables:
        raise NotApplicable("it has no table over distances")
    reach = max(COUNT, setting.train_length, 2 * max(max(table.shape) for table in tables))
    reached, rows = _reached_rows(encoding, setting, reach, tables)
    bias = bias_by_distance(encoding, setting, torch.arange(reach + 1))
    past = _groups(bias)
    alone = sum(1 for start, stop in past[:-1] if stop - start == 1)
    contiguous = len(past) == len(torch.unique(bias[:, [start for start, _ in past]], dim=1)[0])
    sentence = f"{{}} of {rows} rows used; {alone} distances alone, {past[-1][0]}+ share"
    if not contiguous:
        sentence += "; distances share a row with others between them"
    return Measurement(reached == rows and contiguous, reached, "rows", sentence)


def _reached_rows(
    encoding: PositionEncoding, setting: Setting, reach: int, tables: list[nn.Parameter]
) -> tuple[int, int]:
    """How many rows of the tables take part in attention over distances from -reach to reach."""
    causal = causal_only(encoding, setting)
    ends = torch.tensor([reach] if causal else [0, reach])
    shape = (1, setting.num_heads, reach + 1, setting.head_dim)
    k, v = setting.random(*shape), setting.signs(*shape)
    q = setting.signs(1, setting.num_heads, len(ends), setting.head_dim)
    x = setting.random(1, reach + 1, setting.d_model) if encoding.reads_input else None
    with torch.enable_grad():
        out = attention(
            q, k, v, encoding, causal=causal, q_positions=ends, k_positions=torch.arange(reach + 1), x=x,
            lengths=2 * setting.train_length if encoding.length_dependent else None,
        )  # fmt: skip
        assert isinstance(out, Tensor)
        weighted = (out * setting.random(*out.shape)).sum()
        grads = torch.autograd.grad(weighted, tables, allow_unused=True)
    reached = total = 0
    for table, grad in zip(tables, grads, strict=True):
        total += table.shape[0]
        if grad is not None:
            reached += int((grad.flatten(1) != 0).any(dim=1).sum())
    return reached, total


def _groups(rows: Float64[Tensor, "heads distances"]) -> list[tuple[int, int]]:
    """Runs of neighbouring distances with one bias on all heads, as (start, stop)."""
    changes = (rows.diff(dim=-1) != 0).any(dim=0).nonzero().flatten() + 1
    edges = [0, *changes.tolist(), rows.shape[1]]
    return list(itertools.pairwise(edges))
