"""Forward passes of the attention layers that transformers wrote before its attention interface.

T5, BLOOM, MPT, Falcon and GPT-J build their bias or rotation and their logits in one method each. These
take its place: the same projections, caches and results, with attention and its positions by ordinate.
Each is called as a method of the live module, so parameters are the model's own, read when needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...bias.alibi import alibi_slopes
from ...bias.t5 import t5_rows
from ...bias.types import Bias, DistanceBias, LinearBias
from ...numerics import compute_dtype, constant
from ...positions import Places, resolve, sequential
from ...rotate.rope import RoPE
from .attention_interface import attend, uses_interface
from .masks import Visible
from .rotary import Form, Turn, appliers_of
from .state import Patch, Site, site_of


def _is_ours(site: Site, mask: object, queries: Tensor, source: Tensor | None = None) -> bool:
    """Whether a call is one for ordinate: not bypassed, and with a mask of its sizes that it can describe.

    Args:
        queries: What queries are made from, ``[batch, seq, channels]``.
        source: What keys are made from, where that is known before there are any: in cross-attention.
    """
    if site.bypassed or not isinstance(mask, Visible):
        return False
    keys = None if source is None else source.shape[1]
    alike = source is None or source.shape[0] == queries.shape[0]
    return alike and mask.fits(queries.shape[1], keys) and mask.terms() is not None


def _own_mask(site: Site, mask: Any) -> Any:
    """The mask that a layer's own forward expects."""
    return mask.own(site.implementation) if isinstance(mask, Visible) else mask


def _site(module: nn.Module) -> Site:
    site = site_of(module)
    assert site is not None
    return site


def _split(x: Tensor, head_dim: int) -> Tensor:
    """``[batch, seq, heads · head_dim]`` into ``[batch, heads, seq, head_dim]``."""
    return x.unflatten(-1, (-1, head_dim)).transpose(1, 2)


# T5 ---------------------------------------------------------------------------------------------


@dataclass(eq=False)
class T5Site(Site):
    """A patched layer of T5.

    Attributes:
        lo: The least distance with an entry of its own in the table.
        rows: The bucket of each distance from there on.
    """

    lo: int = 0
    rows: tuple[int, ...] = ()


def make_site(layer: Any, patch: Patch, implementation: str) -> Site:
    """The site of an attention layer; a layer of T5 learns its buckets here, for a compiler cannot."""
    if getattr(layer, "relative_attention_num_buckets", None) is None:
        return Site(layer, patch, implementation)
    buckets, furthest = layer.relative_attention_num_buckets, layer.relative_attention_max_distance
    lo, rows = t5_rows(buckets, furthest, not layer.is_decoder)
    return T5Site(layer, patch, implementation, lo=lo, rows=rows)


def _t5_table(self: Any, device: torch.device) -> Tensor | None:
    """The bias of each distance, ``[heads, distances]``, from a layer's live table; None if it has none.

    The embedding itself is called, as by the model's own code: hooks may bring its weights when it is (FSDP,
    offload) or add to them (PEFT).
    """
    if not self.has_relative_attention_bias:
        return None
    site = _site(self)
    assert isinstance(site, T5Site)
    buckets = self.relative_attention_bias(
        torch.arange(self.relative_attention_num_buckets, device=device)
    )
    # Far distances share a bucket, so their gradients are added up, not in low precision.
    rows = constant(site.rows, torch.int64, device)
    return F.embedding(rows, buckets.to(compute_dtype(buckets.dtype))).t()


def _t5_bias(self: Any, table: Tensor | None, q: Tensor, k: Tensor) -> DistanceBias | None:
    if table is None:
        return None
    site = _site(self)
    assert isinstance(site, T5Site)
    table = table.to(compute_dtype(q.dtype))  # whatever mixed precision made of it on its way
    return DistanceBias(table, resolve(q, k, None, None), lo=site.lo)


