"""Runs on many machines: one Ray task per run, each with a lock; lost runs are sent again.

Storage is shared: ``out`` must be the same folder on every machine, as on one machine or with a network file
system. A checkpoint must outlive the machine that wrote it, and in a shared folder the worker that continues a lost
run finds its last checkpoint without copying. Each worker first checks that it sees the folder.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ordinate

from ...checks import refused
from ...entry import Entry
from ...extras import how_to_install
from ...text import Text
from .. import formats as words
from ..config import RunConfig
from ..records import Sweep, read_run
from ..strict_json import sha256_of
from . import checkpoint
from .failures import FILE, ClusterError, Failures, log_failure
from .progress import Progress
from .registered import register_missing, registered_entries
from .run_lock import last_host
from .sweep import begin
from .train import no_observers, train_and_evaluate
from .workers import Observers

#: How often a run is sent again after its worker was lost; after more losses the run itself is the likely cause.
RETRIES = 5

# Seconds between two readings of the records of runs in progress.
_POLL_SECONDS = 1.0

# Seconds in which runs that are stopped must save their checkpoints.
_STOPPING_SECONDS = 30.0

# The most runs that a line of progress names.
_RUNS_SHOWN = 4


@dataclass(frozen=True)
class Job:
    """One run, as sent to a worker.

    Attributes:
        sweep_sha256: Of ``sweep.json``; with it a worker checks that it sees the same folder.
        entries: Encodings that the worker may have to register.
    """

    config: RunConfig
    out: Path
    directory: Path
    sweep_sha256: str
    version: str
    entries: tuple[Entry, ...] = ()

    @property
    def name(self) -> str:
        return self.directory.name


def run_on_cluster(
    sweep: Sweep,
    out: Path,
    address: str = "auto",
    progress: Progress | None = None,
    *,
    observers: Observers = no_observers,
) -> dict[str, int]:
    """Do every run of a comparison that is not over on a Ray cluster.

    A run whose worker is lost is sent again and continues from its last checkpoint. A run that fails with an error
    does not stop the others; the first such error is raised when all are done. Ray's own messages go to
    ``out/failures.log``, except those that it prints from C++ when it ends this process.

    Args:
        out: The comparison's folder, on storage that all machines share.
        address: Of a running cluster; ``"auto"`` for this machine's cluster, or else a new one on this machine
            only.

    Returns:
        How often each run was sent to a worker: 0 for runs that were finished before.

    Raises:
        ClusterError: There is no cluster, it has no GPU where one is needed, a worker does not see
            ``out`` or has another version, or a run lost its worker too often.
    """
    ray = _import_ray()
    progress = progress or Progress()
    out = out.resolve()
    configs = {sweep.directory(out, config): config for config in sweep.configs()}
    waiting = {
        directory: config
        for directory, config in configs.items()
        if not read_run(directory, config).over
    }
    sent = {directory.name: 0 for directory in configs}
    if not waiting:
        begin(sweep, out, progress)
        return sent
    connects = not ray.is_initialized()
    if connects:
        _connect(ray, address, progress)
    try:
        dispatch = _Dispatch(ray, sweep.configs()[0], out, sent, progress, observers)
        begin(sweep, out, progress)  # after connecting: without a cluster, make no folder
        progress.say(f"whatever is lost, the head of the cluster too: {_resume_command(out)}")
        shared = sha256_of(out / "sweep.json"), ordinate.__version__, registered_entries(sweep.arms)
        with _ray_logs_in_file(out):
            dispatch.run([Job(config, out, at, *shared) for at, config in waiting.items()])
    finally:
        if connects:
            ray.shutdown()
    return sent


def _resume_command(out: Path) -> str:
    return f"ordinate compare --resume --out {shlex.quote(str(out))} goes on, with or without --cluster"


@contextmanager
def _ray_logs_in_file(out: Path) -> Iterator[None]:
    """Within the block, Ray's log of this process goes to a file; the terminal shows this module's sentences."""
    logger, handler = logging.getLogger("ray"), logging.FileHandler(out / FILE, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    before, logger.handlers = logger.handlers, [handler]
    try:
        yield
    finally:
        logger.handlers = before
        handler.close()


class _Dispatch:
    """The driver: sends runs to workers and handles how each run ended."""

    def __init__(
        self, ray: Any, config: RunConfig, out: Path, sent: dict[str, int], progress: Progress, observers: Observers,
    ) -> None:  # fmt: skip
        self.ray, self.out, self.sent, self.progress, self.observers = (
            ray,
            out,
            sent,
            progress,
            observers,
        )
        gpus = 1 if config.device == "cuda" else 0
        if gpus and not ray.cluster_resources().get("GPU"):
            raise refused(
                "device",
                "must be 'cpu' on this cluster",
                "'cuda'",
                error=ClusterError,
                advice=", and it has no GPU",
            )
        # Ray would wait forever for a machine that is large enough.
        most = max(node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"])
        if config.threads > most:
            raise refused(
                "threads",
                "must be at most {most}, the cores of the largest machine of this cluster",
                config.threads,
                error=ClusterError,
                most=f"{most:g}",
            )
        # Without Ray's retries: this class sends a lost run again, to count and report it.
        self.task = ray.remote(_work).options(num_cpus=config.threads, num_gpus=gpus, max_retries=0)
        self.running: dict[Any, Job] = {}
        self.failures = Failures(out, progress)
        self.head = _Head(ray)

    def run(self, jobs: Sequence[Job]) -> None:
        """Send all jobs and wait until each has ended."""
        total, before = len(self.sent), len(self.sent) - len(jobs)
        self.progress.begin("cluster", "runs", total, before)
        for _ in range(before):
            self.progress.run_done()
        for job in jobs:
            self._send(job)
        try:
            while self.running:
                done, _ = self.ray.wait(list(self.running), timeout=_POLL_SECONDS)
                for reference in done:
                    self._receive(reference, self.running.pop(reference))
                begun = [(job, state) for job in self.running.values() if (state := _state(job))]
                queued = len(self.running) - len(begun)
                shown = _first(state for _, state in begun) + ([f"{queued} queued"] if queued else [])
                self.progress.update(total - len(self.running), ", ".join(shown))
                self._check_head([job for job, _ in begun])
        finally:
            if self.running:
                self._stop()
        self.progress.end()
        self.failures.raise_first()

    def _stop(self) -> None:
        """After an error or Ctrl-C: runs save checkpoints, and are killed if that takes too long."""
        try:
            for reference in self.running:
                self.ray.cancel(reference)
            self.ray.wait(list(self.running), num_returns=len(self.running), timeout=_STOPPING_SECONDS)
        finally:  # also after a second Ctrl-C
            for reference in self.running:
                self.ray.cancel(reference, force=True)

    def _check_head(self, begun: Sequence[Job]) -> None:
        """Print how to continue if the head is lost: Ray ends this process about a minute later."""
        change = self.head.change()
        if change == "lost":
            steps = _first([f"{job.name} at step {checkpoint.step_of(job.directory)}" for job in begun])
            self.progress.say(
                f"the head of the cluster at {self.head.address} does not answer; unless it comes back, Ray ends this "
                f"command in about a minute. Then {_resume_command(self.out)}, from these checkpoints or later ones: "
                + ", ".join(steps)
            )
        elif change == "back":
            self.progress.say(f"the head of the cluster at {self.head.address} answers again")

    def _send(self, job: Job) -> None:
        self.sent[job.name] += 1
        self.running[self.task.remote(job, self.observers)] = job

    def _receive(self, reference: Any, job: Job) -> None:
        from ray.exceptions import RayError, RayTaskError

        try:
            for sentence in self.ray.get(reference):
                self.progress.say(sentence)
            self.progress.run_done()
        except RayTaskError as error:  # an error of the run itself, which would occur again
            cause = error.cause if isinstance(error.cause, Exception) else error
            self.failures.failed(job.name, cause, str(error))
        except RayError as error:  # its worker, or its machine, is lost
            self._lost(job, error)

    def _lost(self, job: Job, error: Exception) -> None:
        host, times = last_host(job.directory), self.sent[job.name]
        lost = f"{job.name} lost its worker{f' on {host}' if host else ''}"
        where = log_failure(job.out, lost, f"{type(error).__name__}: {error}")
        if times > RETRIES:
            lost = f"{job.name} lost its worker {times} times, the last by {type(error).__name__}"
            self.failures.add(ClusterError(lost), f"{lost}{where}")
        else:
            self.progress.say(f"{lost} and {checkpoint.how_it_resumes(job.directory)}{where}")
            self._send(job)


def _first(names: Iterable[str]) -> list[str]:
    """As many names as fit in a line, and the number of the others."""
    shown = list(names)
    more = len(shown) - _RUNS_SHOWN
    return shown[:_RUNS_SHOWN] + ([f"{more} more"] if more > 0 else [])


class _Head:
    """Whether the head of the cluster answers; only known if this machine can reach it at all."""

    def __init__(self, ray: Any) -> None:
        try:
            self.address = str(ray.get_runtime_context().gcs_address)
        except Exception:  # a client (ray://) has no address of the head
            self.address = ""
        self.watched = self.answers = bool(self.address) and _answers(self.address, 5)

    def change(self) -> str:
        """``"lost"`` or ``"back"`` if the head was lost or came back since the last call, otherwise empty."""
        before, self.answers = self.answers, self.watched and _answers(self.address, 2)
        return "lost" if before and not self.answers else "back" if self.answers and not before else ""


def _answers(address: str, seconds: float) -> bool:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True


def _work(job: Job, observers: Observers) -> list[str]:
    """The worker: does one run, unless another process has finished it; returns its sentences."""
    if ordinate.__version__ != job.version:
        rule = "must have ordinate {version}, got one with {found}"
        facts = {"version": job.version, "found": ordinate.__version__}
        raise refused(Text("every machine"), rule, error=ClusterError, **facts)
    sweep = job.out / "sweep.json"
    if not sweep.is_file() or sha256_of(sweep) != job.sweep_sha256:
        rule, advice = "must be on storage that all machines share", ", which a worker sees differently"
        raise refused("out", rule, job.out, error=ClusterError, advice=advice)
    register_missing(job.entries)
    collected = _Collected()
    train_and_evaluate(job.config, job.directory, collected, observers=observers(job.directory))
    return collected.sentences


class _Collected(Progress):
    """The sentences of a run, for the driver to print."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def say(self, sentence: str) -> None:
        self.sentences.append(sentence)


