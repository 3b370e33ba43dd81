"""What every benchmark shares: interleaved timing, peak memory, correctness gates, and the record's head."""

from __future__ import annotations

import datetime
import gc
import importlib.metadata
import os
import platform
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "numba", "transformers", "rotary-embedding-torch", "x-transformers")


def rounds(candidates: Mapping[str, Callable[[], Any]], repetitions: int) -> dict[str, list[float]]:
    """Time candidates in turn, so that a slow moment of the machine falls on all of them alike.

    Each round has another order: what ran before leaves caches and freed memory behind, and should not always
    leave them to the same one.

    Returns:
        What each took in each round, in milliseconds.
    """
    for run in candidates.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    order = random.Random(0)
    for _ in range(repetitions):
        for name, run in order.sample(list(candidates.items()), len(candidates)):
            start = time.perf_counter()
            run()
            times[name].append((time.perf_counter() - start) * 1e3)
    return times


def interleaved(
    candidates: Mapping[str, Callable[[], Any]], repetitions: int
) -> dict[str, dict[str, float]]:
    """Median and minimum of each candidate's `rounds` in milliseconds."""
    return {
        name: {"median_ms": round(statistics.median(spent), 4), "min_ms": round(min(spent), 4)}
        for name, spent in rounds(candidates, repetitions).items()
    }


def peak_extra_mib(run: Callable[[], Any]) -> float:
    """How far a call raises this process's peak resident memory, in MiB. Call it once per process."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is held now
    before = _peak_kib()
    result = run()
    extra = (_peak_kib() - before) / 1024
    del result
    return round(max(extra, 0.0), 1)


def _peak_kib() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    raise RuntimeError("/proc/self/status has no VmHWM: memory is measured on Linux only")


def worst_error(got: Tensor, exact: Tensor) -> float:
    """The largest absolute difference; NaN counts as infinite."""
    difference = (got.detach().double() - exact.detach()).abs()
    return float(difference.nan_to_num(nan=float("inf")).max())


def gate(errors: Mapping[str, float], budgets: Mapping[str, float]) -> dict[str, Any]:
    """Every error must be within its budget. The quantity closest to its budget, or furthest past it, speaks."""
    worst = max(errors, key=lambda name: errors[name] / budgets[name])
    return {
        "passed": all(errors[name] <= budgets[name] for name in errors),
        "quantity": worst,
        "error": errors[worst],
        "budget": budgets[worst],
    }


def environment() -> dict[str, Any]:
    """Machine, versions, commit and date. Nothing that names a host or a user."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _git("rev-parse", "--short=12", "HEAD"),
        "uncommitted_source": bool(_git("status", "--porcelain", "--", "src", "benchmarks/*.py")),
        "machine": {
            "cpu": _cpu_model(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "capability": torch.backends.cpu.get_cpu_capability(),
            "onednn_max_cpu_isa": os.environ.get("ONEDNN_MAX_CPU_ISA", "default"),
            "load_average": round(os.getloadavg()[0], 2),
        },
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in PACKAGES},
        },
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "unknown"
