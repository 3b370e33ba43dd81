"""The refusals of the lab's engine, for ``tests/test_errors.py``."""

# ruff: noqa: E501  one case a line, however long
from __future__ import annotations

import errno
import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest import mock

from lab_cases import Near, near

from ordinate.entries import register, unregister
from ordinate.files import DiskFull, write_file, write_then_move
from ordinate.lab.config import FORMAT, RunConfig
from ordinate.lab.corpus import Corpus, load_corpus
from ordinate.lab.record_checks import check_environments, check_lines, check_result
from ordinate.lab.records import (
    MetricsFile,
    MetricsPrefix,
    Sweep,
    check_file,
    parse_metrics,
    read_prefix,
    read_run,
    write_json,
)
from ordinate.lab.run import checkpoint
from ordinate.lab.run.build import make_task
from ordinate.lab.run.progress import Progress
from ordinate.lab.run.sweep import check_memory, check_room, how_many_at_once, plan
from ordinate.lab.run.train import (
    Diverged,
    _check_finite,
    _interrupted,
    no_observers,
    train_and_evaluate,
)
from ordinate.lab.run.workers import run_side_by_side
from ordinate.lab.strict_json import parse, read_bytes
from ordinate.lab.tasks import Language

_FOLDER = tempfile.TemporaryDirectory(prefix="ordinate-errors-")
HERE = Path(_FOLDER.name)


def file(name: str, content: bytes) -> str:
    path = HERE / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return str(path)


def tiny(spec: str = "none", **changes) -> RunConfig:
    sizes = {"task": "copy", "train_length": 8, "lengths": (8,), "steps": 2, "batch": 1, "d_model": 4}
    return RunConfig(spec, **{**sizes, "num_layers": 1, "num_heads": 1, "warmup": 0, **changes})


def sweep_file(content: bytes) -> Sweep:
    return Sweep.load(Path(file("sweep/sweep.json", content)).parent)


def sweep_of(**changes) -> Sweep:
    whole = {"format": FORMAT, "arms": ["rope"], "seeds": [0], "settings": tiny().settings()}
    return Sweep.from_dict({**whole, "command": "", "version": "", **changes})


def train_line(step: object) -> dict:
    return {"kind": "train", "step": step, "loss": 1.0, "grad_norm": 1.0}


def whole_run() -> list[dict]:
    train_and_evaluate(tiny(), HERE / "whole")
    return list(read_run(HERE / "whole").metrics)


def damaged_run() -> None:
    _interrupted(tiny(), Path(file("damaged/result.json", b"{")).parent)


def stopped_run(other: RunConfig | None = None) -> None:
    folder = Path(file("stopped/metrics.jsonl", b"")).parent
    file("stopped/config.json", json.dumps(tiny().to_dict()).encode())
    state = checkpoint.State(tiny(), 0, 0.0, MetricsPrefix(), {})
    checkpoint.save(state, folder / "checkpoint.safetensors")
    _interrupted(other or tiny(), folder)


def full(*_args) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def write_to_a_full_disk() -> None:
    with mock.patch("os.fsync", full):
        write_file(HERE / "full.json", b"{}")


def write_one_target_twice() -> None:
    with write_then_move(HERE / "target"), write_then_move(HERE / "target"):
        pass


def append_to_a_full_disk() -> None:
    metrics = MetricsFile(HERE / "full.jsonl")
    try:
        with mock.patch.object(metrics, "_file", wraps=metrics._file) as stuck:
            stuck.write = full
            metrics.append(kind="train", step=1)
    finally:
        metrics.close()


def cut_checkpoint() -> None:
    checkpoint.load(Path(file("cut.safetensors", b"\0")))


def changed_checkpoint() -> None:
    import torch

    path = HERE / "changed.safetensors"
    checkpoint.save(checkpoint.State(tiny(), 1, 1.0, MetricsPrefix(), {"model.w": torch.ones(4)}), path)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"\x41")
    checkpoint.load(path)


def short_text() -> None:
    import torch

    Language(Corpus(torch.zeros(90).byte(), torch.zeros(10).byte(), 1, "")).check_lengths(8, (8, 16))


def room(free: int) -> None:
    with mock.patch("shutil.disk_usage", return_value=mock.Mock(free=free)):
        check_room(plan(arms=["none"], task="copy"), HERE / "not" / "there")


