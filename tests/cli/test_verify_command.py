"""``ordinate verify`` as a person and as a program see it."""

# ruff: noqa: E501  one case a line, however long
from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
import torch

import ordinate
from ordinate import cli
from ordinate.cli import verify as command
from ordinate.cli.app import run
from ordinate.cli.verify_tables import shortened
from ordinate.entries import example_specs
from ordinate.verification.properties import PROPERTIES
from ordinate.verification.report import Status

SMALL = ["--head-dim", "8", "--heads", "2", "--train-length", "64"]


@pytest.fixture(autouse=True)
def _narrow_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


class Broken(ordinate.PositionEncoding):
    claims = frozenset({"boundedness"})

    def embed(self, x, positions=None):
        return x + positions[..., None].to(x.dtype)


def _break_everything(monkeypatch):
    monkeypatch.setattr(command, "create", lambda spec, **sizes: Broken())


def test_one_encoding_is_a_list_of_its_properties(capsys):
    assert run(["verify", "rope", *SMALL]) == 0
    out = capsys.readouterr().out
    assert out.startswith("rope  head_dim 8 · 2 heads · d_model 16 · trained at 64")
    assert re.search(r"✓ norm preservation +lengths change by \d", out)
    assert re.search(r"· decay with distance +\d+ of 4095 steps rise", out)
    assert "does not apply: boundedness, linear shift map" in out
    assert "1 encoding: 17 of 17 claims and requirements hold (" in out


@pytest.mark.slow
def test_without_names_every_catalog_entry_is_measured(capsys):
    assert run(["verify", *SMALL]) == 0
    captured = capsys.readouterr()
    for name in example_specs(8):
        assert re.search(rf"^{re.escape(name)} +[✓·–]", captured.out, flags=re.MULTILINE), name
    for item in PROPERTIES.values():
        assert f"\n{item.name}  {item.meaning}" in captured.out
    assert f"{len(ordinate.catalog)} encodings: " in captured.out
    assert captured.err == ""
    assert max(map(len, captured.out.splitlines())) <= 80
    assert "\x1b" not in captured.out


def test_json_is_all_there_is_on_stdout(capsys):
    assert run(["verify", "alibi", "rope+yarn", "--json", *SMALL]) == 0
    captured = capsys.readouterr()
    parsed = json.loads(captured.out)
    assert parsed["ok"] is True
    assert [entry["name"] for entry in parsed["encodings"]] == ["alibi", "rope+yarn"]
    assert [row["property"] for row in parsed["encodings"][0]["results"]] == list(PROPERTIES)
    assert captured.err == ""


def test_specs_with_options_reach_the_encoding(capsys):
    names = ["rope:base=1e6", "rope+yarn:factor=16", "rope+alibi", "yarn"]
    assert run(["verify", *names, "-p", "wave", "-p", "slopes", "--json"]) == 0
    by_name = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)["encodings"]}
    values = {name: by_name[name]["results"][0]["value"] for name in names}
    slowest = 2 * torch.pi * 10000 ** (31 / 32)
    torch.testing.assert_close(
        values["rope:base=1e6"], 2 * torch.pi * 1e6 ** (31 / 32), rtol=1e-6, atol=0
    )
    torch.testing.assert_close(values["rope+yarn:factor=16"], 16 * slowest, rtol=1e-6, atol=0)
    torch.testing.assert_close(values["yarn"], 4 * slowest, rtol=1e-6, atol=0)
    assert by_name["rope+alibi"]["results"][1]["status"] == "holds"


def test_figures_are_the_same_every_time(capsys):
    outputs = []
    for _ in range(2):
        assert run(["verify", "learned", "t5", "--json", *SMALL]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]


