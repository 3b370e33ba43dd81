"""Runs side by side on this machine: spawned processes, one run in each at a time, reused from run to run.

Of models this small, several that train on a thread each are done sooner than one after the other on all
cores; and where other programs want the cores too, threads that wait for each other at every operation all
but stop. A process that is lost takes its run with it and no other.
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

from ..config import RunConfig
from . import checkpoint
from .failures import RunFailed, as_raised, log_failure, one_line
from .progress import Progress
from .run_lock import lock_run
from .stopping import stop_requests
from .train import Observer, train_and_evaluate

Observers = Callable[[Path], Iterable[Observer]]

# Of a process with PyTorch, before it holds a model.
PROCESS_BYTES = 300_000_000

# How often to look whether it is asked to stop, in seconds.
_LOOK_EVERY = 0.2


def usable_cores() -> int:
    """Cores that this process may use: fewer than there are under an affinity mask or in a container."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, int(min(cores, _quota())))


def _quota(root: Path = Path("/sys/fs/cgroup"), groups: Path = Path("/proc/self/cgroup")) -> float:
    """Cores' worth of time that Linux's control groups (v2, then v1) allow; infinite without a limit."""
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
    """Do the runs of these directories that are not over, so many at once.

    SIGINT (Ctrl-C) and SIGTERM let every run save a checkpoint before they become KeyboardInterrupt; a second
    Ctrl-C does not.

    Args:
        observers: What listens to a run, made in the process that does it. A function of a module: one of a script
            makes each process import the script anew, which then needs ``if __name__ == "__main__":``.

    Raises:
        RunFailed: Some were not done; the others were.
        OSError, MemoryError: That is why the first of them was not: there is no room, or a file in the way.
    """
    _Team(configs, out, progress, observers).run(workers)


class _Worker:
    """One process, as the parent sees it."""

    def __init__(self, observers: Observers, progress: Progress) -> None:
        context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, observers), daemon=True)
        with _no_ctrl_c_for_the_new(), _no_script_for_the_new(observers):
            self.process.start()
        theirs.close()
        self.progress, self.directory = progress, Path()

    def send(self, directory: Path, config: RunConfig) -> None:
        self.directory = directory
        with suppress(OSError):  # a process that is lost is noticed when nothing comes back
            self.connection.send((config, directory))

    def dismiss(self) -> None:
        with suppress(OSError):
            self.connection.send(None)
        self.process.join()
        self.connection.close()


class _Team:
    """The parent's side: which run is where, and what became of it."""

    def __init__(
        self, configs: Mapping[Path, RunConfig], out: Path, progress: Progress, observers: Observers
    ) -> None:
        self.waiting = deque(configs.items())
        self.out, self.progress, self.observers = out, progress, observers
        self.workers: dict[Connection, _Worker] = {}
        self.failed: list[BaseException] = []

    def run(self, workers: int) -> None:
        with stop_requests() as asked:
            try:
                for _ in range(min(workers, len(self.waiting))):
                    self._hire(self.progress.for_one_run())
                while self.workers and not asked():
                    for connection in wait(list(self.workers), _LOOK_EVERY):
                        self._hear(self.workers[connection])  # type: ignore[index]
            finally:
                self._stop()
        if self.failed:
            raise self.failed[0]

    def _hire(self, progress: Progress) -> None:
        worker = _Worker(self.observers, progress)
        self.workers[worker.connection] = worker
        worker.send(*self.waiting.popleft())

    def _hear(self, worker: _Worker) -> None:
        try:
            what, *said = worker.connection.recv()
        except (EOFError, OSError):
            self._lose(worker)
            return
        if what != "over":
            getattr(worker.progress, what)(*said)
            return
        self._note(worker.directory.name, *said)
        if self.waiting:
            worker.send(*self.waiting.popleft())
        else:
            del self.workers[worker.connection]
            worker.dismiss()

    def _note(self, name: str, error: Exception | None, details: str) -> None:
        if error is None:
            self.progress.run_done()
            return
        where = log_failure(self.out, f"{name} failed", details)
        sentence = f"{name} failed: {one_line(error)}{where}"
        self.failed.append(as_raised(error, sentence))
        self.progress.say(sentence)

    def _lose(self, worker: _Worker) -> None:
        """A process has ended in the middle of a run; another takes its place, the run waits for --resume."""
        del self.workers[worker.connection]
        worker.connection.close()
        worker.process.join()
        sentence = (
            f"{worker.directory.name} lost its process ({_end(worker.process.exitcode)}); when the comparison is "
            f"resumed it {checkpoint.how_it_resumes(worker.directory)}"
        )
        self.failed.append(RunFailed(sentence))
        self.progress.say(sentence)
        if self.waiting:
            self._hire(worker.progress)

    def _stop(self) -> None:
        """Without a parent that listens, a run saves a checkpoint and its process ends."""
        workers = self.workers.values()
        for worker in workers:
            worker.connection.close()
        try:
            for worker in workers:
                worker.process.join()
        finally:  # after a second Ctrl-C, too
            for worker in workers:
                worker.process.kill()


