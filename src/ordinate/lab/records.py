"""What a comparison leaves on disk, and how it is read back.

A comparison is a directory; everything the report says is computed from it::

    OUT/
      sweep.json                  command line, arms, seeds, settings all runs share
      failures.log                why runs failed or were lost, for people, with names of hosts; nothing reads it
      runs/<spec>-<seed>/
        config.json               RunConfig
        environment.json          a list: versions and machine, no names of hosts or users, and one more
                                  entry with ``from_step`` for every place the run went on at
        metrics.jsonl             one JSON object a line, appended as they come
        checkpoint.safetensors    weights, optimizer, step, and how many lines of the metrics it stands
                                  for with their SHA-256; removed when the run is over
        model.safetensors         the trained weights, of finished runs
        result.json               written last: how it ended, a summary, and every file's SHA-256

The kinds of lines in ``metrics.jsonl``::

    {"kind": "baseline", "name": str, "loss", "accuracy"}   what is reached without a model: "byte bigram", "guessing"
    {"kind": "train", "step", "loss", "grad_norm", "learning_rate", "tokens", "seconds"}
    {"kind": "validation", "step", "loss"}
    {"kind": "cost", "parameters", "encoding_parameters", "tokens_per_second", "peak_memory_bytes",
                     "operations", "bytes"}
    {"kind": "evaluation", "extension", "length", "loss", "last_loss", "windowed_loss", "gain", "accuracy",
                           "last_accuracy", "loss_error", "last_error", "gain_error", "accuracy_error",
                           "last_accuracy_error", "refused",
                           "positions": [[start, stop, loss, error], …], "stretches": [loss, …],
                           "variants": {name: [accuracy, error], …}}

``loss`` is in nats per token, an ``error`` is a standard error. ``stretches`` has the loss of every
stretch of the text, the same stretches at all lengths, so that differences can be told from pairs.
``windowed_loss`` is that of the control, every so many targets each with exactly the last training length
of tokens; ``gain`` is how much lower the loss of the same targets is, of those that see more than that;
``last_loss`` and ``positions`` are the control's loss plus what the same targets differ from it by.
Other tasks have no control, and these are means like any other. ``last_accuracy`` is that of the last tokens, or
``accuracy`` where only whole answers count; records of format 2 do not have it. ``refused`` is the sentence with which
the encoding declined a length, and the numbers beside it are then null.
``seconds`` and ``tokens_per_second`` are the only values that differ between two runs of one config on
one machine.

Files are written whole or not at all (a temporary file, fsync, rename); only ``metrics.jsonl`` grows.
A run without ``result.json`` is unfinished. One that is over is ``finished``, or ``diverged``: training gave
a loss or a gradient that is no number, which is a result too, but has no place in a mean. A run is
damaged when a file does not have its recorded SHA-256 or its lines are not those of its config
(`record_checks`); or, while it is unfinished, when the lines its checkpoint stands for are not the lines on
disk. A damaged run is named and run again, and never averaged in. Weights may be deleted to save room:
nothing is computed from them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from ..files import disk_full_named, write_file
from .config import RunConfig, distinct_specs, run_names
from .record_checks import check_environments, check_lines, check_result
from .strict_json import LARGEST_METRICS, as_json, parse, read_bytes, read_json, sha256_of

Metric = dict[str, Any]
#: Runs of one comparison.
MOST_RUNS = 10_000


def write_json(path: Path, value: Any) -> None:
    write_file(path, as_json(value, path.name))


@dataclass(frozen=True)
class Sweep:
    """One comparison: every arm with every seed, under the same settings.

    Checked whole: everything else is computed from it, and what is planned can be read back from its ``sweep.json``.

    Raises:
        ValueError, TypeError: It is not that of a comparison, or is of another version.
    """

    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    settings: dict[str, Any]
    command: str = ""
    version: str = ""

    def __post_init__(self) -> None:
        for name in ("command", "version"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} must be text, got {getattr(self, name)!r:.60}")
        shlex.split(self.command)  # as it is taken apart to be gone on with
        if len(self.arms) * len(self.seeds) > MOST_RUNS:
            raise ValueError(
                f"arms times seeds must be at most {MOST_RUNS} runs, "
                f"got {len(self.arms)} times {len(self.seeds)}"
            )
        if not self.arms or len(distinct_specs(self.arms)) != len(self.arms):
            raise ValueError(f"arms must be different encodings, got {list(self.arms)!r:.200}")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds must be different numbers, got {list(self.seeds)!r:.200}")
        self.configs()  # whose fields are checked one by one
        self.to_json()

    def configs(self) -> list[RunConfig]:
        """The runs, one seed after the other, so that an early end leaves whole comparisons."""
        of_seeds = (
            RunConfig.from_dict({"spec": self.arms[0], "seed": seed, **self.settings})
            for seed in self.seeds
        )
        return [dataclasses.replace(config, spec=spec) for config in of_seeds for spec in self.arms]

    def directory(self, out: Path, config: RunConfig) -> Path:
        """Where a run of this comparison keeps its records."""
        return out / "runs" / self._names[config.spec, config.seed]

    @cached_property
    def _names(self) -> dict[tuple[str, int], str]:
        return run_names(self.arms, self.seeds)

    def to_json(self) -> bytes:
        """What its ``sweep.json`` holds."""
        return as_json(
            {
                "format": self.settings["format"], "version": self.version, "command": self.command,
                "arms": list(self.arms), "seeds": list(self.seeds), "settings": self.settings,
            },
            "sweep.json",
        )  # fmt: skip

    def save(self, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        write_file(out / "sweep.json", self.to_json())

    @classmethod
    def load(cls, out: Path) -> Sweep:
        """Read ``out/sweep.json``.

        Raises:
            FileNotFoundError: There is none.
            ValueError: It cannot be read, or is of another version.
        """
        path = out / "sweep.json"
        if not os.path.lexists(path):
            raise FileNotFoundError(f"{out} must hold a comparison, got a folder without sweep.json")
        try:
            return cls.from_dict(read_json(path))
        except _DAMAGE as error:
            raise ValueError(
                f"{path} must be that of a comparison, cannot be read: {_told(error)}"
            ) from None

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Sweep:
        """From what is in a ``sweep.json``.

        Raises:
            ValueError, KeyError, TypeError: It is not that of a comparison, or is of another version.
        """
        sweep = cls(
            tuple(values["arms"]), tuple(values["seeds"]), dict(values["settings"]),
            values["command"], values["version"],
        )  # fmt: skip
        if values["format"] != sweep.settings["format"]:
            raise ValueError(f"format must be that of its settings, got {values['format']!r:.60}")
        return sweep


@dataclass(frozen=True)
class RunRecord:
    """What is on disk of one run; its numbers count only when it is finished.

    Attributes:
        reason: Why it is unfinished or damaged, or how it diverged.
        environments: Where it ran: one description, and one more for every change after an interruption.
    """

    directory: Path
    state: Literal["finished", "diverged", "unfinished", "damaged"]
    reason: str = ""
    config: RunConfig | None = None
    environments: tuple[dict[str, Any], ...] = ()
    metrics: tuple[Metric, ...] = ()
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether nothing is left to do."""
        return self.state in ("finished", "diverged")

    def of_kind(self, kind: str) -> list[Metric]:
        """The lines of one kind, in the order they came."""
        return [metric for metric in self.metrics if metric["kind"] == kind]


