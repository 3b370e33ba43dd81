"""`clear_caches` and the caches that it empties. Each cache registers here; docs/guide.md lists the caches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_clears: list[Callable[[], object]] = []


def cleared_by(clear: Callable[[], object]) -> None:
    """Register a function for `clear_caches`. A module with a cache calls this when it is imported."""
    _clears.append(clear)


def drop_the_oldest(cache: dict[Any, Any], sizes: list[tuple[Any, int]], limit: int) -> None:
    """Remove entries until the rest is within the limit. ``sizes`` has (key, size) pairs, the oldest first.

    Another thread may have removed some of the entries.
    """
    excess = sum(size for _, size in sizes) - limit
    for key, size in sizes:
        if excess <= 0:
            break
        cache.pop(key, None)
        excess -= size


def clear_caches() -> None:
    """Empty all caches: rotation tables, constants and kernel launches.

    No result changes; the next call computes the entries again. The memory is free as soon as no tensor of
    the caller (saved for a backward pass, say) uses it; on a GPU, PyTorch's allocator reserves it until
    ``torch.cuda.empty_cache()``.

    Example:
        >>> ordinate.clear_caches()
    """
    for clear in _clears:
        clear()
