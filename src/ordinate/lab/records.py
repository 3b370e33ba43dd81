"""The records of a comparison on disk, and the functions that read them.

A comparison is a directory; the report is computed from it alone::

    OUT/
      sweep.json                  command line, arms, seeds, settings all runs share
      failures.log                why runs failed or were lost, with names of hosts, for users
      runs/<spec>-<seed>/
        config.json               RunConfig
        environment.json          a list: versions and machine, no names of hosts or users, and one more
                                  entry with ``from_step`` for every machine that continued the run
        metrics.jsonl             one JSON object a line, appended during the run
        checkpoint.safetensors    weights, optimizer, step, and the number of lines of the metrics up to
                                  that step with their SHA-256; removed when the run is over
        model.safetensors         the trained weights, of finished runs
        result.json               written last: how it ended, a summary, and every file's SHA-256

The kinds of lines in ``metrics.jsonl``::

    {"kind": "baseline", "name": str, "loss", "accuracy"}   the result without a model: "byte bigram", "guessing"
    {"kind": "train", "step", "loss", "grad_norm", "learning_rate", "tokens", "seconds"}
    {"kind": "validation", "step", "loss"}
    {"kind": "cost", "parameters", "encoding_parameters", "tokens_per_second", "peak_memory_bytes",
                     "operations", "bytes"}
    {"kind": "evaluation", "extension", "length", "loss", "last_loss", "windowed_loss", "gain", "accuracy",
                           "last_accuracy", "loss_error", "last_error", "gain_error", "accuracy_error",
                           "last_accuracy_error", "refused",
                           "positions": [[start, stop, loss, error], …], "stretches": [loss, …],
                           "variants": {name: [accuracy, error], …}}

``loss`` is in nats per token, an ``error`` is a standard error. ``stretches`` has the loss of every stretch of the
text, the same stretches at all lengths, so that differences are computed from pairs. The control predicts every n-th
target from exactly the last training length of tokens. ``windowed_loss`` is the control's loss; ``gain`` is how much
lower the loss of the same targets is if the model sees more tokens; ``last_loss`` and ``positions`` are the control's
loss plus the difference of the same targets from it. Other tasks have no control; there these are plain means.
``last_accuracy`` is the accuracy of the last tokens, or ``accuracy`` if only complete answers count; format 2 does
not have it. ``refused`` is the encoding's error for a length; all numbers of the line are then null.
``seconds`` and ``tokens_per_second`` are the only values that differ between two runs of one config on one machine.

Files are written atomically (a temporary file, fsync, rename); only ``metrics.jsonl`` grows. A run without
``result.json`` is unfinished. A run that is over is ``finished``, or ``diverged``: training gave a loss or a gradient
that is NaN or infinite. Divergence is a result too, but no mean includes it. A run is damaged if a file does not have
its recorded SHA-256 or its lines do not match its config (`record_checks`); or, while it is unfinished, if the lines on
disk are not those before its checkpoint. A damaged run is named and run again, and never averaged. Users may delete
weights to save space: nothing is computed from them.
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

from ..checks import refused, short
from ..files import disk_full_named, write_file
from ..text import Text
from .config import RunConfig, distinct_specs, run_names
from .formats import one_line
from .record_checks import check_environments, check_lines, check_result
from .strict_json import LARGEST_METRICS, as_json, parse, read_bytes, read_json, sha256_of

Metric = dict[str, Any]
#: The most runs of one comparison.
MOST_RUNS = 10_000


def write_json(path: Path, value: Any) -> None:
    write_file(path, as_json(value, path.name))


@dataclass(frozen=True)
class Sweep:
    """One comparison: every arm with every seed, under the same settings.

    The constructor checks all of it, so that its ``sweep.json`` can be read again.

    Raises:
        ValueError, TypeError: A field is invalid, or of another version.
    """

    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    settings: dict[str, Any]
    command: str = ""
    version: str = ""

    def __post_init__(self) -> None:
        for name in ("command", "version"):
            if not isinstance(getattr(self, name), str):
                raise refused(name, "must be text", short(getattr(self, name)))
        shlex.split(self.command)  # must not fail later, in ``--resume``
        if len(self.arms) * len(self.seeds) > MOST_RUNS:
            raise refused(
                Text("arms times seeds"),
                "must be at most {most} runs",
                Text("{arms} times {seeds}", arms=len(self.arms), seeds=len(self.seeds)),
                most=MOST_RUNS,
            )
        if not self.arms or len(distinct_specs(self.arms)) != len(self.arms):
            raise refused("arms", "must be different encodings", short(list(self.arms)))
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise refused("seeds", "must be different numbers", short(list(self.seeds)))
        self.configs()  # checks every field
        self.to_json()

    def configs(self) -> list[RunConfig]:
        """The runs ordered by seed, so that a comparison that is stopped has complete seeds."""
        of_seeds = (
            RunConfig.from_dict({"spec": self.arms[0], "seed": seed, **self.settings})
            for seed in self.seeds
        )
        return [dataclasses.replace(config, spec=spec) for config in of_seeds for spec in self.arms]

    def directory(self, out: Path, config: RunConfig) -> Path:
        """The folder of a run's records."""
        return out / "runs" / self._names[config.spec, config.seed]

    @cached_property
    def _names(self) -> dict[tuple[str, int], str]:
        return run_names(self.arms, self.seeds)

    def to_json(self) -> bytes:
        """The content of its ``sweep.json``."""
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
            FileNotFoundError: The file does not exist.
            ValueError: It cannot be read, or is of another version.
        """
        path = out / "sweep.json"
        if not os.path.lexists(path):
            raise refused(
                str(out),
                "must hold a comparison",
                Text("a folder without sweep.json"),
                error=FileNotFoundError,
            )
        try:
            return cls.from_dict(read_json(path))
        except _DAMAGE as error:
            raise refused(
                str(path),
                "must be that of a comparison, cannot be read: {reason}",
                reason=one_line(error, ValueError),
            ) from None

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Sweep:
        """From the values in a ``sweep.json``.

        Raises:
            ValueError, KeyError, TypeError: The values are invalid, or of another version.
        """
        sweep = cls(
            tuple(values["arms"]), tuple(values["seeds"]), dict(values["settings"]),
            values["command"], values["version"],
        )  # fmt: skip
        if values["format"] != sweep.settings["format"]:
            raise refused("format", "must be that of its settings", short(values["format"]))
        return sweep


@dataclass(frozen=True)
class RunRecord:
    """The records of one run on disk; its numbers count only when it is finished.

    Attributes:
        reason: Why it is unfinished or damaged, or how it diverged.
        environments: The machines it ran on: one description, plus one for every change after an interruption.
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
        """Whether the run is finished or diverged."""
        return self.state in ("finished", "diverged")

    def of_kind(self, kind: str) -> list[Metric]:
        """The lines of one kind, in their order."""
        return [metric for metric in self.metrics if metric["kind"] == kind]


