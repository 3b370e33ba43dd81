"""Parallel runs on this machine: spawned processes, one run at a time in each, reused for the next run.

Small models in parallel on one thread each finish sooner than one after the other on all cores; and if other programs
use the cores too, threads that wait for each other at every operation become very slow. A process that is lost loses
only its own run.
"""

from __future__ import annotations

import _thread
import math
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType
from typing import Any

from ...checks import refused
from ...entry import Entry
from ..config import RunConfig
from . import checkpoint
from .failures import Failures, RunFailed
from .progress import Progress
from .registered import not_importable, register_missing, registered_entries
from .stopping import stop_requests
from .train import Observer, train_and_evaluate

Observers = Callable[[Path], Iterable[Observer]]

# The memory of a process with PyTorch, before it has a model.
PROCESS_BYTES = 300_000_000

# Seconds between two checks whether the runs should stop.
_POLL_SECONDS = 0.2


def usable_cores() -> int:
    """The number of cores that this process may use; an affinity mask or a container may limit it."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, int(min(cores, _quota())))


def _quota(root: Path = Path("/sys/fs/cgroup"), groups: Path = Path("/proc/self/cgroup")) -> float:
    """The number of cores that Linux's control groups (v2, then v1) allow; infinite without a limit."""
    try:
        lines = groups.read_text().splitlines()
        own = root / next((line[3:] for line in lines if line.startswith("0::")), "").strip("/")
        files = [folder / "cpu.max" for folder in (own, *own.parents) if folder.is_relative_to(root)]
        texts = [file.read_text() for file in files if file.exists()]
        if not texts:
            quota, period = (root / "cpu" / f"cpu.cfs_{name}_us" for name in ("quota", "period"))
            texts = [f"{quota.read_text()} {period.read_text()}"]
        limits = [text.split() for text in texts]
        return min(
            (int(limit) / int(period) for limit, period in limits if limit.isdigit()), default=math.inf
        )
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf


def run_side_by_side(
    configs: Mapping[Path, RunConfig], out: Path, workers: int, progress: Progress, observers: Observers
) -> None:
    """Do the runs of these directories that are not over, several at once.

    After SIGINT (Ctrl-C) or SIGTERM every run saves a checkpoint before KeyboardInterrupt is raised; after a second
    Ctrl-C it does not.

    Args:
        observers: Makes the observers of a run, in the process of the run. It should be a function of a module: for
            one of a script, each process imports the script, which then needs ``if __name__ == "__main__":``.

    Raises:
        RunFailed: Some runs failed; the others are done.
        OSError, MemoryError: The error of the first failed run: no space on disk, or a file in the way.
        ValueError: An encoding was registered whose class other processes cannot import.
    """
    entries = registered_entries(config.spec for config in configs.values())
    for name in not_importable(entries):
        raise refused(
            "workers",
            "must be 1 with {encoding}, whose class other processes cannot import",
            workers,
            advice=" (define it in a module of its own)",
            encoding=repr(name),
        )
    _Pool(configs, out, progress, observers, entries).run(workers)


class _Worker:
    """The parent's handle of one process."""

    def __init__(self, observers: Observers, entries: tuple[Entry, ...], progress: Progress) -> None:
        context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
        self.connection, childs = context.Pipe()
        arguments = (childs, observers, entries)
        self.process = context.Process(target=_work, args=arguments, daemon=True)
        with _sigint_blocked_in_children(), _without_script_in_children(observers):
            self.process.start()
        childs.close()
        self.progress, self.directory = progress, Path()

    def send(self, directory: Path, config: RunConfig) -> None:
        self.directory = directory
        with suppress(OSError):  # a lost process is noticed when its connection ends
            self.connection.send((config, directory))


