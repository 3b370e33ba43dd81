"""How a command refuses: one sentence and a hint, never a traceback."""

from __future__ import annotations

import re


class Misuse(Exception):
    """The user asked for something that cannot be; the hint says what can."""

    def __init__(self, sentence: str, hint: str) -> None:
        super().__init__(sentence)
        self.hint = hint


def about_file(option: str, error: Exception) -> str:
    """Why a picture could not be written, said of the option that names its file."""
    if isinstance(error, OSError) and error.strerror:
        return f"{option} must be a file that can be written, got {error.filename}: {error.strerror}"
    return re.sub(r"^path ", f"{option} ", str(error))
