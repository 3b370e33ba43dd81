"""Runs in processes of their own, killed at random steps, end with the numbers they would have had."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lab_cases import numbers, tiny, users_environment

from ordinate.lab.run.train import train_and_evaluate

_SETTINGS = {"steps": 400, "checkpoint_every": 7, "validate_every": 50}
_SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {cases!r})
from lab_cases import tiny
from ordinate.lab.run.train import train_and_evaluate
train_and_evaluate(tiny("alibi", **{settings}), Path(sys.argv[1]))
"""


def _start(directory: Path) -> subprocess.Popen:
    script = _SCRIPT.format(cases=str(Path(__file__).parent), settings=_SETTINGS)
    return subprocess.Popen(
        [sys.executable, "-c", script, str(directory)],
        env=users_environment(),
        stderr=subprocess.PIPE,
        text=True,
    )


def _steps(directory: Path) -> int:
    path = directory / "metrics.jsonl"
    return path.read_bytes().count(b'"train"') if path.exists() else 0


@pytest.mark.plain
@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_at_random_steps_it_ends_with_the_same_numbers(tmp_path, times):
    train_and_evaluate(tiny("alibi", **_SETTINGS), tmp_path / "whole")
    rng, kills = random.Random(0), 0
    killed = tmp_path / "killed"
    while kills < times:
        process = _start(killed)
        start = _steps(killed)
        wanted = start + rng.randint(8, 18)
        while _steps(killed) < wanted and process.poll() is None:
            time.sleep(0.001)
        assert process.poll() is None, process.stderr.read()
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        process.stderr.close()
        kills += 1
        assert not (killed / "result.json").exists()
    train_and_evaluate(tiny("alibi", **_SETTINGS), killed)
    assert numbers(killed) == numbers(tmp_path / "whole")
