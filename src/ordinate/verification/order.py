"""Properties of order: outputs differ by position, are deterministic, and inputs stay unchanged."""

from __future__ import annotations

import contextlib
import copy
from dataclasses import replace

import torch
from torch import Tensor

from ..attending.layer import MultiHeadAttention
from ..encoding import PositionEncoding
from ..parts import acting_parts, axes_of, hooks_of
from ..positions import grid
from ..setting import Setting
from . import process
from .calls import Call
from .observe import cast, causal_only, key_heads, need_any, signature
from .report import Measurement, NotApplicable

#: Relative error in float64 up to which values count as equal, after a few thousand operations.
ROUNDING = 2.0**-40
#: Relative difference that counts as an effect: far above rounding, far below any effect of a position.
DIFFERENT = 2.0**-20


def permutation_equivariance(encoding: PositionEncoding, setting: Setting) -> Measurement:
    """Attention without positions shuffles its output with its input; with them it must not.

    A bias that needs a causal mask is measured at the last token only, which sees all others: the mask alone
    shows the order at any other.
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
    holds, sentence = with_encoding >= DIFFERENT, "shuffled, the output changes by {}"
    if not hooks_of(encoding):
        holds, sentence = with_encoding <= ROUNDING, "shuffled, the output follows, off by {}"
    return Measurement(holds and without <= ROUNDING, with_encoding, "relative", sentence)


def uniqueness(encoding: PositionEncoding, setting: Setting) -> Measurement:
    """No two positions have equal outputs (for a bias: no two distances), for queries, keys and along each axis."""
    count, near = setting.count, torch.arange(setting.count)
    seen = signature(encoding, setting, near)
    if count == 1:
        return Measurement(True, 1, "positions", "there is {} position, and no other to be taken for")
    gap, different = _closest(seen), len(torch.unique(seen, dim=0))
    what = "distances" if hooks_of(encoding) == {"bias"} else "positions"
    sentence = f"closest two of {count} {what} {{}} apart"
    if different < count:
        sentence = (
            f"{different} kinds among {count} {what}" if different > 1 else f"all {count} {what} alike"
        )
    # An angle p·w is off by up to p·w·2^-53, so positions a whole turn apart may come this close.
    alike = count * 2.0**-44 * float(seen.abs().amax())
    notes = _alike_on_axes(encoding, setting)
    if hooks_of(encoding) & {"embed", "rotate"}:
        # Far positions too, together with the near ones: a table may repeat from anywhere.
        far = setting.octaves(2**20)
        places = torch.cat((near, far[far >= count]))
        if gap > alike and _any_closer(signature(encoding, setting, places, keys=True), alike):
            notes.append("further out, or to keys, some are alike")
    return Measurement(gap > alike and not notes, gap, "distance", "; ".join([sentence, *notes]))


def _alike_on_axes(encoding: PositionEncoding, setting: Setting) -> list[str]:
    """Equal outputs along one axis, and on a grid of all axes, for queries and for keys, as notes.

    Parts of a combination that take several coordinates are measured together: each may read one.
    """
    parts = acting_parts(encoding)
    axes = max((part.axes for part in parts), default=1)
    parts = [part for part in parts if part.axes == axes]
    if axes == 1 or setting.within(4) < 4:
        return []
    line = torch.cat((torch.arange(setting.within(64)), setting.octaves(2**13))).unique()
    moves = {}
    for axis in range(axes):
        moves[f"axis {axis}"] = torch.full((axes, 1, len(line)), 2)
        moves[f"axis {axis}"][axis] = line
    moves["a grid"] = grid(*[4] * axes)
    notes: list[str] = []
    for name, moving in moves.items():
        if name == "a grid" and notes:  # the grid would repeat them
            break
        fixed = torch.tensor([2, 3]).expand(
            axes, 1, 2
        )  # two keys: the bias of a single key cancels in the softmax
        for side, places in (("queries", (moving, fixed)), ("keys", (fixed[..., :1], moving))):
            call = Call.alike(setting, *places, lengths=setting.length_for(encoding))
            seen = []
            for part in parts:
                answers = call.answers(copy.deepcopy(part), setting)
                if side == "queries" and "bias" in answers:
                    bias = answers["bias"] - answers["bias"][..., :1]
                    seen.append(bias[0].transpose(0, 1).flatten(1))
                elif "bias" in answers:
                    seen.append(answers["bias"][0, :, 0].t())
                own = "q" if side == "queries" else "k"
                seen += [answers[own][0].transpose(0, 1).flatten(1)] if own in answers else []
                seen += [answers["embed"][0]] if side == "keys" and "embed" in answers else []
            rows = torch.cat(seen, dim=-1) if seen else None
            if rows is None:
                continue
            kinds, count = len(torch.unique(rows, dim=0)), moving.shape[-1]
            if kinds == 1:
                notes.append(f"{name} changes nothing for {side}")
            elif kinds < count:
                notes.append(f"{kinds} kinds among {count} places on {name} for {side}")
    return notes


def _any_closer(points: Tensor, distance: float) -> bool:
    """Whether two rows are within ``distance``, by sorting their projections on a random line."""
    generator = torch.Generator().manual_seed(0)
    line = torch.randn(points.shape[1], dtype=points.dtype, generator=generator)
    order = (points @ line / line.norm()).argsort()
    return bool((points[order].diff(dim=0).norm(dim=-1) <= distance).any())


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
    # The expanded square loses half of its digits, the difference of the two rows does not.
    return float((points[pair[0]] - points[pair[1]]).norm())


def determinism(encoding: PositionEncoding, setting: Setting) -> Measurement:
    """The same call gives the same bits, whatever calls came before and whatever was modified in place since.

    Calls before, each on a fresh copy and all on one copy: lower precision, the same shapes with other positions,
    tokens, batches and key heads, a long row, training. Modified in place: the tensors of the call before and the
    parameters, as in decoding and training.
    """
    need_any(encoding)
    some = torch.arange(setting.count)
    near = some[(some < 128) | (some >= setting.count - 128)][None]
    far = torch.arange(setting.within(2 * setting.train_length))[None, -near.shape[1] :]
    heads, lengths = key_heads(encoding, setting), setting.length_for(encoding)
    call = Call.at(setting, near, near, lengths=lengths)
    elsewhere = replace(call, q_positions=far, k_positions=far)
    before = [
        call.to(torch.bfloat16),
        call.to(torch.float32),
        elsewhere,
        replace(call, x=-call.x, q=-call.q, k=-call.k),
        replace(call, k=call.k[:, :heads], v=call.v[:, :heads]),
        Call.at(setting, near[:, :9].repeat(2, 1), near[:, :9].repeat(2, 1), lengths=lengths),
        Call.repeating(setting, some[None, :1], some[None], kv_heads=heads, lengths=lengths),
    ]
    first, many = _bits(call, copy.deepcopy(encoding)), copy.deepcopy(encoding)
    repeats = [_bits(call, many)]
    for other in before:
        one = copy.deepcopy(encoding)
        for used in (one, many):
            with contextlib.suppress(Exception):  # such a call may be refused, but must leave no trace
                _bits(other, used)
        repeats.append(_bits(call, one))
    with torch.enable_grad():
        _bits(call, many.train())
    repeats.append(_bits(call, many.eval()))
    held = call.copied().outputs(many)  # no later call may write into what was returned
    with contextlib.suppress(Exception):
        elsewhere.copied().outputs(many)
    repeats.append(held)
    differing = sum(_count_different(first, repeat) for repeat in repeats)
    differing += _remembered(encoding, call)
    return Measurement(differing == 0, differing, "values", "{} values differ when a call is repeated")


def _remembered(encoding: PositionEncoding, call: Call) -> int:
    """How many values of a second call are wrong after its tensors or the parameters were modified in place."""
    used, held = copy.deepcopy(encoding), call.copied()
    held.outputs(used)
    for tensor in (held.x, held.q, held.k):
        tensor.neg_()
    for positions in {id(p): p for p in (held.q_positions, held.k_positions)}.values():
        positions.copy_(positions.flip(-1))
    expected = _bits(held, copy.deepcopy(encoding))
    differing = _count_different(expected, _bits(held, used, copied=False))
    trained, unused = copy.deepcopy(encoding), copy.deepcopy(encoding)
    _bits(call, trained)
    for some in (trained, unused):
        for parameter in some.parameters():
            parameter.add_(0.25)
    return differing + _count_different(_bits(call, unused), _bits(call, trained))


def _bits(call: Call, encoding: PositionEncoding, *, copied: bool = True) -> list[Tensor]:
    return [out.detach().clone() for out in (call.copied() if copied else call).outputs(encoding)]


def _count_different(some: list[Tensor], others: list[Tensor]) -> int:
    return sum(
        int(((a != b) & ~(a.isnan() & b.isnan())).sum()) if a.shape == b.shape else a.numel()
        for a, b in zip(some, others, strict=True)
    )


def inputs_untouched(encoding: PositionEncoding, setting: Setting) -> Measurement:
    """No input, parameter or buffer of random state is written to, and the state of the process stays."""
    need_any(encoding)
    near, changed = torch.arange(setting.within(300))[None], 0
    notes: list[str] = []
    rows = (setting.scattered(2, n, axes_of(encoding), n) for n in (5, 7))
    lengths = setting.length_for(encoding)
    calls = [
        Call.repeating(setting, near, near.clone(), lengths=lengths),
        Call.at(setting, *rows, lengths=lengths),
    ]
    torch.rand(1)  # a state that setting a seed does not restore
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        some = cast(copy.deepcopy(encoding), dtype)
        for call in (call.to(dtype).copied() for call in calls):
            given, drawn = [*call.tensors(), *some.parameters()], torch.get_rng_state()
            kept = [tensor.clone() for tensor in given]
            with torch.set_grad_enabled(
                dtype == torch.float32
            ):  # so that a hook that sets the mode changes it
                before = process.state()
                call.outputs(some)
                after = process.state()
            notes += [name for name in before if before[name] != after[name] and name not in notes]
            changed += _count_different([*given, torch.get_rng_state()], [*kept, drawn])
    changes = [f"the process's {name} changes" for name in notes]
    sentence = "; ".join(["{} values of the inputs change", *changes])
    return Measurement(changed == 0 and not notes, changed, "values", sentence)


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
