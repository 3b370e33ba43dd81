"""A run: repeatable to the digit, resumed as if nothing had happened, and never trusted when damaged."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import shutil
import signal
from pathlib import Path

import pytest
import torch
from lab_cases import numbers, some_text, tiny

from ordinate.lab.config import RunConfig
from ordinate.lab.corpus import load_corpus
from ordinate.lab.records import MetricsPrefix, read_run
from ordinate.lab.run import build, checkpoint, train
from ordinate.lab.run.build import learning_rate, make_model, make_optimizer, make_task
from ordinate.lab.run.progress import PlainProgress, Progress
from ordinate.lab.run.train import train_and_evaluate
from ordinate.lab.seeds import generator


class Listener(Progress):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, sentence: str) -> None:
        self.said.append(sentence)


class Stopped(Exception):
    pass


def stop_after(lines: int):
    """An observer that ends the run, as abruptly as Python can, after so many lines."""
    seen = []

    def observe(metric):
        seen.append(metric)
        if len(seen) == lines:
            raise Stopped

    return observe


def test_a_run_gives_the_same_numbers_twice(tmp_path):
    for name in ("one", "two"):
        train_and_evaluate(tiny("t5:max_distance=32"), tmp_path / name)
    assert numbers(tmp_path / "one") == numbers(tmp_path / "two")


def test_another_seed_gives_other_numbers(tmp_path):
    for seed in (0, 1):
        train_and_evaluate(tiny(seed=seed), tmp_path / str(seed))
    one, two = numbers(tmp_path / "0")[0], numbers(tmp_path / "1")[0]
    assert one["loss"] != two["loss"]


def test_stopped_after_any_line_and_resumed_it_ends_with_the_same_records(tmp_path):
    config = tiny("learned", encoding_rate=3.0)
    train_and_evaluate(config, tmp_path / "whole")
    whole = numbers(tmp_path / "whole")
    for lines in range(1, len(whole) + 1):
        directory = tmp_path / f"stopped-{lines}"
        with pytest.raises(Stopped):
            train_and_evaluate(config, directory, observers=[stop_after(lines)])
        assert read_run(directory, config).state == "unfinished"
        train_and_evaluate(config, directory)
        assert numbers(directory) == whole
        assert read_run(directory, config).state == "finished"


def test_stopped_again_and_again_it_gets_there(tmp_path):
    config = tiny("clipped:max_distance=4")
    train_and_evaluate(config, tmp_path / "whole")
    interruptions = 0
    for _ in range(40):
        try:
            # One more line than a resumed run repeats, so that each attempt gets a little further.
            train_and_evaluate(config, tmp_path / "often", observers=[stop_after(5 + interruptions)])
            break
        except Stopped:
            interruptions += 1
    assert interruptions > 5
    assert numbers(tmp_path / "often") == numbers(tmp_path / "whole")


def test_a_finished_run_is_not_repeated(tmp_path):
    train_and_evaluate(tiny(), tmp_path)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    train_and_evaluate(tiny(), tmp_path, observers=[stop_after(1)])
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    assert "checkpoint.safetensors" not in before
    assert "model.safetensors" in before


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


FILES = ["metrics.jsonl", "result.json", "config.json", "environment.json", "model.safetensors"]


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_record_is_named_and_run_again(tmp_path, name):
    directory = tmp_path / "rope-0"
    train_and_evaluate(tiny(), directory)
    whole = numbers(directory)
    content = (directory / name).read_bytes()
    (directory / name).write_bytes(content[: len(content) // 2])
    assert read_run(directory, tiny()).state == "damaged"
    listener = Listener()
    train_and_evaluate(tiny(), directory, listener)
    (said,) = listener.said
    assert said.startswith("rope-0 is damaged and is run again: ")
    assert numbers(directory) == whole
    assert read_run(directory, tiny()).state == "finished"


def test_one_flipped_bit_of_the_metrics_is_damage(tmp_path):
    train_and_evaluate(tiny(), tmp_path)
    flip_a_byte(tmp_path / "metrics.jsonl")
    record = read_run(tmp_path, tiny())
    assert (record.state, record.metrics) == ("damaged", ())


def test_the_weights_may_be_deleted_to_save_room(tmp_path):
    train_and_evaluate(tiny(), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert read_run(tmp_path, tiny()).state == "finished"


def test_what_happens_to_the_lines_while_a_run_goes_on_is_not_signed(tmp_path):
    def tamper(metric):
        if metric["kind"] == "cost":
            flip_a_byte(tmp_path / "metrics.jsonl")

    listener = Listener()
    train_and_evaluate(tiny(), tmp_path, listener, observers=[tamper])
    assert read_run(tmp_path, tiny()).state == "damaged"
    (said,) = listener.said
    assert said.endswith(
        "is damaged and does not count: metrics.jsonl is not the file result.json was made of"
    )


def lines_of(directory: Path) -> list[bytes]:
    return (directory / "metrics.jsonl").read_bytes().splitlines(keepends=True)


def rewritten(change):
    return lambda directory: (directory / "metrics.jsonl").write_bytes(
        b"".join(change(lines_of(directory)))
    )


# What may happen to a run that was stopped at line 9 of 19, its checkpoint standing for the first 7.
DAMAGES = {
    "metrics deleted": lambda directory: (directory / "metrics.jsonl").unlink(),
    "metrics of random bytes": rewritten(lambda lines: [bytes(range(256)) * 9]),
    "a line spoiled": rewritten(lambda lines: [*lines[:2], b'{"kind": "tr\n', *lines[3:]]),
    "cut short": rewritten(lambda lines: [b"".join(lines)[:300]]),
    "lines doubled": rewritten(lambda lines: lines[:3] + lines),
    "a line missing": rewritten(lambda lines: lines[:4] + lines[5:]),
    "a number changed": rewritten(lambda lines: [lines[0].replace(b'"grad_norm": ', b'"grad_norm": 9'), *lines[1:]]),
    "a finished run's weights for a checkpoint": lambda directory: shutil.copy(
        directory.parent / "whole" / "model.safetensors", directory / "checkpoint.safetensors"
    ),
    "no threads": lambda directory: (directory / "environment.json").write_text('[{"threads": 0}]'),
    "an environment that is none": lambda directory: (directory / "environment.json").write_text("null"),
    "no environment": lambda directory: (directory / "environment.json").unlink(),
    "no config": lambda directory: (directory / "config.json").unlink(),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_to_an_unfinished_run_is_named_and_the_run_starts_again(tmp_path, damage):
    train_and_evaluate(tiny(), tmp_path / "whole")
    directory = tmp_path / "rope-0"
    with pytest.raises(Stopped):
        train_and_evaluate(tiny(), directory, observers=[stop_after(9)])
    assert checkpoint.load(directory / "checkpoint.safetensors").prefix.lines == 7
    DAMAGES[damage](directory)
    listener = Listener()
    train_and_evaluate(tiny(), directory, listener)
    (said,) = listener.said
    assert said.startswith("rope-0 is damaged and is run again: ")
    assert numbers(directory) == numbers(tmp_path / "whole")
    assert read_run(directory, tiny()).state == "finished"


def test_metrics_that_are_lost_after_the_last_step_are_damage_too(tmp_path):
    directory = tmp_path / "rope-0"
    with pytest.raises(Stopped):
        train_and_evaluate(tiny(), directory, observers=[stop_after(18)])
    assert checkpoint.load(directory / "checkpoint.safetensors").step == 12
    (directory / "metrics.jsonl").unlink()
    listener = Listener()
    train_and_evaluate(tiny(), directory, listener)
    assert "must begin with the 16 lines its checkpoint stands for" in listener.said[0]
    assert read_run(directory, tiny()).state == "finished"


def test_the_checkpoint_of_another_run_is_not_taken_for_this_ones(tmp_path):
    for name, config in (("one", tiny()), ("two", tiny(d_model=8))):
        with pytest.raises(Stopped):
            train_and_evaluate(config, tmp_path / name, observers=[stop_after(9)])
    for name in ("checkpoint.safetensors", "metrics.jsonl"):
        shutil.copy(tmp_path / "two" / name, tmp_path / "one" / name)
    listener = Listener()
    train_and_evaluate(tiny(), tmp_path / "one", listener)
    assert "is of another run" in listener.said[0]


def test_records_of_another_config_are_not_taken_for_this_run(tmp_path):
    train_and_evaluate(tiny(), tmp_path)
    assert read_run(tmp_path, tiny(seed=5)).state == "damaged"
    with pytest.raises(Stopped):
        train_and_evaluate(tiny(seed=5), tmp_path, observers=[stop_after(4)])
    listener = Listener()
    train_and_evaluate(tiny(seed=6), tmp_path, listener)
    assert "is of another run" in listener.said[0]
    assert read_run(tmp_path, tiny(seed=6)).state == "finished"


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_checkpoint_is_named_and_the_run_starts_again(tmp_path, damage):
    config = tiny()
    train_and_evaluate(config, tmp_path / "whole")
    directory = tmp_path / "rope-0"
    with pytest.raises(Stopped):
        train_and_evaluate(config, directory, observers=[stop_after(9)])
    path = directory / "checkpoint.safetensors"
    if damage == "flipped":
        content = bytearray(path.read_bytes())
        content[-5] ^= 64
        path.write_bytes(bytes(content))
    else:
        path.write_bytes(path.read_bytes()[: 100 if damage == "cut" else 0])
    listener = Listener()
    train_and_evaluate(config, directory, listener)
    assert "checkpoint.safetensors must be" in listener.said[0]
    assert numbers(directory) == numbers(tmp_path / "whole")


def test_what_a_killed_process_was_writing_is_cleared_away(tmp_path):
    with pytest.raises(Stopped):
        train_and_evaluate(tiny(), tmp_path, observers=[stop_after(9)])
    (tmp_path / ".checkpoint.safetensors-abc123").write_bytes(b"half")
    train_and_evaluate(tiny(), tmp_path)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_asked_to_stop_saves_the_step_it_is_at(tmp_path, monkeypatch, number):
    """Ctrl-C, or a scheduler's SIGTERM: the next step is the last, and it goes on from there."""
    config = tiny(steps=30, validate_every=100, checkpoint_every=1000)
    train_and_evaluate(config, tmp_path / "whole")
    before = signal.signal(number, signal.default_int_handler)  # of SIGTERM the test itself would end
    step, made = train._Run._step, []

    def interrupted(self, model):
        made.append(self.step)
        if len(made) == 15:
            signal.raise_signal(number)
        return step(self, model)

    try:
        with monkeypatch.context() as patch:
            patch.setattr(train._Run, "_step", interrupted)
            with pytest.raises(KeyboardInterrupt):
                train_and_evaluate(config, tmp_path / "run")
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)
    assert checkpoint.load(tmp_path / "run" / "checkpoint.safetensors").step == 15
    assert len(made) == 15
    train_and_evaluate(config, tmp_path / "run")
    assert numbers(tmp_path / "run") == numbers(tmp_path / "whole")


