"""Sums of a tile's logit gradients by distance: the gradients of rows and tables.

Rows belong to the tokens along a tile's first axis. Distances at or beyond the ends are skipped here: the callers sum
them per token and add the sums to the end entries last. ORDERED sums are slower than atomic ones, but
deterministic, also where positions are data and distances repeat.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def pull_to_rows(
    grad_logits, distance, in_rows, in_columns, rows, row_len, row_lo,
    ALIGNED: tl.constexpr, ORDERED: tl.constexpr,
):  # fmt: skip
    """Add each pair to its token's row, which starts at ``rows``. No other program writes to this row."""
    entry = distance - row_lo
    inside = (entry > 0) & (entry < row_len - 1) & in_rows[:, None] & in_columns[None, :]
    if ALIGNED:  # every distance occurs once in a row
        tl.store(rows[:, None] + entry, grad_logits, mask=inside)
    elif ORDERED:
        for at in range(tl.min(tl.where(inside, entry, 2**30)), tl.max(tl.where(inside, entry, -1)) + 1):
            found = tl.sum(tl.where(inside & (entry == at), grad_logits, 0.0), 1)
            tl.store(rows + at, tl.load(rows + at, mask=in_rows, other=0.0) + found, mask=in_rows)
        tl.debug_barrier()  # the next tile reads what this tile wrote
    else:
        tl.atomic_add(rows[:, None] + entry, grad_logits, mask=inside)


@triton.jit
def pull_to_ends(past, future, in_rows, rows, row_len):
    """Add the sums past and before the ends to the rows' end entries; a row of one entry gets both sums."""
    if row_len == 1:
        past += future
    tl.store(rows, future, mask=in_rows)
    tl.store(rows + row_len - 1, past, mask=in_rows)


@triton.jit
def pull_to_table(
    grad_logits, distance, in_rows, in_columns, table_ptr, table_len, table_lo, ORDERED: tl.constexpr
):
    """Add each pair to a table. With ORDERED, no other program may write to this table."""
    entry = distance - table_lo
    inside = (entry > 0) & (entry < table_len - 1) & in_rows[:, None] & in_columns[None, :]
    if ORDERED:
        for at in range(tl.min(tl.where(inside, entry, 2**30)), tl.max(tl.where(inside, entry, -1)) + 1):
            found = tl.sum(tl.where(inside & (entry == at), grad_logits, 0.0))
            tl.store(table_ptr + at, tl.load(table_ptr + at) + found)
        tl.debug_barrier()  # the next tile reads what this tile wrote
    else:
        tl.atomic_add(table_ptr + entry, grad_logits, mask=inside)
