"""Does the encoding tell order, the same way every time, and leave its inputs alone?"""

from __future__ import annotations

import contextlib
import copy

import torch
from torch import Tensor

from ..attention.layer import MultiHeadAttention
from ..encoding import PositionEncoding
from .observe import causal_only, fixed_length, hooks_of, signature
from .report import Measurement, NotApplicable
from .setting import Setting

#: Equal in float64: the relative error a few thousand operations may leave, and no more.
ROUNDING = 2.0**-40
#: Certainly different: far above any rounding, far below any effect of a position.
DIFFERENT = 2.0**-20


def permutation_equivariance(encoding: PositionEncoding, setting: Setting) -> Measurement:
    """Attention without positions shuffles its output with its input; with them it must not.

    Where a bias is only right under a causal mask, which would tell the order by itself, the last
    token is looked at alone: it sees all others, and those are shuffled.
    """
    causal = causal_only(encoding, setting)
    length = setting.within(24)
    if length < 3:
        raise NotApplicable(f"there is nothing to shuffle among {length} positions")
    x = setting.random(1, length, setting.d_model)
    shuffled = setting.random(length).argsort()
    if causal:
        shuffled = torch.cat((setting.random(length - 1).argsort(), torch.tensor([length - 1])))

    def change(some: PositionEncoding) -> float:
        layer = make_layer(some, setting, causal=causal)
        plain, permuted = attend(layer, x), attend(layer, x[:, shuffled])
        expected = plain[:, shuffled]
        if causal:
            permuted, expected = permuted[:, -1], expected[:, -1]
        return relative_difference(permuted, expected)

    without, with_encoding = change(PositionEncoding()), change(encoding)
    if not hooks_of(encoding):
        blind = max(without, with_encoding) <= ROUNDING
        return Measurement(blind, with_encoding, "relative", "shuffled, the output follows, off by {}")
    return Measurement(
        without <= ROUNDING and with_encoding >= DIFFERENT,
        with_encoding,
        "relative",
        "shuffled, the output changes by {}",
    )


def uniqueness(encoding: PositionEncoding, setting: Setting) -> Measurement:
    """No two positions look alike (to a bias: no two distances)."""
    count = setting.count
    seen = signature(encoding, setting, torch.arange(count))
    gap, different = _closest(seen), len(torch.unique(seen, dim=0))
    what = "distances" if hooks_of(encoding) == {"bias"} else "positions"
    sentence = f"closest two of {count} {what} {{}} apart"
    if different < count:
        sentence = (
            f"{different} kinds among {count} {what}" if different > 1 else f"all {count} {what} alike"
        )
    # An angle p·w is off by up to p·w·2^-53, so whole turns come back that near and no nearer.
    alike = count * 2.0**-44 * float(seen.abs().amax())
    return Measurement(gap > alike, gap, "distance", sentence)


def _closest(points: Tensor) -> float:
    """The smallest Euclidean distance between two rows, block by block."""
    squares = points.square().sum(dim=-1)
    best, pair = torch.inf, (0, 0)
    for start in range(0, len(points), 1024):
        block = points[start : start + 1024]
        distances = (
            squares[start : start + 1024, None] + squares[start:] - 2 * block @ points[start:].t()
        )
        distances.diagonal().fill_(torch.inf)
        row, column = divmod(int(distances.argmin()), distances.shape[1])
        if distances[row, column] < best:
            best, pair = float(distances[row, column]), (row + start, column + start)
    # The expanded square loses half of its digits; the winner's difference does not.
    return float((points[pair[0]] - points[pair[1]]).norm())


def determinism(encoding: PositionEncoding, setting: Setting) -> Measurement:
    """The same call gives the same bits, whatever was called before it."""
    near = torch.arange(setting.within(1024))
    far = torch.arange(setting.within(2 * setting.train_length))[-64:]
    fresh, used = copy.deepcopy(encoding), copy.deepcopy(encoding)
    first = [out.clone() for out in _all_hooks(fresh, setting, near)]
    with contextlib.suppress(RuntimeError):  # mixed dtypes may be refused, but not remembered
        _all_hooks(used, setting, near, torch.bfloat16)
    _all_hooks(used, setting, far)
    repeats = [_all_hooks(fresh, setting, near), _all_hooks(used, setting, near)]
    differing = sum(
        int((a != b).sum()) for repeat in repeats for a, b in zip(first, repeat, strict=True)
    )
    return Measurement(differing == 0, differing, "values", "{} values differ when a call is repeated")


def inputs_untouched(encoding: PositionEncoding, setting: Setting) -> Measurement:
    """Nothing the caller passes is written to."""
    given: list[Tensor] = []
    kept: list[Tensor] = []
    positions = torch.arange(setting.within(64))

    def watch(tensor: Tensor) -> Tensor:
        given.append(tensor)
        kept.append(tensor.clone())
        return tensor

    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        _all_hooks(copy.deepcopy(encoding).to(dtype), setting, positions, dtype, watch)
    changed = sum(int((a != b).sum()) for a, b in zip(given, kept, strict=True))
    return Measurement(changed == 0, changed, "values", "{} values of the inputs change")


def _all_hooks(encoding, setting: Setting, positions: Tensor, dtype=torch.float64, watch=lambda t: t):
    """The outputs of every hook at these positions."""
    if not hooks_of(encoding):
        raise NotApplicable("it does nothing")
    length = len(positions)
    x = watch(setting.random(1, length, setting.d_model).to(dtype))
    shape = (1, setting.num_heads, length, setting.head_dim)
    q, k = watch(setting.random(*shape).to(dtype)), watch(setting.signs(*shape).to(dtype))
    positions = watch(positions.clone())
    outputs = [encoding.embed(x, positions)]
    bias = encoding.bias(q, k, positions, positions, x=x)
    lengths = fixed_length(encoding, setting)
    outputs += encoding.rotate(q, k, positions, positions, lengths=lengths)
    return outputs if bias is None else [*outputs, *(tensor for tensor in bias.tensors())]


def make_layer(
    encoding: PositionEncoding, setting: Setting, *, causal: bool = True
) -> MultiHeadAttention:
    """A layer in float64 with the same weights for every encoding."""
    torch.manual_seed(setting.seed)
    layer = MultiHeadAttention(
        setting.d_model, setting.num_heads, head_dim=setting.head_dim, causal=causal
    ).double()
    layer.encoding = encoding
    return layer


def attend(layer: MultiHeadAttention, x: Tensor, positions: Tensor | None = None, **options) -> Tensor:
    """Embed and attend, as a model would."""
    if positions is None:
        positions = torch.arange(x.shape[1])
    with torch.no_grad():
        return layer(layer.encoding.embed(x.clone(), positions), positions, **options)


def relative_difference(a: Tensor, b: Tensor) -> float:
    """The largest difference, as a share of the largest value."""
    return float((a - b).abs().amax() / b.abs().amax().clamp(min=torch.finfo(b.dtype).tiny))
