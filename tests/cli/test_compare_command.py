"""``ordinate compare`` as a person and as a program see it."""

# ruff: noqa: E501  one case a line, however long
from __future__ import annotations

import errno
import json
import os
import re
import shlex
import shutil
import sys

import pytest
import torch

from ordinate.cli.app import run
from ordinate.lab.records import read_runs

TINY = [
    "--task", "copy", "--train-length", "8", "--lengths", "1x,2x", "--steps", "6", "--batch", "2",
    "--d-model", "16", "--heads", "2", "--layers", "1", "--extend", "none", "--no-report",
]  # fmt: skip


def compare(*arguments: object) -> int:
    """In this process; what happens side by side is in ``tests/lab/test_side_by_side.py``."""
    return run(["compare", "--workers", "1", *map(str, arguments)])


def test_data_goes_to_stdout_and_progress_to_stderr(tmp_path, capsys):
    assert compare("rope", "learned", *TINY, "--out", tmp_path / "out") == 0
    captured = capsys.readouterr()
    assert "learned" in captured.out
    assert "6/6" not in captured.out
    assert f"2 runs, records in {tmp_path / 'out'}" in captured.err
    assert "rope-0: training 6/6, loss" in captured.err
    assert "\x1b" not in captured.out + captured.err


def test_json_is_all_there_is_on_stdout(tmp_path, capsys):
    assert compare("rope", "learned", *TINY, "--json", "--out", tmp_path / "out") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["out"] == str(tmp_path / "out")
    assert [one["encoding"] for one in data["encodings"]] == ["rope", "learned"]