def test_a_second_ctrl_c_is_obeyed_at_once(tmp_path, monkeypatch):
    def twice(self, model):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("it was not obeyed")

    monkeypatch.setattr(train._Run, "_step", twice)
    with pytest.raises(KeyboardInterrupt):
        train_and_evaluate(tiny(), tmp_path)


def test_a_run_of_slow_steps_saves_by_the_clock(tmp_path, monkeypatch):
    """Steps of half a minute, 250 of them between checkpoints: no more than two are lost."""
    clock = itertools.count(0, 30)
    monkeypatch.setattr(train.time, "perf_counter", lambda: float(next(clock)))
    config = tiny(checkpoint_every=1000, validate_every=1000)
    with pytest.raises(Stopped):
        train_and_evaluate(config, tmp_path, observers=[stop_after(8)])
    assert checkpoint.load(tmp_path / "checkpoint.safetensors").step >= 6


def test_a_run_that_goes_on_elsewhere_says_where_and_from_which_step(tmp_path, monkeypatch):
    with pytest.raises(Stopped):
        train_and_evaluate(tiny(), tmp_path, observers=[stop_after(9)])
    here = train.describe("cpu", 1)
    with monkeypatch.context() as patch:
        patch.setattr(train, "describe", lambda device, processes: {**here, "processor": "another"})
        with pytest.raises(Stopped):
            train_and_evaluate(tiny(), tmp_path, observers=[stop_after(12)])
    train_and_evaluate(tiny(), tmp_path)
    places = read_run(tmp_path, tiny()).environments
    assert [place["from_step"] for place in places] == [0, 6, 9]
    assert [place["processor"] == "another" for place in places] == [False, True, False]
    assert [place["processes"] for place in places] == [1, 1, 1]


