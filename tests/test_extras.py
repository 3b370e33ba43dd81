"""Hints name a command that works where ordinate came from."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ordinate import extras

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.plain
@pytest.mark.parametrize("extra", ["lab", "plot", "web"])
def test_the_command_adds_an_extra_to_what_is_installed_and_asks_no_index_for_ordinate(extra):
    command = extras.how_to_install(extra)
    assert command == f"pip install 'ordinate[{extra}]'"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-index",
        "--dry-run",
        "--disable-pip-version-check",
    ]
    done = subprocess.run([*pip, f"ordinate[{extra}]"], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Would install" not in done.stdout


def test_source_that_nobody_installed_names_the_clone(monkeypatch):
    def nothing(name):
        raise extras.PackageNotFoundError(name)

    monkeypatch.setattr(extras, "distribution", nothing)
    assert extras.how_to_install("web") == "pip install '.[web]' in a clone of ordinate"


def test_setup_brings_every_extra_that_a_command_or_a_page_needs():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    setup = makefile.partition("$(STAMP): ")[2].partition("\n\n")[0]
    brought = setup.partition("'.[")[2].partition("]'")[0].split(",")
    assert {"cpu", "lab", "plot", "web", "cluster", "dev"} <= set(brought) <= set(EXTRAS)
