"""The page as users start it, in a process of its own that reports any connection it tries to make to elsewhere."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

# Runs the command with an ear on every connection: an address that is not this machine's is written down.
_LISTENING = """
import sys
def hear(event, arguments):
    if event == "socket.connect":
        host = arguments[1][0] if isinstance(arguments[1], tuple) else "localhost"
        if not str(host).startswith("127.") and host not in ("::1", "localhost"):
            print("OUTSIDE", host, file=sys.stderr, flush=True)
    if event == "socket.getaddrinfo" and arguments[0] not in (None, "127.0.0.1", "localhost", "::1", "0.0.0.0"):
        print("OUTSIDE", arguments[0], file=sys.stderr, flush=True)
sys.addaudithook(hear)
from ordinate.cli.app import run
sys.exit(run(sys.argv[1:]))
"""


@dataclass(frozen=True)
class Server:
    """A page that runs."""

    address: str
    errors: Path
    pid: int

    def call(self, name: str, *data: Any) -> list[Any]:
        """Ask the page's own API."""
        url = f"{self.address}gradio_api/call/{name}"
        body = json.dumps({"data": data}).encode()
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            event = json.load(answer)["event_id"]
        with urllib.request.urlopen(f"{url}/{event}", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        kinds = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
        said = json.loads(
            [line for line in lines if line.startswith("data: ")][-1].removeprefix("data: ")
        )
        if kinds[-1] != "complete":
            raise RuntimeError(said["error"])
        return said


@pytest.fixture(scope="session")
def runs_folder(tmp_path_factory) -> Path:
    """A folder with a made-up comparison, and a copy whose name is of Latin-1 where the file system takes that."""
    import runpy

    made = runpy.run_path(str(Path(__file__).resolve().parents[1] / "lab" / "synthetic_records.py"))
    folder = tmp_path_factory.mktemp("runs")
    made["write_sweep"](folder / "demo", specs=("rope", "alibi"), seeds=(0, 1))
    with contextlib.suppress(OSError):
        shutil.copytree(folder / "demo", folder / os.fsdecode(b"caf\xe9"))
    return folder


@pytest.fixture(scope="session")
def server(tmp_path_factory, runs_folder) -> Iterator[Server]:
    errors = tmp_path_factory.mktemp("server") / "stderr"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", _LISTENING, "explore", "--no-browser", "--runs", str(runs_folder)]
    with errors.open("w") as stream:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stream, text=True, env=environment
        )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:"), errors.read_text()
        yield Server(address, errors, process.pid)
    finally:
        process.terminate()
        process.wait(timeout=30)
        process.stdout.close()


def chromium() -> str | None:
    """A Chromium of the system, or the one Playwright installed."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found:
            return found
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).exists() else None


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="no Playwright here: pip install playwright"
    )
    path = chromium()
    if path is None:
        reason = "no Chromium here: apt-get install chromium, or playwright install chromium"
        if os.environ.get("ORDINATE_BROWSER") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"]
        )
        yield started
        started.close()