def test_a_run_that_goes_on_where_it_was_has_been_in_one_place(tmp_path):
    with pytest.raises(Stopped):
        train_and_evaluate(tiny(), tmp_path, observers=[stop_after(9)])
    train_and_evaluate(tiny(), tmp_path)
    (place,) = read_run(tmp_path, tiny()).environments
    assert place["from_step"] == 0


def test_of_one_seed_every_encoding_starts_from_the_same_weights_and_sees_the_same_batches():
    models = [make_model(tiny(spec)) for spec in ("none", "learned", "rope", "t5:max_distance=32")]
    first = dict(models[0].named_parameters())
    for model in models[1:]:
        others = {name: p for name, p in model.named_parameters() if not name.startswith("encoding.")}
        assert others.keys() == first.keys()
        assert all(torch.equal(others[name], first[name]) for name in first)
    one, two = (make_task(tiny(spec)).training_batch(0, 7, 4, 8) for spec in ("none", "alibi"))
    assert torch.equal(one.tokens, two.tokens)


def test_making_a_model_leaves_the_callers_random_numbers_alone():
    state = torch.get_rng_state()
    make_model(tiny("learned"))
    assert torch.equal(torch.get_rng_state(), state)


def test_tables_and_gains_do_not_decay_and_tables_learn_at_their_own_rate():
    config = tiny("learned", encoding_rate=7.0)
    groups = make_optimizer(make_model(config), config).param_groups
    decays = {(group["factor"], group["weight_decay"], group["params"][0].dim()) for group in groups}
    assert decays == {(1.0, 0.1, 2), (1.0, 0.0, 1), (7.0, 0.0, 2)}
    assert {(group["betas"], group["eps"]) for group in groups} == {((0.9, 0.95), 1e-8)}


