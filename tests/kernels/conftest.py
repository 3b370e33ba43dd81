"""Kernels run on the GPU where there is one, and in Triton's interpreter where there is none."""

from __future__ import annotations

import sys

import pytest
import torch


@pytest.fixture(autouse=True)
def _no_launches_kept_from_another_test() -> None:
    """Tests put other functions in the place of what a plan was made by."""
    plans = sys.modules.get("ordinate.attending.fused.plans")
    if plans is not None:
        plans._plans.clear()
    rope = sys.modules.get("ordinate.kernels.rope")
    if rope is not None:
        rope._step.cache_clear()


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def _poisoned_memory():
    """Every tensor made without a value starts as NaN, so that an element never written shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
