"""The parts of an encoding: the hooks they override, the sizes they were made for, their entries in the catalog."""

from __future__ import annotations

from typing import Any

from torch import nn

from .encoding import Along, Combined, PositionEncoding
from .entries import entry_of
from .entry import Entry

HOOKS = ("embed", "rotate", "bias")


def hooks_of(encoding: PositionEncoding) -> frozenset[str]:
    """The hooks an encoding overrides; of a combination and of what reads one axis, those of the parts."""
    if isinstance(encoding, Combined):
        return frozenset().union(*(hooks_of(part) for part in encoding.encodings))
    if isinstance(encoding, Along):
        return hooks_of(encoding.encoding)
    return frozenset(
        hook
        for hook in HOOKS
        # A hook may have been set on the instance alone.
        if getattr(getattr(encoding, hook), "__func__", None) is not getattr(PositionEncoding, hook)
    )


def acting_parts(encoding: PositionEncoding) -> list[PositionEncoding]:
    """The encoding itself, or the parts of a combination that have a hook, those of combinations in it too."""
    if isinstance(encoding, Combined):
        return [part for inner in encoding.encodings for part in acting_parts(inner)]
    return [encoding] if hooks_of(encoding) else []


def axes_of(encoding: PositionEncoding) -> int:
    """How many coordinates of a position all of its parts take."""
    return min((part.axes for part in acting_parts(encoding)), default=1)


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


def part_with(encoding: PositionEncoding, kind: str) -> Any:
    """The first part of an encoding whose entry in the catalog names a kind of picture; None if no part does."""
    for part in encoding.modules():
        entry = entry_of(part)
        if entry is not None and kind in entry.pictures:
            return part
    return None


def entries_of(encoding: PositionEncoding) -> list[Entry]:
    """The entries of an encoding, of its scaling and of its parts, as far as they are in the catalog."""
    found = (
        entry_of(one) for part in encoding.modules() for one in (part, getattr(part, "scaling", None))
    )
    return [entry for entry in found if entry is not None]


def name_of(encoding: PositionEncoding) -> str:
    """The class of an encoding; the classes of its parts, with a plus between them."""
    if isinstance(encoding, Combined):
        return " + ".join(map(name_of, encoding.encodings)) or "Combined()"
    return "NoPE" if type(encoding) is PositionEncoding else type(encoding).__name__