def memory(free: int) -> None:
    with mock.patch("ordinate.lab.run.sweep.free_memory", return_value=free):
        check_memory(plan(arms=["none"], task="copy"))


CASES = [
    ("a config of other fields", lambda: RunConfig.from_dict({"spec": "rope", "colour": 1}), ValueError, r"config must have the fields of RunConfig, differs in: .*colour"),
    ("text that is not there", lambda: load_corpus(("/no/such/text",)), FileNotFoundError, r"text must be files or folders, got /no/such/text, which is not there"),
    ("a text of no name", lambda: plan(text=("",)), ValueError, r"text must be files or folders, got ''"),
    ("a text whose name is not UTF-8", lambda: plan(text=("caf\udce9",)), ValueError, r"text must be named in UTF-8, got '.*caf\\udce9'"),
    ("text that cannot be read", lambda: load_corpus(("a" * 300,)), ValueError, r"text must be files or folders that can be read, got a{300}: File name too long"),
    ("a record that could not be read", lambda: write_json(HERE / "x.json", "\udce9"), ValueError, r"x.json must be JSON, cannot be read: 'utf-8' codec can't encode"),
    ("a record that would be too large", lambda: write_json(HERE / "x.json", "a" * 2**20), ValueError, r"bytes of x.json must be at most 1048576, got 1048579"),
    ("empty text", lambda: load_corpus((file("empty.txt", b""),)), ValueError, r"text must not be empty, got .*empty.txt, which has 0 bytes"),
    ("binary text", lambda: load_corpus((file("binary.bin", b"a\0b"),)), ValueError, r"text must be text, got .*binary.bin, which is binary"),
    ("a folder without text", lambda: load_corpus((str(Path(file("nothing/.hidden", b"x")).parent),)), ValueError, r"text must be files or folders of text, got .*nothing, which holds none"),
    ("a text shorter than a sequence", short_text, ValueError, r"text must have more than 23 bytes for validation at the lengths asked for, got 10"),
    ("a text that changed", lambda: make_task(RunConfig("none", text=(file("t.txt", b"abc" * 99),), corpus="0")), ValueError, r"text must be what the comparison began with, of fingerprint 0, got"),
    ("no comparison", lambda: Sweep.load(HERE / "nowhere"), FileNotFoundError, r"nowhere must hold a comparison, got a folder without sweep.json"),
    ("a sweep that is cut", lambda: sweep_file(b'{"arms": ['), ValueError, r"sweep.json must be that of a comparison, cannot be read"),
    ("a sweep of another format than its settings", lambda: sweep_of(format=1), ValueError, r"format must be that of its settings, got 1"),
    ("a config of a format nobody knows", lambda: RunConfig.from_dict({**tiny().to_dict(), "format": 1}), ValueError, r"format must be at least 2 and at most 3, got 1"),
    ("a run of an older format", lambda: replace(tiny(), format=2).check_format(), ValueError, r"format must be 3 for a run to be done, got 2: with one seed, ordinate had other weights then"),
    ("a sweep without arms", lambda: sweep_of(arms=[]), ValueError, r"arms must be different encodings, got \[\]"),
    ("a sweep of one encoding twice", lambda: sweep_of(arms=["rope", "ROPE"]), ValueError, r"arms must be different encodings, got \['rope', 'ROPE'\]"),
    ("a sweep of a seed twice", lambda: sweep_of(seeds=[1, 1]), ValueError, r"seeds must be different numbers, got \[1, 1\]"),
    ("a sweep of a seed of letters", lambda: sweep_of(seeds=["a"]), ValueError, r"seed must be int, got 'a'"),
    ("a config that is none", lambda: RunConfig.from_dict([]), ValueError, r"config must be an object, got \[\]"),
    ("a config that counts to less than one", lambda: RunConfig.from_dict({**tiny().to_dict(), "steps": 0}), ValueError, r"steps must be at least 1, got 0"),
    ("a config whose lengths go down", lambda: RunConfig.from_dict({**tiny().to_dict(), "lengths": [16, 8]}), ValueError, r"lengths must go up, got \(16, 8\)"),
    ("a record that is a folder", lambda: read_bytes(HERE), ValueError, r"ordinate-errors-\w+ must be a regular file, got a folder, a pipe or a device"),
    ("a record that is too large", lambda: read_bytes(Path(file("large", b"12")), 1), ValueError, r"large must have at most 1 bytes, got 2"),
    ("a record that is not there", lambda: read_bytes(HERE / "not-there"), ValueError, r"not-there must be a file that can be read, got: No such file or directory"),
    ("a record that is cut", lambda: parse(b"[1", "x.json"), ValueError, r"x.json must be JSON, cannot be read: Expecting ',' delimiter"),
    ("a record of half a letter", lambda: parse(rb'"\ud800"', "x.json"), ValueError, r"x.json must be JSON, cannot be read: 'utf-8' codec can't encode"),
    ("a record nested too deeply for Python", lambda: parse(b"[" * 200_000 + b"]" * 200_000, "x.json"), ValueError, r"x.json must be JSON, cannot be read: maximum recursion depth exceeded"),
    ("a record nested too deeply", lambda: parse(b"[" * 18 + b"]" * 18, "x.json"), ValueError, r"x.json must not be nested more than 16 deep, got more"),
    ("a record of a long whole number", lambda: parse(b"1" * 19, "x.json"), ValueError, r"digits of a whole number must be at most 18, got 19"),
    ("a record of a large number", lambda: parse(b"-1e61", "x.json"), ValueError, r"a number must be at most 1e\+60, got 1e\+61"),
    ("a sweep without a command", lambda: sweep_of(command=None), ValueError, r"command must be text, got None"),
    ("a sweep of too many runs", lambda: sweep_of(seeds=list(range(10_001))), ValueError, r"arms times seeds must be at most 10000 runs, got 1 times 10001"),
    ("a result that is none", lambda: check_result([]), ValueError, r"result.json must be an object, got \[\]"),
    ("a result without checksums", lambda: check_result({"state": "finished", "reason": ""}), ValueError, r"result.json must have a reason in words and the SHA-256 of every file, got others"),
    ("a config with text for numbers", lambda: RunConfig.from_dict({**tiny().to_dict(), "lengths": ["8"]}), ValueError, r"lengths must be tuple\[int, ...\], got \('8',\)"),
    ("lines that are not a checkpoint's", lambda: read_prefix(HERE / "nowhere.jsonl", MetricsPrefix(2, "0")), ValueError, r"nowhere.jsonl must begin with the 2 lines its checkpoint stands for, got others"),
    ("a file that was changed", lambda: check_file(Path(file("f/config.json", b"{}")), {"config.json": "0"}), ValueError, r"config.json is not the file result.json was made of"),
    ("a run that is damaged", damaged_run, ValueError, r"result.json must be JSON, cannot be read: Expecting property name"),
    ("a run of another config", lambda: stopped_run(other=tiny("rope")), ValueError, r"checkpoint.safetensors or config.json is of another run"),
    ("a run without an environment", stopped_run, ValueError, r"environment.json must be a file that can be read, got: No such file or directory"),
    ("too few steps", lambda: check_lines(tiny(), [train_line(1)], finished=True), ValueError, r"metrics.jsonl must have 2 steps of training, each in its place, got 1"),
    ("steps out of order", lambda: check_lines(tiny(), [train_line(2), train_line(1)], finished=True), ValueError, r"metrics.jsonl must have its steps of training each in its place, got others"),
    ("no baseline", lambda: check_lines(tiny(), [line for line in whole_run() if line["kind"] != "baseline"], finished=True), ValueError, r"metrics.jsonl must have a line of kind baseline, got none"),
    ("a line without a field", lambda: check_lines(tiny(), [{"kind": "train", "step": 1}], finished=True), ValueError, r"a line of kind train must have loss"),
    ("a line with null for a step", lambda: check_lines(tiny(), [train_line(None)], finished=True), ValueError, r"step of a line of kind train must be a whole number of at least 1, got None"),
    ("a line without loss or reason", lambda: check_lines(tiny(), [{**line, "loss": None} if line["kind"] == "evaluation" else line for line in whole_run()], finished=True), ValueError, r"a line of kind evaluation must have a loss, or say why it was refused"),
    ("an environment that is none", lambda: check_environments({}), ValueError, r"environment.json must be a list of descriptions, got \{\}"),
    ("an environment without threads", lambda: check_environments([{"threads": 0}]), ValueError, r"threads in environment.json must be 1 to 4096, got 0"),
    ("a loss that is no number", lambda: _check_finite(3, "gradient norm", float("nan")), Diverged, r"at step 3 its gradient norm is nan"),
    ("an extension that is an encoding", lambda: plan(extensions=("alibi",), task="copy"), ValueError, r"extensions must be scalings of RoPE, got 'alibi'"),
    ("metrics that end early", lambda: list(parse_metrics(b'{"kind": "train"}')), ValueError, r"metrics.jsonl must end with a whole line"),
    ("metrics of another kind", lambda: list(parse_metrics(b"[1]\n")), ValueError, r"line 1 of metrics.jsonl must be an object with a kind"),
    ("a file on a full disk", write_to_a_full_disk, DiskFull, r"there is no room on disk for .*full.json"),
    ("a target that is being written", write_one_target_twice, FileExistsError, r"target must not be written by two processes at once \(remove '.target.ordinate-partial' next to it if none does\), got '.*target'"),
    ("a line on a full disk", append_to_a_full_disk, DiskFull, r"there is no room on disk for .*full.jsonl"),
    ("a disk too small", lambda: room(1000), DiskFull, r"out must have room for [\d.,]+ MB, got .*there with 0 MB free"),
    ("a memory too small", lambda: memory(1000), MemoryError, r"batch times train_length, d_model and num_layers must fit into memory, got \d+ × \d+, \d+ and \d+, which need at least \d+ MB for training with 0 MB free"),
    ("a cut checkpoint", cut_checkpoint, ValueError, r"cut.safetensors must be a checkpoint, cannot be read"),
    ("a changed checkpoint", changed_checkpoint, ValueError, r"changed.safetensors must be as it was written, its SHA-256 differs"),
    ("more threads than any machine has", lambda: plan(threads=1025, task="copy"), ValueError, r"threads must be at most 1024, got 1025"),
    ("a flag that is no bool", lambda: plan(control=1, task="copy"), TypeError, r"control must be True or False, got 1"),
    ("an unknown preset", lambda: plan("quik"), ValueError, r"unknown preset 'quik'; did you mean 'quick'"),
    ("an unknown task", lambda: plan(task="copi"), ValueError, r"unknown task 'copi'; did you mean 'copy'"),
    ("an unknown encoding in a plan", lambda: plan(arms=["ropee"], task="copy"), ValueError, r"unknown encoding 'ropee' in spec 'ropee'; did you mean 'rope'"),
    ("an unknown extension", lambda: plan(extensions=("yarm:factor=2",), task="copy"), ValueError, r"extensions must be scalings of RoPE, got 'yarm:factor=2'; did you mean 'yarn'"),
    ("a length the task has no room in", lambda: plan(task="passkey", train_length=16), ValueError, r"train_length must be at least 32 for task 'passkey', got 16"),
    ("a test length the task has no room in", lambda: plan(task="addition", lengths=(3, 64)), ValueError, r"lengths must be at least 5 for task 'addition', got 3"),
    ("no steps", lambda: plan(steps=0, task="copy"), ValueError, r"steps must be at least 1, got 0"),
    ("no seeds", lambda: plan(seeds=0, task="copy"), ValueError, r"seeds must be at least 1, got 0"),
    ("heads that do not divide", lambda: plan(num_heads=7, task="copy"), ValueError, r"d_model must be a multiple of num_heads 7, got"),
    ("a device nobody has", lambda: plan(device="tpu", task="copy"), ValueError, r"device must be one of 'cpu', 'cuda', 'mps', got 'tpu'"),
]  # fmt: skip


def no_cuda() -> None:
    with mock.patch("torch.cuda.is_available", return_value=False):
        plan(device="cuda", task="copy")


def two_on_a_gpu() -> None:
    settings = tiny(device="cuda").settings()
    how_many_at_once(Sweep(("none",), (0,), settings), HERE, 2)


def two_with_a_local_class() -> None:
    class Local(Near):
        """Lower every score by the distance."""

    register(near(Local))
    try:
        run_side_by_side({HERE / "near-0": tiny("near")}, HERE, 2, Progress(), no_observers)
    finally:
        unregister("near")


CASES.append(
    (
        "two runs at once with a class of a function",
        two_with_a_local_class,
        ValueError,
        r"workers must be 1 with 'near', whose class other processes cannot import, got 2",
    )
)
CASES.append(
    (
        "two runs at once on a GPU",
        two_on_a_gpu,
        ValueError,
        r"workers must be 1 on a GPU, where runs take turns, got 2",
    )
)
CASES.append(
    ("a GPU that is not there", no_cuda, ValueError, r"device must be one that is there, got 'cuda'")
)
