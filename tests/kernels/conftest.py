"""Kernels run on the GPU where there is one, and in Triton's interpreter where there is none."""

from __future__ import annotations

import os
import sys

import pytest
import torch

if not torch.cuda.is_available():
    # Triton reads this when it is first imported; its own library would stay uninterpreted after that.
    assert "triton" not in sys.modules or os.environ.get("TRITON_INTERPRET") == "1", (
        "triton was imported before tests/kernels could choose its interpreter"
    )
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def _poisoned_memory():
    """Every tensor made without a value starts as NaN, so that an element never written shows."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
