"""The base classes of the bias types, and how a custom operator takes a bias."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..caches import cleared_by
from ..checks import check_instance, refused
from ..places import Places
from ..text import Text

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


class Bias:
    """The base of the bias types: frozen dataclasses whose fields are tensors or plain settings."""

    #: Whether the bias is multiplied by the softmax scale, like ``q·k`` (Shaw, Falcon's ALiBi); most are not.
    scaled: bool
    #: Whether the bias is only right under a causal mask, because it rewards future keys.
    causal_only: bool

    _registry: ClassVar[dict[str, type[Bias]]] = {}
    _name: ClassVar[str]

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Check the fields of a bias that a caller made. Biases cut or rebuilt from it are not checked again."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # A class that is defined again under the same name (a notebook cell run twice) is another class.
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
        """The tensor fields, in order."""
        found: list[Tensor] = []
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                found.append(value)
            elif isinstance(value, Places):
                found.extend(value.given)
        return found

    def computed_in(self, dtype: torch.dtype) -> Bias:
        """The bias with float32 tensors converted to float64 for a call in float64, and the other way round.

        16-bit tensors are widened where they are read: exactly, and without a copy of the whole tensor.
        """
        if not is_dataclass(self):
            return self
        changed, wide = {}, dtype == torch.float64
        for field in fields(self):
            value = getattr(self, field.name)
            floats = isinstance(value, Tensor) and value.is_floating_point()
            if floats and wide != (value.dtype == torch.float64):
                changed[field.name] = value.to(dtype)
        return replace(self, **changed) if changed else self

    # A custom operator's schema knows only basic types, so it takes a bias as tensors, integers and a line of text.

    def flattened(self) -> tuple[list[Tensor], list[int], str]:
        """The whole bias: `tensors`, the fields that are integers, and all others as one line of text."""
        tensors: list[Tensor] = []
        integers: list[int] = []
        settings = [self._name]
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                tensors.append(value)
                text = "tensor"
            elif isinstance(value, Places):
                tensors.extend(value.given)
                of_places, kind = value.flattened()
                integers.extend(of_places)
                text = f"places {kind}"
            elif isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
                # The start of a table may follow from a length, which is symbolic under torch.compile and has no text.
                integers.append(value)  # type: ignore[arg-type]
                text = "integer"
            else:
                text = repr(value)
            settings.append(f"{field.name}={text}")
        return tensors, integers, ";".join(settings)

    @staticmethod
    def rebuild(tensors: Sequence[Tensor], integers: Sequence[int], spec: str) -> Bias:
        """The inverse of `flattened`; a sum has one line for each part."""
        from .types import SumBias

        parts = rebuilt_parts(tensors, integers, spec)
        return parts[0] if len(parts) == 1 else SumBias(parts)

    def __add__(self, other: Bias) -> Bias:
        from .add import add  # imported late, because add.py imports all bias types

        return add(self, other) if isinstance(other, Bias) else NotImplemented


class PairBias(Bias):
    """A bias that depends on the positions of a query and a key."""

    places: Places

    def check(self) -> None:
        rule = "must be what positions.resolve returns, or a positions.Places"
        check_instance("places", self.places, Places, rule)
        if not self.places.is_in_order and self.places.axes > 1:
            raise refused("places", "must be along one axis", Text("{axes} axes", axes=self.places.axes))

    def distances(self) -> Int[Tensor, "batch q k"]:
        return self.places.distances()

    def block(self, q: slice, k: slice) -> Bias:
        return unchecked(self, places=self.places.block(q, k))

    @property
    def shape(self) -> tuple[int, int | None, int]:
        return self.places.batch, self.places.q_len, self.places.k_len


class DiagonalBias(PairBias):
    """A bias that depends on the distance only."""

    def at(self, distances: Int[Tensor, "batch *shape"]) -> Float[Tensor, "batch heads *shape"]:
        """The bias at these distances."""
        raise NotImplementedError

    def gradient(
        self, grad: Float[Tensor, "batch heads n"], distances: Int[Tensor, "batch n"]
    ) -> Tensor:
        """The gradient of the bias's one tensor, given the gradient of the logits at these distances."""
        raise NotImplementedError

    def dense(self) -> Float[Tensor, "batch heads q k"]:
        return self.at(self.distances())

    def diagonals(self) -> Float[Tensor, "batch heads diagonals"] | None:
        distances = self.places.diagonal_distances()
        return None if distances is None else self.at(distances)

    def pullback(self, grad: Float[Tensor, "batch heads q k"]) -> tuple[Tensor | None, ...]:
        distances = self.places.diagonal_distances()
        if distances is None:
            return self._pulled_back(grad.flatten(2), self.distances().flatten(1))
        return self._pulled_back(diagonal_sums(grad), distances)

    def pullback_of_diagonals(
        self, sums: Float[Tensor, "batch heads diagonals"]
    ) -> tuple[Tensor | None, ...]:
        """`pullback`, given the sum of the gradient on each diagonal."""
        distances = self.places.diagonal_distances()
        assert distances is not None
        return self._pulled_back(sums, distances)

    def _pulled_back(self, grad: Tensor, distances: Tensor) -> tuple[Tensor | None, ...]:
        return self.gradient(*same_batch(grad, distances)), *[None] * len(self.places.given)

    def _lookup(self) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        return lambda b, h, q, k: self._at_pair(h, self.places.distance_at(b, q, k))

    def _at_pair(self, head: Tensor, distance: Tensor) -> Tensor:
        raise NotImplementedError


