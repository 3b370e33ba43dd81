"""The public attention: checks, positions, and the choice of an implementation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import ModuleType
from typing import Literal

from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..bias.types import Bias, RowBias, parts_of
from ..checks import (
    check_bool,
    check_choice,
    check_instance,
    check_number,
    refused,
)
from ..encoding import Lengths, PositionEncoding
from ..numerics import compute_dtype, without_autocast
from ..places import Places, Positions, check_lengths, locate, resolve
from . import chunked, reference, sdpa
from .arguments import build_mask, check_bias, check_qkv
from .call import Call
from .fused import terms as fused
from .mask import Mask

Impl = Literal["auto", "reference", "chunked", "sdpa", "fused"]

# In order of preference: "auto" takes the first one that supports the call.
_IMPLEMENTATIONS: dict[str, ModuleType] = {
    "fused": fused,
    "sdpa": sdpa,
    "chunked": chunked,
    "reference": reference,
}


def attention(
    q: Float[Tensor, "batch heads q_len head_dim"],
    k: Float[Tensor, "batch kv_heads k_len head_dim"],
    v: Float[Tensor, "batch kv_heads k_len v_dim"],
    encoding: PositionEncoding | None = None,
    *,
    bias: Bias | None = None,
    causal: bool = False,
    q_positions: Positions | None = None,
    k_positions: Int[Tensor, "..."] | None = None,
    lengths: Lengths | None = None,
    x: Float[Tensor, "batch seq d_model"] | None = None,
    q_segment_ids: Int[Tensor, "#batch q_len"] | None = None,
    k_segment_ids: Int[Tensor, "#batch k_len"] | None = None,
    key_padding_mask: Bool[Tensor, "#batch k_len"] | None = None,
    window: int | None = None,
    dropout_p: float = 0.0,
    softcap: float | None = None,
    scale: float | None = None,
    return_lse: bool = False,
    impl: Impl = "auto",
) -> (
    Float[Tensor, "batch heads q_len v_dim"]
    | tuple[Float[Tensor, "batch heads q_len v_dim"], Float[Tensor, "batch heads q_len"]]
):
    """Softmax attention with any position encoding.

    ``softmax(softcap(q·k · scale) + bias) · v``, computed in float32 (float64 for float64) and
    returned in the dtype of q. A query that sees no key gives zeros.

    Args:
        encoding: Rotates q and k and adds its bias; q and k come **unrotated**.
        bias: In place of an encoding, for keys that are rotated already (a cache).
        causal: Masks go by index, aligned to the bottom right: query i of Lq sees keys
            j <= i + Lk - Lq, whatever the positions.
        q_positions, k_positions: What the encoding sees, see `PositionEncoding`. Left out, keys count
            from 0 and queries are aligned to the end of the keys. Those that see each other are less than 2**31 apart.
        lengths: Sequence lengths, for scalings that depend on them.
        x: The layer's input, for encodings whose bias depends on it.
        q_segment_ids, k_segment_ids: Packed sequences: only pairs of equal ids see each other. With
            equal lengths, keys follow the queries.
        key_padding_mask: True at padding, as in ``torch.nn.MultiheadAttention``. No query sees padding, but v must be
            finite there, and k as well for gradients. Segment ids along with it must be less than 2**62 in size.
        window: See only ``0 <= i - j < window`` if causal, ``|i - j| < window`` if not.
        dropout_p: Probability of dropping an attention weight. Pass 0 outside of training.
        softcap: Bound the content logits to ±softcap by tanh, before the bias is added.
        scale: Default ``encoding.logit_factor / sqrt(head_dim)``.
        return_lse: Also return the logsumexp of each query's logits, ``-inf`` where it sees no key.
        impl: A named implementation runs, or is refused with every reason; ``"auto"`` chooses, and
            `explain` returns the choice and the reasons.

    Raises:
        ValueError, TypeError: An argument breaks a rule; the message names it, the rule and the value.
        NotImplementedError: The named ``impl`` cannot do this call; the message lists every reason.

    Example:
        >>> q, k, v = (torch.randn(1, heads, 16, 32) for heads in (8, 2, 2))
        >>> ordinate.attention(q, k, v, ordinate.RoPE(32), causal=True).shape
        torch.Size([1, 8, 16, 32])
    """
    call = _prepare(
        q, k, v, encoding, bias=bias, causal=causal, q_positions=q_positions,
        k_positions=k_positions, lengths=lengths, x=x, q_segment_ids=q_segment_ids,
        k_segment_ids=k_segment_ids, key_padding_mask=key_padding_mask, window=window,
        dropout_p=dropout_p, softcap=softcap, scale=scale, return_lse=return_lse,
    )  # fmt: skip
    return run(call, impl)


def run(call: Call, impl: str):
    """Choose an implementation for a prepared call and run it."""
    module = _choose(call, impl)
    with without_autocast(call.q.device):
        out, lse = module.run(call)
    if not call.return_lse:
        return out
    # Merging results sends NaN as the gradient of the logsumexp of a query without visible keys; k must not get it.
    return out, lse.masked_fill(lse == -math.inf, -math.inf) if lse.requires_grad else lse


@dataclass(frozen=True)
class Explanation:
    """Which implementation a call gets, and why not the others."""

    chosen: str | None
    reasons: dict[str, list[str]]

    def __str__(self) -> str:
        width = max(map(len, self.reasons))
        return "\n".join(
            f"{name:<{width}}  {'chosen' if name == self.chosen else answer}"
            for name, reasons in self.reasons.items()
            for answer in [f"no: {reason}" for reason in reasons] or ["would do, not preferred"]
        )

    __repr__ = __str__


def explain(*args, impl: Impl = "auto", **kwargs) -> Explanation:
    """What `attention` would do with the same arguments, without doing it.

    Example:
        >>> q = k = v = torch.randn(1, 8, 16, 32)
        >>> print(ordinate.explain(q, k, v, ordinate.ALiBi(8), causal=True))
        fused      no: ...
        sdpa       no: a bias (LinearBias) would have to be a dense mask
        chunked    chosen
        reference  would do, not preferred
    """
    check_choice("impl", impl, ("auto", *_IMPLEMENTATIONS))
    call = _prepare(*args, **kwargs)
    reasons = {name: module.unsupported_reasons(call) for name, module in _IMPLEMENTATIONS.items()}
    if impl == "auto":
        return Explanation(next(name for name in reasons if not reasons[name]), reasons)
    return Explanation(None if reasons[impl] else impl, reasons)


def _choose(call: Call, impl: str) -> ModuleType:
    check_choice("impl", impl, ("auto", *_IMPLEMENTATIONS))
    if impl == "auto":
        on_machine = fused.reason_against_machine(call.q.device) is None
        for module in _IMPLEMENTATIONS.values():
            if (on_machine or module is not fused) and not module.unsupported_reasons(call):
                return module
    reasons = _IMPLEMENTATIONS[impl].unsupported_reasons(call)
    if reasons:
        raise refused(
            "",
            "impl={impl} cannot do this call: {reasons}",
            error=NotImplementedError,
            impl=repr(impl),
            reasons="; ".join(reasons),
        )
    return _IMPLEMENTATIONS[impl]


def _prepare(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    encoding: PositionEncoding | None = None,
    *,
    bias: Bias | None = None,
    causal: bool = False,
    q_positions: Positions | None = None,
    k_positions: Tensor | None = None,
    lengths: Lengths | None = None,
    x: Tensor | None = None,
    q_segment_ids: Tensor | None = None,
    k_segment_ids: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    window: int | None = None,
    dropout_p: float = 0.0,
    softcap: float | None = None,
    scale: float | None = None,
    return_lse: bool = False,
) -> Call:
    """Check every argument, rotate, and describe the bias and the mask."""
    check_qkv(q, k, v)
    mask = build_mask(q, k, causal, window, q_segment_ids, k_segment_ids, key_padding_mask)
    q, k, bias = apply_encoding(
        q, k, encoding, bias, q_positions, k_positions, lengths, x, causal=causal
    )
    return make_call(
        q, k, v, encoding, bias, mask,
        dropout_p=dropout_p, softcap=softcap, scale=scale, return_lse=return_lse,
    )  # fmt: skip


def apply_encoding(
    q: Tensor,
    k: Tensor,
    encoding: PositionEncoding | None,
    bias: Bias | None,
    q_positions: Positions | None,
    k_positions: Tensor | None,
    lengths: Lengths | None,
    x: Tensor | None,
    *,
    causal: bool,
) -> tuple[Tensor, Tensor, Bias | None]:
    """q and k rotated, and the bias checked against them."""
    if encoding is not None:
        check_instance("encoding", encoding, PositionEncoding, "must be a PositionEncoding")
        if bias is not None:
            raise refused("bias", "must be None when an encoding is given, which brings its own")
        if lengths is not None:
            check_lengths(lengths, batch=q.shape[0])
        # `check_qkv` has checked what `resolve` would check of q and k.
        if isinstance(q_positions, Places):
            places = resolve(q, k, q_positions, k_positions, axes=encoding.axes)
        else:
            places = locate(q, k, q_positions, k_positions, axes=encoding.axes)
        bias = encoding.bias(q, k, places, x=x)
        q, k = encoding.rotate(q, k, places, lengths=lengths)
    else:
        unused = {"q_positions": q_positions, "k_positions": k_positions, "lengths": lengths, "x": x}
        for name, value in unused.items():
            if value is not None:
                raise refused(name, "must be None without an encoding, which would read it")
    if bias is not None:
        check_bias(bias, q, k, causal)
    return q, k, bias


def make_call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    encoding: PositionEncoding | None,
    bias: Bias | None,
    mask: Mask,
    *,
    dropout_p: float,
    softcap: float | None,
    scale: float | None,
    return_lse: bool,
) -> Call:
    check_bool("return_lse", return_lse)
    dropout_p = check_number("dropout_p", dropout_p, at_least=0)
    if dropout_p >= 1:
        raise refused("dropout_p", "must be less than 1", f"{dropout_p:g}")
    if softcap is not None:
        softcap = check_number("softcap", softcap, above=0)
    if scale is None:
        scale = (1.0 if encoding is None else encoding.logit_factor) / math.sqrt(q.shape[-1])
    else:
        scale = check_number("scale", scale)
    bias = None if bias is None else bias.computed_in(compute_dtype(q.dtype))
    parts = parts_of(bias)
    for part in parts:
        values = part.values if isinstance(part, RowBias) else None
        if values is not None and values.shape[-1] != v.shape[-1]:
            raise refused(
                "v",
                "must have the head_dim {size} of the bias's values",
                v.shape[-1],
                size=values.shape[-1],
            )
    return Call(q, k, v, bias, parts, mask, float(scale), softcap, float(dropout_p), return_lse)
