"""What a picture is asked to show: sizes, and the channels, pairs and positions picked out; all bounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..checks import check_at_most, check_fields, check_ints, check_number, check_positive_int
from ..encoding import PositionEncoding
from ..entries import entry_of
from ..text import Text
from ..verification.observe import hooks_of
from ..verification.setting import Setting, attribute_of
from ..walkthrough.setting import example_encoding

#: The smallest and the largest of each size. The largest keep a picture under a second and its file small.
BOUNDS = {
    "positions": (2, 4096),
    "dim": (2, 1024),
    "heads": (1, 64),
    "distance": (1, 16384),
    "train_length": (2, 2**24),
}


@dataclass(frozen=True)
class View:
    """The sizes of a picture.

    Attributes:
        positions: How many positions, or tokens of a matrix. Default: what suits the picture.
        dim: Channels: of a head, or of an embedding for codes.
        distance: How far scores and biases are followed.
        channels, pairs, at: Which channels, pairs and positions are picked out. Default: a fast, a middle and a
            slow one.
        factor: How far the scalings of the ``scalings`` picture stretch. Default: as the encoding's own, else 8.
        text: The words of the ``attention`` picture.
    """

    positions: int | None = None
    dim: int = 64
    heads: int = 8
    distance: int = 256
    train_length: int = 4096
    channels: tuple[int, ...] | None = None
    pairs: tuple[int, ...] | None = None
    at: tuple[int, ...] = (1, 5)
    factor: float | None = None
    text: str = "the dog bites the man"

    def __post_init__(self) -> None:
        for name, (least, most) in BOUNDS.items():
            if name == "positions" and self.positions is None:
                continue
            check_fields(self, check_positive_int, name, minimum=least)
            check_at_most(name, getattr(self, name), most)
        if self.factor is not None:
            check_fields(self, check_number, "factor", at_least=1)
            check_at_most("factor", self.factor, 4096)
        for name in ("channels", "pairs", "at"):
            picked = getattr(self, name)
            if picked is None:
                continue
            picked = check_ints(name, picked, minimum=0)
            if not 1 <= len(picked) <= 8:
                raise ValueError(f"{name} must name 1 to 8, got {len(picked)}")
            if len(set(picked)) < len(picked):
                raise ValueError(f"{name} must each be named once, got {', '.join(map(str, picked))}")
            for index, value in enumerate(picked):
                check_at_most(f"{name}[{index}]", value, 2**20)
            object.__setattr__(self, name, picked)

    @property
    def sizes(self) -> dict[str, int]:
        """What `ordinate.create` asks for. Codes are as wide as a head here, so that one size says it all."""
        return {
            "d_model": self.dim,
            "head_dim": self.dim,
            "num_heads": self.heads,
            "max_positions": self.train_length,
        }

    def encoding(self, spec: str) -> PositionEncoding:
        """The encoding of a spec in these sizes, learned tables always with the same seed."""
        return example_encoding(spec, **self.sizes)

    def setting(self, encoding: PositionEncoding) -> Setting:
        """The model an encoding is looked at in: its own sizes where it tells them, else those asked for."""
        heads = attribute_of(encoding, "num_heads") or self.heads
        name = "d_model" if "embed" in hooks_of(encoding) else "head_dim"
        width = {name: attribute_of(encoding, name) or self.dim}
        return Setting.infer(encoding, num_heads=heads, train_length=self.train_length, **width)

    def picked(self, name: str, count: int, last: int | None = None) -> tuple[int, ...]:
        """The channels or pairs asked for, each below ``count``; left out, the first, the ``last`` and one between."""
        asked = getattr(self, name)
        if asked is None:
            last = count - 1 if last is None else last
            return tuple(sorted({0, last // 2, last}))
        for value in asked:
            if value >= count:
                raise ValueError(f"{name} must be below {count}, got {value}")
        return tuple(asked)

    def places(self, encoding: PositionEncoding, default: int, most: int | None = None) -> torch.Tensor:
        """``0, 1, …``: as many positions as asked for, as the picture can show and as the encoding has."""
        count = default if self.positions is None else self.positions
        count = count if most is None else min(count, most)
        return torch.arange(self.setting(encoding).within(count))

    def left_out(self, shown: int) -> str:
        """A word for the note of a picture that shows fewer positions than were asked for."""
        asked = self.positions
        if asked is None or shown >= asked:
            return ""
        return Text("the first {shown} of {asked} positions", shown=shown, asked=asked)


def part_with(encoding: PositionEncoding, kind: str) -> Any:
    """The first part of an encoding whose entry in the catalog names a kind of picture; None if no part does."""
    for part in encoding.modules():
        entry = entry_of(part)
        if entry is not None and kind in entry.pictures:
            return part
    return None
