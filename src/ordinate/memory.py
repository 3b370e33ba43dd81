"""How much memory is free, whether a tensor fits, and errors of allocators that have too little."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from .checks import refused
from .tracing import is_traced

# PyTorch's allocator on the CPU raises a plain RuntimeError, which only its words identify.
_WORDS = ("DefaultCPUAllocator", "alloc_cpu", "not enough memory", "bad_alloc", "CUDA out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there was too little memory.

    Example:
        >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory")), is_out_of_memory(KeyError(0))
        (True, False)
    """
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _WORDS)


def free_memory() -> int | None:
    """Free bytes on this machine, or None where the system does not report them."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    kilobytes = next(found, None)
    return None if kilobytes is None else 1024 * int(kilobytes)


# Smaller tensors are not checked.
_LITTLE = 2**26
_UNBOUNDED = 2**62  # PyTorch counts bytes in 64 bits, on meta too


def check_room(
    name: str, *sizes: int, itemsize: int = 4, device: torch.device | str | None = None
) -> None:
    """A tensor whose size follows from the argument ``name`` must fit in memory; checked before it is allocated.

    A full memory stops a machine, and an allocator's error does not name the argument.

    Args:
        itemsize: Bytes for each number, of all tensors of that size at the peak.
    """
    needed = itemsize * math.prod(sizes)
    if needed <= _LITTLE:
        return
    available = _memory_of(torch.get_default_device() if device is None else torch.device(device))
    if needed > available:
        raise refused(
            name,
            "must fit in memory, of which {available} GiB are there, got {sizes} numbers, {needed} GiB",
            error=MemoryError,
            available=f"{available / 2**30:,.1f}",
            sizes=" × ".join(map(str, sizes)),
            needed=f"{needed / 2**30:,.1f}",
        )


def _memory_of(device: torch.device) -> int:
    if is_traced():  # tensors may be fake, without memory
        return _UNBOUNDED
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    free = free_memory() if device.type == "cpu" else None
    return _UNBOUNDED if free is None else free
