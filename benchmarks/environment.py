"""What a measurement was taken on: device, versions and commit."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess

import torch


def describe() -> dict[str, str]:
    """The machine without its name, the versions, the commit and the day."""
    facts = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": _commit(),
        "date": datetime.date.today().isoformat(),
    }
    if torch.cuda.is_available():
        import triton

        facts["gpu"] = torch.cuda.get_device_name()
        facts["triton"] = triton.__version__
    return facts


def _commit() -> str:
    if "ORDINATE_COMMIT" in os.environ:  # for a copy of the tree without its history
        return os.environ["ORDINATE_COMMIT"]
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()