def read_run(directory: Path, expected: RunConfig | None = None) -> RunRecord:
    """Read a run's folder; raises no error for damaged contents.

    Args:
        expected: The config that the run must have; otherwise the record is damaged.
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
        if os.path.lexists(weights := directory / "model.safetensors"):  # the user may have deleted them
            largest = 4 * max(line["parameters"] for line in metrics if line["kind"] == "cost")
            check_file(weights, result["sha256"], int(largest) + (1 << 20))
    except _DAMAGE as error:
        return RunRecord(directory, "damaged", one_line(error, ValueError))
    return RunRecord(directory, state, reason, config, tuple(environments), metrics, result)


def remove_run(directory: Path) -> None:
    """Remove a damaged run, so that it can run again; does not follow links."""
    if directory.is_symlink() or not directory.is_dir():
        directory.unlink()
    else:
        shutil.rmtree(directory)


def check_file(path: Path, digests: dict[str, str], largest: int = LARGEST_METRICS) -> None:
    """Check that a file has the SHA-256 that ``result.json`` recorded.

    Raises:
        ValueError: The SHA-256 differs, or the file cannot be read.
    """
    if digests[path.name] != sha256_of(path, largest):
        raise refused(path.name, "is not the file result.json was made of")


# The errors that reading and checking damaged values may raise.
_DAMAGE = (ValueError, KeyError, TypeError, RecursionError, OverflowError)


def read_runs(out: Path) -> tuple[Sweep, list[RunRecord]]:
    """A comparison and all of its runs, finished or not."""
    sweep = Sweep.load(out)
    return sweep, [read_run(sweep.directory(out, config), config) for config in sweep.configs()]


def parse_metrics(content: bytes) -> Iterator[Metric]:
    """The objects of a ``metrics.jsonl``.

    Raises:
        ValueError: A line is not a JSON object with a kind, or the last line is incomplete.
    """
    if content and not content.endswith(b"\n"):
        raise refused("metrics.jsonl", "must end with a whole line")
    for number, line in enumerate(content.splitlines(), 1):
        value = parse(line, f"line {number} of metrics.jsonl")
        if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
            raise refused(
                Text("line {number} of metrics.jsonl", number=number), "must be an object with a kind"
            )
        yield value


@dataclass(frozen=True)
class MetricsPrefix:
    """The number of the first lines of a ``metrics.jsonl``, and their SHA-256."""

    lines: int = 0
    sha256: str = hashlib.sha256().hexdigest()


def read_prefix(path: Path, prefix: MetricsPrefix) -> bytes:
    """The lines written before a checkpoint was saved; the run will write later lines again.

    Raises:
        ValueError: The lines are absent or changed.
    """
    content = read_bytes(path) if os.path.lexists(path) else b""
    lines = b"".join(content.splitlines(keepends=True)[: prefix.lines])
    if hashlib.sha256(lines).hexdigest() != prefix.sha256:
        raise refused(
            path.name,
            "must begin with the {count} lines its checkpoint stands for",
            Text("others"),
            count=prefix.lines,
        )
    return lines


class MetricsFile:
    """The ``metrics.jsonl`` of a run in progress, to which lines are appended.

    After an interruption it starts with the lines written before the checkpoint; later lines are removed, because the
    run will write them again.
    """

    def __init__(self, path: Path, prefix: MetricsPrefix | None = None) -> None:
        lines = read_prefix(path, prefix or MetricsPrefix())
        self.path = path
        self.metrics = list(parse_metrics(lines))
        self._digest = hashlib.sha256(lines)
        write_file(path, lines)
        self._file = path.open("ab", buffering=0)

    def append(self, **metric: Any) -> None:
        line = as_json(metric, "a line of metrics.jsonl", indent=None, largest=LARGEST_METRICS)
        left, size = memoryview(line), self._file.tell()
        with disk_full_named(self.path):
            try:
                while left:  # on an almost full disk, `write` writes only a part
                    left = left[self._file.write(left) :]
            except OSError:
                self._file.truncate(size)  # remove the incomplete line
                raise
        self.metrics.append(metric)
        self._digest.update(line)

    def of_kind(self, kind: str) -> list[Metric]:
        return [metric for metric in self.metrics if metric["kind"] == kind]

    def prefix(self) -> MetricsPrefix:
        """Sync all lines so far to disk and return their prefix: a checkpoint is never ahead of its metrics."""
        with disk_full_named(self.path):
            os.fsync(self._file.fileno())
        return MetricsPrefix(len(self.metrics), self._digest.hexdigest())

    def close(self) -> None:
        self._file.close()
