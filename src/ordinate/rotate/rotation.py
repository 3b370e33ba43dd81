"""`Rotation`: the angles of every token, to rotate any tensors at the same positions."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ..checks import check_features, check_instance, refused
from ..numerics import compute_dtype, in_float64
from ..text import Text
from ..tracing import is_captured, is_traced
from . import fused
from .layout import Layout
from .pairs import rotate_pairs


@dataclass(frozen=True, eq=False)
class Rotation:
    """A rotary encoding at given positions: angles for every pair of channels of every token.

    Made by `RoPE.at`; apply it to any number of tensors and layers with the same positions.

    Attributes:
        angles: Radians, in float64. cos and sin are taken of these and rounded once.
        factor: Multiplies the rotated channels (YaRN's attention factor), not the others.
        device: The device of cos and sin. Default: that of the angles. Angles for a device without float64 are on
            the CPU.
    """

    angles: Float64[Tensor, "batch seq pairs"]
    factor: float
    layout: Layout
    head_dim: int
    device: torch.device | None = None
    _tables: dict[torch.dtype, tuple[Tensor, Tensor]] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _longer: Rotation | None = dataclasses.field(default=None, init=False, repr=False, compare=False)

    def first(self, seq: int) -> Rotation:
        """The rotation of the first ``seq`` tokens: its angles, cos and sin are views of these.

        Example:
            >>> ordinate.RoPE(8).at(torch.arange(5)).first(3).angles.shape
            torch.Size([1, 3, 4])
        """
        part = dataclasses.replace(self, angles=self.angles[:, :seq])
        object.__setattr__(part, "_longer", self)
        return part

    def apply(
        self, x: Float[Tensor, "batch heads seq head_dim"], name: str = "x"
    ) -> Float[Tensor, "batch heads seq head_dim"]:
        """Rotate the first ``2 · pairs`` channels of ``x`` and copy the others; ``x`` is not modified.

        Arithmetic is float32 (float64 for float64) and rounded once to the dtype of ``x``.
        """
        self._check(x, name)
        tables = self.cos_sin(compute_dtype(x.dtype))
        if fused.supports(x) and not _learns(tables):
            return fused.rotate(x, None, tables, tables, interleaved=self.layout == "interleaved")[0]
        cos, sin = tables
        return rotate_pairs([x], cos[:, None], sin[:, None], self.layout)[0]

    def apply_both(
        self,
        q: Float[Tensor, "batch heads q_len head_dim"],
        k: Float[Tensor, "batch kv_heads k_len head_dim"],
        k_rotation: Rotation | None = None,
        *,
        inplace: bool = False,
    ) -> tuple[
        Float[Tensor, "batch heads q_len head_dim"], Float[Tensor, "batch kv_heads k_len head_dim"]
    ]:
        """Rotate queries and keys, with cos and sin computed once for both; on CUDA in one launch.

        Args:
            k_rotation: The rotation of the keys, if not at the positions of the queries.
            inplace: Write the result into q and k and return those. Refused where autograd would need
                to record it, and for tensors with overlapping memory.

        Example:
            >>> rotation = ordinate.RoPE(8).at(torch.arange(3))
            >>> q, k = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 3, 8)
            >>> rotated, _ = rotation.apply_both(q, k)
            >>> torch.equal(rotated, rotation.apply_both(q, k, inplace=True)[0])
            True
        """
        k_rotation = self if k_rotation is None else k_rotation
        self._check(q, "q")
        k_rotation._check(k, "k")
        if inplace:
            _check_writable("q", q)
            _check_writable("k", k)
            if q is k:
                raise refused(
                    "k", "must be another tensor than q to be turned in place", Text("q twice")
                )
        dtype = compute_dtype(q.dtype)
        q_tables = k_tables = self.cos_sin(dtype)
        k_dtype = dtype if k.dtype == q.dtype else compute_dtype(k.dtype)
        same_tables = k_rotation is self and k_dtype == dtype
        if not same_tables:
            k_tables = k_rotation.cos_sin(k_dtype)
        one_layout = self.layout == k_rotation.layout
        if one_layout and fused.supports(q, k) and not _learns(q_tables, k_tables):
            interleaved = self.layout == "interleaved"
            if not inplace:
                return fused.rotate(q, k, q_tables, k_tables, interleaved=interleaved)
            if q.stride(-1) == k.stride(-1) == 1:
                fused.rotate_(q, k, q_tables, k_tables, interleaved=interleaved)
                return q, k
        cos, sin = q_tables
        if same_tables:
            q_turned, k_turned = rotate_pairs([q, k], cos[:, None], sin[:, None], self.layout)
        else:
            (q_turned,) = rotate_pairs([q], cos[:, None], sin[:, None], self.layout)
            cos, sin = k_tables
            (k_turned,) = rotate_pairs([k], cos[:, None], sin[:, None], k_rotation.layout)
        return (q.copy_(q_turned), k.copy_(k_turned)) if inplace else (q_turned, k_turned)

    def _check(self, x: Tensor, name: str) -> None:
        check_features(name, x, "batch, heads, seq, head_dim", self.head_dim)
        rows, seq = self.angles.shape[:2]
        if x.shape[-2] != seq or rows not in (1, x.shape[0]):
            raise refused(
                name,
                "must fit a rotation of {rows} rows of {seq} positions",
                list(x.shape),
                rows=rows,
                seq=seq,
            )

    def cos_sin(
        self, dtype: torch.dtype
    ) -> tuple[Float[Tensor, "batch seq pairs"], Float[Tensor, "batch seq pairs"]]:
        """cos and sin of the angles times the factor, evaluated in float64 and rounded once to ``dtype``."""
        if is_traced():
            return self._evaluate(dtype)
        tables = self._tables.get(dtype)
        if tables is None:
            # As in `numerics.constant`: a cached tensor must be usable outside of inference mode.
            with torch.inference_mode(False):
                if self._longer is None:
                    tables = self._evaluate(dtype)
                else:
                    cos, sin = self._longer.cos_sin(dtype)
                    seq = self.angles.shape[1]
                    tables = cos[:, :seq], sin[:, :seq]
            if not (tables[0].requires_grad or is_captured(self.angles.device)):
                self._tables[dtype] = tables
        return tables

    def _evaluate(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        def evaluate(home: torch.device, angles: Tensor) -> tuple[Tensor, ...]:
            cos, sin = angles.cos(), angles.sin()
            if self.factor != 1.0:
                cos, sin = cos * self.factor, sin * self.factor
            return cos.to(dtype), sin.to(dtype)

        device = self.angles.device if self.device is None else self.device
        cos, sin = in_float64(device, evaluate, self.angles)
        return cos, sin


def _learns(*tables: fused.Tables) -> bool:
    """Whether cos and sin need a gradient, which the kernel does not compute."""
    return torch.is_grad_enabled() and any(cos.requires_grad for cos, _ in tables)


def rerotate(
    keys: Float[Tensor, "batch heads seq head_dim"], from_: Rotation, to: Rotation
) -> Float[Tensor, "batch heads seq head_dim"]:
    """Move rotated keys to other positions or another scaling, at the cost of one more rounding.

    Each move rounds once, so repeated shifts of one cache drift: for those, cache unrotated keys.

    Example:
        >>> rope = ordinate.RoPE(8)
        >>> keys, here, there = torch.randn(1, 2, 3, 8), torch.arange(3), torch.arange(3) + 5
        >>> moved = rerotate(rope.at(here).apply(keys), rope.at(here), rope.at(there))
        >>> torch.testing.assert_close(moved, rope.at(there).apply(keys))
    """
    for name, rotation in (("from_", from_), ("to", to)):
        check_instance(name, rotation, Rotation, "must be a Rotation, as RoPE.at makes")
    rows, asked = len(from_.angles), len(to.angles)
    for field, had, given in (
        ("layout", from_.layout, to.layout),
        ("head_dim", from_.head_dim, to.head_dim),
        ("seq and pairs", list(from_.angles.shape[-2:]), list(to.angles.shape[-2:])),
    ):
        if had != given:
            raise refused(
                "to",
                "must have the {field} of from_",
                Text("{given} instead of {expected}", given=repr(given), expected=repr(had)),
                field=field,
            )
    if 1 not in (rows, asked) and rows != asked:
        raise refused("to", "must have 1 row or the {rows} of from_", asked, rows=rows)
    angles = in_float64(keys.device, lambda home, *ends: ends[1] - ends[0], from_.angles, to.angles)
    step = Rotation(angles, to.factor / from_.factor, to.layout, to.head_dim, keys.device)
    return step.apply(keys, "keys")


def _check_writable(name: str, x: Tensor) -> None:
    if x.requires_grad and torch.is_grad_enabled():
        raise refused("inplace", "must be False where {tensor} requires grad", True, tensor=name)
    if any(stride == 0 and size > 1 for size, stride in zip(x.shape, x.stride(), strict=True)):
        raise refused(name, "must not be an expanded view to be turned in place", x.stride())
