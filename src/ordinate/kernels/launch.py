"""Kernel launches with a cache of compiled kernels, so that repeated launches take little host time."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import Any

import torch
from torch import Tensor
from triton.runtime import JITFunction


class Step:
    """One kernel launch with all arguments fixed, except the tensors.

    Triton's launcher checks every argument each time, which takes the host longer than a short kernel takes the
    device. A `Step` prepares the numbers once and caches the compiled kernels. A kernel is compiled for these numbers
    and for the dtypes of the tensors; between launches, only which tensors are 16-byte aligned may vary.

    Args:
        arguments: The kernel's arguments that are not tensors, by name. The kernel takes tensors and named tuples of
            tensors before these.
    """

    def __init__(self, kernel: Any, grid: tuple[int, ...], arguments: dict[str, Any]) -> None:
        # Set explicitly, because Triton's default is about to change.
        self.arguments = {"enable_fp_fusion": True, **arguments}
        self.kernel, self.grid = kernel, (*grid, 1, 1)[:3]
        #: Compiled kernels, keyed by which tensors are not 16-byte aligned; () if all are.
        self.compiled: dict[tuple[bool, ...], Callable] = {}
        self.interpreted = not isinstance(kernel, JITFunction)
        if not self.interpreted:
            names = kernel.arg_names
            self.tensors = [name for name in names if name not in arguments]
            count = len(self.tensors)
            assert self.tensors == names[:count], f"{kernel.__name__} takes numbers before tensors"
            self.numbers = [arguments[name] for name in names[count:]]
            self.places: list[Any] | None = None

    def __call__(self, **tensors: Any) -> None:
        """Launch with these tensors and named tuples of tensors. The first argument must be a tensor."""
        if self.interpreted:
            self.kernel[self.grid](**self.arguments, **with_stand_ins(tensors))
            return
        device = _first(tensors).get_device()  # -1 is the CPU
        if device >= 0 and device != torch.cuda.current_device():
            with torch.cuda.device(device):  # Triton launches on the current device
                self._launch(tensors)
        else:
            self._launch(tensors)

    def _launch(self, tensors: dict[str, Any]) -> None:
        if self.places is None:
            self.places = self._find_places(tensors)
        stand_in = _first(tensors).data_ptr()
        in_order = [tensors[name] for name in self.single]
        for name in self.bundles:
            in_order += tensors[name]
        pointers = tuple([stand_in if x is None else x.data_ptr() for x in in_order])
        misaligned: tuple[bool, ...] = ()
        if reduce(or_, pointers) % 16:
            misaligned = tuple([pointer % 16 != 0 for pointer in pointers])
        run = self.compiled.get(misaligned)
        if run is None:
            compiled = self.kernel[self.grid](**self.arguments, **with_stand_ins(tensors))
            self.compiled[misaligned] = compiled[self.grid]
        else:
            bundled = [pointers[place] for place in self.places] if self.bundles else pointers
            run(*bundled, *self.numbers)

    def _find_places(self, tensors: dict[str, Any]) -> list[Any]:
        """Each argument's index or slice in the list of pointers: first single tensors, then named tuples."""
        self.bundles = [name for name in self.tensors if isinstance(tensors[name], tuple)]
        self.single = [name for name in self.tensors if name not in self.bundles]
        places: dict[str, Any] = {name: index for index, name in enumerate(self.single)}
        end = len(self.single)
        for name in self.bundles:
            start, end = end, end + len(tensors[name])
            places[name] = slice(start, end)
        return [places[name] for name in self.tensors]


def with_stand_ins(tensors: dict[str, Any]) -> dict[str, Any]:
    """Replace every absent tensor by the first tensor: kernels do not read it, but must get a pointer."""
    stand_in = _first(tensors)

    def filled(x: Any) -> Any:
        if isinstance(x, tuple):
            return x._make(map(filled, x))  # type: ignore[attr-defined]
        return stand_in if x is None else x

    return {name: filled(x) for name, x in tensors.items()}


def _first(tensors: dict[str, Any]) -> Tensor:
    first = next(iter(tensors.values()))
    assert isinstance(first, Tensor)
    return first
