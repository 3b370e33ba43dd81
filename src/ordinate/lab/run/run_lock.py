"""A lock on a file next to a run's records: only one process on any machine does the run at a time."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from ...files import lock, lock_holder


def lock_file(directory: Path) -> Path:
    """Next to the run's folder, not in it: the process that holds the lock may remove a damaged run's folder."""
    return directory.parent / f".{directory.name}.lock"


def last_host(directory: Path) -> str:
    """The machine whose process holds, or last held, the lock of a run; empty if unknown."""
    return lock_holder(lock_file(directory))


def lock_run(directory: Path, poll: float = 0.2) -> AbstractContextManager[None]:
    """Hold the lock of a run, after waiting for the process that holds it."""
    return lock(lock_file(directory), poll=poll)
