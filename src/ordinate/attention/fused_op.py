"""The operators around the fused kernels: launch, fake and autograd."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from ..direct import autograd_function, somebody_looks_on
from .fused_launch import Launch, empty_as, rows_of_unit_stride
from .fused_plans import BackwardPlan, ForwardPlan, kept_plan, plan_backward, plan_forward


def forward(
    q: Tensor, k: Tensor, v: Tensor,
    slopes: Tensor | None, table: Tensor | None, key: Tensor | None,
    row: Tensor | None, key_row: Tensor | None,
    q_positions: Tensor | None, k_positions: Tensor | None,
    q_index: Tensor | None, k_index: Tensor | None,
    q_segments: Tensor | None, k_segments: Tensor | None, seed: Tensor | None,
    symmetric: bool, aligned: bool, lo: int, causal: bool, window: int | None,
    scale: float, softcap: float | None, dropout_p: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    launch = Launch(
        q, k, v, slopes, table, key, row, key_row, q_positions, k_positions, q_index, k_index,
        q_segments, k_segments, seed, symmetric, aligned, lo, causal, window, scale, softcap,
        dropout_p,
    )  # fmt: skip
    q = launch.q
    batch, heads, q_len, _ = q.shape
    out = empty_as(q, v.shape[-1])
    lse = q.new_empty(batch, heads, q_len, dtype=torch.float32)
    if q_len == 0 or batch == 0:
        return out, lse
    if k.shape[2] == 0:
        return out.zero_(), lse.fill_(-math.inf)
    plan: ForwardPlan = kept_plan(launch.signature(), lambda: plan_forward(launch, out))
    into, into_lse = out, lse
    if plan.shares > 1:
        into = q.new_empty(plan.shares, batch, heads, q_len, v.shape[-1], dtype=torch.float32)
        into_lse = q.new_empty(plan.shares, batch, heads, q_len, dtype=torch.float32)
    plan.attend(
        q_ptr=q, k_ptr=launch.k, v_ptr=launch.v, out_ptr=into, lse_ptr=into_lse, **launch.tensors(),
        **launch.tile_tensors(plan.ranges),
    )  # fmt: skip
    if plan.shares > 1:
        plan.merge(shares_ptr=into, shares_lse_ptr=into_lse, out_ptr=out, lse_ptr=lse)
    return out, lse


forward_op = torch.library.custom_op("ordinate::fused_attention", forward, mutates_args=())


@forward_op.register_fake
def _(q, k, v, *_):
    return empty_as(q, v.shape[-1]), q.new_empty(q.shape[:3], dtype=torch.float32)


def backward(
    grad: Tensor, grad_lse: Tensor | None, out: Tensor, lse: Tensor,
    q: Tensor, k: Tensor, v: Tensor,
    slopes: Tensor | None, table: Tensor | None, key: Tensor | None,
    row: Tensor | None, key_row: Tensor | None,
    q_positions: Tensor | None, k_positions: Tensor | None,
    q_index: Tensor | None, k_index: Tensor | None,
    q_segments: Tensor | None, k_segments: Tensor | None, seed: Tensor | None,
    symmetric: bool, aligned: bool, lo: int, causal: bool, window: int | None,
    scale: float, softcap: float | None, dropout_p: float,
    grad_slopes: bool, grad_table: bool, grad_key: bool, grad_row: bool, grad_key_row: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v, slopes, table, key, row and key_row; those not asked for come back empty."""
    launch = Launch(
        q, k, v, slopes, table, key, row, key_row, q_positions, k_positions, q_index, k_index,
        q_segments, k_segments, seed, symmetric, aligned, lo, causal, window, scale, softcap,
        dropout_p,
    )  # fmt: skip
    grad = rows_of_unit_stride(grad)
    grads = {
        "q": empty_as(launch.q, q.shape[-1]),
        "k": empty_as(launch.k, k.shape[-1]),
        "v": empty_as(launch.v, v.shape[-1]),
        **{name: _zeros(q, tensor, wanted) for name, tensor, wanted in (
            ("slopes", slopes, grad_slopes), ("table", table, grad_table),
            ("key", key, grad_key), ("row", row, grad_row), ("key_row", key_row, grad_key_row),
        )},
    }  # fmt: skip
    if min(q.numel(), k.numel()) == 0:
        for part in ("q", "k", "v"):
            grads[part].zero_()
        return tuple(grads.values())  # type: ignore[return-value]
    wanted = (grad_slopes, grad_table, grad_key, grad_row, grad_key_row)
    lse_pull = None if grad_lse is None else grad_lse.contiguous()
    deterministic = _must_be_deterministic()
    plan: BackwardPlan = kept_plan(
        (
            launch.signature(),
            grad.stride(),
            grad.dtype,
            out.stride(),
            out.dtype,
            wanted,
            grad_lse is None,
            deterministic,
        ),
        lambda: plan_backward(launch, out, grad, grads, wanted, grad_lse is not None, deterministic),
    )
    # One level of the logits, or three where there are tables to be beyond.
    rows = torch.empty(
        (2 if table is None and row is None else 4, *lse.shape), dtype=torch.float32, device=lse.device
    )
    shared, level = rows[0], rows[1:]
    biases = launch.tensors()
    plan.shared(
        out_ptr=out,
        grad_ptr=grad,
        lse_ptr=lse,
        grad_lse_ptr=lse_pull,
        shared_ptr=shared,
        level_ptr=level,
        table_ptr=biases["table_ptr"],
        row_ptr=biases["row_ptr"],
    )
    common: dict[str, Tensor | None] = {
        "q_ptr": launch.q, "k_ptr": launch.k, "v_ptr": launch.v, "grad_ptr": grad, "level_ptr": level,
        "shared_ptr": shared, **biases,
    }  # fmt: skip
    sums = None
    if plan.table is not None:
        sums = torch.empty(plan.table_sums, dtype=torch.float32, device=q.device)
    elif plan.own_tables:
        sums = torch.zeros(plan.table_sums, dtype=torch.float32, device=q.device)
    past, future = _queries_backward(launch, plan, common, grads, lse_pull, grad_row)
    into_table = grads["table"] if grad_table and not plan.own_tables else sums
    _keys_backward(launch, plan, common, grads, into_table, grad_slopes, grad_key, grad_key_row)
    if plan.table is not None:
        plan.table(sums_ptr=sums, **common)
    if plan.fold is not None:
        plan.fold(grad_table_ptr=grads["table"], sums_ptr=sums, past_ptr=past, future_ptr=future)
    return tuple(grads.values())  # type: ignore[return-value]


