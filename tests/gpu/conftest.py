"""Kernels are compiled on all cores first; the tests then find them in Triton's cache."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

_SHARD = "ORDINATE_TEST_SHARD"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if _SHARD in os.environ:
        index, count = map(int, os.environ[_SHARD].split("/"))
        items[:] = items[index::count]


@pytest.fixture(scope="session", autouse=True)
def _compiled_in_parallel(request: pytest.FixtureRequest) -> None:
    """Run shares of the same tests in other processes, for what they leave in the cache alone."""
    few = len(request.session.items) < 32
    if few or _SHARD in os.environ or not torch.cuda.is_available():
        return
    count = max(1, (os.cpu_count() or 1) - 2)
    command = [sys.executable, "-m", "pytest", *map(str, request.config.invocation_params.args)]
    shares = [
        subprocess.Popen(
            command,
            env=os.environ | {_SHARD: f"{index}/{count}"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for index in range(count)
    ]
    for share in shares:
        share.wait()
