"""The two layouts of a rotated head, and exact conversion of checkpoints between them.

    "interleaved"  pairs are neighbours          [a0 b0 a1 b1 a2 b2]   the paper, Meta, GPT-J, GLM, Cohere
    "half"         pairs are half a head apart   [a0 a1 a2 b0 b1 b2]   GPT-NeoX, Llama in Hugging Face

Weights trained in one layout load in the other without an error and give garbage. The layouts differ only
in the order of each head's channels, so permuting the rows of the query and key projections
(never of the values) converts one into the other exactly.
"""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from ..checks import check_even, check_positive_int, refused

Layout = Literal["half", "interleaved"]


def to_half(
    weight: Float[Tensor, "out *in_features"], *, head_dim: int, rotary_dim: int | None = None
) -> Float[Tensor, "out *in_features"]:
    """Reorder a query or key projection from the interleaved layout to the half layout.

    Args:
        weight: A weight ``[heads · head_dim, in_features]`` or a bias ``[heads · head_dim]``.
        rotary_dim: How many channels of each head are rotated, if not all; the others stay in place.

    Example:
        >>> to_half(torch.arange(4.0), head_dim=4)
        tensor([0., 2., 1., 3.])
    """
    return _swap_pair_axes(weight, head_dim, rotary_dim, pairs_first=True)


def to_interleaved(
    weight: Float[Tensor, "out *in_features"], *, head_dim: int, rotary_dim: int | None = None
) -> Float[Tensor, "out *in_features"]:
    """Reorder a query or key projection from the half layout to the interleaved layout.

    The exact inverse of `to_half`.

    Example:
        >>> to_interleaved(torch.arange(4.0), head_dim=4)
        tensor([0., 2., 1., 3.])
        >>> to_interleaved(torch.arange(6.0), head_dim=6)
        tensor([0., 3., 1., 4., 2., 5.])
    """
    return _swap_pair_axes(weight, head_dim, rotary_dim, pairs_first=False)


def check_rotary_dim(rotary_dim: object, head_dim: int) -> int:
    """How many leading channels of a head are rotated: an even number, at most all."""
    rotary_dim = check_even("rotary_dim", rotary_dim)
    if rotary_dim > head_dim:
        raise refused("rotary_dim", "must be at most head_dim {most}", rotary_dim, most=head_dim)
    return rotary_dim


def _swap_pair_axes(
    weight: Tensor, head_dim: int, rotary_dim: int | None, *, pairs_first: bool
) -> Tensor:
    if not isinstance(weight, Tensor) or weight.dim() == 0:
        raise refused(
            "weight",
            "must be a tensor with a row for each channel",
            "a number" if isinstance(weight, Tensor) else type(weight).__name__,
            error=TypeError,
        )
    head_dim = check_positive_int("head_dim", head_dim)
    rotary_dim = head_dim if rotary_dim is None else rotary_dim
    rotary_dim = check_rotary_dim(rotary_dim, head_dim)
    if weight.shape[0] % head_dim:
        raise refused(
            "weight",
            "must have a multiple of head_dim {head_dim} rows",
            weight.shape[0],
            head_dim=head_dim,
        )
    heads = weight.unflatten(0, (-1, head_dim))
    shape = (rotary_dim // 2, 2) if pairs_first else (2, rotary_dim // 2)
    turning = heads[:, :rotary_dim].unflatten(1, shape)
    reordered = heads.clone()
    reordered[:, :rotary_dim] = turning.transpose(1, 2).flatten(1, 2)
    return reordered.flatten(0, 1)
