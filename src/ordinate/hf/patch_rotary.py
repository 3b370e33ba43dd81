"""Rotation by ordinate inside models of transformers.

There, a rotary module makes ``cos`` and ``sin`` once for all layers, and every attention layer applies
them with a function of its own file. Both are kept. The rotary module's result is marked with the rotation
it stands for; the function, where it is handed something marked, turns q and k by that rotation in one
pass. Unmarked, it does what it always did, so other models of the same file notice nothing.

Which encoding a rotary module stands for, and in which layout its file applies it, is found by trying:
what the model's own code makes of random q and k must be what ordinate makes of them.
"""

from __future__ import annotations

import copy
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..rotate.layout import Layout
from ..rotate.rope import RoPE
from ..rotate.rotation import Rotation
from .attention_interface import forward_scope
from .float32 import checkpoint_inv_freq
from .patch_state import Site, site_of

_APPLY = re.compile(r"_?apply_\w*(rotary|rope)\w*")
_TENSORS = ("q", "k", "xq", "xk", "x", "tensor")  # what such functions call the tensors they turn
_LENGTH_DEPENDENT = ("dynamic", "longrope")


class Form(NamedTuple):
    """How a function of a model's file turns a head.

    Attributes:
        regroup: Neighbouring channels turn, and come out half a head apart (DeepSeek-V3).
        heads_axis: Where heads are in what it is given: 1 for ``[batch, heads, seq, head_dim]``. None
            where the function is told (``unsqueeze_dim``).
    """

    layout: Layout
    regroup: bool = False
    heads_axis: int | None = None


_FORMS = (Form("half"), Form("interleaved"), Form("interleaved", regroup=True))


@dataclass(eq=False)
class LiveFrequencies:
    """The frequencies a rotary module holds, for a config that could not be read."""

    module: nn.Module
    prefix: str = ""
    length_dependent = False
    axes = 1

    def inv_freq(self) -> Tensor:
        return getattr(self.module, f"{self.prefix}inv_freq")

    def at(self, positions: Tensor, lengths: Tensor | None = None) -> Rotation:
        inv_freq = self.inv_freq().to(positions.device, torch.float64)
        factor = float(getattr(self.module, f"{self.prefix}attention_scaling", 1.0))
        angles = positions[..., None].double() * inv_freq
        return Rotation(angles, factor, "half", 2 * len(inv_freq))


@dataclass(eq=False)
class CheckpointFrequencies:
    """A RoPE of the config's plan, with its frequencies rounded to float32 as the checkpoint's code has them."""

    rope: RoPE

    @property
    def length_dependent(self) -> bool:
        return self.rope.length_dependent

    @property
    def axes(self) -> int:
        return self.rope.axes

    @functools.cached_property
    def _rounding(self) -> Tensor:
        exact = self.rope.inv_freq()
        return torch.where(exact == 0, 1.0, checkpoint_inv_freq(self.rope).double() / exact)

    def inv_freq(self) -> Tensor:
        return self.rope.inv_freq() * self._rounding

    def at(self, positions: Tensor, lengths: Tensor | None = None) -> Rotation:
        found = self.rope.at(positions, lengths)
        if self.length_dependent:
            return found
        angles = found.angles * self._rounding.to(positions.device)
        return Rotation(angles, found.factor, found.layout, found.head_dim)


Source = CheckpointFrequencies | LiveFrequencies


