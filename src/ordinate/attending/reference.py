"""The specification of attention: dense, in float32 (float64 for float64), and easy to read."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..bias.types import RowBias
from ..numerics import compute_dtype
from .call import Call, Result, scaled_dense


def unsupported_reasons(call: Call) -> list[str]:
    """The reference supports every call."""
    return []


def run(call: Call) -> Result:
    dtype = compute_dtype(call.q.dtype)
    q = call.q.to(dtype)
    k = call.k.to(dtype).repeat_interleave(call.groups, dim=1)
    v = call.v.to(dtype).repeat_interleave(call.groups, dim=1)

    logits = q @ k.transpose(-1, -2) * call.scale
    if call.softcap is not None:
        logits = call.softcap * torch.tanh(logits / call.softcap)
    for part in call.parts:
        logits = logits + scaled_dense(part, call.scale, dtype)

    visible = call.mask.dense(q.device)
    sees_any = visible.any(dim=-1, keepdim=True)
    # A row that sees no key gets logits of 0 first, so that its gradients are not NaN.
    logits = logits.masked_fill(~visible & sees_any, -math.inf).masked_fill(~sees_any, 0.0)
    weights = torch.softmax(logits, dim=-1).masked_fill(~sees_any, 0.0)
    lse = torch.logsumexp(logits, dim=-1).masked_fill(~sees_any[..., 0], -math.inf)

    if call.dropout_p:
        weights = torch.nn.functional.dropout(weights, call.dropout_p)
    out = weights @ v
    for part in call.parts:
        if isinstance(part, RowBias) and part.values is not None:
            out = out + relative_values(part, weights, part.values.to(dtype))
    return out.to(call.q.dtype), lse


def relative_values(bias: RowBias, weights: Tensor, values: Tensor) -> Tensor:
    """``sum_j weight_ij · values[distance_ij]``, by first summing the weights of equal distances."""
    return weights_by_distance(bias, weights) @ values


def weights_by_distance(bias: RowBias, weights: Tensor) -> Tensor:
    rows = bias.rows()[:, None].expand_as(weights)
    by_distance = weights.new_zeros(*weights.shape[:-1], bias.table.shape[1])
    return by_distance.scatter_add(-1, rows, weights)
