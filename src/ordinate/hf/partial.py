"""Files and folders that appear under their name when they are whole, also when the process is killed.

What is written lies in a folder next to the target, ``.NAME.ordinate-partial``, and moves to its place at the
end. A kill leaves that folder behind; whatever is written next to it later removes it. A lock says whether the
process that writes there is alive: the operating system frees it however that process ends.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

_ENDING = ".ordinate-partial"
_LOCK = "lock"


@contextmanager
def whole_or_not_at_all(target: Path) -> Iterator[Path]:
    """Where to write what is to appear as ``target``, a file or a folder, when the block ends without an error.

    Raises:
        FileExistsError: A living process writes this target, or may do so.
    """
    remove_abandoned(target.parent)
    folder = partial_folder(target)
    lock = _claim(folder)
    if lock is None:
        raise FileExistsError(
            f"target must not be written by two processes at once "
            f"(remove {folder.name!r} next to it if none does), got {str(target)!r}"
        )
    with lock:
        try:
            written = folder / target.name
            yield written
            os.rename(written, target)
        finally:
            _remove(folder)


def partial_folder(target: Path) -> Path:
    """The folder in which a target is written."""
    return target.parent / f".{target.name}{_ENDING}"


def remove_abandoned(parent: Path) -> None:
    """Remove what killed processes left in a folder, and nothing that a living one writes."""
    for folder in parent.glob(f".*{_ENDING}"):
        if folder.is_symlink():  # not ours, and it could lead anywhere
            continue
        with suppress(OSError):  # another user's, say
            folder.rmdir()  # a kill before there was a lock
        with suppress(OSError):
            lock = _lock(folder / _LOCK) if (folder / _LOCK).is_file() else None
            if lock is not None:
                with lock:
                    _remove(folder)


def _claim(folder: Path) -> IO[bytes] | None:
    """The lock of a new folder; None where one is there, or has been removed at once as abandoned."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        with suppress(FileNotFoundError):
            return _lock(folder / _LOCK)
    return None


def _lock(path: Path) -> IO[bytes] | None:
    """A locked file; None where a living process holds it, or might: where no file can be locked."""
    file, is_new = _open(path)
    # Whoever held it may have removed it since: a lock on a file that is gone keeps nobody away.
    if _flock(file, is_new) and os.path.samestat(os.fstat(file.fileno()), path.stat()):
        return file
    file.close()
    return None


def _open(path: Path) -> tuple[IO[bytes], bool]:
    try:
        return path.open("xb"), True
    except FileExistsError:
        return path.open("r+b"), False


def _flock(file: IO[bytes], is_new: bool) -> bool:
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # Windows, and some file systems of networks
        return is_new


def _remove(folder: Path) -> None:
    """Remove a folder by its lock's holder: the lock last, after which another process may make the folder anew."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != _LOCK:
            path.unlink()
    (folder / _LOCK).unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()
