"""Launch plans: grids, tiles and numbers of the kernels of a call, computed once for calls of the same shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from torch import Tensor

from ...caches import cleared_by
from ...kernels import attention_forward, key_gradient, query_gradient, table_gradient, tile_ranges
from ...kernels.arguments import Strides, WantedOfKeys, WantedOfQueries
from ...kernels.launch import Step
from .call import Launch, strides_of
from .tiles import FEW_QUERIES, Traits, key_shares, padded, tile_config

#: The most parts that the queries of a head are split into for the gradient of a table.
_MOST_RUNS = 8

#: Launch plans, keyed by the signature of a call.
_plans: dict[Hashable, Any] = {}
cleared_by(_plans.clear)


def cached_plan(key: Hashable, make: Callable[[], Any]) -> Any:
    plan = _plans.get(key)
    if plan is None:
        if len(_plans) >= 1024:  # drop the oldest: its lengths may not come back
            oldest, *_ = tuple(_plans)  # in one step, because another thread may add entries
            _plans.pop(oldest, None)
        plan = _plans[key] = make()
    return plan


def _tile_config(kernel: str, launch: Launch) -> dict[str, Any]:
    traits = Traits(launch.bias_kind, launch.causal, launch.dropout_p > 0)
    return tile_config(kernel, traits, launch.q, launch.v, launch.extra_bytes(kernel))


class ForwardPlan(NamedTuple):
    ranges: Step | None
    attend: Step
    shares: int
    merge: Step


def plan_forward(launch: Launch, out: Tensor) -> ForwardPlan:
    batch, heads, q_len, v_dim = out.shape
    few = q_len <= FEW_QUERIES
    config = _tile_config("few queries" if few else "forward", launch)
    packed = few and _packs(launch, config["M"])
    # Packed, a program takes all query heads of a key head.
    grid = (batch * launch.k.shape[1], 1) if packed else (batch * heads, -(-q_len // config["M"]))
    shares = key_shares(math.prod(grid), launch.k.shape[2], config["N"], launch.q.device)
    into = strides_of(out)
    if shares > 1:  # the shares are stored one after the other, contiguously
        into = Strides(heads * q_len * v_dim, q_len * v_dim, v_dim)
    tiles = launch.of_tiles(config["M"], config["N"], of_queries=True)
    tiles["KIND"] = tiles["KIND"]._replace(PACKED=packed)
    attend = Step(
        attention_forward._attention_fwd_kernel, (*grid, shares),
        {**launch.strides(), **tiles, "numbers": launch.numbers(), "out_strides": into,
         "out_share": 0 if shares == 1 else batch * heads * q_len * v_dim, "SPLIT": shares > 1, **config},
    )  # fmt: skip
    merge = Step(
        attention_forward._merge_fwd_kernel, (batch * heads, q_len),
        {"out_strides": strides_of(out), "heads": heads, "q_len": q_len, "shares": shares, "V_DIM": v_dim,
         "DV": padded(v_dim), "SHARES": 1 << (shares - 1).bit_length()},
    )  # fmt: skip
    ranges = _plan_ranges(launch, config["M"], config["N"], of_queries=True)
    return ForwardPlan(ranges, attend, shares, merge)


def _packs(launch: Launch, m: int) -> bool:
    """Whether the queries of all heads that share keys fit into one tile, so that their keys are read once."""
    groups = launch.heads // launch.k.shape[1]
    return groups > 1 and groups * launch.q.shape[2] <= m


def _plan_ranges(launch: Launch, m: int, n: int, *, of_queries: bool) -> Step | None:
    """The launch that finds which tiles of the other side each tile may see; None if that is known."""
    segments, far = launch.q_segments is not None, launch.has_far_positions
    if not (segments or far):
        return None
    own, other = (m, n) if of_queries else (n, m)
    tiles = -(-(launch.q if of_queries else launch.k).shape[2] // own)
    # How many tokens are compared at once: many where one program compares all tokens, as when decoding.
    together, warps = (8192, 8) if tiles == 1 else (1024, 4)
    strides, numbers, limits = launch.token_strides(), launch.numbers(), launch.limits()
    return Step(
        tile_ranges._tile_ranges_kernel, (launch.range_rows, tiles),
        {"q_token_batch": strides.queries, "k_token_batch": strides.keys, "q_pos_batch": strides.q_positions,
         "k_pos_batch": strides.k_positions, "q_len": numbers.q_len, "k_len": numbers.k_len,
         "far_lo": limits.lo, "far_hi": limits.hi, "M": m, "N": n, "OF_QUERIES": of_queries,
         "SEGMENTS": segments, "FAR": far, "BLOCK": max(1, together // other), "num_warps": warps},
    )  # fmt: skip


class Wanted(NamedTuple):
    """Which parts of a bias need a gradient."""

    slopes: bool
    table: bool
    key: bool
    row: bool
    key_row: bool


class BackwardPlan(NamedTuple):
    shared: Step
    ranges_of_queries: Step | None
    queries: Step
    ranges_of_keys: Step | None
    keys: Step
    key_tiles: int
    own_tables: bool  # one table per tile of keys
    table_ends: bool  # each query sums the two ends
    table: Step | None
    table_sums: tuple[int, ...]
    fold: Step | None


def plan_backward(
    launch: Launch, out: Tensor, grad: Tensor, grads: dict[str, Tensor],
    wanted: Wanted, grad_lse: bool, deterministic: bool,
) -> BackwardPlan:  # fmt: skip
    batch, heads, q_len, v_dim = out.shape
    # Where positions are data, distances may repeat, and atomic sums have no fixed order.
    in_order = deterministic and not launch.aligned
    own_tables = in_order and wanted.table
    # In a table with every distance, the end entries are ordinary ones, summed along diagonals.
    table_ends = wanted.table and not launch.whole
    levels = {"levels": batch * heads * q_len}
    numbers = launch.numbers()
    common = {**launch.strides(), "grad_strides": strides_of(grad), "numbers": numbers}
    shared = Step(
        query_gradient._shared_kernel, (batch * heads, -(-q_len // 64)),
        {**levels, "out_strides": strides_of(out), "grad_strides": strides_of(grad),
         "row_batch": common["bias_strides"].row_batch, "heads": heads, "q_len": q_len,
         "table_len": numbers.table_len, "row_len": numbers.row_len, "V_DIM": v_dim, "DV": padded(v_dim), "M": 64,
         "GRAD_LSE": grad_lse, "TABLE": launch.table is not None, "ROW": launch.row is not None},
    )  # fmt: skip
    of_queries = _tile_config("queries", launch)
    queries = Step(
        query_gradient._attention_bwd_q_kernel, (batch * heads, -(-q_len // of_queries["M"])),
        {**common, **launch.of_tiles(of_queries["M"], of_queries["N"], of_queries=True),
         "grad_q_strides": strides_of(grads["q"]), **levels,
         "WANTED": WantedOfQueries(
             TABLE_ENDS=table_ends, ROW=wanted.row, ORDERED=in_order and wanted.row, LSE=grad_lse,
             # Gradients of a bias are sums over pairs, in which the rounding error of a row does not cancel.
             BALANCED=any(wanted),
         ), **of_queries},
    )  # fmt: skip
    of_keys = _tile_config("keys", launch)
    key_tiles = -(-launch.k.shape[2] // of_keys["N"])
    keys = Step(
        key_gradient._attention_bwd_kv_kernel, (batch * launch.k.shape[1], key_tiles),
        {**common, **launch.of_tiles(of_keys["M"], of_keys["N"], of_queries=False),
         "grad_k_strides": strides_of(grads["k"]), "grad_v_strides": strides_of(grads["v"]), **levels,
         "WANTED": WantedOfKeys(
             KEY=wanted.key, KEY_ROW=wanted.key_row, TABLE=wanted.table and not launch.aligned,
             ORDERED=own_tables or (in_order and wanted.key_row), SLOPE=wanted.slopes,
             EVEN=_fills_tiles(launch, of_keys["M"]),
         ), **of_keys},
    )  # fmt: skip
    table = fold = None
    sums: tuple[int, ...] = ()
    if wanted.table:
        table, sums, fold = _plan_table(launch, common, key_tiles if own_tables else 0)
    return BackwardPlan(
        shared,
        _plan_ranges(launch, of_queries["M"], of_queries["N"], of_queries=True), queries,
        _plan_ranges(launch, of_keys["M"], of_keys["N"], of_queries=False), keys,
        key_tiles, own_tables, table_ends, table, sums, fold,
    )  # fmt: skip


def _fills_tiles(launch: Launch, m: int) -> bool:
    """Whether queries fill their tiles in length and width, so that loads need no bounds."""
    dims = (launch.q.shape[-1], launch.v.shape[-1])
    return launch.q.shape[2] % m == 0 and all(dim == padded(dim) for dim in dims)


def _plan_table(
    launch: Launch, common: dict[str, Any], tables: int
) -> tuple[Step | None, tuple[int, ...], Step]:
    """Launches that sum distances strictly between the table's ends along diagonals, then write them and the ends.

    In a table with every distance, the ends are ordinary entries.

    Args:
        tables: How many tables each head and batch row has, if every tile of keys has its own; otherwise 0.
    """
    batch, heads, q_len, _ = launch.q.shape
    assert launch.table is not None
    config = _tile_config("table", launch)
    m, n = config["M"], config["N"]
    # Entries of the table that are read: no query is further than k_len - 1 after a key, nor than q_len - 1 before one.
    before, after = 0 if launch.sees_no_future else q_len - 1, launch.k.shape[2] - 1
    if launch.window is not None and launch.q_index is None:
        before, after = min(before, launch.window - 1), min(after, launch.window - 1)
    lo, hi = (launch.lo, launch.hi) if launch.whole else (launch.lo + 1, launch.hi - 1)
    lo, hi = max(lo, -before), min(hi, after)
    # Tiles on diagonal d have the distances from d n - (n - 1) to d n + (m - 1).
    first, last = -((m - 1 - lo) // n), (hi + n - 1) // n
    step: Step | None = None
    table_len = launch.table.shape[-1]
    rows, diagonals = batch * tables, 0
    sums: tuple[int, ...] = (rows, heads, table_len)
    if launch.aligned and lo <= hi:
        diagonals, tiles = last - first + 1, -(-q_len // m)
        # Enough programs to fill a device, few enough that their sums stay small compared to q.
        runs = max(1, min(tiles, _MOST_RUNS, 4096 // max(1, diagonals * heads * batch) or 1))
        rows = batch * runs
        sums = (rows, heads, diagonals, 2 * n)
        tokens = launch.token_strides()
        step = Step(
            table_gradient._table_grad_kernel, (heads * rows, diagonals),
            {**common, "q_token_batch": tokens.queries, "k_token_batch": tokens.keys,
             "window": launch.limits().window, "first_diagonal": first, "diagonals": diagonals,
             "run": -(-tiles // runs) * m, "runs": runs, "KIND": launch.kind(), **config},
        )  # fmt: skip
    kind = "diagonals" if step is not None else "tables" if tables else "none"
    block = min(128, max(16, 1 << (table_len - 1).bit_length()))
    fold = Step(
        table_gradient._fold_table_kernel, (heads, -(-table_len // block)),
        {"heads": heads, "q_len": q_len, "batch": batch, "table_len": table_len, "table_lo": launch.lo,
         "first_diagonal": first, "diagonals": diagonals, "rows": rows, "SUMS": kind,
         "ENDS": not launch.whole, "N": n, "BLOCK": block},
    )  # fmt: skip
    return step, sums, fold
