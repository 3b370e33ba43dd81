"""Shared by all tests: one seed for every test, and run-time checks that know an int is a number."""

from __future__ import annotations

import contextlib
import importlib
import os

import hypothesis
import pytest
import torch

# `factor: float` takes 4 as well as 4.0, as PEP 484 says; beartype has to be told. Set here, before
# the shape checks of --jaxtyping-packages look the checker up.
with contextlib.suppress(ImportError):  # a machine that runs kernels has no need of shape checks
    import beartype

    beartype.beartype = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))

# Some virtual machines announce AMX and then trap on it, and any bfloat16 matrix product of PyTorch ends
# the process. Read by oneDNN at its first use; the numbers stay within what these tests allow.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# Without a GPU, kernels run in Triton's interpreter. Triton reads this when it is first imported, which
# collecting any test may do (torch.compile and transformers import it), so it is set before all of them.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

hypothesis.settings.register_profile("ordinate", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ordinate")


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_interpreter_outside_of_kernel_tests(request, monkeypatch) -> None:
    """`auto` prefers the fused kernels wherever they run; interpreted, they are no choice."""
    if "kernels" not in request.path.parts:
        # By its full name: as an attribute, `ordinate.attention` is the function.
        fused = importlib.import_module("ordinate.attending.fused.terms")
        monkeypatch.setattr(fused, "_interpreting", lambda: False)


@pytest.fixture(params=["every operator", "with caches"])
def without_float64(request, monkeypatch):
    """A mode that refuses float64; where caches are at work, `in_float64` is told that the CPU has none."""
    from float64_modes import Called, Dispatched
    from ordinate import numerics
    from ordinate.rotate import rotation_cache

    rotation_cache._cache.clear()
    if request.param == "every operator":
        yield Dispatched
    else:
        monkeypatch.setattr(numerics, "has_float64", lambda device: False)
        yield Called
    rotation_cache._cache.clear()
