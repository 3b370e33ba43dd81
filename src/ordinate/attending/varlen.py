"""Attention over packed sequences of different lengths, without padding."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ..bias.types import Bias
from ..caches import cleared_by
from ..checks import (
    check_bool,
    check_device,
    check_instance,
    check_rank,
    refused,
    short,
)
from ..encoding import PositionEncoding
from ..places import Places, Positions, missing_of, resolve
from . import api
from .arguments import check_qkv, check_window
from .mask import Mask


def attention_varlen(
    q: Float[Tensor, "q_tokens heads head_dim"],
    k: Float[Tensor, "k_tokens kv_heads head_dim"],
    v: Float[Tensor, "k_tokens kv_heads v_dim"],
    cu_seqlens_q: Int[Tensor, " sequences_plus_1"],
    cu_seqlens_k: Int[Tensor, " sequences_plus_1"] | None = None,
    encoding: PositionEncoding | None = None,
    *,
    bias: Bias | None = None,
    causal: bool = False,
    q_positions: Int[Tensor, "..."] | None = None,
    k_positions: Int[Tensor, "..."] | None = None,
    lengths: Int[Tensor, " sequences"] | None = None,
    x: Float[Tensor, "tokens d_model"] | None = None,
    window: int | None = None,
    dropout_p: float = 0.0,
    softcap: float | None = None,
    scale: float | None = None,
    return_lse: bool = False,
    impl: api.Impl = "auto",
) -> (
    Float[Tensor, "q_tokens heads v_dim"]
    | tuple[Float[Tensor, "q_tokens heads v_dim"], Float[Tensor, "heads q_tokens"]]
):
    """`attention` for packed sequences: each sees only itself, aligned to the bottom right.

    Args:
        cu_seqlens_q: Where the queries of each sequence start, and the end of the last: ``[0, n0, n0 + n1, …]``.
        cu_seqlens_k: The same for keys. Default: ``cu_seqlens_q``.
        q_positions, k_positions: ``[tokens]``. Left out, each sequence's keys count from 0 and its
            queries are aligned to the end of its keys.
        lengths: One per sequence. Default: its largest position + 1.

    The other arguments are those of `attention`.

    Example:
        >>> q = k = v = torch.randn(7, 2, 8)
        >>> starts = torch.tensor([0, 3, 7])
        >>> ordinate.attention_varlen(q, k, v, starts, encoding=ordinate.RoPE(8), causal=True).shape
        torch.Size([7, 2, 8])
    """
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check_rank(name, tensor, "tokens, heads, head_dim")
    check_bool("causal", causal)
    window = None if window is None else check_window(window)
    # Where queries and keys are the same tokens, a distance within a sequence is the difference of two indices.
    level = cu_seqlens_k is None or cu_seqlens_k is cu_seqlens_q
    if cu_seqlens_k is None:
        cu_seqlens_k = cu_seqlens_q
    _check_starts("cu_seqlens_q", cu_seqlens_q, q)
    _check_starts("cu_seqlens_k", cu_seqlens_k, k)
    if cu_seqlens_k.shape != cu_seqlens_q.shape:
        raise refused(
            "cu_seqlens_k",
            "must describe the {count} sequences of cu_seqlens_q",
            len(cu_seqlens_k) - 1,
            count=len(cu_seqlens_q) - 1,
        )
    if (q_positions is None) != (k_positions is None) and not level:
        missing, given = missing_of(q_positions)
        raise refused(missing, "must be given along with {given} and cu_seqlens_k", "None", given=given)
    cu_seqlens_q, cu_seqlens_k = cu_seqlens_q.long(), cu_seqlens_k.long()
    q, k, v = (tensor.transpose(0, 1)[None] for tensor in (q, k, v))
    check_qkv(q, k, v)

    q_segments, q_index = _segments(cu_seqlens_q, q.shape[2])
    k_segments, k_index = (q_segments, q_index) if level else _segments(cu_seqlens_k, k.shape[2])
    mask = Mask(
        q.shape[2], k.shape[2], 0, causal, window,
        q_segments=q_segments[None], k_segments=k_segments[None],
    )  # fmt: skip
    if not level:
        # Bottom right: the last query of each sequence is aligned with its last key.
        q_index = q_index + (cu_seqlens_k.diff() - cu_seqlens_q.diff())[q_segments]
        mask = replace(mask, q_index=q_index[None], k_index=k_index[None])

    token_lengths = None
    places: Positions | None = q_positions
    if encoding is not None:
        check_instance("encoding", encoding, PositionEncoding, "must be a PositionEncoding")
        if q_positions is None and k_positions is None:
            # Only tokens of one sequence see each other, and their distance is the difference of their indices.
            places = Places.at(q_index, k_index, offset=0 if level else None)
        else:
            places = resolve(q, k, q_positions, k_positions, axes=encoding.axes)
        if encoding.length_dependent or lengths is not None:
            token_lengths = _token_lengths(
                lengths, places, q_segments, k_segments, len(cu_seqlens_q) - 1
            )
    elif lengths is not None:
        raise refused("lengths", "must be None without an encoding, which would read it")
    if x is not None:
        check_rank("x", x, "tokens, d_model")
    q, k, bias = api.apply_encoding(
        q, k, encoding, bias, places, k_positions if encoding is None else None, token_lengths,
        None if x is None else x[None], causal=causal,
    )  # fmt: skip
    call = api.make_call(
        q, k, v, encoding, bias, mask,
        dropout_p=dropout_p, softcap=softcap, scale=scale, return_lse=return_lse,
    )  # fmt: skip
    result = api.run(call, impl)
    if return_lse:
        return result[0][0].transpose(0, 1), result[1][0]
    return result[0].transpose(0, 1)


#: Validated starts on a GPU: tensor → (its version, token count).
_validated: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
cleared_by(_validated.clear)


def _check_starts(name: str, starts: Tensor, tokens: Tensor) -> None:
    check_rank(name, starts, "sequences + 1")
    if starts.is_floating_point():
        raise refused(name, "must be an integer tensor", starts.dtype, error=TypeError)
    check_device(name, starts, tokens.device)
    if torch.compiler.is_compiling():
        return
    cached = _reading_waits(starts) and not starts.is_inference()  # inference tensors have no version
    if cached and _validated.get(starts) == (starts._version, len(tokens)):
        return
    listed = starts.tolist()
    if len(listed) < 2 or listed[0] != 0 or listed[-1] != len(tokens) or sorted(listed) != listed:
        raise refused(name, "must rise from 0 to the {tokens} tokens", short(listed), tokens=len(tokens))
    if cached:
        _validated[starts] = (starts._version, len(tokens))


def _reading_waits(starts: Tensor) -> bool:
    """Whether reading the values waits for a device, so that the first layer should read them for all layers."""
    return starts.device.type != "cpu"


def _segments(starts: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """Each token's sequence, and its index within that sequence."""
    index = torch.arange(tokens, device=starts.device)
    segments = torch.searchsorted(starts[1:].contiguous(), index, right=True, out_int32=True)
    return segments, index - starts[segments]


def _token_lengths(
    lengths: Tensor | None, places: Places, q_segments: Tensor, k_segments: Tensor, sequences: int
) -> tuple[Tensor, Tensor]:
    """The length of each token's sequence, for queries and for keys."""
    if lengths is None:
        lengths = q_segments.new_zeros(sequences, dtype=torch.long)
        for positions, segments in ((places.queries, q_segments), (places.keys, k_segments)):
            flat = positions.flatten() if positions.dim() < 3 else positions.amax(0).flatten()
            lengths = lengths.scatter_reduce(0, segments.long(), flat + 1, "amax")
    else:
        check_rank("lengths", lengths, "sequences")
        if lengths.is_floating_point() or len(lengths) != sequences:
            raise refused(
                "lengths",
                "must be {sequences} integers, one a sequence",
                f"{lengths.dtype} {list(lengths.shape)}",
                sequences=sequences,
            )
    return lengths[q_segments][None], lengths[k_segments][None]
