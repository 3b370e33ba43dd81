"""Rotation by ordinate inside models of transformers.

There, a rotary module makes ``cos`` and ``sin`` once for all layers, and every attention layer applies
them with a function of its own file. Both are kept. The rotary module's result is marked with the rotation
it stands for; the function, where it is handed something marked, turns q and k by that rotation in one
pass. Unmarked, it does what it always did, so other models of the same file notice nothing.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...angles import angles
from ...numerics import in_float64
from ...positions import as_positions
from ...rotate.layout import Layout
from ...rotate.rope import RoPE
from ...rotate.rotation import Rotation
from ..config.checkpoint_frequencies import checkpoint_inv_freq
from .attention_interface import forward_scope
from .masks import Visible
from .state import Site, site_of

_CPU = torch.device("cpu")
_APPLY = re.compile(r"_?apply_\w*(rotary|rope)\w*")
CARRIERS = ("cos", "sin", "freqs_cis")
TENSORS = ("q", "k", "xq", "xk", "x", "tensor")  # what such functions call the tensors they turn


class Form(NamedTuple):
    """How a function of a model's file turns a head.

    Attributes:
        regroup: Neighbouring channels turn, and come out half a head apart (DeepSeek-V3).
        heads_axis: Where heads are in what it is given: 1 for ``[batch, heads, seq, head_dim]``. None
            where the function is told (``unsqueeze_dim``).
        trailing: Of a head with more channels than turn, the last ones turn (DeepSeek-V4), not the first.
    """

    layout: Layout
    regroup: bool = False
    heads_axis: int | None = None
    trailing: bool = False


@dataclass(eq=False)
class LiveFrequencies:
    """The frequencies a rotary module holds, for a config that could not be read."""

    module: nn.Module
    prefix: str = ""
    length_dependent = False
    original_max_positions = math.inf
    axes = 1

    def inv_freq(self) -> Tensor:
        return getattr(self.module, f"{self.prefix}inv_freq")

    def at(self, positions: Tensor, lengths: Tensor | None = None) -> Rotation:
        def turned(home: torch.device, positions: Tensor, inv_freq: Tensor) -> Tensor:
            return angles(positions[..., None], inv_freq.to(home, torch.float64))

        inv_freq = self.inv_freq()
        factor = float(getattr(self.module, f"{self.prefix}attention_scaling", 1.0))
        radians = in_float64(positions.device, turned, positions, inv_freq)
        return Rotation(radians, factor, "half", 2 * len(inv_freq), positions.device)


@dataclass(eq=False)
class CheckpointFrequencies:
    """A RoPE of the config's plan, with its frequencies rounded to float32 as the checkpoint's code has them."""

    rope: RoPE

    @property
    def length_dependent(self) -> bool:
        return self.rope.length_dependent

    @property
    def original_max_positions(self) -> float:
        """Up to which length it does not depend on the length."""
        return float(getattr(self.rope.scaling, "original_max_positions", math.inf))

    @property
    def axes(self) -> int:
        return self.rope.axes

    @functools.cached_property
    def _rounding(self) -> Tensor:
        """Of each frequency, on the CPU."""

        def quotient(home: torch.device) -> Tensor:
            exact = self.rope.inv_freq(device=home)
            return torch.where(exact == 0, 1.0, checkpoint_inv_freq(self.rope).double() / exact)

        return in_float64(_CPU, quotient)

    def inv_freq(self) -> Tensor:
        return in_float64(_CPU, lambda home: self.rope.inv_freq(device=home) * self._rounding)

    def at(self, positions: Tensor, lengths: Tensor | None = None) -> Rotation:
        if self.length_dependent:
            return self.rope.at(positions, lengths)
        positions = as_positions("positions", positions, axes=self.axes)
        return self.rope._at(positions, None, rounding=self._rounding)


Source = CheckpointFrequencies | LiveFrequencies


@dataclass(eq=False)
class Turn:
    """What a marked ``cos`` stands for: an encoding at the positions of one forward pass.

    Attributes:
        streaming: Whether a cache drops tokens, so that positions are places in the cache.
    """

    source: Source | RoPE
    positions: Tensor
    forms: Mapping[Callable, Form]
    site: Site
    streaming: bool = False
    # By settings, each with the mask that they were made for: a compiler cannot look a mask up by its hash.
    _rotations: dict[tuple[Any, ...], list[tuple[Visible | None, tuple[Rotation, Rotation]]]] = field(
        default_factory=dict
    )

    @property
    def late(self) -> bool:
        """Whether keys are turned anew in every pass, so that they must be cached unturned."""
        return self.streaming or self.source.length_dependent

    def rotations(
        self, layout: Layout, head_dim: int, k_len: int | None = None, mask: Visible | None = None
    ) -> tuple[Rotation, Rotation]:
        """The rotations of queries and keys, shared by all layers of a pass.

        Args:
            k_len: How many keys there are, old and new; None for the new ones alone.
            mask: What tells padding from the tokens that make a row's length.
        """
        known = self._rotations.setdefault((layout, head_dim, k_len), [])
        for other, found in known:
            if other is mask:
                return found
        queries, keys = self._positions(k_len)
        lengths = self._lengths(keys, mask) if self.source.length_dependent else None
        of_keys = replace(self.source.at(keys, lengths), layout=layout, head_dim=head_dim)
        of_queries = of_keys
        if queries is not keys:
            of_queries = replace(self.source.at(queries, lengths), layout=layout, head_dim=head_dim)
        known.append((mask, (of_queries, of_keys)))
        return of_queries, of_keys

    def _lengths(self, keys: Tensor, mask: Visible | None) -> Tensor | None:
        """How long each row is now: its last token's position and one, less the padding it starts with.

        Padding moves the positions of a row that are plain indices, and not those that count its tokens.
        """
        tokens = None if mask is None or self.streaming else mask.tokens()
        if tokens is None or keys.dim() > 2:
            return None if keys is self.positions else keys[..., -1:] + 1
        keys = self._positions(tokens.shape[-1])[1].expand(len(tokens), -1)
        first = tokens.int().argmax(dim=-1, keepdim=True)
        start = torch.where(first > 0, keys.gather(-1, first), 0)
        end = keys.masked_fill(~tokens, 0).amax(dim=-1, keepdim=True) + 1
        return (end - start).clamp(min=1)

    def _positions(self, k_len: int | None) -> tuple[Tensor, Tensor]:
        q_len = self.positions.shape[-1]
        if self.streaming and k_len is not None:
            keys = torch.arange(k_len, device=self.positions.device)[None]
            return keys[:, k_len - q_len :], keys
        if k_len is None or q_len == k_len:
            return self.positions, self.positions
        if q_len > 1 and not bool((self.positions.diff(dim=-1) == 1).all()):
            raise NotImplementedError(
                "position_ids must be consecutive with a cache and a scaling that depends on the length "
                "(dynamic NTK, LongRoPE), for cached keys stand right before them, got others"
            )
        back = torch.arange(k_len - 1, -1, -1, device=self.positions.device)
        return self.positions, (self.positions[..., -1:] - back).clamp(min=0)

    def apply(
        self,
        form: Form,
        q: Tensor,
        k: Tensor | None,
        k_len: int | None = None,
        mask: Visible | None = None,
    ) -> list[Tensor]:
        """Turn tensors ``[batch, heads, seq, head_dim]`` as a model's own function would."""
        if form.trailing:
            width, leading = 2 * self.source.inv_freq().shape[-1], form._replace(trailing=False)
            parts = [x.split((x.shape[-1] - width, width), dim=-1) for x in (q, k) if x is not None]
            heads = [part[1] for part in parts]
            turned = self.apply(leading, heads[0], heads[1] if k is not None else None, k_len, mask)
            return [torch.cat((part[0], x), dim=-1) for part, x in zip(parts, turned, strict=True)]
        of_queries, of_keys = self.rotations(form.layout, q.shape[-1], k_len, mask)
        if k is None:
            turned = [of_queries.apply(q)]
        else:
            turned = [*of_queries.apply_both(q, k, of_keys)]
        return [regroup(x) for x in turned] if form.regroup else turned