def test_the_learning_rate_climbs_then_falls_to_a_tenth():
    config = tiny(steps=100, warmup=10, learning_rate=1.0)
    rates = [learning_rate(config, step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9] == pytest.approx(1.0)
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[-1] == pytest.approx(0.1, abs=0.001)


@pytest.mark.plain  # shape checkers cannot be compiled
def test_any_number_of_arms_is_compiled_in_one_process(tmp_path, monkeypatch):
    """A code has 8 compiled forms at most, after which it would be run as it is, and slowly."""
    monkeypatch.setattr(torch._dynamo.config, "fail_on_recompile_limit_hit", True)
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    for arm in range(10):
        spec = f"rope:base={1000 + arm}" if arm % 2 else f"clipped:max_distance={2 + arm}"
        train_and_evaluate(tiny(spec, steps=2, compile=True), tmp_path / str(arm))


def test_training_lowers_the_loss(tmp_path):
    config = tiny(steps=150, learning_rate=0.01, checkpoint_every=1000, d_model=32)
    train_and_evaluate(config, tmp_path)
    losses = [line["loss"] for line in numbers(tmp_path) if line["kind"] == "train"]
    assert sum(losses[-10:]) / 10 < 0.7 * losses[0]


def test_a_run_that_diverges_is_over_and_says_how(tmp_path):
    config, listener = tiny(learning_rate=1e30, clip=1e30), Listener()
    train_and_evaluate(config, tmp_path, listener)
    record = read_run(tmp_path, config)
    assert record.state == "diverged"
    assert re.fullmatch(r"at step \d+ its (loss|gradient norm) is (nan|inf)", record.reason)
    assert listener.said == [f"{tmp_path.name} diverged: {record.reason}"]
    assert record.of_kind("evaluation") == []
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()
    assert not (tmp_path / "checkpoint.safetensors").exists()
    train_and_evaluate(config, tmp_path, observers=[stop_after(1)])  # it would diverge again


@pytest.mark.parametrize(
    ("what", "value"), [("loss", "nan"), ("gradient norm", "inf"), ("validation loss", "nan")]
)
def test_divergence_names_the_quantity_that_is_no_number(tmp_path, monkeypatch, what, value):
    step = train._Run._step

    def spoiled(self, model):
        loss, norm = step(self, model)
        broken = torch.tensor(float(value))
        if self.step == 6:
            return (
                (broken, norm)
                if what == "loss"
                else (loss, broken)
                if what == "gradient norm"
                else (loss, norm)
            )
        return loss, norm

    monkeypatch.setattr(train._Run, "_step", spoiled)
    if what == "validation loss":
        monkeypatch.setattr(train, "validation_loss", lambda *_: float(value))
    train_and_evaluate(tiny(), tmp_path)
    record = read_run(tmp_path, tiny())
    assert (record.state, record.reason) == (
        "diverged", f"at step {5 if what == 'validation loss' else 7} its {what} is {value}",
    )  # fmt: skip


def test_a_checkpoint_brings_back_weights_moments_and_step(tmp_path):
    config = tiny("learned")
    model = make_model(config)
    optimizer = make_optimizer(model, config)
    model(torch.zeros(1, 4, dtype=torch.long)).sum().backward()
    optimizer.step()
    saved = checkpoint.State(
        config, 1, 2.5, MetricsPrefix(3, "of three lines"), checkpoint.capture(model, optimizer)
    )
    checkpoint.save(saved, tmp_path / "c.safetensors")
    other = make_model(tiny("learned", seed=3))
    twin = make_optimizer(other, config)
    state = checkpoint.load(tmp_path / "c.safetensors")
    assert (state.config, state.step, state.seconds, state.prefix) == (config, 1, 2.5, saved.prefix)
    checkpoint.restore(state, other, twin)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
        for name in ("exp_avg", "exp_avg_sq", "step"):
            assert torch.equal(optimizer.state[one][name], twin.state[two][name])


def test_the_text_may_not_change_under_a_comparison(tmp_path):
    text = some_text(tmp_path / "text")
    config = tiny(task="language", text=(text,), corpus="0123456789abcdef")
    with pytest.raises(ValueError, match="text must be what the comparison began with"):
        make_task(config)


def test_plain_progress_tells_where_it_is(tmp_path, capsys):
    train_and_evaluate(tiny(), tmp_path / "rope-0", PlainProgress(every=0.0))
    lines = capsys.readouterr().err.splitlines()
    assert any("rope-0: training 10/12, loss" in line and "tokens/s" in line for line in lines)
    assert any("left" in line for line in lines)
    assert any(line.startswith("rope-0: testing 2/2") for line in lines)
    assert not any("control" in line for line in lines)


def test_progress_moves_while_the_control_is_computed(tmp_path, capsys):
    """It takes longer than all other tests together."""
    text = some_text(tmp_path / "text", size=60_000)
    config = tiny(task="language", text=(text,), lengths=(8, 512), evaluation_tokens=8192, batch=200)
    config = dataclasses.replace(config, corpus=load_corpus(config.text).fingerprint)
    train_and_evaluate(config, tmp_path / "rope-0", PlainProgress(every=0.0))
    lines = [line for line in capsys.readouterr().err.splitlines() if "rope-0: control" in line]
    done = [int(line.split("control ")[1].split("/")[0]) for line in lines]
    assert len(done) > 3
    assert done == sorted(done)
    assert 0 < done[1] < done[-1]


def test_no_purpose_of_any_seed_shares_its_random_numbers_with_another(monkeypatch):
    """Neighbouring seeds above all: their runs are averaged as independent ones."""
    made: list[int] = []

    def noting(function):
        return lambda *args, **options: (made.append(torch.initial_seed()), function(*args, **options))[
            1
        ]

    monkeypatch.setattr(build, "create", noting(build.create))
    monkeypatch.setattr(build, "Transformer", noting(build.Transformer))
    for seed in range(20):
        make_model(tiny("learned", seed=seed))
        made += [generator("train", seed, step).initial_seed() for step in range(3)]
    assert len(made) == len(set(made)) == 20 * 5


def test_a_gradient_longer_than_clip_is_cut_to_it_and_the_rate_is_the_recorded_one(tmp_path):
    def reached_optimizer(clip: float) -> tuple[list[float], list[float]]:
        lengths: list[float] = []
        rates: list[float] = []

        class Measuring(torch.optim.AdamW):
            def step(self, closure=None):
                grads = [p.grad.flatten() for group in self.param_groups for p in group["params"]]
                lengths.append(torch.cat(grads).norm().item())
                assert all(
                    g["lr"] == g["factor"] * self.param_groups[0]["lr"] for g in self.param_groups
                )
                rates.append(self.param_groups[0]["lr"])
                return super().step(closure)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.optim, "AdamW", Measuring)
            train_and_evaluate(tiny("learned", clip=clip), tmp_path / str(clip))
        return lengths, rates

    free, rates = reached_optimizer(1e9)
    lines = [line for line in numbers(tmp_path / "1000000000.0") if line["kind"] == "train"]
    assert free == pytest.approx([line["grad_norm"] for line in lines])
    assert rates == [line["learning_rate"] for line in lines]
    clip = sorted(free)[4]
    cut, _ = reached_optimizer(clip)
    recorded = [line["grad_norm"] for line in numbers(tmp_path / str(clip)) if line["kind"] == "train"]
    assert max(recorded) > 1.05 * clip  # what is recorded is the length before
    assert min(recorded) < clip
    assert cut == pytest.approx([min(length, clip) for length in recorded])


