"""Files and folders that are written whole or not at all, and locks that end with their process.

Two ways to write. `write_file` writes one file of known content: a temporary file next to it, fsync, rename.
`write_then_move` is for a file or a folder that takes long to write: the content lies in a folder of a known name next
to the target, ``.NAME.ordinate-partial``, and moves to its place at the end. A killed process leaves that folder
behind, and the next process that writes there removes it; a lock in the folder says whether its process is alive.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from .checks import refused

_PARTIAL = ".ordinate-partial"
_LOCK = "lock"


class DiskFull(OSError):
    """The disk or a quota is full, or the file would be larger than the system allows."""


@contextmanager
def disk_full_named(path: Path) -> Iterator[None]:
    """Within the block, the errors of a full disk become one `DiskFull` that names the file.

    Raises:
        DiskFull: There is no room for the file.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            error.filename = error.filename or str(path)
            raise
        raise refused("", "there is no room on disk for {path}", error=DiskFull, path=path) from None


def write_file(path: Path, content: bytes, *, overwrite: bool = True) -> None:
    """Write a file whole or not at all, also when the process or the machine stops in the middle.

    Everyone may read it (mode 644). A link at the path is replaced, and what it points to stays as it is.

    Raises:
        FileExistsError: It is there, and ``overwrite`` is False.
        DiskFull: There is no room for it.
        OSError: It cannot be written.
    """
    with disk_full_named(path):
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)  # mkstemp makes files that only their owner may read
            if overwrite:
                os.replace(temporary, path)
            else:
                os.link(temporary, path)  # unlike a rename, this fails where a file exists
        finally:
            Path(temporary).unlink(missing_ok=True)


@contextmanager
def write_then_move(target: Path) -> Iterator[Path]:
    """Yield the path to write to; what is there moves to ``target`` when the block ends without an error.

    Raises:
        FileExistsError: A living process writes this target, or may be doing so.
    """
    remove_abandoned(target.parent)
    folder = partial_folder(target)
    with ExitStack() as leaving:
        try:
            folder.mkdir(mode=0o700)
            leaving.callback(_remove_if_empty, folder)
            leaving.enter_context(lock(folder / _LOCK, timeout=0))
        except (FileExistsError, TimeoutError):
            raise refused(
                "target",
                "must not be written by two processes at once (remove {folder} next to it if none does)",
                repr(str(target)),
                error=FileExistsError,
                folder=repr(folder.name),
            ) from None
        except OSError:
            if not folder.is_dir():
                raise
            # Some network file systems have no locks. The folder is new, so no other process writes in it.
            leaving.callback((folder / _LOCK).unlink, missing_ok=True)
        leaving.callback(_remove_contents, folder)
        written = folder / target.name
        yield written
        os.rename(written, target)


def partial_folder(target: Path) -> Path:
    """The folder that `write_then_move` writes a target in."""
    return target.parent / f".{target.name}{_PARTIAL}"


def remove_abandoned(parent: Path) -> None:
    """Remove the partial folders of processes that were killed, and none whose process is alive."""
    for folder in parent.glob(f".*{_PARTIAL}"):
        if folder.is_symlink():  # not made here, and it could lead anywhere
            continue
        _remove_if_empty(folder)  # its process was killed before it had a lock
        with suppress(OSError):  # another user's, say, or one whose lock is held
            if (folder / _LOCK).is_file():
                with lock(folder / _LOCK, timeout=0):
                    _remove_contents(folder)
                _remove_if_empty(folder)


def _remove_contents(folder: Path) -> None:
    """Remove all but the lock, which its holder removes last."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != _LOCK:
            path.unlink()


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


@contextmanager
def lock(path: Path, *, timeout: float = -1, poll: float = 0.2) -> Iterator[None]:
    """Hold the lock of a file, which is made for it, and wait for a process that has it.

    The operating system holds the lock, so it ends with its process however that ends. The file says which process on
    which host holds it (`lock_holder`), and is removed when the block ends.

    Args:
        timeout: Seconds to wait; without limit if negative.
        poll: Seconds between two attempts.

    Raises:
        TimeoutError: Another process, or another thread, held it all the time.
        OSError: The file cannot be made, or the file system has no locks.
    """
    from filelock import FileLock

    def write_holder(handle: int) -> None:  # through the lock's own handle: Windows refuses others
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()} on {socket.gethostname()}\n".encode())

    with FileLock(path, timeout=timeout, poll_interval=poll, on_acquired=write_holder):
        try:
            yield
        finally:
            # Before the lock ends: a process that waits for this file sees that it is gone and makes another.
            with suppress(OSError):  # Windows removes no open file; there filelock does it afterwards
                path.unlink()


def lock_holder(path: Path) -> str:
    """The host whose process holds a lock, or had it and was lost; empty where that is not known."""
    try:
        return path.read_text(encoding="utf-8")[:300].partition(" on ")[2].strip()
    except (OSError, ValueError):
        return ""
