"""The runs of a comparison that count, and by name those that do not."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from .config import RunConfig
from .records import Metric, RunRecord, Sweep, read_runs

# What a line must have before anything is computed from it; the numbers may still be null.
_NEEDED = {
    "train": ("step", "loss", "grad_norm"),
    "validation": ("step", "loss"),
    "evaluation": ("length", "loss", "loss_error", "last_loss", "windowed_loss", "positions", "refused"),
    "baseline": ("loss",),
    "cost": ("parameters", "encoding_parameters", "tokens_per_second"),
}


class NothingToReport(ValueError):
    """A folder without a single finished run."""


@dataclass(frozen=True)
class Run:
    """A finished run whose record is whole."""

    config: RunConfig
    record: RunRecord

    @property
    def spec(self) -> str:
        return self.config.spec

    @property
    def seed(self) -> int:
        return self.config.seed

    def of_kind(self, kind: str) -> list[Metric]:
        return self.record.of_kind(kind)


@dataclass(frozen=True)
class LeftOut:
    """A folder under ``runs`` whose numbers are not used.

    Attributes:
        state: ``"unfinished"``, ``"damaged"``, or ``"foreign"`` for one that the comparison does not name.
    """

    name: str
    state: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} is {self.state}: {self.reason}"


@dataclass(frozen=True)
class Gathered:
    """A comparison, its sound runs in the order of its arms and seeds, and what was left out."""

    sweep: Sweep
    runs: tuple[Run, ...]
    left_out: tuple[LeftOut, ...]


def gather(directory: Path) -> Gathered:
    """Read every run of a comparison; one that cannot be trusted is named and not used.

    Raises:
        FileNotFoundError: The folder holds no comparison.
        ValueError: Its ``sweep.json`` cannot be read, or (`NothingToReport`) no run is finished.
    """
    try:
        sweep, records = read_runs(directory)
    except (AttributeError, KeyError, TypeError) as error:  # it parses, and is something else
        raise ValueError(
            f"{directory / 'sweep.json'} must be that of a comparison, cannot be read: {error!r}"
        ) from None
    runs: list[Run] = []
    left_out: list[LeftOut] = []
    for record in records:
        state, reason = record.state, record.reason
        if state == "finished" and (flaw := _flaw(record)):
            state, reason = "damaged", flaw
        if state == "finished" and record.config is not None:
            runs.append(Run(record.config, record))
        else:
            left_out.append(LeftOut(record.directory.name, state, reason))
    expected = {record.directory.name for record in records}
    found = sorted(path.name for path in (directory / "runs").glob("*") if path.is_dir())
    left_out += [
        LeftOut(name, "foreign", "sweep.json names no such run")
        for name in found
        if name not in expected
    ]
    if not runs:
        raise NothingToReport(f"{directory} has no finished run, of {len(records)} in its sweep.json")
    return Gathered(sweep, tuple(runs), tuple(left_out))


def _flaw(record: RunRecord) -> str:
    """What a line of the metrics lacks, or nothing."""
    for metric in record.metrics:
        for name in _NEEDED.get(metric["kind"], ()):
            if name not in metric:
                return f"a line of kind {metric['kind']} has no {name}"
            if name not in ("positions", "refused") and not _is_number(metric[name]):
                return f"{name} of a line of kind {metric['kind']} is no number, but {metric[name]!r}"
        for name, width in (("positions", 3), ("stretches", 2)):
            if not _is_table(metric.get(name, []), width):
                return f"{name} of a line of kind {metric['kind']} is no list of {width} numbers each"
    if not record.of_kind("evaluation"):
        return "it has no evaluation"
    return ""


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _is_table(value: object, width: int) -> bool:
    """Whether something is a list of rows of so many numbers."""
    return isinstance(value, list) and all(
        isinstance(row, list) and len(row) == width and all(map(_is_number, row)) for row in value
    )


def finite(value: object) -> float | None:
    """A number that can be averaged, or None for null, NaN and infinity."""
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
