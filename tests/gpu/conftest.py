"""Kernels are compiled on all cores first; the tests then find them in Triton's cache."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

#: Set to "index/count" in a process that compiles the kernels of a share of the tests.
_SHARE = "ORDINATE_COMPILED_SHARE"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if _SHARE in os.environ:
        index, count = map(int, os.environ[_SHARE].split("/"))
        items[:] = [item for item in items if hasattr(item.module, "check")][index::count]  # type: ignore[attr-defined]


@pytest.fixture(scope="session", autouse=True)
def _compiled_in_parallel(request: pytest.FixtureRequest) -> None:
    few = len(request.session.items) < 32
    if few or _SHARE in os.environ or not torch.cuda.is_available():
        return
    count = max(1, (os.cpu_count() or 1) - 2)
    command = [sys.executable, "-m", "pytest", *map(str, request.config.invocation_params.args)]
    shares = [
        subprocess.Popen(
            command,
            env=os.environ | {_SHARE: f"{index}/{count}"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for index in range(count)
    ]
    for share in shares:
        share.wait()


@pytest.fixture(autouse=True)
def _compiled_only(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process that compiles, nothing is run: many processes on one device would wait for each other."""
    if _SHARE not in os.environ:
        return
    from ordinate.kernels.launch import Step

    def compiled(step: Step, tensors: dict[str, torch.Tensor]) -> None:
        step.kernel.warmup(grid=step.grid, **step.arguments, **tensors)

    monkeypatch.setattr(Step, "_launch", compiled)
    monkeypatch.setattr(request.module, "check", _both_passes)


def _both_passes(case, **options) -> None:
    """What `fused_cases.check` does with the kernels, without a look at the numbers."""
    from fused_cases import results

    import ordinate

    leaves = case.leaves()
    results(
        leaves, ordinate.attention(**case.arguments(leaves, **options), return_lse=True, impl="fused")
    )
