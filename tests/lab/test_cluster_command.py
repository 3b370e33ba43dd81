"""``ordinate compare --cluster`` as a person sees it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from ordinate.cli import compare
from ordinate.cli.app import run

TINY = [
    "compare", "rope", "alibi", "--task", "copy", "--train-length", "16", "--lengths", "1x,2x", "--steps", "20",
    "--batch", "4", "--d-model", "16", "--layers", "1", "--heads", "2",
]  # fmt: skip


def refused(arguments, capsys) -> tuple[str, str]:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    first, blank, last = captured.err.splitlines()[-3:]
    assert blank == ""
    return first, last


@pytest.mark.plain
@pytest.mark.parametrize("address", ["localhost:1", "ray://localhost:1", "nonsense"])
def test_an_address_where_nobody_answers_is_one_sentence_and_nothing_is_written(
    tmp_path, capsys, address
):
    pytest.importorskip("ray")
    out = tmp_path / "out"
    first, last = refused([*TINY, "--cluster", address, "--out", str(out)], capsys)
    assert first == f"--cluster must be 'auto' or the address of a running Ray cluster, got {address!r}"
    assert last == "hint: ray start --head, then --cluster auto"
    assert not out.exists()


@pytest.mark.plain
def test_without_ray_one_sentence_says_how_to_get_it(tmp_path, capsys, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(compare, "find_spec", lambda name: None if name == "ray" else find(name))
    first, last = refused([*TINY, "--cluster", "auto", "--out", str(tmp_path / "out")], capsys)
    assert first == "ordinate compare needs ray for this, not installed here"
    assert last == "hint: pip install 'ordinate[cluster]'"


@pytest.mark.plain
def test_a_gpu_need_not_be_here_but_on_the_cluster(tmp_path, capsys, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    away = ["--device", "cuda", "--cluster", "localhost:1", "--out", str(tmp_path / "out")]
    assert "the address of a running Ray cluster" in refused([*TINY, *away], capsys)[0]
    first, _ = refused([*TINY, "--device", "cuda", "--out", str(tmp_path / "out")], capsys)
    assert first == "--device must be one that is there, got 'cuda', which PyTorch does not find"


@pytest.mark.plain
def test_a_cluster_under_torchrun_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    first, _ = refused([*TINY, "--cluster", "auto", "--out", str(tmp_path / "out")], capsys)
    assert first == "--cluster must be left out under torchrun, which has 2 processes share each run"


@pytest.mark.slow
@pytest.mark.plain
def test_the_command_starts_a_cluster_of_its_own_and_ends_with_a_report(tmp_path):
    pytest.importorskip("ray")
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("RAY_ADDRESS", "TRITON_INTERPRET")
    }
    code = "from ordinate.cli import main; main()"
    done = subprocess.run(
        [
            sys.executable, "-W", "error", "-c", code, *TINY, "--extend", "none", "--cluster", "auto", "--out", "out",
            "--seeds", "2", "--json",
        ],
        cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [arm["encoding"] for arm in found["encodings"]] == ["rope", "alibi"]
    assert [arm["seeds"] for arm in found["encodings"]] == [[0, 1], [0, 1]]
    assert "cluster: runs 4/4" in done.stderr
    assert (tmp_path / "out/report.html").is_file()
