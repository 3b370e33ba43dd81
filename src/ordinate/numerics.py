"""The dtypes of arithmetic, float64 on devices without it, and a cache of small constant tensors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch
from torch import Tensor

from .caches import cleared_by, drop_the_oldest
from .tracing import is_traced

Result = TypeVar("Result", Tensor, tuple[Tensor, ...])

# The oldest first. The limit counts the tensors' bytes only; encodings hold the numbers anyway.
_constants: dict[tuple[tuple[float, ...], torch.dtype, torch.device], Tensor] = {}
_LIMIT_BYTES = 2**26
cleared_by(_constants.clear)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype arithmetic on ``dtype`` runs in: float64 for float64, float32 for all others."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def has_float64(device: torch.device) -> bool:
    """Whether a device can hold float64. Apple's GPUs cannot, nor can some of Intel's."""
    if device.type == "xpu":
        return bool(torch.xpu.get_device_properties(device).has_fp64)
    return device.type != "mps"


def in_float64(
    device: torch.device | None, compute: Callable[..., Result], *inputs: Tensor | None
) -> Result:
    """``compute(home, *inputs)``: the only place where encodings make float64 tensors.

    ``home`` is ``device`` if it has float64: inputs on it are not copied, and the host does not wait. Otherwise it is
    the CPU: the inputs are copied there, results in float64 stay there, and results of another dtype are copied to
    ``device``.

    Args:
        device: None for PyTorch's default device.

    Example:
        >>> in_float64(torch.device("cpu"), lambda home: torch.ones(2, dtype=torch.float64, device=home))
        tensor([1., 1.], dtype=torch.float64)
    """
    device = torch.get_default_device() if device is None else device
    home = device if has_float64(device) else torch.device("cpu")
    result = compute(home, *(None if x is None else x.to(home) for x in inputs))
    if home == device:
        return result
    if isinstance(result, Tensor):
        return _moved(result, device)
    return tuple(_moved(x, device) for x in result)


def _moved(result: Tensor, device: torch.device) -> Tensor:
    return result if result.dtype == torch.float64 else result.to(device)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A context in which autocast changes no dtype; meta tensors have no autocast."""
    if device.type == "meta" or not (
        torch.compiler.is_compiling() or torch.is_autocast_enabled(device.type)
    ):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of fixed numbers on a device, made once per device.

    Encodings hold their constants as Python numbers, not as buffers, so that
    ``.to(bfloat16)``, ``to_empty``, mixed-precision wrappers and checkpoint loaders cannot change them.
    The cache saves the copy to the device and cannot become stale, because its key is the content; it holds at most
    64 MiB. A tensor that a caller has written to is replaced.
    """
    if is_traced():
        return torch.tensor(values, dtype=dtype, device=device)
    key = (values, dtype, device)
    found = _constants.get(key)
    if found is None or found._version:
        # A tensor made in inference mode could not take part in autograd later.
        with torch.inference_mode(False):
            found = torch.tensor(values, dtype=dtype, device=device)
        if found.nbytes <= _LIMIT_BYTES:
            _constants[key] = found
            sizes = [(key, x.nbytes) for key, x in list(_constants.items())]
            drop_the_oldest(_constants, sizes, _LIMIT_BYTES)
    return found