def read_run(directory: Path, expected: RunConfig | None = None) -> RunRecord:
    """Read a run's folder; never raises for what it finds there.

    Args:
        expected: Its config must be this one, or the record is damaged.
    """
    if os.path.lexists(directory) and not os.path.isdir(directory):
        return RunRecord(directory, "damaged", "it must be a folder, got a file or a link to nothing")
    if not os.path.lexists(directory / "result.json"):
        return RunRecord(directory, "unfinished", "it has no result.json")
    try:
        result = read_json(directory / "result.json")
        check_result(result)
        for name in ("config.json", "environment.json", "metrics.jsonl"):
            check_file(directory / name, result["sha256"])
        config = RunConfig.from_dict(read_json(directory / "config.json"))
        if expected is not None and config != expected:
            return RunRecord(directory, "damaged", "config.json is of another run")
        environments = read_json(directory / "environment.json")
        check_environments(environments)
        metrics = tuple(parse_metrics(read_bytes(directory / "metrics.jsonl")))
        state, reason = result["state"], result["reason"]
        check_lines(config, metrics, finished=state == "finished")
        if os.path.lexists(weights := directory / "model.safetensors"):  # they may be deleted
            largest = 4 * max(line["parameters"] for line in metrics if line["kind"] == "cost")
            check_file(weights, result["sha256"], int(largest) + (1 << 20))
    except _DAMAGE as error:
        return RunRecord(directory, "damaged", _told(error))
    return RunRecord(directory, state, reason, config, tuple(environments), metrics, result)


