"""What an example is computed with: one position, a short sequence, fixed random vectors."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from ..catalog import create
from ..checks import check_at_most, check_positive_int
from ..encoding import PositionEncoding
from ..verify.examples import example_specs

# Options that size a table, and the largest an example is made with: a typing error costs a sentence, not the memory.
_SIZE = re.compile(
    r"\b(max_distance|num_buckets|max_positions|d_model|head_dim|num_heads|rotary_dim|offset)\s*=\s*(\d+)"
)
_LARGEST = 2**16
_LARGEST_TABLE = 2**24  # numbers in a table of codes


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
        check_positive_int("position", self.position, minimum=0)
        check_at_most("position", self.position, 2**31)
        for name, most in (("dim", 1024), ("heads", 256), ("length", 64), ("train_length", 2**24)):
            check_positive_int(name, getattr(self, name))
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
    if isinstance(spec, str):
        for name, size in _SIZE.findall(spec):
            check_at_most(f"{name} of an example", int(size), _LARGEST)
        if any(part.partition(":")[0].strip().lower() == "learned" for part in parts_of_spec(spec)):
            rows = _LARGEST_TABLE // sizes["d_model"]
            check_at_most("positions of a learned table", sizes["max_positions"], rows)
        examples = example_specs(sizes["head_dim"])
        spec = examples.get(spec) or examples.get(f"rope+{spec}") or spec
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return create(spec, **sizes)


def parts_of_spec(spec: str) -> list[str]:
    """The encodings and scalings a spec names, with their options.

    Example:
        >>> parts_of_spec("rope:base=1e+6+yarn:factor=4")
        ['rope:base=1e+6', 'yarn:factor=4']
    """
    return re.split(r"\+(?=\s*[A-Za-z])", spec)