def test_a_false_claim_exits_1_and_is_repeated_at_the_end(capsys, monkeypatch):
    _break_everything(monkeypatch)
    assert run(["verify", "rope", *SMALL]) == 1
    out = capsys.readouterr().out
    assert "✗ boundedness" in out
    assert "✗ rope, boundedness: the largest entry is 1048575" in out.replace("\n", " ")
    assert re.search(r"(\d+) of (\d+) claims and requirements hold, \d+ fail", out)
    assert run(["verify", "rope", "alibi", *SMALL, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


MISUSE = [
    (["verify", "rop"], "unknown encoding 'rop' in spec 'rop'; did you mean 'rope'", "verify --list"),
    (["verify", "-p", "shft"], "unknown property 'shft'; did you mean 'shift invariance'", "verify --list"),
    (["verify", "rope", "--head-dim", "63"], "--head-dim must be even, channels turn in pairs, got 63", "--help"),
    (["verify", "rope:bse=1"], "unknown option 'bse' of 'rope'", "verify --list"),
    (["verify", "--heads", "0"], "--heads must be at least 1, got 0", "verify --help"),
    (["verify", "rope", "--heads", "1000000"], "--heads must be at most 1024, got 1000000", "verify --help"),
    (["verify", "rope", "--head-dim", "4096"], "--head-dim must be at most 1024, got 4096", "verify --help"),
    (["verify", "rope", "--d-model", "1000000"], "--d-model must be at most 16384, got 1000000", "verify --help"),
    (["verify", "rope", "--d-model", "0"], "--d-model must be at least 1, got 0", "verify --help"),
    (["verify", "--train-length", "100000000"], "--train-length must be at most 16777216, got 100000000", "verify --help"),
    (["verify", "--heads", "1024", "--head-dim", "1024"], "--heads times --head-dim must be at most 16384, got 1048576", "verify --help"),
    (["verify", "--list", "--head-dim", "1000000"], "--head-dim must be at most 1024, got 1000000", "verify --help"),
    (["verify", "learned", "--train-length", "1000000"], "numbers in the table of learned must be at most 67108864", "verify --help"),
    (["verify", "learned:max_positions=10000000000"], "numbers in the table of learned must be at most 67108864", "verify --help"),
    (["verify", "clipped:max_distance=10000000000"], "numbers in the table of clipped must be at most 67108864", "verify --help"),
    (["verify", "t5", "--train-length", "1000000"], "--train-length times --heads times --head-dim, for t5, must be at most 67108864, got 512000000", "verify --help"),
    (["verify", "--nonsense"], "--nonsense", "ordinate verify --help"),
    (["verify", "--heads", "many"], "--heads must be a whole number, got 'many'", "ordinate verify --help"),
    (["show", "rope", "--position", "1e3"], "--position must be a whole number, got '1e3'", "ordinate show --help"),
    (["show", "rope", "--position=1.5"], "--position must be a whole number, got '1.5'", "ordinate show --help"),
    (["show", "rope", "--dim", "8", "--dim", "x"], "--dim must be a whole number, got 'x'", "ordinate show --help"),
    (["extend", "config.json", "--to", "abc"], "--to must be a whole number, got 'abc'", "ordinate extend --help"),
    (["explore", "--port", "80x"], "--port must be a whole number, got '80x'", "ordinate explore --help"),
    (["plot", "rope", "--factor", "wide"], "--factor must be a number, got 'wide'", "ordinate plot --help"),
    (["compare", "--learning-rate", "fast"], "--learning-rate must be a number, got 'fast'", "ordinate compare --help"),
    (["verfy"], "'verfy'", "ordinate --help"),
]  # fmt: skip


@pytest.mark.plain
@pytest.mark.parametrize(("arguments", "sentence", "hint"), MISUSE, ids=[" ".join(m[0]) for m in MISUSE])
def test_misuse_is_one_sentence_a_blank_line_and_a_hint(capsys, arguments, sentence, hint):
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    first, blank, last = captured.err.splitlines()
    assert sentence in first
    assert blank == ""
    assert last.startswith("hint: ")
    assert hint in last


class TooLarge(ordinate.PositionEncoding):
    def embed(self, x, positions=None):
        raise RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate"
        )


def test_too_little_memory_says_nothing_of_the_encoding(capsys, monkeypatch):
    monkeypatch.setattr(command, "create", lambda spec, **sizes: TooLarge())
    assert run(["verify", "rope", "-p", "shift", *SMALL]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "shift invariance must be measured in the memory there is, got head_dim 8 · 2 heads · d_model 16 · "
        "trained at 64, which needs more\n\nhint: ordinate verify --help\n"
    )


@pytest.mark.parametrize(
    "error",
    [MemoryError(), torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("DefaultCPUAllocator: not enough memory")],
    ids=["Python", "CUDA", "CPU"],
)  # fmt: skip
def test_any_command_that_runs_out_of_memory_says_so(capsys, monkeypatch, error):
    def give_up(spec, **sizes):
        raise error

    monkeypatch.setattr(command, "create", give_up)
    assert run(["verify", "rope", *SMALL]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    first, blank, last = captured.err.splitlines()
    assert first.startswith("the sizes must fit into memory, got verify rope --head-dim 8")
    assert (blank, last) == ("", "hint: ordinate verify --help")


def test_help_ends_with_examples_that_run(capsys):
    assert run(["verify", "--help"]) == 0
    text = capsys.readouterr().out
    examples = re.findall(
        r"^ +ordinate (verify.*?)(?:  +.*)?$", text[text.index("Examples:") :], re.MULTILINE
    )
    assert len(examples) >= 6
    for example in examples:
        arguments = example.split()
        quick = [] if "-p" in arguments or "--property" in arguments else ["-p", "inputs"]
        assert run([*arguments, *quick]) == 0, example
        capsys.readouterr()


def test_bare_command_shows_help_and_version_is_the_packages(capsys):
    assert run([]) == 0
    assert "verify" in capsys.readouterr().out
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"ordinate {ordinate.__version__}\n"


def test_list_names_every_encoding_and_property(capsys):
    assert run(["verify", "--list"]) == 0
    out = capsys.readouterr().out
    for name in [*example_specs(), *PROPERTIES]:
        assert f" {name} " in out


def test_colour_comes_when_asked_for_and_no_color_wins(capsys, monkeypatch):
    colour = re.compile(r"\x1b\[(?:\d+;)*3\d(?:;\d+)*m")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    run(["verify", "rope", "-p", "norm"])
    assert colour.search(capsys.readouterr().out)
    monkeypatch.setenv("NO_COLOR", "1")
    run(["verify", "rope", "-p", "norm"])
    assert not colour.search(capsys.readouterr().out)


def test_progress_is_shown_to_a_terminal_only_and_on_stderr(capsys, monkeypatch):
    run(["verify", "rope", "none", "-p", "norm"])
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    run(["verify", "rope", "none", "-p", "norm"])
    captured = capsys.readouterr()
    assert "measuring" in captured.err
    assert "measuring" not in captured.out


def test_names_are_brief_but_can_be_undone():
    everyone = ["none", "rope", "alibi", "t5", "rope+a", "rope+b", "rope+c"]
    assert shortened(everyone, everyone) == "all 7"
    assert shortened(everyone[1:], everyone) == "all but none"
    assert shortened(["rope", "t5", "rope+a", "rope+b", "rope+c"], everyone[:]) == "all but none, alibi"
    assert shortened(["rope", "rope+a", "rope+b", "rope+c"], everyone) == "rope (any scaling)"
    assert shortened(["rope", "rope+a"], everyone) == "rope, +a"
    assert shortened(["rope+b", "rope+c"], everyone) == "rope+b, +c"


@pytest.mark.plain
def test_without_typer_and_rich_one_sentence_says_how_to_get_them(capsys, monkeypatch):
    monkeypatch.setattr(cli, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="1"):
        cli.main()
    err = capsys.readouterr().err
    assert (
        err
        == "The ordinate command needs typer and rich, not installed here.\n\nhint: pip install 'ordinate[lab]'\n"
    )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_every_terminal_tells_the_verdicts_apart(encoding):
    marks = "".join(status.mark for status in Status)
    written = marks.encode(encoding, errors="ordinate.plain").decode(encoding)
    assert len(set(written)) == len(marks) == 4
    assert "?" not in written
    assert "→ ✓".encode("ascii", errors="ordinate.plain") == b"> +"


@pytest.mark.slow
def test_importing_ordinate_loads_neither_typer_nor_rich():
    code = "import sys, ordinate; print([m for m in ('typer', 'rich', 'click') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.slow
def test_the_installed_command_survives_a_reader_that_leaves_and_a_plain_terminal():
    code = "from ordinate.cli import main; main()"
    plain = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code, "verify", "rope", "-p", "norm"],
        capture_output=True, text=True, env=plain, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert "+ norm preservation" in done.stdout
    for asked, first in (("--list", "encodings"), ("rope -p norm --json", "{")):
        shell = f"{sys.executable} -c '{code}' verify {asked} | head -1"
        done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
        assert done.stdout.startswith(first)
        assert done.stderr == ""
