"""A request to stop: noted while a step is made, answered between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Within the block SIGINT (Ctrl-C) and SIGTERM are noted, and KeyboardInterrupt comes at its end.

    Yields a function that says whether there was one, so that the block can save its work and leave early. A
    second Ctrl-C is not waited with. Only the main thread gets signals; in others nothing is ever noted.
    """
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and number in noted:
            raise KeyboardInterrupt
        noted.append(number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if handler not in (signal.SIG_IGN, None):  # ignored before, or not Python's to put back
                before[number] = signal.signal(number, note)
    try:
        yield lambda: bool(noted)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if noted:
        raise KeyboardInterrupt
