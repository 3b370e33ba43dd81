"""Forward passes for the attention layers that transformers wrote before its attention interface.

T5, BLOOM, MPT, Falcon and GPT-J compute their bias or rotation and their logits in one method each. These functions
replace it: the same projections, caches and results, with attention and positions by ordinate.
Each is called as a method of the live module and reads the model's own parameters in every call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...bias.alibi import alibi_slopes
from ...bias.t5 import t5_rows
from ...bias.types import Bias, DistanceBias, LinearBias
from ...checks import refused
from ...numerics import compute_dtype, constant
from ...positions import Places, resolve, sequential
from ...rotate.rope import RoPE
from ...text import Text
from .attention_interface import attend, uses_interface
from .masks import MaskDescription, own_masks
from .rotary import rotary_functions
from .rotations import Form, PassRotation
from .state import ModuleState, Patch, patched_state


def _layer_forward(
    compute: Callable[..., Any],
    *,
    mask: str = "attention_mask",
    source: str = "",
    check: Callable[[dict[str, Any]], None] | None = None,
) -> Callable[..., Any]:
    """A forward that calls ``compute(layer, mask, **others)``, and the model's own code if ordinate cannot compute it.

    Args:
        compute: Returns None if it cannot compute the call either.
        mask: The name of the mask argument.
        source: The name of the argument that keys are computed from in cross-attention.
        check: Refuses arguments that the model's own code does not support.
    """

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        state = patched_state(self)
        given = state.arguments(args, kwargs)
        description = given.get(mask)
        if _can_compute(state, description, given["hidden_states"], given.get(source)):
            others = {name: value for name, value in given.items() if name != mask}
            found = compute(self, description, **others)
            if found is not None:
                return found
        if check is not None:
            check(given)
        own_args = (own_masks(x, state.implementation) for x in args)
        own_kwargs = {name: own_masks(x, state.implementation) for name, x in kwargs.items()}
        return state.run_own(*own_args, **own_kwargs)

    return forward


def _can_compute(state: ModuleState, mask: object, queries: Tensor, source: Tensor | None) -> bool:
    """Whether ordinate can compute a call: it is not bypassed, and its mask has the right lengths and is supported.

    Args:
        queries: The input of the queries, ``[batch, seq, channels]``.
        source: The input of the keys in cross-attention.
    """
    if state.patch.bypassed or not isinstance(mask, MaskDescription):
        return False
    keys = None if source is None else source.shape[1]
    same_batch = source is None or source.shape[0] == queries.shape[0]
    return same_batch and mask.fits(queries.shape[1], keys) and mask.terms() is not None


def _split(x: Tensor, head_dim: int) -> Tensor:
    """``[batch, seq, heads · head_dim]`` into ``[batch, heads, seq, head_dim]``."""
    return x.unflatten(-1, (-1, head_dim)).transpose(1, 2)


def _attend(
    self: Any,
    mask: MaskDescription,
    states: tuple[Tensor, Tensor, Tensor],
    *,
    cache: Any = None,
    bias: Callable[[Tensor, Tensor], Bias | None] | None = None,
    scale: float,
    dropout: float,
) -> Tensor:
    """Cache keys and values and attend: ``[batch, seq, heads · head_dim]``.

    Args:
        bias: Makes the bias for queries and all keys.
    """
    (q, k, v), patch, terms = states, patched_state(self).patch, mask.terms()
    assert terms is not None
    if cache is not None:
        k, v = cache.update(k, v, self.layer_idx)
    k, v = mask.align(k, v)
    q, k = patch.rotate_deferred(q, k, mask)
    out = attend(
        q, k, v, terms, bias=None if bias is None else bias(q, k), scale=scale,
        dropout_p=dropout if self.training else 0.0, impl=patch.impl,
    )  # fmt: skip
    return out.flatten(2)


# T5 ---------------------------------------------------------------------------------------------


@dataclass(eq=False)
class T5State(ModuleState):
    """The state of a patched layer of T5.

    Attributes:
        lo: The smallest distance with its own entry in the table.
        rows: The bucket of each distance from ``lo`` on.
    """

    lo: int = 0
    rows: tuple[int, ...] = ()


def make_state(layer: Any, patch: Patch, implementation: str) -> ModuleState:
    """The state of an attention layer. Buckets of T5 are computed here, because torch.compile cannot."""
    buckets = getattr(layer, "relative_attention_num_buckets", None)
    if buckets is None:
        return ModuleState(layer, patch, implementation)
    lo, rows = t5_rows(buckets, layer.relative_attention_max_distance, not layer.is_decoder)
    return T5State(layer, patch, implementation, lo=lo, rows=rows)


def _t5_table(self: Any, device: torch.device) -> Tensor | None:
    """The bias of each distance, ``[heads, distances]``, from a layer's live table; None if the layer has none.

    It calls the embedding like the model's own code, because hooks may then fetch its weights (FSDP,
    offload) or add to them (PEFT).
    """
    if not self.has_relative_attention_bias:
        return None
    state = patched_state(self)
    assert isinstance(state, T5State)
    every = torch.arange(self.relative_attention_num_buckets, device=device)
    buckets = self.relative_attention_bias(every)
    # Many distances share a bucket, and in low precision the sum of their gradients would be rounded.
    rows = constant(state.rows, torch.int64, device)
    return F.embedding(rows, buckets.to(compute_dtype(buckets.dtype))).t()


def _t5_attend(
    self: Any,
    mask: MaskDescription,
    hidden_states: Tensor,
    source: Tensor | None,
    cache: Any,
    table: Tensor | None,
) -> Tensor:
    """Attention of a layer to the tokens so far, or to the encoder's tokens."""
    q, k, v = _t5_states(self, hidden_states, source, cache)
    state = patched_state(self)

    def bias(q: Tensor, k: Tensor) -> DistanceBias | None:
        if table is None:
            return None
        assert isinstance(state, T5State)
        # Mixed precision may have changed the dtype of the table.
        return DistanceBias(table.to(compute_dtype(q.dtype)), resolve(q, k, None, None), lo=state.lo)

    return self.o(_attend(self, mask, (q, k, v), bias=bias, scale=1.0, dropout=self.dropout))


