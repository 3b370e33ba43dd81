"""Launches that are quick to repeat."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_
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

    Args:
        arguments: What the kernel is told by name. It takes tensors before numbers, and those are not named here.
    """

    def __init__(self, kernel: Any, grid: tuple[int, ...], arguments: dict[str, Any]) -> None:
        # Triton's default for sums of products is about to change.
        self.arguments = {"enable_fp_fusion": True, **arguments}
        self.kernel, self.grid = kernel, (*grid, 1, 1)[:3]
        #: By which tensors begin elsewhere; where none does, by nothing.
        self.compiled: dict[tuple[bool, ...], Callable] = {}
        self.interpreted = not isinstance(kernel, JITFunction)
        if not self.interpreted:
            names = kernel.arg_names
            self.tensors = [name for name in names if name not in arguments]
            count = len(self.tensors)
            assert self.tensors == names[:count], f"{kernel.__name__} takes numbers before tensors"
            self.numbers = [arguments[name] for name in names[count:]]

    def __call__(self, **tensors: Tensor | None) -> None:
        """Launch with these tensors, of which the first is there."""
        if self.interpreted:
            self.kernel[self.grid](**self.arguments, **with_stand_ins(tensors))
            return
        device = _first(tensors).get_device()  # -1 is the CPU
        if device >= 0 and device != torch.cuda.current_device():
            with torch.cuda.device(device):  # Triton launches on the current one
                self._launch(tensors)
        else:
            self._launch(tensors)

    def _launch(self, tensors: dict[str, Tensor | None]) -> None:
        stand_in = _first(tensors).data_ptr()
        in_order = [tensors[name] for name in self.tensors]
        pointers = [stand_in if x is None else x.data_ptr() for x in in_order]
        elsewhere: tuple[bool, ...] = ()
        if reduce(or_, pointers) % 16:
            elsewhere = tuple([pointer % 16 != 0 for pointer in pointers])
        run = self.compiled.get(elsewhere)
        if run is None:
            compiled = self.kernel[self.grid](**self.arguments, **with_stand_ins(tensors))
            self.compiled[elsewhere] = compiled[self.grid]
        else:
            run(*pointers, *self.numbers)


def with_stand_ins(tensors: dict[str, Tensor | None]) -> dict[str, Tensor]:
    """Kernels do not follow pointers to what is not there, but something must be passed."""
    stand_in = _first(tensors)
    return {name: stand_in if x is None else x for name, x in tensors.items()}


def _first(tensors: dict[str, Tensor | None]) -> Tensor:
    first = next(iter(tensors.values()))
    assert first is not None
    return first
