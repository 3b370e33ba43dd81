"""``ordinate compare``: train the same small model with each encoding, test all at longer lengths, and report."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from ..extras import how_to_install
from .errors import Misuse, within_reach

_HELP = "ordinate compare --help"
_RUNS = Path("runs")  # where comparisons go that are given no folder

_EPILOG = """Examples:

\b
  ordinate compare                                   seven encodings, minutes on two cores
  ordinate compare rope alibi rope:base=1e6          some, with options
  ordinate compare rope t5:max_distance=64 --seeds 3 with error bars
  ordinate compare rope alibi --task copy            another task: passkey, reverse, addition, …
  ordinate compare rope alibi --text ~/notes         your own text
  ordinate compare --train-length 128 --lengths 1x,2x,16x
  ordinate compare --preset gpu --out runs/big       a 25M model, on a GPU
  ordinate compare --resume --out runs/big           go on where it was stopped
  ordinate compare --seeds 3 --workers 4             four runs at once, and no more
  ordinate compare --seeds 3 --cluster auto          on all machines of a Ray cluster
  torchrun --nproc-per-node 8 -m ordinate compare --preset gpu

Exit code: 0 when every run is finished, 1 when one diverged or was damaged, 2 for misuse.
"""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("compare", epilog=_EPILOG)(compare_command)


def compare_command(
    names: list[str] | None = typer.Argument(
        None, metavar="ENCODING", show_default=False,
        help="Encodings, as in ordinate.create. Default: the preset's.",
    ),
    preset: str | None = typer.Option(
        None, help="quick, standard or gpu: sizes that fit a machine. Default: quick.", show_default=False
    ),
    train_length: int | None = typer.Option(None, help="Tokens of a training sequence."),
    lengths: str | None = typer.Option(
        None, metavar="N,…", help="Lengths to test at: 128,256 or, times the training length, 1x,2x,8x."
    ),
    steps: int | None = typer.Option(
        None, help="Optimizer steps of a run. Default: the preset's, which has more for some tasks."
    ),
    seeds: int | None = typer.Option(None, help="Runs of each encoding, from different seeds."),
    task: str | None = typer.Option(
        None, help="language, passkey, copy, reverse, induction, flipflop, or addition, more than quick learns."
    ),
    text: list[str] | None = typer.Option(
        None, metavar="PATH", help="A file or folder to learn from. Repeatable. Default: Python's library."
    ),
    device: str | None = typer.Option(None, help="cpu, cuda or mps (Apple's GPUs)."),
    out: Path | None = typer.Option(None, help="Folder for records and report. Default: runs/<date-time>."),
    resume: bool = typer.Option(False, "--resume", help="Go on with the comparison in --out."),
    as_json: bool = typer.Option(False, "--json", help="Print the results as JSON."),
    batch: int | None = typer.Option(None, help="Sequences of a step."),
    d_model: int | None = typer.Option(None, help="Width of the model."),
    layers: int | None = typer.Option(None, help="Layers of the model."),
    heads: int | None = typer.Option(None, help="Heads of a layer."),
    learning_rate: float | None = typer.Option(None, help="At its highest."),
    extend: list[str] | None = typer.Option(
        None, metavar="SCALING", help="Scaling to test a trained RoPE with, or none. Repeatable."
    ),
    compiled: bool | None = typer.Option(
        None, "--compile/--no-compile", help="Whether to use torch.compile; the gpu preset does."
    ),
    deterministic: bool | None = typer.Option(
        None, "--deterministic/--no-deterministic",
        help="Whether a GPU must give the same numbers twice, at some cost in speed; it must by default.",
    ),
    control: bool | None = typer.Option(
        None, "--control/--no-control",
        help="Whether to test a text also with no more than the training length in view.",
    ),
    workers: int | None = typer.Option(
        None, help="Runs at once on the CPU. Default: as many as there are cores and memory for."
    ),
    threads: int | None = typer.Option(
        None, help="Threads of a run on the CPU, 1 by default; the last digits depend on it."
    ),
    cluster: str | None = typer.Option(
        None, metavar="auto|ADDRESS", help="Spread the runs over a Ray cluster (extra: cluster)."
    ),
    tensorboard: bool = typer.Option(False, "--tensorboard", help="Also write TensorBoard event files."),
    report: bool = typer.Option(True, help="Write the report at the end."),
) -> None:  # fmt: skip
    """Train the same small Transformer once per encoding, and test each at longer lengths.

    Every encoding gets the same weights to start from, the same batches in the same order and the same
    number of steps. Records go to --out as they come; a run that is stopped goes on with --resume.
    """
    changes = {
        "train_length": train_length, "steps": steps, "task": task, "device": device, "batch": batch,
        "d_model": d_model, "num_layers": layers, "num_heads": heads, "learning_rate": learning_rate,
        "text": tuple(text) if text else None, "lengths": lengths, "extensions": _extensions(extend),
        "compile": compiled, "deterministic": deterministic, "control": control, "threads": threads,
    }  # fmt: skip
    given = {name: value for name, value in changes.items() if value is not None}
    rule = "--out must be a folder that can be written to"
    try:
        with within_reach(rule, out or _RUNS, _HELP):
            _compare(
                names or [],
                preset,
                seeds,
                given,
                out,
                resume,
                as_json,
                workers,
                cluster,
                tensorboard,
                report,
            )
    except Misuse as misuse:
        if _rank():
            _let_the_first_speak()
            raise Misuse(f"process {_rank()}: {misuse}", misuse.hint) from None
        raise


def _compare(
    names: list[str],
    preset: str | None,
    seeds: int | None,
    given: dict[str, Any],
    out: Path | None,
    resume: bool,
    as_json: bool,
    workers: int | None,
    cluster: str | None,
    tensorboard: bool,
    report: bool,
) -> None:
    _check_packages(tensorboard, cluster)
    # Only now: these import torch, and a mistyped option should be answered at once.
    from ..files import DiskFull
    from ..lab.run.cluster import ClusterError, run_on_cluster
    from ..lab.run.failures import RunFailed
    from ..lab.run.processes import Processes
    from ..lab.run.progress import PlainProgress, Progress, RichProgress
    from ..lab.run.sweep import check_memory, check_room, how_many_at_once, run_all, untrained_rows

    if resume:
        sweep = _resumed(out, names, preset, seeds, given, cluster is not None)
    else:
        sweep = _planned(out, names, preset, seeds, given, cluster is not None)
    device, batch = sweep.settings["device"], sweep.settings["batch"]
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if batch % size:
        raise Misuse(f"--batch must be a multiple of the {size} processes, got {batch}", _HELP)
    if cluster is not None and size > 1:
        raise Misuse(
            f"--cluster must be left out under torchrun, which has {size} processes share each run",
            _HELP,
        )
    if workers is not None and (cluster is not None or size > 1):
        raise Misuse(
            f"--workers must be left out with --cluster and under torchrun, got {workers}", _HELP
        )
    try:
        workers = 1 if size > 1 else how_many_at_once(sweep, out or _RUNS, workers)
    except ValueError as error:
        raise Misuse(_in_options(str(error)), _HELP) from None
    processes = Processes.join(device)
    out = processes.broadcast(out or _RUNS / time.strftime("%Y-%m-%d-%H%M%S"))
    assert out is not None
    again = f"ordinate compare --resume --out {shlex.quote(str(out))}"
    progress: Progress
    if processes.rank or not sys.stderr.isatty():
        progress = Progress() if processes.rank else PlainProgress()
    else:
        progress = RichProgress(len(sweep.configs()))
    try:
        if processes.main:
            if cluster is None:  # whose machines have memory of their own
                check_memory(sweep, workers)
            check_room(sweep, out, workers)
        with progress:
            for sentence in untrained_rows(sweep):
                progress.say(sentence)
            if cluster is None:
                run_all(
                    sweep, out, progress, observers=_observers(tensorboard), processes=processes,
                    workers=workers,
                )  # fmt: skip
            else:
                run_on_cluster(sweep, out, cluster, progress, observers=_observers(tensorboard))
    except MemoryError as error:
        raise MemoryError(_in_options(str(error))) from None
    except DiskFull as error:
        started = (out / "sweep.json").exists()
        hint = f"free some, then {again}" if started else "--out on another disk"
        raise Misuse(_in_options(str(error)), hint) from None
    except ClusterError as error:
        hint = again if (out / "sweep.json").exists() else "ray start --head, then --cluster auto"
        raise Misuse(_in_options(str(error)), hint) from None
    except RunFailed:
        pass  # said when it happened, and again with what came of the others
    except KeyboardInterrupt:
        print(f"\nstopped; {again} goes on from here", file=sys.stderr)
        raise typer.Exit(130) from None
    finally:
        processes.close()
    if processes.main:
        _present(out, as_json, report, again)


def _planned(
    out: Path | None, names: list[str], preset: str | None, seeds: int | None, given: dict[str, Any],
    elsewhere: bool,
):  # fmt: skip
    """A new comparison, every part of it checked before anything is written."""
    from ..lab.run.sweep import plan

    if out is not None and (out / "sweep.json").exists():
        raise Misuse(
            f"--out must be a new folder, got {out}, which holds a comparison",
            f"ordinate compare --resume --out {shlex.quote(str(out))}",
        )
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Misuse(f"--out must be a new or empty folder, got {out}", _HELP)
    command = _command_line(names, preset, seeds, given)
    try:
        changes = {**given}
        if "lengths" in changes:
            changes["lengths"] = _lengths(changes["lengths"], changes, preset or "quick")
        return plan(
            preset or "quick", names, seeds=seeds, command=command, elsewhere=elsewhere, **changes
        )
    except (ValueError, TypeError, OSError) as error:
        raise Misuse(_in_options(str(error)), _hint_for(str(error))) from None


def _resumed(
    out: Path | None, names: list[str], preset: str | None, seeds: int | None, given: dict[str, Any],
    elsewhere: bool,
):  # fmt: skip
    """A comparison on disk, with encodings or seeds added to it if asked."""
    from ..checks import check_positive_int
    from ..lab.config import RunConfig, distinct_specs
    from ..lab.records import Sweep
    from ..lab.run.build import make_task
    from ..lab.run.sweep import check_arms, check_config

    if out is None:
        raise Misuse("--resume needs --out, the folder of the comparison to go on with", _HELP)
    if preset is not None:
        raise Misuse("--preset must be left out with --resume, whose settings are on disk", _HELP)
    try:
        sweep = Sweep.load(out)
        config = RunConfig.from_dict({"spec": "none", "seed": 0, **sweep.settings})
        check_config(config, elsewhere=elsewhere)
        make_task(config)
        arms = distinct_specs((*sweep.arms, *names))
        check_arms(arms, config)
        check_positive_int("seeds", 1 if seeds is None else seeds)
        for name, value in given.items():
            _check_as_before(name, value, config, out)
        count = len(sweep.seeds) if seeds is None else seeds
        if count < len(sweep.seeds):
            raise _differs("--seeds", f"at least {len(sweep.seeds)}", out, count)
        unused = (seed for seed in itertools.count() if seed not in sweep.seeds)
        more = tuple(itertools.islice(unused, count - len(sweep.seeds)))
        words = shlex.split(sweep.command)
        words += arms[len(sweep.arms) :]  # the recorded command should still do all of it again
        if more:
            words += ["--seeds", str(count)]
        return dataclasses.replace(
            sweep, arms=arms, seeds=(*sweep.seeds, *more), command=shlex.join(words)
        )
    except (ValueError, TypeError, OSError) as error:
        raise Misuse(_in_options(str(error)), _hint_for(str(error))) from None


def _check_as_before(name: str, value: Any, config: Any, out: Path) -> None:
    """A setting that is given again must be the one on disk."""
    from ..lab.corpus import absolute_paths

    held = getattr(config, name)
    if name == "lengths":
        named = _lengths(value, {"train_length": config.train_length}, "quick")
        value = tuple(sorted({config.train_length, *named}))
    elif name == "text":
        value = absolute_paths(value)
    if value != held:
        raise _differs(_option(name), held, out, value)


def _differs(option: str, held: object, out: Path, value: object) -> Misuse:
    return Misuse(
        f"{option} must be {held} as the comparison in {out} has it, got {value}",
        "another --out for another comparison",
    )


def _lengths(text: str, changes: dict[str, Any], preset: str) -> tuple[int, ...]:
    """``"128,256"`` and ``"1x,2x"``, or both."""
    from ..lab.run.presets import PRESETS

    if preset not in PRESETS:
        return ()  # refused by name in a moment
    train_length = changes.get("train_length") or PRESETS[preset].config().train_length
    found = []
    for part in text.replace(" ", "").split(","):
        try:
            found.append(int(float(part[:-1]) * train_length) if part.endswith("x") else int(part))
        except (ValueError, OverflowError):
            raise ValueError(f"lengths must be numbers such as 128,256 or 1x,2x, got {part!r}") from None
    return tuple(found)


def _extensions(extend: list[str] | None) -> tuple[str, ...] | None:
    if not extend:
        return None
    return () if extend == ["none"] else tuple(extend)


def _observers(tensorboard: bool) -> Callable[[Path], Iterable[Any]]:
    from ..lab.run.train import no_observers

    return _event_file if tensorboard else no_observers


def _event_file(directory: Path) -> Iterable[Any]:
    from ..lab.run.tensorboard import EventFile

    return (EventFile(directory / "tensorboard"),)


def _check_packages(tensorboard: bool, cluster: str | None) -> None:
    needed = {"safetensors": "lab"}
    if tensorboard:
        needed["tensorboard"] = "tensorboard"
    if cluster is not None:
        needed["ray"] = "cluster"
    for package, extra in needed.items():
        if find_spec(package) is None:
            raise Misuse(
                f"ordinate compare needs {package} for this, not installed here",
                how_to_install(extra),
            )


_OF_OPTIONS = (
    "lengths", "steps", "seeds", "text", "device", "batch", "out", "cluster", "extensions", "workers", "threads",
)  # fmt: skip
_OPTIONS = {"num_layers": "--layers", "num_heads": "--heads", "extensions": "--extend"}


def _option(name: str) -> str:
    return _OPTIONS.get(name, f"--{name.replace('_', '-')}")


def _in_options(sentence: str) -> str:
    """A message about a setting, said of the option that gives it."""
    first, _, rest = sentence.partition(" ")
    if first in _OF_OPTIONS:
        sentence = f"{_option(first)} {rest}"
    # These are no words of any language, wherever they stand.
    for name in ("train_length", "d_model", "num_layers", "num_heads", "learning_rate"):
        sentence = re.sub(rf"\b{name}\b", _option(name), sentence)
    return re.sub(r"\bhead_dim\b", "head_dim (--d-model / --heads)", sentence)


def _hint_for(sentence: str) -> str:
    return "ordinate list" if "unknown encoding" in sentence else _HELP


def _command_line(names: list[str], preset: str | None, seeds: int | None, given: dict[str, Any]) -> str:
    """The command that does this again, without where its records went."""
    words = ["ordinate", "compare", *names]
    for name, value in {"preset": preset, **given, "seeds": seeds}.items():
        if value is None:
            continue
        if isinstance(value, bool):
            words.append(f"--{'' if value else 'no-'}{name}")
            continue
        several = value if isinstance(value, tuple) else (value,)
        for one in several or ("none",):
            words += [_option(name), str(one)]
    return shlex.join(words)


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _let_the_first_speak(seconds: float = 30.0) -> None:
    """Of several processes one speaks, and torchrun ends the others when it is done.

    A process that is still there after a while has found something that the first has not.
    """
    time.sleep(seconds)


def _present(out: Path, as_json: bool, write: bool, again: str) -> None:
    """Write the report, where there is something to draw it with, and print what came out."""
    # Only here: a machine that only trains has no need of what draws.
    from ..lab.records import read_runs
    from .report import DIVERGED, make_report, print_report

    try:
        _, runs = read_runs(out)
    except (FileNotFoundError, ValueError) as error:  # somebody has changed or removed it meanwhile
        raise Misuse(str(error), _HELP) from None
    if any(run.state == "finished" for run in runs):
        try:
            report = make_report(out, write=write)
        except Misuse as misuse:
            print(f"no report is written: {misuse}\n\nhint: {misuse.hint}", file=sys.stderr)
            report = make_report(out, write=False)
        for one in report.left_out:
            print(f"left out: {one}", file=sys.stderr)
        if as_json:
            print(json.dumps({"out": str(out), **report.to_dict()}, indent=2, ensure_ascii=False))
        else:
            print_report(Console(), report)
            for path in report.files[:1]:
                print(f"\nreport: {path}", file=sys.stderr)
    bad = [run for run in runs if run.state != "finished"]
    if bad:
        diverged = any(run.state == "diverged" for run in bad)
        hint = DIVERGED if diverged else again
        told = "; ".join(f"{run.directory.name} {_ended(run)}" for run in bad)
        print(
            f"\n{len(bad)} of {len(runs)} runs did not finish: {told}\n\nhint: {hint}", file=sys.stderr
        )
        raise typer.Exit(1)


def _ended(run: Any) -> str:
    return f"diverged: {run.reason}" if run.state == "diverged" else f"is {run.state}: {run.reason}"
