"""Memory: how much of it is free, and how an allocator says that there is too little."""

from __future__ import annotations

from pathlib import Path

import torch

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
