"""Memory: how much of it is free, and how an allocator says that there is too little."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from .tracing import is_traced

# PyTorch's allocator on the CPU raises a plain RuntimeError; its words are all there is to know it by.
_WORDS = ("DefaultCPUAllocator", "alloc_cpu", "not enough memory", "bad_alloc", "CUDA out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory was asked for which is not there.

    Example:
        >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory")), is_out_of_memory(KeyError(0))
        (True, False)
    """
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _WORDS)


def free_memory() -> int | None:
    """Bytes that can still be used on this machine, or None where nobody says."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    kilobytes = next(found, None)
    return None if kilobytes is None else 1024 * int(kilobytes)


# Less is not worth a look at how much is free.
_LITTLE = 2**26
_UNBOUNDED = 2**62  # PyTorch counts bytes in 64 bits, on meta too


def check_room(
    name: str, *sizes: int, itemsize: int = 4, device: torch.device | str | None = None
) -> None:
    """A tensor that the argument ``name`` makes so large must fit in memory; nothing is asked for before that is known.

    A full memory stops a machine, and what an allocator says does not name the argument.

    Args:
        itemsize: Bytes for each number, of everything that is held at once.
    """
    needed = itemsize * math.prod(sizes)
    if needed <= _LITTLE:
        return
    there = _memory_of(torch.get_default_device() if device is None else torch.device(device))
    if needed > there:
        raise MemoryError(
            f"{name} must fit in memory, of which {there / 2**30:,.1f} GiB are there, "
            f"got {' × '.join(map(str, sizes))} numbers, {needed / 2**30:,.1f} GiB"
        )


def _memory_of(device: torch.device) -> int:
    if is_traced():  # tensors may be stand-ins for others, which hold nothing
        return _UNBOUNDED
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    free = free_memory() if device.type == "cpu" else None
    return _UNBOUNDED if free is None else free
