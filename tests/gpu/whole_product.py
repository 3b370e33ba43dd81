"""All tests of the fused kernels on one GPU, the whole product included: compiled by many processes, run by a few.

    PYTHONPATH=src python3 tests/gpu/whole_product.py --out DIR [-k EXPRESSION] [--seconds SECONDS]

What each process of the second kind ran, test by test, is in a log of DIR.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

TESTS = Path(__file__).with_name("test_fused_on_gpu.py")
RUNNERS = 4  # more would wait for each other


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("-k", default="", help="as pytest has it: a part of the tests")
    parser.add_argument(
        "--seconds", type=float, default=3600.0, help="for all; a fifth is left for running"
    )
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + arguments.seconds
    compilers = max(1, (os.cpu_count() or 1) - 1)
    _share_out("ORDINATE_COMPILED_SHARE", compilers, arguments.k, deadline - arguments.seconds / 5)
    print(f"compiled after {arguments.seconds - (deadline - time.monotonic()):.0f} s", flush=True)  # noqa: T201
    logs = [arguments.out / f"tests_{index}.log" for index in range(RUNNERS)]
    well = _share_out("ORDINATE_RUN_SHARE", RUNNERS, arguments.k, deadline, logs)
    lines = [line for log in logs for line in log.read_text().splitlines() if "::" in line]
    passed, failed = (sum(f" {word}" in line for line in lines) for word in ("PASSED", "FAILED"))
    print(f"{passed} passed, {failed} failed{'' if well or failed else ', not all were run'}")  # noqa: T201
    raise SystemExit(not (well and passed))  # where there is no GPU, all are skipped


def _share_out(
    variable: str, count: int, expression: str, deadline: float, logs: list[Path] | None = None
) -> bool:
    """Each process gets a share of the tests, and all end by the deadline; whether all ended well."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-v",
        "-p",
        "no:cacheprovider",
        str(TESTS),
        "-k",
        expression,
    ]
    common = {"ORDINATE_WHOLE_PRODUCT": "1", "OMP_NUM_THREADS": "1"}
    with contextlib.ExitStack() as files:
        outputs = [files.enter_context(log.open("w")) for log in logs or ()] or [
            subprocess.DEVNULL
        ] * count
        processes = [
            subprocess.Popen(
                command, env=os.environ | common | {variable: f"{index}/{count}"}, stdout=outputs[index],
                stderr=subprocess.STDOUT,
            )
            for index in range(count)
        ]  # fmt: skip
        for process in processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    return all(process.returncode in (0, pytest.ExitCode.NO_TESTS_COLLECTED) for process in processes)


if __name__ == "__main__":
    main()
