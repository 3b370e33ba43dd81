"""`Plan`: the encoding of every layer as a config describes it, and the key that each fact came from."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from ...checks import refused
from ...encoding import NoPE, PositionEncoding
from ...numerics import in_float64
from ...text import Text

_NOTHING = NoPE()


class ConfigError(ValueError):
    """A config that cannot be read; the sentence names the key, the rule and the value."""

    def __init__(self, sentence: str) -> None:
        # Keys and values come from a file and may hold anything; the message must be one short, printable line.
        line = "".join(x if x.isprintable() else f"\\x{ord(x):02x}" for x in sentence[:600])
        super().__init__(line if len(sentence) <= 600 else f"{line}…")


class Reading(NamedTuple):
    """One fact of a config: the key it came from, its value, and what it means."""

    key: str
    value: Any
    meaning: str


@dataclass(frozen=True)
class Temperature:
    """Queries multiplied by ``1 + scale · ln(1 + ⌊(position + start) / every⌋)``.

    Llama 4 does so in its layers without rotation (``start`` 1), Ministral 3 in all (``start`` 0).

    Example:
        >>> Temperature(scale=0.1, every=8192, start=1).at(torch.tensor([8190, 8191]))
        tensor([1.0000, 1.0693], dtype=torch.float64)
    """

    scale: float
    every: int
    start: int = 0

    def at(self, positions: Int[Tensor, "*shape"]) -> Float64[Tensor, "*shape"]:
        """The factor at each position, in float64 (on the CPU if the device has none)."""

        def factor(home: torch.device, positions: Tensor) -> Tensor:
            steps = torch.div(positions + self.start, self.every, rounding_mode="floor")
            return 1 + self.scale * torch.log1p(steps.double())

        return in_float64(positions.device, factor, positions)


@dataclass(frozen=True)
class LayerPlan:
    """The position encoding and attention settings of one layer.

    Attributes:
        index: Its index in its stack, from 0.
        layer_type: The config's word for its kind, ``"full_attention"`` if it has none.
        encoding: The encoding in this layer, shared by layers of one kind unless each has its own parameters.
            Codes added to the embeddings act before the first layer and are in `Plan.embeddings`.
        scale: The softmax scale; None for ``encoding.logit_factor / sqrt(head_dim)``.
        window: A query sees this many keys, including its own; None for all.
        chunk: Tokens see each other within chunks of this size only (Llama 4); None for no chunks.
        head_dim: Channels of a head of q and k.
        turned_from: The first channel that is rotated; the encoding gets the channels from this one on
            (DeepSeek rotates the last 64 of 192).
        temperature: A factor on queries that grows with their position.
        stack: ``"decoder"`` or ``"encoder"``.
        causal: Whether a query sees no later keys.
    """

    index: int
    layer_type: str
    encoding: PositionEncoding
    scale: float | None = None
    window: int | None = None
    chunk: int | None = None
    head_dim: int | None = None
    turned_from: int = 0
    temperature: Temperature | None = None
    stack: str = "decoder"
    causal: bool = True

    @property
    def softmax_scale(self) -> float:
        """The factor of ``q·k`` before the softmax; the computed default if `scale` is None."""
        if self.scale is not None:
            return self.scale
        assert self.head_dim is not None
        return self.encoding.logit_factor / math.sqrt(self.head_dim)

    def describe(self) -> str:
        """Everything about this layer except its index, on one line."""
        facts = (
            (True, describe_encoding(self.encoding)),
            (self.turned_from, f"on the channels from {self.turned_from} of {self.head_dim}"),
            (True, "causal" if self.causal else "both directions"),
            (self.scale is not None, f"scale {self.scale or 0:.6g}"),
            (self.window is not None, f"window {self.window}"),
            (self.chunk is not None, f"chunks of {self.chunk}"),
            (self.temperature is not None, str(self.temperature)),
        )
        return ", ".join(text for holds, text in facts if holds)


def describe_encoding(encoding: PositionEncoding) -> str:
    """An encoding on one line; the base class is called NoPE."""
    if type(encoding) is NoPE:
        return "NoPE"
    return " ".join(repr(encoding).split())


@dataclass(frozen=True)
class Plan:
    """A model's positions as its config describes them; made by `from_config`.

    Learned tables are on the meta device: a plan has their shapes without memory for the numbers. Load a
    checkpoint's weights after ``encoding.to_empty(device=…)``.

    Attributes:
        family: The family's name, such as ``"Llama"``.
        model_type: The config's name of the family.
        layers: One `LayerPlan` per layer, the encoder's before the decoder's.
        embeddings: Stack → the encoding that acts on its embeddings, if there is one.
        max_positions: The longest context that the config states, None if it has no such number.
        original_max_positions: The length the frequencies were trained at.
        read: What was read, from which key.
        warnings: Contradictions, and settings without effect.
    """

    family: str
    model_type: str
    layers: tuple[LayerPlan, ...]
    embeddings: Mapping[str, PositionEncoding] = field(default_factory=lambda: MappingProxyType({}))
    max_positions: int | None = None
    original_max_positions: int | None = None
    read: tuple[Reading, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def encoding(self) -> PositionEncoding:
        """The model's only encoding: of all layers, or of the embeddings.

        Raises:
            ConfigError: Layers differ, or there is an encoding in the layers and one before them.
        """
        found = list(dict.fromkeys([*self.embeddings.values(), *(x.encoding for x in self.layers)]))
        acting = [encoding for encoding in found if type(encoding) is not NoPE]
        # Layers with and without a rotation differ; layers without one all have the encoding of the embeddings.
        mixed = not self.embeddings and len(acting) < len(found)
        if len(acting) > 1 or (acting and mixed):
            names = ", ".join(dict.fromkeys(type(x).__name__ for x in acting))
            raise refused(
                "encoding",
                "must be asked of plan.layers or plan.embeddings where they differ",
                f"{len(found)} ({names})",
                error=ConfigError,
            )
        return acting[0] if acting else NoPE()

    def groups(self) -> list[tuple[str, list[LayerPlan]]]:
        """Groups of equal layers, each with its title."""
        alike: dict[tuple[Any, ...], list[LayerPlan]] = {}
        encodings = {id(layer.encoding): layer.encoding for layer in self.layers}
        described = {key: describe_encoding(encoding) for key, encoding in encodings.items()}
        for layer in self.layers:
            rest = dataclasses.replace(layer, index=0, encoding=_NOTHING)
            alike.setdefault((described[id(layer.encoding)], rest), []).append(layer)
        stacks = Counter(layer.stack for layer in self.layers)
        found: list[tuple[str, list[LayerPlan]]] = []
        for layers in alike.values():
            stack = layers[0].stack
            whole = stacks[stack] == len(layers)
            indices = _ranges([layer.index for layer in layers])
            title = Text("all layers") if whole else Text("layers {layers}", layers=indices)
            if len(stacks) > 1:
                title = Text("{stack} {layers}", stack=Text(stack), layers=title)
            found.append((title, layers))
        return found

    def __repr__(self) -> str:
        lines = [f"{self.family} ({self.model_type}), {len(self.layers)} layers"]
        rows = [
            (f"{stack} embeddings" if len(self.embeddings) > 1 else "embeddings", describe_encoding(x))
            for stack, x in self.embeddings.items()
        ]
        rows += [(title, layers[0].describe()) for title, layers in self.groups()]
        if self.max_positions is not None:
            original = self.original_max_positions
            note = f", trained at {original}" if original not in (None, self.max_positions) else ""
            rows.append(("context", f"{self.max_positions}{note}"))
        rows += [("warning", warning) for warning in self.warnings]
        width = min(max((len(row[0]) for row in rows), default=0), 28)
        return "\n".join([*lines, *(f"  {name:<{width}}  {text}" for name, text in rows)])


def _ranges(numbers: list[int]) -> str:
    """``0–2, 4``: integers as ranges; beyond eight ranges, the others are only counted.

    Example:
        >>> _ranges([0, 1, 2, 4])
        '0–2, 4'
    """
    parts = []
    for _, run in itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        parts.append(f"{members[0]}–{members[-1]}" if len(members) > 1 else str(members[0]))
    if len(parts) > 8:
        return f"{', '.join(parts[:3])} … {parts[-1]} ({len(numbers)})"
    return ", ".join(parts)
