"""Reads the runs of a comparison: those whose numbers are used, and the names of the others."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...checks import refused
from .. import formats
from ..config import RunConfig
from ..records import Metric, RunRecord, Sweep, read_runs


class NothingToReport(ValueError):
    """A folder without a single finished run.

    Attributes:
        all_diverged: Whether every run diverged, so that no run can be resumed.
    """

    def __init__(self, sentence: str, all_diverged: bool) -> None:
        super().__init__(sentence)
        self.all_diverged = all_diverged


@dataclass(frozen=True)
class Run:
    """A run that has ended and whose record is complete; a run that diverged has no evaluations."""

    config: RunConfig
    record: RunRecord

    @property
    def spec(self) -> str:
        return self.config.spec

    @property
    def seed(self) -> int:
        return self.config.seed

    @property
    def diverged(self) -> bool:
        return self.record.state == "diverged"

    def of_kind(self, kind: str) -> list[Metric]:
        return self.record.of_kind(kind)


@dataclass(frozen=True)
class LeftOut:
    """A folder under ``runs`` whose numbers are not used.

    Attributes:
        state: ``"unfinished"``, ``"damaged"``, or ``"foreign"`` for a folder that the comparison does not name.
    """

    name: str
    state: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} is {self.state}: {self.reason}"


@dataclass(frozen=True)
class Gathered:
    """A comparison, its complete runs in the order of the seeds, and the runs that were left out."""

    sweep: Sweep
    runs: tuple[Run, ...]
    left_out: tuple[LeftOut, ...]


def gather(directory: Path) -> Gathered:
    """Read every run of a comparison; a run that is damaged or unfinished is named and not used.

    Raises:
        FileNotFoundError: The folder holds no comparison.
        ValueError: Its ``sweep.json`` cannot be read, or (`NothingToReport`) no run is finished.
    """
    sweep, records = read_runs(directory)
    runs = [Run(one.config, one) for one in records if one.over and one.config is not None]
    left_out = [
        LeftOut(one.directory.name, one.state, one.reason)
        for one in records
        if not one.over or one.config is None
    ]
    expected = {record.directory.name for record in records}
    left_out += [
        LeftOut(name, "foreign", "sweep.json names no such run")
        for name in _folders(directory / "runs")
        if name not in expected
    ]
    diverged = sum(run.diverged for run in runs)
    if diverged == len(runs):
        raise refused(
            "",
            "{directory} has no finished run, of {runs} in its sweep.json",
            error=partial(NothingToReport, all_diverged=diverged == len(records)),
            advice="; {diverged} diverged" if diverged else "",
            directory=str(directory),
            runs=len(records),
            diverged=diverged,
        )
    return Gathered(sweep, tuple(runs), tuple(left_out))


def _folders(directory: Path) -> list[str]:
    """The names of the folders in a folder."""
    try:
        names = [name for name in os.listdir(directory) if os.path.isdir(directory / name)]
    except OSError:  # it does not exist or cannot be read
        return []
    return sorted(map(formats.writable, names))