def remove_run(directory: Path) -> None:
    """Make room for a damaged run to be done again; what a link points to stays as it is."""
    if directory.is_symlink() or not directory.is_dir():
        directory.unlink()
    else:
        shutil.rmtree(directory)


def check_file(path: Path, digests: dict[str, str], largest: int = LARGEST_METRICS) -> None:
    """A file must be the one that ``result.json`` was made of.

    Raises:
        ValueError: It is not, or cannot be read.
    """
    if digests[path.name] != sha256_of(path, largest):
        raise ValueError(f"{path.name} is not the file result.json was made of")


# What reading and checking values of any kind may raise.
_DAMAGE = (ValueError, KeyError, TypeError, RecursionError, OverflowError)


def _told(error: Exception) -> str:
    """One line, and not a long one."""
    told = " ".join(str(error).split())[:400]
    return told if isinstance(error, ValueError) else f"{type(error).__name__}: {told}"


def read_runs(out: Path) -> tuple[Sweep, list[RunRecord]]:
    """A comparison and every run it should have, finished or not."""
    sweep = Sweep.load(out)
    return sweep, [read_run(sweep.directory(out, config), config) for config in sweep.configs()]


def parse_metrics(content: bytes) -> Iterator[Metric]:
    """The objects of a ``metrics.jsonl``.

    Raises:
        ValueError: A line is not a JSON object with a kind, or the last one has no end.
    """
    if content and not content.endswith(b"\n"):
        raise ValueError("metrics.jsonl must end with a whole line")
    for number, line in enumerate(content.splitlines(), 1):
        value = parse(line, f"line {number} of metrics.jsonl")
        if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
            raise ValueError(f"line {number} of metrics.jsonl must be an object with a kind")
        yield value


@dataclass(frozen=True)
class MetricsPrefix:
    """The first lines of a ``metrics.jsonl``: how many, and their SHA-256."""

    lines: int = 0
    sha256: str = hashlib.sha256().hexdigest()


def prefix_lines(path: Path, mark: MetricsPrefix) -> bytes:
    """The lines that a checkpoint stands for; what was written after them comes again.

    Raises:
        ValueError: They are not there as they were written.
    """
    content = read_bytes(path) if os.path.lexists(path) else b""
    lines = content.splitlines(keepends=True)[: mark.lines]
    if hashlib.sha256(b"".join(lines)).hexdigest() != mark.sha256:
        raise ValueError(
            f"{path.name} must begin with the {mark.lines} lines its checkpoint stands for, got others"
        )
    return b"".join(lines)


class MetricsFile:
    """The growing ``metrics.jsonl`` of a run in progress.

    Opened after an interruption it keeps the lines that a checkpoint stands for, and forgets those
    written after it, for they will come again.
    """

    def __init__(self, path: Path, mark: MetricsPrefix | None = None) -> None:
        kept = prefix_lines(path, mark or MetricsPrefix())
        self.path = path
        self.metrics = list(parse_metrics(kept))
        self._digest = hashlib.sha256(kept)
        write_file(path, kept)
        self._file = path.open("ab", buffering=0)

    def append(self, **metric: Any) -> None:
        line = as_json(metric, "a line of metrics.jsonl", indent=None, largest=LARGEST_METRICS)
        left, size = memoryview(line), self._file.tell()
        with disk_full_named(self.path):
            try:
                while left:  # a disk that is almost full takes a part
                    left = left[self._file.write(left) :]
            except OSError:
                self._file.truncate(size)  # a line is there or it is not
                raise
        self.metrics.append(metric)
        self._digest.update(line)

    def of_kind(self, kind: str) -> list[Metric]:
        return [metric for metric in self.metrics if metric["kind"] == kind]

    def prefix(self) -> MetricsPrefix:
        """All lines so far, which are on the disk by then: a checkpoint is never ahead of its metrics."""
        with disk_full_named(self.path):
            os.fsync(self._file.fileno())
        return MetricsPrefix(len(self.metrics), self._digest.hexdigest())

    def close(self) -> None:
        self._file.close()
