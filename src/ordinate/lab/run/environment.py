"""The machine and the versions behind a run's numbers, without the names of hosts or people."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

import ordinate


def describe(device: str, processes: int = 1) -> dict[str, Any]:
    """Versions, hardware, the number of processes that share a run and, in a checkout, the commit."""
    versions = {"ordinate": ordinate.__version__, "python": platform.python_version()}
    for package in ("torch", "numpy", "numba", "triton", "safetensors"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "versions": versions,
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": processes,
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "commit": _commit(),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()


def _commit() -> str | None:
    """The commit that last changed this package, and whether it was changed since; None if it is installed."""
    try:
        commit = _git("log", "-1", "--format=%H")
        changed = _git("status", "--porcelain")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}, with changes" if commit and changed else commit or None


def _git(*arguments: str) -> str:
    package = Path(ordinate.__file__).parent
    found = subprocess.run(
        ["git", *arguments, "--", str(package)],
        cwd=package, capture_output=True, text=True, check=True, timeout=10,
    )  # fmt: skip
    return found.stdout.strip()