def _t5_states(
    self: Any, hidden_states: Tensor, source: Tensor | None, cache: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, and the keys and values of all tokens so far, or of the encoder."""
    q = _split(self.q(hidden_states), self.key_value_proj_dim)
    whole = cache
    if hasattr(whole, "cross_attention_cache"):
        cache = whole.self_attention_cache if source is None else whole.cross_attention_cache
    if source is not None and whole is not None and whole.is_updated.get(self.layer_idx):
        layer = cache.layers[self.layer_idx]
        return q, layer.keys, layer.values
    seen = hidden_states if source is None else source
    k, v = (_split(project(seen), self.key_value_proj_dim) for project in (self.k, self.v))
    if cache is not None:
        k, v = cache.update(k, v, self.layer_idx)
        if source is not None and whole is not cache:
            whole.is_updated[self.layer_idx] = True
    return q, k, v


def _t5_attend(
    self: Any, states: tuple[Tensor, Tensor, Tensor], bias: Bias | None, mask: Visible
) -> Tensor:
    dropout = self.dropout if self.training else 0.0
    terms = mask.terms()
    assert terms is not None
    out = attend(*states, terms, bias=bias, scale=1.0, dropout_p=dropout, impl=_site(self).patch.impl)
    return self.o(out.flatten(2))


def t5_forward(
    self: Any,
    hidden_states: Tensor,
    mask: Any = None,
    key_value_states: Tensor | None = None,
    position_bias: Any = None,
    past_key_values: Any = None,
    **kwargs: Any,
) -> tuple[Any, ...]:
    """T5, mT5 and their kin: the first layer's table serves all layers of a stack.

    It is passed on as the model's own matrix of biases is, and told from that by its two dimensions.
    """
    site = _site(self)
    is_matrix = position_bias is not None and position_bias.dim() > 2
    if is_matrix or not _is_ours(site, mask, hidden_states, key_value_states):
        return site.run_own(
            hidden_states, mask=_own_mask(site, mask), key_value_states=key_value_states,
            position_bias=position_bias, past_key_values=past_key_values, **kwargs,
        )  # fmt: skip
    if position_bias is None:
        position_bias = _t5_table(self, hidden_states.device)
    q, k, v = _t5_states(self, hidden_states, key_value_states, past_key_values)
    states = (q, *mask.align(k, v))
    out = _t5_attend(self, states, _t5_bias(self, position_bias, *states[:2]), mask)
    # Attention weights were a third result only on request until T5 joined the attention interface.
    return (out, position_bias, None) if uses_interface(self) else (out, position_bias)


def umt5_forward(
    self: Any,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor | None = None,
    past_key_values: Any = None,
    attention_mask: Any = None,
    **kwargs: Any,
) -> tuple[Any, ...]:
    """UMT5: every layer has a table of its own."""
    site = _site(self)
    if not _is_ours(site, attention_mask, hidden_states, encoder_hidden_states):
        mask = _own_mask(site, attention_mask)
        return site.run_own(
            hidden_states, encoder_hidden_states=encoder_hidden_states,
            past_key_values=past_key_values, attention_mask=mask, **kwargs,
        )  # fmt: skip
    q, k, v = _t5_states(self, hidden_states, encoder_hidden_states, past_key_values)
    states = (q, *attention_mask.align(k, v))
    bias = _t5_bias(self, _t5_table(self, hidden_states.device), *states[:2])
    return _t5_attend(self, states, bias, attention_mask), None


# ALiBi ------------------------------------------------------------------------------------------


def _alibi(
    slopes: tuple[float, ...], q: Tensor, k: Tensor, positions: Tensor | None, *, scaled: bool = False
) -> LinearBias:
    """The line of each head, over distances in tokens where those are not distances of indices."""
    on_device = constant(slopes, compute_dtype(q.dtype), q.device)
    if positions is None:
        return LinearBias(on_device, resolve(q, k, None, None), scaled=scaled)
    places = Places.at(positions[:, k.shape[2] - q.shape[2] :], positions)
    return LinearBias(on_device, places, scaled=scaled)


def bloom_forward(
    self: Any,
    hidden_states: Tensor,
    residual: Tensor,
    alibi: Tensor,
    attention_mask: Any,
    layer_past: Any = None,
    use_cache: bool = False,
    output_attentions: bool = False,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """BLOOM: ALiBi, the residual added here."""
    site = _site(self)
    if not _is_ours(site, attention_mask, hidden_states):
        mask = _own_mask(site, attention_mask)
        return site.run_own(
            hidden_states, residual, alibi, mask, layer_past=layer_past,
            use_cache=use_cache, output_attentions=output_attentions, **kwargs,
        )  # fmt: skip
    heads = self.query_key_value(hidden_states).unflatten(-1, (self.num_heads, 3, self.head_dim))
    q, k, v = (part.transpose(1, 2) for part in heads.unbind(-2))
    if layer_past is not None:
        k, v = attention_mask.align(*layer_past.update(k, v, self.layer_idx))
    bias = _alibi(alibi_slopes(self.num_heads), q, k, attention_mask.token_positions())
    dropout = self.attention_dropout.p if self.training else 0.0
    out = attend(
        q, k, v, attention_mask.terms(), bias=bias,
        scale=self.inv_norm_factor, dropout_p=dropout, impl=site.patch.impl,
    )  # fmt: skip
    projected = self.dense(out.flatten(2))
    return residual + F.dropout(projected, self.hidden_dropout, self.training), None


def mpt_forward(
    self: Any,
    hidden_states: Tensor,
    position_bias: Tensor,
    past_key_values: Any = None,
    attention_mask: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """MPT: ALiBi, by index whatever is padded."""
    site = _site(self)
    if not _is_ours(site, attention_mask, hidden_states):
        mask = _own_mask(site, attention_mask)
        mask = None if mask is None else mask.to(torch.bool)
        return site.run_own(
            hidden_states, position_bias, past_key_values=past_key_values, attention_mask=mask, **kwargs
        )
    qkv = self.Wqkv(hidden_states)
    if self.clip_qkv:
        qkv = qkv.clamp(min=-self.clip_qkv, max=self.clip_qkv)
    q, k, v = (_split(part, self.head_dim) for part in qkv.chunk(3, dim=-1))
    if past_key_values is not None:
        k, v = attention_mask.align(*past_key_values.update(k, v, self.layer_idx))
    bias = None if position_bias is None else _alibi(alibi_slopes(self.n_heads), q, k, None)
    dropout = self.attn_dropout_p if self.training else 0.0
    out = attend(
        q, k, v, attention_mask.terms(), bias=bias,
        scale=self.softmax_scale, dropout_p=dropout, impl=site.patch.impl,
    )  # fmt: skip
    return self.out_proj(out.flatten(2)), None


# Falcon -----------------------------------------------------------------------------------------


def falcon_forward(
    self: Any,
    hidden_states: Tensor,
    alibi: Tensor | None,
    attention_mask: Any,
    position_ids: Tensor | None = None,
    layer_past: Any = None,
    use_cache: bool = False,
    output_attentions: bool = False,
    position_embeddings: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Falcon: ALiBi multiplied by the softmax scale like the logits, or RoPE."""
    site = _site(self)
    if not _is_ours(site, attention_mask, hidden_states):
        if alibi is not None and isinstance(attention_mask, Visible):
            raise NotImplementedError(
                "attention_mask must be causal, with padding at most, for Falcon's ALiBi, got another kind"
            )
        mask = _own_mask(site, attention_mask)
        return site.run_own(
            hidden_states, alibi, mask, position_ids=position_ids, layer_past=layer_past,
            use_cache=use_cache, output_attentions=output_attentions,
            position_embeddings=position_embeddings, **kwargs,
        )  # fmt: skip
    q, k, v = (x.transpose(1, 2) for x in self._split_heads(self.query_key_value(hidden_states)))
    if alibi is None:
        (applier,) = appliers_of(self)
        q, k = applier.scope[applier.name](q, k, *position_embeddings)
    if layer_past is not None:
        k, v = attention_mask.align(*layer_past.update(k, v, self.layer_idx))
    bias, dropout = None, 0.0
    if alibi is None:
        q, k = site.patch.turn_late(q, k, attention_mask)
    else:
        bias = _alibi(alibi_slopes(self.num_heads), q, k, attention_mask.token_positions(), scaled=True)
        dropout = self.attention_dropout.p if self.training else 0.0
    out = attend(
        q, k, v, attention_mask.terms(), bias=bias,
        scale=self.inv_norm_factor, dropout_p=dropout, impl=site.patch.impl,
    )  # fmt: skip
    return self.dense(out.flatten(2)), None


# GPT-J ------------------------------------------------------------------------------------------


def gptj_rotation(module: Any) -> RoPE:
    """GPT-J's rotation: neighbouring channels, the first ``rotary_dim`` of each head."""
    return RoPE(module.head_dim, rotary_dim=module.rotary_dim or module.head_dim, layout="interleaved")


def gptj_forward(
    self: Any,
    hidden_states: Tensor,
    layer_past: Any = None,
    attention_mask: Any = None,
    position_ids: Tensor | None = None,
    use_cache: bool | None = False,
    output_attentions: bool | None = False,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """GPT-J: RoPE, by ordinate instead of the model's table of sines and cosines."""
    site = _site(self)
    if not _is_ours(site, attention_mask, hidden_states):
        mask = _own_mask(site, attention_mask)
        return site.run_own(
            hidden_states, layer_past=layer_past, attention_mask=mask, position_ids=position_ids,
            use_cache=use_cache, output_attentions=output_attentions, **kwargs,
        )  # fmt: skip
    q, k, v = (
        _split(project(hidden_states), self.head_dim)
        for project in (self.q_proj, self.k_proj, self.v_proj)
    )
    if position_ids is None:
        position_ids = sequential(q.shape[2], device=q.device)
    rope, streaming = gptj_rotation(self), site.patch.here.stream is not None
    if streaming:
        turn = Turn(rope, position_ids, {}, site, streaming)
        site.patch.leave_unturned(turn, Form("interleaved"), [q, k])
    else:
        q, k = rope.rotate(q, k, position_ids)
    if layer_past is not None:
        k, v = attention_mask.align(*layer_past.update(k, v, self.layer_idx))
    q, k = site.patch.turn_late(q, k, attention_mask)
    dropout = self.attn_dropout.p if self.training else 0.0
    out = attend(
        q, k, v, attention_mask.terms(),
        scale=1 / self.scale_attn, dropout_p=dropout, impl=site.patch.impl,
    )  # fmt: skip
    return self.resid_dropout(self.out_proj(out.flatten(2))), None
