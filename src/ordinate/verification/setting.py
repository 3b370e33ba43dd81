"""The setting of a verification: the model an encoding is imagined in, and the inputs it is given."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float64, Int
from torch import Tensor, nn

from ..checks import check_positive_int
from ..memory import check_room

#: How many positions are looked at where all of them must be.
COUNT = 4096
#: Tokens of a row that is long where many calls are made.
MANY = 1100
#: Where scattered positions end. A bias may make a table as long as they are apart.
_SPREAD = 2**13


@dataclass(frozen=True)
class Setting:
    """Dimensions of the model, and the length it is taken to be trained at.

    Attributes:
        limit: How many positions the encoding has, where it says so (``max_positions``).
    """

    d_model: int
    num_heads: int
    head_dim: int
    train_length: int
    limit: int | None = None
    seed: int = 0

    @classmethod
    def infer(
        cls,
        encoding: nn.Module,
        *,
        d_model: int | None = None,
        num_heads: int | None = None,
        head_dim: int | None = None,
        train_length: int | None = None,
        seed: int = 0,
    ) -> Setting:
        """What is given, else what the encoding or a part of it says of itself, else common sizes."""
        given = (
            ("d_model", d_model),
            ("num_heads", num_heads),
            ("head_dim", head_dim),
            ("train_length", train_length),
        )
        d_model, num_heads, head_dim, train_length = (
            None if value is None else check_positive_int(name, value) for name, value in given
        )
        d_model = d_model or attribute_of(encoding, "d_model")
        num_heads = num_heads or attribute_of(encoding, "num_heads")
        head_dim = head_dim or attribute_of(encoding, "head_dim")
        if num_heads is None:
            if d_model is None:
                num_heads = 8
            elif head_dim is not None:
                num_heads = max(d_model // head_dim, 1)
            else:
                num_heads = next(heads for heads in (8, 4, 2, 1) if d_model % heads == 0)
        if head_dim is None:
            head_dim = 64 if d_model is None else max(d_model // num_heads, 1)
        check_room("num_heads", num_heads, head_dim, COUNT, itemsize=16)  # float64, q and k
        limit = attribute_of(encoding, "max_positions")
        if train_length is None:
            train_length = limit or attribute_of(encoding, "original_max_positions") or COUNT
        return cls(d_model or num_heads * head_dim, num_heads, head_dim, train_length, limit, seed)

    @property
    def count(self) -> int:
        """How many positions to look at: many, but no more than the encoding has."""
        return COUNT if self.limit is None else min(COUNT, self.limit)

    def within(self, length: int) -> int:
        """``length``, or as much of it as the encoding has positions for."""
        return length if self.limit is None else min(length, self.limit)

    def random(self, *shape: int, stream: int = 0) -> Float64[Tensor, "..."]:
        """Normal random numbers, the same at every call with the same stream."""
        return torch.randn(shape, dtype=torch.float64, generator=self._generator(stream))

    def signs(self, *shape: int, stream: int = 0) -> Float64[Tensor, "..."]:
        """Random ±1, the same at every call: exact in every dtype, and every channel has weight."""
        flips = torch.randint(2, shape, generator=self._generator(stream))
        return flips.double() * 2 - 1

    def octaves(self, most: int) -> Int[Tensor, " count"]:
        """Numbers below ``most`` in order: of each octave its ends and some between, which bugs do not know."""
        most = self.within(most)
        between = torch.rand(3, 64, generator=self._generator(5), dtype=torch.float64)
        powers = 2 ** torch.arange(most.bit_length())
        drawn = (powers * (1 + between[:, : len(powers)])).long()
        chosen = torch.cat((torch.zeros(1).long(), powers - 1, powers, powers + 1, drawn.flatten()))
        return chosen[(chosen >= 0) & (chosen < most)].unique()

    def scattered(self, batch: int, seq: int, axes: int = 1, stream: int = 6) -> Int[Tensor, "..."]:
        """Positions with gaps, neighbours and repetitions, in no order, other ones in every row and on every axis."""
        known = self.octaves(_SPREAD)
        drawn = torch.randint(len(known), (axes, batch, seq), generator=self._generator(stream))
        return known[drawn] if axes > 1 else known[drawn[0]]

    def _generator(self, stream: int) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed + 1000 * stream)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"head_dim {self.head_dim} · {self.num_heads} heads · d_model {self.d_model} · "
            f"trained at {self.train_length}"
        )


def attribute_of(encoding: nn.Module, name: str) -> int | None:
    """The value of an attribute of the encoding, of one of its parts, or of a part's scaling."""
    for module in encoding.modules():
        for owner in (module, getattr(module, "scaling", None)):
            value = getattr(owner, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                chosen = getattr(owner, "heads", None) if name == "num_heads" else None
                # An encoding may hold a slice of the heads (tensor parallelism).
                return len(range(value)[chosen]) if isinstance(chosen, slice) else value
    return None
