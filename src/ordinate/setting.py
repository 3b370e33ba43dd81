"""`Setting`: the sizes at which `show`, `plot` and `verify` look at an encoding, and what they show of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64, Int
from torch import Tensor, nn

from .checks import (
    check_at_most,
    check_fields,
    check_ints,
    check_number,
    check_positive_int,
    check_size,
    refused,
)
from .encoding import PositionEncoding
from .entries import create, example_specs, parse
from .entry import Entry
from .memory import check_room
from .parts import attribute_of, hooks_of
from .text import Text

#: How many positions are measured where a property must hold for all of them.
COUNT = 4096
#: Tokens of a long row where many calls are made.
MANY = 1100
#: Where scattered positions end. A bias may make a table as long as they are apart.
_SPREAD = 2**13

#: The sizes that `show` takes: default, smallest and largest.
STEP_SIZES: dict[str, tuple[int, int, int]] = {
    "position": (3, 0, 2**29 - 1),
    "dim": (8, 1, 1024),
    "heads": (8, 1, 256),
    "length": (8, 1, 64),
    "train_length": (4096, 1, 2**24),
}
#: The sizes that `plot` takes. The largest keep a picture under a second and its file small.
PICTURE_SIZES: dict[str, tuple[int | None, int, int]] = {
    "positions": (None, 2, 4096),
    "dim": (64, 2, 1024),
    "heads": (8, 1, 64),
    "distance": (256, 1, 16384),
    "train_length": (4096, 2, 2**24),
}
#: All options of `plot`.
PICTURE_OPTIONS = (*PICTURE_SIZES, "channels", "pairs", "at", "factor", "text")

# The largest sizes of a model that the options of a spec may give to `show`, `plot` and `verify`: a typing error
# must not cost the memory.
_LARGEST = {"d_model": 1024, "head_dim": 1024, "num_heads": 256}
_LARGEST_TABLE = 2**24  # numbers


def normal(*shape: int, seed: int = 0) -> Float64[Tensor, "..."]:
    """Normal random numbers, the same at every call."""
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Setting:
    """The model around an encoding, and what of it is shown.

    Attributes:
        train_length: The length the model is taken to be trained at: wavelengths are compared with it, and
            scalings start from it.
        limit: How many positions the encoding has, where it has a bound (``max_positions``).
        position: The token whose computation is followed.
        positions: How many positions, or tokens of a matrix, are shown. Default: what suits the picture.
        distance: The largest distance of scores and biases.
        channels, pairs, at: The channels, pairs and positions to pick out. Default: a fast, a middle and a slow one.
        factor: The factor of the scalings in the ``scalings`` picture. Default: the encoding's own, else 8.
        text: The words of the ``attention`` picture.
    """

    d_model: int
    num_heads: int
    head_dim: int
    train_length: int = 4096
    limit: int | None = None
    seed: int = 0
    position: int = 0
    positions: int | None = None
    distance: int = 256
    channels: tuple[int, ...] | None = None
    pairs: tuple[int, ...] | None = None
    at: tuple[int, ...] = (1, 5)
    factor: float | None = None
    text: str = "the dog bites the man"

    def __post_init__(self) -> None:
        if self.factor is not None:
            check_fields(self, check_number, "factor", at_least=1)
            check_at_most("factor", self.factor, 4096)
        for name in ("channels", "pairs", "at"):
            if getattr(self, name) is not None:
                check_fields(self, _check_picked, name)

    @classmethod
    def of_steps(cls, **sizes: int) -> Setting:
        """The setting of `show`, from the sizes of `STEP_SIZES`."""
        return cls._bounded(STEP_SIZES, sizes)

    @classmethod
    def of_picture(cls, **options: Any) -> Setting:
        """The setting of a picture, from `PICTURE_OPTIONS`."""
        return cls._bounded(PICTURE_SIZES, options)

    @classmethod
    def _bounded(cls, sizes: Mapping[str, tuple[Any, int, int]], given: Mapping[str, Any]) -> Setting:
        """Sizes within their bounds. One width stands for a head and for an embedding."""
        chosen = dict(given)
        for name, (default, least, most) in sizes.items():
            value = chosen.setdefault(name, default)
            if value is not None or default is not None:
                chosen[name] = check_size(name, value, minimum=least, most=most)
        dim, heads = chosen.pop("dim"), chosen.pop("heads")
        if "length" in chosen:
            chosen["positions"] = chosen.pop("length")
        return cls(dim, heads, dim, **chosen)

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
        """The sizes that are given, else those of the encoding or of a part of it, else common ones."""
        given = {
            "d_model": d_model, "num_heads": num_heads, "head_dim": head_dim, "train_length": train_length,
        }  # fmt: skip
        d_model, num_heads, head_dim, train_length = (
            None if value is None else check_positive_int(name, value) for name, value in given.items()
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

    def around(self, encoding: PositionEncoding) -> Setting:
        """The same with the encoding's own sizes, where it has any."""
        heads = attribute_of(encoding, "num_heads") or self.num_heads
        name = "d_model" if "embed" in hooks_of(encoding) else "head_dim"
        width = {name: attribute_of(encoding, name) or self.head_dim}
        own = Setting.infer(encoding, num_heads=heads, train_length=self.train_length, **width)
        return dataclasses.replace(
            self, d_model=own.d_model, num_heads=own.num_heads, head_dim=own.head_dim, limit=own.limit
        )

    def encoding(self, spec: str) -> PositionEncoding:
        """The encoding of a spec in these sizes, the tables of learned ones from a fixed seed.

        A bare name stands for the example of its entry.
        """
        sizes = {
            "d_model": self.d_model, "head_dim": self.head_dim, "num_heads": self.num_heads,
            "max_positions": self.train_length,
        }  # fmt: skip
        parts = parse(spec)
        for entry, options in parts:
            _check_options(entry, options, sizes)
        if not any(options for _, options in parts):
            name, examples = "+".join(entry.name for entry, _ in parts), example_specs(self.head_dim)
            spec = examples.get(name) or examples.get(f"rope+{name}") or spec
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return create(spec, **sizes)

    def length_for(self, encoding: PositionEncoding) -> int | None:
        """A length past training, for encodings whose numbers depend on it."""
        return max(2 * self.train_length, self.position + 1) if encoding.length_dependent else None

    @property
    def length(self) -> int:
        """Tokens in the matrices of `show`."""
        return self.positions or STEP_SIZES["length"][0]

    @property
    def count(self) -> int:
        """How many positions to measure: `COUNT`, but no more than the encoding has."""
        return self.within(COUNT)

    def within(self, length: int) -> int:
        """``length``, or as much of it as the encoding has positions for."""
        return length if self.limit is None else min(length, self.limit)

    def shown(self, default: int, most: int = PICTURE_SIZES["positions"][2]) -> Int[Tensor, " count"]:
        """``0, 1, …``: as many positions as asked for, as the picture can show and as the encoding has."""
        return torch.arange(self.within(min(self.positions or default, most)))

    def left_out(self, shown: int) -> str:
        """A remark for a picture that shows fewer positions than were asked for."""
        asked = self.positions
        if asked is None or shown >= asked:
            return ""
        return Text("the first {shown} of {asked} positions", shown=shown, asked=asked)

    def picked(self, name: str, count: int, last: int | None = None) -> tuple[int, ...]:
        """The channels or pairs asked for, each below ``count``; left out, the first, the ``last`` and one between."""
        asked = getattr(self, name)
        if asked is None:
            last = count - 1 if last is None else last
            return tuple(sorted({0, last // 2, last}))
        for value in asked:
            if value >= count:
                raise refused(name, "must be below {count}", value, count=count)
        return asked

    def random(self, *shape: int, stream: int = 0) -> Float64[Tensor, "..."]:
        """Normal random numbers, the same at every call with the same stream."""
        return torch.randn(shape, dtype=torch.float64, generator=self._generator(stream))

    def signs(self, *shape: int, stream: int = 0) -> Float64[Tensor, "..."]:
        """Random ±1, the same at every call: exact in every dtype, and no channel is near zero."""
        flips = torch.randint(2, shape, generator=self._generator(stream))
        return flips.double() * 2 - 1

    def octaves(self, most: int) -> Int[Tensor, " count"]:
        """Sorted numbers below ``most``: both ends of each octave and some random ones between."""
        most = self.within(most)
        between = torch.rand(3, 64, generator=self._generator(5), dtype=torch.float64)
        powers = 2 ** torch.arange(most.bit_length())
        drawn = (powers * (1 + between[:, : len(powers)])).long()
        chosen = torch.cat((torch.zeros(1).long(), powers - 1, powers, powers + 1, drawn.flatten()))
        return chosen[(chosen >= 0) & (chosen < most)].unique()

    def scattered(self, batch: int, seq: int, axes: int = 1, stream: int = 6) -> Int[Tensor, "..."]:
        """Unsorted positions with gaps, neighbours and repetitions, different in every row and on every axis."""
        known = self.octaves(_SPREAD)
        drawn = torch.randint(len(known), (axes, batch, seq), generator=self._generator(stream))
        return known[drawn] if axes > 1 else known[drawn[0]]

    def _generator(self, stream: int) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed + 1000 * stream)

    def to_dict(self) -> dict[str, Any]:
        """The model around the encoding."""
        names = ("d_model", "num_heads", "head_dim", "train_length", "limit", "seed")
        return {name: getattr(self, name) for name in names}

    def __str__(self) -> str:
        return (
            f"head_dim {self.head_dim} · {self.num_heads} heads · d_model {self.d_model} · "
            f"trained at {self.train_length}"
        )


def _check_picked(name: str, values: object) -> tuple[int, ...]:
    picked = check_ints(name, values, minimum=0)
    if not 1 <= len(picked) <= 8:
        raise refused(name, "must name 1 to 8", len(picked))
    if len(set(picked)) < len(picked):
        raise refused(name, "must each be named once", ", ".join(map(str, picked)))
    for index, value in enumerate(picked):
        check_at_most(f"{name}[{index}]", value, 2**20)
    return picked


def _check_options(entry: Entry, options: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    """Refuse options that are too large, before anything is made; the class refuses what is no whole number."""
    given = {name: value for name, value in options.items() if isinstance(value, int)}
    bounds = {name: option.most for name, option in (entry.options or {}).items() if option.most}
    for name, most in {**_LARGEST, **bounds}.items():
        check_at_most(Text("{name} of an example", name=Text(name)), given.get(name, 0), most)
    numbers = entry.numbers_in_table(options, sizes)
    check_at_most(Text("numbers in the table of {name}", name=entry.name), numbers, _LARGEST_TABLE)
