"""The progress of runs on stderr: bars on a terminal, plain lines otherwise."""

from __future__ import annotations

import copy
import sys
import time
from typing import Any, TextIO


class Progress:
    """Receives the progress of a run. This class prints nothing; subclasses override what they show."""

    def begin(self, run: str, phase: str, total: int, done: int = 0) -> None:
        """A phase of a run starts, ``done`` of its ``total`` parts already done."""

    def update(self, done: int, note: str = "") -> None:
        """``done`` parts of the phase are done."""

    def end(self) -> None:
        """The phase is over."""

    def run_done(self) -> None:
        """A run of the comparison is over."""

    def for_one_run(self) -> Progress:
        """A progress for one of several parallel runs; all of them print to the same place."""
        return copy.copy(self)

    def say(self, sentence: str) -> None:
        """Print a sentence for the user."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class PlainProgress(Progress):
    """Prints a line when a phase starts, at regular intervals, and at its end."""

    def __init__(self, stream: TextIO | None = None, every: float = 15.0) -> None:
        self.stream, self.every = stream or sys.stderr, every
        self._label, self._total, self._done, self._note = "", 0, 0, ""
        self._started = self._said = time.monotonic()
        self._before = 0

    def begin(self, run: str, phase: str, total: int, done: int = 0) -> None:
        self._label, self._note = f"{run}: {phase}", ""
        self._total, self._done, self._before = total, done, done
        self._started = self._said = time.monotonic()
        if done:
            self.say(f"{self._label} goes on at {done} of {total}")

    def update(self, done: int, note: str = "") -> None:
        self._done, self._note = done, note
        now = time.monotonic()
        if now - self._said >= self.every and done < self._total:
            self._said = now
            parts = [f"{self._label} {done}/{self._total}", note]
            if done > self._before:  # the remaining time is unknown before the first part is done
                left = (now - self._started) * (self._total - done) / (done - self._before)
                parts.append(f"{_clock(left)} left")
            self.say(", ".join(filter(None, parts)))

    def end(self) -> None:
        note = f", {self._note}" if self._note else ""
        self.say(
            f"{self._label} {self._done}/{self._total}{note}, {_clock(time.monotonic() - self._started)}"
        )

    def say(self, sentence: str) -> None:
        print(sentence, file=self.stream, flush=True)


class RichProgress(Progress):
    """Bars with loss, speed and time left; finished runs stay above as one line each."""

    def __init__(self, runs: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        self._console = Console(stderr=True, highlight=False)
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            expand=True,
        )
        self._all = self._bars.add_task("all runs", total=runs, note="")
        self._task: Any = None
        self._label, self._note, self._started = "", "", 0.0

    def __enter__(self) -> RichProgress:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def begin(self, run: str, phase: str, total: int, done: int = 0) -> None:
        self._remove()
        self._label, self._note, self._started = f"{run}: {phase}", "", time.monotonic()
        self._task = self._bars.add_task(self._label, total=total, completed=done, note="")

    def update(self, done: int, note: str = "") -> None:
        self._note = note
        self._bars.update(self._task, completed=done, note=note)

    def end(self) -> None:
        self._remove()
        note = f", {self._note}" if self._note else ""
        self.say(f"{self._label}{note}, {_clock(time.monotonic() - self._started)}")

    def _remove(self) -> None:
        if self._task is not None:
            self._bars.remove_task(self._task)
            self._task = None

    def say(self, sentence: str) -> None:
        self._console.print(sentence, markup=False, soft_wrap=True)

    def run_done(self) -> None:
        self._bars.advance(self._all)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