def _t5_states(
    self: Any, hidden_states: Tensor, source: Tensor | None, cache: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, and the keys and values of all tokens so far, or of the encoder's tokens."""
    q = _split(self.q(hidden_states), self.key_value_proj_dim)
    both = cache
    if hasattr(both, "cross_attention_cache"):
        cache = both.self_attention_cache if source is None else both.cross_attention_cache
    if source is not None and both is not None and both.is_updated.get(self.layer_idx):
        layer = cache.layers[self.layer_idx]
        return q, layer.keys, layer.values
    seen = hidden_states if source is None else source
    k, v = (_split(project(seen), self.key_value_proj_dim) for project in (self.k, self.v))
    if cache is not None:
        k, v = cache.update(k, v, self.layer_idx)
        if source is not None and both is not cache:
            both.is_updated[self.layer_idx] = True
    return q, k, v


def _t5(
    self: Any,
    mask: MaskDescription,
    hidden_states: Tensor,
    key_value_states: Tensor | None = None,
    position_bias: Any = None,
    past_key_values: Any = None,
    **_: Any,
) -> tuple[Any, ...] | None:
    """T5, mT5 and similar: the first layer's table serves all layers of a stack.

    The table replaces the model's own matrix of biases, which has more than two dimensions.
    """
    if position_bias is not None and position_bias.dim() > 2:
        return None
    if position_bias is None:
        position_bias = _t5_table(self, hidden_states.device)
    out = _t5_attend(self, mask, hidden_states, key_value_states, past_key_values, position_bias)
    # Before T5 joined the attention interface, it returned a third result only if attention weights were requested.
    return (out, position_bias, None) if uses_interface(type(self)) else (out, position_bias)


def _umt5(
    self: Any,
    mask: MaskDescription,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor | None = None,
    past_key_values: Any = None,
    **_: Any,
) -> tuple[Any, ...]:
    """UMT5: every layer has its own table."""
    table = _t5_table(self, hidden_states.device)
    out = _t5_attend(self, mask, hidden_states, encoder_hidden_states, past_key_values, table)
    return out, None


# ALiBi ------------------------------------------------------------------------------------------


def _alibi(
    heads: int, positions: Tensor | None, *, scaled: bool = False
) -> Callable[[Tensor, Tensor], LinearBias]:
    """Makes ALiBi for queries and keys, over the distances of ``positions``, or of indices if that is None."""

    def bias(q: Tensor, k: Tensor) -> LinearBias:
        slopes = constant(alibi_slopes(heads), compute_dtype(q.dtype), q.device)
        if positions is None:
            return LinearBias(slopes, resolve(q, k, None, None), scaled=scaled)
        places = Places.at(positions[:, k.shape[2] - q.shape[2] :], positions)
        return LinearBias(slopes, places, scaled=scaled)

    return bias


def _bloom(
    self: Any,
    mask: MaskDescription,
    hidden_states: Tensor,
    residual: Tensor,
    layer_past: Any = None,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """BLOOM: ALiBi; this forward also adds the residual."""
    heads = self.query_key_value(hidden_states).unflatten(-1, (self.num_heads, 3, self.head_dim))
    q, k, v = (part.transpose(1, 2) for part in heads.unbind(-2))
    out = _attend(
        self, mask, (q, k, v), cache=layer_past, bias=_alibi(self.num_heads, mask.token_positions()),
        scale=self.inv_norm_factor, dropout=self.attention_dropout.p,
    )  # fmt: skip
    return residual + F.dropout(self.dense(out), self.hidden_dropout, self.training), None


def _mpt(
    self: Any,
    mask: MaskDescription,
    hidden_states: Tensor,
    position_bias: Tensor | None = None,
    past_key_values: Any = None,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """MPT: ALiBi over distances of indices, even with padding."""
    qkv = self.Wqkv(hidden_states)
    if self.clip_qkv:
        qkv = qkv.clamp(min=-self.clip_qkv, max=self.clip_qkv)
    q, k, v = (_split(part, self.head_dim) for part in qkv.chunk(3, dim=-1))
    bias = None if position_bias is None else _alibi(self.n_heads, None)
    out = _attend(
        self, mask, (q, k, v), cache=past_key_values, bias=bias,
        scale=self.softmax_scale, dropout=self.attn_dropout_p,
    )  # fmt: skip
    return self.out_proj(out), None


# Falcon -----------------------------------------------------------------------------------------


def _falcon(
    self: Any,
    mask: MaskDescription,
    hidden_states: Tensor,
    alibi: Tensor | None = None,
    layer_past: Any = None,
    position_embeddings: Any = None,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """Falcon: ALiBi multiplied by the softmax scale like the logits, or RoPE."""
    q, k, v = (x.transpose(1, 2) for x in self._split_heads(self.query_key_value(hidden_states)))
    bias, dropout = None, 0.0
    if alibi is None:
        (function,) = rotary_functions(self)
        q, k = function.scope[function.name](q, k, *position_embeddings)
    else:
        bias = _alibi(self.num_heads, mask.token_positions(), scaled=True)
        dropout = self.attention_dropout.p
    out = _attend(
        self, mask, (q, k, v), cache=layer_past, bias=bias,
        scale=self.inv_norm_factor, dropout=dropout,
    )  # fmt: skip
    return self.dense(out), None


def _check_falcon(given: dict[str, Any]) -> None:
    if given.get("alibi") is not None and isinstance(given.get("attention_mask"), MaskDescription):
        raise refused(
            "attention_mask",
            "must be causal, with padding at most, for Falcon's ALiBi",
            Text("another kind"),
            error=NotImplementedError,
        )


# GPT-J ------------------------------------------------------------------------------------------


def _gptj(
    self: Any,
    mask: MaskDescription,
    hidden_states: Tensor,
    layer_past: Any = None,
    position_ids: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """GPT-J: RoPE of neighbouring channels, the first ``rotary_dim`` of each head, without the model's own table."""
    projections = (self.q_proj, self.k_proj, self.v_proj)
    q, k, v = (_split(project(hidden_states), self.head_dim) for project in projections)
    if position_ids is None:
        position_ids = sequential(q.shape[2], device=q.device)
    state, rotary_dim = patched_state(self), self.rotary_dim or self.head_dim
    rope = RoPE(self.head_dim, rotary_dim=rotary_dim, layout="interleaved")
    if state.patch.thread.stream is not None:
        rotation = PassRotation(rope, position_ids, {}, state, streaming=True)
        state.patch.defer_rotation(rotation, Form("interleaved"), [q, k])
    else:
        q, k = rope.rotate(q, k, position_ids)
    out = _attend(
        self, mask, (q, k, v), cache=layer_past, scale=1 / self.scale_attn, dropout=self.attn_dropout.p
    )
    return self.resid_dropout(self.out_proj(out)), None


_T5_FORWARD = _layer_forward(_t5, mask="mask", source="key_value_states")
# By class: the forward, and the positions that it computes.
FORWARDS: dict[str, tuple[Callable[..., Any], str]] = {
    "T5Attention": (_T5_FORWARD, "T5 buckets"),
    "MT5Attention": (_T5_FORWARD, "T5 buckets"),
    "UMT5Attention": (
        _layer_forward(_umt5, source="encoder_hidden_states"), "T5 buckets, a table per layer",
    ),
    "BloomAttention": (_layer_forward(_bloom), "ALiBi"),
    "MptAttention": (_layer_forward(_mpt), "ALiBi"),
    "FalconAttention": (_layer_forward(_falcon, check=_check_falcon), "ALiBi or RoPE"),
    "GPTJAttention": (_layer_forward(_gptj), "RoPE, interleaved"),
}  # fmt: skip
