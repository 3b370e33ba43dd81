"""Functions that make positions: integer tensors with the position of each token.

Shapes are ``[seq]``, ``[batch, seq]``, or ``[axes, batch or 1, seq]`` where a token has several
coordinates (images, video). Positions stay integers until an encoding forms an angle or a distance,
so no dtype of the activations can round two of them to one number.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from .checks import check_int, check_ints, check_positive_int, refused
from .memory import check_room
from .places import Places as Places
from .places import Positions as Positions
from .places import as_positions as as_positions
from .places import resolve as resolve
from .text import Text


def sequential(
    length: int, *, start: int = 0, device: torch.device | str | None = None
) -> Int[Tensor, " seq"]:
    """``start, start + 1, …``: a whole sequence, or the next tokens of one being decoded.

    Example:
        >>> sequential(3, start=7)
        tensor([7, 8, 9])
    """
    if not torch.compiler.is_compiling():  # under torch.compile a length may be symbolic
        length = check_positive_int("length", length, minimum=0)
        start = check_int("start", start)
        if start >= 2**63 - length:
            raise refused(
                "start", "must leave room for {length} positions of 64 bits", start, length=length
            )
        check_room("length", length, itemsize=8, device=device)
    return torch.arange(start, start + length, device=device)


def packed(
    lengths: Sequence[int] | Int[Tensor, " sequences"],
    *,
    device: torch.device | str | None = None,
) -> Int[Tensor, " tokens"]:
    """Positions of packed sequences, each counting from 0.

    Example:
        >>> packed([2, 3])
        tensor([0, 1, 0, 1, 2])
    """
    counts = _counts(lengths)
    return torch.cat([torch.arange(0), *(torch.arange(n) for n in counts)]).to(device)


def segment_ids(
    lengths: Sequence[int] | Int[Tensor, " sequences"],
    *,
    device: torch.device | str | None = None,
) -> Int[Tensor, " tokens"]:
    """The index of the packed sequence of each token; used together with `packed`.

    Example:
        >>> segment_ids([2, 3])
        tensor([0, 0, 1, 1, 1])
    """
    counts = torch.tensor(_counts(lengths), dtype=torch.int64)
    return torch.repeat_interleave(torch.arange(len(counts)), counts).to(device)


def _counts(lengths: Sequence[int] | Tensor) -> list[int]:
    counts = list(check_ints("lengths", lengths, minimum=0))
    check_room("lengths", sum(counts), itemsize=16)
    return counts


def left_padded(is_token: Bool[Tensor, "batch seq"]) -> Int[Tensor, "batch seq"]:
    """Positions of rows padded on the left: the first real token is at 0, and so is padding.

    Args:
        is_token: True at real tokens (a Hugging Face ``attention_mask != 0``).

    Example:
        >>> left_padded(torch.tensor([[False, False, True, True, True]]))
        tensor([[0, 0, 0, 1, 2]])
    """
    if not isinstance(is_token, Tensor) or is_token.dtype != torch.bool:
        kind = is_token.dtype if isinstance(is_token, Tensor) else type(is_token).__name__
        raise refused("is_token", "must be a bool tensor, True at real tokens", kind, error=TypeError)
    return (is_token.long().cumsum(-1) - 1).clamp(min=0)


def grid(*sizes: int, device: torch.device | str | None = None) -> Int[Tensor, "axes 1 seq"]:
    """Row-major coordinates of a grid: (height, width) of an image, (time, height, width) of a video.

    Example:
        >>> grid(2, 3)[:, 0]
        tensor([[0, 0, 0, 1, 1, 1],
                [0, 1, 2, 0, 1, 2]])
    """
    if not sizes:
        raise refused("sizes", "must name at least one axis", Text("none"))
    sizes = check_ints("sizes", sizes)
    check_room("sizes", *sizes, itemsize=16 * len(sizes), device=device)
    axes = torch.meshgrid(*(torch.arange(n, device=device) for n in sizes), indexing="ij")
    return torch.stack([axis.flatten() for axis in axes])[:, None]


def randomized(
    length: int,
    max_positions: int,
    *,
    batch: int = 1,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
) -> Int[Tensor, "batch seq"]:
    """Sorted distinct positions drawn from ``0 … max_positions - 1``, separately for every row.

    Training on such draws shows a model large positions on short inputs (Ruoss et al. 2023,
    arXiv:2305.16843); draw at test time as well.
    """
    length = check_positive_int("length", length, minimum=0)
    max_positions = check_positive_int("max_positions", max_positions)
    batch = check_positive_int("batch", batch, minimum=0)
    if length > max_positions:
        raise refused(
            "length",
            "must be at most max_positions, the positions are distinct",
            f"{length} > {max_positions}",
        )
    check_room("max_positions", batch, max_positions, itemsize=24, device=device)
    draws = torch.rand(batch, max_positions, generator=generator, device=device)
    return draws.topk(length, dim=-1).indices.sort(dim=-1).values
