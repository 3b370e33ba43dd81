"""Runs in processes side by side: the numbers of one after the other, whatever happens to a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from multiprocessing import spawn
from pathlib import Path
from types import ModuleType

import pytest
import torch
from lab_cases import Near, accidents, near, numbers, some_text, tiny, users_environment

from ordinate.entries import register, unregister
from ordinate.files import DiskFull
from ordinate.lab.records import Sweep, read_runs
from ordinate.lab.run import checkpoint, sweep, workers
from ordinate.lab.run.failures import RunFailed, as_raised
from ordinate.lab.run.progress import PlainProgress, Progress
from ordinate.lab.run.stopping import stop_requests
from ordinate.lab.run.sweep import check_memory, how_many_at_once, plan, run_all
from ordinate.lab.run.workers import usable_cores


def sweep_of(*arms: str, **changes) -> Sweep:
    return Sweep(arms, (0,), tiny(**changes).settings(), "ordinate compare", "0")


@pytest.mark.plain
@pytest.mark.parametrize(
    "arms",
    [
        ("none", "learned"),
        pytest.param(("none", "alibi", "learned", "sinusoidal"), marks=pytest.mark.slow),
    ],
)
def test_a_lost_process_and_a_failed_run_are_told_and_the_others_end_as_if_alone(
    tmp_path, monkeypatch, capsys, arms
):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)  # processes are to choose as users' do
    planned = sweep_of(*arms)
    run_all(planned, tmp_path / "alone")
    out = tmp_path / "out"
    with pytest.raises(
        RunFailed, match=r"none-0 lost its process|alibi-0 failed: RuntimeError: Odd: an odd"
    ):
        run_all(planned, out, PlainProgress(), observers=accidents, workers=2)
    said = capsys.readouterr().err
    assert f"{len(arms)} runs, 2 at once, records in" in said
    kept = "when the comparison is resumed it goes on from the checkpoint at step 6"
    assert f"none-0 lost its process (ended by SIGKILL); {kept}\n" in said
    states = {run.directory.name: run.state for run in read_runs(out)[1]}
    unfinished = {"none-0", "alibi-0"} & set(states)
    assert {name for name, state in states.items() if state == "unfinished"} == unfinished
    assert {state for name, state in states.items() if name not in unfinished} == {"finished"}
    if "alibi" in arms:
        where = out / "failures.log"
        assert f"alibi-0 failed: RuntimeError: Odd: an odd one (details in {where})\n" in said
        assert "in observe" in where.read_text()
    run_all(planned, out)
    for name in states:
        assert numbers(out / "runs" / name) == numbers(tmp_path / "alone" / "runs" / name)


@pytest.fixture
def registered():
    yield register
    unregister("near")


@pytest.mark.plain
def test_an_encoding_registered_here_reaches_the_processes_that_train_with_it(
    tmp_path, monkeypatch, registered
):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    registered(near())
    planned = sweep_of("near", "rope+near")
    assert how_many_at_once(planned, tmp_path) > 1 or workers.usable_cores() == 1
    run_all(planned, tmp_path, workers=2)
    assert [run.state for run in read_runs(tmp_path)[1]] == ["finished"] * 2


def test_an_encoding_of_a_script_or_a_function_is_trained_in_the_process_that_has_it(
    tmp_path, registered
):
    class Local(Near):
        """Lower every score by the distance."""

    registered(near(Local))
    planned = sweep_of("near", "none")
    assert how_many_at_once(planned, tmp_path) == 1
    sentence = "workers must be 1 with 'near', whose class other processes cannot import, got 2"
    with pytest.raises(ValueError, match=sentence):
        run_all(planned, tmp_path / "two", workers=2)
    run_all(planned, tmp_path / "one")
    assert [run.state for run in read_runs(tmp_path / "one")[1]] == ["finished"] * 2


def test_an_error_in_a_process_comes_back_or_one_that_can(tmp_path):
    error, details = workers._outcome(tiny("alibi"), tmp_path / "alibi-0", Progress(), accidents)
    assert (type(error), str(error)) == (RuntimeError, "Odd: an odd one")
    assert "in observe" in details
    (tmp_path / "file").touch()
    error, _ = workers._outcome(tiny(), tmp_path / "file" / "rope-0", Progress(), accidents)
    assert isinstance(error, OSError)
    assert error.filename == str(tmp_path / "file")
    assert workers._outcome(tiny(), tmp_path / "rope-0", Progress(), accidents) == (None, "")


def test_what_the_user_can_mend_is_raised_as_it_is_and_the_rest_in_a_sentence():
    for error in (DiskFull("no room"), MemoryError("too large"), FileExistsError(17, "exists", "file")):
        assert as_raised(error, "rope-0 failed") is error
    for error in (ConnectionResetError(104, "reset"), KeyError("x")):
        assert str(as_raised(error, "rope-0 failed")) == "rope-0 failed"


def command(out: Path, text: str, *more: str) -> list[str]:
    return [
        sys.executable, "-m", "ordinate", "compare", "rope", "alibi", "--text", text, "--train-length", "16",
        "--lengths", "16,32", "--steps", "300", "--d-model", "32", "--layers", "1", "--heads", "2", "--extend", "none",
        "--no-report", "--workers", "2", "--out", str(out), *more,
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.plain
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize(
    "how", ["Ctrl-C", "the parent is killed", "twice", "SIGTERM to the parent", "SIGTERM to all"]
)
def test_stopped_runs_save_where_they_are_and_go_on_to_the_same_numbers(tmp_path, how):
    text, out = some_text(tmp_path / "text"), tmp_path / "out"
    environment = users_environment()
    whole = subprocess.run(
        command(tmp_path / "whole", text, "--workers", "1"), env=environment, check=False
    )
    assert whole.returncode == 0
    runs = [out / "runs" / name for name in ("rope-0", "alibi-0")]
    process = subprocess.Popen(
        command(out, text), env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while any(steps(run) < 20 for run in runs):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.002)
    if how == "the parent is killed":
        process.kill()
    elif how == "SIGTERM to the parent":
        process.terminate()
    elif how == "SIGTERM to all":
        os.killpg(process.pid, signal.SIGTERM)
    else:
        for _ in range(2 if how == "twice" else 1):
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
            time.sleep(0.01)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == (-signal.SIGKILL if how == "the parent is killed" else 130)
    if how != "twice":
        while list((out / "runs").glob(".*")):  # they leave in order, locks and all
            time.sleep(0.01)
        # On a busy machine one of them may be done before the other has begun.
        stopped = [run for run in runs if not (run / "result.json").exists()]
        assert stopped
        for run in stopped:
            assert 20 <= checkpoint.load(run / "checkpoint.safetensors").step < 250
    if how == "Ctrl-C" or "SIGTERM" in how:
        assert (
            said.splitlines()[-1] == f"stopped; ordinate compare --resume --out {out} goes on from here"
        )
    assert "Traceback" not in said
    again = [*command(out, text)[:4], "--resume", "--no-report", "--out", str(out)]
    assert subprocess.run(again, env=environment, check=False).returncode == 0
    for run in runs:
        assert numbers(run) == numbers(tmp_path / "whole" / "runs" / run.name)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_while_a_process_starts_is_noted_after_it():
    with pytest.raises(KeyboardInterrupt), stop_requests() as stop_requested:  # noqa: PT012
        with workers._sigint_blocked_in_children():
            # To this thread: another one, of the process's own, may be the one that a terminal's reaches.
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
            assert not stop_requested()
        assert stop_requested()


def _of_the_script(directory: Path):
    return ()


def test_a_process_imports_the_script_only_for_what_is_in_it(monkeypatch):
    script = ModuleType("__main__")
    script.__file__ = "<stdin>"  # as of `python -`; importing that would fail
    monkeypatch.setitem(sys.modules, "__main__", script)
    with workers._without_script_in_children(accidents):
        assert "init_main_from_path" not in spawn.get_preparation_data("process")
    assert sys.modules["__main__"] is script
    monkeypatch.setattr(_of_the_script, "__module__", "__main__")
    monkeypatch.setattr(script, "_of_the_script", _of_the_script, raising=False)
    with workers._without_script_in_children(_of_the_script):
        assert "init_main_from_path" in spawn.get_preparation_data("process")


def steps(directory: Path) -> int:
    path = directory / "metrics.jsonl"
    return path.read_bytes().count(b'"train"') if path.exists() else 0


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, float("inf")),
        ({"cpu.max": "max 100000"}, float("inf")),
        ({"cpu.max": "300000 100000", "a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000"}, 1.5),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, float("inf")),
        ({"cpu/cpu.cfs_quota_us": "250000", "cpu/cpu.cfs_period_us": "100000"}, 2.5),
        ({"cpu.max": "nonsense"}, float("inf")),
    ],
)
def test_a_containers_share_of_the_cores_is_read(tmp_path, files, cores):
    for name, content in files.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(content + "\n")
    (tmp_path / "groups").write_text("1:cpu:/\n0::/a/b\n")
    assert workers._quota(tmp_path / "root", tmp_path / "groups") == cores


def test_cores_are_those_this_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(6)), raising=False)
    for quota, cores in ((float("inf"), 6), (2.9, 2), (0.5, 1)):
        monkeypatch.setattr(workers, "_quota", lambda quota=quota: quota)
        assert usable_cores() == cores


def test_as_many_at_once_as_there_are_cores_and_memory_for(tmp_path, monkeypatch):
    planned = sweep_of("none", "rope", "alibi", "learned")
    monkeypatch.setattr(sweep, "usable_cores", lambda: 8)
    assert how_many_at_once(planned, tmp_path) == 4
    (tmp_path / "runs" / "rope-0").mkdir(parents=True)
    (tmp_path / "runs" / "rope-0" / "result.json").touch()
    assert how_many_at_once(planned, tmp_path) == 3
    assert how_many_at_once(planned, tmp_path, 2) == 2
    assert how_many_at_once(sweep_of("none", "rope", "alibi", threads=4), tmp_path) == 2
    monkeypatch.setattr(sweep, "free_memory", lambda: 800_000_000)
    assert how_many_at_once(planned, tmp_path) == 2
    with pytest.raises(
        MemoryError, match=r"need at least 9\d\d MB for training 3 runs at once with 800 MB free"
    ):
        check_memory(planned, 3)
    for device in ("cuda", "mps"):
        on_gpu = replace(planned, settings={**planned.settings, "device": device})
        assert how_many_at_once(on_gpu, tmp_path) == 1
        with pytest.raises(ValueError, match="workers must be 1 on a GPU, where runs take turns, got 2"):
            how_many_at_once(on_gpu, tmp_path, 2)
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        how_many_at_once(planned, tmp_path, 0)


def test_the_number_of_threads_is_a_runs_own_and_the_callers_comes_back(tmp_path, monkeypatch):
    threads = [7]
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[-1])
    for own in (1, 2):
        run_all(sweep_of("none", steps=1, threads=own), tmp_path / str(own))
        (run,) = read_runs(tmp_path / str(own))[1]
        assert [place["threads"] for place in run.environments] == [own]
    assert threads == [7, 1, 7, 2, 7]


class Silent(Progress):
    """Nothing to see."""


def test_bars_and_lines_of_runs_side_by_side_do_not_mix(capsys):
    assert Silent().for_one_run().__class__ is Silent
    progress = PlainProgress(every=0.0)
    one, two = progress.for_one_run(), progress.for_one_run()
    one.begin("one", "training", 4)
    two.begin("two", "training", 8)
    one.update(3)
    two.update(5)
    one.end()
    err = capsys.readouterr().err
    assert "one: training 3/4" in err
    assert "two: training 5/8" in err


def test_the_control_is_as_long_as_training_at_most_and_may_be_left_out(tmp_path):
    text = some_text(tmp_path / "text")
    options = {
        "arms": ["none"], "text": (text,), "train_length": 8, "lengths": (8, 64), "batch": 2, "d_model": 16,
        "num_heads": 2, "num_layers": 1, "extensions": (), "evaluation_tokens": 1024,
    }  # fmt: skip
    counted = {}

    class Counting(Progress):
        def begin(self, run, phase, total, done=0):
            counted[phase] = total

    for steps in (2, 40, 1000):
        run_config = plan(steps=steps, **options).configs()[0]
        windows, _ = sweep.Language(sweep.load_corpus((text,))).windows(run_config)
        counted[steps] = len(windows)
    assert counted.pop(1000) == 16 * 16  # one in four of every stretch
    assert counted.pop(40) <= 80
    assert counted.pop(2) == 16  # one of every stretch
    run_all(plan(steps=20, **options), tmp_path / "with", Counting())
    assert counted.pop("control") <= 40
    run_all(plan(steps=8, control=False, **options), tmp_path / "without", Counting())
    assert "control" not in counted
    lines = numbers(tmp_path / "without" / "runs" / "none-0")
    (at_64,) = (one for one in lines if one["kind"] == "evaluation" and one["length"] == 64)
    assert (at_64["gain"], at_64["windowed_loss"]) == (None, None)
    assert 0 < at_64["last_loss"] < 10
    json.dumps(at_64, allow_nan=False)
