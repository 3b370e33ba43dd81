"""How a command refuses: one sentence and a hint, never a traceback."""

from __future__ import annotations


class Misuse(Exception):
    """The user asked for something that cannot be; the hint says what can."""

    def __init__(self, sentence: str, hint: str) -> None:
        super().__init__(sentence)
        self.hint = hint
