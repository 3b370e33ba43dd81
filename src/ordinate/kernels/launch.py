"""Launches that are quick to repeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from triton.runtime import JITFunction


class Step:
    """One launch, of which everything is known but the tensors.

    Triton's own way to a launch looks at each of some seventy arguments every time, which takes the host longer
    than short kernels take the device. What follows from shapes is gathered once for them, and the compiled kernel
    is kept with it. It was compiled for these numbers and for the dtypes of the tensors; the one thing that is
    left is which tensors begin at a multiple of 16 bytes.
    """

    def __init__(self, kernel: Any, grid: tuple[int, ...], arguments: dict[str, Any]) -> None:
        # Triton's default for sums of products is about to change.
        self.arguments = {"enable_fp_fusion": True, **arguments}
        self.kernel, self.grid = kernel, (*grid, 1, 1)[:3]
        self.compiled: dict[tuple[bool, ...], Callable] = {}
        if isinstance(kernel, JITFunction):  # not the interpreter
            self.values = [arguments.get(name) for name in kernel.arg_names]
            self.places = {name: place for place, name in enumerate(kernel.arg_names)}

    def __call__(self, **given: Tensor | None) -> None:
        """Launch with these tensors. Kernels do not follow pointers to those that are not there."""
        stand_in = next(tensor for tensor in given.values() if tensor is not None)
        tensors = {name: stand_in if tensor is None else tensor for name, tensor in given.items()}
        if not isinstance(self.kernel, JITFunction):
            self.kernel[self.grid](**self.arguments, **tensors)
            return
        device = stand_in.device
        if device.type == "cuda" and device.index != torch.cuda.current_device():
            with torch.cuda.device(device):  # Triton launches on the current one
                self._launch(tensors)
        else:
            self._launch(tensors)

    def _launch(self, tensors: dict[str, Tensor]) -> None:
        pointers = [tensor.data_ptr() for tensor in tensors.values()]
        aligned = tuple([pointer % 16 == 0 for pointer in pointers])
        compiled = self.compiled.get(aligned)
        if compiled is None:
            self.compiled[aligned] = self.kernel[self.grid](**self.arguments, **tensors)[self.grid]
            return
        values = self.values.copy()
        for name, pointer in zip(tensors, pointers, strict=True):
            values[self.places[name]] = pointer
        compiled(*values)