@dataclass(eq=False)
class Turn:
    """What a marked ``cos`` stands for: an encoding at the positions of one forward pass."""

    source: Source
    positions: Tensor
    forms: Mapping[Callable, Form]
    site: Site
    _rotations: dict[tuple[Layout, int], Rotation] = field(default_factory=dict)

    @property
    def late(self) -> bool:
        """Whether keys must turn anew as the sequence grows, and so not before they are cached."""
        return self.source.length_dependent

    def rotation(self, layout: Layout, head_dim: int) -> Rotation:
        """The rotation at the positions of the queries, shared by all layers of a pass."""
        if (layout, head_dim) not in self._rotations:
            found = self.source.at(self.positions)
            self._rotations[layout, head_dim] = _reshaped(found, layout, head_dim)
        return self._rotations[layout, head_dim]

    def of_keys(self, layout: Layout, head_dim: int, k_len: int) -> Rotation:
        """The rotation of all keys, old and new, at the length the sequence has now."""
        q_len = self.positions.shape[-1]
        if q_len == k_len:
            return self.rotation(layout, head_dim)
        if q_len > 1 and not bool((self.positions.diff(dim=-1) == 1).all()):
            raise NotImplementedError(
                "position_ids must be consecutive with a cache and a scaling that depends on the length "
                "(dynamic NTK, LongRoPE), for cached keys stand right before them, got others"
            )
        last = self.positions[..., -1:]
        back = torch.arange(k_len - 1, -1, -1, device=last.device)
        keys = (last - back).clamp(min=0)
        return _reshaped(self.source.at(keys, last + 1), layout, head_dim)


def _reshaped(rotation: Rotation, layout: Layout, head_dim: int) -> Rotation:
    return Rotation(rotation.angles, rotation.factor, layout, head_dim)


def _apply(form: Form, tensors: list[Tensor], heads_axis: int, turn: Turn) -> list[Tensor]:
    """Turn tensors as a model's own function would."""
    patch = turn.site.patch
    if heads_axis == 2:
        tensors = [x.transpose(1, 2) for x in tensors]
    rotation = turn.rotation(form.layout, tensors[0].shape[-1])
    if turn.late and len(tensors) == 2:
        patch.expect_late(turn, form)
        turned = [rotation.apply(tensors[0]), tensors[1]]
    elif len(tensors) == 2:
        turned = [*rotation.apply_both(tensors[0], tensors[1])]
    else:
        turned = [rotation.apply(tensors[0])]
    if form.regroup:
        turned = [regroup(x) for x in turned]
    return [x.transpose(1, 2) for x in turned] if heads_axis == 2 else turned


def regroup(x: Tensor) -> Tensor:
    """Channels in pairs of neighbours brought half a head apart."""
    return x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)


def mark(embeddings: Any, turn: Turn) -> Any:
    """Note on what a rotary module returns what it stands for."""
    first = embeddings[0] if isinstance(embeddings, tuple) else embeddings
    first._ordinate = turn
    return embeddings


# The functions of a model's file -----------------------------------------------------------------

_installed: dict[
    tuple[str, str], list[Any]
] = {}  # file and name → the original and how many patches use it


class Applier(NamedTuple):
    """A function that applies rotations, in the global names of a model's file."""

    file: str
    name: str

    @property
    def scope(self) -> dict[str, Any]:
        import sys

        return vars(sys.modules[self.file])

    @property
    def original(self) -> Callable:
        return _installed[self][0] if self in _installed else self.scope[self.name]

    def install(self) -> None:
        """Have the file look for marks; counted, for several models may be patched."""
        if self in _installed:
            _installed[self][1] += 1
            return
        original = self.scope[self.name]
        _installed[self] = [original, 1]
        self.scope[self.name] = _looking_for_marks(original)

    def remove(self) -> None:
        if self not in _installed:
            return
        _installed[self][1] -= 1
        if _installed[self][1] == 0:
            self.scope[self.name] = _installed.pop(self)[0]


def appliers_of(module: nn.Module) -> list[Applier]:
    """The functions an attention layer's own forward applies rotations with."""
    scope, code = forward_scope(module), inspect.unwrap(type(module).forward).__code__
    named = [name for name in code.co_names if _APPLY.fullmatch(name) and callable(scope.get(name))]
    return [Applier(scope["__name__"], name) for name in named]


