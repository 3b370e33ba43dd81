"""Every kind of picture by name: what it draws, and which encodings have it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..encoding import Combined, PositionEncoding
from ..entries import entry_of
from ..parts import hooks_of, part_with
from ..setting import Setting
from ..verification.spectrum import declared_frequencies
from . import attention, biases, codes, rotations, scores
from .pictures import Picture


@dataclass(frozen=True)
class Kind:
    """One kind of picture.

    Attributes:
        applies: Whether an encoding has it.
        picks: The one of the options ``channels``, ``pairs``, ``at``, ``factor`` and ``text`` that it reads.
    """

    name: str
    about: str
    draw: Callable[[PositionEncoding, Setting, str], Picture]
    applies: Callable[[PositionEncoding], bool]
    picks: str | None = None


def _has(hook: str) -> Callable[[PositionEncoding], bool]:
    return lambda encoding: hook in hooks_of(encoding)


def _special(kind: str) -> Callable[[PositionEncoding], bool]:
    return lambda encoding: part_with(encoding, kind) is not None


_KINDS = (
    Kind("codes", "the code of each position as a map", codes.code_map, _has("embed")),
    Kind("channels", "some channels of the code along the positions", codes.channels, _has("embed"), "channels"),
    Kind("profile", "the code of some positions across channels", codes.profile, _has("embed"), "at"),
    Kind("rotation", "pairs turning in the plane; moves in html", rotations.plane, _special("rotation"), "pairs"),
    Kind("waves", "the cosines of some pairs along the positions", rotations.waves, _special("waves"), "pairs"),
    Kind("wavelengths", "the wavelength of each pair beside the training length", rotations.wavelengths,
         lambda encoding: declared_frequencies(encoding) is not None),
    Kind("scalings", "wavelengths under linear, NTK, YaRN and Llama 3, side by side", rotations.scalings,
         _special("scalings"), "factor"),
    Kind("bias", "the matrix each head adds to the scores", biases.matrices, _has("bias")),
    Kind("distance", "what each head adds, by distance", biases.by_distance, _has("bias")),
    Kind("slopes", "ALiBi's slope of each head", biases.slopes, _special("slopes")),
    Kind("buckets", "the bucket or row of each query and key", biases.buckets, _special("buckets")),
    Kind("scores", "score against distance", scores.scores, lambda encoding: True),
    Kind("attention", "attention before and after shuffling words", attention.experiment, lambda encoding: True,
         "text"),
)  # fmt: skip

#: Name → `Kind`.
KINDS: Mapping[str, Kind] = MappingProxyType({kind.name: kind for kind in _KINDS})


def kinds_of(encoding: PositionEncoding) -> list[str]:
    """The names of the pictures an encoding has, in the order of `KINDS`.

    Example:
        >>> kinds_of(ordinate.ALiBi(8))
        ['bias', 'distance', 'slopes', 'scores', 'attention']
    """
    return [kind.name for kind in _KINDS if kind.applies(encoding)]


def default_kind(encoding: PositionEncoding) -> str:
    """The picture to draw when none is asked for."""
    if getattr(encoding, "scaling", None) is not None:
        return "wavelengths"
    if isinstance(encoding, Combined):
        return "scores"
    entry = entry_of(encoding)
    preferred = entry.pictures if entry else ()
    return next(name for name in (*preferred, "codes", "bias", "scores") if name in kinds_of(encoding))
