"""The operators around the fused kernels: launch, fake and autograd."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..kernels import attention_backward, attention_forward, table_gradient
from .fused_tiles import FEW_QUERIES, far_tiles, key_shares, overlapping_tiles, tile_config


@dataclass(eq=False)
class _Launch:
    """What all kernels are given, under the names of their arguments."""

    q: Tensor
    k: Tensor
    v: Tensor
    slopes: Tensor | None
    table: Tensor | None
    key: Tensor | None
    row: Tensor | None
    q_positions: Tensor | None
    k_positions: Tensor | None
    q_index: Tensor | None
    k_index: Tensor | None
    q_segments: Tensor | None
    k_segments: Tensor | None
    padding: Tensor | None
    seed: Tensor | None
    symmetric: bool
    aligned: bool
    lo: int
    causal: bool
    window: int | None
    scale: float
    softcap: float | None
    dropout_p: float

    def __post_init__(self) -> None:
        self.q, self.k, self.v = (_rows_of_unit_stride(x) for x in (self.q, self.k, self.v))
        for name in ("slopes", "table", "key", "row", "q_positions", "k_positions"):
            value = getattr(self, name)
            setattr(self, name, None if value is None else value.contiguous())
        for name in ("q_index", "k_index", "q_segments", "k_segments", "padding"):
            value = getattr(self, name)
            if value is not None:
                # One batch stride serves indices and segments of a side.
                rows = self.q.shape[0] if value.shape[0] > 1 or self._batched_tokens() else 1
                value = value.expand(rows, -1).to(torch.int32).contiguous()
            setattr(self, name, value)

    def _batched_tokens(self) -> bool:
        tokens = (self.q_index, self.k_index, self.q_segments, self.k_segments)
        return any(value is not None and value.shape[0] > 1 for value in tokens)

    @property
    def heads(self) -> int:
        return self.q.shape[1]

    @property
    def hi(self) -> int:
        longest = self.table if self.table is not None else self.row
        return self.lo + (0 if longest is None else longest.shape[-1] - 1)

    @property
    def short(self) -> bool:
        """Whether most tiles lie beyond the tables, so that few have to be looked up."""
        return self.hi > self.lo and 8 * (self.hi - self.lo) < self.k.shape[2]

    def pointers(self) -> dict[str, Any]:
        nothing = self.q  # a pointer that no kernel follows
        names = {
            "slopes_ptr": self.slopes, "table_ptr": self.table, "key_ptr": self.key, "row_ptr": self.row,
            "q_pos_ptr": self.q_positions, "k_pos_ptr": self.k_positions,
            "q_index_ptr": self.q_index, "k_index_ptr": self.k_index,
            "q_segment_ptr": self.q_segments, "k_segment_ptr": self.k_segments,
            "padding_ptr": self.padding, "seed_ptr": self.seed,
        }  # fmt: skip
        return {name: nothing if value is None else value for name, value in names.items()}

    def strides(self) -> dict[str, int]:
        q_tokens = self.q_index if self.q_index is not None else self.q_segments
        k_tokens = self.k_index if self.k_index is not None else self.k_segments
        return {
            **_strides("q", self.q), **_strides("k", self.k), **_strides("v", self.v),
            "key_batch": _batch_stride(self.key), "row_batch": _batch_stride(self.row),
            "q_token_batch": _batch_stride(q_tokens), "k_token_batch": _batch_stride(k_tokens),
            "padding_batch": _batch_stride(self.padding),
        }  # fmt: skip

    def position_strides(self) -> dict[str, int]:
        return {
            "q_pos_batch": _batch_stride(self.q_positions),
            "k_pos_batch": _batch_stride(self.k_positions),
        }

    def scalars(self) -> dict[str, Any]:
        return {
            "heads": self.heads, "groups": self.heads // self.k.shape[1],
            "q_len": self.q.shape[2], "k_len": self.k.shape[2], "scale": self.scale,
            "softcap": 1.0 if self.softcap is None else self.softcap, "dropout_p": self.dropout_p,
            "table_len": 1 if self.table is None else self.table.shape[-1], "table_lo": self.lo,
            "row_len": 1 if self.row is None else self.row.shape[-1], "row_lo": self.lo,
            # No wider than all there is, so that no sum with an index leaves int32.
            "window": 0 if self.window is None else min(self.window, self.q.shape[2] + self.k.shape[2]),
        }  # fmt: skip

    def flags(self) -> dict[str, Any]:
        head_dim, v_dim = self.q.shape[-1], self.v.shape[-1]
        return {
            "HEAD_DIM": head_dim, "V_DIM": v_dim, "D": _padded(head_dim), "DV": _padded(v_dim),
            "LINEAR": self.slopes is not None, "SYMMETRIC": self.symmetric, "KEY": self.key is not None,
            "ROW": self.row is not None, "SOFTCAP": self.softcap is not None,
            "DROPOUT": self.dropout_p > 0, "CAUSAL": self.causal, "WINDOWED": self.window is not None,
            "INDEXED": self.q_index is not None, "SEGMENTS": self.q_segments is not None,
            "PADDED": self.padding is not None,
            "PRECISION": "ieee" if self.q.dtype == torch.float32 else "tf32",
        }  # fmt: skip

    def tiles(self, m: int, n: int, *, of_queries: bool) -> dict[str, Any]:
        """Which tiles meet and which lie beyond the tables, for positions and segments that are data."""
        nothing = torch.empty(0, dtype=torch.int32, device=self.q.device)
        ranges = far = nothing
        if self.q_segments is not None and self.k_segments is not None:
            ranges = overlapping_tiles(self.q_segments, self.k_segments, m, n, of_queries)
        if not self.aligned and (self.table is not None or self.row is not None):
            assert self.q_positions is not None
            assert self.k_positions is not None
            far = far_tiles(self.q_positions, self.k_positions, self.lo, self.hi, m, n, of_queries)
        return {
            "range_ptr": ranges, "far_ptr": far,
            "range_batch": _batch_stride(ranges), "far_batch": _batch_stride(far),
            "far_lo": self.lo, "far_hi": self.hi,
            "TABLE": self.table is not None, "ALIGNED": self.aligned, "SHORT": self.short,
            **self.position_strides(),
        }  # fmt: skip


def _rows_of_unit_stride(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _strides(name: str, x: Tensor) -> dict[str, int]:
    batch, head, row, _ = x.stride()
    return {f"{name}_batch": batch, f"{name}_head": head, f"{name}_stride": row}


def _batch_stride(x: Tensor | None) -> int:
    return 0 if x is None or x.dim() < 2 or x.shape[0] == 1 else x.stride(0)


def _padded(dim: int) -> int:
    return max(16, 1 << (dim - 1).bit_length())


def _empty_as(x: Tensor, dim: int) -> Tensor:
    """Room for ``[batch, heads, seq, dim]`` with heads inside or outside of seq, as ``x`` has them."""
    batch, heads, seq, _ = x.shape
    if x.stride(-1) == 1 and x.stride(1) < x.stride(2):
        return x.new_empty(batch, seq, heads, dim).transpose(1, 2)
    return x.new_empty(batch, heads, seq, dim)


def forward(
    q: Tensor, k: Tensor, v: Tensor,
    slopes: Tensor | None, table: Tensor | None, key: Tensor | None, row: Tensor | None,
    q_positions: Tensor | None, k_positions: Tensor | None,
    q_index: Tensor | None, k_index: Tensor | None,
    q_segments: Tensor | None, k_segments: Tensor | None, padding: Tensor | None, seed: Tensor | None,
    symmetric: bool, aligned: bool, lo: int, causal: bool, window: int | None,
    scale: float, softcap: float | None, dropout_p: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    launch = _Launch(
        q, k, v, slopes, table, key, row, q_positions, k_positions, q_index, k_index, q_segments,
        k_segments, padding, seed, symmetric, aligned, lo, causal, window, scale, softcap, dropout_p,
    )  # fmt: skip
    q = launch.q
    batch, heads, q_len, _ = q.shape
    out = _empty_as(q, v.shape[-1])
    lse = q.new_empty(batch, heads, q_len, dtype=torch.float32)
    if q_len == 0 or batch == 0:
        return out, lse
    if k.shape[2] == 0:
        return out.zero_(), lse.fill_(-math.inf)
    few = q_len <= FEW_QUERIES
    config = tile_config(
        "few queries" if few else "forward", launch.q, launch.v, launch.table is not None
    )
    grid = (-(-q_len // config["M"]), batch * heads)
    shares = key_shares(grid[0] * grid[1], k.shape[2], config["N"], q.device)
    into, into_lse = out, lse
    if shares > 1:
        into = q.new_empty(shares, batch, heads, q_len, v.shape[-1], dtype=torch.float32)
        into_lse = q.new_empty(shares, batch, heads, q_len, dtype=torch.float32)
    attention_forward._attention_fwd_kernel[(*grid, shares)](
        q_ptr=q, k_ptr=launch.k, v_ptr=launch.v, out_ptr=into, lse_ptr=into_lse,
        **launch.pointers(), **launch.strides(), **_strides("out", into if shares == 1 else into[0]),
        out_share=0 if shares == 1 else into.stride(0), **launch.scalars(), **launch.flags(),
        **launch.tiles(config["M"], config["N"], of_queries=True), SPLIT=shares > 1, **config,
    )  # fmt: skip
    if shares > 1:
        attention_forward._merge_fwd_kernel[(q_len, batch * heads)](
            into, into_lse, out, lse, *out.stride()[:3], heads, q_len, shares,
            V_DIM=v.shape[-1], DV=_padded(v.shape[-1]), SHARES=1 << (shares - 1).bit_length(),
        )  # fmt: skip
    return out, lse


forward_op = torch.library.custom_op("ordinate::fused_attention", forward, mutates_args=())


@forward_op.register_fake
def _(q, k, v, *_):
    return _empty_as(q, v.shape[-1]), q.new_empty(q.shape[:3], dtype=torch.float32)


def backward(
    grad: Tensor, grad_lse: Tensor | None, out: Tensor, lse: Tensor,
    q: Tensor, k: Tensor, v: Tensor,
    slopes: Tensor | None, table: Tensor | None, key: Tensor | None, row: Tensor | None,
    q_positions: Tensor | None, k_positions: Tensor | None,
    q_index: Tensor | None, k_index: Tensor | None,
    q_segments: Tensor | None, k_segments: Tensor | None, padding: Tensor | None, seed: Tensor | None,
    symmetric: bool, aligned: bool, lo: int, causal: bool, window: int | None,
    scale: float, softcap: float | None, dropout_p: float,
    grad_slopes: bool, grad_table: bool, grad_key: bool, grad_row: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v, slopes, table, key and row; those not asked for come back empty."""
    launch = _Launch(
        q, k, v, slopes, table, key, row, q_positions, k_positions, q_index, k_index, q_segments,
        k_segments, padding, seed, symmetric, aligned, lo, causal, window, scale, softcap, dropout_p,
    )  # fmt: skip
    grad = _rows_of_unit_stride(grad)
    grads = {
        "q": _empty_as(launch.q, q.shape[-1]),
        "k": _empty_as(launch.k, k.shape[-1]),
        "v": _empty_as(launch.v, v.shape[-1]),
        **{name: _zeros(tensor, wanted) for name, tensor, wanted in (
            ("slopes", slopes, grad_slopes), ("table", table, grad_table),
            ("key", key, grad_key), ("row", row, grad_row),
        )},
    }  # fmt: skip
    if min(q.numel(), k.numel()) == 0:
        for part in ("q", "k", "v"):
            grads[part].zero_()
        return tuple(grads.values())  # type: ignore[return-value]
    batch, heads, q_len, _ = q.shape
    shared = torch.empty_like(lse)
    lse_pull = None if grad_lse is None else grad_lse.contiguous()
    attention_backward._shared_kernel[(-(-q_len // 64), batch * heads)](
        out, grad, lse if lse_pull is None else lse_pull, shared,
        *out.stride()[:3], *grad.stride()[:3], heads, q_len,
        V_DIM=v.shape[-1], DV=_padded(v.shape[-1]), M=64, GRAD_LSE=grad_lse is not None,
    )  # fmt: skip
    common = {
        "q_ptr": launch.q, "k_ptr": launch.k, "v_ptr": launch.v, "grad_ptr": grad, "lse_ptr": lse,
        "shared_ptr": shared, **launch.pointers(), **launch.strides(), **_strides("grad", grad),
        **launch.scalars(), **launch.flags(),
    }  # fmt: skip
    # Gradients of a bias are sums over pairs, in which an error of whole rows would stay.
    summed = grad_slopes or grad_table or grad_key or grad_row
    _queries_backward(launch, common, grads, lse_pull, grad_table, grad_row, summed)
    _keys_backward(launch, common, grads, grad_slopes, grad_key)
    if grad_table and aligned:
        _table_backward(launch, common, grads["table"])
    return tuple(grads.values())  # type: ignore[return-value]


def _zeros(tensor: Tensor | None, wanted: bool) -> Tensor:
    if tensor is None or not wanted:
        return torch.empty(0)
    return torch.zeros_like(tensor, memory_format=torch.contiguous_format)


def _queries_backward(
    launch: _Launch, common: dict[str, Any], grads: dict[str, Tensor], grad_lse: Tensor | None,
    grad_table: bool, grad_row: bool, balanced: bool,
) -> None:  # fmt: skip
    batch, heads, q_len, _ = launch.q.shape
    ends = grad_table or grad_row
    past = future = common["shared_ptr"]  # a pointer that is not followed
    if ends:
        past, future = (torch.empty_like(past) for _ in range(2))
    row_grad = grads["row"]
    if grad_row and row_grad.shape[0] != batch:
        row_grad = row_grad.new_zeros(batch, *row_grad.shape[1:])
    config = tile_config("queries", launch.q, launch.v, launch.table is not None)
    attention_backward._attention_bwd_q_kernel[(-(-q_len // config["M"]), batch * heads)](
        **common, **launch.tiles(config["M"], config["N"], of_queries=True),
        grad_q_ptr=grads["q"], **_strides("grad_q", grads["q"]),
        grad_row_ptr=row_grad if grad_row else past, grad_table_ptr=grads["table"] if grad_table else past,
        past_ptr=past, future_ptr=future, grad_lse_ptr=past if grad_lse is None else grad_lse,
        ENDS=ends, GRAD_ROW=grad_row, SCATTER=grad_table and not launch.aligned,
        BALANCED=balanced, GRAD_LSE=grad_lse is not None, **config,
    )  # fmt: skip
    if grad_table:
        grads["table"][:, -1] += past.sum(dim=(0, 2))
        grads["table"][:, 0] += future.sum(dim=(0, 2))
    if grad_row:
        row_grad[..., -1] += past
        row_grad[..., 0] += future
        if row_grad is not grads["row"]:
            grads["row"].copy_(row_grad.sum(dim=0, keepdim=True))


def _keys_backward(
    launch: _Launch, common: dict[str, Any], grads: dict[str, Tensor], grad_slopes: bool, grad_key: bool
) -> None:
    batch, heads = launch.q.shape[:2]
    k_len = launch.k.shape[2]
    config = tile_config("keys", launch.q, launch.v, launch.table is not None)
    tiles = -(-k_len // config["N"])
    key_grad = slope_shares = common["shared_ptr"]  # a pointer that is not followed
    if grad_key:
        key_grad = torch.empty(batch, heads, k_len, device=launch.q.device)
    if grad_slopes:
        slope_shares = torch.empty(batch, heads, tiles, device=launch.q.device)
    attention_backward._attention_bwd_kv_kernel[(tiles, batch * launch.k.shape[1])](
        **common, **launch.tiles(config["M"], config["N"], of_queries=False),
        grad_k_ptr=grads["k"], grad_v_ptr=grads["v"],
        **_strides("grad_k", grads["k"]), **_strides("grad_v", grads["v"]),
        grad_key_ptr=key_grad, grad_slope_ptr=slope_shares,
        GRAD_KEY=grad_key, GRAD_SLOPE=grad_slopes, EVEN=_fills_tiles(launch, config["M"]), **config,
    )  # fmt: skip
    if grad_key:
        grads["key"].copy_(key_grad if grads["key"].shape[0] == batch else key_grad.sum(0, keepdim=True))
    if grad_slopes:
        grads["slopes"].copy_(slope_shares.sum(dim=(0, 2)))


def _fills_tiles(launch: _Launch, m: int) -> bool:
    """Whether queries fill their tiles in length and width, so that loads need no bounds."""
    dims = (launch.q.shape[-1], launch.v.shape[-1])
    return launch.q.shape[2] % m == 0 and all(dim == _padded(dim) for dim in dims)


def _table_backward(launch: _Launch, common: dict[str, Any], table_grad: Tensor) -> None:
    """Distances strictly between the table's ends; the ends come with the queries."""
    batch, heads, q_len, _ = launch.q.shape
    config = tile_config("table", launch.q, launch.v, True)
    m = config["M"]
    first = -((m - 2 - launch.lo) // m)
    last = (launch.hi + m - 2) // m
    if launch.causal:
        first = max(first, 0)
    # No query is further than k_len - 1 after a key, nor than q_len - 1 before one.
    first = max(first, -((q_len + m - 2) // m))
    last = min(last, (launch.k.shape[2] + m - 2) // m)
    if launch.hi - launch.lo < 2 or last < first:
        return
    diagonals, tiles = last - first + 1, -(-q_len // m)
    # Enough programs to fill a device, few enough that their sums stay small beside q.
    runs = max(1, min(tiles, 8, 4096 // max(1, diagonals * heads * batch) or 1))
    run = -(-tiles // runs) * m
    sums = torch.empty(batch * runs, heads, diagonals, 2 * m, device=launch.q.device)
    unused = ("q_pos_ptr", "k_pos_ptr")
    shared = {name: value for name, value in common.items() if name not in unused}
    table_gradient._table_grad_kernel[(diagonals, heads, batch * runs)](
        **shared, sums_ptr=sums, first_diagonal=first, run=run, runs=runs, **config
    )
    start = torch.arange(first, last + 1, device=sums.device)[:, None] * m
    distance = (start + torch.arange(2 * m, device=sums.device) - (m - 1)).flatten()
    inside = (distance > launch.lo) & (distance < launch.hi)
    place = (distance - launch.lo).clamp(0, launch.hi - launch.lo)
    table_grad.index_add_(1, place, sums.sum(dim=0).flatten(1) * inside)


backward_op = torch.library.custom_op("ordinate::fused_attention_backward", backward, mutates_args=())


@backward_op.register_fake
def _(grad, grad_lse, out, lse, q, k, v, slopes, table, key, row, *rest):
    wanted = rest[-4:]
    biases = [
        torch.empty(0) if tensor is None or not want else torch.empty_like(
            tensor, memory_format=torch.contiguous_format
        )
        for tensor, want in zip((slopes, table, key, row), wanted, strict=True)
    ]  # fmt: skip
    return *(_empty_as(x, x.shape[-1]) for x in (q, k, v)), *biases


def _setup_context(ctx, inputs, output):
    tensors, settings = inputs[:15], inputs[15:]
    ctx.save_for_backward(*tensors, *output)
    ctx.settings = settings
    ctx.set_materialize_grads(False)


def _pull_back(ctx, grad: Tensor | None, grad_lse: Tensor | None, run_backward):
    *tensors, out, lse = ctx.saved_tensors
    if grad is None and grad_lse is None:
        return (None,) * 23
    wanted = [bool(need) for need in ctx.needs_input_grad[3:7]]
    grads = run_backward(
        torch.zeros_like(out) if grad is None else grad, grad_lse, out, lse,
        *tensors, *ctx.settings, *wanted,
    )  # fmt: skip
    biases = [g if want else None for g, want in zip(grads[3:], wanted, strict=True)]
    return *grads[:3], *biases, *(None,) * 16


def _autograd(ctx, grad, grad_lse):
    return _pull_back(ctx, grad, grad_lse, torch.ops.ordinate.fused_attention_backward)


forward_op.register_autograd(_autograd, setup_context=_setup_context)


class _Attention(torch.autograd.Function):
    """The same without the operators' way through the dispatcher, which costs as much as a short kernel."""

    @staticmethod
    def forward(*inputs):
        return forward(*inputs)

    setup_context = staticmethod(_setup_context)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad, grad_lse):
        return _pull_back(ctx, grad, grad_lse, backward)


def attention(*inputs) -> tuple[Tensor, Tensor]:
    """The operator where a compiler looks on, the bare function where none does."""
    if torch.compiler.is_compiling():
        out, lse = torch.ops.ordinate.fused_attention(*inputs)
    elif torch.is_grad_enabled():
        out, lse = _Attention.apply(*inputs)
    else:
        out, lse = forward(*inputs)
    return out, lse
