"""Rotary modules and rotary functions of transformers, replaced so that ordinate rotates.

A rotary module computes ``cos`` and ``sin`` once for all layers, and every attention layer applies them with a
function of its file. This structure stays. The replaced forward of a rotary module attaches the rotation of the pass
to the tensors that it returns; the replaced function rotates q and k by the attached rotation, in one operation.
The original function rotates tensors without an attached rotation, so other models of the same file do not change.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from .attention_interface import forward_scope
from .rotations import Form, Frequencies, PassRotation
from .state import ModuleState, state_of

CARRIERS = ("cos", "sin", "freqs_cis")  # arguments of rotary functions that come from a rotary module
TENSORS = ("q", "k", "xq", "xk", "x", "tensor")  # the names of arguments that rotary functions rotate
_FUNCTION_NAME = re.compile(r"_?apply_\w*(rotary|rope)\w*")


# The functions of a model's file -----------------------------------------------------------------

# File and name → the original function, and how many patches use its replacement.
_replaced: dict[tuple[str, str], list[Any]] = {}


class RotaryFunction(NamedTuple):
    """A function that applies rotations, by its file and its name among the file's globals."""

    file: str
    name: str

    @property
    def scope(self) -> dict[str, Any]:
        return vars(sys.modules[self.file])

    @property
    def original(self) -> Callable:
        return _replaced[self][0] if self in _replaced else self.scope[self.name]

    def install(self) -> None:
        """Replace the function; counts its patches, because several models may share it."""
        if self not in _replaced:
            _replaced[self] = [self.original, 0]
            self.scope[self.name] = _by_attached_rotation(self.original)
        _replaced[self][1] += 1

    def remove(self) -> None:
        if self in _replaced:
            _replaced[self][1] -= 1
            if _replaced[self][1] == 0:
                self.scope[self.name] = _replaced.pop(self)[0]


def rotary_functions(layer: nn.Module) -> list[RotaryFunction]:
    """The functions by which an attention layer's own forward applies rotations."""
    scope, code = forward_scope(layer), inspect.unwrap(type(layer).forward).__code__
    named = [x for x in code.co_names if _FUNCTION_NAME.fullmatch(x) and callable(scope.get(x))]
    return [RotaryFunction(scope["__name__"], name) for name in named]


def _by_attached_rotation(original: Callable) -> Callable:
    """A function that rotates by the rotation attached to its arguments, and calls the original if there is none."""
    parameters = inspect.signature(original).parameters
    names = tuple(parameters)
    default = parameters["unsqueeze_dim"].default if "unsqueeze_dim" in parameters else 1

    @functools.wraps(original)
    def apply(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        attached = {getattr(given[x], "_ordinate_rotation", None) for x in CARRIERS if x in given}
        # A model may have computed a new tensor from one of them, such as -sin, which has no attached rotation.
        rotation = attached.pop() if len(attached) == 1 else None
        form = None if rotation is None else rotation.forms.get(original)
        if rotation is None or form is None or given.get("position_ids") is not None:
            return original(*args, **kwargs)
        heads = [given[name] for name in names if name in TENSORS and given.get(name) is not None]
        if rotation.deferred:
            rotation.state.patch.defer_rotation(rotation, form, heads)
        elif (form.heads_axis or given.get("unsqueeze_dim", default)) == 2:
            rotated = rotation.rotate(form, [x.transpose(1, 2) for x in heads])
            heads = [x.transpose(1, 2) for x in rotated]
        else:
            heads = rotation.rotate(form, heads)
        return tuple(heads) if len(heads) > 1 else heads[0]

    return apply


# Rotary modules ----------------------------------------------------------------------------------


@dataclass(eq=False)
class RotaryState(ModuleState):
    """The state of a patched rotary module: its frequencies, by layer type, and the forms of rotary functions."""

    frequencies: dict[str | None, Frequencies] = field(default_factory=dict)
    forms: dict[Callable, Form] = field(default_factory=dict)


def rotary_forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The forward of a patched rotary module: its own result, with the rotation of the pass attached."""
    state = state_of(self)
    assert isinstance(state, RotaryState)
    given = state.arguments(args, kwargs)
    frequencies, positions = state.frequencies.get(given.get("layer_type")), given.get("position_ids")
    if (
        state.patch.bypassed
        or frequencies is None
        or positions is None
        or positions.dim() > (2 if frequencies.axes == 1 else 3)
    ):
        return state.own_forward(*args, **kwargs)
    streaming = state.patch.thread.stream is not None
    rotation = PassRotation(frequencies, positions, state.forms, state, streaming)
    if rotation.deferred:
        state.patch.check_implementation()
    elif torch.compiler.is_compiling():
        return state.own_forward(*args, **kwargs)  # torch.compile fuses these operations better
    if frequencies.length_dependent:
        # The module's own code would store this length and use the longest row of the batch.
        tables = frequencies.at(positions).cos_sin(torch.float32)
        made = tuple(torch.cat((table, table), dim=-1).to(given["x"].dtype) for table in tables)
    else:
        made = state.own_forward(*args, **kwargs)
    for tensor in made if isinstance(made, tuple) else (made,):
        tensor._ordinate_rotation = rotation  # type: ignore[attr-defined]
    return made


def is_rotary(module: nn.Module) -> bool:
    """Whether a module computes rotations from position ids."""
    names = list(inspect.signature(type(module).forward).parameters)
    return "RotaryEmbedding" in type(module).__name__ and names[1:3] == ["x", "position_ids"]
