"""Presets are what the documentation says, and what the quick one shows can be shown in small."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from ordinate.lab.records import read_runs
from ordinate.lab.report.api import read_report
from ordinate.lab.run.build import make_encoding, make_model
from ordinate.lab.run.cost import parameters_of
from ordinate.lab.run.presets import PRESETS
from ordinate.lab.run.sweep import plan, run_all, untrained_rows
from ordinate.lab.tasks import TASKS


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_whole_plan(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    sweep = plan(name)
    config = sweep.configs()[0]
    assert len(sweep.arms) >= 7
    assert config.train_length == config.lengths[0]
    assert config.lengths[-1] >= 8 * config.train_length
    for spec in sweep.arms:  # distances that share a row must be seen in training
        encoding = make_encoding(spec, config)
        assert getattr(encoding, "max_distance", 0) <= config.train_length


def test_the_presets_have_the_sizes_they_are_known_by(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    quick, standard, gpu = (plan(name) for name in ("quick", "standard", "gpu"))
    names = {spec.partition(":")[0] for spec in quick.arms}
    assert names == {"none", "learned", "sinusoidal", "rope", "alibi", "t5", "clipped"}
    assert (len(standard.seeds), standard.settings["train_length"]) == (3, 128)
    assert (gpu.settings["train_length"], gpu.settings["device"]) == (512, "cuda")
    assert max(gpu.settings["lengths"]) > 16384
    assert len(gpu.arms) >= 8
    assert 10e6 < parameters_of(make_model(gpu.configs()[0])) < 45e6
    assert 0.3e6 < parameters_of(make_model(quick.configs()[0])) < 0.5e6
    assert 1.5e6 < parameters_of(make_model(standard.configs()[0])) < 2.5e6


def test_other_training_lengths_keep_the_proportions():
    sweep = plan(arms=["none"], task="copy", train_length=100)
    assert sweep.settings["lengths"] == [100, 150, 200, 400, 800]


def test_encodings_named_twice_are_run_once():
    assert plan(arms=["rope", "alibi", "rope"], task="copy").arms == ("rope", "alibi")
    assert plan(arms=["rope", "rope ", "ROPE", "alibi"], task="copy").arms == ("rope", "alibi")
    twice = ["rope:base=1e6", "rope:base=1000000", "rope : base = 1_000_000"]
    assert plan(arms=twice, task="copy").arms == ("rope:base=1e6",)
    assert plan(arms=["rope", "rope:base=1e6"], task="copy").arms == ("rope", "rope:base=1e6")


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("length", [2, 5, 16, 17, 32, 100, 1000])
def test_at_any_training_length_no_row_of_a_presets_tables_is_out_of_reach(name, length, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    sweep = plan(name, task="copy", train_length=length)
    reach = {
        spec: getattr(make_encoding(spec, config), "max_distance", 0)
        for config in sweep.configs()
        for spec in sweep.arms
    }
    assert max(reach.values()) <= length
    assert untrained_rows(sweep) == []


def test_rows_that_training_never_reaches_are_said():
    sweep = plan(arms=["rope", "t5", "clipped:max_distance=16"], task="copy", train_length=64)
    assert untrained_rows(sweep) == [
        "t5 has rows for distances up to 128, which training at 64 never reaches; max_distance=64 would have none"
    ]


def test_scalings_are_only_made_for_encodings_they_are_tested_with():
    sweep = plan(arms=["alibi"], task="copy", d_model=15, num_heads=3)
    assert sweep.settings["extensions"]
    with pytest.raises(ValueError, match="head_dim must be even"):
        plan(arms=["rope"], task="copy", d_model=15, num_heads=3)


def test_a_task_has_the_steps_it_takes_to_learn_it_unless_told_otherwise():
    assert plan(arms=["rope"], task="copy").settings["steps"] > plan(arms=["rope"]).settings["steps"]
    assert plan(arms=["rope"], task="copy", steps=7).settings["steps"] == 7


def test_the_documentation_has_the_steps_of_every_task():
    text = (Path(__file__).parents[2] / "docs/lab.md").read_text(encoding="utf-8")
    text = text.partition("## Tasks")[2]
    rows = re.findall(r"^\| `(\w+)` \|.*\| (\d+) \| (\d+) \|$", text, re.MULTILINE)
    assert [name for name, _, _ in rows] == list(TASKS)
    for name, shortest, steps in rows:
        assert int(shortest) == TASKS[name].minimum_length
        assert int(steps) == PRESETS["quick"].config(task=name).steps


@pytest.mark.plain
@pytest.mark.slow  # a minute or two each
@pytest.mark.parametrize("task", [name for name in TASKS if name not in ("language", "addition")])
def test_with_the_steps_of_the_quick_preset_rope_learns_the_task(tmp_path, task):
    run_all(plan(arms=["rope"], task=task, lengths=(64,), extensions=()), tmp_path)
    (arm,) = read_report(tmp_path).summary.arms
    assert arm.learned, arm.in_length


@pytest.mark.slow
def test_in_small_alibi_holds_at_eight_times_its_length_and_rope_does_not(tmp_path):
    sweep = plan(
        arms=["alibi", "rope"], steps=300, lengths=(64, 512), evaluation_tokens=16384, extensions=()
    )
    run_all(sweep, tmp_path)
    _, runs = read_runs(tmp_path)
    for run in runs:
        short, long = run.of_kind("evaluation")
        bigram = run.of_kind("baseline")[0]["loss"]
        assert short["loss"] < 0.9 * bigram  # trained, so that what follows means something
        rise = long["loss"] / short["loss"] - 1
        assert rise < 0.03 if run.config.spec == "alibi" else rise > 0.2
