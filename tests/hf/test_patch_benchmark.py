"""The benchmark of whole models runs, holds the patched models to the unpatched ones, and can be rendered."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _benchmarks_importable(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.mark.slow
def test_tiny_models_pass_their_parity_and_are_timed_on_the_cpu(tmp_path):
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    subprocess.run(
        [sys.executable, str(BENCHMARKS / "gpu_models.py"), "--smoke", "--out", str(tmp_path)],
        check=True, capture_output=True, text=True,
        env=environment | {"OMP_NUM_THREADS": "1", "ORDINATE_COMMIT": "c0ffee"},
    )  # fmt: skip
    record = json.loads((tmp_path / "gpu_models.json").read_text())
    assert record["environment"]["commit"] == "c0ffee"
    assert record["environment"]["transformers"]
    assert {name: found["passed"] for name, found in record["parity"].items()} == {
        "T5-base encoder": True,
        "BLOOM-560m": True,
    }
    assert not [row for row in record["rows"] if "error" in row]
    assert {row["by"] for row in record["rows"]} >= {"ordinate", "transformers, eager"}


def test_a_peer_that_ran_out_of_memory_is_said_to_have():
    import render_gpu

    environment = {
        "date": "d",
        "commit": "c",
        "gpu": "g",
        "torch": "t",
        "triton": "r",
        "transformers": "5",
    }
    rows = [
        {"model": "M", "length": 8, "by": "ordinate", "step_ms": 2.0, "tokens_per_second": 4000.0, "peak_GiB": 1.25},
        {"model": "M", "length": 8, "by": "transformers, eager", "error": "OutOfMemoryError: CUDA out of memory"},
    ]  # fmt: skip
    text = render_gpu.models({"environment": environment, "rows": rows})
    assert "| M | 8 | ordinate | 2.0 | 4000 | 1.2 |" in text
    assert "| M | 8 | transformers, eager | out of memory | | |" in text
