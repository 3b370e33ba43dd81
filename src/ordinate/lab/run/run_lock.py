"""A run belongs to one process at a time, on whichever machine: a lock on a file beside its records."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def claim_file(directory: Path) -> Path:
    """Beside the run, not in it: a damaged run's folder is emptied by whoever holds the claim."""
    return directory.parent / f".{directory.name}.lock"


def last_host(directory: Path) -> str:
    """The machine whose process has a run, or had it and was lost; empty where that is not known."""
    try:
        return claim_file(directory).read_text(encoding="utf-8")[:300].partition(" on ")[2].strip()
    except (OSError, ValueError):
        return ""


@contextmanager
def claim(directory: Path, every: float = 0.2) -> Iterator[None]:
    """Hold the only claim on a run's directory, after waiting for whoever has it.

    The operating system holds the lock, so it ends with its process however that ends. The file says which
    process on which machine has it, and is removed by whoever leaves in order.
    """
    if sys.platform == "win32":  # which has no such locks
        yield
        return
    path = claim_file(directory)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path, every) as file:
        file.truncate(0)
        file.write(f"{os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _locked(path: Path, every: float) -> IO[str]:
    """The file at a path, locked."""
    import fcntl  # not on every system

    while True:
        file = path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever held it may have removed it since: a lock on a file that is gone keeps nobody away.
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
            file.close()
        except (BlockingIOError, FileNotFoundError):
            file.close()
            time.sleep(every)
        except BaseException:
            file.close()
            raise
