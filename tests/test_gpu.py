"""Kernels are not chosen where they cannot run, and the reason is told."""

from __future__ import annotations

import pytest
import torch

import ordinate
from ordinate import gpu

CUDA = torch.device("cuda", 0)


@pytest.fixture
def _a_capable_machine(monkeypatch):
    monkeypatch.setattr(gpu, "_reasons", {})
    monkeypatch.setattr(gpu, "_TRITON", (3, 6))
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))


@pytest.mark.usefixtures("_a_capable_machine")
def test_nothing_is_said_against_a_machine_that_has_it_all():
    assert gpu.reason_against(CUDA) is None


@pytest.mark.usefixtures("_a_capable_machine")
@pytest.mark.parametrize(
    ("owner", "name", "value", "reason"),
    [
        (torch.version, "hip", "6.4", "for GPUs of NVIDIA, not for ROCm"),
        (gpu, "_TRITON", None, "Triton is not installed"),
        (gpu, "_TRITON", (3, 5), "need Triton 3.6 or later, not 3.5"),
        (torch.cuda, "get_device_capability", lambda device: (7, 5), "compute capability 8.0, not 7.5"),
    ],
)
def test_each_thing_that_is_missing_has_its_reason(owner, name, value, reason, monkeypatch):
    monkeypatch.setattr(owner, name, value)
    assert reason in str(gpu.reason_against(CUDA))


@pytest.mark.usefixtures("_a_capable_machine")
def test_a_triton_of_unknown_version_is_taken_at_its_word(monkeypatch):
    monkeypatch.setattr(gpu, "_TRITON", ())
    assert gpu.reason_against(CUDA) is None


def test_the_reason_reaches_explain(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    q = torch.randn(1, 2, 5, 8)
    assert ordinate.explain(q, q, q).reasons["fused"] == ["its kernels run on CUDA, not on cpu"]
