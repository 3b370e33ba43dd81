"""A run belongs to one process at a time, on whichever machine: a lock on a file beside its records."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def claim_file(directory: Path) -> Path:
    """Beside the run, not in it: a damaged run's folder is emptied by whoever holds the claim."""
    return directory.parent / f".{directory.name}.lock"


@contextmanager
def claim(directory: Path, every: float = 0.2) -> Iterator[None]:
    """Hold the only claim on a run's directory, after waiting for whoever has it.

    The operating system holds the lock, so it ends with its process however that ends, and nothing is
    left to clean up. The file says which process has it, for people who look.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    with claim_file(directory).open("a+") as file:
        while not _try(file.fileno()):
            time.sleep(every)
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def _try(handle: int) -> bool:
    import fcntl  # not on every system, and only a cluster's runs are claimed

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
