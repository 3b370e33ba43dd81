"""Attention a block of queries at a time: any device, any bias, memory linear in the length.

A block of queries is multiplied with all keys that it can see, so each row of logits is complete and the softmax
needs no rescaling. No logits are saved: the backward pass recomputes them and passes their
gradient to ``bias.pullback``. The computation is a custom operator, opaque to `torch.compile`, so the number of
blocks may depend on the length without a recompile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..bias.base import DiagonalBias, rebuilt_parts
from ..bias.types import Bias, LinearBias, RowBias
from ..numerics import compute_dtype, without_autocast
from ..operators import Backward, Operator
from ..tracing import has_forward_gradients, is_transformed
from . import cpu_block, diagonal
from .call import Call, Result
from .reference import relative_values, weights_by_distance
from .work import Work


def unsupported_reasons(call: Call) -> list[str]:
    reasons = []
    if has_forward_gradients():
        reasons.append("it has no forward-mode gradients")
    elif is_transformed():
        reasons.append("its operator has no rules for torch.func")
    for part in call.parts:
        for method in ("block", "pullback"):
            if getattr(type(part), method) is getattr(Bias, method):
                reasons.append(f"{type(part).__name__} does not define {method}")
    return reasons


def run(call: Call) -> Result:
    mask = call.mask
    seed = None
    if call.dropout_p:
        seed = torch.randint(2**62, (), dtype=torch.int64, device="cpu")
    out, lse = _attention(
        call.q, call.k, call.v, *(([], [], "") if call.bias is None else call.bias.flattened()),
        [mask.q_index, mask.k_index, mask.q_segments, mask.k_segments, mask.key_padding],
        mask.causal, mask.window, mask.offset, call.scale, call.softcap, call.dropout_p, seed,
    )  # fmt: skip
    return out, lse


def _forward(work: Work) -> tuple[Tensor, Tensor]:
    q, k, v = work.q, work.k, work.v
    out = q.new_zeros(*q.shape[:3], v.shape[-1])
    lse = q.new_full(q.shape[:3], -math.inf, dtype=work.dtype)
    with without_autocast(q.device):
        if cpu_block.fits(work):
            wide_k, wide_v = cpu_block.dense_rows(k), cpu_block.dense_rows(v)
            for rows, seen in work.blocks():
                cpu_block.attend(work, wide_k, wide_v, rows, seen, out, lse)
            # If adding -inf gave NaN instead of hiding a logit, the logsumexp of its row is NaN as well.
            if math.isfinite(lse.sum().item()) or work.bounded:
                return out, lse
        keys, values = k.to(work.dtype), v.to(work.dtype)
        for rows, seen in work.blocks():
            _attend(work, rows, seen, keys, values, out, lse)
    return out, lse


def _attend(
    work: Work, q: slice, k: slice, keys: Tensor, values: Tensor, out: Tensor, lse: Tensor
) -> None:
    """Write the output and logsumexp of one block."""
    logits, visible, _ = work.logits(q, k, keys)
    lse[:, :, q] = torch.logsumexp(logits, dim=-1)
    level = _finite(lse[:, :, q])
    if not work.bounded:  # a query whose visible logits are all -inf gives NaN, as in the reference
        level = lse[:, :, q].masked_fill(~visible.any(dim=-1), 0.0)
    weights = logits.sub_(level[..., None]).exp_()
    factors = work.dropout(q, weights.shape, weights.device)
    if factors is not None:
        weights = weights * factors
    block = work.unfold(work.fold(weights) @ values[:, :, k])
    for part in work.parts:
        if isinstance(part, RowBias) and part.values is not None:
            cut = part.block(q, k)
            assert isinstance(cut, RowBias)
            block = block + relative_values(cut, weights, part.values.to(work.dtype))
    out[:, :, q] = block.to(out.dtype)


def _finite(lse: Tensor) -> Tensor:
    """Replace -inf, the logsumexp of rows that see no key, by 0: subtracting 0 gives these rows weights of 0."""
    return lse.masked_fill(lse == -math.inf, 0.0)


def _fake(q, k, v, *_):
    out = q.new_empty(*q.shape[:3], v.shape[-1])
    return out, q.new_empty(q.shape[:3], dtype=compute_dtype(q.dtype))


@dataclass(eq=False)
class _Gradients:
    """The gradient of the output, and the gradients that blocks add to.

    Attributes:
        shared: The softmax's term: subtracted from the gradients of all weights of a query.
        of_bias: One total for each tensor of the bias; None if the bias needs no gradient.
    """

    grad: Tensor
    shared: Tensor
    of_q: Tensor
    of_k: Tensor
    of_v: Tensor
    of_bias: list[Tensor] | None


def _backward(
    grad: Tensor,
    grad_lse: Tensor | None,
    out: Tensor,
    lse: Tensor,
    work: Work,
    bias_needs_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    q, k, v, dtype = work.q, work.k, work.v, work.dtype
    work.lse = lse
    with without_autocast(q.device):
        shared = (grad.to(dtype) * out.to(dtype)).sum(-1)
        if grad_lse is not None:
            shared = shared - grad_lse
        # Under a linear bias, far weights are subnormal. They slow PyTorch's kernel down; `diagonal` skips them.
        by_kernel = not bias_needs_grad and grad_lse is None and cpu_block.fits(work) and work.bounded
        of_distance = True
        for part in work.parts:
            by_kernel = by_kernel and not isinstance(part, LinearBias)
            of_distance = of_distance and isinstance(part, DiagonalBias)
        if not by_kernel and of_distance and work.diagonals is not None and work.bounded:
            *grads, shares = diagonal.pull_back(
                grad, _finite(lse), shared, q, k, v, work.diagonals, work.mask, work.scale
            )
            floats = [share.to(t.dtype) for share, t in zip(shares, work.bias, strict=True)
                      if share is not None]  # fmt: skip
            grad_q, grad_k, grad_v = grads
            return _laid_out_as(q, grad_q), _laid_out_as(k, grad_k), _laid_out_as(v, grad_v), floats
        # The sum over blocks for each tensor of the bias: at first zeros of the wide dtype; an integer tensor as it is.
        of_bias = [
            torch.zeros_like(t, dtype=compute_dtype(t.dtype)) if t.is_floating_point() else t
            for t in work.bias
        ]
        grad_q, grad_k, grad_v = (torch.zeros_like(x, dtype=dtype) for x in (q, k, v))
        gathered = _Gradients(grad, shared, grad_q, grad_k, grad_v, of_bias if bias_needs_grad else None)
        keys, values = (cpu_block.dense_rows(x) if by_kernel else x.to(dtype) for x in (k, v))
        for rows, seen in work.blocks():
            if by_kernel:
                cpu_block.pull_back(work, keys, values, rows, seen, grad, out, (grad_q, grad_k, grad_v))
            else:
                _pull_back(work, rows, seen, keys, values, gathered)
    returned = [total.to(t.dtype) for total, t in zip(of_bias, work.bias, strict=True)
                if t.is_floating_point()]  # fmt: skip
    return grad_q.to(q.dtype), grad_k.to(k.dtype), grad_v.to(v.dtype), returned


def _laid_out_as(x: Tensor, grad: Tensor) -> Tensor:
    """A gradient with the dtype and strides of its tensor, as the fake operator returns it under `torch.compile`."""
    promised = torch.empty_like(x)
    return grad.to(x.dtype) if grad.stride() == promised.stride() else promised.copy_(grad)


def _pull_back(
    work: Work, q: slice, k: slice, keys: Tensor, values: Tensor, gathered: _Gradients
) -> None:
    """Add the contribution of one block to every gradient."""
    assert work.lse is not None
    logits, visible, capped = work.logits(q, k, keys)
    # If products are unbounded, a logsumexp computed in another order may be far from the largest logits.
    level = work.lse[:, :, q] if work.bounded else torch.logsumexp(logits, dim=-1)
    weights = logits.sub_(_finite(level)[..., None]).exp_()
    grad_rows = gathered.grad[:, :, q].to(work.dtype)
    factors = work.dropout(q, weights.shape, weights.device)

    grad_weights = work.unfold(work.fold(grad_rows) @ values[:, :, k].transpose(-1, -2))
    dropped = weights if factors is None else weights * factors
    last = -1  # the index of a part's last tensor among the tensors of all parts
    for part in work.parts:
        last += len(part.tensors())
        if isinstance(part, RowBias) and part.values is not None:
            cut, table = part.block(q, k), part.values.to(work.dtype)
            assert isinstance(cut, RowBias)
            by_distance = grad_rows @ table.transpose(-1, -2)
            grad_weights += by_distance.gather(-1, cut.rows()[:, None].expand_as(grad_weights))
            if gathered.of_bias is not None:
                summed = torch.einsum("bhqn,bhqd->hnd", weights_by_distance(cut, dropped), grad_rows)
                gathered.of_bias[last] += summed.sum(dim=0, keepdim=True) if len(table) == 1 else summed
    gathered.of_v[:, :, k] += work.fold(dropped).transpose(-1, -2) @ work.fold(grad_rows)
    if factors is not None:
        grad_weights *= factors
    grad_logits = grad_weights.sub_(gathered.shared[:, :, q, None]).mul_(weights)
    if not work.bounded:
        grad_logits.masked_fill_(~visible, 0.0)

    if gathered.of_bias is not None:
        _gather_bias_grads(work, q, k, grad_logits, gathered.of_bias)
    if capped is not None:
        grad_logits = grad_logits * (1 - capped * capped)
    folded = work.fold(grad_logits)
    gathered.of_q[:, :, q] = work.unfold(folded @ keys[:, :, k]).mul_(work.scale)
    rows = work.fold(work.q[:, :, q].to(work.dtype))
    gathered.of_k[:, :, k] += (folded.transpose(-1, -2) @ rows).mul_(work.scale)


def _gather_bias_grads(
    work: Work, q: slice, k: slice, grad_logits: Tensor, bias_grads: list[Tensor]
) -> None:
    # A bias whose tensors are the gradients: its block holds views of the sliced tensors, and the others whole.
    totals = rebuilt_parts(bias_grads, work.bias_integers, work.bias_spec)
    for part, total in zip(work.parts, totals, strict=True):
        scaled = grad_logits * work.scale if part.scaled else grad_logits
        shares = part.block(q, k).pullback(scaled)
        for into, share in zip(total.block(q, k).tensors(), shares, strict=True):
            if share is not None:
                into += share


def _fake_backward(grad, grad_lse, out, lse, q, k, v, bias, *_):
    floats = [torch.empty_like(t) for t in bias if t.is_floating_point()]
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), floats


def _setup_context(ctx, inputs, output):
    q, k, v, bias, bias_integers, bias_spec, mask, *settings, seed = inputs
    out, lse = output
    ctx.save_for_backward(q, k, v, out, lse, seed, *mask, *bias)
    ctx.bias_integers, ctx.bias_spec, ctx.settings = bias_integers, bias_spec, settings
    ctx.set_materialize_grads(False)


def _pull_back_call(ctx, needs, run_backward, grad, grad_lse):
    q, k, v, out, lse, seed, *rest = ctx.saved_tensors
    mask, bias = rest[:5], rest[5:]
    # PyTorch takes an empty list for a list of tensors, whose gradient must be a list too.
    nothing: tuple = (None if ctx.bias_integers else [], *(None,) * 8)
    if grad is None and grad_lse is None:
        return None, None, None, [None] * len(bias), *nothing, None
    bias_needs_grad = any(needs[3]) if isinstance(needs[3], (list, tuple)) else bool(needs[3])
    grad_q, grad_k, grad_v, floats = run_backward(
        torch.zeros_like(out) if grad is None else grad,
        grad_lse, out, lse, q, k, v, bias, ctx.bias_integers, ctx.bias_spec, mask, *ctx.settings, seed,
        bias_needs_grad,
    )  # fmt: skip
    supply = iter(floats)
    bias_grads = [next(supply) if bias_needs_grad and t.is_floating_point() else None for t in bias]
    return grad_q, grad_k, grad_v, bias_grads, *nothing, None


_attention = Operator(
    "chunked", _forward, _fake, learns=4, save=_setup_context, pull_back=_pull_back_call,
    backward=Backward("chunked_backward", _backward, _fake_backward, impl="chunked"),
)  # fmt: skip
