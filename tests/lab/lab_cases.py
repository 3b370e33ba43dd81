"""Runs small enough for a test, and what must be equal between two of them."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import torch

import ordinate
from ordinate.lab.config import RunConfig

TINY = {
    "task": "copy", "train_length": 8, "lengths": (8, 16), "steps": 12, "batch": 4, "d_model": 16,
    "num_layers": 1, "num_heads": 2, "warmup": 2, "evaluation_tokens": 64, "last_tokens": 4,
    "validate_every": 5, "checkpoint_every": 3,
}  # fmt: skip


def tiny(spec: str = "rope", **changes) -> RunConfig:
    return RunConfig(spec, **{**TINY, **changes})


def numbers(directory: Path) -> list[dict]:
    """The metrics of a run without those a clock made."""
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    clocks = ("seconds", "tokens_per_second")
    return [{name: value for name, value in line.items() if name not in clocks} for line in lines]


def users_environment() -> dict[str, str]:
    """The environment without what tests set: Triton's interpreter, above all."""
    ours = ("PYTEST", "TRITON_INTERPRET")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def some_text(folder: Path, size: int = 6000) -> str:
    """Two files of text with a little structure."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("one.txt", "two.txt"):
        words = (f"line {number} of {name}, and {number * number % 97} more\n" for number in range(size))
        (folder / name).write_text("".join(words)[:size])
    return str(folder)


class Odd(Exception):
    """An error that cannot be made again from its words, and so cannot travel between processes."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


def accidents(directory: Path):
    """Observers under which one run loses its process at step 7 and another fails."""

    def observe(metric):
        if metric.get("step") == 7 and directory.name == "none-0":
            os.kill(os.getpid(), signal.SIGKILL)
        if metric.get("step") == 7 and directory.name == "alibi-0":
            raise Odd("an odd", "one")

    return (observe,)


class Near(ordinate.PositionEncoding):
    """Lower every score by the distance."""

    claims = frozenset({"shift invariance", "decay with distance"})

    def bias(self, q, k, q_positions=None, k_positions=None, *, x=None):
        places = ordinate.positions.resolve(q, k, q_positions, k_positions)
        return ordinate.LinearBias(torch.ones(q.shape[1]), places, symmetric=True)


def near(cls: type = Near) -> ordinate.Entry:
    """An entry that no package offers: each process of a comparison has to register it."""
    return ordinate.Entry("near", cls, "bias", False, 2026, "none", "q·k - |i - j|", "no model")
