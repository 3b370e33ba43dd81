"""The operators around the fused kernels: launch, fake and autograd."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from ...kernels.arguments import IndexPointers, KeyGradients, QueryGradients
from ...operators import Backward, Operator
from .call import Launch, empty_as, rows_of_unit_stride
from .plans import BackwardPlan, ForwardPlan, Wanted, cached_plan, plan_backward, plan_forward

_COUNT = len(fields(Launch))
_TENSORS = sum("Tensor" in str(field.type) for field in fields(Launch))
#: The fields of `Launch` that have gradients; they come first.
_LEARN = ("q", "k", "v", *Wanted._fields)


def forward(launch: Launch) -> tuple[Tensor, Tensor]:
    """The output and the logsumexp of each query's logits."""
    q, k, v = launch.q, launch.k, launch.v
    batch, heads, q_len, _ = q.shape
    out = empty_as(q, v.shape[-1])
    lse = q.new_empty(batch, heads, q_len, dtype=torch.float32)
    if q_len == 0 or batch == 0:
        return out, lse
    if k.shape[2] == 0:
        return out.zero_(), lse.fill_(-math.inf)
    plan: ForwardPlan = cached_plan(launch.signature(), lambda: plan_forward(launch, out))
    into, into_lse = out, lse
    if plan.shares > 1:
        into = q.new_empty(plan.shares, batch, heads, q_len, v.shape[-1], dtype=torch.float32)
        into_lse = q.new_empty(plan.shares, batch, heads, q_len, dtype=torch.float32)
    plan.attend(
        q_ptr=q, k_ptr=k, v_ptr=v, out_ptr=into, lse_ptr=into_lse, range_ptr=launch.ranges(plan.ranges),
        **launch.tensors(),
    )  # fmt: skip
    if plan.shares > 1:
        plan.merge(shares_ptr=into, shares_lse_ptr=into_lse, out_ptr=out, lse_ptr=lse)
    return out, lse


def _fake(q, k, v, *_):
    return empty_as(q, v.shape[-1]), q.new_empty(q.shape[:3], dtype=torch.float32)


def backward(
    grad: Tensor, grad_lse: Tensor | None, out: Tensor, lse: Tensor, launch: Launch, wanted: Wanted
) -> tuple[Tensor | None, ...]:
    """Gradients of q, k, v, and of those parts of the bias that exist and are `Wanted`; None for the others."""
    asked_for = zip(Wanted._fields, wanted, strict=True)
    wanted = Wanted(*[want and getattr(launch, name) is not None for name, want in asked_for])
    q, k, v = launch.q, launch.k, launch.v
    grads = {name: empty_as(x, x.shape[-1]) for name, x in (("q", q), ("k", k), ("v", v))}
    if min(q.numel(), k.numel()) == 0:
        for found in grads.values():
            found.zero_()
        learning = [name for name, want in wanted._asdict().items() if want]
        return _in_order(grads | {name: torch.zeros_like(getattr(launch, name)) for name in learning})
    grad = rows_of_unit_stride(grad)
    grad_lse = None if grad_lse is None else grad_lse.contiguous()
    deterministic = _must_be_deterministic()
    signature = launch.signature(), grad.stride(), grad.dtype, out.stride(), out.dtype
    plan: BackwardPlan = cached_plan(
        (*signature, wanted, grad_lse is None, deterministic),
        lambda: plan_backward(launch, out, grad, grads, wanted, grad_lse is not None, deterministic),
    )
    shared = lse.new_empty(lse.shape)
    # One level of the logits, or three where keys may lie beyond the ends of a table.
    level = lse.new_empty(1 if launch.table is None and launch.row is None else 3, *lse.shape)
    plan.shared(
        out_ptr=out, grad_ptr=grad, lse_ptr=lse, grad_lse_ptr=grad_lse, shared_ptr=shared, level_ptr=level,
        table_ptr=launch.table, row_ptr=launch.row,
    )  # fmt: skip
    common: dict[str, Any] = {
        "q_ptr": q, "k_ptr": k, "v_ptr": v, "grad_ptr": grad, "level_ptr": level, "shared_ptr": shared,
        **launch.tensors(),
    }  # fmt: skip
    sums = _room_for_table(launch, plan, grads) if wanted.table else None
    past, future = _queries_backward(launch, plan, common, grads, lse, grad_lse, wanted)
    _keys_backward(launch, plan, common, grads, sums if plan.own_tables else grads.get("table"), wanted)
    if plan.table is not None:
        indices = IndexPointers(launch.q_index, launch.k_index, launch.q_segments, launch.k_segments)
        plan.table(**{"sums_ptr": sums, **common, "tokens": indices})
    if plan.fold is not None:
        plan.fold(grad_table_ptr=grads["table"], sums_ptr=sums, past_ptr=past, future_ptr=future)
    return _in_order(grads)


