"""The operators that multiply the features of a content-dependent bias with its table: launch, fake and autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...kernels import row_projection
from ...kernels.launch import Step
from ...operators import Backward, Operator
from .call import empty_as, rows_of_unit_stride, strides_of
from .plans import cached_plan
from .tiles import padded

_M = 64


def _numbers(features: Tensor, table: Tensor, factor: float) -> dict[str, Any]:
    """The arguments that all three kernels share."""
    rank, entries = features.shape[3], table.shape[1]
    return {
        "heads": features.shape[1], "tokens": features.shape[2], "entries": entries, "factor": factor,
        "RANK": rank, "M": _M, "N": min(64, padded(entries)), "R": min(64, padded(rank)),
        "num_warps": 4, "num_stages": 1,
        # For 16-bit features, three TF32 products are as exact as one in float32.
        "PRECISION": "ieee" if features.dtype == torch.float32 else "tf32x3",
    }  # fmt: skip


def _table_head(table: Tensor) -> int:
    return 0 if table.shape[0] == 1 else table.stride(0)


def forward(features: Tensor, table: Tensor, factor: float) -> Tensor:
    features, table = rows_of_unit_stride(features), table.contiguous()
    batch, heads, tokens, _ = features.shape
    rows = features.new_empty(batch, heads, tokens, table.shape[1], dtype=torch.float32)
    if rows.numel() == 0:
        return rows
    step: Step = cached_plan(
        ("rows", features.shape, features.stride(), features.dtype, features.device, table.shape, factor),
        lambda: Step(
            row_projection._project_kernel, (batch * heads, -(-tokens // _M)),
            {**_numbers(features, table, factor), "features_strides": strides_of(features),
             "table_head": _table_head(table)},
        ),
    )  # fmt: skip
    step(features_ptr=features, table_ptr=table, rows_ptr=rows)
    return rows


def _fake(features, table, factor):
    return features.new_empty(*features.shape[:3], table.shape[1], dtype=torch.float32)


def backward(
    grad: Tensor, features: Tensor, table: Tensor, factor: float, of_features: bool, of_table: bool
) -> tuple[Tensor, Tensor]:
    """Gradients of features and table; a gradient that is not wanted is an empty tensor."""
    grad, features, table = grad.contiguous(), rows_of_unit_stride(features), table.contiguous()
    batch, heads, tokens, rank = features.shape
    entries = table.shape[1]
    grad_features = empty_as(features, rank) if of_features else features.new_empty(0)
    grad_table = torch.empty_like(table) if of_table else table.new_empty(0)
    if grad.numel() == 0:
        return grad_features.zero_(), grad_table.zero_()
    key = (features.shape, features.stride(), features.dtype, features.device, table.shape, factor)
    numbers = _numbers(features, table, factor)
    if of_features:
        step: Step = cached_plan(
            ("features of rows", *key),
            lambda: Step(
                row_projection._features_gradient_kernel, (batch * heads, -(-tokens // _M)),
                {**numbers, "grad_strides": strides_of(grad_features), "table_head": _table_head(table)},
            ),
        )  # fmt: skip
        step(grad_rows_ptr=grad, table_ptr=table, grad_features_ptr=grad_features)
    if of_table:
        blocks = -(-entries // numbers["N"])
        # Enough programs to fill a device, but at least 256 tokens each, so that up to a rank of 256 their sums take
        # less memory than the rows.
        runs = max(1, min(-(-tokens // (4 * _M)), 1024 // (batch * heads * blocks)))
        run = -(-tokens // (runs * _M)) * _M
        sums = table.new_empty(batch, heads * runs, entries, rank)
        step = cached_plan(
            ("table of rows", *key),
            lambda: Step(
                row_projection._table_gradient_kernel,
                (batch * heads * runs, blocks, -(-rank // numbers["R"])),
                {**numbers, "features_strides": strides_of(features), "run": run, "runs": runs},
            ),
        )  # fmt: skip
        step(features_ptr=features, grad_rows_ptr=grad, sums_ptr=sums)
        shared = table.shape[0] == 1
        sums = sums.view(batch, heads, runs, entries, rank)
        torch.sum(sums, dim=(0, 1, 2) if shared else (0, 2), out=grad_table[0] if shared else grad_table)
    return grad_features, grad_table


def _fake_backward(grad, features, table, factor, of_features, of_table):
    empty_table = torch.empty_like(table, memory_format=torch.contiguous_format)
    return (
        empty_as(features, features.shape[3]) if of_features else features.new_empty(0),
        empty_table if of_table else table.new_empty(0),
    )


def _setup_context(ctx, inputs, output):
    features, table, factor = inputs
    ctx.save_for_backward(features, table)
    ctx.factor = factor


def _pull_back(ctx, needs, run_backward, grad: Tensor):
    wanted = [bool(need) for need in needs[:2]]
    grads = run_backward(grad, *ctx.saved_tensors, ctx.factor, *wanted)
    return *(one if want else None for one, want in zip(grads, wanted, strict=True)), None


#: ``factor · features · table`` for every distance, in float32.
projected = Operator(
    "row_projection", forward, _fake, learns=2, save=_setup_context, pull_back=_pull_back,
    backward=Backward("row_projection_backward", backward, _fake_backward, impl="fused"),
)  # fmt: skip
