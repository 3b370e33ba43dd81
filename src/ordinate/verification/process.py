"""The state of the process that a hook may change: read, and restored."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

#: Name → (how it is read, how it is set).
_STATE = {
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "gradient mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "deterministic mode": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    "number of threads": (torch.get_num_threads, torch.set_num_threads),
}


def state() -> dict[str, Any]:
    return {name: read() for name, (read, _) in _STATE.items()}


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Restore the state of the process at the end."""
    before = state()
    try:
        yield
    finally:
        after = state()
        for name, (_, put) in _STATE.items():
            if after[name] != before[name]:
                put(before[name])  # type: ignore[operator]
