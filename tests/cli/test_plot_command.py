"""``ordinate plot`` as a person and as a program see it."""

# ruff: noqa: E501  one case a line, however long
from __future__ import annotations

import json
import re
import shlex

import pytest

import ordinate
from ordinate.cli.app import run
from ordinate.plots import api


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("suffix", ["png", "svg", "html"])
def test_a_picture_is_written_and_only_stderr_says_so(capsys, tmp_path, suffix):
    assert run(["plot", "alibi", "--kind", "slopes", "-o", f"a.{suffix}"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"wrote a.{suffix}: alibi, the slope of each head\n"
    assert (tmp_path / f"a.{suffix}").stat().st_size > 1000


def test_json_is_the_numbers_of_the_picture_and_needs_no_file(capsys, tmp_path):
    assert run(["plot", "rope", "--kind", "scores", "--distance", "10", "--json"]) == 0
    captured = capsys.readouterr()
    parsed = json.loads(captured.out)
    expected = ordinate.plots.picture("rope", "scores", distance=10).to_dict()
    assert parsed == json.loads(json.dumps(expected))
    assert list(tmp_path.iterdir()) == []


def test_options_reach_the_picture(capsys):
    command = "plot sinusoidal --kind channels --channels 2,6,12 --positions 9 --dim 32 --json"
    assert run(command.split()) == 0
    (panel,) = json.loads(capsys.readouterr().out)["panels"]
    assert [series["name"] for series in panel["series"]] == ["channel 2", "channel 6", "channel 12"]
    assert panel["series"][0]["x"] == list(range(9))


def test_a_scaling_of_the_spec_is_compared_with_others_that_stretch_as_far(capsys):
    assert run(["plot", "rope+yarn:factor=4", "--kind", "scalings", "--json"]) == 0
    drawn = json.loads(capsys.readouterr().out)
    assert drawn["note"].startswith("stretched 4 times")
    assert run(["plot", "rope", "--kind", "scalings", "--factor", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["panels"] == drawn["panels"]
    assert run(["plot", "rope", "--kind", "scalings", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["note"].startswith("stretched 8 times")
    assert run(["plot", "rope+yarn:factor=4", "--kind", "scalings", "--factor", "16", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["note"].startswith("stretched 16 times")


def test_list_names_every_kind(capsys):
    assert run(["plot", "--list"]) == 0
    out = capsys.readouterr().out
    for kind in ordinate.plots.KINDS:
        assert re.search(rf"^{kind} ", out, re.MULTILINE)


MISUSE = [
    ("plot", "NAME must be an encoding to draw, got none", "ordinate list"),
    ("plot rope", "--output must be a file to draw into, got none", "ordinate plot rope -o rope.png"),
    ("plot rop -o a.png", "unknown encoding 'rop'", "ordinate list"),
    ("plot rope --kind wave -o a.png", "unknown kind 'wave' of picture; did you mean 'waves'", "ordinate plot --list"),
    ("plot alibi --kind codes -o a.png", "--kind must be one that alibi has, bias, distance", "ordinate plot --list"),
    ("plot rope -o a.jpg", "--output must end in .png, .svg, .html, got 'a.jpg'", "ordinate plot --help"),
    ("plot rope -o none/a.png", "--output must be a file that can be written, got", "ordinate plot --help"),
    ("plot rope --pairs x -o a.png", "--pairs must be numbers with commas, got 'x'", "ordinate plot --help"),
    ("plot rope --kind waves --pairs 32 -o a.png", "--pairs must be below 32, got 32", "ordinate plot --help"),
    ("plot rope --kind waves --pairs 0,0 -o a.png", "--pairs must each be named once, got 0, 0", "ordinate plot --help"),
    ("plot rope --kind waves --text hello -o a.png", "--text must be left out for waves, which has no use for it", "ordinate plot --help"),
    ("plot rope --channels 2 -o a.png", "--channels must be left out for rotation, which has no use for it", "ordinate plot --help"),
    ("plot rope --kind wavelengths --factor 8 -o a.png", "--factor must be left out for wavelengths", "ordinate plot --help"),
    ("plot rope --at 1,-1 -o a.png", "--at must be at least 0, got -1", "ordinate plot --help"),
    ("plot rope --positions 9999 -o a.png", "--positions must be at most 4096, got 9999", "ordinate plot --help"),
    ("plot rope --dim 63 -o a.png", "--dim must be even", "ordinate plot --help"),
    ("plot learned --kind profile --at 5000 -o a.png", "--at must be in 0 … 4095", "ordinate plot --help"),
    ("plot rope --kind attention --text '' -o a.png", "--text must have 2 to 16 words, got 0", "ordinate plot --help"),
]  # fmt: skip


@pytest.mark.plain
@pytest.mark.parametrize(("line", "sentence", "hint"), MISUSE, ids=[m[0] for m in MISUSE])
def test_misuse_of_plot_is_a_sentence_and_a_hint_and_writes_nothing(
    capsys, tmp_path, line, sentence, hint
):
    assert run(shlex.split(line)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    first, blank, last = captured.err.splitlines()
    assert sentence in first
    assert blank == ""
    assert last == f"hint: {hint}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.plain
def test_without_a_backend_one_sentence_says_how_to_get_it(capsys, monkeypatch):
    monkeypatch.setattr(api, "find_spec", lambda name: None)
    assert run(["plot", "rope", "-o", "a.png"]) == 2
    err = capsys.readouterr().err
    assert err == (
        "backend 'matplotlib' must be installed: pip install 'ordinate[plot]'\n\n"
        "hint: pip install 'ordinate[plot]'\n"
    )


def test_the_examples_of_plot_help_run(capsys):
    assert run(["plot", "--help"]) == 0
    text = capsys.readouterr().out
    examples = re.findall(
        r"^ +ordinate (plot.*?)(?:  +.*)?$", text[text.index("Examples:") :], re.MULTILINE
    )
    assert len(examples) >= 8
    for example in examples:
        assert run(example.split()) == 0, example
        capsys.readouterr()
