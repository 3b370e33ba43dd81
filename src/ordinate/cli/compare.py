"""``ordinate compare``: train the same small model with each encoding, test all at longer lengths, and report."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from ..extras import how_to_install
from .compare_plan import HELP, OPTIONS, Request, new_comparison, resumed_comparison
from .errors import Misuse, errors_as_misuse, file_errors, misuse, misuse_of
from .output import print_json

_RUNS = Path("runs")  # where comparisons go that are given no folder

EPILOG = """Examples:

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


def command(
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
    settings = {
        "train_length": train_length, "steps": steps, "task": task, "device": device, "batch": batch,
        "d_model": d_model, "num_layers": layers, "num_heads": heads, "learning_rate": learning_rate,
        "text": tuple(text) if text else None, "lengths": lengths, "extensions": _extensions(extend),
        "compile": compiled, "deterministic": deterministic, "control": control, "threads": threads,
    }  # fmt: skip
    given = {name: value for name, value in settings.items() if value is not None}
    request = Request(names or [], preset, seeds, given, out, cluster)
    try:
        with file_errors("--out", "must be a folder that can be written to", out or _RUNS, HELP):
            _check_packages(tensorboard, cluster)
            sweep = resumed_comparison(request) if resume else new_comparison(request)
            folder = _train(sweep, request, workers, tensorboard)
            if folder is not None:
                _present(folder, as_json, report)
    except Misuse as error:
        rank = int(os.environ.get("RANK", "0"))
        if rank:
            _let_rank_0_exit()
            raise misuse(
                "", "process {rank}: {reason}", hint=error.hint, rank=rank, reason=error
            ) from None
        raise


def _check_packages(tensorboard: bool, cluster: str | None) -> None:
    needed = {"safetensors": "lab"}
    if tensorboard:
        needed["tensorboard"] = "tensorboard"
    if cluster is not None:
        needed["ray"] = "cluster"
    for package, extra in needed.items():
        if find_spec(package) is None:
            rule = "needs {package} for this, not installed here"
            raise misuse("ordinate compare", rule, hint=how_to_install(extra), package=package)


def _extensions(extend: list[str] | None) -> tuple[str, ...] | None:
    if not extend:
        return None
    return () if extend == ["none"] else tuple(extend)


def _train(sweep: Any, request: Request, workers: int | None, tensorboard: bool) -> Path | None:
    """Train and test every run; the folder with the records, in the first process of several."""
    # Only now: these import torch, and a mistyped option should be answered at once.
    from ..lab.run.cluster import run_on_cluster
    from ..lab.run.processes import Processes
    from ..lab.run.sweep import check_memory, check_room, run_all, untrained_rows

    cluster = request.cluster
    workers = _workers(sweep, request, workers)
    processes = Processes.join(sweep.settings["device"])
    out = processes.broadcast(request.out or _RUNS / time.strftime("%Y-%m-%d-%H%M%S"))
    assert out is not None
    progress, observers = _progress(processes.rank, len(sweep.configs())), _observers(tensorboard)
    with _run_errors(out):
        try:
            if processes.main:
                if cluster is None:  # a cluster has the memory of other machines
                    check_memory(sweep, workers)
                check_room(sweep, out, workers)
            with progress:
                for sentence in untrained_rows(sweep):
                    progress.say(sentence)
                if cluster is None:
                    run_all(
                        sweep, out, progress, observers=observers, processes=processes, workers=workers
                    )
                else:
                    run_on_cluster(sweep, out, cluster, progress, observers=observers)
        finally:
            processes.close()
    return out if processes.main else None


def _workers(sweep: Any, request: Request, asked: int | None) -> int:
    """How many runs at once; options that do not go together are refused here."""
    from ..lab.run.sweep import how_many_at_once

    batch, size = sweep.settings["batch"], int(os.environ.get("WORLD_SIZE", "1"))
    if batch % size:
        raise misuse(
            "--batch", "must be a multiple of the {size} processes", batch, hint=HELP, size=size
        )
    if request.cluster is not None and size > 1:
        rule = "must be left out under torchrun, which has {size} processes share each run"
        raise misuse("--cluster", rule, hint=HELP, size=size)
    if asked is not None and (request.cluster is not None or size > 1):
        raise misuse("--workers", "must be left out with --cluster and under torchrun", asked, hint=HELP)
    with errors_as_misuse(HELP, OPTIONS):
        return 1 if size > 1 else how_many_at_once(sweep, request.out or _RUNS, asked)


@contextlib.contextmanager
def _run_errors(out: Path) -> Iterator[None]:
    """Within the block, errors that end a comparison early become refusals whose hint says how to go on."""
    from ..files import DiskFull
    from ..lab.run.cluster import ClusterError
    from ..lab.run.failures import RunFailed

    def hint(started: str, before: str) -> str:
        return started if (out / "sweep.json").exists() else before

    try:
        yield
    except MemoryError as error:
        if not str(error):
            raise
        raise misuse_of(error, HELP, OPTIONS) from None
    except DiskFull as error:
        free_some = hint(f"free some, then {_again(out)}", "--out on another disk")
        raise misuse_of(error, free_some, OPTIONS) from None
    except ClusterError as error:
        start = hint(_again(out), "ray start --head, then --cluster auto")
        raise misuse_of(error, start, OPTIONS) from None
    except RunFailed:
        pass  # printed when it happened, and printed again with the states of the other runs
    except KeyboardInterrupt:
        print(f"\nstopped; {_again(out)} goes on from here", file=sys.stderr)
        raise typer.Exit(130) from None


def _again(out: Path) -> str:
    return f"ordinate compare --resume --out {shlex.quote(str(out))}"


def _progress(rank: int, runs: int) -> Any:
    from ..lab.run.progress import PlainProgress, Progress, RichProgress

    if rank:
        return Progress()
    return RichProgress(runs) if sys.stderr.isatty() else PlainProgress()


def _observers(tensorboard: bool) -> Callable[[Path], Iterable[Any]]:
    from ..lab.run.train import no_observers

    return _event_file if tensorboard else no_observers


def _event_file(directory: Path) -> Iterable[Any]:
    from ..lab.run.tensorboard import EventFile

    return (EventFile(directory / "tensorboard"),)


def _let_rank_0_exit(seconds: float = 30.0) -> None:
    """Wait, so that of several processes the first prints its refusal: torchrun then ends the others.

    A process that is still there after that time has found something that the first has not.
    """
    time.sleep(seconds)


def _present(out: Path, as_json: bool, write: bool) -> None:
    """Write the report, if matplotlib is installed, and print the results."""
    # Only here: a machine that only trains does not need what draws.
    from ..lab.records import read_runs
    from .report import DIVERGED, make_report, print_report

    with errors_as_misuse(HELP, errors=(FileNotFoundError, ValueError)):  # changed by another process
        _, runs = read_runs(out)
    if any(run.state == "finished" for run in runs):
        try:
            report = make_report(out, write=write)
        except Misuse as error:
            print(f"no report is written: {error}\n\nhint: {error.hint}", file=sys.stderr)
            report = make_report(out, write=False)
        for one in report.left_out:
            print(f"left out: {one}", file=sys.stderr)
        if as_json:
            print_json({"out": str(out), **report.to_dict()})
        else:
            print_report(Console(), report)
            for path in report.files[:1]:
                print(f"\nreport: {path}", file=sys.stderr)
    bad = [run for run in runs if run.state != "finished"]
    if bad:
        hint = DIVERGED if any(run.state == "diverged" for run in bad) else _again(out)
        reasons = "; ".join(f"{run.directory.name} {_ended(run)}" for run in bad)
        print(
            f"\n{len(bad)} of {len(runs)} runs did not finish: {reasons}\n\nhint: {hint}",
            file=sys.stderr,
        )
        raise typer.Exit(1)


def _ended(run: Any) -> str:
    return f"diverged: {run.reason}" if run.state == "diverged" else f"is {run.state}: {run.reason}"
