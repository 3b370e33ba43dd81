"""How a command refuses: one sentence and a hint, never a traceback."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path


class Misuse(Exception):
    """The user asked for something that cannot be; the hint says what can."""

    def __init__(self, sentence: str, hint: str) -> None:
        super().__init__(sentence)
        self.hint = hint


@contextlib.contextmanager
def within_reach(rule: str, path: Path, hint: str) -> Iterator[None]:
    """What the system says of files, in a sentence about the option that named their folder."""
    try:
        yield
    except OSError as error:
        if error.filename is None:  # not of a file: a lost connection, or standard output
            raise
        raise Misuse(f"{rule}, got {path}: {error.strerror}", hint) from None


# What is said of a number that was given, and not of one that came of it.
_SAID = r"(?=must (?:be (?:at least|at most|below|even)|each|have|name)\b)"


def in_options(sentence: str, options: Mapping[str, str], spec: str = "") -> str:
    """A message about a parameter, said of the option that gives it, unless the spec gave it itself."""
    for name, option in options.items():
        if not re.search(rf"\b{name}\s*=", spec):
            sentence = re.sub(rf"^{name} {_SAID}", f"{option} ", sentence)
    return sentence


def about_file(option: str, error: Exception) -> str:
    """Why a picture could not be written, said of the option that names its file."""
    if isinstance(error, OSError) and error.strerror:
        return f"{option} must be a file that can be written, got {error.filename}: {error.strerror}"
    return re.sub(r"^path ", f"{option} ", str(error))