def _end(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit code {code}"
    return f"ended by {signal.Signals(-code).name}"


@contextmanager
def _no_ctrl_c_for_the_new() -> Iterator[None]:
    """A process that starts here never sees Ctrl-C, from its first moment on; here one waits for the end."""
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # its start would let Ctrl-C in again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _no_script_for_the_new(observers: Observers) -> Iterator[None]:
    """A process that starts here imports the script that is run, or its standard input, only if it needs it."""
    script = sys.modules["__main__"]
    if b"__main__" not in pickle.dumps(observers):
        sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


# The process's side


def _work(connection: Connection, observers: Observers) -> None:
    """Do one run after the other, until there are no more or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal tells everybody, but the parent decides
    try:
        signal.signal(signal.SIGTERM, _interrupted)
        jobs: queue.SimpleQueue[tuple[RunConfig, Path] | None] = queue.SimpleQueue()
        threading.Thread(target=_listen, args=(connection, jobs), daemon=True).start()
        progress = _Forwarded(connection)
        while job := jobs.get():
            progress.tell("over", *_outcome(*job, progress, observers))
    except KeyboardInterrupt:
        # Asked to stop; what there was to save is saved. Whoever asks again is late.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _outcome(
    config: RunConfig, directory: Path, progress: Progress, observers: Observers
) -> tuple[Exception | None, str]:
    """How a run ended: with nothing to say, or with an error and its traceback."""
    try:
        with lock_run(
            directory
        ):  # nobody else works on it, be it a second ``--resume`` of the same comparison
            train_and_evaluate(config, directory, progress, observers=observers(directory))
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # an error that does not travel
            return RuntimeError(f"{type(error).__name__}: {error}"), traceback.format_exc()
        return error, traceback.format_exc()
    return None, ""


def _listen(connection: Connection, jobs: queue.SimpleQueue) -> None:
    """Pass on what the parent sends; when it is gone, end the run as SIGTERM would, here and on Windows."""
    try:
        while True:
            jobs.put(job := connection.recv())
            if job is None:
                return
    except (EOFError, OSError):
        jobs.put(None)
        _thread.interrupt_main(signal.SIGTERM)


def _interrupted(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


class _Forwarded(Progress):
    """What a run tells, told to the parent."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def tell(self, *said: Any) -> None:
        with suppress(OSError):  # the parent is gone, which `_listen` notices too
            self._connection.send(said)

    def begin(self, run: str, phase: str, total: int, done: int = 0) -> None:
        self.tell("begin", run, phase, total, done)

    def update(self, done: int, note: str = "") -> None:
        self.tell("update", done, note)

    def end(self) -> None:
        self.tell("end")

    def say(self, sentence: str) -> None:
        self.tell("say", sentence)
