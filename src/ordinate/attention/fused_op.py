"""The operators around the fused kernels: launch, fake and autograd."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..kernels import attention_forward, key_gradient, query_gradient, table_gradient
from .fused_launch import Launch, rows_of_unit_stride, strides_of
from .fused_tiles import FEW_QUERIES, key_shares, padded, tile_config


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
    launch = Launch(
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
    programs = -(-q_len // config["M"]) * batch * heads
    shares = key_shares(programs, k.shape[2], config["N"], q.device)
    into, into_lse = out, lse
    if shares > 1:
        into = q.new_empty(shares, batch, heads, q_len, v.shape[-1], dtype=torch.float32)
        into_lse = q.new_empty(shares, batch, heads, q_len, dtype=torch.float32)
    attention_forward._attention_fwd_kernel[(programs, shares)](
        q_ptr=q, k_ptr=launch.k, v_ptr=launch.v, out_ptr=into, lse_ptr=into_lse,
        **launch.pointers(), **launch.strides(), **strides_of("out", into if shares == 1 else into[0]),
        out_share=0 if shares == 1 else into.stride(0), **launch.scalars(), **launch.flags(),
        **launch.tiles(config["M"], config["N"], of_queries=True), SPLIT=shares > 1, **config,
    )  # fmt: skip
    if shares > 1:
        attention_forward._merge_fwd_kernel[(q_len * batch * heads,)](
            into, into_lse, out, lse, *out.stride()[:3], heads, q_len, shares,
            V_DIM=v.shape[-1], DV=padded(v.shape[-1]), SHARES=1 << (shares - 1).bit_length(),
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
    launch = Launch(
        q, k, v, slopes, table, key, row, q_positions, k_positions, q_index, k_index, q_segments,
        k_segments, padding, seed, symmetric, aligned, lo, causal, window, scale, softcap, dropout_p,
    )  # fmt: skip
    grad = rows_of_unit_stride(grad)
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
    query_gradient._shared_kernel[(-(-q_len // 64) * batch * heads,)](
        out, grad, lse if lse_pull is None else lse_pull, shared,
        *out.stride()[:3], *grad.stride()[:3], heads, q_len,
        V_DIM=v.shape[-1], DV=padded(v.shape[-1]), M=64, GRAD_LSE=grad_lse is not None,
    )  # fmt: skip
    common = {
        "q_ptr": launch.q, "k_ptr": launch.k, "v_ptr": launch.v, "grad_ptr": grad, "lse_ptr": lse,
        "shared_ptr": shared, **launch.pointers(), **launch.strides(), **strides_of("grad", grad),
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
    launch: Launch, common: dict[str, Any], grads: dict[str, Tensor], grad_lse: Tensor | None,
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
    query_gradient._attention_bwd_q_kernel[(-(-q_len // config["M"]) * batch * heads,)](
        **common, **launch.tiles(config["M"], config["N"], of_queries=True),
        grad_q_ptr=grads["q"], **strides_of("grad_q", grads["q"]),
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
    launch: Launch, common: dict[str, Any], grads: dict[str, Tensor], grad_slopes: bool, grad_key: bool
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
    key_gradient._attention_bwd_kv_kernel[(tiles * batch * launch.k.shape[1],)](
        **common, **launch.tiles(config["M"], config["N"], of_queries=False),
        grad_k_ptr=grads["k"], grad_v_ptr=grads["v"],
        **strides_of("grad_k", grads["k"]), **strides_of("grad_v", grads["v"]),
        grad_key_ptr=key_grad, grad_slope_ptr=slope_shares,
        GRAD_KEY=grad_key, GRAD_SLOPE=grad_slopes, EVEN=_fills_tiles(launch, config["M"]), **config,
    )  # fmt: skip
    if grad_key:
        grads["key"].copy_(key_grad if grads["key"].shape[0] == batch else key_grad.sum(0, keepdim=True))
    if grad_slopes:
        grads["slopes"].copy_(slope_shares.sum(dim=(0, 2)))


def _fills_tiles(launch: Launch, m: int) -> bool:
    """Whether queries fill their tiles in length and width, so that loads need no bounds."""
    dims = (launch.q.shape[-1], launch.v.shape[-1])
    return launch.q.shape[2] % m == 0 and all(dim == padded(dim) for dim in dims)


def _table_backward(launch: Launch, common: dict[str, Any], table_grad: Tensor) -> None:
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
    table_gradient._table_grad_kernel[(diagonals * heads * batch * runs,)](
        **shared, sums_ptr=sums, first_diagonal=first, diagonals=diagonals, run=run, runs=runs, **config
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
