"""Many runs on many machines: one Ray task a run, each under its own lock, lost ones sent again.

Storage is shared: ``out`` must be the same folder on every machine, as it is on one machine or with a
network file system. A checkpoint has to outlive the machine that wrote it, and a folder that all see
needs no copying back: whoever takes a lost run over finds its last checkpoint where it was left.
Whether a worker sees the folder is checked before it does anything.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ordinate

from ...extras import how_to_install
from .. import formats as words
from ..config import RunConfig
from ..records import Sweep, read_run, sha256_of
from . import checkpoint
from .failures import FILE, as_raised, log_failure, one_line
from .progress import Progress
from .run_lock import last_host, lock_run
from .sweep import begin
from .train import no_observers, train_and_evaluate
from .workers import Observers

#: How often a run is sent again after its worker was lost; one that ends its worker every time is at fault.
RETRIES = 5

# How often to look at the records of runs in progress, in seconds.
_LOOK_EVERY = 1.0

# How long runs may take to save where they are when they are stopped, in seconds.
_STOPPING_TAKES = 30.0

# As many runs as a line can tell of.
_STATES_SHOWN = 4


class ClusterError(RuntimeError):
    """The cluster cannot be had, or cannot do the runs."""


@dataclass(frozen=True)
class Job:
    """One run as it travels to a worker.

    Attributes:
        sweep_sha256: Of ``sweep.json``, by which a worker knows that it sees the same folder.
    """

    config: RunConfig
    out: Path
    directory: Path
    sweep_sha256: str
    version: str

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

    A run whose worker is lost is sent again and goes on from its last checkpoint. Runs that fail by
    their own fault do not stop the others; the first such error is raised when all are done. What Ray has
    to say goes to ``out/failures.log``, but for what it prints from C++ when it ends this process.

    Args:
        out: The comparison's folder, on storage that all machines share.
        address: Of a running cluster; ``"auto"`` for the one this machine belongs to, or else one on this
            machine alone.

    Returns:
        How often each run was sent to a worker: 0 for those that were finished before.

    Raises:
        ClusterError: The cluster is not there, has no GPU where one is needed, a worker does not see
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
    ours = not ray.is_initialized()
    if ours:
        _connect(ray, address, progress)
    try:
        dispatch = _Dispatch(ray, sweep.configs()[0], sent, progress, observers)
        begin(sweep, out, progress)  # not before: a cluster that cannot be had leaves nothing behind
        progress.say(f"whatever is lost, the head of the cluster too: {_again(out)}")
        digest, version = sha256_of(out / "sweep.json"), ordinate.__version__
        with _rays_own_words(out):
            dispatch.run([Job(config, out, at, digest, version) for at, config in waiting.items()])
    finally:
        if ours:
            ray.shutdown()
    return sent


def _again(out: Path) -> str:
    return f"ordinate compare --resume --out {shlex.quote(str(out))} goes on, with or without --cluster"


@contextmanager
def _rays_own_words(out: Path) -> Iterator[None]:
    """What Ray logs in this process goes to a file; the user reads our sentences."""
    logger, handler = logging.getLogger("ray"), logging.FileHandler(out / FILE, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    before, logger.handlers = logger.handlers, [handler]
    try:
        yield
    finally:
        logger.handlers = before
        handler.close()


class _Dispatch:
    """The driver's side: which run is where, and what has become of it."""

    def __init__(
        self, ray: Any, config: RunConfig, sent: dict[str, int], progress: Progress, observers: Observers
    ) -> None:
        self.ray, self.sent, self.progress, self.observers = ray, sent, progress, observers
        gpus = 1 if config.device == "cuda" else 0
        if gpus and not ray.cluster_resources().get("GPU"):
            raise ClusterError("device must be 'cpu' on this cluster, got 'cuda', and it has no GPU")
        # Ray would wait for ever for a machine that is large enough.
        most = max(node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"])
        if config.threads > most:
            raise ClusterError(
                f"threads must be at most {most:g}, the cores of the largest machine of this cluster, "
                f"got {config.threads}"
            )
        # Ray's own retries are off: a lost run is sent again here, where it can be counted and told.
        self.task = ray.remote(_work).options(num_cpus=config.threads, num_gpus=gpus, max_retries=0)
        self.running: dict[Any, Job] = {}
        self.failed: list[BaseException] = []
        self.head = _Head(ray)

    def run(self, jobs: Sequence[Job]) -> None:
        """Send all jobs and stay until the last has an end."""
        total, before = len(self.sent), len(self.sent) - len(jobs)
        self.progress.begin("cluster", "runs", total, before)
        for _ in range(before):
            self.progress.run_done()
        for job in jobs:
            self._send(job)
        try:
            while self.running:
                done, _ = self.ray.wait(list(self.running), timeout=_LOOK_EVERY)
                for reference in done:
                    self._receive(reference, self.running.pop(reference))
                self.progress.update(total - len(self.running), self._note())
                self._look_at_the_head()
        finally:
            self._stop()
        self.progress.end()
        if self.failed:
            raise self.failed[0]

    def _stop(self) -> None:
        """Only when something, or somebody, has stopped the loop: runs save where they are, or are ended."""
        if not self.running:
            return
        try:
            for reference in self.running:
                self.ray.cancel(reference)
            self.ray.wait(list(self.running), num_returns=len(self.running), timeout=_STOPPING_TAKES)
        finally:  # after a second Ctrl-C, too
            for reference in self.running:
                self.ray.cancel(reference, force=True)

    def _look_at_the_head(self) -> None:
        """Ray ends this process about a minute after its head is gone: what to do then is said before."""
        change = self.head.change()
        if change == "lost":
            begun = [job for job in self.running.values() if _state(job)]
            steps = [
                f"{job.name} at step {checkpoint.step_of(job.directory)}"
                for job in begun[:_STATES_SHOWN]
            ]
            more = len(begun) - len(steps)
            out = next(iter(self.running.values())).out if self.running else Path()
            self.progress.say(
                f"the head of the cluster at {self.head.address} does not answer; unless it comes back, Ray ends this "
                f"command in about a minute. Then {_again(out)}, from these checkpoints or later ones: "
                + ", ".join(steps + ([f"{more} more"] if more > 0 else []))
            )
        elif change == "back":
            self.progress.say(f"the head of the cluster at {self.head.address} answers again")

    def _note(self) -> str:
        """How far the runs are that somebody is at, and how many wait."""
        states = [state for job in self.running.values() if (state := _state(job))]
        more, queued = len(states) - _STATES_SHOWN, len(self.running) - len(states)
        shown = states[:_STATES_SHOWN] + ([f"{more} more"] if more > 0 else [])
        return ", ".join(shown + ([f"{queued} queued"] if queued else []))

    def _send(self, job: Job) -> None:
        self.sent[job.name] += 1
        self.running[self.task.remote(job, self.observers)] = job

    def _receive(self, reference: Any, job: Job) -> None:
        from ray.exceptions import RayError, RayTaskError

        try:
            for sentence in self.ray.get(reference):
                self.progress.say(sentence)
        except RayTaskError as error:  # the run itself failed, and would again
            where = log_failure(job.out, f"{job.name} failed", str(error))
            cause = error.cause if isinstance(error.cause, Exception) else error
            sentence = f"{job.name} failed: {one_line(cause)}{where}"
            self.failed.append(cause if isinstance(cause, ClusterError) else as_raised(cause, sentence))
            self.progress.say(sentence)
        except RayError as error:  # its worker, or its machine, is gone
            host = last_host(job.directory)
            lost = f"{job.name} lost its worker{f' on {host}' if host else ''}"
            where = log_failure(job.out, lost, f"{type(error).__name__}: {error}")
            if self.sent[job.name] > RETRIES:
                lost = f"{job.name} lost its worker {self.sent[job.name]} times, the last by {type(error).__name__}"
                self.failed.append(ClusterError(lost))
                self.progress.say(f"{lost}{where}")
            else:
                self.progress.say(f"{lost} and {checkpoint.how_it_resumes(job.directory)}{where}")
                self._send(job)
        else:
            self.progress.run_done()


class _Head:
    """Whether the head of the cluster answers, where it ever did from here."""

    def __init__(self, ray: Any) -> None:
        try:
            self.address = str(ray.get_runtime_context().gcs_address)
        except Exception:  # of a client (ray://) that is told no address
            self.address = ""
        self.watched = self.answers = bool(self.address) and _answers(self.address, 5)

    def change(self) -> str:
        """``"lost"`` or ``"back"`` if it is so since the last time that was asked."""
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
    """The worker's side: one run, unless somebody else has done it by the time it is ours."""
    if ordinate.__version__ != job.version:
        raise ClusterError(
            f"every machine must have ordinate {job.version}, got one with {ordinate.__version__}"
        )
    sweep = job.out / "sweep.json"
    if not sweep.is_file() or sha256_of(sweep) != job.sweep_sha256:
        raise ClusterError(
            f"out must be on storage that all machines share, got {job.out}, which a worker sees differently"
        )
    heard = _Heard()
    with lock_run(job.directory):  # whoever waits for it will find the run over, and leave it
        train_and_evaluate(job.config, job.directory, heard, observers=observers(job.directory))
    return heard.sentences


class _Heard(Progress):
    """What a run has to say, kept for the driver to say it."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def say(self, sentence: str) -> None:
        self.sentences.append(sentence)


def _import_ray() -> Any:
    # Ray prints to stdout whatever its daemons report, the end of a machine with a page of their state, and
    # has this one setting against it, read when it is imported. Their logs are in Ray's own folder all the same.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "^")
    try:
        import ray
    except ImportError:
        raise ClusterError(
            f"a cluster needs ray, not installed here: {how_to_install('cluster')}"
        ) from None
    return ray


def _connect(ray: Any, address: str, progress: Progress) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # what runs here is nobody else's business
    quiet = {"log_to_driver": False, "logging_level": "error"}
    if address == "auto":
        try:
            ray.init("auto", **quiet)
        except ConnectionError:
            ray.init(include_dashboard=False, **quiet)
            progress.say("no Ray cluster is running, so this machine is one of its own")
    else:
        _knock(address)
        ray.init(address, **quiet)
    found = ray.cluster_resources()
    machines = sum(bool(node["Alive"]) for node in ray.nodes())
    cores, gpus = (int(found.get(name, 0)) for name in ("CPU", "GPU"))
    progress.say(
        f"Ray cluster: {words.plural(machines, 'machine')}, {words.plural(cores, 'core')}, "
        f"{words.plural(gpus, 'GPU')}"
    )


def _knock(address: str) -> None:
    """See whether anybody answers at an address; Ray itself would try for minutes."""
    if not _answers(address, 5):
        raise ClusterError(
            f"cluster must be 'auto' or the address of a running Ray cluster, got {address!r}"
        )


def _state(job: Job) -> str:
    """How far a run is, by the last line of its records; nothing if it has not begun."""
    try:
        with (job.directory / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 8192))
            last = json.loads(file.read().splitlines()[-1])
    except (OSError, IndexError, ValueError):
        return ""
    return f"{job.name} {last['step']}/{job.config.steps}" if "step" in last else f"{job.name} testing"
