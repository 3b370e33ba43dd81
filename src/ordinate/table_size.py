"""How large the table of an encoding would be, from its spec alone: known before any memory is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .entries import Entry

#: The most numbers a table made from a spec may hold: 1 GiB in float32. A larger one is made by its class.
LARGEST_TABLE = 2**28

# Rows and width of the tables that options size.
_TABLES: dict[str, tuple[Callable[[Mapping[str, int]], int], str]] = {
    "learned": (lambda sizes: sizes.get("max_positions", 0) + sizes.get("offset", 0), "d_model"),
    "clipped": (lambda sizes: 2 * sizes.get("max_distance", 0) + 1, "num_heads"),
    "t5": (lambda sizes: sizes.get("num_buckets", 32), "num_heads"),
    "shaw": (lambda sizes: 2 * sizes.get("max_distance", 0) + 1, "head_dim"),
}


def numbers_in_table(
    entry: Entry, options: Mapping[str, Any], sizes: Mapping[str, int] = MappingProxyType({})
) -> int:
    """How many numbers an encoding's table holds; 0 where no option makes it large.

    Args:
        options: What a spec gives; what is no whole number the encoding refuses itself.
        sizes: What `ordinate.create` is given beside it. Of what nobody gives, there is nothing.

    Example:
        >>> from ordinate.entries import parse
        >>> ((entry, options),) = parse("learned:max_positions=100")
        >>> numbers_in_table(entry, options, {"d_model": 8})
        800
    """
    if entry.name not in _TABLES:
        return 0
    rows, width = _TABLES[entry.name]
    given = {name: value for name, value in options.items() if isinstance(value, int)}
    known = {**sizes, **entry.defaults, **given}
    return max(rows(known), 0) * max(known.get(width, 0), 0)
