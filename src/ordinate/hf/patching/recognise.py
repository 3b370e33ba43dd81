"""Finds which encoding a rotary module of transformers computes, by comparing results.

Class names are not trusted. An encoding is accepted only if its frequencies are the module's, and if the model's own
code and ordinate rotate the same random q and k to the same result.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...numerics import in_float64
from ...rotate.rope import RoPE
from ...rotate.rotation import Rotation
from .rotary import TENSORS, RotaryFunction
from .rotations import CPU, CheckpointFrequencies, Form, Frequencies, LiveFrequencies

_FORMS = (Form("half"), Form("interleaved"), Form("interleaved", regroup=True))
_LENGTH_DEPENDENT = ("dynamic", "longrope")
# What a model's code raises for tensors of shapes that it does not expect.
_MISFITS = (RuntimeError, TypeError, ValueError, AssertionError, IndexError, AttributeError)


class Recognised(NamedTuple):
    """The frequencies of a rotary module by layer type, and the form of each rotary function of its file."""

    frequencies: dict[str | None, Frequencies]
    forms: dict[Callable, Form]
    notes: list[str]


def recognise(
    module: nn.Module, encodings: Iterable[RoPE], functions: Iterable[RotaryFunction]
) -> Recognised:
    """Try the encodings of the config's plan, then the module's own frequencies; empty if none fits."""
    found = Recognised({}, {}, [])
    for layer_type in _layer_types(module):
        prefix = "" if layer_type is None else f"{layer_type}_"
        candidates: list[Frequencies] = [CheckpointFrequencies(rope) for rope in encodings]
        kind = getattr(module, "rope_type", None)
        kind = kind.get(layer_type) if isinstance(kind, dict) else kind
        if kind not in _LENGTH_DEPENDENT and hasattr(module, f"{prefix}inv_freq"):
            candidates.append(LiveFrequencies(module, prefix))
        for candidate in candidates:
            forms = _fitting_forms(module, candidate, layer_type, functions)
            if forms:
                found.frequencies[layer_type] = candidate
                found.forms.update(forms)
                if isinstance(candidate, LiveFrequencies):
                    found.notes.append(
                        "by the module's own frequencies, which no reading of the config gives"
                    )
                break
    return found


def _layer_types(module: nn.Module) -> list[str | None]:
    """The layer types that a rotary module's forward accepts; [None] if it has no such argument."""
    if "layer_type" not in inspect.signature(type(module).forward).parameters:
        return [None]
    names = {name for name, _ in module.named_buffers() if "inv_freq" in name and name != "inv_freq"}
    types = {name.removesuffix("_inv_freq") for name in names}
    return [*sorted(name for name in types if not name.endswith("original"))]


def _fitting_forms(
    module: nn.Module,
    frequencies: Frequencies,
    layer_type: str | None,
    functions: Iterable[RotaryFunction],
) -> dict[Callable, Form]:
    """Each function's form, if the rotary module and the encoding agree; empty if they do not."""
    prefix = "" if layer_type is None else f"{layer_type}_"
    # The module's own code changes its frequencies as sequences grow; compare the original ones.
    live = getattr(module, f"{prefix}original_inv_freq", getattr(module, f"{prefix}inv_freq", None))
    ours = in_float64(CPU, lambda home, held: held.double(), frequencies.inv_freq())
    if live is not None and not _same_frequencies(live, ours):
        return {}
    device = next((buffer.device for buffer in module.buffers()), CPU)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 3, 5, 2 * ours.shape[-1], generator=generator).to(device)
    positions = torch.tensor([[0, 1, 2, 5, 11]], device=device)
    if frequencies.axes > 1:
        positions = torch.stack([positions, positions + 1, positions * 2])
    own = copy.deepcopy(module)
    if live is not None:
        for name in (f"{prefix}inv_freq", f"{prefix}original_inv_freq"):  # before any cast or growth
            setattr(own, name, ours.to(device, torch.float32))
    arguments = (x, positions) if layer_type is None else (x, positions, layer_type)
    try:
        made = type(module).forward(own, *arguments)
    except _MISFITS:
        return {}
    sections = (
        list(frequencies.rope.sections or ()) if isinstance(frequencies, CheckpointFrequencies) else []
    )
    forms = {
        function.original: _form_of(function.original, made, x, frequencies.at(positions), sections)
        for function in functions
    }
    return {function: form for function, form in forms.items() if form is not None}


def _same_frequencies(live: Tensor, ours: Tensor) -> bool:
    """Whether a module's frequencies equal ours in float32, or after a cast to the model's lower precision."""
    held = live.detach().to("cpu")
    if held.shape != ours.shape:
        return False
    if held.dtype in (torch.bfloat16, torch.float16):
        return torch.equal(held, ours.float().to(held.dtype))

    def near(home: torch.device, held: Tensor, ours: Tensor) -> Tensor:
        return torch.isclose(held.double(), ours, rtol=1e-6, atol=0.0)

    return bool(in_float64(CPU, near, held, ours).all())


def _form_of(
    function: Callable, made: Any, x: Tensor, rotation: Rotation, sections: list[int]
) -> Form | None:
    """The form with which the rotation gives the function's result for ``x``; None if no form does.

    Args:
        made: What the rotary module returned: cos and sin, or complex numbers.
    """
    names = list(inspect.signature(function).parameters)
    tensors = [name for name in names if name in TENSORS]
    is_complex = not isinstance(made, tuple)
    if not is_complex and len(made) != 2:
        return None
    carriers = {"freqs_cis": made} if is_complex else dict(zip(("cos", "sin"), made, strict=True))
    if not tensors or not set(carriers) <= set(names):
        return None
    if "mrope_section" in names:  # this function assigns the axes, not the rotary module
        carriers["mrope_section"] = sections

    def theirs(x: Tensor, axis: int | None) -> Tensor | None:
        given = x.transpose(1, 2).contiguous() if axis == 2 else x
        try:
            result = function(**dict.fromkeys(tensors, given), **carriers)
        except _MISFITS:
            return None
        rotated = result[0] if isinstance(result, tuple) else result
        return rotated.transpose(1, 2) if axis == 2 else rotated

    def ours(x: Tensor, form: Form) -> Tensor:
        def rotate(heads: list[Tensor]) -> list[Tensor]:
            head_dim = heads[0].shape[-1]
            placed = dataclasses.replace(rotation, layout=form.layout, head_dim=head_dim)
            return [placed.apply(heads[0])]

        return form.rotate([x], 2 * rotation.angles.shape[-1], rotate)[0]

    # Try heads with more channels than are rotated; most functions refuse them, because they never get such heads.
    wide = torch.cat((x, x.flip(-1)[..., :4]), dim=-1)
    for axis in (1, 2) if is_complex else (None,):
        own, own_wide = theirs(x, axis), theirs(wide, axis)
        for form in _FORMS:
            if not _alike(own, ours(x, form)):
                continue
            for placed in (form, form._replace(trailing=True)):
                if own_wide is None or _alike(own_wide, ours(wide, placed)):
                    return placed._replace(heads_axis=axis)
    return None


def _alike(theirs: Tensor | None, ours: Tensor) -> bool:
    return (
        theirs is not None
        and theirs.shape == ours.shape
        and torch.allclose(theirs.float(), ours, atol=1e-4, rtol=1e-4)
    )