def unchecked(bias: Bias, **changes: Any) -> Bias:
    """A bias with some fields changed, without `check`."""
    values = {field.name: getattr(bias, field.name) for field in fields(bias)}  # type: ignore[arg-type]
    return _made(type(bias), values | changes)


def _made(kind: type[Bias], values: dict[str, Any]) -> Bias:
    if kind.__post_init__ is not Bias.__post_init__:  # a subclass's own `__post_init__` must run
        return kind(**values)
    made = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def rebuilt_parts(tensors: Sequence[Tensor], integers: Sequence[int], spec: str) -> tuple[Bias, ...]:
    """The summands of a flattened bias."""
    next_tensor, next_integer = iter(tensors), iter(integers)
    parts = []
    for kind, settings in _parsed(spec):
        values: dict[str, Any] = {}
        for field, (source, value) in settings.items():
            if source == "tensor":
                value = next(next_tensor)
            elif source == "integer":
                value = next(next_integer)
            elif source == "places":
                value = Places.rebuild(value, next_tensor, next_integer)
            values[field] = value
        parts.append(_made(kind, values))
    return tuple(parts)


@functools.lru_cache(maxsize=256)
def _parsed(spec: str) -> list[tuple[type[Bias], dict[str, tuple[str, Any]]]]:
    """Each part's class, and the source of each field's value: the tensors, the integers or the text."""
    parts = []
    for line in spec.splitlines():
        name, *settings = line.split(";")
        values: dict[str, tuple[str, Any]] = {}
        for setting in settings:
            field, text = setting.split("=", 1)
            source, _, kind = text.partition(" ")
            if source in ("tensor", "integer", "places"):
                values[field] = source, kind
            else:
                values[field] = "text", ast.literal_eval(text)
        parts.append((Bias._registry[name], values))
    return parts


cleared_by(_parsed.cache_clear)


def same_batch(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Expand both to one batch size; either may be 1."""
    batch = second.shape[0] if first.shape[0] == 1 else first.shape[0]
    return first.expand(batch, *first.shape[1:]), second.expand(batch, *second.shape[1:])


def diagonal_sums(matrix: Float[Tensor, "batch heads q k"]) -> Float[Tensor, "batch heads diagonals"]:
    """Sum each diagonal; entry ``(q_len - 1 - i) + j`` includes query i and key j.

    Rows are padded by their own number. Read with rows one element shorter, each row is shifted by one more, so
    diagonals become columns and the sums run along contiguous memory.
    """
    q_len, k_len = matrix.shape[-2:]
    count = q_len + k_len - 1
    padded = torch.nn.functional.pad(matrix.flip(-2), (0, q_len)).flatten(-2)
    return padded[..., : q_len * count].unflatten(-1, (q_len, count)).sum(dim=-2)
