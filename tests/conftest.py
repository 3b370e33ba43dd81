"""Shared by all tests: one seed for every test, and threads that leave room for the other worker."""

from __future__ import annotations

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("ordinate", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ordinate")


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)

