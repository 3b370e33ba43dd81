"""A comparison: every encoding with every seed, planned and checked before the first training step."""

from __future__ import annotations

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
    refused,
)
from ...entries import catalog, parse
from ...files import DiskFull
from ...memory import free_memory
from ...text import Text
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
from .registered import not_importable, registered_entries
from .train import no_observers, train_and_evaluate
from .workers import PROCESS_BYTES, Observers, run_side_by_side, usable_cores

# Limits of settings: the lines of a million steps fit in a ``metrics.jsonl``.
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
    """A checked comparison from a preset, optionally with other encodings and settings.

    Args:
        preset: A name of `PRESETS`.
        arms: Encodings, as in `ordinate.create`; default the preset's.
        seeds: The number of seeds; default the preset's.
        elsewhere: The runs are for other machines; this machine need not have the device.
        changes: Fields of `RunConfig`. ``lengths`` always include the training length; the default lengths are the
            preset's, in proportion to it.

    Raises:
        ValueError, TypeError, FileNotFoundError: A setting breaks a rule, which the message names.

    Example:
        >>> sweep = plan(arms=["rope", "alibi"], train_length=32, steps=10, task="copy")
        >>> len(sweep.configs()), sweep.settings["lengths"]
        (2, [32, 48, 64, 128, 256])
    """
    if preset not in PRESETS:
        rule, hint = "unknown preset {preset}{hint}", nearest(preset, PRESETS)
        raise refused("", rule, preset=repr(preset), hint=hint)
    chosen = PRESETS[preset]
    count = check_positive_int("seeds", chosen.seeds if seeds is None else seeds)
    config = chosen.config(**changes)
    if "lengths" not in changes and config.train_length >= 1:
        usual = chosen.config()
        stretched = (length * config.train_length // usual.train_length for length in usual.lengths)
        config = dataclasses.replace(config, lengths=tuple(stretched))
    config = dataclasses.replace(config, lengths=tuple(sorted({config.train_length, *config.lengths})))
    check_config(config, elsewhere=elsewhere)
    if config.task == "language":
        # Absolute paths, so that the comparison can be resumed from any folder.
        config = dataclasses.replace(config, text=absolute_paths(config.text))
        corpus = load_corpus(config.text)
        Language(corpus).check_lengths(config.train_length, config.lengths)
        config = dataclasses.replace(config, corpus=corpus.fingerprint, text_source=corpus.describe())
    specs = distinct_specs(arms or chosen.arms(config.train_length))
    check_arms(specs, config)
    return Sweep(specs, tuple(range(count)), config.settings(), command, ordinate.__version__)


def check_config(config: RunConfig, *, elsewhere: bool = False) -> None:
    """Check every setting that all runs share; also the device, unless the runs are for other machines."""
    config.check_format()
    if config.task not in TASKS:
        rule, known = "unknown task {task}{hint}", nearest(config.task, TASKS)
        raise refused("", rule, task=repr(config.task), hint=known)
    needed = TASKS[config.task].minimum_length
    for length in (config.train_length, *config.lengths):
        name = "train_length" if length == config.train_length else "lengths"
        check_size(name, length, most=LARGEST_WHOLE)
        if length < needed:
            raise refused(
                name,
                "must be at least {least} for task {task}",
                length,
                least=needed,
                task=repr(config.task),
            )
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
        rule, other = "must be a multiple of {other} {count}", Text("num_heads")
        raise refused("d_model", rule, config.d_model, other=other, count=config.num_heads)
    for name in ("compile", "deterministic", "control"):
        check_bool(name, getattr(config, name))
    check_choice("dtype", config.dtype, ("float32", "bfloat16"))
    is_there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    check_choice("device", config.device, is_there)
    if not elsewhere and not is_there[config.device]:
        rule, advice = "must be one that is there", ", which PyTorch does not find"
        raise refused("device", rule, repr(config.device), advice=advice)
    scalings = [name for name, entry in catalog.items() if entry.is_scaling]
    for scaling in config.extensions:
        name = scaling.partition(":")[0].strip().lower()
        if name not in scalings or len(parse(scaling)) > 1:
            hint = "" if name in scalings else nearest(name, scalings)
            raise refused(
                "extensions", "must be scalings of RoPE", repr(scaling), advice="{hint}", hint=hint
            )


def check_arms(arms: Iterable[str], config: RunConfig) -> None:
    """Check that every encoding can be made for this model, with the scalings that it is tested with."""
    for spec in arms:
        make_encoding(spec, config)
        for scaling, _ in dataclasses.replace(config, spec=spec).tests():
            make_encoding(f"{spec}+{scaling}" if scaling else spec, config)


def untrained_rows(sweep: Sweep) -> list[str]:
    """A sentence for each arm whose table has rows for distances that do not occur in training."""
    config, sentences = sweep.configs()[0], []
    for spec in sweep.arms:
        longest = getattr(make_encoding(spec, config), "max_distance", 0)
        if longest > config.train_length:
            sentences.append(
                f"{spec} has rows for distances up to {longest}, which training at {config.train_length} never "
                f"reaches; max_distance={config.train_length} would have none"
            )
    return sentences


def how_many_at_once(sweep: Sweep, out: Path, asked: int | None = None) -> int:
    """How many runs to do in parallel: on a CPU as many as cores and memory allow, otherwise one.

    Args:
        asked: The number to use instead.

    Raises:
        ValueError: This number is not possible.
    """
    config, left = sweep.configs()[0], max(1, len(_unfinished(sweep, out)))
    if asked is not None:
        check_positive_int("workers", asked)
    if config.device != "cpu":
        if asked not in (None, 1):
            raise refused("workers", "must be 1 on a GPU, where runs take turns", asked)
        return 1
    if asked is None and not_importable(registered_entries(sweep.arms)):
        return 1
    if asked is not None:
        return min(asked, left)
    free, each = free_memory(), least_training_memory(config) + PROCESS_BYTES
    fitting = left if free is None else free // each
    return max(1, min(usable_cores() // config.threads, left, fitting))


def check_memory(sweep: Sweep, workers: int = 1) -> None:
    """Check that the models in training fit in this machine's memory, if they are trained in it.

    Raises:
        MemoryError: They do not fit.
    """
    config = sweep.configs()[0]
    needed, free = least_training_memory(config), free_memory()
    if workers > 1:
        needed = workers * (needed + PROCESS_BYTES)
    if config.device != "cuda" and free is not None and needed > free:
        several: str = Text(" {workers} runs at once", workers=workers) if workers > 1 else ""
        raise refused(
            Text("batch times train_length, d_model and num_layers"),
            "must fit into memory, got {batch} × {train_length}, {d_model} and {num_layers}, which need at least "
            "{needed} MB for training{several} with {free} MB free",
            error=MemoryError,
            several=several, needed=f"{needed / 1e6:,.0f}", free=f"{free / 1e6:,.0f}",
            **{name: getattr(config, name) for name in ("batch", "train_length", "d_model", "num_layers")},
        )  # fmt: skip


def _unfinished(sweep: Sweep, out: Path) -> list[RunConfig]:
    return [c for c in sweep.configs() if not (sweep.directory(out, c) / "result.json").exists()]


def check_room(sweep: Sweep, out: Path, workers: int = 1) -> None:
    """Check that the disk has space for the checkpoints, weights and lines of all remaining runs.

    Raises:
        DiskFull: It has too little space.
    """
    config, left = sweep.configs()[0], len(_unfinished(sweep, out))
    if not left:
        return
    weights = 4 * parameters_of(make_model(config))
    # The weights of finished runs stay; a run in progress has two checkpoints while it replaces the old one.
    needed = left * (weights + 300 * config.steps) + workers * 6 * weights
    folder = out
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise refused(
            "out",
            "must have room for {needed} MB",
            out,
            error=DiskFull,
            advice=" with {free} MB free",
            needed=f"{needed / 1e6:,.0f}",
            free=f"{free / 1e6:,.0f}",
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
    """Do every run that is not over: one after the other in this process, or in parallel in others.

    A run that diverges is over, and does not stop the others. The number of parallel runs does not change results.

    Args:
        processes: The processes that train each model together.
        workers: The number of parallel runs, in separate processes (`run_side_by_side` has the conditions).
    """
    progress, processes = progress or Progress(), processes or Processes()
    if processes.main:
        begin(sweep, out, progress, workers)
    if workers > 1:
        configs = {sweep.directory(out, config): config for config in sweep.configs()}
        return run_side_by_side(configs, out, workers, progress, observers)
    for config in sweep.configs():
        directory = sweep.directory(out, config)
        train_and_evaluate(
            config,
            directory,
            progress if processes.main else Progress(),
            observers=observers(directory) if processes.main else (),
            processes=processes,
        )
        progress.run_done()


def begin(sweep: Sweep, out: Path, progress: Progress, workers: int = 1) -> None:
    """Write ``sweep.json``, and print what will be done and where the records are."""
    sweep.save(out)
    at_once = f", {workers} at once" if workers > 1 else ""
    progress.say(f"{words.plural(len(sweep.configs()), 'run')}{at_once}, records in {out}")
