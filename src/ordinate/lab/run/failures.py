"""What went wrong, in a sentence for the user; the rest of it in a file for those who want to know why."""

from __future__ import annotations

import time
from pathlib import Path

from ...files import DiskFull

FILE = "failures.log"


class RunFailed(RuntimeError):
    """A run that stopped with an error, or whose process was lost."""


def as_raised(error: Exception, sentence: str) -> Exception:
    """What a run's error is to the comparison: itself where it says all there is to say, or the sentence."""
    if isinstance(error, (MemoryError, DiskFull)) or (isinstance(error, OSError) and error.filename):
        return error
    return RunFailed(sentence)


def one_line(error: BaseException) -> str:
    """An error in one line, and not a long one.

    Example:
        >>> one_line(KeyError("a\\nb"))
        "KeyError: 'a\\\\nb'"
    """
    words = " ".join(str(error).split())[:400]
    return (
        words
        if isinstance(error, (OSError, MemoryError)) and words
        else f"{type(error).__name__}: {words}"
    )


def log_failure(out: Path, what: str, details: str) -> str:
    """Append to ``out/failures.log``; words that name it, or none where it cannot be written."""
    path = out / FILE
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {what}\n{details.rstrip()}\n\n")
    except OSError:  # a full disk, say, which may be what went wrong
        return ""
    return f" (details in {path})"
