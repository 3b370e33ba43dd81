"""A run on a CUDA device: compiled, in bfloat16, the same twice, and resumed as if nothing had happened."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import ordinate
from ordinate.lab.config import RunConfig
from ordinate.lab.run.train import make_encoding, train_and_evaluate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.plain,
    pytest.mark.filterwarnings("default"),  # compilers have warnings of their own
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none"),
]

SPECS = ("none", "learned", "sinusoidal", "rope", "alibi", "t5", "clipped", "shaw")


def config(spec: str, **changes) -> RunConfig:
    small = {
        "train_length": 128, "lengths": (128, 512), "steps": 30, "batch": 8, "d_model": 128,
        "num_layers": 2, "num_heads": 4, "evaluation_tokens": 8192, "checkpoint_every": 7, "warmup": 5,
        "device": "cuda", "dtype": "bfloat16", "compile": True,
    }  # fmt: skip
    return RunConfig(spec, **{**small, **changes})


def numbers(directory: Path) -> list[dict]:
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    clocks = ("seconds", "tokens_per_second", "peak_memory_bytes")
    return [{name: value for name, value in line.items() if name not in clocks} for line in lines]


@pytest.mark.parametrize("spec", SPECS)
def test_a_run_gives_the_same_numbers_twice(tmp_path, spec):
    for name in ("one", "two"):
        train_and_evaluate(config(spec), tmp_path / name)
    assert numbers(tmp_path / "one") == numbers(tmp_path / "two")


def test_an_interrupted_run_ends_with_the_same_numbers(tmp_path):
    class Stopped(Exception):
        pass

    def stop(metric):
        if metric.get("step") == 17:
            raise Stopped

    train_and_evaluate(config("t5"), tmp_path / "whole")
    with pytest.raises(Stopped):
        train_and_evaluate(config("t5"), tmp_path / "stopped", observers=[stop])
    train_and_evaluate(config("t5"), tmp_path / "stopped")
    assert numbers(tmp_path / "stopped") == numbers(tmp_path / "whole")


@pytest.mark.parametrize("spec", SPECS)
def test_it_learns_what_it_learns_on_a_cpu(tmp_path, spec):
    changes = {"dtype": "float32", "compile": False, "steps": 5, "lengths": (128,)}
    train_and_evaluate(config(spec, **changes), tmp_path / "cuda")
    train_and_evaluate(config(spec, **changes, device="cpu"), tmp_path / "cpu")
    one, two = (
        [line["loss"] for line in numbers(tmp_path / name) if line["kind"] == "train"]
        for name in ("cuda", "cpu")
    )
    assert one == pytest.approx(two, rel=2e-3)


@pytest.mark.parametrize("spec", ["alibi", "t5", "clipped", "shaw"])
def test_biased_encodings_get_the_fused_kernels(spec):
    encoding = make_encoding(spec, config(spec)).cuda()
    q = torch.zeros(1, 4, 128, 32, device="cuda", dtype=torch.bfloat16)
    x = torch.zeros(1, 128, 128, device="cuda")
    assert ordinate.explain(q, q, q, encoding, causal=True, x=x).chosen == "fused"