def _import_ray() -> Any:
    # Ray prints all messages of its daemons to stdout (for a lost machine, a page of state). Ray reads this setting at
    # import and then prints none; the logs are still in Ray's own folder.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "^")
    try:
        import ray
    except ImportError:
        how = how_to_install("cluster")
        raise refused(
            "", "a cluster needs ray, not installed here: {how}", error=ClusterError, how=how
        ) from None
    return ray


def _connect(ray: Any, address: str, progress: Progress) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # sends no usage statistics
    quiet = {"log_to_driver": False, "logging_level": "error"}
    if address == "auto":
        try:
            ray.init("auto", **quiet)
        except ConnectionError:
            ray.init(include_dashboard=False, **quiet)
            progress.say("no Ray cluster is running, so this machine is one of its own")
    else:
        if not _answers(address, 5):  # Ray itself would retry for minutes
            raise refused(
                "cluster",
                "must be 'auto' or the address of a running Ray cluster",
                repr(address),
                error=ClusterError,
            )
        ray.init(address, **quiet)
    found = ray.cluster_resources()
    machines = sum(bool(node["Alive"]) for node in ray.nodes())
    cores, gpus = (int(found.get(name, 0)) for name in ("CPU", "GPU"))
    progress.say(
        f"Ray cluster: {words.plural(machines, 'machine')}, {words.plural(cores, 'core')}, "
        f"{words.plural(gpus, 'GPU')}"
    )


def _state(job: Job) -> str:
    """The progress of a run, from the last line of its records; empty if it has not started."""
    try:
        with (job.directory / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 8192))
            last = json.loads(file.read().splitlines()[-1])
    except (OSError, IndexError, ValueError):
        return ""
    return f"{job.name} {last['step']}/{job.config.steps}" if "step" in last else f"{job.name} testing"