def test_a_run_of_which_nothing_is_said_is_this_one():
    """A changed default changes everybody's numbers: then FORMAT is raised and the changelog says so."""
    assert RunConfig("rope").to_dict() == {
        "spec": "rope", "seed": 0, "task": "language", "train_length": 64, "lengths": [64, 96, 128, 256, 512],
        "steps": 1000, "batch": 16, "d_model": 96, "num_layers": 3, "num_heads": 8, "learning_rate": 4e-3,
        "warmup": 100, "encoding_rate": 10.0, "weight_decay": 0.1, "clip": 1.0, "evaluation_tokens": 32768,
        "last_tokens": 32, "extensions": [], "validate_every": 100, "checkpoint_every": 250, "device": "cpu",
        "dtype": "float32", "compile": False, "deterministic": True, "text": [], "corpus": "", "text_source": "",
        "control": True, "threads": 1, "format": 3,
    }  # fmt: skip


def test_records_of_an_older_recipe_are_read_and_not_gone_on_with(tmp_path):
    older = {
        n: v
        for n, v in tiny(format=2).to_dict().items()
        if n not in ("text_source", "control", "threads")
    }
    config = RunConfig.from_dict(older)
    assert (config.format, config.text_source, config.control) == (2, "", True)
    with pytest.raises(ValueError, match=r"format must be 3 for a run to be done, got 2"):
        train_and_evaluate(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
