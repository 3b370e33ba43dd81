"""What a bias answers, and the bookkeeping all bias types share."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..checks import check_instance, refused
from ..numerics import compute_dtype
from ..positions import Places

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


class Bias:
    """The base of the bias types: frozen dataclasses whose fields are tensors or plain settings."""

    #: Multiplied by the softmax scale, as ``q·k`` is (Shaw, Falcon's ALiBi); most are not.
    scaled: bool
    #: Rewards the future, so it is only right under a causal mask.
    causal_only: bool

    _registry: ClassVar[dict[str, type[Bias]]] = {}
    _name: ClassVar[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # A class made again under its name (a notebook's cell run twice) is another class.
        name = f"{cls.__module__}.{cls.__qualname__}"
        cls._name = f"{name}#{len(Bias._registry)}" if name in Bias._registry else name
        Bias._registry[cls._name] = cls

    def dense(self) -> Float[Tensor, "batch heads q k"]:
        raise NotImplementedError

    def block(self, q: slice, k: slice) -> Bias:
        raise NotImplementedError

    def diagonals(self) -> Float[Tensor, "batch heads diagonals"] | None:
        """Entry ``(q_len - 1 - i) + j`` is the bias of query i and key j; None if there is no such vector."""
        return None

    def pullback(self, grad: Float[Tensor, "batch heads q k"]) -> tuple[Tensor | None, ...]:
        """Gradients of `tensors()`, in order; None for tensors that take none."""
        raise NotImplementedError

    def score_mod(self, scale: float | None = None) -> ScoreMod:
        """This bias as a FlexAttention ``score_mod``.

        Args:
            scale: The softmax scale given to ``flex_attention``; needed where the bias is `scaled`.
        """
        lookup = self._lookup()
        if not self.scaled:
            return lambda score, b, h, q, k: score + lookup(b, h, q, k)
        if scale is None:
            raise refused("scale", "must be given to score_mod because this bias is scaled", "None")
        return lambda score, b, h, q, k: score + scale * lookup(b, h, q, k)

    def _lookup(self) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        raise NotImplementedError

    @property
    def heads(self) -> int:
        raise NotImplementedError

    @property
    def shape(self) -> tuple[int, int | None, int]:
        """``(batch or 1, q_len, k_len)``, for checks; q_len is None where a bias fits any number of queries."""
        raise NotImplementedError

    def tensors(self) -> list[Tensor]:
        """The tensor fields, in order; with `spec` they make up the whole bias."""
        found: list[Tensor] = []
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                found.append(value)
            elif isinstance(value, Places):
                found.extend(value.given)
        return found

    def computed_in(self, dtype: torch.dtype) -> Bias:
        """The same with float32 tensors made float64 for a call in float64, and the other way round.

        16 bits are widened where they are read: exactly, and without a copy of the whole.
        """
        if not is_dataclass(self):
            return self
        named = ((field.name, getattr(self, field.name)) for field in fields(self))
        others = {
            name: value.to(dtype)
            for name, value in named
            if isinstance(value, Tensor)
            and value.is_floating_point()
            and compute_dtype(value.dtype) != dtype
        }
        return replace(self, **others) if others else self

    def integers(self) -> list[int]:
        """The fields that are whole numbers, in order: where a table starts may follow from a length, which is a
        symbol to a compiler and has no text."""
        found: list[int] = []
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if _is_integer(value):
                found.append(value)
            elif isinstance(value, Places):
                found.extend(value.integers())
        return found

    def spec(self) -> str:
        """All other fields, as one line of text: how custom operators carry a bias."""
        settings = [self._name]
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            kind = "tensor" if isinstance(value, Tensor) else "integer" if _is_integer(value) else None
            if isinstance(value, Places):
                kind = f"places {value.kind()}"
            settings.append(f"{field.name}={kind or repr(value)}")
        return ";".join(settings)

    @staticmethod
    def rebuild(tensors: Sequence[Tensor], integers: Sequence[int], spec: str) -> Bias:
        """The inverse of `tensors`, `integers` and `spec`; a sum has one line for each part."""
        from .types import SumBias

        supply: dict[str, Iterator] = {"tensor": iter(tensors), "integer": iter(integers)}
        parts = []
        for line in spec.splitlines():
            name, *settings = line.split(";")
            values = {}
            for setting in settings:
                field, text = setting.split("=", 1)
                if text in supply:
                    values[field] = next(supply[text])
                elif text.startswith("places "):
                    kind = text.removeprefix("places ")
                    values[field] = Places.rebuild(kind, supply["tensor"], supply["integer"])
                else:
                    values[field] = ast.literal_eval(text)
            parts.append(Bias._registry[name](**values))
        return parts[0] if len(parts) == 1 else SumBias(tuple(parts))

    def __add__(self, other: Bias) -> Bias:
        from .add import add  # types come first: the rules of addition need all of them

        return add(self, other) if isinstance(other, Bias) else NotImplemented


class PairBias(Bias):
    """A bias looked up with the positions of a query and a key."""

    places: Places

    def __post_init__(self) -> None:
        rule = "must be what positions.resolve returns, or a positions.Places"
        check_instance("places", self.places, Places, rule)
        if self.places.axes > 1:
            raise refused("places", "must be along one axis", f"{self.places.axes} axes")

    def distances(self) -> Int[Tensor, "batch q k"]:
        return self.places.distances()

    def block(self, q: slice, k: slice) -> Bias:
        return replace(self, places=self.places.block(q, k))  # type: ignore[type-var]

    def pullback_of_diagonals(
        self, grad: Float[Tensor, "batch heads diagonals"]
    ) -> tuple[Tensor | None, ...]:
        """`pullback`, given the sum of the gradient on each diagonal."""
        row = replace(self, places=self.places.as_one_query())  # type: ignore[type-var]
        return row.pullback(grad[:, :, None])

    @property
    def shape(self) -> tuple[int, int | None, int]:
        return self.places.batch, self.places.q_len, self.places.k_len

    def _gradients(self, *shares: Tensor) -> tuple[Tensor | None, ...]:
        """Of the tensors before the places, and none of those of the places."""
        return (*shares, *(None for _ in self.places.given))


def _is_integer(value: object) -> bool:
    return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)


def same_batch(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Both with one batch size, where either may be 1."""
    batch = second.shape[0] if first.shape[0] == 1 else first.shape[0]
    return tuple(x.expand(batch, *x.shape[1:]) for x in (first, second))  # type: ignore[return-value]


def diagonal_sums(matrix: Float[Tensor, "batch heads q k"]) -> Float[Tensor, "batch heads diagonals"]:
    """Sum each diagonal; entry ``(q_len - 1 - i) + j`` gathers query i and key j.

    Rows padded by their own number and read one element short shift by one more each row, so
    diagonals become columns and the sum runs along contiguous memory.
    """
    q_len, k_len = matrix.shape[-2:]
    count = q_len + k_len - 1
    padded = torch.nn.functional.pad(matrix.flip(-2), (0, q_len)).flatten(-2)
    return padded[..., : q_len * count].unflatten(-1, (q_len, count)).sum(dim=-2)
