"""Sends encodings that this program registered to the other processes that train with them.

The catalog of a new process has only the entries of ordinate and of installed packages (entry points). So
each run carries the entries of its comparison, and its process registers those that are absent.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...entries import catalog, parse, register
from ...entry import Entry


def registered_entries(specs: Iterable[str]) -> tuple[Entry, ...]:
    """The entries of specs whose classes are not ordinate's, reduced to what `create` needs."""
    found = {entry.name: entry for spec in specs for entry, _ in parse(spec)}
    return tuple(
        Entry(
            one.name, one.cls, one.hook, one.learned, one.year, one.paper, one.formula, one.used_by,
            dict(one.defaults),
        )
        for one in found.values()
        if not one.cls.__module__.startswith("ordinate.")
    )  # fmt: skip


def not_importable(entries: Iterable[Entry]) -> list[str]:
    """The names of entries whose classes other processes cannot import: from a script, a notebook or a function."""
    return [
        entry.name
        for entry in entries
        if entry.cls.__module__ == "__main__" or "<locals>" in entry.cls.__qualname__
    ]


def register_missing(entries: Iterable[Entry]) -> None:
    """Add the entries that this process does not have."""
    for entry in entries:
        if entry.name not in catalog:
            register(entry)
