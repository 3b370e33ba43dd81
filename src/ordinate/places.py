"""`Places`: the positions of the queries and keys of a call as one value, checked once and passed on.

They are either two tensors of positions, or tokens in order, whose distances follow from their indices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Int
from torch import Tensor

from .checks import (
    INTEGERS,
    check_device,
    check_int,
    check_integers,
    check_positive_int,
    check_rank,
    refused,
)
from .text import Text
from .tracing import is_traced


def as_positions(
    name: str,
    positions: Tensor,
    *,
    batch: int | None = None,
    seq: int | None = None,
    device: torch.device | None = None,
    axes: int = 1,
) -> Int[Tensor, "..."]:
    """Check positions and bring them to ``[batch or 1, seq]``, or ``[axes, batch or 1, seq]``.

    Args:
        batch, seq, device: What the positions must match; None: any.
    """
    check_integers(name, positions)
    rank, most = positions.dim(), 2 if axes == 1 else 3
    if not 1 <= rank <= most:
        raise _of_other_axes(name, positions, axes)
    if rank == 3 and positions.shape[0] != axes:
        raise refused(name, "must have {axes} axes", positions.shape[0], axes=axes)
    if seq is not None and positions.shape[-1] != seq:
        raise refused(name, "must have length {length}", list(positions.shape), length=seq)
    if rank > 1 and batch is not None:
        _check_batch(name, positions.shape[-2], batch)
    if device is not None:
        check_device(name, positions, device)
    # To torch.compile the result of `long` is another tensor, even of int64.
    positions = positions if positions.dtype == torch.int64 else positions.long()
    return positions[None] if rank == 1 else positions


def _of_other_axes(name: str, positions: Tensor, axes: int) -> Exception:
    rule = "must be [seq] or [batch, seq]"
    if axes > 1:
        rule = "must be [seq] or [batch, seq] or [{axes}, batch, seq]"
    return refused(name, rule, list(positions.shape), axes=axes)


def _check_batch(name: str, rows: int, batch: int) -> None:
    if rows not in (1, batch):
        raise refused(name, "must have batch size 1 or {batch}", rows, batch=batch)


def check_lengths(lengths: object, *, batch: int) -> None:
    """``lengths`` must be an int, an integer tensor ``[batch]`` or ``[batch or 1, seq]``, or a pair of those."""
    if isinstance(lengths, tuple):
        if len(lengths) != 2:
            raise refused("lengths", "must be one for both or a pair for q and k", len(lengths))
        for side in lengths:
            check_lengths(side, batch=batch)
    elif isinstance(lengths, Tensor):
        if lengths.dtype not in INTEGERS or lengths.dim() > 2:
            raise refused(
                "lengths",
                "must be an int or an integer tensor [batch] or [batch, seq]",
                f"{lengths.dtype} {list(lengths.shape)}",
            )
        if lengths.dim():
            _check_batch("lengths", lengths.shape[0], batch)
    elif lengths is not None:
        try:
            check_positive_int("lengths", lengths)
        except TypeError:
            raise refused(
                "lengths", "must be an int or an integer tensor", type(lengths).__name__, error=TypeError
            ) from None


@dataclass(frozen=True, eq=False)
class Places:
    """The positions of the queries and keys of a call: a field of every bias that depends on pairs.

    `resolve` makes and checks one per call. There are two kinds: positions that are data, made by `at`,
    and tokens in order, made by `in_order`, which have no tensor until `queries` or `keys` is read.

    Attributes:
        device: The device of the tokens.
        given: The positions of queries and keys, ``[batch or 1, seq]`` or ``[axes, batch or 1, seq]``; () if in order.
        offset: The distance of query i and key j is ``i - j + offset``. Kernel launches need it as a number, because
            they cannot read tensors. None if distances follow from the positions only.
        start: The position of the first key, if in order.

    Example:
        >>> places = Places.in_order(2, 5)
        >>> places.queries, places.keys
        (tensor([[3, 4]]), tensor([[0, 1, 2, 3, 4]]))
        >>> places.distances()
        tensor([[[ 3,  2,  1,  0, -1],
                 [ 4,  3,  2,  1,  0]]])
    """

    q_len: int
    k_len: int
    device: torch.device
    given: tuple[Tensor, ...] = ()
    offset: int | None = None
    start: int = 0
    #: Whether positions are consecutive integers.
    is_in_order: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "is_in_order", len(self.given) == 0
        )  # torch.compile cannot trace `not` of a tuple

    @staticmethod
    def at(queries: Tensor, keys: Tensor, *, offset: int | None = None) -> Places:
        """Places that are data.

        Args:
            queries, keys: ``[seq]``, ``[batch, seq]`` or ``[axes, batch or 1, seq]``.
            offset: Given if distances follow from indices nevertheless, as within each of several packed sequences.
        """
        axes = max(
            [x.shape[0] if isinstance(x, Tensor) and x.dim() == 3 else 1 for x in (queries, keys)]
        )
        named = {"queries": queries, "keys": keys}
        q, k = (as_positions(name, x, axes=axes) for name, x in named.items())
        if keys is queries:
            k = q
        if q.shape[-2] != 1:
            _check_batch("keys", k.shape[-2], q.shape[-2])
        check_device("keys", k, q.device)
        return Places(q.shape[-1], k.shape[-1], q.device, (q, k), offset)

    @staticmethod
    def in_order(
        q_len: int, k_len: int, *, start: int = 0, device: torch.device | str | None = None
    ) -> Places:
        """Keys at ``start, start + 1, …``, and the last query aligned with the last key."""
        if not torch.compiler.is_compiling():  # under torch.compile a length may be symbolic
            q_len = check_positive_int("q_len", q_len, minimum=0)
            k_len = check_positive_int("k_len", k_len, minimum=0)
            start, most = check_int("start", start), max(q_len, k_len)
            if not most - 2**63 <= start + k_len < 2**63:
                rule = "must leave room for {length} positions of 64 bits"
                raise refused("start", rule, start, length=most)
        device = torch.empty(0, device=device).device  # the default one; torch.compile traces this
        return Places(q_len, k_len, device, (), k_len - q_len, start)

    @property
    def q_start(self) -> int:
        """The position of the first query, if in order."""
        assert self.offset is not None
        return self.start + self.offset

    @property
    def is_near(self) -> bool:
        """Whether tokens are in order at positions known to be small; reads no tensor."""
        return self.is_in_order and (not isinstance(self.start, int) or abs(self.start) < 2**28)

    @property
    def queries(self) -> Int[Tensor, "..."]:
        return self._run(self.q_start, self.q_len) if self.is_in_order else self.given[0]

    @property
    def keys(self) -> Int[Tensor, "..."]:
        return self._run(self.start, self.k_len) if self.is_in_order else self.given[1]

    def _run(self, start: int, length: int) -> Int[Tensor, "1 seq"]:
        return torch.arange(start, start + length, device=self.device)[None]

    @property
    def aligned(self) -> bool:
        """Whether the distance follows from the indices, with the last query at the position of the last key."""
        return self.offset is not None and self.offset == self.k_len - self.q_len

    @property
    def shared(self) -> bool:
        """Whether queries and keys are the same tokens."""
        if self.is_in_order:
            return self.offset == 0 and self.q_len == self.k_len
        return self.given[0] is self.given[1]

    @property
    def batch(self) -> int:
        """How many rows there are; 1 if all rows have the same positions."""
        return 1 if self.is_in_order else max([x.shape[-2] for x in self.given])

    @property
    def axes(self) -> int:
        """How many coordinates are given; also 1 if one number is given for all coordinates."""
        if self.is_in_order:
            return 1
        return max([x.shape[0] if x.dim() == 3 else 1 for x in self.given])

    def same_as(self, other: Places) -> bool:
        """Whether both give each pair the same distance. Equal numbers in two tensors do not count."""
        if self is other:
            return True
        if (self.q_len, self.k_len) != (other.q_len, other.k_len):
            return False
        if self.offset is not None and other.offset is not None:
            return bool(self.offset == other.offset)
        if self.is_in_order or other.is_in_order:
            return False
        return self.given[0] is other.given[0] and self.given[1] is other.given[1]

    def along(self, axis: int) -> Places:
        """The places of one coordinate of the same tokens."""
        if 1 < self.axes <= axis:
            raise refused(
                "q_positions", "must have axis {axis}", Text("{axes} axes", axes=self.axes), axis=axis
            )
        given = tuple(x[axis] if x.dim() == 3 else x for x in self.given)
        return replace(self, given=given[:1] * 2 if self.shared else given)

    def block(self, q: slice, k: slice) -> Places:
        """The places of some of the queries and some of the keys."""
        (q_start, q_stop, _), (k_start, k_stop, _) = q.indices(self.q_len), k.indices(self.k_len)
        offset = None if self.offset is None else self.offset + q_start - k_start
        given = tuple(x[..., part] for x, part in zip(self.given, (q, k), strict=False))
        q_len, k_len = max(0, q_stop - q_start), max(0, k_stop - k_start)
        return Places(q_len, k_len, self.device, given, offset, self.start + k_start)

    def distances(self) -> Int[Tensor, "batch q k"]:
        """``query - key`` for each pair; the past is positive."""
        if self.offset is None:
            return self.queries[:, :, None] - self.keys[:, None, :]
        q = torch.arange(self.q_len, device=self.device) + self.offset
        return (q[:, None] - torch.arange(self.k_len, device=self.device))[None]

    def diagonal_distances(self) -> Int[Tensor, "batch diagonals"] | None:
        """The distance of each diagonal, in the order of `Bias.diagonals`; None if a diagonal has more than one.

        Reads the values of positions that are data.
        """
        count = torch.arange(self.q_len + self.k_len - 1, device=self.device)
        if self.offset is not None:
            return (self.q_len - 1 + self.offset - count)[None]
        if not all((positions.diff(dim=-1) == 1).all() for positions in self.given):
            return None
        return self.queries[:, -1:] - self.keys[:, :1] - count

    def distance_at(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """The distance of one pair by index; one row of positions is broadcast over the batch."""
        if self.offset is not None:
            return q - k + self.offset
        at_q, at_k = self.given
        return at_q[b if len(at_q) > 1 else b * 0, q] - at_k[b if len(at_k) > 1 else b * 0, k]

    def check_distances(self) -> None:
        """Refuse positions whose distance does not fit in 64 bits, if values can be read."""
        if self.device.type != "cpu" or is_traced(*self.given):
            return
        for name, positions in zip(("q_positions", "k_positions"), self.given, strict=True):
            if positions.numel():
                low, high = (int(end) for end in torch.aminmax(positions))
                if low <= -(2**62) or high >= 2**62:
                    raise refused(
                        name,
                        "must be less than 2**62 in size for a bias",
                        low if low <= -(2**62) else high,
                    )

    # A custom operator's schema knows only basic types, so it takes places as tensors, integers and a word.

    def flattened(self) -> tuple[list[int], str]:
        """All fields except `given`: integers, and a word for their kind."""
        if self.is_in_order:
            assert self.offset is not None
            return [self.q_len, self.k_len, self.start, self.offset], f"in order on {self.device}"
        return ([], "given") if self.offset is None else ([self.offset], "given, with an offset")

    @staticmethod
    def rebuild(kind: str, tensors: Iterator[Tensor], integers: Iterator[int]) -> Places:
        """The inverse of `flattened` and `given`."""
        if kind.startswith("in order on "):
            q_len, k_len, start, offset = next(integers), next(integers), next(integers), next(integers)
            return Places(q_len, k_len, torch.device(kind[len("in order on ") :]), (), offset, start)
        q, k = next(tensors), next(tensors)
        own = None if kind == "given" else next(integers)
        return Places(q.shape[-1], k.shape[-1], q.device, (q, k), own)


#: The first positions argument of `rotate` and `bias`: positions of the queries, or places, which include the keys.
Positions = Int[Tensor, "..."] | Places


def resolve(
    q: Tensor,
    k: Tensor,
    q_positions: Tensor | Places | None,
    k_positions: Tensor | None,
    *,
    axes: int = 1,
) -> Places:
    """The places of queries and keys; callers may leave positions out.

    Without positions, keys count from 0 and queries are aligned to the end of the keys. If one is given and the
    lengths are equal, the other one equals it; with unequal lengths that would be a guess and is refused.
    `attention` calls this once per call and passes the result on as ``q_positions``, which is then returned unchanged.

    Args:
        axes: How many coordinates the encoding reads.

    Example:
        >>> q = k = torch.randn(1, 2, 3, 8)
        >>> resolve(q, k, torch.tensor([5, 6, 9]), None).distances()
        tensor([[[ 0, -1, -4],
                 [ 1,  0, -3],
                 [ 4,  3,  0]]])
    """
    if isinstance(q_positions, Places):
        places, batch, q_len, k_len = q_positions, q.shape[0], q.shape[-2], k.shape[-2]
        if k_positions is not None:
            raise refused("k_positions", "must be None where q_positions hold the keys' places too")
        if (places.q_len, places.k_len) != (q_len, k_len):
            raise refused(
                "q_positions",
                "must hold the places of {q_len} queries and {k_len} keys",
                Text("{queries} and {keys}", queries=places.q_len, keys=places.k_len),
                q_len=q_len,
                k_len=k_len,
            )
        if places.device != q.device:
            raise refused("q_positions", "must be on {device}", places.device, device=q.device)
        if not places.is_in_order:
            _check_batch("q_positions", places.batch, batch)
            if places.axes not in (1, axes):
                raise _of_other_axes("q_positions", places.given[0], axes)
        return places
    for name, tensor in (("q", q), ("k", k)):
        check_rank(name, tensor, "batch, heads, seq, head_dim")
    if k.shape[0] != q.shape[0]:
        raise refused("k", "must have the batch size {batch} of q", k.shape[0], batch=q.shape[0])
    return locate(q, k, q_positions, k_positions, axes=axes)


def locate(
    q: Tensor, k: Tensor, q_positions: Tensor | None, k_positions: Tensor | None, *, axes: int
) -> Places:
    """`resolve` for q and k whose shapes have been checked."""
    batch, q_len, k_len = q.shape[0], q.shape[-2], k.shape[-2]
    if q_positions is None and k_positions is None:
        return Places(q_len, k_len, k.device, (), k_len - q_len)
    if q_len != k_len and (q_positions is None or k_positions is None):
        missing, given = missing_of(q_positions)
        raise refused(
            missing,
            "must be given along with {given} when lengths differ",
            Text("{queries} queries and {keys} keys", queries=q_len, keys=k_len),
            given=given,
        )
    sides = {"q_positions": (q_positions, q), "k_positions": (k_positions, k)}
    queries, keys = (
        None if at is None else
        as_positions(name, at, batch=batch, seq=x.shape[-2], device=x.device, axes=axes)
        for name, (at, x) in sides.items()
    )  # fmt: skip
    if k_positions is None or k_positions is q_positions:
        keys = queries
    elif queries is None:
        queries = keys
    assert queries is not None
    assert keys is not None
    return Places(q_len, k_len, k.device, (queries, keys))


def missing_of(q_positions: object) -> tuple[str, str]:
    """Which positions a caller left out, and which were given."""
    names = ("q_positions", "k_positions")
    return names if q_positions is None else names[::-1]
