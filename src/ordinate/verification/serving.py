"""Properties of inference: caches, packing, low precision, and lengths beyond training."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from ..attending.layer import KVCache
from ..attending.varlen import attention_varlen
from ..encoding import PositionEncoding
from ..parts import HOOKS, axes_of, hooks_of
from ..scaling import frequencies
from ..setting import MANY, Setting
from .calls import ONE_ANSWER, Call
from .observe import (
    bias_by_distance,
    cast,
    causal_only,
    few_heads,
    key_heads,
    need_any,
    signature,
    turned,
)
from .order import ROUNDING, attend, make_layer, relative_difference
from .report import Measurement
from .spectrum import declared_frequencies


def decode_equals_prefill(encoding: PositionEncoding, setting: Setting) -> Measurement:
    """Token by token through a cache, or all at once: the same answer."""
    length = setting.within(24)
    x = setting.random(1, length, setting.d_model)
    layer, lengths = make_layer(encoding, setting), setting.length_for(encoding)
    whole = attend(layer, x, lengths=lengths)
    cache, steps = KVCache(), []
    start = length // 2
    for part in (slice(0, start), *(slice(i, i + 1) for i in range(start, length))):
        places = torch.arange(part.start, part.stop)
        steps.append(attend(layer, x[:, part], places, cache=cache, lengths=lengths))
    change = relative_difference(torch.cat(steps, dim=1), whole)
    notes = [
        f"it reads {what} and does not say so in {flag}" for flag, what in _undeclared(encoding, setting)
    ]
    holds = change <= ROUNDING and not notes
    return Measurement(holds, change, "relative", "; ".join(["answers differ by {}", *notes]))


def _undeclared(encoding: PositionEncoding, setting: Setting) -> list[tuple[str, str]]:
    """What the encoding reads without declaring it, so that a cache would not store it."""
    places = setting.scattered(1, 6, axes_of(encoding))
    call = Call.at(setting, places, places, lengths=setting.train_length)
    others = {
        ("reads_keys", "keys", "bias"): replace(call, k=-call.k),
        ("reads_input", "inputs", "bias"): replace(call, x=-call.x),
        ("length_dependent", "lengths", "rotate"): replace(call, lengths=8 * setting.train_length),
    }
    causal, found = causal_only(encoding, setting), []
    for (flag, what, hook), other in others.items():
        if not getattr(encoding, flag):
            one, two = (
                some.answers(copy.deepcopy(encoding), setting, (hook,)) for some in (call, other)
            )
            found += [(flag, what)] if call.difference(one, two, causal) > ONE_ANSWER else []
    return found


def packed_equals_separate(encoding: PositionEncoding, setting: Setting) -> Measurement:
    """Sequences packed in one row, and each by itself: the same answer."""
    lengths = [max(setting.within(length), 1) for length in (9, 5, 12)]
    room = setting.within(2 * setting.train_length)
    # The first lies past the training length, where length-dependent encodings behave otherwise.
    positions = [torch.arange(n) for n in lengths]
    positions[0] = positions[0] + room - lengths[0]
    shape = (sum(lengths), setting.num_heads, setting.head_dim)
    tokens = torch.stack((setting.random(*shape), setting.signs(*shape), setting.random(*shape).flip(0)))
    x = setting.random(1, sum(lengths), setting.d_model)

    def run(part: slice, places: list[Tensor]) -> tuple[Tensor, Tensor]:
        starts = torch.tensor([0, *(len(p) for p in places)]).cumsum(0)
        where = torch.cat(places)
        hidden = encoding.embed(x[:, part].clone(), where)
        q, k, v = (token[part].clone() for token in tokens)
        out = attention_varlen(
            q, k, v, starts, encoding=encoding, causal=True, q_positions=where, k_positions=where,
            x=hidden[0],
        )  # fmt: skip
        assert isinstance(out, Tensor)
        return out, hidden[0]

    ends = torch.tensor(lengths).cumsum(0).tolist()
    alone = [run(slice(end - n, end), [p]) for end, n, p in zip(ends, lengths, positions, strict=True)]
    together = run(slice(0, ends[-1]), positions)
    changes = [
        relative_difference(together[i], torch.cat([part[i] for part in alone])) for i in range(2)
    ]
    return Measurement(max(changes) <= ROUNDING, max(changes), "relative", "answers differ by {}")


def dtype_collisions(encoding: PositionEncoding, setting: Setting) -> Measurement:
    """No two neighbouring positions merge because a model runs in bfloat16 or float16.

    Two neighbours have merged if the low-precision module gives them the same output though in
    float64, with the same parameters, they are more than two units in the last place apart: of the
    activations' dtype for codes and rotated vectors, which are activations, and of float32 for
    biases, which are added to float32 scores. So rounding itself is no collision, and forming
    positions, angles or distances in low precision is.
    """
    merged = {
        dtype: _merged_neighbours(encoding, setting, dtype) for dtype in (torch.bfloat16, torch.float16)
    }
    total = sum(merged.values())
    sentence = f"{{}} of {setting.count - 1} neighbours merge"
    if total:
        sentence += ": " + ", ".join(f"{count} in {str(dtype)[6:]}" for dtype, count in merged.items())
    return Measurement(total == 0, total, "neighbours", sentence)


def _merged_neighbours(encoding: PositionEncoding, setting: Setting, dtype: torch.dtype) -> int:
    low, exact = _cast(encoding, dtype)
    merged = torch.zeros(setting.count - 1, dtype=torch.bool)
    seen, truth = _by_hook(low, setting, dtype), _by_hook(exact, setting, torch.float64)
    for hook in seen:
        ulp = torch.finfo(torch.float32 if hook == "bias" else dtype).eps
        scale = torch.maximum(truth[hook][1:].abs(), truth[hook][:-1].abs())
        apart = (truth[hook].diff(dim=0).abs() > 2 * ulp * scale).any(dim=-1)
        merged |= apart & (seen[hook][1:] == seen[hook][:-1]).all(dim=-1)
    return int(merged.sum())


def low_precision(encoding: PositionEncoding, setting: Setting) -> Measurement:
    """In float32 and lower the answers are those of float64 with the same parameters, except for rounding.

    Rounding is a few units in the last place of the dtype, and the float32 error of an angle, which grows with the
    position. The budget is wide: the property finds dtypes that compute something else. Two rows have positions
    far apart, and two long ones leave positions out and have fewer key heads; under autocast, which rounds the
    factors of products, only the first two are measured.
    """
    need_any(encoding)
    calls, worst, culprit = _low_calls(encoding, setting), 0.0, ""
    far = calls[0][0]
    truths: list[dict[str, Tensor]] = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        low, exact = _cast(encoding, dtype)
        if not truths or next(exact.parameters(), None) is not None:
            truths = [call.answers(exact, setting, hooks) for call, hooks in calls]
        for (call, hooks), truth in zip(calls, truths, strict=True):
            left_out = call is not far
            answers = call.to(dtype).answers(low, setting, hooks, left_out=left_out)
            for name, answer in answers.items():
                if (
                    name != "bias" and answer.dtype != dtype
                ):  # the values, or the next layer, will not fit it
                    text = (
                        f"{name} comes back in {str(answer.dtype)[6:]} where {str(dtype)[6:]} is given"
                    )
                    return Measurement(False, math.inf, "budgets", text)
                off = _budgets(call, name, answer, truth[name], dtype)
                worst, culprit = max((worst, culprit), (off, f"{name} in {str(dtype)[6:]}"))
        if dtype == torch.float32:
            with torch.autocast("cpu", torch.bfloat16):
                answers = far.to(dtype).answers(low, setting)
            for name, answer in answers.items():
                # Four times what one rounding may do, for those of products add up.
                off = _budgets(far, name, answer, truths[0][name], torch.bfloat16) / 4
                worst, culprit = max((worst, culprit), (off, f"{name} under autocast"))
    sentence = "off by {} of what rounding may do"
    if any(held.is_complex() for held in (*encoding.parameters(), *encoding.buffers())):
        sentence += "; .to(dtype) would drop imaginary parts, .bfloat16() and .half() keep them"
    if worst > 1:
        sentence += f", most {culprit}"
        rounded = any(buffer.is_floating_point() for buffer in encoding.buffers())
        sentence += "; a cast of the module rounds its buffers" if rounded else ""
    return Measurement(worst <= 1, worst, "budgets", sentence)


def _low_calls(encoding: PositionEncoding, setting: Setting) -> list[tuple[Call, tuple[str, ...]]]:
    """Calls of two rows with the hooks to call: the first with positions given, the others in order."""
    lengths, places = setting.length_for(encoding), setting.octaves(2**17)
    at = torch.stack((places, places.flip(-1)))
    run = torch.arange(setting.within(MANY)).expand(2, -1)
    heads = few_heads(encoding, setting)
    row = Call.repeating(setting, run, run, kv_heads=heads, lengths=lengths, signs=True).as_projected()
    return [
        (Call.at(setting, at, at.flip(-1), lengths=lengths, signs=True), HOOKS),
        (row, HOOKS[:2]),
        (row.part(queries=slice(-9, None)), HOOKS[2:]),  # a matrix of all queries would take long
    ]


def _budgets(call: Call, name: str, answer: Tensor, truth: Tensor, dtype: torch.dtype) -> float:
    """The largest error of an answer, in multiples of what rounding in the dtype may do."""
    units = (8 if name == "bias" else 4) * torch.finfo(dtype).eps * truth.abs().clamp(min=1)
    if name != "bias":
        at = (call.q_positions if name == "q" else call.k_positions)[..., None]
        units = units + (at if name == "embed" else at[:, None]) * 2.0**-22 * truth.abs().amax()
    off = ((answer.double() - truth).abs() / units).nan_to_num(nan=math.inf)
    # Infinities may agree, or be an overflow of the dtype.
    alike = (answer == truth) | (answer.isinf() & (truth.abs() > torch.finfo(answer.dtype).max))
    return float(torch.where(alike, 0, off).amax())


def _cast(encoding: PositionEncoding, dtype: torch.dtype) -> tuple[PositionEncoding, PositionEncoding]:
    """The module in a dtype; and in float64, with parameters rounded to that dtype and exact constants."""
    exact = copy.deepcopy(encoding)
    with torch.no_grad():
        for parameter in exact.parameters():
            if parameter.is_floating_point():
                parameter.copy_(parameter.to(dtype))
    return cast(copy.deepcopy(encoding), dtype), exact


def _by_hook(encoding: PositionEncoding, setting: Setting, dtype: torch.dtype) -> dict[str, Tensor]:
    """The output of each hook for equal inputs at neighbouring positions, as ``[positions, channels]``."""
    hooks, positions = hooks_of(encoding), torch.arange(setting.count)
    outputs = {}
    if "embed" in hooks:
        signs = setting.signs(setting.d_model).to(dtype).repeat(1, setting.count, 1)
        # Zeros show an added code without rounding, signs one that multiplies.
        both = [encoding.embed(x, positions)[0] for x in (torch.zeros_like(signs), signs)]
        outputs["embed"] = torch.cat(both, dim=-1)
    if "rotate" in hooks:
        for name, heads in (("q", setting.num_heads), ("k", key_heads(encoding, setting))):
            x = setting.signs(heads, setting.head_dim).to(dtype)
            outputs[name] = turned(encoding, setting, positions, x, keys=name == "k")
    if "bias" in hooks:
        outputs["bias"] = bias_by_distance(encoding, setting, positions, dtype).t()
    return outputs


def past_training_length(encoding: PositionEncoding, setting: Setting) -> Measurement:
    """Beyond the training length there is a finite, new answer, or an error that names the position.

    Whether a trained model can use the answer is a question for experiments.
    """
    if setting.limit is not None:
        return _refusal(encoding, setting, setting.limit)
    length = setting.train_length
    beyond = torch.arange(length, length + 8)
    furthest = max(16 * length, 2**20)
    octaves = setting.octaves(furthest)
    outer = octaves[octaves >= length]
    # One by one: a bias may make a table of all distances between the keys of a call.
    for positions in (beyond, *outer.split(1), furthest - 7 + torch.arange(8)):
        seen = signature(encoding, setting, positions)
        if not bool(torch.isfinite(seen).all()):
            at = int(positions[~torch.isfinite(seen).all(dim=-1)][0])
            return Measurement(False, at, "positions", "not finite at position {}")
    hooks = hooks_of(encoding)
    if hooks & {"embed", "rotate"}:
        # Among the first positions, those just beyond training, and one of each octave from there on.
        first = outer.log2().floor().diff(prepend=torch.zeros(1)) > 0
        places = torch.cat((torch.arange(min(8, length)), beyond, outer[first][1:])).unique()
        repeated = _taken_for_another(encoding, setting, places)
        if repeated is not None:
            return repeated
    rotary = _unseen_angles(encoding, setting, furthest)
    if rotary is not None:
        return rotary
    if not hooks:
        return Measurement(True, furthest, "positions", "looks at no position, up to {}")
    far = f", {_far_bias(encoding, setting)}" if "bias" in hooks else ""
    return Measurement(True, furthest, "positions", f"finite up to {{}}{far}")


def _taken_for_another(
    encoding: PositionEncoding, setting: Setting, places: Int[Tensor, " count"]
) -> Measurement | None:
    """The first two of these positions that have equal outputs, for queries or keys, and must not.

    Neighbours may be equal on purpose, in groups. So two equal positions count if there is a different one between
    them, or if all later ones are equal and the nearer is less than half as far. A side that is constant is not
    rotated.
    """
    for keys in (False, True):
        seen = signature(encoding, setting, places, keys=keys)
        alike = (seen[:, None] == seen[None]).all(dim=-1).tril(-1)
        group = (seen[1:] != seen[:-1]).any(dim=-1).cumsum(0)
        group = torch.cat((torch.zeros(1), group))
        last = (group == group[-1]) & (group > 0)
        alike &= (group[:, None] != group) | (last & (places[:, None] > 2 * places))
        if bool(alike.any()):
            later, earlier = alike.nonzero()[0].tolist()
            text = f"position {{}} is taken for position {int(places[earlier])}" + keys * " by keys"
            return Measurement(False, int(places[later]), "positions", text)
    return None


def _refusal(encoding: PositionEncoding, setting: Setting, limit: int) -> Measurement:
    try:
        signature(encoding, setting, torch.tensor([limit]))
    except ValueError as error:
        text = str(error).replace("{}", "")
        clear = str(limit) in text
        sentence = (
            f"refuses position {{}}: {text}" if clear else f"refuses {{}} without naming it: {text}"
        )
        return Measurement(clear, limit, "positions", sentence)
    return Measurement(False, limit, "positions", "answers position {} past its own max_positions")


def _unseen_angles(encoding: PositionEncoding, setting: Setting, furthest: int) -> Measurement | None:
    """How many pairs reach angles training never showed, at the length the encoding is meant for.

    Training shows a pair all angles if it turns fully within the training length, else those up to
    where it stops. A scaling is added after training and is meant for ``factor`` times its length.
    """
    for module in encoding.modules():
        declared = declared_frequencies(module)
        if declared is None or not isinstance(module, PositionEncoding):
            continue
        scaling = getattr(module, "scaling", None)
        factor = getattr(scaling, "factor", None) or 1
        reach = int((factor if factor > 1 else 2) * setting.train_length)
        if scaling is None or factor == 1 or module.length_dependent:
            trained = declared_frequencies(module, setting.train_length)
        else:
            trained = frequencies(module.base, module.rotary_dim)  # type: ignore[arg-type]
        used = declared_frequencies(module, reach)
        assert trained is not None
        assert used is not None
        seen = (trained * setting.train_length).clamp(max=2 * math.pi)
        unseen = int(((used * reach).clamp(max=2 * math.pi) > seen * (1 + 1e-9)).sum())
        far = f"; {_far_bias(encoding, setting)}" if "bias" in hooks_of(encoding) else ""
        sentence = (
            f"finite up to {furthest}, no claim of quality; "
            f"at {reach}, {{}} of {len(declared)} pairs at untrained angles{far}"
        )
        return Measurement(True, unseen, "pairs", sentence)
    return None


def _far_bias(encoding: PositionEncoding, setting: Setting) -> str:
    row = bias_by_distance(encoding, setting, torch.arange(2 * setting.train_length))
    same = (row == row[:, -1:]).all(dim=0)
    if bool(same[setting.train_length :].all()):
        start = int((~same).nonzero()[-1]) + 1 if not bool(same.all()) else 0
        return f"bias constant from {start} on"
    bend = row[:, setting.train_length :].diff(dim=-1).diff(dim=-1).abs().amax()
    return "bias a straight line" if bend <= ROUNDING * row.abs().amax() else "bias still changing"
