"""All GPU benchmarks, each in a process of its own, beside their peers on one CUDA device.

    PYTHONPATH=src python3 benchmarks/gpu.py --out DIR [--budget SECONDS]

The records go to DIR; those in benchmarks/results are what docs/benchmark_records.md shows
(``python benchmarks/render_gpu.py`` writes it, ``render_page.py`` docs/benchmarks.md).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
#: Each script with the share of the time it may take; None for one that is done in a few minutes.
SCRIPTS = {
    "gpu_attention.py": 0.6, "gpu_masks.py": None, "gpu_rope.py": None, "gpu_models.py": 0.2, "gpu_training.py": None,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=1800.0, help="seconds for all of them")
    arguments = parser.parse_args()
    failed = []
    for script, share in SCRIPTS.items():
        command = [sys.executable, str(HERE / script), "--out", str(arguments.out)]
        command += [] if share is None else ["--budget", str(share * arguments.budget)]
        if subprocess.run(command, check=False).returncode:
            failed.append(script)
    if failed:
        raise SystemExit(f"not finished: {', '.join(failed)}")


if __name__ == "__main__":
    main()