def _looking_for_marks(original: Callable) -> Callable:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def apply(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs).arguments
        carrier = bound.get("cos", bound.get("freqs_cis"))
        turn = getattr(carrier, "_ordinate", None)
        form = None if turn is None else turn.forms.get(original)
        if turn is None or form is None or bound.get("position_ids") is not None:
            return original(*args, **kwargs)
        default = signature.parameters.get("unsqueeze_dim")
        axis = form.heads_axis or bound.get("unsqueeze_dim", default.default if default else 1)
        names = [
            name for name in signature.parameters if name in _TENSORS and bound.get(name) is not None
        ]
        turned = _apply(form, [bound[name] for name in names], axis, turn)
        return tuple(turned) if len(turned) > 1 else turned[0]

    return apply


# Rotary modules ----------------------------------------------------------------------------------


@dataclass(eq=False)
class RotarySite(Site):
    """A patched rotary module: what it stands for, by the layer type it is asked for."""

    sources: dict[str | None, Source] = field(default_factory=dict)
    forms: dict[Callable, Form] = field(default_factory=dict)


def rotary_forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """In the place of a rotary module's forward: its own result, marked."""
    site = site_of(self)
    assert isinstance(site, RotarySite)
    asked = signature_of(self).bind(self, *args, **kwargs).arguments
    source = site.sources.get(asked.get("layer_type"))
    positions = asked.get("position_ids")
    # A compiler fuses the model's own operations better than it could ours.
    if site.bypassed or source is None or positions is None or torch.compiler.is_compiling():
        return site.own_forward(*args, **kwargs)
    site.patch.late = None
    turn = Turn(source, positions, site.forms, site)
    if not source.length_dependent:
        return mark(site.own_forward(*args, **kwargs), turn)
    # The module's own code would remember this length, and follow the longest row of the batch.
    dtype, pairs = asked["x"].dtype, source.at(positions)
    cos, sin = (torch.cat((table, table), dim=-1).to(dtype) for table in pairs.cos_sin(torch.float32))
    return mark((cos, sin), turn)


def signature_of(module: nn.Module) -> inspect.Signature:
    """The arguments of a module's own forward, itself among them."""
    return inspect.signature(type(module).forward)


def is_rotary(module: nn.Module) -> bool:
    """Whether a module makes rotations from position ids."""
    names = list(signature_of(module).parameters)
    return "RotaryEmbedding" in type(module).__name__ and names[1:3] == ["x", "position_ids"]


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
    ours = source.inv_freq().to("cpu", torch.float64)
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
    own.__dict__.pop("_ordinate", None)
    arguments = (x, positions) if layer_type is None else (x, positions, layer_type)
    embeddings = type(module).forward(own, *arguments)
    forms: dict[Callable, Form] = {}
    for applier in appliers:
        form = _form_of(applier.original, embeddings, x, source.at(positions))
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
    return torch.allclose(held.double(), ours, rtol=1e-6, atol=0.0)


def _form_of(function: Callable, embeddings: Any, x: Tensor, rotation: Rotation) -> Form | None:
    """The form in which a function turns ``x`` as the rotation does; None if in none."""
    names = list(inspect.signature(function).parameters)
    tensors = [name for name in names if name in _TENSORS]
    complex_ = not isinstance(embeddings, tuple)
    carriers = (
        {"freqs_cis": embeddings} if complex_ else dict(zip(("cos", "sin"), embeddings, strict=True))
    )
    if not tensors or not set(carriers) <= set(names):
        return None
    for axis in (1, 2) if complex_ else (None,):
        given = x.transpose(1, 2).contiguous() if axis == 2 else x
        try:
            result = function(**dict.fromkeys(tensors, given), **carriers)
        except (RuntimeError, TypeError, ValueError, AssertionError, IndexError):
            continue
        theirs = result[0] if isinstance(result, tuple) else result
        theirs = theirs.transpose(1, 2) if axis == 2 else theirs
        for form in _FORMS:
            ours = _reshaped(rotation, form.layout, x.shape[-1]).apply(x)
            ours = regroup(ours) if form.regroup else ours
            if theirs.shape == ours.shape and torch.allclose(theirs.float(), ours, atol=1e-4, rtol=1e-4):
                return form._replace(heads_axis=axis)
    return None
