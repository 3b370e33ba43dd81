"""Whether the Triton kernels can run: the GPU and the version of Triton."""

from __future__ import annotations

import importlib.metadata
import importlib.util

import torch

_LEAST_TRITON = (3, 6)
_LEAST_CAPABILITY = (8, 0)
_reasons: dict[torch.device, str | None] = {}


def _triton_version() -> tuple[int, ...] | None:
    """The installed version; an empty tuple if it is not known, None if Triton is not installed."""
    if importlib.util.find_spec("triton") is None:
        return None
    try:
        major, minor, *_ = importlib.metadata.version("triton").split(".")
        return int(major), int(minor)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return ()  # under another name, or a version of another form


_TRITON = _triton_version()


def reason_against(device: torch.device) -> str | None:
    """Why kernels cannot run on a device, or None where they can."""
    if torch.compiler.is_compiling():  # a cache would be read while tracing
        return _reason_against(device)
    if device not in _reasons:
        _reasons[device] = _reason_against(device)
    return _reasons[device]


def _reason_against(device: torch.device) -> str | None:
    if device.type != "cuda":
        return f"its kernels run on CUDA, not on {device.type}"
    if torch.version.hip:
        return "its kernels are for GPUs of NVIDIA, not for ROCm"
    without = reason_without_triton()
    # Without a device, tensors on it are fake tensors.
    if without is not None or not torch.cuda.is_available():
        return without
    capability = torch.cuda.get_device_capability(device)
    if capability < _LEAST_CAPABILITY:
        return f"its kernels need compute capability {_dotted(_LEAST_CAPABILITY)}, not {_dotted(capability)}"
    return None


def reason_without_triton() -> str | None:
    """Why kernels cannot even be interpreted, or None."""
    if _TRITON is None:
        return "Triton is not installed"
    if _TRITON and _TRITON < _LEAST_TRITON:
        return f"its kernels need Triton {_dotted(_LEAST_TRITON)} or later, not {_dotted(_TRITON)}"
    return None


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