def test_without_out_records_go_to_a_folder_named_after_the_time(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert compare("none", *TINY) == 0
    (made,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-\d{6}", made.name)
    assert f"records in runs/{made.name}" in capsys.readouterr().err


def test_an_interrupted_comparison_goes_on_and_ends_as_it_would_have(tmp_path, capsys, monkeypatch):
    assert compare("rope", "alibi", *TINY, "--out", tmp_path / "whole") == 0
    from ordinate.lab.run import train

    real, calls = train.validation_loss, []

    def interrupt(*arguments):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(train, "validation_loss", interrupt)
        assert compare("rope", "alibi", *TINY, "--out", out) == 130
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == f"stopped; ordinate compare --resume --out {out} goes on from here"
    before = (out / "runs" / "rope-0" / "result.json").stat().st_mtime_ns
    assert compare("--resume", "--out", out, "--no-report") == 0
    assert (out / "runs" / "rope-0" / "result.json").stat().st_mtime_ns == before
    (_, one), (_, two) = read_runs(tmp_path / "whole"), read_runs(out)
    assert [run.result["loss"] for run in one] == [run.result["loss"] for run in two]
    assert compare("--resume", "--out", out, "--no-report") == 0  # nothing left to do


def test_encodings_and_seeds_can_be_added_later(tmp_path):
    out = tmp_path / "out"
    assert compare("rope", *TINY, "--out", out) == 0
    before = (out / "runs" / "rope-0" / "result.json").stat().st_mtime_ns
    assert compare("alibi", "--seeds", 2, "--resume", "--out", out, "--no-report") == 0
    sweep, runs = read_runs(out)
    assert (sweep.arms, sweep.seeds) == (("rope", "alibi"), (0, 1))
    assert [run.state for run in runs] == ["finished"] * 4
    assert sweep.command.startswith("ordinate compare rope ")
    assert sweep.command.endswith(" alibi --seeds 2")
    assert (out / "runs" / "rope-0" / "result.json").stat().st_mtime_ns == before


def test_a_damaged_run_is_named_and_run_again(tmp_path, capsys):
    out = tmp_path / "out"
    assert compare("rope", "none", *TINY, "--out", out) == 0
    path = out / "runs" / "rope-0" / "metrics.jsonl"
    path.write_text(path.read_text().replace('"loss": ', '"loss": 1', 1))
    capsys.readouterr()
    assert compare("--resume", "--out", out, "--no-report") == 0
    assert "rope-0 is damaged and is run again: metrics.jsonl is not the file" in capsys.readouterr().err
    assert [run.state for run in read_runs(out)[1]] == ["finished"] * 2


def test_the_recorded_command_does_the_same_again(tmp_path):
    assert compare("rope:base=1e3", *TINY, "--out", tmp_path / "one") == 0
    sweep, _ = read_runs(tmp_path / "one")
    words = shlex.split(sweep.command)
    assert words[:3] == ["ordinate", "compare", "rope:base=1e3"]
    assert run([*words[1:], "--no-report", "--out", str(tmp_path / "two")]) == 0
    assert read_runs(tmp_path / "two")[0] == sweep


def test_lengths_are_numbers_or_multiples_and_the_training_length_is_always_among_them(tmp_path):
    # A later option wins, as everywhere on a command line.
    assert compare("none", *TINY, "--lengths", "3x, 20,1.5x", "--out", tmp_path / "a") == 0
    assert read_runs(tmp_path / "a")[0].settings["lengths"] == [8, 12, 20, 24]


def test_ones_own_text(tmp_path):
    text = tmp_path / "poem.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 100)
    options = [*TINY, "--task", "language", "--text", text]
    assert compare("none", *options, "--out", tmp_path / "out") == 0
    sweep, (only,) = read_runs(tmp_path / "out")
    assert sweep.settings["text"] == [str(text)]
    assert only.of_kind("baseline")[0]["name"] == "byte bigram"
    text.write_text("something else altogether\n" * 100)
    from ordinate.lab.corpus import load_corpus

    load_corpus.cache_clear()
    assert compare("--resume", "--out", tmp_path / "out", "--no-report") == 2


def test_event_files_come_when_asked_for(tmp_path):
    pytest.importorskip("tensorboard")
    assert compare("none", *TINY, "--tensorboard", "--out", tmp_path / "out") == 0
    assert list((tmp_path / "out" / "runs" / "none-0" / "tensorboard").glob("events.*"))


def files(folder) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def text_files(folder) -> None:
    (folder / "empty.txt").write_bytes(b"")
    (folder / "binary.bin").write_bytes(b"\x7fELF\0\0\0")
    (folder / "short.txt").write_text("too short")
    (folder / "byte.txt").write_text("x")
    (folder / "hollow").mkdir()
    (folder / "taken").mkdir()
    (folder / "taken" / "mine.txt").write_text("mine")


LONG = "a" * 300  # no file system takes such a name

MISUSE = [  # arguments, sentence, hint
    (["ropee"], "unknown encoding 'ropee' in spec 'ropee'; did you mean 'rope'", "ordinate list"),
    (["rope", "alibi:slope=3"], "unknown option 'slope' of 'alibi'", "compare --help"),
    (["rope:base=-1"], "base must be greater than 1, got -1", "compare --help"),
    (["--preset", "quik"], "unknown preset 'quik'; did you mean 'quick'", "compare --help"),
    (["--preset", "quik", "--lengths", "1x"], "unknown preset 'quik'", "compare --help"),
    (["--task", "pass"], "unknown task 'pass'; did you mean 'passkey'", "compare --help"),
    (["--task", "passkey", "--train-length", "16"], "--train-length must be at least 32 for task 'passkey', got 16", "compare --help"),
    (["--task", "copy", "--lengths", "1"], "--lengths must be at least 2 for task 'copy', got 1", "compare --help"),
    (["--lengths", "64,long"], "--lengths must be numbers such as 128,256 or 1x,2x, got 'long'", "compare --help"),
    (["--lengths", "infx"], "--lengths must be numbers such as 128,256 or 1x,2x, got 'infx'", "compare --help"),
    (["--train-length", "0"], "--train-length must be at least 1, got 0", "compare --help"),
    (["--train-length", "-5"], "--train-length must be at least 1, got -5", "compare --help"),
    (["--steps", "0"], "--steps must be at least 1, got 0", "compare --help"),
    (["--seeds", "0"], "--seeds must be at least 1, got 0", "compare --help"),
    (["--heads", "7"], "--d-model must be a multiple of --heads 7, got", "compare --help"),
    (["--learning-rate", "0"], "--learning-rate must be greater than 0, got 0", "compare --help"),
    (["--learning-rate", "nan"], "--learning-rate must be finite, got nan", "compare --help"),
    (["rope", "--d-model", "15", "--heads", "3"], "head_dim (--d-model / --heads) must be even, channels turn in pairs, got 5", "compare --help"),
    (["--extend", "yam"], "--extend must be scalings of RoPE, got 'yam'; did you mean 'dynamic' or 'yarn'", "compare --help"),
    (["--extend", "alibi"], "--extend must be scalings of RoPE, got 'alibi'", "compare --help"),
    (["--extend", "yarn:factor=4", "--extend", "none"], "--extend must be scalings of RoPE, got 'none'", "compare --help"),
    (["--extend", "yarn:factor=4+alibi"], "--extend must be scalings of RoPE, got 'yarn:factor=4+alibi'", "compare --help"),
    (["--text", "nowhere"], "--text must be files or folders, got {here}/nowhere, which is not there", "compare --help"),
    (["--text", "empty.txt"], "--text must not be empty, got {here}/empty.txt, which has 0 bytes", "compare --help"),
    (["--text", "binary.bin"], "--text must be text, got {here}/binary.bin, which is binary", "compare --help"),
    (["--text", "hollow"], "--text must be files or folders of text, got {here}/hollow, which holds none", "compare --help"),
    (["--text", "short.txt"], "--text must have more than 64 bytes for training at the lengths asked for, got 8", "compare --help"),
    (["--text", "byte.txt"], "--text must have more than 64 bytes for training at the lengths asked for, got 0", "compare --help"),
    (["--text", ""], "--text must be files or folders, got ''", "compare --help"),
    (["--text", "hollow", "--text", ""], "--text must be files or folders, got ''", "compare --help"),
    (["--text", "caf\udce9.txt"], "--text must be named in UTF-8, got '{here}/caf\\udce9.txt'", "compare --help"),
    (["--text", "~no-such-user/notes"], "--text must be files or folders, got {here}/~no-such-user/notes, which is not there", "compare --help"),
    (["--text", LONG], "--text must be files or folders that can be read, got {here}/" + LONG + ": File name too long", "compare --help"),
    (["--out", LONG], f"--out must be a folder that can be written to, got {LONG}: File name too long", "compare --help"),
    (["--out", "taken/" + LONG], f"--out must be a folder that can be written to, got taken/{LONG}: File name too long", "compare --help"),
    (["--task", "copy", "--seeds", "20000"], "arms times seeds must be at most 10000 runs, got 7 times 20000", "compare --help"),
    (["--task", "copy", "--steps", "1000001"], "--steps must be at most 1000000, got 1000001", "compare --help"),
    (["--task", "copy", "--batch", "1" + "0" * 18], "--batch must be at most 999999999999999999, got 1000000000000000000", "compare --help"),
    (["--task", "copy", "--learning-rate", "1e61"], "--learning-rate must be at most 1e+60, got 1e+61", "compare --help"),
    (["--workers", "0"], "--workers must be at least 1, got 0", "compare --help"),
    (["--threads", "0"], "--threads must be at least 1, got 0", "compare --help"),
    (["--device", "tpu"], "--device must be one of 'cpu', 'cuda', 'mps', got 'tpu'", "compare --help"),
    (["--out", "taken"], "--out must be a new or empty folder, got taken", "compare --help"),
    (["--out", "short.txt"], "--out must be a new or empty folder, got short.txt", "compare --help"),
    (["--resume"], "--resume needs --out, the folder of the comparison to go on with", "compare --help"),
    (["--resume", "--out", "hollow"], "hollow must hold a comparison, got a folder without sweep.json", "compare --help"),
    (["--nonsense"], "--nonsense", "ordinate compare --help"),
]  # fmt: skip


@pytest.mark.plain
@pytest.mark.parametrize(("arguments", "sentence", "hint"), MISUSE, ids=[" ".join(m[0]) for m in MISUSE])
def test_misuse_is_one_sentence_and_a_hint_and_nothing_is_written(
    tmp_path, capsys, monkeypatch, arguments, sentence, hint
):
    monkeypatch.chdir(tmp_path)
    text_files(tmp_path)
    before = files(tmp_path)
    assert compare(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    first, blank, last = captured.err.splitlines()
    assert sentence.replace("{here}", str(tmp_path)) in first
    assert blank == ""
    assert last.startswith("hint: ")
    assert hint in last
    assert files(tmp_path) == before


def forbid(monkeypatch, folder) -> None:
    """Nobody may look into a folder; for root, who may, too."""
    real = os.stat

    def look(path, *arguments, **options):
        if str(path).startswith(f"{folder}/"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", look)


@pytest.mark.plain
@pytest.mark.parametrize("option", ["--out", "--text"])
def test_a_folder_out_of_reach_is_one_sentence(tmp_path, capsys, monkeypatch, option):
    forbid(monkeypatch, tmp_path / "private")
    path = tmp_path / "private" / "mine"
    assert compare("none", option, path) == 2
    rule = {"--out": "a folder that can be written to", "--text": "files or folders that can be read"}
    assert capsys.readouterr().err == (
        f"{option} must be {rule[option]}, got {path}: Permission denied\n\nhint: ordinate compare --help\n"
    )


@pytest.mark.plain
@pytest.mark.parametrize("lost", ["all of it", "sweep.json"])
def test_records_that_somebody_removes_before_the_end_are_told_in_a_sentence(
    tmp_path, capsys, monkeypatch, lost
):
    from ordinate.lab.run import sweep

    real, out = sweep.run_all, tmp_path / "out"

    def run_all(*arguments, **options):
        real(*arguments, **options)
        shutil.rmtree(out)
        if lost != "all of it":
            out.mkdir()
            (out / "sweep.json").write_text("{}")

    monkeypatch.setattr(sweep, "run_all", run_all)
    assert compare("none", *TINY, "--out", out) == 2
    *_, first, blank, last = capsys.readouterr().err.splitlines()
    sentence = "{} must hold a comparison, got a folder without sweep.json"
    if lost == "sweep.json":
        sentence = "{}/sweep.json must be that of a comparison, cannot be read: KeyError"
    assert first.startswith(sentence.format(out))
    assert (blank, last) == ("", "hint: ordinate compare --help")


@pytest.mark.plain
def test_a_comparison_is_not_made_larger_than_it_could_be_read(tmp_path, capsys):
    out = tmp_path / "out"
    assert compare("none", *TINY, "--out", out) == 0
    before = (out / "sweep.json").read_bytes()
    assert compare("--resume", "--seeds", 10_001, "--out", out) == 2
    sentence = "arms times seeds must be at most 10000 runs, got 1 times 10001"
    assert sentence in capsys.readouterr().err
    assert (out / "sweep.json").read_bytes() == before


@pytest.mark.plain
def test_a_gpu_that_is_not_there_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    asked = (("cuda", ["--device", "cuda"]), ("cuda", ["--preset", "gpu"]), ("mps", ["--device", "mps"]))
    for device, arguments in asked:
        assert compare(*arguments) == 2
        err = capsys.readouterr().err
        assert err.startswith(
            f"--device must be one that is there, got {device!r}, which PyTorch does not find\n"
        )
    assert files(tmp_path) == set()


@pytest.mark.plain
def test_a_disk_without_room_is_refused_before_anything_is_written(tmp_path, capsys, monkeypatch):
    from ordinate.lab.run import sweep

    monkeypatch.setattr(sweep.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    assert compare("rope", *TINY, "--out", tmp_path / "out") == 2
    first, _, last = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"--out must have room for \d+ MB, got .*out with 0 MB free", first)
    assert last == "hint: --out on another disk"
    assert files(tmp_path) == set()


@pytest.mark.plain
def test_a_model_larger_than_memory_is_refused_before_anything_is_made(tmp_path, capsys, monkeypatch):
    from ordinate.lab.run import sweep

    monkeypatch.setattr(sweep, "free_memory", lambda: 1000)
    monkeypatch.setattr(sweep, "make_model", None)
    assert compare("rope", *TINY, "--out", tmp_path / "out") == 2
    first, blank, last = capsys.readouterr().err.splitlines()
    assert re.fullmatch(
        r"--batch times --train-length, --d-model and --layers must fit into memory, got 2 × 8, 16 and 1, "
        r"which need at least \d+ MB for training with 0 MB free",
        first,
    )
    assert (blank, last) == ("", "hint: ordinate compare --help")
    assert files(tmp_path) == set()


@pytest.mark.plain
def test_a_disk_that_fills_up_stops_with_a_sentence_and_the_comparison_can_go_on(
    tmp_path, capsys, monkeypatch
):
    real, calls = os.fsync, []

    def fill_up(handle):
        calls.append(handle)
        if len(calls) > 6:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fill_up)
        assert compare("rope", "alibi", *TINY, "--out", out) == 2
    *_, first, blank, last = capsys.readouterr().err.splitlines()
    assert first.startswith("there is no room on disk for ")
    assert (blank, last) == ("", f"hint: free some, then ordinate compare --resume --out {out}")
    assert list(out.rglob(".*")) == []  # neither a temporary file nor a lock
    assert compare("--resume", "--out", out, "--no-report") == 0
    assert [one.state for one in read_runs(out)[1]] == ["finished"] * 2


@pytest.mark.plain
def test_a_comparison_on_disk_is_not_mixed_with_another(tmp_path, capsys):
    out = tmp_path / "out"
    assert compare("rope", *TINY, "--out", out) == 0
    before = files(out)
    refused = [
        (["rope", *TINY], "--out must be a new folder, got", f"ordinate compare --resume --out {out}"),
        (["--resume", "--steps", "7"], "--steps must be 6 as the comparison in", "another --out"),
        (
            ["--resume", "--lengths", "1x,4x"],
            "--lengths must be (8, 16) as the comparison in",
            "another --out",
        ),
        (["--resume", "--preset", "quick"], "--preset must be left out with --resume", "compare --help"),
        (["--resume", "ropee"], "unknown encoding 'ropee'", "ordinate list"),
    ]
    for arguments, sentence, hint in refused:
        capsys.readouterr()
        assert compare(*arguments, "--out", out) == 2, arguments
        first, _, last = capsys.readouterr().err.splitlines()
        assert sentence in first
        assert hint in last
        assert files(out) == before
    assert compare("--resume", "--steps", "6", "--lengths", "8,16", "--out", out, "--no-report") == 0


@pytest.mark.plain
def test_an_arm_that_diverges_is_a_result_and_the_others_go_on(tmp_path, capsys, monkeypatch):
    from ordinate.lab.run import train

    step = train._Run._step

    def spoiled(self, model):
        loss, norm = step(self, model)
        return loss, norm * float("inf") if self.config.spec == "rope" and self.step == 3 else norm

    monkeypatch.setattr(train._Run, "_step", spoiled)
    assert compare("rope", "alibi", *TINY, "--json", "--out", tmp_path / "out") == 1
    captured = capsys.readouterr()
    rope, alibi = json.loads(captured.out)["encodings"]
    assert (rope["seeds"], rope["diverged_seeds"]) == ([], [0])
    assert (alibi["seeds"], alibi["diverged_seeds"]) == ([0], [])
    *_, first, blank, last = captured.err.splitlines()
    assert first == "1 of 2 runs did not finish: rope-0 diverged: at step 4 its gradient norm is inf"
    assert (blank, last) == ("", "hint: a lower --learning-rate, and another --out")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("result.json")}
    assert compare("--resume", "--out", tmp_path / "out") == 1  # nothing to do, and still not finished
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("result.json")} == before
    captured = capsys.readouterr()
    assert "Diverged, and left out of every mean: rope (seed 0)" in captured.out.replace("\n", " ")
    assert re.search(r"^rope +diverged ", captured.out, re.MULTILINE)
    assert (tmp_path / "out" / "report.html").is_file()


@pytest.mark.plain
def test_when_every_arm_diverges_there_is_no_report_and_the_reason_is_said(tmp_path, capsys):
    out = tmp_path / "out"
    assert compare("rope", "alibi", *TINY, "--learning-rate", "1e30", "--out", out) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    *_, first, _, last = captured.err.splitlines()
    assert re.match(
        r"2 of 2 runs did not finish: rope-0 diverged: at step \d+ its gradient norm is nan; alibi-0",
        first,
    )
    assert last == "hint: a lower --learning-rate, and another --out"
    assert run(["report", str(out)]) == 2
    first, _, last = capsys.readouterr().err.splitlines()
    assert first == f"{out} has no finished run, of 2 in its sweep.json; 2 diverged"
    assert last == "hint: a lower --learning-rate, and another --out"


@pytest.mark.plain
@pytest.mark.parametrize(("arguments", "sentence"), [
    (["--lengths", "foo"], "--lengths must be numbers such as 128,256 or 1x,2x, got 'foo'"),
    (["--seeds", "0"], "--seeds must be at least 1, got 0"),
    (["--seeds", "-4"], "--seeds must be at least 1, got -4"),
    (["--seeds", "1"], "--seeds must be at least 2 as the comparison in"),
    (["rope:base=0"], "base must be greater than 1, got 0"),
    (["--extend", "yarn:factor=2"], "--extend must be () as the comparison in"),
])  # fmt: skip
def test_what_cannot_be_gone_on_with_is_one_sentence(tmp_path, capsys, arguments, sentence):
    out = tmp_path / "out"
    assert compare("none", *TINY, "--seeds", 2, "--out", out) == 0
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    capsys.readouterr()
    assert compare("--resume", "--out", out, *arguments) == 2
    first, blank, last = capsys.readouterr().err.splitlines()
    assert first.startswith(sentence)
    assert (blank, last[:6]) == ("", "hint: ")
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


BROKEN_SWEEPS = [
    {"arms": [1, 2]}, {"arms": []}, {"arms": None}, {"arms": ["rope", "rope"]}, {"arms": ["ropee"]},
    {"seeds": ["a"]}, {"seeds": []}, {"seeds": [0, 0]}, {"seeds": [True]}, {"settings": []}, {"format": 1},
    {"settings": {"steps": 3}},
]  # fmt: skip


@pytest.mark.plain
@pytest.mark.parametrize("change", BROKEN_SWEEPS, ids=str)
@pytest.mark.parametrize("command", [["compare", "--resume", "--out"], ["report"]])
def test_a_sweep_that_is_not_one_is_one_sentence(tmp_path, capsys, change, command):
    from ordinate.lab.run.sweep import plan

    plan(arms=["none"], task="copy").save(tmp_path)
    whole = json.loads((tmp_path / "sweep.json").read_text())
    (tmp_path / "sweep.json").write_text(json.dumps({**whole, **change}))
    assert run([*command, str(tmp_path)]) == 2
    first, blank, last = capsys.readouterr().err.splitlines()
    assert first.startswith(f"{tmp_path / 'sweep.json'} must be that of a comparison, cannot be read: ")
    assert (blank, last[:6]) == ("", "hint: ")


@pytest.mark.plain
def test_a_comparison_of_ones_own_text_can_be_gone_on_with_from_any_folder(tmp_path, monkeypatch):
    from ordinate.lab.corpus import load_corpus

    (tmp_path / "here").mkdir()
    (tmp_path / "poem.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 100)
    monkeypatch.chdir(tmp_path / "here")
    options = [*TINY, "--task", "language", "--text", "../poem.txt"]
    assert compare("none", *options, "--out", tmp_path / "out") == 0
    monkeypatch.chdir("/")
    load_corpus.cache_clear()
    assert compare("alibi", "--resume", "--out", tmp_path / "out", "--no-report") == 0
    monkeypatch.chdir(tmp_path)
    assert compare("--resume", "--text", "poem.txt", "--out", tmp_path / "out", "--no-report") == 0
    assert len(read_runs(tmp_path / "out")[1]) == 2


@pytest.mark.plain
def test_another_spelling_of_an_encoding_adds_none(tmp_path):
    out = tmp_path / "out"
    assert compare("rope:base=1e3", "ROPE:base=1000", *TINY, "--out", out) == 0
    assert compare(" Rope:base=1_000", "--resume", "--out", out, "--no-report") == 0
    assert read_runs(out)[0].arms == ("rope:base=1e3",)


@pytest.mark.plain
def test_where_the_records_are_is_said_only_once_they_can_be_there(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert compare("none", *TINY, "--out", tmp_path / "file" / "sub") == 2
    first, blank, _ = capsys.readouterr().err.splitlines()
    assert first.startswith("--out must be a folder that can be written to, got ")
    assert blank == ""


def test_one_run_is_one_run_and_rows_out_of_reach_are_said(tmp_path, capsys):
    assert compare("clipped:max_distance=9", *TINY, "--out", tmp_path / "out") == 0
    err = capsys.readouterr().err
    assert f"1 run, records in {tmp_path / 'out'}" in err
    assert (
        "clipped:max_distance=9 has rows for distances up to 9, which training at 8 never reaches" in err
    )


@pytest.mark.plain
@pytest.mark.parametrize(
    ("missing", "option", "extra"),
    [("safetensors", [], "lab"), ("tensorboard", ["--tensorboard"], "tensorboard"), ("ray", ["--cluster", "auto"], "cluster")],
)  # fmt: skip
def test_a_missing_package_is_one_sentence_with_the_install_command(
    tmp_path, capsys, monkeypatch, missing, option, extra
):
    from ordinate.cli import compare as command

    monkeypatch.setattr(command, "find_spec", lambda name: None if name == missing else object())
    assert compare("rope", *TINY, *option, "--out", tmp_path / "out") == 2
    first, _, last = capsys.readouterr().err.splitlines()
    assert first == f"ordinate compare needs {missing} for this, not installed here"
    assert last == f"hint: pip install 'ordinate[{extra}]'"


@pytest.mark.plain
def test_of_several_processes_the_first_speaks_and_another_only_if_it_is_left(capsys, monkeypatch):
    from ordinate.cli import compare as command

    def ended():
        raise SystemExit(143)  # as torchrun ends it, once the first has spoken

    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(command, "_let_rank_0_exit", ended)
    with pytest.raises(SystemExit):
        compare("ropee")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")
    monkeypatch.setattr(command, "_let_rank_0_exit", lambda: None)
    assert compare("ropee") == 2
    assert capsys.readouterr().err.startswith("process 1: unknown encoding 'ropee'")


def test_a_terminal_gets_bars(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    assert compare("rope", "none", *TINY, "--out", tmp_path / "out") == 0
    captured = capsys.readouterr()
    assert "━" in captured.err
    assert "all runs" in captured.err
    assert "━" not in captured.out


def test_help_ends_with_examples_whose_options_exist(capsys):
    assert run(["compare", "--help"]) == 0
    text = capsys.readouterr().out
    examples = text[text.index("Examples:") :]
    for option in set(re.findall(r"--[a-z-]+", examples)) - {"--nproc-per-node"}:
        assert option in text[: text.index("Examples:")], option
    assert len(re.findall(r"ordinate compare", examples)) >= 8
