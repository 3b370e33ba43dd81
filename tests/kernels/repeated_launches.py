"""Launch the attention kernels on a device that is not there, and print what reaches its driver.

A process of its own, because in the one of the tests Triton interprets. Everything is Triton's own but the
driver, which records the arguments of a launch instead of running it.
"""

from __future__ import annotations

import json
import types
from collections.abc import Collection, Iterator

import torch
from compiled_attention import RowsOfKeys, both_passes
from triton.backends.compiler import GPUTarget
from triton.runtime import JITFunction, driver

import ordinate
from ordinate.attending.fused import tiles as fused_tiles

launches: list[tuple] = []
calls_of_the_binder: list[str] = []


def _plain(values: tuple) -> Iterator:
    """Tuples taken apart, and pointers in the place of tensors."""
    for value in values:
        if isinstance(value, tuple):
            yield from _plain(value)
        else:
            yield value.data_ptr() if isinstance(value, torch.Tensor) else value


class _Launcher:
    def __init__(self, source, metadata) -> None:
        self.name = source.fn.__name__

    def __call__(self, x, y, z, stream, function, metadata, launch_metadata, enter, leave, *values):
        launches.append((self.name, (x, y, z), stream, function, list(_plain(values))))


class _Driver:
    """As much of a driver as a launch looks at."""

    launcher_cls = _Launcher
    utils = types.SimpleNamespace(
        load_binary=lambda name, kernel, shared, device: (object(), name, 0, 0, 1024),
        unload_module=lambda module: None,
        get_device_properties=lambda device: {"max_shared_mem": 232448},
    )

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 7

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


def _count_bindings() -> None:
    run = JITFunction.run

    def counted(self, *args, **kwargs):
        calls_of_the_binder.append(self.__name__)
        return run(self, *args, **kwargs)

    JITFunction.run = counted


def _passes(encoding, shift: int, told: Collection[str] = (), length: int = 48):
    """One forward and backward pass over tensors that begin ``shift`` elements after a multiple of 16 bytes."""
    launches.clear()
    calls_of_the_binder.clear()
    size = 2 * length * 16
    q, k, v, grad = (
        torch.zeros(size + shift, dtype=torch.bfloat16)[shift:].view(1, 2, length, 16) for _ in range(4)
    )
    both_passes(q, k, v, grad, encoding, told=told)
    return list(launches), list(calls_of_the_binder)


def _labelled(launch):
    """With pointers numbered as they first occur, for memory is given out anew each time."""
    name, grid, stream, function, values = launch
    numbers: dict[int, int] = {}
    labels = [
        f"tensor {numbers.setdefault(x, len(numbers))}" if type(x) is int and x >= 2**32 else x
        for x in values
    ]
    return name, grid, stream, function, labels


def main() -> None:
    driver.set_active(_Driver())
    fused_tiles.shared_memory_of = lambda device: 232448
    fused_tiles._processors_of = lambda device: 132
    _count_bindings()
    encoding = ordinate.T5Bias(2, num_buckets=8, max_distance=20)
    found = {}
    for name, shift in (
        ("first", 0),
        ("again", 0),
        ("shifted", 1),
        ("shifted again", 1),
        ("and back", 0),
    ):
        seen, bound = _passes(encoding, shift)
        found[name] = {"launches": [_labelled(launch) for launch in seen], "bound": bound}
    torch.use_deterministic_algorithms(True)
    for name, other in (
        ("table in order", encoding),
        ("rows in order", ordinate.Shaw(16, 8)),
        ("rows of keys in order", RowsOfKeys()),
    ):
        seen, bound = _passes(other, 0, ["positions"])
        found[name] = {"launches": [_labelled(launch) for launch in seen], "bound": bound}
    print(json.dumps(found))  # noqa: T201


if __name__ == "__main__":
    main()