def _must_be_deterministic() -> bool:
    """PyTorch's own switch; with warnings only, it asks for nothing."""
    return (
        torch.are_deterministic_algorithms_enabled()
        and not torch.is_deterministic_algorithms_warn_only_enabled()
    )


def _zeros(q: Tensor, tensor: Tensor | None, wanted: bool) -> Tensor:
    if tensor is None or not wanted:
        return q.new_empty(0, dtype=torch.float32)
    return torch.zeros_like(tensor, memory_format=torch.contiguous_format)


def _queries_backward(
    launch: Launch, plan: BackwardPlan, common: dict[str, Tensor | None], grads: dict[str, Tensor],
    grad_lse: Tensor | None, grad_row: bool,
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    """The gradient of q and of rows; what each query pulls at the table's two ends."""
    q = launch.q
    past = future = row_grad = None
    if plan.table_ends:
        past, future = torch.empty((2, *q.shape[:3]), dtype=torch.float32, device=q.device).unbind(0)
    if grad_row:
        row_grad = _of_every_sequence(grads["row"], q.shape[0])
    plan.queries(
        **common, **launch.tile_tensors(plan.ranges_of_queries), grad_q_ptr=grads["q"],
        grad_row_ptr=row_grad, past_ptr=past, future_ptr=future, grad_lse_ptr=grad_lse,
    )  # fmt: skip
    if row_grad is not None:
        _sum_sequences(grads["row"], row_grad)
    return past, future


def _of_every_sequence(rows: Tensor, batch: int) -> Tensor:
    """Room for the gradient of rows, zeros as yet, also where all sequences share them."""
    return rows if rows.shape[0] == batch else rows.new_zeros(batch, *rows.shape[1:])


def _sum_sequences(grad: Tensor, found: Tensor) -> None:
    """Bring the gradient of every sequence's rows to the shape of theirs, which all may share."""
    if found is not grad:
        grad.copy_(found.sum(dim=0, keepdim=True))


def _keys_backward(
    launch: Launch, plan: BackwardPlan, common: dict[str, Tensor | None], grads: dict[str, Tensor],
    into_table: Tensor | None, grad_slopes: bool, grad_key: bool, grad_key_row: bool,
) -> None:  # fmt: skip
    """The gradients of k and v, of vectors and rows of keys, of slopes, and of a table between its ends.

    The last only where positions are data; `table_gradient` has it for those that are not.
    """
    batch, heads, k_len = launch.q.shape[0], launch.q.shape[1], launch.k.shape[2]
    key_grad = row_grad = slope_shares = None
    if grad_key:
        key_grad = torch.empty(batch, heads, k_len, dtype=torch.float32, device=launch.q.device)
    if grad_key_row:
        row_grad = _of_every_sequence(grads["key_row"], batch)
    if grad_slopes:
        slope_shares = torch.empty(
            batch, heads, plan.key_tiles, dtype=torch.float32, device=launch.q.device
        )
    plan.keys(
        **common, **launch.tile_tensors(plan.ranges_of_keys),
        grad_k_ptr=grads["k"], grad_v_ptr=grads["v"], grad_key_ptr=key_grad, grad_key_row_ptr=row_grad,
        grad_table_ptr=into_table, grad_slope_ptr=slope_shares,
    )  # fmt: skip
    if key_grad is not None:
        grads["key"].copy_(key_grad.sum_to_size(grads["key"].shape))
    if row_grad is not None:
        _sum_sequences(grads["key_row"], row_grad)
    if slope_shares is not None:
        torch.sum(slope_shares, dim=(0, 2), out=grads["slopes"])


backward_op = torch.library.custom_op("ordinate::fused_attention_backward", backward, mutates_args=())


@register_flop_formula(torch.ops.ordinate.fused_attention)
def _(q, k, v, *_, **__) -> int:
    """As PyTorch counts its own attention: two products, whatever a mask hides."""
    batch, heads, q_len, head_dim = q
    return 2 * batch * heads * q_len * k[2] * (head_dim + v[3])


@register_flop_formula(torch.ops.ordinate.fused_attention_backward)
def _(grad, grad_lse, out, lse, q, k, v, *_, **__) -> int:
    """The logits once more, and the products behind the gradients of q, k, v and the weights."""
    batch, heads, q_len, head_dim = q
    return 2 * batch * heads * q_len * k[2] * (3 * head_dim + 2 * v[3])


@backward_op.register_fake
def _(grad, grad_lse, out, lse, q, k, v, slopes, table, key, row, key_row, *rest):
    wanted = rest[-5:]
    biases = [
        q.new_empty(0, dtype=torch.float32) if tensor is None or not want else torch.empty_like(
            tensor, memory_format=torch.contiguous_format
        )
        for tensor, want in zip((slopes, table, key, row, key_row), wanted, strict=True)
    ]  # fmt: skip
    return *(empty_as(x, x.shape[-1]) for x in (q, k, v)), *biases


def _setup_context(ctx, inputs, output):
    tensors, settings = inputs[:15], inputs[15:]
    ctx.save_for_backward(*tensors, *output)
    ctx.settings = settings
    ctx.set_materialize_grads(False)


def _pull_back(ctx, grad: Tensor | None, grad_lse: Tensor | None, run_backward):
    *tensors, out, lse = ctx.saved_tensors
    if grad is None and grad_lse is None:
        return (None,) * 23
    wanted = [bool(need) for need in ctx.needs_input_grad[3:8]]
    grads = run_backward(
        torch.zeros_like(out) if grad is None else grad, grad_lse, out, lse,
        *tensors, *ctx.settings, *wanted,
    )  # fmt: skip
    biases = [g if want else None for g, want in zip(grads[3:], wanted, strict=True)]
    return *grads[:3], *biases, *(None,) * 15


def _autograd(ctx, grad, grad_lse):
    return _pull_back(ctx, grad, grad_lse, torch.ops.ordinate.fused_attention_backward)


forward_op.register_autograd(_autograd, setup_context=_setup_context)


@torch.autograd.function.once_differentiable
def _direct_autograd(ctx, grad, grad_lse):
    if somebody_looks_on(*ctx.saved_tensors[:3]):
        return _autograd(ctx, grad, grad_lse)
    return _pull_back(ctx, grad, grad_lse, backward)


_Attention = autograd_function(forward, _setup_context, _direct_autograd)


def attention(*inputs) -> tuple[Tensor, Tensor]:
    """The operator where somebody looks on, the bare function where nobody does.

    (Operators have no gradient under ``torch.func.grad``; PyTorch says so.)
    """
    if somebody_looks_on(*inputs[:3]):
        out, lse = torch.ops.ordinate.fused_attention(*inputs)
    elif torch.is_grad_enabled():
        out, lse = _Attention.apply(*inputs)
    else:
        out, lse = forward(*inputs)
    return out, lse
