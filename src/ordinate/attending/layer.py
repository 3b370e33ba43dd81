"""A multi-head attention layer around any encoding, with grouped queries and a cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..checks import (
    check_bool,
    check_choice,
    check_features,
    check_instance,
    check_number,
    check_positive_int,
    check_size,
    refused,
)
from ..encoding import PositionEncoding
from ..memory import check_room
from ..places import Places, as_positions
from ..positions import sequential
from ..text import Text
from .api import Impl, attention
from .arguments import as_padding


@dataclass(eq=False)
class KVCache:
    """A layer's cache of past tokens: keys, values, positions and padding.

    Start with an empty cache and pass it to every call; each call appends its tokens. Keys are cached
    rotated, but unrotated where the rotation of old keys changes as the sequence grows (`length_dependent`) or
    the bias reads keys (`reads_keys`). Inputs are cached where the bias reads them (`reads_input`), and
    positions where the caller gave some: without, tokens are in order.
    """

    k: Float[Tensor, "batch kv_heads seen head_dim"] | None = None
    v: Float[Tensor, "batch kv_heads seen head_dim"] | None = None
    positions: Int[Tensor, "..."] | None = None
    padding: Bool[Tensor, "batch seen"] | None = None
    x: Float[Tensor, "batch seen d_model"] | None = None

    def __len__(self) -> int:
        return 0 if self.k is None else self.k.shape[2]

    def extended(
        self, k: Tensor, v: Tensor, new: Places, padding: Tensor | None, x: Tensor | None
    ) -> KVCache:
        """A new cache with these tokens appended; this cache does not change."""
        seen = len(self)
        whole_padding = None
        if self.padding is not None or padding is not None:
            whole_padding = torch.cat(
                [
                    torch.zeros(1, length, dtype=torch.bool, device=k.device).expand(k.shape[0], -1)
                    if part is None
                    else part.expand(k.shape[0], -1)
                    for part, length in ((self.padding, seen), (padding, new.q_len))
                ],
                dim=1,
            )
        in_order = self.positions is None and new.is_in_order and seen == new.start
        positions = None if in_order else new.queries
        if self.k is None or self.v is None:
            return KVCache(k, v, positions, whole_padding, x)
        if positions is not None:
            past = sequential(seen, device=k.device)[None] if self.positions is None else self.positions
            positions = _join_positions(past, positions)
        return KVCache(
            torch.cat((self.k, k), dim=2),
            torch.cat((self.v, v), dim=2),
            positions,
            whole_padding,
            None if x is None or self.x is None else torch.cat((self.x, x), dim=1),
        )

    def seen_from(self, new: Places) -> Places:
        """Places with the last tokens as queries and all tokens as keys."""
        if self.positions is None:
            return Places.in_order(new.q_len, len(self), device=new.device)
        return Places.at(new.queries, self.positions)

    def become(self, other: KVCache) -> None:
        """Take the contents of another cache."""
        self.__dict__.update(vars(other))


def _join_positions(old: Tensor, new: Tensor) -> Tensor:
    """Concatenate positions, each of which may be broadcast over rows or axes."""
    if old.dim() != new.dim():
        axes = max(old, new, key=Tensor.dim).shape[0]
        old, new = (p if p.dim() == 3 else p.expand(axes, *p.shape) for p in (old, new))
    rows = max(old.shape[-2], new.shape[-2])
    old, new = (p.expand(*p.shape[:-2], rows, p.shape[-1]) for p in (old, new))
    return torch.cat((old, new), dim=-1)


class MultiHeadAttention(nn.Module):
    """Self-attention with any position encoding.

    The layer calls the encoding's `rotate` and `bias`; call its `embed` before the first layer.

    Args:
        num_kv_heads: Fewer key and value heads than query heads (grouped-query attention).
        encoding: Any `PositionEncoding`; default none. Share one instance among layers or give each
            its own, as the encoding's paper does.
        head_dim: Default ``d_model / num_heads``.
        causal: Whether a token sees only itself and those before it.
        scale: Softmax scale; default ``encoding.logit_factor / sqrt(head_dim)``. T5 has 1.0.

    Example:
        >>> layer = MultiHeadAttention(64, 8, num_kv_heads=2, encoding=ordinate.RoPE(8))
        >>> x, cache = torch.randn(1, 5, 64), KVCache()
        >>> steps = [layer(x[:, i : i + 1], cache=cache) for i in range(5)]
        >>> torch.testing.assert_close(torch.cat(steps, dim=1), layer(x))
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        encoding: PositionEncoding | None = None,
        *,
        head_dim: int | None = None,
        causal: bool = True,
        window: int | None = None,
        dropout_p: float = 0.0,
        softcap: float | None = None,
        scale: float | None = None,
        bias: bool = False,
        impl: Impl = "auto",
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        d_model = check_size("d_model", d_model)
        num_heads = check_size("num_heads", num_heads)
        num_kv_heads = check_size("num_kv_heads", num_kv_heads)
        if num_heads % num_kv_heads:
            raise refused(
                "num_heads",
                "must be a multiple of {divisor} {count}",
                num_heads,
                divisor="num_kv_heads",
                count=num_kv_heads,
            )
        if encoding is not None:
            check_instance("encoding", encoding, PositionEncoding, "must be a PositionEncoding")
        check_bool("causal", causal)
        if head_dim is not None:
            head_dim = check_size("head_dim", head_dim)
        else:
            if d_model % num_heads:
                raise refused(
                    "d_model",
                    "must be a multiple of {divisor} {count}",
                    d_model,
                    divisor="num_heads",
                    count=num_heads,
                )
            head_dim = d_model // num_heads
        if window is not None:
            window = check_positive_int("window", window)
        dropout_p = check_number("dropout_p", dropout_p, at_least=0)
        softcap, scale = (
            None if value is None else check_number(name, value)
            for name, value in (("softcap", softcap), ("scale", scale))
        )  # fmt: skip
        check_choice("impl", impl, get_args(Impl))
        self.d_model, self.num_heads, self.num_kv_heads = d_model, num_heads, num_kv_heads
        self.head_dim, self.causal, self.window = head_dim, causal, window
        self.dropout_p, self.softcap, self.scale, self.impl = dropout_p, softcap, scale, impl
        self.encoding = PositionEncoding() if encoding is None else encoding
        check_room("d_model", d_model, 2 * (num_heads + num_kv_heads) * head_dim)
        self.q_proj = nn.Linear(d_model, num_heads * head_dim, bias=bias)
        self.k_proj = nn.Linear(d_model, num_kv_heads * head_dim, bias=bias)
        self.v_proj = nn.Linear(d_model, num_kv_heads * head_dim, bias=bias)
        self.o_proj = nn.Linear(num_heads * head_dim, d_model, bias=bias)

    def forward(
        self,
        x: Float[Tensor, "batch seq d_model"],
        positions: Int[Tensor, "..."] | None = None,
        *,
        cache: KVCache | None = None,
        lengths: int | Int[Tensor, "..."] | None = None,
        segment_ids: Int[Tensor, "#batch seq"] | None = None,
        key_padding_mask: Bool[Tensor, "batch seq"] | None = None,
    ) -> Float[Tensor, "batch seq d_model"]:
        """Attend from every token of ``x`` to ``x`` and, with a cache, to all cached tokens.

        Args:
            positions: Of the tokens in ``x``. Default: they continue after the cache.
            lengths: See `PositionEncoding.rotate`.
            segment_ids: Packed sequences; not together with a cache.
            key_padding_mask: True at padding tokens of ``x``, which no query sees.
        """
        check_features("x", x, "batch, seq, d_model", self.d_model)
        batch, seq, _ = x.shape
        if cache is not None and segment_ids is not None:
            raise refused("segment_ids", "must be None with a cache, which holds one sequence a row")
        q, k, v = (
            projection(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        if cache is not None:
            self._check_cache(cache, k)
        new = self._new_places(q, positions, cache)
        if key_padding_mask is not None:
            key_padding_mask = as_padding(key_padding_mask, batch, seq, x.device)
        options: dict[str, Any] = {
            "causal": self.causal,
            "window": self.window,
            "softcap": self.softcap,
            "dropout_p": self.dropout_p if self.training else 0.0,
            "impl": self.impl,
        }
        if cache is None:
            out = attention(
                q, k, v, self.encoding, q_positions=new, lengths=lengths, scale=self.scale,
                q_segment_ids=segment_ids, key_padding_mask=key_padding_mask, x=x, **options,
            )  # fmt: skip
        else:
            out = self._attend_cached(q, k, v, x, new, cache, lengths, key_padding_mask, options)
        assert isinstance(out, Tensor)
        return self.o_proj(out.transpose(1, 2).flatten(-2))

    def _new_places(self, q: Tensor, positions: Tensor | None, cache: KVCache | None) -> Places:
        """The places of the tokens of a call; positions left out continue after the cache."""
        seq = q.shape[2]
        if positions is None:
            start = 0 if cache is None else len(cache)
            return Places.in_order(seq, seq, start=start, device=q.device)
        axes, batch = self.encoding.axes, q.shape[0]
        at = as_positions("positions", positions, batch=batch, seq=seq, device=q.device, axes=axes)
        return Places(seq, seq, q.device, (at, at))

    def _attend_cached(self, q, k, v, x, new, cache, lengths, key_padding_mask, options):
        kept_x = x if self.encoding.reads_input else None
        if self.encoding.length_dependent or self.encoding.reads_keys:
            grown = cache.extended(k, v, new, key_padding_mask, kept_x)
            out = attention(
                q, grown.k, grown.v, self.encoding, q_positions=grown.seen_from(new), lengths=lengths,
                x=grown.x, scale=self.scale, key_padding_mask=grown.padding, **options,
            )  # fmt: skip
        else:
            rotated_q, rotated_k = self.encoding.rotate(q, k, new, lengths=lengths)
            grown = cache.extended(rotated_k, v, new, key_padding_mask, kept_x)
            bias = self.encoding.bias(q, grown.k, grown.seen_from(new), x=grown.x)
            scale = self.scale
            if scale is None:
                scale = self.encoding.logit_factor / self.head_dim**0.5
            out = attention(
                rotated_q, grown.k, grown.v, bias=bias, scale=scale,
                key_padding_mask=grown.padding, **options,
            )  # fmt: skip
        cache.become(grown)  # last, so that a refused call does not change the cache
        return out

    def _check_cache(self, cache: KVCache, k: Tensor) -> None:
        check_instance("cache", cache, KVCache, "must be a KVCache")
        if not self.causal:
            raise refused("causal", "must be True with a cache, whose past cannot see new tokens", False)
        if cache.k is None:
            return
        past = cache.k
        if past.shape[0] != k.shape[0]:
            raise refused(
                "x", "must have the batch size {batch} of the cache", k.shape[0], batch=past.shape[0]
            )
        if past.shape[1::2] != k.shape[1::2]:
            raise refused(
                "cache",
                "must have this layer's kv_heads and head_dim {sizes}",
                list(past.shape[1::2]),
                sizes=list(k.shape[1::2]),
            )
        if (past.dtype, past.device) != (k.dtype, k.device):
            raise refused(
                "cache",
                "must be {dtype} on {device}",
                Text("{dtype} on {device}", dtype=past.dtype, device=past.device),
                dtype=k.dtype,
                device=k.device,
            )
