"""The benchmarks run, refuse to time what is wrong, and the page says what the record says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture(autouse=True)
def _benchmarks_importable(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def test_the_page_equals_the_record():
    import render

    page = render.PAGE.read_text()
    assert render.rendered(page, json.loads(render.RECORD.read_text())) == page


def test_each_question_is_answered_from_the_records_on_a_page_that_can_be_read():
    import render_page

    page = render_page.PAGE.read_text()
    assert render_page.rendered(page) == page
    assert all(f"<!-- begin: {name} -->" in page for name in render_page.TABLES)
    rows = [line for line in page.splitlines() if line.startswith("|")]
    prose = [line for line in page.splitlines() if not line.startswith(("|", "<!--"))]
    assert len(rows) <= 120
    assert len(" ".join(prose).split()) <= 1300


def test_the_gpu_tables_equal_their_records():
    import render_gpu

    page = render_gpu.PAGE.read_text()
    assert render_gpu.rendered(page) == page


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_the_speeds_of_the_readme_equal_their_records(name):
    import render_readme

    page = (render_readme.ROOT / name).read_text()
    assert render_readme.rendered(page, render_readme.PAGES[name]) == page


def test_targets_that_are_missed_stand_out_and_what_was_not_measured_is_no_miss():
    import gpu_targets

    target = gpu_targets.Target(
        "us", {"here": 2.0}, ("a", "ours"), ("a", "theirs"), at_least=True, field="ms"
    )
    rows = {("a", "ours"): {"ms": 4.0}, ("a", "theirs"): {"ms": 7.0}}
    assert target.cell("here", rows) == "**1.750**"
    assert target.cell("there", rows) == "1.750"  # no limit for this shape
    assert target.cell("here", {("a", "ours"): {"ms": 4.0}}) == "–"
    most = gpu_targets.Target("us", 1.05, ("a", "ours"), ("a", "theirs"), field="ms")
    assert most.cell("here", rows) == "0.571"
    assert (
        most.cell("here", {("a", "ours"): {"ms": 1.0504}, ("a", "theirs"): {"ms": 1.0}}) == "**1.050**"
    )


def test_the_faster_of_a_peers_two_ways_is_what_ours_is_compared_with():
    import gpu_targets

    by_hand, by_autotuner = ({"forward_backward_ms": ms} for ms in (9.0, 7.0))
    rows = {
        gpu_targets.VECTOR: by_hand,
        ("T5 learned", "FlexAttention, vector, autotuned"): by_autotuner,
    }
    assert gpu_targets._with_the_best_vector(rows)[gpu_targets.VECTOR] is by_autotuner
    assert (
        gpu_targets._with_the_best_vector({gpu_targets.VECTOR: by_hand})[gpu_targets.VECTOR] is by_hand
    )
    assert gpu_targets._with_the_best_vector({}) == {}


def test_peers_that_were_not_there_or_failed_leave_the_page_whole():
    import gpu_targets
    import render_gpu

    attention, rope = (json.loads(path.read_text()) for path in (render_gpu.ATTENTION, render_gpu.ROPE))
    rope["results"] = [row for row in rope["results"] if "Liger" not in row["name"]]
    shape = attention["shapes"]["B4 H16 L4096 D64"]
    shape["rows"] = [row for row in shape["rows"] if row["name"] in ("cuDNN", "ordinate")]
    shape["rows"].append({"shape": "B4", "name": "FlexAttention / ALiBi", "error": "RuntimeError: no"})
    page = gpu_targets.tables(attention, rope)
    (line,) = (line for line in page.splitlines() if "Liger" in line)
    assert line.count("–") == 3
    (line,) = (line for line in page.splitlines() if line.startswith("| ALiBi, of FlexAttention's"))
    assert line.count("–") == 1
    assert "- FlexAttention / ALiBi: RuntimeError: no" in render_gpu._attention(attention)


def test_masked_calls_stand_beside_those_with_nothing_masked():
    import render_gpu

    environment = {"date": "d", "commit": "c", "gpu": "g", "torch": "t", "triton": "r"}
    times = {"forward_ms": 0.5, "forward_backward_ms": 2.25, "device_ms": 2.0, "extra_MiB": 99.6}
    rows = [
        {"mask": "nothing, causal", "kind": "ALiBi", "name": "ordinate", "gate": 1.0, **times},
        {
            "mask": "packed, causal",
            "kind": "ALiBi",
            "name": "FlexAttention",
            "error": "RuntimeError: no",
        },
    ]
    text = render_gpu.masks({"environment": environment, "shape": [4, 16, 4096, 64], "rows": rows})
    assert "| nothing, causal | ALiBi | ordinate | 0.500 | 2.250 | 2.000 | 100 |" in text
    assert "| packed, causal | ALiBi | FlexAttention | RuntimeError: no | | | |" in text


def test_no_gpu_time_is_recorded_of_attention_that_failed_its_gate():
    import render_gpu

    record = json.loads(render_gpu.ATTENTION.read_text())
    for shape in record["shapes"].values():
        ours = {row["kind"] for row in shape["rows"] if row.get("name") == "ordinate"}
        assert ours
        assert ours <= set(shape["gates"])
        for name, ratio in shape["gates"].items():
            assert ratio <= 2.0, name


def test_the_record_times_nothing_that_failed_its_gate():
    import render

    record = json.loads(render.RECORD.read_text())
    gated = [row for case in record["cases"] for row in case["rows"] if "gate" in row]
    assert gated
    for row in gated:
        assert ("median_ms" in row) == row["gate"]["passed"], row
        assert row["gate"]["passed"] == (row["gate"]["error"] <= row["gate"]["budget"]), row
        if row["candidate"].startswith("ordinate"):
            assert row["gate"]["passed"], row


def test_the_record_names_machine_versions_and_commit_but_no_host():
    import platform

    import render

    text = render.RECORD.read_text()
    environment = json.loads(text)["environment"]
    assert environment["versions"].keys() >= {"python", "torch", "transformers"}
    assert environment["machine"]["cores"] >= 1
    assert len(environment["commit"]) >= 12
    assert platform.node() not in text or platform.node() in ("", "localhost")


def test_a_gate_fails_on_one_error_past_its_budget_and_names_it():
    import measure

    verdict = measure.gate({"q": 1e-9, "k": 3e-3}, {"q": 1e-3, "k": 1e-3})
    assert verdict == {"passed": False, "quantity": "k", "error": 3e-3, "budget": 1e-3}


def test_nan_is_an_infinite_error():
    import measure

    assert measure.worst_error(torch.tensor([1.0, float("nan")]), torch.ones(2)) == float("inf")


def test_training_speeds_are_relative_to_the_first_arm():
    import gpu_training

    tiny = {"d_model": 32, "num_layers": 1, "num_heads": 2, "batch": 2}
    on_a_cpu = {"device": "cpu", "dtype": "float32", "compile": False}
    found = gpu_training.measure(["none", "t5", "shaw:max_distance=8"], 64, 3, 1, **tiny, **on_a_cpu)
    assert [row["arm"] for row in found["rows"]] == ["none", "t5", "shaw:max_distance=8"]
    assert found["rows"][0]["relative"] == 1.0
    assert all(row["tokens_per_second"] > 0 and row["relative"] > 0 for row in found["rows"])


def test_rows_of_peers_stay_with_their_commit_and_ours_do_not():
    pytest.importorskip("triton", reason="Triton has the clock of the GPU benchmarks")
    import gpu_attention

    shape = {
        "environment": {"commit": "abc"},
        "rows": [
            {"name": "cuDNN", "kind": "none", "forward_ms": 1.0},
            {"name": "ordinate", "kind": "none", "forward_ms": 1.0},
            {"name": "FlexAttention", "kind": "ALiBi", "forward_ms": 2.0, "commit": "older"},
            {"name": "einsum", "error": "out of memory"},
        ],
    }
    kept = gpu_attention._earlier_rows(shape)
    assert [(row["name"], row["commit"]) for row in kept] == [
        ("cuDNN", "abc"),
        ("FlexAttention", "older"),
    ]


@pytest.mark.slow
def test_every_kind_of_case_runs_at_tiny_sizes(tmp_path):
    pytest.importorskip("rotary_embedding_torch", reason="peers of the bench extra")
    pytest.importorskip("x_transformers", reason="peers of the bench extra")
    out = tmp_path / "cpu.json"
    # The kernel tests' interpreter would be chosen for attention, and is no implementation to time.
    as_users_have_it = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    subprocess.run(
        [sys.executable, str(BENCHMARKS / "cpu.py"), "--quick", "--out", str(out)],
        check=True, capture_output=True, text=True, env=as_users_have_it | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    record = json.loads(out.read_text())
    kinds = {case["kind"] for case in record["cases"]}
    assert kinds == {"rope", "rope token", "attention", "decode", "memory", "long", "long memory"}
    assert all(case["rows"] for case in record["cases"])

    import render

    page = f"# Benchmarks\n\n{render.BEGIN}\n{render.END}\n"
    assert "ordinate ALiBi" in render.rendered(page, record)
