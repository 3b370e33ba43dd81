"""What verification returns: measured figures, and what they mean for the encoding's claims."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ..setting import Setting

#: What no measurement covers.
NOT_TRIED = (
    "rows of more than 4,096 tokens",
    "positions below 0 or beyond 1,048,576",
    "most positions and distances beyond 4,096",
    "other numbers of heads or channels",
    "most numbers of rows and tokens",
    "most dtypes of positions",
    "most combinations of dtypes, rows, lengths and key heads",
    "queries and keys of two dtypes",
    "large tokens, but by rotations that claim norm preservation",
    "gradients below float32 or in rows of more than 33 tokens",
    "autocast to other dtypes than bfloat16",
    "a change at the hundredth call or later",
    "what other instances leave behind",
    "most of the state of the process",
    "several threads",
    "devices other than the CPU",
    "compilers",
    "second derivatives",
    "forward-mode gradients and torch.func",
)


class Status(StrEnum):
    """What a measurement means for an encoding."""

    HOLDS = "holds"
    FAILS = "fails"
    NOT_CLAIMED = "not claimed"
    NOT_APPLICABLE = "not applicable"

    @property
    def mark(self) -> str:
        return {"holds": "✓", "fails": "✗", "not claimed": "·", "not applicable": "–"}[self.value]


class NotApplicable(Exception):
    """Raised by a measurement that has nothing to measure; the message says why."""


class BrokenAnswer(Exception):
    """Raised where a hook returned what no hook may return; the message says what."""


@dataclass(frozen=True)
class Measurement:
    """One figure: a number, its unit and its sentence.

    Attributes:
        holds: Whether the encoding has the property; a claim is judged by it.
        sentence: With ``{}`` where the number goes.
    """

    holds: bool
    value: float
    unit: str
    sentence: str


@dataclass(frozen=True)
class VerifyResult:
    """One property of one encoding.

    Attributes:
        name: The property.
        holds: What was measured, claimed or not; None, as `value`, where nothing could be.
        sentence: With ``{}`` where the value goes, or the reason there is none.
    """

    name: str
    status: Status
    holds: bool | None
    value: float | None
    unit: str
    sentence: str

    @property
    def figure(self) -> str:
        """The measurement as one short line."""
        return figure_of([self])

    def to_dict(self) -> dict[str, Any]:
        finite = self.value is not None and math.isfinite(self.value)
        return {
            "property": self.name,
            "status": self.status.value,
            "holds": self.holds,
            "value": self.value if finite else None,
            "unit": self.unit,
            "figure": self.figure,
        }


@dataclass(frozen=True)
class VerifyReport(Sequence[VerifyResult]):
    """The results for one encoding; prints as a table.

    Attributes:
        answers: Whether the encoding answers at the sizes it was measured at.

    Example:
        >>> report = ordinate.verify(ordinate.RoPE(64))
        >>> report.ok, report["shift invariance"].status.value
        (True, 'holds')
    """

    name: str
    setting: Setting
    results: tuple[VerifyResult, ...]
    answers: bool = True

    @property
    def not_tried(self) -> tuple[str, ...]:
        """What no measurement covers: an encoding may be wrong there."""
        return NOT_TRIED

    @property
    def ok(self) -> bool:
        """Whether everything claimed or required of every encoding holds."""
        return not self.failures

    @property
    def failures(self) -> list[VerifyResult]:
        return [result for result in self.results if result.status is Status.FAILS]

    def __getitem__(self, key):
        if not isinstance(key, str):
            return self.results[key]
        return {result.name: result for result in self.results}[key]

    def __len__(self) -> int:
        return len(self.results)

    def __str__(self) -> str:
        left = max((len(result.name) for result in self.results), default=0)
        middle = max((len(result.status) for result in self.results), default=0)
        indent = " " * (left + middle + 6)
        lines = [f"{self.name}  ({self.setting})"]
        for result in self.results:
            head = f"{result.status.mark} {result.name:<{left}}  {result.status:<{middle}}  "
            lines += textwrap.wrap(
                head + result.figure, width=110, subsequent_indent=indent, break_on_hyphens=False
            )
        return "\n".join(
            [*lines, *(line for note in self.notes for line in textwrap.wrap(note, width=110))]
        )

    @property
    def notes(self) -> list[str]:
        """Remarks on the results."""
        sizes = ["It answers at no sizes that were tried: say num_heads, head_dim and d_model."]
        samples = f"Measured on samples. Not tried: {', '.join(self.not_tried)}."
        return [samples] if self.answers else [*sizes, samples]

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """The same, ready for JSON."""
        return {
            "name": self.name,
            "ok": self.ok,
            "setting": self.setting.to_dict(),
            "results": [result.to_dict() for result in self.results],
            "not_tried": list(self.not_tried),
        }


def figure_of(results: Sequence[VerifyResult]) -> str:
    """A figure, or the range of several that differ in nothing but their number."""
    values = [result.value for result in results if result.value is not None]
    if not values:
        return results[0].sentence
    low, high = short(min(values)), short(max(values))
    return results[0].sentence.replace("{}", low if low == high else f"{low} to {high}")


def short(value: float) -> str:
    """A number for a reader: integers in full, others with two or three digits.

    Example:
        >>> short(4096.0), short(0.123456), short(3.21e-16)
        ('4096', '0.123', '3.2e-16')
    """
    if value == 0 or (float(value).is_integer() and abs(value) < 1e9):
        return str(int(value))
    if abs(value) < 1e-3:
        return f"{value:.1e}"
    return f"{value:.0f}" if 1e3 <= abs(value) < 1e9 else f"{value:.3g}"
