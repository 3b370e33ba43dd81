"""``ordinate explore`` and the Space: what they are told, and what they refuse."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

import ordinate
from ordinate.cli.app import run
from ordinate.web import serve

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def served(monkeypatch) -> list[dict]:
    """What the server would have been started with."""
    calls: list[dict] = []

    def record(**options):
        calls.append(options)
        options["on_ready"]("http://127.0.0.1:1234/")

    monkeypatch.setattr(serve, "serve", record)
    return calls


def test_the_address_is_all_there_is_on_stdout_and_a_browser_opens_after_it(capsys, monkeypatch, served):
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert run(["explore"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "http://127.0.0.1:1234/\n"
    assert captured.err == "starting …\nCtrl+C ends it.\n"
    assert opened == ["http://127.0.0.1:1234/"]
    assert served[0]["host"] == "127.0.0.1"
    assert served[0]["port"] is None


def test_no_browser_is_opened_when_none_is_wanted(capsys, monkeypatch, served):
    monkeypatch.setattr("webbrowser.open", lambda address: pytest.fail("opened"))
    assert run(["explore", "--no-browser", "--language", "zh"]) == 0
    assert served[0]["language"] == "zh"


def test_the_examples_of_explore_help_run(capsys, monkeypatch, tmp_path, served):
    monkeypatch.setattr("webbrowser.open", lambda address: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert run(["explore", "--help"]) == 0
    text = capsys.readouterr().out
    examples = re.findall(
        r"^ +ordinate (explore.*?)(?:  +.*)?$", text[text.index("Examples:") :], re.MULTILINE
    )
    assert len(examples) >= 5
    for example in examples:
        assert run(example.split()) == 0, example
    assert len(served) == len(examples)


LONG = "a" * 300  # no file system takes such a name

MISUSE = [
    ("explore --language fr", "--language must be en or zh, got 'fr'", "ordinate explore --help"),
    ("explore --port 99999", "--port must be from 1 to 65535, got 99999", "ordinate explore --help"),
    (
        f"explore --runs {LONG}",
        f"--runs must be a folder, got {LONG}: File name too long",
        "ordinate explore --help",
    ),
    ("explore --runs nowhere", "--runs must be a folder, got 'nowhere'", "ordinate explore --help"),
]


@pytest.mark.plain
@pytest.mark.parametrize(("line", "sentence", "hint"), MISUSE, ids=[m[0] for m in MISUSE])
def test_misuse_of_explore_is_a_sentence_and_a_hint(capsys, served, line, sentence, hint):
    assert run(line.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [sentence, "", f"hint: {hint}"]
    assert served == []


@pytest.mark.plain
@pytest.mark.parametrize("host", ["", "[]", "é..b"])
def test_a_host_that_names_nothing_is_refused_and_not_listened_at(capsys, host):
    assert run(["explore", "--no-browser", "--host", host]) == 2
    assert capsys.readouterr().err.splitlines()[1:] == [
        f"--host must name an address of this machine, got {host!r}",
        "",
        "hint: ordinate explore --help",
    ]


@pytest.mark.plain
def test_without_gradio_one_sentence_says_how_to_get_it(capsys, monkeypatch):
    monkeypatch.setattr(serve, "find_spec", lambda name: None)
    assert run(["explore"]) == 2
    assert capsys.readouterr().err.splitlines()[1:] == [
        "gradio and plotly must be installed for the page: pip install 'ordinate[web]'",
        "",
        "hint: pip install 'ordinate[web]'",
    ]


@pytest.mark.slow
def test_a_port_that_is_taken_is_said(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code = "from ordinate.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code, "explore", "--no-browser", "--port", str(port)],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert f"--host and --port must be free to listen at, got 127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_space_names_the_versions_the_project_has():
    folder = ROOT / "deploy" / "space"
    assert (
        f"ordinate-{ordinate.__version__}-py3-none-any.whl[web]"
        in (folder / "requirements.txt").read_text()
    )
    pinned = re.search(r"^gradio==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned
    assert f"sdk_version: {pinned[1]}\n" in (folder / "README.md").read_text()


@pytest.mark.slow
def test_the_space_serves_the_page():
    with serve.listen("127.0.0.1", None) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "deploy" / "space" / "app.py")],
        env={**os.environ, "PORT": str(port)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        for _ in range(240):
            assert process.poll() is None
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
                    text = answer.read().decode()
                    policy = answer.headers["content-security-policy"]
                    break
            except OSError:
                time.sleep(0.5)
        assert "ordinate" in text
        assert policy.endswith("frame-ancestors https://huggingface.co")
    finally:
        process.terminate()
        process.wait(timeout=30)
