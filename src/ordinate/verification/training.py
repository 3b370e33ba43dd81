"""Properties of training: the same answers as in evaluation, and right gradients."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ..encoding import PositionEncoding
from ..parts import axes_of
from ..setting import Setting
from .calls import ONE_ANSWER, Call
from .observe import cast, causal_only, few_heads, need_any
from .report import Measurement

#: The largest position, and the step of parameters and tokens: at large positions angles and slopes need smaller
#: steps, and a small step is below the rounding of encodings that compute in float32.
_SCALES = ((256, 2.0**-12), (2**13, 2.0**-20))
_TOKENS = (9, 33)  # of the rows at either scale
_INPUTS = ("x", "q", "k")
_RELATIVE = 2.0**-6  # of a gradient
_NOISE = 2.0**-10  # of all answers together


def gradients(encoding: PositionEncoding, setting: Setting) -> Measurement:
    """Answers in training are those in use, and each gradient is the slope of the answers.

    Every parameter, and the tokens, are moved a little way in a random direction; what the answers then
    change by is what the gradient must say, and so must the one in float32. Far out, rows are long and key heads
    few. An encoding that draws at random in training is taken in use.
    """
    need_any(encoding)
    worst, culprit, causal = 0.0, "", causal_only(encoding, setting)
    heads = (setting.num_heads, few_heads(encoding, setting))
    for (most, step), tokens, kv_heads in zip(_SCALES, _TOKENS, heads, strict=True):
        call = _call(encoding, setting, most, tokens, kv_heads)
        training = copy.deepcopy(encoding)
        with torch.inference_mode():  # tensors cached there must not break training
            plain = call.answers(training, setting, attend=True)
        training.train()
        with torch.enable_grad():
            first, second = (
                call.answers(copy.deepcopy(training), setting, attend=True) for _ in range(2)
            )
        if call.difference(first, second, causal) > 0:  # it draws at random
            training.eval()
        elif (off := call.difference(first, plain, causal)) > ONE_ANSWER:
            return Measurement(
                False, off, "relative", "answers in training differ from those in use by {}"
            )
        weights = {name: setting.random(*answer.shape, stream=8) for name, answer in plain.items()}
        for name, off in _errors(training, setting, call, weights, step):
            worst, culprit = max((worst, culprit), (off, name))
        if tokens == _TOKENS[0]:
            for name, off in _errors_in_float32(training, setting, call, weights):
                worst, culprit = max((worst, culprit), (off, f"{name} in float32"))
    sentence = "gradients are off by {}"
    if worst > _RELATIVE:
        sentence += f", most that of {culprit}"
    return Measurement(worst <= _RELATIVE, worst, "relative", sentence)


def _call(encoding: PositionEncoding, setting: Setting, most: int, tokens: int, kv_heads: int) -> Call:
    axes = axes_of(encoding)
    generator = torch.Generator().manual_seed(setting.seed)
    drawn = torch.randint(setting.within(most), (2, axes, 2, tokens), generator=generator)
    at_q, at_k = drawn if axes > 1 else drawn[:, 0]
    at_k = at_k if tokens == _TOKENS[0] else at_q  # the same tokens, as in most training
    lengths = setting.length_for(encoding)
    return Call.at(setting, at_q, at_k, kv_heads=kv_heads, lengths=lengths)


def _errors(
    encoding: PositionEncoding, setting: Setting, call: Call, weights: dict[str, Tensor], step: float
) -> Iterator[tuple[str, float]]:
    """Name and relative error of each gradient, of tokens and parameters."""
    for _ in range(2):  # state left by the first step may break the second
        value, grads = _gradients(encoding, setting, call, weights)
    for index, (name, grad) in enumerate(grads.items()):
        direction = setting.random(*grad.shape, stream=10 + index) * (1 + 1j if grad.is_complex() else 1)
        ends = []
        for moved in (step, -step):
            some, tokens = copy.deepcopy(encoding), call
            if name in _INPUTS:
                tokens = replace(call, **{name: getattr(call, name) + moved * direction})
            else:
                some.get_parameter(name).add_(moved * direction)
            ends.append(float(_total(some, setting, tokens, weights)))
        slope = (ends[0] - ends[1]) / (2 * step)
        # Where the answers bend within a step, or are rounded, the slope is not known.
        unknown = 4 * abs(ends[0] + ends[1] - 2 * value) / (2 * step)
        predicted = float((grad.conj() * direction).real.sum())
        noise = unknown / _RELATIVE + _noise(value)
        yield name, abs(predicted - slope) / (max(abs(predicted), abs(slope)) + noise)


def _errors_in_float32(
    encoding: PositionEncoding, setting: Setting, call: Call, weights: dict[str, Tensor]
) -> Iterator[tuple[str, float]]:
    """Name and relative difference of each gradient in float32 from float64."""
    value, grads = _gradients(encoding, setting, call, weights)
    low = cast(copy.deepcopy(encoding), torch.float32)
    _, lows = _gradients(low, setting, call.to(torch.float32), weights)
    for name, grad in grads.items():
        size = max(float(grad.norm()), float(lows[name].norm()))
        yield name, float((lows[name] - grad).norm()) / (size + _noise(value))


def _noise(value: float) -> float:
    return _NOISE * (1 + abs(value)) / _RELATIVE


def _total(
    encoding: PositionEncoding, setting: Setting, call: Call, weights: dict[str, Tensor]
) -> Tensor:
    """A weighted sum of all answers."""
    answers = call.answers(encoding, setting, attend=True)  # attention has the bias in it
    return torch.stack(
        [(answers[name] * weights[name]).sum() for name in weights if name != "bias"]
    ).sum()


def _gradients(
    encoding: PositionEncoding, setting: Setting, call: Call, weights: dict[str, Tensor]
) -> tuple[float, dict[str, Tensor]]:
    """The weighted sum, and its gradient with respect to the tokens and the parameters."""
    inputs = {name: getattr(call, name).clone().requires_grad_() for name in _INPUTS}
    learned = {name: p for name, p in encoding.named_parameters() if p.requires_grad}
    leaves = {**inputs, **learned}
    with torch.enable_grad():
        value = _total(encoding, setting, replace(call, **inputs), weights)
        grads = torch.autograd.grad(
            value, list(leaves.values()), allow_unused=True, materialize_grads=True
        )
    return float(value.detach()), dict(zip(leaves, grads, strict=True))