class _Pool:
    """The parent: sends runs to processes and handles how each run ended."""

    def __init__(
        self, configs: Mapping[Path, RunConfig], out: Path, progress: Progress, observers: Observers,
        entries: tuple[Entry, ...],
    ) -> None:  # fmt: skip
        self.waiting = deque(configs.items())
        self.progress, self.observers, self.entries = progress, observers, entries
        self.workers: dict[Any, _Worker] = {}
        self.failures = Failures(out, progress)

    def run(self, workers: int) -> None:
        with stop_requests() as stop_requested:
            try:
                for _ in range(min(workers, len(self.waiting))):
                    self._start(self.progress.for_one_run())
                while self.workers and not stop_requested():
                    for connection in wait(list(self.workers), _POLL_SECONDS):
                        self._receive(self.workers[connection])
            finally:
                self._stop()
        self.failures.raise_first()

    def _start(self, progress: Progress) -> None:
        worker = _Worker(self.observers, self.entries, progress)
        self.workers[worker.connection] = worker
        worker.send(*self.waiting.popleft())

    def _receive(self, worker: _Worker) -> None:
        try:
            what, *arguments = worker.connection.recv()
        except (EOFError, OSError):
            self._lost(worker)
            return
        if what != "over":
            getattr(worker.progress, what)(*arguments)
            return
        error, details = arguments
        if error is None:
            self.progress.run_done()
        else:
            self.failures.failed(worker.directory.name, error, details)
        if self.waiting:
            worker.send(*self.waiting.popleft())
        else:
            with suppress(OSError):
                worker.connection.send(None)
            self._remove(worker)

    def _remove(self, worker: _Worker) -> None:
        del self.workers[worker.connection]
        worker.process.join()
        worker.connection.close()

    def _lost(self, worker: _Worker) -> None:
        """Handle a process that ended during a run: start another process; --resume can continue the run."""
        worker.connection.close()
        self._remove(worker)
        sentence = (
            f"{worker.directory.name} lost its process ({_ending(worker.process.exitcode)}); when the comparison is "
            f"resumed it {checkpoint.how_it_resumes(worker.directory)}"
        )
        self.failures.add(RunFailed(sentence), sentence)
        if self.waiting:
            self._start(worker.progress)

    def _stop(self) -> None:
        """Close all connections: each run then saves a checkpoint and its process ends."""
        workers = self.workers.values()
        for worker in workers:
            worker.connection.close()
        try:
            for worker in workers:
                worker.process.join()
        finally:  # also after a second Ctrl-C
            for worker in workers:
                worker.process.kill()


def _ending(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit code {code}"
    return f"ended by {signal.Signals(-code).name}"


@contextmanager
def _sigint_blocked_in_children() -> Iterator[None]:
    """A process started in the block ignores Ctrl-C from its start; in this one, Ctrl-C waits for the block's end."""
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # starting it later would unblock SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _without_script_in_children(observers: Observers) -> Iterator[None]:
    """A process started in the block imports the main script, or standard input, only if observers need it."""
    script = sys.modules["__main__"]
    if b"__main__" not in pickle.dumps(observers):
        sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


# Inside the process


def _work(connection: Connection, observers: Observers, entries: tuple[Entry, ...]) -> None:
    """Do one run after the other, until there are no more or the parent has ended."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # a terminal sends SIGINT to all processes; the parent handles it
    try:
        signal.signal(signal.SIGTERM, _interrupt)
        jobs: queue.SimpleQueue[tuple[RunConfig, Path] | None] = queue.SimpleQueue()
        threading.Thread(target=_listen, args=(connection, jobs), daemon=True).start()
        register_missing(entries)
        progress = _Forwarded(connection)
        while job := jobs.get():
            progress.send("over", *_outcome(*job, progress, observers))
    except KeyboardInterrupt:
        # The run has saved its checkpoint. A second signal must not interrupt the exit of the process.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _outcome(
    config: RunConfig, directory: Path, progress: Progress, observers: Observers
) -> tuple[Exception | None, str]:
    """Do a run; returns its error and the traceback, or None and an empty text."""
    try:
        train_and_evaluate(config, directory, progress, observers=observers(directory))
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # the error cannot be pickled
            return RuntimeError(f"{type(error).__name__}: {error}"), traceback.format_exc()
        return error, traceback.format_exc()
    return None, ""


def _listen(connection: Connection, jobs: queue.SimpleQueue) -> None:
    """Forward what the parent sends; if the parent ends, end the run like SIGTERM, also on Windows."""
    try:
        while True:
            jobs.put(job := connection.recv())
            if job is None:
                return
    except (EOFError, OSError):
        jobs.put(None)
        _thread.interrupt_main(signal.SIGTERM)


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


class _Forwarded(Progress):
    """Forwards each call to the parent's progress."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, *call: Any) -> None:
        with suppress(OSError):  # the parent has ended, which `_listen` notices too
            self._connection.send(call)

    def begin(self, run: str, phase: str, total: int, done: int = 0) -> None:
        self.send("begin", run, phase, total, done)

    def update(self, done: int, note: str = "") -> None:
        self.send("update", done, note)

    def end(self) -> None:
        self.send("end")

    def say(self, sentence: str) -> None:
        self.send("say", sentence)
