"""What a model in use depends on: caches, packing, low precision, and lengths it was not trained for."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from ..attention.layer import KVCache
from ..attention.varlen import attention_varlen
from ..encoding import PositionEncoding
from ..scaling import frequencies
from .observe import bias_by_distance, fixed_length, hooks_of, signature
from .order import ROUNDING, attend, make_layer, relative_difference
from .report import Measurement
from .setting import Setting
from .spectrum import declared_frequencies


def decode_equals_prefill(encoding: PositionEncoding, setting: Setting) -> Measurement:
    """Token by token through a cache, or all at once: the same answer."""
    length = setting.within(24)
    x = setting.random(1, length, setting.d_model)
    layer, lengths = make_layer(encoding, setting), fixed_length(encoding, setting)
    whole = attend(layer, x, lengths=lengths)
    cache, steps = KVCache(), []
    start = length // 2
    for part in (slice(0, start), *(slice(i, i + 1) for i in range(start, length))):
        places = torch.arange(part.start, part.stop)
        steps.append(attend(layer, x[:, part], places, cache=cache, lengths=lengths))
    change = relative_difference(torch.cat(steps, dim=1), whole)
    return Measurement(change <= ROUNDING, change, "relative", "answers differ by {}")


def packed_equals_separate(encoding: PositionEncoding, setting: Setting) -> Measurement:
    """Sequences laid end to end in one row, and each by itself: the same answer."""
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
    low = copy.deepcopy(encoding).to(dtype)
    exact = copy.deepcopy(encoding)  # the constants unspoiled, the parameters as `low` has them
    with torch.no_grad():
        for parameter in exact.parameters():
            parameter.copy_(parameter.to(dtype))
    merged = torch.zeros(setting.count - 1, dtype=torch.bool)
    seen, truth = _by_hook(low, setting, dtype), _by_hook(exact, setting, torch.float64)
    for hook in seen:
        ulp = torch.finfo(torch.float32 if hook == "bias" else dtype).eps
        scale = torch.maximum(truth[hook][1:].abs(), truth[hook][:-1].abs())
        apart = (truth[hook].diff(dim=0).abs() > 2 * ulp * scale).any(dim=-1)
        merged |= apart & (seen[hook][1:] == seen[hook][:-1]).all(dim=-1)
    return int(merged.sum())


def _by_hook(encoding: PositionEncoding, setting: Setting, dtype: torch.dtype) -> dict[str, Tensor]:
    """What each hook makes of equal inputs at neighbouring positions, as ``[positions, channels]``."""
    hooks, positions = hooks_of(encoding), torch.arange(setting.count)
    outputs = {}
    if "embed" in hooks:
        signs = setting.signs(setting.d_model).to(dtype).repeat(1, setting.count, 1)
        # On zeros a code added is seen without loss, on signs one that multiplies.
        both = [encoding.embed(x, positions)[0] for x in (torch.zeros_like(signs), signs)]
        outputs["embed"] = torch.cat(both, dim=-1)
    if "rotate" in hooks:
        signs = setting.signs(1, setting.num_heads, 1, setting.head_dim).to(dtype)
        q = signs.repeat(1, 1, setting.count, 1)
        lengths = fixed_length(encoding, setting)
        q, _ = encoding.rotate(q, q.clone(), positions, positions, lengths=lengths)
        outputs["rotate"] = q[0].transpose(0, 1).flatten(1)
    if "bias" in hooks:
        outputs["bias"] = bias_by_distance(encoding, setting, positions, dtype).t()
    return outputs


def past_training_length(encoding: PositionEncoding, setting: Setting) -> Measurement:
    """Beyond the training length there is a finite, new answer, or an error that names the position.

    Whether a trained model makes anything of the answer is for experiments to say; here is what it
    gets to see.
    """
    if setting.limit is not None:
        return _refusal(encoding, setting, setting.limit)
    length = setting.train_length
    beyond = torch.arange(length, length + 8)
    furthest = max(16 * length, 2**20)
    for positions in (beyond, furthest - 7 + torch.arange(8)):
        if not bool(torch.isfinite(signature(encoding, setting, positions)).all()):
            return Measurement(False, int(positions[-1]), "positions", "not finite at position {}")
    hooks = hooks_of(encoding)
    if hooks & {"embed", "rotate"}:
        first = signature(encoding, setting, torch.arange(8))
        if torch.equal(first, signature(encoding, setting, beyond)):
            return Measurement(False, length, "positions", "position {} is taken for position 0")
    rotary = _unseen_angles(encoding, setting, furthest)
    if rotary is not None:
        return rotary
    if not hooks:
        return Measurement(True, furthest, "positions", "looks at no position, up to {}")
    far = f", {_far_bias(encoding, setting)}" if "bias" in hooks else ""
    return Measurement(True, furthest, "positions", f"finite up to {{}}{far}")


def _refusal(encoding: PositionEncoding, setting: Setting, limit: int) -> Measurement:
    try:
        signature(encoding, setting, torch.tensor([limit]))
    except ValueError as error:
        said = str(error).replace("{}", "")
        clear = str(limit) in said
        sentence = (
            f"refuses position {{}}: {said}" if clear else f"refuses {{}} without naming it: {said}"
        )
        return Measurement(clear, limit, "positions", sentence)
    return Measurement(False, limit, "positions", "answers position {} past its own max_positions")


def _unseen_angles(encoding: PositionEncoding, setting: Setting, furthest: int) -> Measurement | None:
    """How many pairs reach angles training never showed, at the length the encoding is meant for.

    Training shows a pair all angles if it turns fully within the training length, else those up to
    where it stops. A scaling is added after training and is meant for ``factor`` times its length.
    """
    for module in encoding.modules():
        told = declared_frequencies(module)
        if told is None or not isinstance(module, PositionEncoding):
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
            f"at {reach}, {{}} of {len(told)} pairs at untrained angles{far}"
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
