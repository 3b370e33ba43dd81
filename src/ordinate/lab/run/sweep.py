"""A comparison: every encoding with every seed, planned whole before the first step is taken."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

import ordinate

from ...checks import (
    check_at_most,
    check_bool,
    check_choice,
    check_number,
    check_positive_int,
    check_size,
    nearest,
)
from ...entries import catalog, parse
from ...files import DiskFull
from ...memory import free_memory
from .. import formats as words
from ..config import RunConfig, distinct_specs
from ..corpus import absolute_paths, load_corpus
from ..records import Sweep
from ..strict_json import LARGEST_NUMBER, LARGEST_WHOLE
from ..tasks import TASKS, Language
from .build import make_encoding, make_model
from .cost import least_training_memory, parameters_of
from .presets import PRESETS
from .processes import Processes
from .progress import Progress
from .run_lock import lock_run
from .train import no_observers, train_and_evaluate
from .workers import PROCESS_BYTES, Observers, run_side_by_side, usable_cores

# The lines of a million steps fit into a ``metrics.jsonl``; other numbers fit into any record.
_MOST = {"steps": 1_000_000, "threads": 1024}


def plan(
    preset: str = "quick",
    arms: Sequence[str] = (),
    *,
    seeds: int | None = None,
    command: str = "",
    elsewhere: bool = False,
    **changes: Any,
) -> Sweep:
    """A comparison from a preset, other encodings and changed settings, checked to the last.

    Args:
        preset: A name of `PRESETS`.
        arms: Encodings, as in `ordinate.create`; default the preset's.
        seeds: How many; default the preset's.
        elsewhere: The runs are for other machines, whose devices this one need not have.
        changes: Fields of `RunConfig`. ``lengths`` always holds the training length too; without it they
            keep the preset's proportions to a changed one.

    Raises:
        ValueError, TypeError, FileNotFoundError: A setting breaks a rule; the message says which.

    Example:
        >>> sweep = plan(arms=["rope", "alibi"], train_length=32, steps=10, task="copy")
        >>> len(sweep.configs()), sweep.settings["lengths"]
        (2, [32, 48, 64, 128, 256])
    """
    if preset not in PRESETS:
        raise ValueError(f"unknown preset {preset!r}{nearest(preset, PRESETS)}")
    chosen = PRESETS[preset]
    count = chosen.seeds if seeds is None else seeds
    count = check_positive_int("seeds", count)
    config = chosen.config(**changes)
    if "lengths" not in changes and config.train_length >= 1:
        usual = chosen.config()
        stretched = (length * config.train_length // usual.train_length for length in usual.lengths)
        config = dataclasses.replace(config, lengths=tuple(stretched))
    config = dataclasses.replace(config, lengths=tuple(sorted({config.train_length, *config.lengths})))
    check_config(config, elsewhere=elsewhere)
    if config.task == "language":
        # Whole paths, so that the comparison can be gone on with from any folder.
        config = dataclasses.replace(config, text=absolute_paths(config.text))
        corpus = load_corpus(config.text)
        Language(corpus).check_lengths(config.train_length, config.lengths)
        config = dataclasses.replace(config, corpus=corpus.fingerprint, text_source=corpus.describe())
    specs = distinct_specs(arms or chosen.arms(config.train_length))
    check_arms(specs, config)
    return Sweep(specs, tuple(range(count)), config.settings(), command, ordinate.__version__)


def check_config(config: RunConfig, *, elsewhere: bool = False) -> None:
    """Every setting that all runs share; on this machine its device too, unless it is used elsewhere."""
    config.check_format()
    if config.task not in TASKS:
        raise ValueError(f"unknown task {config.task!r}{nearest(config.task, TASKS)}")
    needed = TASKS[config.task].minimum_length
    for length in (config.train_length, *config.lengths):
        name = "train_length" if length == config.train_length else "lengths"
        check_size(name, length, most=LARGEST_WHOLE)
        if length < needed:
            raise ValueError(f"{name} must be at least {needed} for task {config.task!r}, got {length}")
    for name in (
        "steps", "batch", "d_model", "num_layers", "num_heads", "evaluation_tokens", "last_tokens",
        "validate_every", "checkpoint_every", "threads",
    ):  # fmt: skip
        check_size(name, getattr(config, name), most=_MOST.get(name, LARGEST_WHOLE))
    check_size("warmup", config.warmup, minimum=0, most=LARGEST_WHOLE)
    for name in ("learning_rate", "encoding_rate", "clip"):
        check_number(name, getattr(config, name), above=0)
        check_at_most(name, getattr(config, name), LARGEST_NUMBER)
    check_number("weight_decay", config.weight_decay, at_least=0)
    if config.d_model % config.num_heads:
        raise ValueError(
            f"d_model must be a multiple of num_heads {config.num_heads}, got {config.d_model}"
        )
    for name in ("compile", "deterministic", "control"):
        check_bool(name, getattr(config, name))
    check_choice("dtype", config.dtype, ("float32", "bfloat16"))
    is_there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    check_choice("device", config.device, is_there)
    if not elsewhere and not is_there[config.device]:
        raise ValueError(
            f"device must be one that is there, got {config.device!r}, which PyTorch does not find"
        )
    scalings = [name for name, entry in catalog.items() if entry.is_scaling]
    for scaling in config.extensions:
        name = scaling.partition(":")[0].strip().lower()
        if name not in scalings or len(parse(scaling)) > 1:
            likely = "" if name in scalings else nearest(name, scalings)
            raise ValueError(f"extensions must be scalings of RoPE, got {scaling!r}{likely}")


def check_arms(arms: Iterable[str], config: RunConfig) -> None:
    """Every encoding must be one that can be made for this model, with the scalings it is tested with."""
    for spec in arms:
        make_encoding(spec, config)
        for scaling, _ in dataclasses.replace(config, spec=spec).tests():
            make_encoding(f"{spec}+{scaling}" if scaling else spec, config)


def untrained_rows(sweep: Sweep) -> list[str]:
    """A sentence for each arm whose table has rows that no distance of training reaches."""
    config, sentences = sweep.configs()[0], []
    for spec in sweep.arms:
        reach = getattr(make_encoding(spec, config), "max_distance", 0)
        if reach > config.train_length:
            sentences.append(
                f"{spec} has rows for distances up to {reach}, which training at {config.train_length} never "
                f"reaches; max_distance={config.train_length} would have none"
            )
    return sentences


def how_many_at_once(sweep: Sweep, out: Path, asked: int | None = None) -> int:
    """How many runs to do side by side: on a CPU as many as there are cores and memory for, else one.

    Args:
        asked: By whoever knows better.

    Raises:
        ValueError: So many cannot be.
    """
    config, left = sweep.configs()[0], max(1, len(_unfinished(sweep, out)))
    if asked is not None:
        check_positive_int("workers", asked)
    if config.device != "cpu":
        if asked not in (None, 1):
            raise ValueError(f"workers must be 1 on a GPU, where runs take turns, got {asked}")
        return 1
    if asked is not None:
        return min(asked, left)
    free, each = free_memory(), least_training_memory(config) + PROCESS_BYTES
    fitting = left if free is None else free // each
    return max(1, min(usable_cores() // config.threads, left, fitting))


def check_memory(sweep: Sweep, workers: int = 1) -> None:
    """The models in training must fit into the memory of this machine, where that is what they are trained in.

    Raises:
        MemoryError: They do not.
    """
    config = sweep.configs()[0]
    needed, free = least_training_memory(config), free_memory()
    if workers > 1:
        needed = workers * (needed + PROCESS_BYTES)
    if config.device != "cuda" and free is not None and needed > free:
        several = f" {workers} runs at once" if workers > 1 else ""
        raise MemoryError(
            f"batch times train_length, d_model and num_layers must fit into memory, got "
            f"{config.batch} × {config.train_length}, {config.d_model} and {config.num_layers}, which need at "
            f"least {needed / 1e6:,.0f} MB for training{several} with {free / 1e6:,.0f} MB free"
        )


def _unfinished(sweep: Sweep, out: Path) -> list[RunConfig]:
    return [c for c in sweep.configs() if not (sweep.directory(out, c) / "result.json").exists()]


def check_room(sweep: Sweep, out: Path, workers: int = 1) -> None:
    """There must be room for the checkpoints, weights and lines of all runs that are still to be done.

    Raises:
        DiskFull: There is not.
    """
    config, left = sweep.configs()[0], len(_unfinished(sweep, out))
    if not left:
        return
    weights = 4 * parameters_of(make_model(config))
    # Finished runs keep their weights; one in progress has two checkpoints while it replaces one.
    needed = left * (weights + 300 * config.steps) + workers * 6 * weights
    folder = out
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DiskFull(
            f"out must have room for {needed / 1e6:,.0f} MB, got {out} with {free / 1e6:,.0f} MB free"
        )


def run_all(
    sweep: Sweep,
    out: Path,
    progress: Progress | None = None,
    *,
    observers: Observers = no_observers,
    processes: Processes | None = None,
    workers: int = 1,
) -> None:
    """Do every run that is not over: one after the other in this process, or side by side in others.

    A run that diverges is over, and does not keep the others from being done. How many are done at once makes
    no difference to their numbers.

    Args:
        processes: Those that train each model together.
        workers: Runs at once, in processes of their own (`run_side_by_side` says what that takes).
    """
    progress, processes = progress or Progress(), processes or Processes()
    if processes.main:
        begin(sweep, out, progress, workers)
    if workers > 1:
        configs = {sweep.directory(out, config): config for config in sweep.configs()}
        return run_side_by_side(configs, out, workers, progress, observers)
    for config in sweep.configs():
        directory = sweep.directory(out, config)
        # Nobody else works on this run, be it a second ``--resume`` of the same comparison.
        with lock_run(directory) if processes.main else contextlib.nullcontext():
            train_and_evaluate(
                config,
                directory,
                progress if processes.main else Progress(),
                observers=observers(directory) if processes.main else (),
                processes=processes,
            )
        progress.run_done()


def begin(sweep: Sweep, out: Path, progress: Progress, workers: int = 1) -> None:
    """Write down what is going to be done, and say where."""
    sweep.save(out)
    at_once = f", {workers} at once" if workers > 1 else ""
    progress.say(f"{words.plural(len(sweep.configs()), 'run')}{at_once}, records in {out}")
