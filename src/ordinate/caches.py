"""What is remembered between calls. Each cache says here how it is emptied; docs/guide.md lists them all."""

from __future__ import annotations

from collections.abc import Callable

_clears: list[Callable[[], object]] = []


def cleared_by(clear: Callable[[], object]) -> None:
    """Have `clear_caches` call this too. For a module to say of its own caches when it is imported."""
    _clears.append(clear)


def clear_caches() -> None:
    """Let go of everything computed in earlier calls: rotation tables, constants and kernel launches.

    Results stay what they are; what comes next is computed once more. The memory is free as soon as no tensor of
    the caller (saved for a backward pass, say) uses it; PyTorch's own allocator on a GPU keeps it for itself until
    ``torch.cuda.empty_cache()``.

    Example:
        >>> ordinate.clear_caches()
    """
    for clear in _clears:
        clear()
