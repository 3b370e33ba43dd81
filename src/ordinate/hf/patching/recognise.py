"""What a rotary module of transformers stands for, found out by trying.

A name proves nothing: which encoding a module's ``cos`` and ``sin`` belong to, and in which layout the
functions of its file apply them, is taken as known only if what the model's own code makes of random
q and k is what ordinate makes of them, and the frequencies are the same.
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
from .rotary import (
    TENSORS,
    Applier,
    CheckpointFrequencies,
    Form,
    LiveFrequencies,
    Source,
    regroup,
    signature_of,
)

_CPU = torch.device("cpu")
_FORMS = (Form("half"), Form("interleaved"), Form("interleaved", regroup=True))
_LENGTH_DEPENDENT = ("dynamic", "longrope")
# What a model's code raises for tensors of shapes that it does not expect.
_MISFITS = (RuntimeError, TypeError, ValueError, AssertionError, IndexError, AttributeError)


class Found(NamedTuple):
    """What trying found out about a rotary module."""

    sources: dict[str | None, Source]
    forms: dict[Callable, Form]
    notes: list[str]


def recognise(module: nn.Module, encodings: Iterable[RoPE], appliers: Iterable[Applier]) -> Found:
    """What a rotary module stands for and how its file applies it; nothing is believed that does not fit."""
    asks_type = "layer_type" in signature_of(module).parameters
    types: list[str | None] = [*sorted(_layer_types(module))] if asks_type else [None]
    found = Found({}, {}, [])
    for layer_type in types:
        prefix = "" if layer_type is None else f"{layer_type}_"
        candidates: list[Source] = [CheckpointFrequencies(rope) for rope in encodings]
        kind = _rope_type(module, layer_type)
        if kind not in _LENGTH_DEPENDENT and hasattr(module, f"{prefix}inv_freq"):
            candidates.append(LiveFrequencies(module, prefix))
        for source in candidates:
            forms = _fitting(module, source, layer_type, prefix, appliers)
            if forms:
                found.sources[layer_type] = source
                found.forms.update(forms)
                if isinstance(source, LiveFrequencies):
                    found.notes.append(
                        "by the module's own frequencies, which no reading of the config gives"
                    )
                break
    return found


def _layer_types(module: nn.Module) -> set[str]:
    endings = [
        name.removesuffix("_inv_freq") for name, _ in module.named_buffers() if "inv_freq" in name
    ]
    return {name for name in endings if not name.endswith("original") and name != "inv_freq"}


def _rope_type(module: Any, layer_type: str | None) -> str | None:
    kind = getattr(module, "rope_type", None)
    return kind.get(layer_type) if isinstance(kind, dict) else kind


def _fitting(
    module: nn.Module,
    source: Source,
    layer_type: str | None,
    prefix: str,
    appliers: Iterable[Applier],
) -> dict[Callable, Form]:
    """Each function's form, if the rotary module and the encoding agree; empty if they do not."""
    # The module's own code changes its frequencies as sequences grow; these are the ones it starts from.
    live = getattr(module, f"{prefix}original_inv_freq", getattr(module, f"{prefix}inv_freq", None))
    ours = in_float64(_CPU, lambda home, held: held.double(), source.inv_freq())
    if live is not None and not _same_frequencies(live, ours):
        return {}
    device = next((buffer.device for buffer in module.buffers()), torch.device("cpu"))
    pairs, seq = ours.shape[-1], 5
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 3, seq, 2 * pairs, generator=generator).to(device)
    positions = torch.tensor([[0, 1, 2, 5, 11]], device=device)
    if source.axes > 1:
        positions = torch.stack([positions, positions + 1, positions * 2])
    own = copy.deepcopy(module)
    if live is not None:
        for name in (f"{prefix}inv_freq", f"{prefix}original_inv_freq"):  # before any cast or growth
            setattr(own, name, ours.to(device, torch.float32))
    arguments = (x, positions) if layer_type is None else (x, positions, layer_type)
    try:
        embeddings = type(module).forward(own, *arguments)
    except _MISFITS:
        return {}
    sections = list(source.rope.sections or ()) if isinstance(source, CheckpointFrequencies) else []
    forms: dict[Callable, Form] = {}
    for applier in appliers:
        form = _form_of(applier.original, embeddings, x, source.at(positions), sections)
        if form is not None:
            forms[applier.original] = form
    return forms


def _same_frequencies(live: Tensor, ours: Tensor) -> bool:
    """Whether a module's frequencies are these, in float32 or cast to fewer bits by whoever cast the model."""
    held = live.detach().to("cpu")
    if held.shape != ours.shape:
        return False
    if held.dtype in (torch.bfloat16, torch.float16):
        return torch.equal(held, ours.float().to(held.dtype))
    near = in_float64(
        _CPU,
        lambda home, held, ours: torch.isclose(held.double(), ours, rtol=1e-6, atol=0.0),
        held,
        ours,
    )
    return bool(near.all())


def _form_of(
    function: Callable, embeddings: Any, x: Tensor, rotation: Rotation, sections: list[int]
) -> Form | None:
    """The form in which a function turns ``x`` as the rotation does; None if in none."""
    names = list(inspect.signature(function).parameters)
    tensors = [name for name in names if name in TENSORS]
    if isinstance(embeddings, tuple) and len(embeddings) != 2:
        return None
    complex_ = not isinstance(embeddings, tuple)
    carriers = (
        {"freqs_cis": embeddings} if complex_ else dict(zip(("cos", "sin"), embeddings, strict=True))
    )
    if not tensors or not set(carriers) <= set(names):
        return None
    if "mrope_section" in names:  # where axes are chosen when applied, not before
        carriers["mrope_section"] = sections
    for axis in (1, 2) if complex_ else (None,):

        def theirs(x: Tensor, axis: int | None = axis) -> Tensor | None:
            given = x.transpose(1, 2).contiguous() if axis == 2 else x
            try:
                result = function(**dict.fromkeys(tensors, given), **carriers)
            except _MISFITS:
                return None
            turned = result[0] if isinstance(result, tuple) else result
            return turned.transpose(1, 2) if axis == 2 else turned

        def ours(x: Tensor, form: Form) -> Tensor:
            if form.trailing:
                width = 2 * rotation.angles.shape[-1]
                kept, x = x[..., :-width], x[..., -width:]
                return torch.cat((kept, ours(x, form._replace(trailing=False))), dim=-1)
            turned = dataclasses.replace(rotation, layout=form.layout, head_dim=x.shape[-1]).apply(x)
            return regroup(turned) if form.regroup else turned

        # More channels than turn: most functions are never given them, and refuse.
        wide = torch.cat((x, x.flip(-1)[..., :4]), dim=-1)
        wider = theirs(wide)
        for form in _FORMS:
            if not _alike(theirs(x), ours(x, form)):
                continue
            for placed in (form, form._replace(trailing=True)):
                if wider is None or _alike(wider, ours(wide, placed)):
                    return placed._replace(heads_axis=axis)
    return None


def _alike(theirs: Tensor | None, ours: Tensor) -> bool:
    return (
        theirs is not None
        and theirs.shape == ours.shape
        and torch.allclose(theirs.float(), ours, atol=1e-4, rtol=1e-4)
    )
