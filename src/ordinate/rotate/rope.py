"""Rotary position embedding: rotates q and k, so that scores depend on distance only."""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType
from typing import Literal, final

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from ..angles import Speeds, angles, cached_speeds
from ..checks import check_choice, check_even, check_ints, check_number, check_size, refused, short
from ..encoding import Lengths, PositionEncoding
from ..numerics import constant, in_float64
from ..places import Positions, as_positions, check_lengths, resolve
from ..scaling import NTK, Linear, Llama3, Proportional, Scaling, YaRN, describe, frequencies
from ..tracing import is_traced
from . import rotation_cache
from .layout import Layout, check_rotary_dim
from .rotation import Rotation

# Scalings whose frequencies depend on their fields alone. Those of a user's own scaling may depend on more.
_PLAIN_SCALINGS = (NoneType, Linear, NTK, YaRN, Llama3, Proportional)


@final
class RoPE(PositionEncoding):
    """Rotate pairs of channels of q and k by an angle proportional to their position.

    Su et al. 2021, arXiv:2104.09864, eq. 13–15: pair ``i`` of a token at ``p`` is rotated by
    ``p · base^(-2i/rotary_dim)``, so ``q·k`` depends on the difference of positions only. Equal
    to multiplying complex numbers by ``exp(i·angle)``.

    Args:
        rotary_dim: Rotate only this many leading channels, with exponents over this dimension
            (GPT-J, GPT-NeoX, GLM). Default: all.
        layout: Which channels form a pair: ``"half"`` (i, i + rotary_dim/2) as Llama in Hugging Face,
            ``"interleaved"`` (2i, 2i + 1) as in the paper and Meta's code.
        scaling: A frequency scaling of `ordinate.scaling`.
        sections: Pairs per axis for tokens with several coordinates (M-RoPE), summing to
            ``rotary_dim/2``; positions are then ``[axes, batch or 1, seq]``. With equal coordinates, or
            positions without an axis, this is plain RoPE bit for bit.
        section_layout: ``"chunked"`` gives each axis consecutive pairs (Qwen2-VL), ``"interleaved"`` alternates
            the axes (Qwen3-VL).

    Example:
        >>> rope = RoPE(64, base=1e6)
        >>> q, k = torch.randn(1, 8, 10, 64), torch.randn(1, 2, 10, 64)
        >>> q, k = rope.rotate(q, k)
        >>> q.shape, k.shape
        (torch.Size([1, 8, 10, 64]), torch.Size([1, 2, 10, 64]))
    """

    head_dim: int
    claims = frozenset({"uniqueness", "shift invariance", "norm preservation", "wavelengths"})

    def __init__(
        self,
        head_dim: int,
        base: float = 10000.0,
        rotary_dim: int | None = None,
        layout: Layout = "half",
        scaling: Scaling | None = None,
        sections: Sequence[int] | None = None,
        section_layout: Literal["chunked", "interleaved"] = "chunked",
    ) -> None:
        super().__init__()
        head_dim = check_size("head_dim", head_dim)
        if rotary_dim is None:
            head_dim = check_even("head_dim", head_dim)
            rotary_dim = head_dim
        rotary_dim = check_rotary_dim(rotary_dim, head_dim)
        base = check_number("base", base, above=1)
        check_choice("layout", layout, ("half", "interleaved"))
        check_choice("section_layout", section_layout, ("chunked", "interleaved"))
        if scaling is not None and not isinstance(scaling, Scaling):
            raise refused("scaling", "must be one of ordinate.scaling", short(scaling), error=TypeError)
        self.head_dim, self.rotary_dim, self.base = head_dim, rotary_dim, float(base)
        self.layout, self.scaling = layout, scaling
        self.sections = None if sections is None else check_ints("sections", sections)
        self.axes = 1 if self.sections is None else len(self.sections)
        self.section_layout = section_layout
        self._axis_of_pair = self._assign_axes()
        if scaling is not None:
            self.logit_factor = scaling.logit_factor
            self.length_dependent = scaling.length_dependent
            if scaling.attention_factor != 1:
                self.claims = self.claims - {"norm preservation"}
            self.inv_freq()  # a scaling that does not fit the dimension is refused here, not in a forward

    def _assign_axes(self) -> tuple[int, ...] | None:
        if self.sections is None:
            return None
        pairs, axes = self.rotary_dim // 2, len(self.sections)
        if sum(self.sections) != pairs:
            raise refused(
                "sections", "must sum to rotary_dim/2 = {pairs}", short(self.sections), pairs=pairs
            )
        if self.section_layout == "chunked":
            return tuple(axis for axis, count in enumerate(self.sections) for _ in range(count))
        # Axis 0 takes all pairs that the other axes do not use: T H W T H W … T T T T.
        assigned = [0] * pairs
        for axis, count in enumerate(self.sections[1:], start=1):
            if axis + axes * (count - 1) >= pairs:
                raise refused(
                    f"sections[{axis}]",
                    "must leave room for {axes} axes in turn among {pairs} pairs",
                    count,
                    axes=axes,
                    pairs=pairs,
                )
            for pair in range(axis, axes * count, axes):
                assigned[pair] = axis
        return tuple(assigned)

    def inv_freq(
        self, lengths: Int[Tensor, "..."] | None = None, device: torch.device | None = None
    ) -> Float64[Tensor, "... pairs"]:
        """Radians per position of each pair after scaling, in float64 (on the CPU if the device has none).

        Example:
            >>> RoPE(4, scaling=ordinate.scaling.Linear(4)).inv_freq()
            tensor([0.2500, 0.0025], dtype=torch.float64)
        """
        if self.scaling is None:
            return frequencies(self.base, self.rotary_dim, device)
        device = device if lengths is None else lengths.device
        return in_float64(device, self._scaled, lengths)

    def _scaled(self, home: torch.device, lengths: Tensor | None) -> Tensor:
        assert self.scaling is not None
        return self.scaling.inv_freq(self.base, self.rotary_dim, lengths, home)

    def at(
        self,
        positions: Int[Tensor, "..."],
        lengths: int | Int[Tensor, "..."] | None = None,
    ) -> Rotation:
        """The rotation at these positions, to apply to any tensors at these positions.

        Args:
            lengths: See `PositionEncoding.rotate`.
        """
        positions = as_positions("positions", positions, axes=self.axes)
        rows = positions.shape[-2]
        if rows == 1 and isinstance(lengths, Tensor) and lengths.dim():
            rows = lengths.shape[0]  # one row of positions is broadcast over the rows of lengths
        check_lengths(lengths, batch=rows)
        return self._at(positions, self._lengths(lengths, positions, positions))

    def _at(
        self,
        positions: Tensor,
        lengths: Tensor | None,
        *,
        near: bool = False,
        rounding: Tensor | None = None,
    ) -> Rotation:
        """The rotation at positions as `as_positions` returns them.

        Args:
            near: See `angles`.
            rounding: A factor for each frequency, which reproduces the rounding in a checkpoint.
        """

        def radians_on(home: torch.device, *tensors: Tensor | None) -> Tensor:
            positions, lengths, rounding = tensors
            assert positions is not None

            def frequencies() -> Tensor:
                inv_freq = self.inv_freq(lengths, home)
                return inv_freq if rounding is None else inv_freq * rounding

            plain = type(self.scaling) in _PLAIN_SCALINGS
            speeds: Tensor | Speeds
            if near or not plain:
                speeds = frequencies()
            else:
                settings = (self.base, self.rotary_dim, self.scaling, rounding is None)
                speeds = cached_speeds(settings, home, frequencies)
            # `speeds_of` in each call, without a cache, would take twice the time of a token's rotation.
            approximate = not plain and not is_traced() and home.type != "cpu"
            return angles(self._of_pairs(positions), speeds, near=near or approximate)

        radians = in_float64(positions.device, radians_on, positions, lengths, rounding)
        factor = 1.0 if self.scaling is None else self.scaling.attention_factor
        assert factor is not None
        return Rotation(radians, factor, self.layout, self.head_dim, positions.device)

    def _of_pairs(self, positions: Tensor) -> Int[Tensor, "batch seq pairs_or_1"]:
        if positions.dim() < 3:
            return positions[..., None]
        assert self._axis_of_pair is not None
        axis = constant(self._axis_of_pair, torch.int64, positions.device)
        return positions[axis].movedim(0, -1)

    def _lengths(
        self, lengths: int | Tensor | None, positions: Tensor, keys: Tensor
    ) -> Int[Tensor, "batch seq_or_1"] | None:
        """One length for each row (or token) of ``positions``; None where no scaling asks for it."""
        if not self.length_dependent:
            return None
        if lengths is None:
            rows = [part.amax(dim=-1) for part in (positions, keys) if part.shape[-1]]  # [axes?, batch]
            rows = [part.amax(dim=0) if part.dim() == 2 else part for part in rows]
            if not rows:
                return None
            return torch.maximum(rows[0], rows[-1]).clamp(max=2**63 - 2)[:, None] + 1
        if not isinstance(lengths, Tensor):
            lengths = torch.tensor(int(lengths), device=positions.device)
        if lengths.dim() < 2:
            lengths = lengths.reshape(-1, 1)
        if lengths.shape[1] not in (1, positions.shape[-1]):
            raise refused(
                "lengths",
                "must have 1 or {columns} columns",
                lengths.shape[1],
                columns=positions.shape[-1],
            )
        return lengths

    def rotate(
        self,
        q: Float[Tensor, "batch heads q_len head_dim"],
        k: Float[Tensor, "batch kv_heads k_len head_dim"] | None = None,
        q_positions: Positions | None = None,
        k_positions: Int[Tensor, "..."] | None = None,
        *,
        lengths: Lengths | None = None,
    ) -> tuple[
        Float[Tensor, "batch heads q_len head_dim"], Float[Tensor, "batch kv_heads k_len head_dim"]
    ]:
        if k is None:
            raise refused(
                "k",
                "must be given along with q (one tensor alone: rope.at(positions).apply(q))",
                "None",
                error=TypeError,
            )
        places = resolve(q, k, q_positions, k_positions, axes=self.axes)
        if lengths is not None:
            check_lengths(lengths, batch=q.shape[0])
        near, shared = places.is_near, places.shared
        if near and type(self.scaling) in _PLAIN_SCALINGS:
            q_rotation = self._in_order(places.q_start, places.q_len, places.device)
            k_rotation = None if shared else self._in_order(places.start, places.k_len, places.device)
            return q_rotation.apply_both(q, k, k_rotation)
        queries = places.queries
        keys = queries if shared else places.keys
        q_lengths, k_lengths = lengths if isinstance(lengths, tuple) else (lengths, lengths)
        q_rotation = self._at(queries, self._lengths(q_lengths, queries, keys), near=near)
        if shared and q_lengths is k_lengths:
            return q_rotation.apply_both(q, k)
        k_rotation = self._at(keys, self._lengths(k_lengths, keys, queries), near=near)
        return q_rotation.apply_both(q, k, k_rotation)

    def _in_order(self, start: int, length: int, device: torch.device) -> Rotation:
        """The rotation at ``length`` positions from ``start`` on."""
        settings = (self.base, self.rotary_dim, self.scaling, self.layout, self.head_dim)

        def make() -> Rotation:
            return self._at(torch.arange(start, start + length, device=device)[None], None, near=True)

        return rotation_cache.rotation(self, settings, start, length, self.rotary_dim // 2, device, make)

    def extra_repr(self) -> str:
        parts = [f"{self.head_dim}, base={self.base:g}, layout={self.layout!r}"]
        if self.rotary_dim != self.head_dim:
            parts.append(f"rotary_dim={self.rotary_dim}")
        if self.scaling is not None:
            parts.append(f"scaling={describe(self.scaling)}")
        if self.sections is not None:
            parts.append(f"sections={self.sections}, section_layout={self.section_layout!r}")
        return ", ".join(parts)
