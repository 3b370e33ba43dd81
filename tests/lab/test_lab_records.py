"""Records are whole or not there, and say which run they are of."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import threading
import time

import pytest
from lab_cases import tiny

from ordinate.lab.config import RunConfig, run_names
from ordinate.lab.environment import describe
from ordinate.lab.records import MetricsFile, NoRoom, Sweep, read_runs, write_atomically
from ordinate.lab.sweep import plan, run_all


def test_a_file_is_written_whole_or_stays_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "sweep.json"
    write_atomically(path, b"before")

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NoRoom, match=r"there is no room on disk for .*sweep.json"):
        write_atomically(path, b"after")
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_stop_in_the_middle_of_a_file_leaves_nothing_behind(tmp_path, monkeypatch):
    def stop(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "a", b"x")
    assert list(tmp_path.iterdir()) == []


def test_a_line_that_finds_no_room_is_taken_back_whole(tmp_path):
    metrics = MetricsFile(tmp_path / "metrics.jsonl", keep=lambda metric: True)
    metrics.append(kind="train", step=1)
    real = metrics._file

    class Short:
        """A disk with room for half a line."""

        def __getattr__(self, name):
            return getattr(real, name)

        def write(self, line):
            if len(line) < 20:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real.write(line[:20])

    metrics._file = Short()
    with pytest.raises(NoRoom, match=r"no room on disk for .*metrics.jsonl"):
        metrics.append(kind="train", step=2)
    real.close()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"kind": "train", "step": 1}\n'


def test_metrics_opened_again_forget_a_cut_line_and_what_is_to_come_again(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"kind": "train", "step": step}) for step in range(1, 6)]
    path.write_text("\n".join(lines) + '\n{"kind": "tra')
    metrics = MetricsFile(path, keep=lambda metric: metric["step"] <= 3)
    metrics.close()
    assert path.read_text() == "\n".join(lines[:3]) + "\n"


def test_a_config_survives_json_and_refuses_what_it_does_not_know():
    config = tiny("rope+yarn:factor=4", extensions=("ntk:factor=2",), text=("a", "b"))
    assert RunConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert set(config.settings()) == {f.name for f in dataclasses.fields(config)} - {"spec", "seed"}


def test_every_run_has_a_folder_of_its_own():
    arms = ["rope", "ROPE", "rope:base=1e6", "rope+base=1e6", "t5:a=(1, 2)", "../../etc"]
    names = run_names(arms, [0, 1])
    assert len(set(names.values())) == 12
    assert all("/" not in name and not name.startswith(".. ") for name in names.values())
    assert names["rope:base=1e6", 1] == "rope_base=1e6-1"


def test_a_comparison_is_read_back_as_it_was_planned(tmp_path):
    sweep = plan(
        arms=["rope", "alibi"], seeds=2, task="copy", train_length=8, command="ordinate compare"
    )
    sweep.save(tmp_path)
    assert Sweep.load(tmp_path) == sweep
    assert [(config.spec, config.seed) for config in sweep.configs()] == [
        ("rope", 0), ("alibi", 0), ("rope", 1), ("alibi", 1),
    ]  # fmt: skip


def test_all_runs_of_a_comparison_are_done_and_found(tmp_path):
    small = {"steps": 3, "d_model": 16, "num_heads": 2, "num_layers": 1, "batch": 2}
    sweep = plan(arms=["none", "learned"], seeds=2, task="copy", train_length=8, **small)
    run_all(sweep, tmp_path)
    read, runs = read_runs(tmp_path)
    assert read == sweep
    assert [run.state for run in runs] == ["finished"] * 4
    assert runs[0].result["loss"].keys() == {"8", "12", "16", "32", "64"}
    assert runs[1].result["refused"].keys() == {"12", "16", "32", "64"}


def test_two_processes_on_one_comparison_do_each_run_once(tmp_path):
    from ordinate.lab.claim import claim

    small = {"steps": 3, "d_model": 16, "num_heads": 2, "num_layers": 1, "batch": 2}
    sweep = plan(arms=["none", "rope"], task="copy", train_length=8, extensions=(), **small)
    with claim(tmp_path / "runs" / "none-0"):
        other = threading.Thread(target=run_all, args=(sweep, tmp_path))
        other.start()
        time.sleep(0.5)
        assert not (tmp_path / "runs" / "none-0").exists()  # it waits
    other.join(60)
    assert [run.state for run in read_runs(tmp_path)[1]] == ["finished"] * 2
    assert not list((tmp_path / "runs").glob(".*"))


def test_the_environment_names_neither_host_nor_user():
    import getpass
    import socket

    text = json.dumps(describe("cpu")).lower()
    for name in (socket.gethostname(), os.path.expanduser("~")):
        assert len(name) < 3 or name.lower() not in text
    user = getpass.getuser()
    assert user == "root" or user.lower() not in text
    assert describe("cpu")["versions"]["torch"]


def test_event_files_hold_the_records_numbers(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from ordinate.lab.tensorboard import EventFile
    from ordinate.lab.train import train_and_evaluate

    for _ in range(2):  # a second time, as after an interruption: no step twice
        train_and_evaluate(tiny(), tmp_path / "run", observers=[EventFile(tmp_path / "events")])
        (tmp_path / "run" / "result.json").unlink()
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    expected = [(line["step"], line["loss"]) for line in lines if line["kind"] == "train"]
    found = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert [step for step, _ in found] == [step for step, _ in expected]
    assert [value for _, value in found] == pytest.approx([loss for _, loss in expected])
    assert {event.step for event in events.Scalars("length/as trained/accuracy")} == {8, 16}
