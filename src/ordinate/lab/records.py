"""What a comparison leaves on disk, and how it is read back.

A comparison is a directory; everything the report says is computed from it::

    OUT/
      sweep.json                  command line, arms, seeds, settings all runs share
      runs/<spec>-<seed>/
        config.json               RunConfig
        environment.json          versions and machine, no names of hosts or users
        metrics.jsonl             one JSON object a line, appended as they come
        checkpoint.safetensors    weights, optimizer, step; removed when the run is finished
        model.safetensors         the trained weights, of finished runs
        result.json               written last: a summary, and the SHA-256 of metrics.jsonl

The kinds of lines in ``metrics.jsonl``::

    {"kind": "baseline", "name": str, "loss": float}        what is reached without a model: "byte bigram", "guessing"
    {"kind": "train", "step", "loss", "grad_norm", "learning_rate", "tokens", "seconds"}
    {"kind": "validation", "step", "loss"}
    {"kind": "cost", "parameters", "encoding_parameters", "tokens_per_second", "peak_memory_bytes",
                     "operations", "bytes"}
    {"kind": "evaluation", "extension", "length", "loss", "loss_error", "last_loss", "windowed_loss",
                           "positions": [[start, stop, loss], …], "stretches": [[loss, windowed], …],
                           "accuracy", "accuracy_error", "refused"}

``loss`` is in nats per token. ``stretches`` has the losses of every stretch of the text, the same
stretches at all lengths, so that differences can be told from pairs; other tasks have none. ``refused``
is the sentence with which the encoding declined a length, and the numbers beside it are then null.
``seconds`` and ``tokens_per_second`` are the only values that differ between two runs of one config on
one machine.

Files are written whole or not at all (a temporary file, fsync, rename); only ``metrics.jsonl`` grows.
A run without ``result.json`` is unfinished. One whose lines do not have the recorded SHA-256, or do
not parse, is damaged: it is named and run again, and never averaged in.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from .config import FORMAT, RunConfig, run_names

Metric = dict[str, Any]


class NoRoom(OSError):
    """The disk is full, or a quota is."""


@contextlib.contextmanager
def _finding_room(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise NoRoom(f"there is no room on disk for {path}") from None


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, also when the process or the machine stops in the middle."""
    with _finding_room(path):
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)  # mkstemp's files are private, records are not
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Sweep:
    """One comparison: every arm with every seed, under the same settings."""

    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    settings: dict[str, Any]
    command: str = ""
    version: str = ""
    format: int = FORMAT

    def configs(self) -> list[RunConfig]:
        """The runs, one seed after the other, so that an early end leaves whole comparisons."""
        return [
            RunConfig.from_dict({"spec": spec, "seed": seed, **self.settings})
            for seed in self.seeds
            for spec in self.arms
        ]

    def directory(self, out: Path, config: RunConfig) -> Path:
        """Where a run of this comparison keeps its records."""
        return out / "runs" / run_names(self.arms, self.seeds)[config.spec, config.seed]

    def save(self, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        write_json(
            out / "sweep.json",
            {
                "format": self.format, "version": self.version, "command": self.command,
                "arms": list(self.arms), "seeds": list(self.seeds), "settings": self.settings,
            },
        )  # fmt: skip

    @classmethod
    def load(cls, out: Path) -> Sweep:
        """Read ``out/sweep.json``.

        Raises:
            FileNotFoundError: There is none.
            ValueError: It cannot be read, or is of another version.
        """
        path = out / "sweep.json"
        if not path.is_file():
            raise FileNotFoundError(f"{out} must hold a comparison, got a folder without sweep.json")
        try:
            values = read_json(path)
            sweep = cls(
                tuple(values["arms"]), tuple(values["seeds"]), dict(values["settings"]),
                values["command"], values["version"], values["format"],
            )  # fmt: skip
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} must be a comparison's sweep.json, cannot be read: {error}"
            ) from None
        if sweep.format != FORMAT:
            raise ValueError(f"{path} must have format {FORMAT}, got {sweep.format!r}")
        return sweep


@dataclass(frozen=True)
class RunRecord:
    """What is on disk of one run; its numbers count only when it is finished."""

    directory: Path
    state: Literal["finished", "unfinished", "damaged"]
    reason: str = ""
    config: RunConfig | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    metrics: tuple[Metric, ...] = ()
    result: dict[str, Any] = field(default_factory=dict)

    def of_kind(self, kind: str) -> list[Metric]:
        """The lines of one kind, in the order they came."""
        return [metric for metric in self.metrics if metric["kind"] == kind]


def read_run(directory: Path, expected: RunConfig | None = None) -> RunRecord:
    """Read a run's folder; never raises for what it finds there.

    Args:
        expected: Its config must be this one, or the record is damaged.
    """
    if not (directory / "result.json").exists():
        return RunRecord(directory, "unfinished", "it has no result.json")
    try:
        config = RunConfig.from_dict(read_json(directory / "config.json"))
        environment = read_json(directory / "environment.json")
        result = read_json(directory / "result.json")
        content = (directory / "metrics.jsonl").read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        if digest != result["metrics_sha256"]:
            return RunRecord(
                directory, "damaged", "metrics.jsonl is not the file result.json was made of"
            )
        metrics = tuple(parse_metrics(content))
    except (OSError, ValueError, KeyError, TypeError) as error:
        return RunRecord(directory, "damaged", f"{type(error).__name__}: {error}")
    if expected is not None and config != expected:
        return RunRecord(directory, "damaged", "config.json is of another run")
    return RunRecord(directory, "finished", "", config, environment, metrics, result)


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
        value = json.loads(line)
        if not isinstance(value, dict) or "kind" not in value:
            raise ValueError(f"line {number} of metrics.jsonl must be an object with a kind")
        yield value


class MetricsFile:
    """The growing ``metrics.jsonl`` of a run in progress.

    Opened after an interruption it keeps the lines that a checkpoint stands for, and forgets those
    written after it, for they will come again.
    """

    def __init__(self, path: Path, keep: Callable[[Metric], bool]) -> None:
        self.path = path
        self.metrics = [metric for metric in _whole_lines(path) if keep(metric)]
        write_atomically(path, b"".join(_line(metric) for metric in self.metrics))
        self._file = path.open("ab", buffering=0)

    def append(self, **metric: Any) -> None:
        left, size = memoryview(_line(metric)), self._file.tell()
        with _finding_room(self.path):
            try:
                while left:  # a disk that is almost full takes a part
                    left = left[self._file.write(left) :]
            except OSError:
                self._file.truncate(size)  # a line is there or it is not
                raise
        self.metrics.append(metric)

    def of_kind(self, kind: str) -> list[Metric]:
        return [metric for metric in self.metrics if metric["kind"] == kind]

    def sync(self) -> None:
        """Bring every line to the disk: a checkpoint must never be ahead of its metrics."""
        with _finding_room(self.path):
            os.fsync(self._file.fileno())

    def digest(self) -> str:
        """The SHA-256 of all lines, which are on the disk by then."""
        self.sync()
        return hashlib.sha256(self.path.read_bytes()).hexdigest()

    def close(self) -> None:
        self._file.close()


def _line(metric: Metric) -> bytes:
    return (json.dumps(metric) + "\n").encode()


def _whole_lines(path: Path) -> Iterator[Metric]:
    """The lines before the first that was cut off or spoiled."""
    lines: Sequence[bytes] = path.read_bytes().splitlines(keepends=True) if path.exists() else ()
    for line in lines:
        try:
            yield from parse_metrics(line)
        except ValueError:
            return
