"""Checks of the arguments of attention: q, k, v, the mask's arguments and the bias."""

from __future__ import annotations

import torch
from torch import Tensor

from ..bias.types import Bias, PairBias, parts_of
from ..checks import (
    check_bool,
    check_device,
    check_floating,
    check_instance,
    check_positive_int,
    check_rank,
    refused,
)
from ..text import Text
from .mask import Mask


def check_qkv(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check_rank(name, tensor, "batch, heads, seq, head_dim")
        if tensor is q or tensor.dtype != q.dtype:
            check_floating(name, tensor)
        if tensor.dtype != q.dtype:
            raise refused(
                name, "must have the dtype of q, {dtype}", tensor.dtype, error=TypeError, dtype=q.dtype
            )
        if tensor.device != q.device:
            raise refused(name, "must be on the device of q, {device}", tensor.device, device=q.device)
        if tensor.shape[0] != q.shape[0]:
            raise refused(name, "must have batch size {batch}", tensor.shape[0], batch=q.shape[0])
    heads, kv_heads = q.shape[1], k.shape[1]
    if 0 in (heads, q.shape[-1]):
        raise refused("q", "must have at least 1 head and head_dim 1", list(q.shape))
    if k.shape[-1] != q.shape[-1]:
        raise refused("k", "must have the head_dim of q, {size}", k.shape[-1], size=q.shape[-1])
    if v.shape[1:3] != k.shape[1:3]:
        raise refused(
            "v",
            "must have the heads and length of k, {sizes}",
            list(v.shape[1:3]),
            sizes=list(k.shape[1:3]),
        )
    if kv_heads == 0 or heads % kv_heads:
        raise refused(
            "heads of q", "must be a multiple of the kv_heads {kv_heads} of k", heads, kv_heads=kv_heads
        )


def build_mask(
    q: Tensor,
    k: Tensor,
    causal: bool,
    window: int | None,
    q_segment_ids: Tensor | None,
    k_segment_ids: Tensor | None,
    key_padding_mask: Tensor | None,
) -> Mask:
    batch, q_len, k_len = q.shape[0], q.shape[2], k.shape[2]
    check_bool("causal", causal)
    if window is not None:
        window = check_window(window)
    if k_segment_ids is not None and q_segment_ids is None:
        raise refused("q_segment_ids", "must be given along with k_segment_ids", "None")
    if q_segment_ids is not None and k_segment_ids is None:
        if q_len != k_len:
            raise refused(
                "k_segment_ids",
                "must be given when lengths differ",
                Text("{queries} queries and {keys} keys", queries=q_len, keys=k_len),
            )
        k_segment_ids = q_segment_ids
    if q_segment_ids is not None and k_segment_ids is not None:
        q_segment_ids = _per_token("q_segment_ids", q_segment_ids, batch, q_len, q.device)
        k_segment_ids = _per_token("k_segment_ids", k_segment_ids, batch, k_len, q.device)
    if key_padding_mask is not None:
        key_padding_mask = as_padding(key_padding_mask, batch, k_len, q.device)
    return Mask(
        q_len, k_len, k_len - q_len, causal, window,
        q_segments=q_segment_ids, k_segments=k_segment_ids, key_padding=key_padding_mask,
    )  # fmt: skip


def check_window(window: object) -> int:
    """Check a window and clamp it to 32 bits, which is longer than any sequence."""
    return min(check_positive_int("window", window), 2**31 - 1)


def as_padding(key_padding_mask: Tensor, batch: int, k_len: int, device: torch.device) -> Tensor:
    """Check a padding mask, which callers easily invert, and bring it to ``[batch or 1, k_len]``."""
    padding = _per_token("key_padding_mask", key_padding_mask, batch, k_len, device)
    if padding.dtype != torch.bool:
        raise refused(
            "key_padding_mask",
            "must be bool with True at padding (for a Hugging Face attention_mask: attention_mask == 0)",
            padding.dtype,
            error=TypeError,
        )
    return padding


def _per_token(name: str, tensor: Tensor, batch: int, seq: int, device: torch.device) -> Tensor:
    check_instance(name, tensor, Tensor, "must be a tensor")
    if tensor.is_floating_point() or tensor.is_complex():
        raise refused(name, "must be bool or integers", tensor.dtype, error=TypeError)
    rows = tensor[None] if tensor.dim() == 1 else tensor
    if rows.dim() != 2 or rows.shape[1] != seq or rows.shape[0] not in (1, batch):
        raise refused(
            name, "must be [{seq}] or [{batch}, {seq}]", list(tensor.shape), batch=batch, seq=seq
        )
    check_device(name, rows, device)
    return rows


_EXCHANGED = (
    "; q {q} looks like [batch, seq, heads, head_dim], and [batch, heads, seq, head_dim] "
    "is asked for: q.transpose(1, 2)"
)


def _advice(part: Bias, q: Tensor) -> str:
    """A hint for the error message: q with as many tokens as the bias has heads is probably transposed."""
    return _EXCHANGED if part.heads == q.shape[2] else ""


def check_bias(bias: Bias, q: Tensor, k: Tensor, causal: bool) -> None:
    rule = "must be one of ordinate's bias types (a dense matrix is not)"
    check_instance("bias", bias, Bias, rule)
    # A single query is aligned with the last key and sees every key, whether causal or not.
    if bias.causal_only and not causal and q.shape[2] > 1:
        raise refused(
            "causal",
            "must be True with this bias, which has no rule for keys of the future "
            "(for attention in both directions: ALiBi(symmetric=True), T5Bias(bidirectional=True))",
            False,
        )
    for part in parts_of(bias):
        batch, q_len, k_len = part.shape
        expected = [q.shape[0], q.shape[2], k.shape[2]]
        if batch not in (1, expected[0]) or q_len not in (None, expected[1]) or k_len != expected[2]:
            raise refused(
                "bias",
                "must be made for batch, queries and keys {sizes}",
                [batch, q_len, k_len],
                advice=_advice(part, q),
                sizes=expected,
                q=list(q.shape),
            )
        if part.heads != q.shape[1]:
            rule = "must have the {heads} heads of q"
            advice = _advice(part, q)
            raise refused("bias", rule, part.heads, advice=advice, heads=q.shape[1], q=list(q.shape))
        if isinstance(part, PairBias) and part.places.offset is None:
            part.places.check_distances()
        for tensor in part.tensors():
            if tensor.device != q.device:
                raise refused(
                    "bias", "must be on the device of q, {device}", tensor.device, device=q.device
                )
