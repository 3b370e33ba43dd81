"""``ordinate report`` as a person and as a program see it."""

from __future__ import annotations

import errno
import json
import os
import re

import pytest
from synthetic_records import write_sweep

from ordinate.cli.app import run
from ordinate.lab.report import api as reporting


@pytest.fixture(autouse=True)
def _narrow_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


@pytest.fixture
def folder(tmp_path):
    write_sweep(tmp_path / "demo", ["learned", "rope", "alibi"], seeds=(0, 1))
    return tmp_path / "demo"


def test_the_table_and_findings_are_on_stdout_and_the_path_on_stderr(folder, capsys):
    assert run(["report", str(folder)]) == 0
    captured = capsys.readouterr()
    assert re.search(r"^alibi +≥ 8× +−\d\.\d ± \d\.\d %", captured.out, re.MULTILINE)
    assert "Length. The last tokens at 8× the training length are within 10 % of" in " ".join(
        captured.out.split()
    )
    assert max(map(len, captured.out.splitlines())) <= 80
    assert captured.err == f"\nreport: {folder / 'report.html'}\n"
    assert (folder / "report.html").is_file()


@pytest.mark.parametrize("width", [80, 60, 40, 34])
def test_a_narrow_terminal_gets_fewer_columns_and_whole_words(tmp_path, capsys, monkeypatch, width):
    write_sweep(tmp_path / "demo")
    monkeypatch.setenv("COLUMNS", str(width))
    assert run(["report", str(tmp_path / "demo")]) == 0
    table = capsys.readouterr().out.split("\n\n")[1]
    assert max(map(len, table.splitlines())) <= width
    for word in ("encoding", "stretch", "sinusoidal", "clipped:max_distance=16", "linear:factor=8"):
        assert word in table.split()


def test_json_is_all_there_is_on_stdout_and_nothing_is_written(folder, capsys, monkeypatch):
    monkeypatch.setattr(reporting, "find_spec", lambda name: None)  # and no package to draw is needed
    before = sorted(folder.rglob("*"))
    assert run(["report", str(folder), "--json"]) == 0
    captured = capsys.readouterr()
    assert [arm["encoding"] for arm in json.loads(captured.out)["encodings"]][:1] == ["learned"]
    assert captured.err == ""
    assert sorted(folder.rglob("*")) == before


def test_damaged_runs_are_named_on_stderr(folder, capsys):
    (folder / "runs/rope-1/result.json").write_text("{")
    assert run(["report", str(folder)]) == 0
    assert "left out: rope-1 is damaged: " in capsys.readouterr().err


def empty(folder):
    for path in sorted(folder.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()


def unfinished(folder):
    for path in folder.glob("runs/*/result.json"):
        path.unlink()


def nonsense(folder):
    (folder / "sweep.json").write_text("[]")


def other_version(folder):
    sweep = json.loads((folder / "sweep.json").read_text())
    (folder / "sweep.json").write_text(json.dumps({**sweep, "settings": {"steps": 3}}))


MISUSE = {
    "an empty folder": (empty, "must hold a comparison, got a folder without sweep.json", "ordinate compare"),
    "no finished run": (unfinished, "has no finished run, of 6 in its sweep.json", "ordinate compare --resume --out"),
    "a sweep that is none": (nonsense, "sweep.json", "ordinate compare"),
    "settings of another version": (other_version, "config must have the fields of RunConfig", "ordinate compare"),
}  # fmt: skip


@pytest.mark.plain
@pytest.mark.parametrize("what", MISUSE)
def test_what_cannot_be_reported_is_one_sentence_and_a_hint(folder, capsys, what):
    spoil, sentence, hint = MISUSE[what]
    spoil(folder)
    assert run(["report", str(folder)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    first, blank, last = captured.err.splitlines()
    assert sentence in first
    assert blank == ""
    assert last.startswith(f"hint: {hint}")
    assert not (folder / "report.html").exists()


@pytest.mark.plain
def test_a_folder_that_is_not_there_is_one_sentence(tmp_path, capsys):
    assert run(["report", str(tmp_path / "nowhere")]) == 2
    assert "got " + str(tmp_path / "nowhere") + ", which is not there" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert run(["report", str(tmp_path / "file")]) == 2
    err = capsys.readouterr().err
    assert "got " + str(tmp_path / "file") + ", which is no folder" in err
    assert "hint: ordinate compare --out runs/demo makes one" in err


@pytest.mark.plain
def test_a_folder_out_of_reach_is_one_sentence(tmp_path, capsys, monkeypatch):
    long = tmp_path / ("a" * 300)
    assert run(["report", str(long)]) == 2
    hint = "hint: ordinate compare --out runs/demo makes one"
    said = f"DIR must be the folder of a comparison, got {long}: File name too long\n\n{hint}\n"
    assert capsys.readouterr().err == said
    real = os.stat

    def look(path, *arguments, **options):
        if str(path).startswith(f"{tmp_path}/private/"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", look)
    assert run(["report", str(tmp_path / "private" / "mine")]) == 2
    assert "private/mine: Permission denied\n" in capsys.readouterr().err


@pytest.mark.plain
def test_runs_that_nobody_may_look_at_are_left_out(folder, capsys, monkeypatch):
    (folder / "runs" / "mine").symlink_to(folder / ("a" * 300))
    (folder / "runs" / "rope-1").rename(folder / "elsewhere")
    (folder / "runs" / "rope-1").symlink_to(folder / ("a" * 300))
    assert run(["report", str(folder)]) == 0
    assert "left out: rope-1 is damaged: it must be a folder" in capsys.readouterr().err


@pytest.mark.plain
def test_a_foreign_folder_of_any_bytes_is_named(folder, capsys):
    try:
        os.mkdir(os.fsencode(folder / "runs") + b"/d\xe9")
    except OSError:
        pytest.skip("this file system takes names of UTF-8 alone")
    assert run(["report", str(folder)]) == 0
    assert "left out: d\\udce9 is foreign" in capsys.readouterr().err


@pytest.mark.plain
def test_a_file_of_a_comparison_leads_to_its_folder(folder, capsys):
    assert run(["report", str(folder / "sweep.json")]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"hint: ordinate report {folder}"


@pytest.mark.plain
def test_without_what_draws_one_sentence_says_how_to_get_it(folder, capsys, monkeypatch):
    monkeypatch.setattr(reporting, "find_spec", lambda name: None if name == "plotly" else True)
    assert run(["report", str(folder)]) == 2
    assert capsys.readouterr().err == (
        "a report needs plotly, not installed here\n\nhint: pip install 'ordinate[lab]'\n"
    )


@pytest.mark.plain
def test_a_folder_that_cannot_be_written_is_one_sentence(folder, capsys):
    (folder / "figures").write_text("in the way")
    assert run(["report", str(folder)]) == 2
    first, blank, last = capsys.readouterr().err.splitlines()
    assert first.startswith(f"the report of {folder} cannot be written: ")
    assert blank == ""
    assert last.startswith("hint: ")


def test_help_ends_with_examples(capsys):
    assert run(["report", "--help"]) == 0
    assert "ordinate report runs/demo --json" in capsys.readouterr().out
