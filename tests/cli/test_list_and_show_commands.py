"""``ordinate list`` and ``ordinate show`` as a person and as a program see them."""

# ruff: noqa: E501  one case a line, however long
from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import ordinate
from ordinate.cli.app import run


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize(
    "command", ["list", "show rope", "show sinusoidal --dim 64", "show t5 --length 20"]
)
def test_output_fits_the_terminal(capsys, monkeypatch, command, width):
    monkeypatch.setenv("COLUMNS", str(width))
    assert run(command.split()) == 0
    captured = capsys.readouterr()
    assert max(map(len, captured.out.splitlines())) <= width
    assert captured.err == ""
    assert "\x1b" not in captured.out


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("show rope", ["a'", "b'", "plain q·k", "turned q·k"]),
        ("show t5:bidirectional=true", ["\n      23 ", "\n      30 ", "-64 to -90"]),
        ("show sinusoidal --length 64", ["\n        23 ", "\n        62 "]),
    ],
)
def test_nothing_is_left_out_of_a_narrow_output(capsys, monkeypatch, command, words):
    monkeypatch.setenv("COLUMNS", "40")
    assert run(command.split()) == 0
    out = capsys.readouterr().out
    assert [word for word in words if word not in out] == []
    assert "…" not in out


def test_a_long_table_on_a_terminal_says_what_it_left_out(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    assert run(["show", "t5:bidirectional=true,num_buckets=128,max_distance=512"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(r"… and \d+ lines; ordinate show t5:\S+ \| less", out)


@pytest.mark.parametrize("width", [50, 100])
def test_list_tells_name_place_kind_year_paper_and_users(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    assert run(["list"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for entry in ordinate.catalog.values():
        assert re.search(rf"\b{entry.name} ", out)
        assert f"{entry.year} {entry.paper}" in out
    assert "queries, keys" in out
    assert "learned" in out
    assert "fixed" in out
    assert "BLOOM, MPT" in out
    assert "acts on nowhere" not in out


@pytest.mark.parametrize("name", ["Yarn", " yarn ", "RoPE+YaRN", "rope + yarn"])
def test_a_name_is_shown_however_it_is_written(capsys, name):
    assert run(["show", "yarn", "--json"]) == 0
    expected = json.loads(capsys.readouterr().out)["steps"]
    assert run(["show", name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == expected


def test_list_as_json_is_the_whole_catalog(capsys):
    assert run(["list", "--json"]) == 0
    parsed = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in parsed] == list(ordinate.catalog)
    rope = next(row for row in parsed if row["name"] == "rope")
    assert rope["acts"] == "rotate"
    assert rope["learned"] is False
    assert rope["year"] == 2021
    assert rope["formula"] == ordinate.catalog["rope"].formula
    assert "base" in rope["options"]


def test_show_prints_the_walk_and_json_holds_every_number(capsys):
    assert run(["show", "rope", "--position", "5", "--dim", "4"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("rope  turns queries and keys (arXiv:2104.09864, 2021)")
    assert "the angle of each pair at position 5" in out
    assert run(["show", "rope", "--position", "5", "--dim", "4", "--json"]) == 0
    parsed = json.loads(capsys.readouterr().out)
    assert parsed == json.loads(json.dumps(ordinate.show("rope", position=5, dim=4).to_dict()))


@pytest.mark.parametrize(
    "name", ["proportional", "rope+longrope", "none", "alibi:max_exponent=1e9", "rope:base=1e300"]
)
def test_json_is_strict(capsys, name):
    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    assert run(["show", name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out, parse_constant=refuse)["steps"]


@pytest.mark.plain
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("command", ["list", "show rope --json", "plot rope --json"])
def test_an_output_that_is_full_is_a_sentence(command):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ordinate", *command.split()],
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    first, blank, hint = done.stderr.splitlines()
    assert done.returncode == 2
    assert first == "standard output must take what is written, got: No space left on device"
    assert (blank, hint) == ("", f"hint: ordinate {command.split()[0]} --help")


@pytest.mark.plain
@pytest.mark.parametrize(
    "command", ["list", "show rope", "show alibi --json", "plot rope --json", "show --help"]
)
def test_a_reader_who_has_seen_enough_is_no_failure(command):
    read, write = os.pipe()
    os.close(read)  # as head does after its last line
    with open(write, "w") as left:
        done = subprocess.run(
            [sys.executable, "-m", "ordinate", *command.split()],
            check=False,
            stdout=left,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(os.name != "posix", reason="a shell closes the streams")
def test_streams_that_are_closed_are_no_failure():
    """As a job without a terminal may start."""
    command = f"{shlex.quote(sys.executable)} -m ordinate show rope >&- 2>&-"
    assert subprocess.run(command, shell=True, check=False).returncode == 0


MISUSE = [
    (["show"], "NAME", "ordinate show --help"),
    (["show", "rop"], "unknown encoding 'rop' in spec 'rop'; did you mean 'rope'", "ordinate list"),
    (["show", "rope", "--dim", "7"], "--dim must be even, channels turn in pairs, got 7", "ordinate show --help"),
    (["show", "rope:head_dim=7"], "head_dim must be even, channels turn in pairs, got 7", "ordinate show --help"),
    (["show", "rope", "--dim", "0"], "--dim must be at least 1, got 0", "ordinate show --help"),
    (["show", "rope", "--dim", "5000"], "--dim must be at most 1024, got 5000", "ordinate show --help"),
    (["show", "rope", "--position", "-1"], "--position must be at least 0, got -1", "ordinate show --help"),
    (["show", "rope", "--position", "9999999999"], "--position must be at most 536870911", "ordinate show --help"),
    (["show", "alibi", "--heads", "1000"], "--heads must be at most 256, got 1000", "ordinate show --help"),
    (["show", "t5", "--length", "100"], "--length must be at most 64, got 100", "ordinate show --help"),
    (["show", "t5:max_distance=99999999999"], "max_distance of an example must be at most", "ordinate show --help"),
    (["show", "clipped:max_distance=+1000000000"], "max_distance of an example must be at most", "ordinate show --help"),
    (["show", "clipped:max_distance=1_000_000_000"], "max_distance of an example must be at most", "ordinate show --help"),
    (["show", "clipped:max_distance=0x3b9aca00"], "max_distance of an example must be at most", "ordinate show --help"),
    (["show", "learned:max_positions=1_000_000_00"], "max_positions of an example must be at most", "ordinate show --help"),
    (["show", "learned:max_positions=65536,d_model=65536"], "d_model of an example must be at most 1024, got 65536", "ordinate show --help"),
    (["show", "learned:max_positions=65536,d_model=1024"], "numbers in the table of learned must be at most", "ordinate show --help"),
    (["show", "shaw:max_distance=65536,head_dim=1024"], "numbers in the table of shaw must be at most", "ordinate show --help"),
    (["show", "clipped:max_distance=65536,num_heads=256"], "numbers in the table of clipped must be at most", "ordinate show --help"),
    (["show", "yarn:factor=0.5"], "must follow rope", "ordinate show --help"),
    (["show", "learned:max_positions=2"], "--position must be in 0 … 1 (max_positions=2), got 3", "ordinate show --help"),
    (["show", "rope", "extra"], "extra", "ordinate show --help"),
    (["list", "--nonsense"], "--nonsense", "ordinate list --help"),
]  # fmt: skip


@pytest.mark.plain
@pytest.mark.parametrize(("arguments", "sentence", "hint"), MISUSE, ids=[" ".join(m[0]) for m in MISUSE])
def test_misuse_of_list_and_show_is_a_sentence_and_a_hint(capsys, arguments, sentence, hint):
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    first, blank, last = captured.err.splitlines()
    assert sentence in first
    assert blank == ""
    assert last == f"hint: {hint}"


@pytest.mark.parametrize("command", ["list", "show"])
def test_the_examples_of_help_run(capsys, command):
    assert run([command, "--help"]) == 0
    text = capsys.readouterr().out
    examples = re.findall(
        rf"^ +ordinate ({command}.*?)(?:  +.*)?$", text[text.index("Examples:") :], re.MULTILINE
    )
    assert len(examples) >= 2
    for example in examples:
        assert run(example.split()) == 0, example
        capsys.readouterr()


@pytest.mark.parametrize("command", [["list"], ["show", "rope"]])
def test_no_color_wins_over_forced_colour(capsys, monkeypatch, command):
    colour = re.compile(r"\x1b\[(?:\d+;)*3\d(?:;\d+)*m")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    run(command)
    assert "\x1b[" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    run(command)
    assert not colour.search(capsys.readouterr().out)
