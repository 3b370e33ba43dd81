"""Kernels are compiled on all cores first; the tests then find them in Triton's cache."""

from __future__ import annotations

import importlib
import os
import random
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

# Nobody steps through these kernels, and without line numbers they compile in four fifths of the time. Read by Triton
# when it compiles, here and in the processes below.
if torch.cuda.is_available():
    os.environ.setdefault("TRITON_DISABLE_LINE_INFO", "1")

#: Set to "index/count" in a process that compiles the kernels of a share of the tests.
_SHARE = "ORDINATE_COMPILED_SHARE"
#: The same in one that runs a share of them, compiled before (`whole_product.py`).
_RUN_SHARE = "ORDINATE_RUN_SHARE"


@pytest.hookimpl(trylast=True)  # of those that -k has left
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if _SHARE in os.environ:
        items[:] = [item for item in items if hasattr(item.module, "check")]  # type: ignore[attr-defined]
    share = os.environ.get(_SHARE) or os.environ.get(_RUN_SHARE)
    if share:
        index, count = map(int, share.split("/"))
        # Wide heads take longest to compile, and come at regular intervals.
        random.Random(0).shuffle(items)
        items[:] = items[index::count]


@pytest.fixture(scope="session", autouse=True)
def _compiled_in_parallel(request: pytest.FixtureRequest) -> None:
    few = len(request.session.items) < 32
    if few or {_SHARE, _RUN_SHARE} & set(os.environ) or not torch.cuda.is_available():
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
    """In a process that compiles, nothing is run, and tensors stay on the CPU: many processes on one device would
    wait for each other.
    """
    if _SHARE not in os.environ:
        return
    from ordinate.attending.fused import tiles as fused_tiles
    from ordinate.kernels.launch import Step, with_stand_ins

    def compiled(step: Step, tensors: dict[str, torch.Tensor | None]) -> None:
        step.kernel.warmup(grid=step.grid, **step.arguments, **with_stand_ins(tensors))

    for name in ("shared_memory_of", "_processors_of"):
        known = getattr(fused_tiles, name)(torch.device("cuda", 0))
        monkeypatch.setattr(fused_tiles, name, lambda device, known=known: known)
    # By its full name: as an attribute, `ordinate.attention` is the function.
    monkeypatch.setattr(
        importlib.import_module("ordinate.attending.fused.terms"), "_interpreting", lambda: True
    )
    monkeypatch.setattr(Step, "_launch", compiled)
    monkeypatch.setattr(request.module, "check", _both_passes)


def _both_passes(case, **options) -> None:
    """What `fused_cases.check` does with the kernels, without a look at the numbers."""
    from fused_cases import results

    import ordinate

    case = replace(case, device="cpu")
    leaves = case.leaves()
    results(
        leaves, ordinate.attention(**case.arguments(leaves, **options), return_lse=True, impl="fused")
    )
