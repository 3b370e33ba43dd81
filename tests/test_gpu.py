"""Kernels are not chosen where they cannot run, and the reason is told."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import ordinate
from ordinate import gpu
from ordinate.attending.fused import terms as fused

CUDA = torch.device("cuda", 0)


@pytest.fixture
def _a_capable_machine(monkeypatch):
    monkeypatch.setattr(gpu, "_reasons", {})
    monkeypatch.setattr(gpu, "_TRITON", (3, 6))
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
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


@pytest.mark.plain  # registers operators, whose types run-time shape checks would hide
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device to ask")
def test_stand_ins_for_tensors_need_no_device(monkeypatch):
    monkeypatch.setattr(gpu, "_reasons", {})
    monkeypatch.setattr(gpu, "_TRITON", (3, 6))
    with FakeTensorMode():
        q = torch.empty(1, 2, 5, 8, device="cuda")
        assert ordinate.explain(q, q, q, causal=True).chosen == "fused"
        assert ordinate.attention(q, q, q, causal=True).shape == q.shape


def test_what_is_interpreted_needs_triton_too(monkeypatch):
    monkeypatch.setattr(gpu, "_TRITON", None)
    monkeypatch.setattr(fused, "_interpreting", lambda: True)
    q = torch.randn(1, 2, 5, 8)
    assert ordinate.explain(q, q, q).reasons["fused"] == ["Triton is not installed"]


def test_the_reason_reaches_explain():
    q = torch.randn(1, 2, 5, 8)
    assert ordinate.explain(q, q, q).reasons["fused"] == ["its kernels run on CUDA, not on cpu"]
