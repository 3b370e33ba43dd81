"""Records SIGINT and SIGTERM during a training step, so that the run stops between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Within the block SIGINT (Ctrl-C) and SIGTERM are recorded; KeyboardInterrupt is raised at its end.

    Yields a function that returns whether there was a signal, so that the block can save its work and end early. A
    second Ctrl-C is raised at once. Only the main thread receives signals; in other threads none is recorded.
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
            if handler not in (
                signal.SIG_IGN,
                None,
            ):  # it was ignored, or Python cannot restore its handler
                before[number] = signal.signal(number, note)
    try:
        yield lambda: bool(noted)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if noted:
        raise KeyboardInterrupt