def _in_order(grads: dict[str, Tensor]) -> tuple[Tensor | None, ...]:
    return tuple([grads.get(name) for name in _LEARN])


def _must_be_deterministic() -> bool:
    """Whether PyTorch's switch for deterministic algorithms is on, and not in its warn-only mode."""
    return (
        torch.are_deterministic_algorithms_enabled()
        and not torch.is_deterministic_algorithms_warn_only_enabled()
    )


def _room_for_table(launch: Launch, plan: BackwardPlan, grads: dict[str, Tensor]) -> Tensor | None:
    """Allocate the gradient of the table, and the sums it is folded from; None if kernels add to it directly."""
    assert launch.table is not None
    if plan.table is None and not plan.own_tables:
        grads["table"] = torch.zeros_like(launch.table)
        return None
    grads["table"] = torch.empty_like(launch.table)
    make = torch.zeros if plan.own_tables else torch.empty
    return make(plan.table_sums, dtype=torch.float32, device=launch.q.device)


def _queries_backward(
    launch: Launch, plan: BackwardPlan, common: dict[str, Any], grads: dict[str, Tensor],
    lse: Tensor, grad_lse: Tensor | None, wanted: Wanted,
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    """Compute the gradients of q and of rows; return each query's sums for the table's two ends."""
    past = future = rows = None
    if plan.table_ends:
        past, future = lse.new_empty(lse.shape), lse.new_empty(lse.shape)
    if launch.row is not None and wanted.row:
        rows = _rows_of_every_sequence(launch.row, launch)
    plan.queries(
        **common, range_ptr=launch.ranges(plan.ranges_of_queries), grad_lse_ptr=grad_lse,
        grads=QueryGradients(grads["q"], rows, past, future),
    )  # fmt: skip
    if launch.row is not None and rows is not None:
        grads["row"] = rows.sum_to_size(launch.row.shape)
    return past, future


def _keys_backward(
    launch: Launch, plan: BackwardPlan, common: dict[str, Any], grads: dict[str, Tensor],
    into_table: Tensor | None, wanted: Wanted,
) -> None:  # fmt: skip
    """The gradients of k and v, of vectors and rows of keys, of slopes, and of a table between its ends.

    Of the table only where positions are data; otherwise `table_gradient` computes it.
    """
    batch, heads, k_len = launch.q.shape[0], launch.q.shape[1], launch.k.shape[2]
    vectors = rows = slope_shares = None
    if wanted.key:
        vectors = torch.empty(batch, heads, k_len, dtype=torch.float32, device=launch.q.device)
    if launch.key_row is not None and wanted.key_row:
        rows = _rows_of_every_sequence(launch.key_row, launch)
    if wanted.slopes:
        slope_shares = torch.empty(
            batch, heads, plan.key_tiles, dtype=torch.float32, device=launch.q.device
        )
    plan.keys(
        **common, range_ptr=launch.ranges(plan.ranges_of_keys),
        grads=KeyGradients(grads["k"], grads["v"], vectors, rows, into_table, slope_shares),
    )  # fmt: skip
    # Sequences and heads may share one vector, and sequences may share rows.
    if launch.key is not None and vectors is not None:
        grads["key"] = vectors.sum_to_size(launch.key.shape)
    if launch.key_row is not None and rows is not None:
        grads["key_row"] = rows.sum_to_size(launch.key_row.shape)
    if slope_shares is not None:
        grads["slopes"] = slope_shares.sum(dim=(0, 2))


def _rows_of_every_sequence(rows: Tensor, launch: Launch) -> Tensor:
    """Zeros for the gradient of rows, for every sequence, even if all sequences share the rows."""
    return rows.new_zeros(launch.q.shape[0], *rows.shape[1:])


def _backward_of_tensors(
    grad: Tensor, grad_lse: Tensor | None, out: Tensor, lse: Tensor, launch: Launch, wanted: Wanted
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`backward` with an empty tensor for each gradient that is not wanted, because operators cannot return None."""
    found = backward(grad, grad_lse, out, lse, launch, wanted)
    q, k, v, *rest = [out.new_empty(0, dtype=torch.float32) if x is None else x for x in found]
    slopes, table, key, row, key_row = rest
    return q, k, v, slopes, table, key, row, key_row


def _fake_backward(grad, grad_lse, out, lse, q, k, v, slopes, table, key, row, key_row, *rest):
    wanted = rest[-len(Wanted._fields) :]
    biases = [
        q.new_empty(0, dtype=torch.float32) if tensor is None or not want else torch.empty_like(
            tensor, memory_format=torch.contiguous_format
        )
        for tensor, want in zip((slopes, table, key, row, key_row), wanted, strict=True)
    ]  # fmt: skip
    return *(empty_as(x, x.shape[-1]) for x in (q, k, v)), *biases


def _setup_context(ctx, inputs, output):
    tensors, settings = inputs[:_TENSORS], inputs[_TENSORS:]
    ctx.save_for_backward(*tensors, *output)
    ctx.settings = settings
    ctx.set_materialize_grads(False)


def _pull_back(ctx, needs, run_backward, grad: Tensor | None, grad_lse: Tensor | None):
    *tensors, out, lse = ctx.saved_tensors
    if grad is None and grad_lse is None:
        return (None,) * _COUNT
    wanted = [bool(need) for need in needs[3 : len(_LEARN)]]
    grads = run_backward(
        torch.zeros_like(out) if grad is None else grad, grad_lse, out, lse,
        *tensors, *ctx.settings, *wanted,
    )  # fmt: skip
    biases = [g if want else None for g, want in zip(grads[3:], wanted, strict=True)]
    return *grads[:3], *biases, *(None,) * (_COUNT - len(_LEARN))


attention = Operator(
    "fused_attention", forward, _fake, learns=len(_LEARN), save=_setup_context, pull_back=_pull_back,
    backward=Backward(
        "fused_attention_backward", backward, _fake_backward, impl="fused", traced=_backward_of_tensors
    ),
)  # fmt: skip


@register_flop_formula(torch.ops.ordinate.fused_attention)
def _(q, k, v, *_, **__) -> int:
    """FLOPs, counted like PyTorch's own attention: two products, without regard to the mask."""
    batch, heads, q_len, head_dim = q
    return 2 * batch * heads * q_len * k[2] * (head_dim + v[3])


@register_flop_formula(torch.ops.ordinate.fused_attention_backward)
def _(grad, grad_lse, out, lse, q, k, v, *_, **__) -> int:
    """FLOPs: the recomputed logits, and the products for the gradients of q, k, v and the weights."""
    batch, heads, q_len, head_dim = q
    return 2 * batch * heads * q_len * k[2] * (3 * head_dim + 2 * v[3])
