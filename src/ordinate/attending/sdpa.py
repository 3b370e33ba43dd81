"""PyTorch's scaled_dot_product_attention, for calls that need no dense mask."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..numerics import compute_dtype
from ..operators import no_second_derivatives
from ..tracing import has_forward_gradients, is_traced, is_transformed, is_transformed_beyond_grad
from .call import Call, in_words


def unsupported_reasons(call: Call) -> list[str]:
    mask, reasons = call.mask, []
    if call.bias is not None:
        kinds = " + ".join([type(part).__name__ for part in call.parts])
        reasons.append(f"a bias ({kinds}) would have to be a dense mask")
    if has_forward_gradients():
        reasons.append("its kernels have no forward-mode gradients")
    elif is_transformed_beyond_grad():
        reasons.append("its kernels have no second derivatives and no rules for torch.func.vmap")
    if call.softcap is not None:
        reasons.append("softcap is not among its arguments")
    if call.return_lse:
        reasons.append("return_lse is not among its results")
    if mask.window is not None:
        reasons.append("window would have to be a dense mask")
    if mask.q_index is not None or mask.q_segments is not None:
        reasons.append("segments would have to be a dense mask")
    # PyTorch's is_causal aligns the first query with the first key, ours the last query with the last key: the same for
    # equal lengths only. A single query, aligned with the last key, sees every key.
    if mask.causal and not (mask.q_len in (1, mask.k_len) and mask.k_len > 0):
        reasons.append(
            f"a causal mask with {in_words(mask.q_len)} queries and {in_words(mask.k_len)} keys "
            "would have to be dense"
        )
    if mask.causal and call.scale <= 0:
        reasons.append(
            f"its causal kernels give NaN for a scale that is not positive, {in_words(call.scale)}"
        )
    if mask.causal and mask.key_padding is not None:
        reasons.append("key_padding_mask along with a causal mask would have to be dense")
    return reasons


def run(call: Call) -> tuple[Tensor, None]:
    mask = call.mask
    # if statements, because under torch.compile lengths are symbolic, but the flags must be plain bools.
    is_causal, enable_gqa = mask.causal, False
    if mask.q_len == 1:
        is_causal = False
    if call.groups > 1:
        enable_gqa = True
    q, k, v = call.q, call.k, call.v
    if q.device.type == "cpu":
        # PyTorch's CPU kernels multiply in low precision; in float32 the result is rounded once.
        q, k, v = (x.to(compute_dtype(x.dtype)) for x in (q, k, v))

    def attend(k: Tensor, attn_mask: Tensor | None) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=attn_mask, dropout_p=call.dropout_p, is_causal=is_causal,
            scale=call.scale, enable_gqa=enable_gqa,
        )  # fmt: skip

    if mask.key_padding is None:
        out = attend(k, None)
    else:
        hidden, shown = mask.key_padding[:, None, :, None], ~mask.key_padding[:, None, None, :]
        # The kernels hide a key by adding -inf to its logits, which gives NaN if a logit is infinite or NaN. On the CPU
        # we check the result for NaN, which is quicker than copying the keys each time.
        checked = q.device.type == "cpu" and not is_traced(q, k, v)
        out = attend(k, shown) if checked else attend(k.masked_fill(hidden, 0.0), shown)
        if checked and not math.isfinite(out.detach().sum().item()):
            out = attend(k.masked_fill(hidden, 0.0), shown)
    if not (torch.compiler.is_compiling() or is_transformed() or out.grad_fn is None):
        _refuse_second_derivatives(out.grad_fn)
    return out.to(call.q.dtype), None


def _refuse_second_derivatives(node: torch.autograd.graph.Node) -> None:
    """Refuse with a message that names an implementation with second derivatives; PyTorch's error names none."""
    if node.name().startswith("ScaledDotProduct"):
        node.register_hook(_differentiable_once)


class _DifferentiableOnce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad: Tensor):
        raise no_second_derivatives("sdpa")


def _differentiable_once(grads: tuple[Tensor | None, ...], _) -> tuple[Tensor | None, ...] | None:
    if not torch.is_grad_enabled():  # without create_graph
        return None
    return tuple([None if x is None else _DifferentiableOnce.apply(x) for x in grads])
