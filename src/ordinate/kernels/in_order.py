"""Sums by distance that come out the same in every run, where positions are data and distances repeat."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_in_order(
    grad_logits, entry, inside, table_ptr, rows, in_rows, SCATTER: tl.constexpr, GRAD_ROW: tl.constexpr
):
    """Add to a table and to rows that no other program writes, one distance of the tile after the other.

    Slower than atomic additions, but every sum has one order.
    """
    first = tl.min(tl.where(inside, entry, 2**30))
    last = tl.max(tl.where(inside, entry, -1))
    for at in range(first, last + 1):
        found = tl.sum(tl.where(inside & (entry == at), grad_logits, 0.0), 1)
        if GRAD_ROW:
            tl.store(rows + at, tl.load(rows + at, mask=in_rows, other=0.0) + found, mask=in_rows)
        if SCATTER:
            tl.store(table_ptr + at, tl.load(table_ptr + at) + tl.sum(found, 0))
    tl.debug_barrier()  # the next tile reads what this one wrote