def _apply(form: Form, tensors: list[Tensor], heads_axis: int, turn: Turn) -> list[Tensor]:
    """What a model's own function returns for what it is given, or its input where keys turn late."""
    if turn.late:
        turn.site.patch.leave_unturned(turn, form, tensors)
        return tensors
    if heads_axis == 2:
        tensors = [x.transpose(1, 2) for x in tensors]
    turned = turn.apply(form, tensors[0], tensors[1] if len(tensors) > 1 else None)
    return [x.transpose(1, 2) for x in turned] if heads_axis == 2 else turned


def regroup(x: Tensor) -> Tensor:
    """Channels in pairs of neighbours brought half a head apart."""
    return x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)


def mark(embeddings: Any, turn: Turn) -> Any:
    """Note on what a rotary module returns what it stands for."""
    for tensor in embeddings if isinstance(embeddings, tuple) else (embeddings,):
        tensor._ordinate = turn
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
    parameters = inspect.signature(original).parameters
    names = tuple(parameters)
    default = parameters["unsqueeze_dim"].default if "unsqueeze_dim" in parameters else 1

    @functools.wraps(original)
    def apply(*args: Any, **kwargs: Any) -> Any:
        bound = dict(zip(names, args, strict=False)) | kwargs
        marks = {getattr(bound[name], "_ordinate", None) for name in CARRIERS if name in bound}
        # A model may have changed one of them, say sin to -sin, which then has no mark.
        turn = marks.pop() if len(marks) == 1 else None
        form = None if turn is None else turn.forms.get(original)
        if turn is None or form is None or bound.get("position_ids") is not None:
            return original(*args, **kwargs)
        axis = form.heads_axis or bound.get("unsqueeze_dim", default)
        tensors = [bound[name] for name in names if name in TENSORS and bound.get(name) is not None]
        turned = _apply(form, tensors, axis, turn)
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
    asked = site.arguments(args, kwargs)
    source = site.sources.get(asked.get("layer_type"))
    positions = asked.get("position_ids")
    if (
        site.bypassed
        or source is None
        or positions is None
        or positions.dim() > (2 if source.axes == 1 else 3)
    ):
        return site.own_forward(*args, **kwargs)
    turn = Turn(source, positions, site.forms, site, streaming=site.patch.here.stream is not None)
    if torch.compiler.is_compiling() and not turn.late:
        return site.own_forward(*args, **kwargs)  # a compiler fuses the model's own operations better
    if turn.late:
        site.patch.check_chosen()
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
