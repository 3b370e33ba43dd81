"""What an example is computed with: one position, a short sequence, fixed random vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from ..checks import check_at_most, check_fields, check_positive_int
from ..encoding import PositionEncoding
from ..entries import create, example_specs, parse
from ..entry import Entry

# The largest sizes of a model in an example, whatever option gives them: a slip must not cost the memory.
_LARGEST = {"d_model": 1024, "head_dim": 1024, "num_heads": 256}
_LARGEST_TABLE = 2**24  # numbers


@dataclass(frozen=True)
class Example:
    """The sizes of an example.

    Attributes:
        position: Where the token stands whose computation is followed.
        dim: Channels: of a head where an encoding turns, of an embedding where it adds a code.
        length: How many tokens the matrices show.
        train_length: What wavelengths are compared with, and where scalings start from.
    """

    position: int = 3
    dim: int = 8
    heads: int = 8
    length: int = 8
    train_length: int = 4096

    def __post_init__(self) -> None:
        check_fields(self, check_positive_int, "position", minimum=0)
        check_at_most("position", self.position, 2**29 - 1)
        for name, most in (("dim", 1024), ("heads", 256), ("length", 64), ("train_length", 2**24)):
            check_fields(self, check_positive_int, name)
            check_at_most(name, getattr(self, name), most)

    @property
    def sizes(self) -> dict[str, int]:
        """What `ordinate.create` asks for."""
        return {
            "d_model": self.dim,
            "head_dim": self.dim,
            "num_heads": self.heads,
            "max_positions": self.train_length,
        }

    def vector(self, dim: int, seed: int = 0) -> Float64[Tensor, " dim"]:
        """Normal random numbers, the same at every call."""
        return torch.randn(dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))

    def vectors(self, heads: int, dim: int, seed: int = 0) -> Float64[Tensor, "1 heads length dim"]:
        """One vector for each head and token, the same at every call."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(1, heads, self.length, dim, dtype=torch.float64, generator=generator)

    def length_for(self, encoding: PositionEncoding) -> int | None:
        """A length past training, for encodings whose numbers depend on it."""
        return max(2 * self.train_length, self.position + 1) if encoding.length_dependent else None


def example_encoding(spec: str, **sizes: int) -> PositionEncoding:
    """An encoding by its spec; bare names have the settings of their example, learned tables one fixed seed."""
    parts = parse(spec)
    for entry, options in parts:
        _check_sizes(entry, options, sizes)
    if not any(options for _, options in parts):
        name, examples = "+".join(entry.name for entry, _ in parts), example_specs(sizes["head_dim"])
        spec = examples.get(name) or examples.get(f"rope+{name}") or spec
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return create(spec, **sizes)


def _check_sizes(entry: Entry, options: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    """Refuse what would not fit, before anything is made; what is no whole number the encoding refuses itself."""
    given = {name: value for name, value in options.items() if isinstance(value, int)}
    bounds = {name: option.most for name, option in (entry.options or {}).items() if option.most}
    for name, most in {**_LARGEST, **bounds}.items():
        check_at_most(f"{name} of an example", given.get(name, 0), most)
    numbers = entry.numbers_in_table(options, sizes)
    check_at_most(f"numbers in the table of {entry.name}", numbers, _LARGEST_TABLE)
