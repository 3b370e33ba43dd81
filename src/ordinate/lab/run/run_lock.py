"""A run belongs to one process at a time, on whichever machine: a lock on a file next to its records."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from ...files import lock, lock_holder


def lock_file(directory: Path) -> Path:
    """Next to the run's folder, not in it: the process that holds the lock may remove a damaged run's folder."""
    return directory.parent / f".{directory.name}.lock"


def last_host(directory: Path) -> str:
    """The machine whose process has a run, or had it and was lost; empty where that is not known."""
    return lock_holder(lock_file(directory))


def lock_run(directory: Path, poll: float = 0.2) -> AbstractContextManager[None]:
    """Hold the only lock of a run, after waiting for the process that has it."""
    return lock(lock_file(directory), poll=poll)
