"""Does training compute what use computes, and learn by the right gradient?"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ..encoding import PositionEncoding
from .calls import ONE_ANSWER, Call
from .observe import axes_of, causal_only, fixed_length, need_any
from .report import Measurement
from .setting import Setting

#: How far positions reach, and how far parameters and tokens are moved: the further out, the sooner an angle
#: or a slope leaves its straight line; and a small step is lost on encodings that compute in float32.
_SCALES = ((256, 2.0**-12), (2**13, 2.0**-20))
_RELATIVE = 2.0**-6  # of a gradient
_NOISE = 2.0**-10  # of all answers together


def gradients(encoding: PositionEncoding, setting: Setting) -> Measurement:
    """Answers in training are those in use, and each gradient is the slope of the answers.

    Every parameter, and the tokens, are moved a little way in a random direction; what the answers then
    change by is what the gradient must say. An encoding that draws at random in training is taken in use.
    """
    need_any(encoding)
    worst, culprit = 0.0, ""
    for most, step in _SCALES:
        call = _call(encoding, setting, most)
        plain = call.answers(copy.deepcopy(encoding), setting, attend=True)
        training = copy.deepcopy(encoding).train()
        with torch.enable_grad():
            first, second = (
                call.answers(copy.deepcopy(training), setting, attend=True) for _ in range(2)
            )
        causal = causal_only(encoding, setting)
        if call.difference(first, second, causal) > 0:  # it draws at random
            training.eval()
        elif (off := call.difference(first, plain, causal)) > ONE_ANSWER:
            return Measurement(
                False, off, "relative", "answers in training differ from those in use by {}"
            )
        weights = {name: setting.random(*answer.shape, stream=8) for name, answer in plain.items()}
        for name, off in _errors(training, setting, call, weights, step):
            worst, culprit = max((worst, culprit), (off, name))
    sentence = "gradients are off by {}"
    if worst > _RELATIVE:
        sentence += f", most that of {culprit}"
    return Measurement(worst <= _RELATIVE, worst, "relative", sentence)


def _call(encoding: PositionEncoding, setting: Setting, most: int) -> Call:
    axes = axes_of(encoding)
    generator = torch.Generator().manual_seed(setting.seed)
    drawn = torch.randint(setting.within(most), (2, axes, 2, 9), generator=generator)
    at_q, at_k = drawn if axes > 1 else drawn[:, 0]
    return Call.at(setting, at_q, at_k, lengths=fixed_length(encoding, setting))


def _errors(
    encoding: PositionEncoding, setting: Setting, call: Call, weights: dict[str, Tensor], step: float
) -> Iterator[tuple[str, float]]:
    """Name and relative error of each gradient, of the tokens and of what is learned."""

    def total(some: PositionEncoding, call: Call) -> Tensor:
        answers = call.answers(some, setting, attend=True)  # attention has the bias in it
        return torch.stack(
            [(answers[name] * weights[name]).sum() for name in weights if name != "bias"]
        ).sum()

    inputs = {name: getattr(call, name).clone().requires_grad_() for name in ("x", "q", "k")}
    learned = {name: p for name, p in encoding.named_parameters() if p.requires_grad}
    leaves = {**inputs, **learned}
    with torch.enable_grad():
        value = total(encoding, replace(call, **inputs))
        grads = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    for index, ((name, leaf), grad) in enumerate(zip(leaves.items(), grads, strict=True)):
        direction = setting.random(*leaf.shape, stream=10 + index) * (1 + 1j if leaf.is_complex() else 1)
        ends = []
        for moved in (step, -step):
            some, tokens = copy.deepcopy(encoding), call
            if name in inputs:
                tokens = replace(call, **{name: leaf.detach() + moved * direction})
            else:
                some.get_parameter(name).add_(moved * direction)
            ends.append(float(total(some, tokens)))
        slope = (ends[0] - ends[1]) / (2 * step)
        # Where the answers bend within a step, or are rounded, the slope is not known.
        unknown = 4 * abs(ends[0] + ends[1] - 2 * float(value)) / (2 * step)
        told = 0.0 if grad is None else float((grad.conj() * direction).real.sum())
        noise = (unknown + _NOISE * (1 + abs(float(value)))) / _RELATIVE
        yield name, abs(told - slope) / (max(abs(told), abs(slope)) + noise)
