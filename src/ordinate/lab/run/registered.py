"""Encodings that the running program registered, for the other processes that train with them.

A new process has the entries of ordinate and of installed packages (entry points) in its catalog, and no others. So
each run takes along the entries of its comparison, and the process that does it registers those it lacks.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...entries import catalog, parse, register
from ...entry import Entry


def registered_entries(specs: Iterable[str]) -> tuple[Entry, ...]:
    """The entries in some specs whose classes are not ordinate's, with as much of each as `create` needs."""
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
    """The names of entries whose classes other processes cannot import: of a script, a notebook or a function."""
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
