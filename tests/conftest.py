"""Shared by all tests: one seed for every test, and run-time checks that know an int is a number."""

from __future__ import annotations

import os

import beartype
import hypothesis
import pytest
import torch

# `factor: float` takes 4 as well as 4.0, as PEP 484 says; beartype has to be told. Set here, before
# the shape checks of --jaxtyping-packages look the checker up.
beartype.beartype = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))

# Some virtual machines announce AMX and then trap on it, and any bfloat16 matrix product of PyTorch ends
# the process. Read by oneDNN at its first use; the numbers stay within what these tests allow.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

hypothesis.settings.register_profile("ordinate", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ordinate")


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)
