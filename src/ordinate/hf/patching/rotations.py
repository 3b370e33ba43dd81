"""The rotation of one forward pass of a model: frequencies, positions, and the channel order of heads."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...angles import angles
from ...checks import refused
from ...numerics import in_float64
from ...positions import as_positions
from ...rotate.layout import Layout
from ...rotate.rope import RoPE
from ...rotate.rotation import Rotation
from ...text import Text
from ..config.checkpoint_frequencies import checkpoint_inv_freq
from .masks import MaskDescription
from .state import ModuleState

CPU = torch.device("cpu")


class Form(NamedTuple):
    """How a function of a model's file rotates a head.

    Attributes:
        regroup: Pairs are neighbouring channels, and half a head apart in the result (DeepSeek-V3).
        heads_axis: The axis of heads in the function's tensors: 1 for ``[batch, heads, seq, head_dim]``. None
            if the function has an argument for it (``unsqueeze_dim``).
        trailing: If not all channels of a head are rotated, the last ones are (DeepSeek-V4), not the first.
    """

    layout: Layout
    regroup: bool = False
    heads_axis: int | None = None
    trailing: bool = False

    def rotate(
        self, heads: list[Tensor], width: int, rotate: Callable[[list[Tensor]], Sequence[Tensor]]
    ) -> list[Tensor]:
        """Rotate the channels of heads that this form rotates.

        Args:
            width: How many channels are rotated.
            rotate: Rotates them in the layout of this form.
        """
        given = [x[..., -width:] for x in heads] if self.trailing else heads
        rotated = [*rotate(given)]
        if self.regroup:  # from pairs of neighbours to pairs half a head apart
            rotated = [x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2) for x in rotated]
        if self.trailing:
            pairs = zip(heads, rotated, strict=True)
            rotated = [torch.cat((x[..., :-width], end), dim=-1) for x, end in pairs]
        return rotated


@dataclass(eq=False)
class LiveFrequencies:
    """The frequencies of a live rotary module, for models whose config cannot be read."""

    module: nn.Module
    prefix: str = ""
    length_dependent = False
    original_max_positions = math.inf
    axes = 1

    def inv_freq(self) -> Tensor:
        return getattr(self.module, f"{self.prefix}inv_freq")

    def at(self, positions: Tensor, lengths: Tensor | None = None) -> Rotation:
        def radians(home: torch.device, positions: Tensor, inv_freq: Tensor) -> Tensor:
            return angles(positions[..., None], inv_freq.to(home, torch.float64))

        inv_freq = self.inv_freq()
        factor = float(getattr(self.module, f"{self.prefix}attention_scaling", 1.0))
        found = in_float64(positions.device, radians, positions, inv_freq)
        return Rotation(found, factor, "half", 2 * len(inv_freq), positions.device)


@dataclass(eq=False)
class CheckpointFrequencies:
    """A RoPE of the config's plan, with its frequencies rounded to float32 as the checkpoint's code rounds them."""

    rope: RoPE

    @property
    def length_dependent(self) -> bool:
        return self.rope.length_dependent

    @property
    def original_max_positions(self) -> float:
        """The length up to which the frequencies do not depend on the length."""
        return float(getattr(self.rope.scaling, "original_max_positions", math.inf))

    @property
    def axes(self) -> int:
        return self.rope.axes

    @functools.cached_property
    def _rounding(self) -> Tensor:
        """The rounded frequencies divided by the exact ones, on the CPU."""

        def quotient(home: torch.device) -> Tensor:
            exact = self.rope.inv_freq(device=home)
            return torch.where(exact == 0, 1.0, checkpoint_inv_freq(self.rope).double() / exact)

        return in_float64(CPU, quotient)

    def inv_freq(self) -> Tensor:
        return in_float64(CPU, lambda home: self.rope.inv_freq(device=home) * self._rounding)

    def at(self, positions: Tensor, lengths: Tensor | None = None) -> Rotation:
        if self.length_dependent:
            return self.rope.at(positions, lengths)
        positions = as_positions("positions", positions, axes=self.axes)
        return self.rope._at(positions, None, rounding=self._rounding)


Frequencies = CheckpointFrequencies | LiveFrequencies


@dataclass(eq=False)
class PassRotation:
    """The rotation of one forward pass: frequencies, and the positions of the pass.

    Attributes:
        forms: How each rotary function of the model's file rotates heads.
        streaming: Whether a cache drops tokens, so that positions are indices into the cache.
    """

    frequencies: Frequencies | RoPE
    positions: Tensor
    forms: Mapping[Callable, Form]
    state: ModuleState
    streaming: bool = False
    # Keyed by settings; a list per mask, because torch.compile cannot look up a mask by its hash.
    _rotations: dict[tuple[Any, ...], list[tuple[MaskDescription | None, tuple[Rotation, Rotation]]]] = (
        field(default_factory=dict)
    )

    @property
    def deferred(self) -> bool:
        """Whether keys are rotated in every pass, so that they must be cached unrotated."""
        return self.streaming or self.frequencies.length_dependent

    def rotate(
        self,
        form: Form,
        heads: list[Tensor],
        k_len: int | None = None,
        mask: MaskDescription | None = None,
    ) -> list[Tensor]:
        """Rotate queries, or queries and keys, ``[batch, heads, seq, head_dim]`` as the model's own function would.

        Args:
            k_len: The number of cached and new keys; None for the new keys only.
            mask: Tells tokens from padding, which a row's length does not count.
        """

        def rotate(given: list[Tensor]) -> Sequence[Tensor]:
            of_queries, of_keys = self._rotations_of(form.layout, given[0].shape[-1], k_len, mask)
            if len(given) == 1:
                return [of_queries.apply(given[0])]
            return of_queries.apply_both(given[0], given[1], of_keys)

        width = 2 * self.frequencies.inv_freq().shape[-1] if form.trailing else 0
        return form.rotate(heads, width, rotate)

    def _rotations_of(
        self, layout: Layout, head_dim: int, k_len: int | None, mask: MaskDescription | None
    ) -> tuple[Rotation, Rotation]:
        """The rotations of queries and keys, shared by all layers of a pass."""
        known = self._rotations.setdefault((layout, head_dim, k_len), [])
        for other, found in known:
            if other is mask:
                return found
        queries, keys = self._positions(k_len)
        lengths = self._lengths(keys, mask) if self.frequencies.length_dependent else None

        def at(positions: Tensor) -> Rotation:
            rotation = self.frequencies.at(positions, lengths)
            return replace(rotation, layout=layout, head_dim=head_dim)

        of_keys = at(keys)
        of_queries = of_keys if queries is keys else at(queries)
        known.append((mask, (of_queries, of_keys)))
        return of_queries, of_keys

    def _lengths(self, keys: Tensor, mask: MaskDescription | None) -> Tensor | None:
        """Each row's current length: its last token's position plus one, minus the padding before its first token.

        That padding shifts positions that are plain indices, but not positions that count a row's tokens.
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
        """The positions of queries and of keys."""
        q_len = self.positions.shape[-1]
        if self.streaming and k_len is not None:
            keys = torch.arange(k_len, device=self.positions.device)[None]
            return keys[:, k_len - q_len :], keys
        if k_len is None or q_len == k_len:
            return self.positions, self.positions
        if q_len > 1 and not bool((self.positions.diff(dim=-1) == 1).all()):
            raise refused(
                "position_ids",
                "must be consecutive with a cache and a scaling that depends on the length "
                "(dynamic NTK, LongRoPE), for cached keys stand right before them",
                Text("others"),
                error=NotImplementedError,
            )
        back = torch.arange(k_len - 1, -1, -1, device=self.positions.device)
        return self.positions, (self.positions[..., -1:] - back).clamp(min=0)
