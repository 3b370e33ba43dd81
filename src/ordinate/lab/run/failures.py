"""Runs that failed: a sentence for the user, the traceback in a file, and the error to raise in the end."""

from __future__ import annotations

import time
from pathlib import Path

from ...files import DiskFull
from ..formats import one_line
from .progress import Progress

FILE = "failures.log"


class RunFailed(RuntimeError):
    """A run that stopped with an error, or whose process was lost."""


class ClusterError(RuntimeError):
    """The cluster cannot be used, or cannot do the runs."""


class Failures:
    """Failed runs of one comparison. They do not stop the others; the first error is raised when all are done."""

    def __init__(self, out: Path, progress: Progress) -> None:
        self.out, self.progress = out, progress
        self._errors: list[Exception] = []

    def failed(self, name: str, error: Exception, details: str) -> None:
        """Record a run that failed with an error of its own, which would occur again."""
        sentence = f"{name} failed: {one_line(error, OSError, MemoryError)}"
        sentence += log_failure(self.out, f"{name} failed", details)
        self.add(as_raised(error, sentence), sentence)

    def add(self, error: Exception, sentence: str) -> None:
        self._errors.append(error)
        self.progress.say(sentence)

    def raise_first(self) -> None:
        if self._errors:
            raise self._errors[0]


def as_raised(error: Exception, sentence: str) -> Exception:
    """The error to raise for a failed run: its own if that is clear, else one with the sentence."""
    says_enough = isinstance(error, (MemoryError, DiskFull, ClusterError))
    if says_enough or (isinstance(error, OSError) and error.filename):
        return error
    return RunFailed(sentence)


def log_failure(out: Path, what: str, details: str) -> str:
    """Append to ``out/failures.log``; returns words that name the file, empty if it cannot be written."""
    path = out / FILE
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {what}\n{details.rstrip()}\n\n")
    except OSError:  # such as a full disk, which may be why the run failed
        return ""
    return f" (details in {path})"
