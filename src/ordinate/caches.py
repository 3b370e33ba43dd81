"""How all caches are emptied. Each cache registers its function here; docs/guide.md lists the caches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_clears: list[Callable[[], object]] = []


def cleared_by(clear: Callable[[], object]) -> None:
    """Have `clear_caches` call this too. A module with a cache does this when it is imported."""
    _clears.append(clear)


def drop_the_oldest(cache: dict[Any, Any], sizes: list[tuple[Any, int]], limit: int) -> None:
    """Remove entries, given by key and size with the oldest first, until what remains of them is within the limit.

    Another thread may have removed some of them.
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
    the caller (saved for a backward pass, say) uses it; PyTorch's own allocator on a GPU keeps it for itself until
    ``torch.cuda.empty_cache()``.

    Example:
        >>> ordinate.clear_caches()
    """
    for clear in _clears:
        clear()
