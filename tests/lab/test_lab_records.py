"""Records are whole or not there, and say which run they are of."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import subprocess
import threading
import time
from pathlib import Path

import pytest
from lab_cases import tiny

import ordinate
from ordinate.files import DiskFull, write_file
from ordinate.lab.config import RunConfig, run_names
from ordinate.lab.records import (
    MetricsFile,
    MetricsPrefix,
    Sweep,
    parse_metrics,
    read_json,
    read_run,
    read_runs,
    sha256_of,
    write_json,
)
from ordinate.lab.report.gather import gather
from ordinate.lab.run import environment
from ordinate.lab.run.build import make_model
from ordinate.lab.run.cost import parameters_of
from ordinate.lab.run.environment import describe
from ordinate.lab.run.progress import Progress
from ordinate.lab.run.sweep import check_room, plan, run_all
from ordinate.lab.run.train import train_and_evaluate


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_file_is_written_whole_or_stays_as_it_was(tmp_path, monkeypatch, number):
    path = tmp_path / "sweep.json"
    write_file(path, b"before")

    def full(_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFull, match=r"there is no room on disk for .*sweep.json"):
        write_file(path, b"after")
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_stop_in_the_middle_of_a_file_leaves_nothing_behind(tmp_path, monkeypatch):
    def stop(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        write_file(tmp_path / "a", b"x")
    assert list(tmp_path.iterdir()) == []


def test_a_line_that_finds_no_room_is_taken_back_whole(tmp_path):
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
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
    with pytest.raises(DiskFull, match=r"no room on disk for .*metrics.jsonl"):
        metrics.append(kind="train", step=2)
    real.close()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"kind": "train", "step": 1}\n'


def test_metrics_opened_again_keep_what_was_marked_and_forget_what_comes_again(tmp_path):
    path = tmp_path / "metrics.jsonl"
    metrics = MetricsFile(path)
    for step in range(1, 4):
        metrics.append(kind="train", step=step)
    prefix = metrics.prefix()
    metrics.append(kind="train", step=4)
    metrics.close()
    with path.open("ab") as file:
        file.write(b'{"kind": "tra')  # a line that was being written when the process was killed
    again = MetricsFile(path, prefix)
    assert [metric["step"] for metric in again.metrics] == [1, 2, 3]
    again.append(kind="train", step=4)
    end = again.prefix()
    again.close()
    assert end == MetricsPrefix(4, hashlib.sha256(path.read_bytes()).hexdigest())
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3, 4]


def test_a_config_survives_json_and_refuses_what_it_does_not_know():
    config = tiny("rope+yarn:factor=4", extensions=("ntk:factor=2",), text=("a", "b"))
    assert RunConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert set(config.settings()) == {f.name for f in dataclasses.fields(config)} - {"spec", "seed"}


def test_every_run_has_a_folder_of_its_own():
    arms = ["rope", "ROPE", "rope:base=1e6", "rope+base=1e6", "t5:a=(1, 2)", "../../etc"]
    names = run_names(arms, [0, 1])
    assert len(set(names.values())) == 12
    assert all("/" not in name and not name.startswith(".") for name in names.values())
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


def test_what_is_written_is_what_can_be_read(tmp_path):
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    metrics.append(kind="train", step=1)
    for what in ({"name": "half \udce9"}, {"loss": 1e61}, {"step": 10**18}):
        with pytest.raises(ValueError, match=r"a line of metrics\.jsonl must be JSON, cannot be read"):
            metrics.append(kind="train", **what)
        with pytest.raises(ValueError, match=r"config\.json must be JSON, cannot be read"):
            write_json(tmp_path / "config.json", what)
    metrics.close()
    assert list(parse_metrics((tmp_path / "metrics.jsonl").read_bytes())) == metrics.metrics
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
    settings = RunConfig("rope", text_source="half \udce9").settings()
    with pytest.raises(ValueError, match=r"sweep\.json must be JSON, cannot be read"):
        Sweep(("rope",), (0,), settings)


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
    from ordinate.lab.run.run_lock import lock_run

    small = {"steps": 3, "d_model": 16, "num_heads": 2, "num_layers": 1, "batch": 2}
    sweep = plan(arms=["none", "rope"], task="copy", train_length=8, extensions=(), **small)
    with lock_run(tmp_path / "runs" / "none-0"):
        other = threading.Thread(target=run_all, args=(sweep, tmp_path))
        other.start()
        time.sleep(0.5)
        assert not (tmp_path / "runs" / "none-0").exists()  # it waits
    other.join(60)
    assert [run.state for run in read_runs(tmp_path)[1]] == ["finished"] * 2
    assert not list((tmp_path / "runs").glob(".*"))


SMALL = {
    "task": "copy", "train_length": 8, "lengths": (8, 16), "steps": 6, "validate_every": 3, "batch": 2,
    "d_model": 16, "num_heads": 2, "num_layers": 1, "extensions": (),
}  # fmt: skip


class Listener(Progress):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, sentence: str) -> None:
        self.said.append(sentence)


def without(kind: str, **where):
    """Take lines out, and leave the rest as it was."""

    def change(lines):
        return [
            one for one in lines if one["kind"] != kind or any(one[k] != v for k, v in where.items())
        ]

    return change


def with_value(kind: str, name: str, value: object):
    return lambda lines: [{**one, name: value} if one["kind"] == kind else one for one in lines]


# Changes after which the checksums are made to fit: only what the lines say can give them away.
FORGERIES = {
    "no training": without("train"),
    "a step of training missing": without("train", step=4),
    "steps in another order": lambda lines: lines[::-1],
    "a step twice": lambda lines: [lines[0], *lines],
    "a validation missing": without("validation", step=3),
    "an evaluation missing": without("evaluation", length=16),
    "no baseline": without("baseline"),
    "no cost": without("cost"),
    "a length of letters": with_value("evaluation", "length", "16"),
    "no length": with_value("evaluation", "length", None),
    "no step": with_value("train", "step", None),
    "a loss of letters": with_value("evaluation", "loss", "1.2"),
    "a loss of none": with_value("evaluation", "loss", None),
    "a true gradient": with_value("train", "grad_norm", True),
    "a baseline without a name": with_value("baseline", "name", None),
    "a table of words": with_value("evaluation", "positions", "none"),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_report_and_resume_mean_the_same_by_damaged(tmp_path, what):
    sweep = plan(arms=["none", "rope"], **SMALL)
    run_all(sweep, tmp_path)
    directory = tmp_path / "runs" / "rope-0"
    before = read_run(directory).metrics
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    changed = "".join(json.dumps(line) + "\n" for line in FORGERIES[what](lines))
    (directory / "metrics.jsonl").write_text(changed)
    result = read_json(directory / "result.json")
    digests = {**result["sha256"], "metrics.jsonl": sha256_of(directory / "metrics.jsonl")}
    write_json(directory / "result.json", {**result, "sha256": digests})
    (left_out,) = gather(tmp_path).left_out
    assert (left_out.name, left_out.state) == ("rope-0", "damaged")
    listener = Listener()
    run_all(sweep, tmp_path, listener)
    assert f"rope-0 is damaged and is run again: {left_out.reason}" in listener.said
    again = read_run(directory)
    assert again.state == "finished"
    assert [one.get("loss") for one in again.metrics] == [one.get("loss") for one in before]


@pytest.mark.parametrize("content", ["[]", "null", '"x"', "{}", "[1]", '[{"threads": "2"}]'])
def test_an_environment_that_describes_nothing_is_damage(tmp_path, content):
    train_and_evaluate(tiny(), tmp_path)
    (tmp_path / "environment.json").write_text(content)
    assert read_run(tmp_path, tiny()).state == "damaged"
    result = read_json(tmp_path / "result.json")
    digests = {**result["sha256"], "environment.json": sha256_of(tmp_path / "environment.json")}
    write_json(tmp_path / "result.json", {**result, "sha256": digests})
    assert read_run(tmp_path, tiny()).state == "damaged"


def test_a_run_that_diverges_does_not_keep_the_others_from_being_done(tmp_path, monkeypatch):
    from ordinate.lab.run import train

    sweep = plan(arms=["rope", "alibi"], **SMALL)
    step = train._Run._step

    def spoiled(self, model):
        loss, norm = step(self, model)
        return loss, norm * float("nan") if self.config.spec == "rope" else norm

    monkeypatch.setattr(train._Run, "_step", spoiled)
    run_all(sweep, tmp_path)
    found = gather(tmp_path)
    assert [(run.spec, run.diverged) for run in found.runs] == [("rope", True), ("alibi", False)]
    assert found.runs[0].record.reason == "at step 1 its gradient norm is nan"
    assert found.left_out == ()


def test_room_is_needed_only_for_runs_that_are_still_to_be_done(tmp_path, monkeypatch):
    sweep = plan(arms=["none", "rope"], **SMALL)
    run_all(sweep, tmp_path)
    weights = 4 * parameters_of(make_model(sweep.configs()[0]))
    enough_for_one = 7 * weights + 300 * 6
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": free}))
    free = 0
    check_room(sweep, tmp_path)
    (tmp_path / "runs" / "none-0" / "result.json").unlink()
    with pytest.raises(DiskFull):
        check_room(sweep, tmp_path)
    free = enough_for_one
    check_room(sweep, tmp_path)
    (tmp_path / "runs" / "rope-0" / "result.json").unlink()
    with pytest.raises(DiskFull):
        check_room(sweep, tmp_path)


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({"log": "0123abc", "status": ""}, "0123abc"),
        ({"log": "0123abc", "status": " M lab/train.py"}, "0123abc, with changes"),
        ({"log": "", "status": "?? ordinate/"}, None),
    ],
)
def test_a_commit_with_changes_on_top_of_it_says_so(monkeypatch, answers, said):
    monkeypatch.setattr(environment, "_git", lambda command, *_: answers[command])
    assert describe("cpu")["commit"] == said


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

    from ordinate.lab.run.tensorboard import EventFile

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


def test_event_files_of_a_run_that_is_over_stay_and_those_of_a_damaged_one_come_again(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from ordinate.lab.run.tensorboard import EventFile

    def steps() -> list[int]:
        found = EventAccumulator(str(tmp_path / "tensorboard"))
        found.Reload()
        return [event.step for event in found.Scalars("train/loss")]

    for damaged in (False, False, True):  # the first time, with nothing left to do, and again
        if damaged:
            (tmp_path / "config.json").write_text("{}")
        train_and_evaluate(tiny(), tmp_path, observers=[EventFile(tmp_path / "tensorboard")])
        assert steps() == list(range(1, 13))


def test_the_commit_of_a_run_is_the_last_that_changed_any_part_of_the_package(monkeypatch):
    asked = []

    def answer(command, **_):
        asked.append(command[-1])
        return subprocess.CompletedProcess(command, 0, stdout="abc\n" if "log" in command else "")

    monkeypatch.setattr(subprocess, "run", answer)
    assert describe("cpu")["commit"] == "abc"
    assert asked == [str(Path(ordinate.__file__).parent)] * 2
