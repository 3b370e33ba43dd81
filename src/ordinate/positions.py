"""Positions are data: integer tensors that say where each token stands.

Shapes are ``[seq]``, ``[batch, seq]``, or ``[axes, batch or 1, seq]`` where a token has several
coordinates (images, video). They stay integers until an encoding forms an angle or a distance,
so no dtype of the activations can merge two of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from .checks import check_int, check_ints, check_positive_int, check_rank
from .memory import check_room

#: What a position may be. Arithmetic on them is of int64.
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def sequential(
    length: int, *, start: int = 0, device: torch.device | str | None = None
) -> Int[Tensor, " seq"]:
    """``start, start + 1, …``: a whole sequence, or the next tokens of one being decoded.

    Example:
        >>> sequential(3, start=7)
        tensor([7, 8, 9])
    """
    if not torch.compiler.is_compiling():  # there a length may be symbolic
        length = check_positive_int("length", length, minimum=0)
        start = check_int("start", start)
        if start >= 2**63 - length:
            raise ValueError(f"start must leave room for {length} positions of 64 bits, got {start}")
        check_room("length", length, itemsize=8, device=device)
    return torch.arange(start, start + length, device=device)


def packed(
    lengths: Sequence[int] | Int[Tensor, " sequences"],
    *,
    device: torch.device | str | None = None,
) -> Int[Tensor, " tokens"]:
    """Positions of sequences laid end to end, each counting from 0.

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
    """Which of the sequences laid end to end each token belongs to; the companion of `packed`.

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
    """Positions of rows padded on the left: the first real token stands at 0, padding at 0 too.

    Args:
        is_token: True at real tokens (a Hugging Face ``attention_mask != 0``).

    Example:
        >>> left_padded(torch.tensor([[False, False, True, True, True]]))
        tensor([[0, 0, 0, 1, 2]])
    """
    if not isinstance(is_token, Tensor) or is_token.dtype != torch.bool:
        kind = is_token.dtype if isinstance(is_token, Tensor) else type(is_token).__name__
        raise TypeError(f"is_token must be a bool tensor, True at real tokens, got {kind}")
    return (is_token.long().cumsum(-1) - 1).clamp(min=0)


def grid(*sizes: int, device: torch.device | str | None = None) -> Int[Tensor, "axes 1 seq"]:
    """Row-major coordinates of a grid: (height, width) of an image, (time, height, width) of a video.

    Example:
        >>> grid(2, 3)[:, 0]
        tensor([[0, 0, 0, 1, 1, 1],
                [0, 1, 2, 0, 1, 2]])
    """
    if not sizes:
        raise ValueError("sizes must name at least one axis, got none")
    sizes = check_ints("sizes", sizes)
    check_room("sizes", *sizes, itemsize=16 * len(sizes), device=device)
    axes = torch.meshgrid(*(torch.arange(n, device=device) for n in sizes), indexing="ij")
    return torch.stack([axis.flatten() for axis in axes])[:, None]


def randomized(
    length: int,
    max_position: int,
    *,
    batch: int = 1,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
) -> Int[Tensor, "batch seq"]:
    """Sorted distinct positions drawn from ``0 … max_position - 1``, anew for every row.

    Training on such draws shows a model large positions on short inputs (Ruoss et al. 2023,
    arXiv:2305.16843); draw at test time as well.
    """
    length = check_positive_int("length", length, minimum=0)
    max_position = check_positive_int("max_position", max_position)
    batch = check_positive_int("batch", batch, minimum=0)
    if length > max_position:
        raise ValueError(
            f"length must be at most max_position, the positions are distinct, "
            f"got {length} > {max_position}"
        )
    check_room("max_position", batch, max_position, itemsize=24, device=device)
    draws = torch.rand(batch, max_position, generator=generator, device=device)
    return draws.topk(length, dim=-1).indices.sort(dim=-1).values


def as_positions(
    name: str,
    positions: Tensor,
    *,
    batch: int | None = None,
    seq: int | None = None,
    device: torch.device | None = None,
    axes: int = 1,
) -> Int[Tensor, "..."]:
    """Check what a caller passed and bring it to ``[batch or 1, seq]``, or ``[axes, batch or 1, seq]``.

    Args:
        batch, seq, device: What the positions must fit; None where they stand for themselves.
    """
    if not isinstance(positions, Tensor):
        raise TypeError(f"{name} must be an integer tensor, got {type(positions).__name__}")
    if positions.dtype not in INTEGERS:
        raise TypeError(f"{name} must be an integer tensor, got {positions.dtype}")
    rank, most = positions.dim(), 2 if axes == 1 else 3
    if not 1 <= rank <= most:
        more = "" if axes == 1 else f" or [{axes}, batch, seq]"
        raise ValueError(f"{name} must be [seq] or [batch, seq]{more}, got {list(positions.shape)}")
    if rank == 3 and positions.shape[0] != axes:
        raise ValueError(f"{name} must have {axes} axes, got {positions.shape[0]}")
    if seq is not None and positions.shape[-1] != seq:
        raise ValueError(f"{name} must have length {seq}, got {list(positions.shape)}")
    if rank > 1 and batch is not None and positions.shape[-2] not in (1, batch):
        raise ValueError(f"{name} must have batch size 1 or {batch}, got {positions.shape[-2]}")
    if device is not None and positions.device != device:
        raise ValueError(f"{name} must be on {device}, got {positions.device}")
    return as_rows(positions)


def as_rows(positions: Tensor) -> Tensor:
    """Integers as `as_positions` returns them, and that tensor itself if given it; what is no position as it is."""
    if positions.dtype not in INTEGERS:
        return positions
    # A compiler would take what `long` returns for another tensor.
    positions = positions if positions.dtype == torch.int64 else positions.long()
    return positions[None] if positions.dim() == 1 else positions


def check_lengths(lengths: object, *, batch: int) -> None:
    """``lengths`` must be an int, an integer tensor ``[batch]`` or ``[batch or 1, seq]``, or a pair of those."""
    if isinstance(lengths, tuple):
        if len(lengths) != 2:
            raise ValueError(f"lengths must be one for both or a pair for q and k, got {len(lengths)}")
        for side in lengths:
            check_lengths(side, batch=batch)
    elif isinstance(lengths, Tensor):
        if lengths.dtype not in INTEGERS or lengths.dim() > 2:
            raise ValueError(
                f"lengths must be an int or an integer tensor [batch] or [batch, seq], "
                f"got {lengths.dtype} {list(lengths.shape)}"
            )
        if lengths.dim() and lengths.shape[0] not in (1, batch):
            raise ValueError(f"lengths must have batch size 1 or {batch}, got {lengths.shape[0]}")
    elif lengths is not None:
        try:
            check_positive_int("lengths", lengths)
        except TypeError:
            got = type(lengths).__name__
            raise TypeError(f"lengths must be an int or an integer tensor, got {got}") from None


def resolve(
    q: Tensor,
    k: Tensor,
    q_positions: Tensor | None,
    k_positions: Tensor | None,
    *,
    axes: int = 1,
) -> tuple[Int[Tensor, "..."], Int[Tensor, "..."]]:
    """The positions of queries and keys, where callers may leave out what is plain.

    With neither given, keys count from 0 and queries are aligned to the end of the keys. With
    one given and equal lengths, the other follows it; with unequal lengths that would be a guess.
    """
    for name, tensor in (("q", q), ("k", k)):
        check_rank(name, tensor, "batch, heads, seq, head_dim")
        if tensor.shape[0] != q.shape[0]:
            raise ValueError(f"{name} must have the batch size {q.shape[0]} of q, got {tensor.shape[0]}")
    batch, q_len, k_len = q.shape[0], q.shape[-2], k.shape[-2]
    if q_positions is None and k_positions is None:
        keys = sequential(k_len, device=k.device)[None]
        if q_len == k_len:
            return keys, keys
        return sequential(q_len, start=k_len - q_len, device=q.device)[None], keys
    if q_len != k_len and (q_positions is None or k_positions is None):
        missing, given = "q_positions", "k_positions"
        if q_positions is not None:
            missing, given = given, missing
        raise ValueError(
            f"{missing} must be given along with {given} when lengths differ, "
            f"got {q_len} queries and {k_len} keys"
        )
    if q_positions is None:
        assert k_positions is not None
        keys = as_positions(
            "k_positions", k_positions, batch=batch, seq=k_len, device=k.device, axes=axes
        )
        return keys, keys
    queries = as_positions(
        "q_positions", q_positions, batch=batch, seq=q_len, device=q.device, axes=axes
    )
    if k_positions is None or k_positions is q_positions:
        return queries, queries
    keys = as_positions("k_positions", k_positions, batch=batch, seq=k_len, device=k.device, axes=axes)
    return queries, keys
