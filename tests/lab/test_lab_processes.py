"""Several processes train one model as one process would, and compiled it learns what it learns otherwise."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lab_cases import numbers, tiny, users_environment

from ordinate.lab.records import read_runs
from ordinate.lab.run.processes import Processes
from ordinate.lab.run.train import train_and_evaluate

_SMALL = [
    "alibi", "rope", "--task", "copy", "--train-length", "16", "--lengths", "1x,2x", "--steps", "50",
    "--batch", "8", "--d-model", "16", "--heads", "2", "--layers", "2", "--extend", "none", "--no-report",
]  # fmt: skip


def test_processes_share_rows_without_gaps_or_repeats():
    batch = torch.arange(12).view(6, 2)
    parts = [Processes(rank, 3).own_rows(batch) for rank in range(3)]
    assert torch.equal(torch.cat(parts), batch)
    alone = Processes()
    assert alone.main
    assert alone.broadcast("same") == "same"
    assert alone.sum_over_processes(torch.ones(2)).tolist() == [1, 1]


def _compare(out: Path, launcher: list[str]) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*launcher, "-m", "ordinate", "compare", *_SMALL, "--out", str(out)],
        env={**users_environment(), "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.plain
def test_two_processes_under_torchrun_learn_what_one_does(tmp_path):
    alone = _compare(tmp_path / "one", [sys.executable])
    assert alone.returncode == 0, alone.stderr
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    # A port of its own, so that two such tests can run at once.
    both = _compare(
        tmp_path / "two", [*torchrun, "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    )
    assert both.returncode == 0, both.stderr
    assert both.stdout == alone.stdout  # one of them speaks, and says the same
    for run in ("alibi-0", "rope-0"):
        one, two = (
            [line for line in numbers(tmp_path / name / "runs" / run) if line["kind"] == "train"]
            for name in ("one", "two")
        )
        assert [line["step"] for line in one] == list(range(1, 51))
        assert max(abs(a["loss"] - b["loss"]) for a, b in zip(one, two, strict=True)) < 1e-4
        assert max(abs(a["grad_norm"] - b["grad_norm"]) for a, b in zip(one, two, strict=True)) < 1e-3
        # Two processes with the wrong share of the batch would still learn, but something else.
        assert one[-1]["loss"] != one[0]["loss"]


@pytest.mark.slow
@pytest.mark.plain
def test_a_batch_that_cannot_be_shared_is_refused(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "ordinate", "compare", *_SMALL, "--batch", "9", "--out", str(tmp_path / "x")],
        env={**users_environment(), "WORLD_SIZE": "2", "RANK": "0"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("--batch must be a multiple of the 2 processes, got 9\n\nhint: ")
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
@pytest.mark.plain
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
@pytest.mark.parametrize("spec", ["rope", "t5:max_distance=32"])
def test_a_compiled_model_learns_what_it_learns_otherwise(tmp_path, spec):
    for name, compiled in (("eager", False), ("compiled", True)):
        train_and_evaluate(tiny(spec, compile=compiled), tmp_path / name)
    one, two = (
        [line["loss"] for line in numbers(tmp_path / name) if line["kind"] == "train"]
        for name in ("eager", "compiled")
    )
    assert one == pytest.approx(two, abs=1e-4)
    assert json.loads((tmp_path / "compiled" / "config.json").read_text())["compile"] is True


@pytest.mark.slow
@pytest.mark.plain
def test_processes_that_train_together_diverge_together(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "-m", "ordinate", "compare", *_SMALL,
         "--learning-rate", "1e30", "--out", str(tmp_path / "out")],
        env={**users_environment(), "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert "2 of 2 runs did not finish: alibi-0 diverged: at step" in done.stderr
    _, runs = read_runs(tmp_path / "out")
    assert [run.state for run in runs] == ["diverged", "diverged"]
    assert [run.environments[0]["processes"] for run in runs] == [2, 2]
