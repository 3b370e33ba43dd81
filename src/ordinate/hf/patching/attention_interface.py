"""`ordinate.attention` as an attention implementation of transformers, by the name ``"ordinate"``.

Models built on transformers' `AttentionInterface` call `attention_forward` by this name, with q and k already
rotated. Calls that the arguments of `ordinate.attention` cannot express go to the model's previous implementation,
with the mask that it expects, so nothing is dropped.
"""

from __future__ import annotations

import dis
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ...attending.api import attention
from ...checks import refused
from ...extras import how_to_install
from ...private import constant_while_compiling
from ...text import Text
from .mask_rules import store_rules
from .masks import MaskDescription, describe_mask, own_masks
from .state import NAME, state_of

# Arguments that models pass on to attention and that do not change its result.
_WITHOUT_EFFECT = frozenset(
    {
        "cache_position", "cu_seq_lens_k", "cu_seq_lens_q", "logits_to_keep", "max_length_k",
        "max_length_q", "num_items_in_batch", "output_attentions", "output_hidden_states",
        "output_router_logits", "position_ids", "return_dict", "sliding_window", "use_cache",
    }
)  # fmt: skip


def register_attention() -> None:
    """Register ``attn_implementation="ordinate"`` in transformers, as the first `patch` does too.

    Any model of transformers' attention interface then accepts that name, when it is loaded or by
    ``set_attn_implementation``. The model's own code computes rotations and masks; nothing is checked.
    """
    try:
        from transformers import AttentionInterface
        from transformers.masking_utils import AttentionMaskInterface
    except ImportError as missing:
        raise needs_transformers("register_attention") from missing
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, describe_mask)
    store_rules()


def needs_transformers(function: str) -> Exception:
    rule = "needs transformers: {command}"
    return refused(function, rule, error=ImportError, command=how_to_install("hf"))


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | MaskDescription | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention of a layer built on transformers' `AttentionInterface`.

    Args:
        kwargs: Among others ``is_causal`` and ``s_aux``, a logit per head that takes part in the softmax and has no
            value (gpt-oss's sinks).
    """
    state = state_of(module)
    reason = own_code_reason(type(module)) if state is None else state.own_code_reason
    if reason is not None:
        raise refused(
            "attn_implementation",
            "must not be '{name}' for {layer}, for {reason}",
            repr(NAME),
            error=NotImplementedError,
            name=NAME,
            layer=type(module).__name__,
            reason=reason,
        )
    terms = _terms(module, query, key, attention_mask, kwargs)
    if isinstance(attention_mask, MaskDescription) and terms is not None:
        key, value = attention_mask.align(key, value)
    if state is not None:
        query, key = state.patch.rotate_deferred(query, key, attention_mask, aligned=terms is not None)
        state.patch.record_attention(module, terms is not None)
    if terms is None:
        implementation = "sdpa" if state is None else state.implementation
        mask = own_masks(attention_mask, implementation)
        kwargs = {"softcap": softcap, **kwargs}
        given = {x: y for x, y in kwargs.items() if y is not None or x not in _OPTIONAL}
        own = _implementation(module, implementation)
        return own(module, query, key, value, mask, dropout=dropout, scaling=scaling, **given)
    out = attend(
        query, key, value, terms, impl="auto" if state is None else state.patch.impl,
        dropout_p=dropout, scale=scaling, softcap=softcap, sink=kwargs.get("s_aux"),
    )  # fmt: skip
    return out, None


# Arguments that some implementations do not have: passed on only if they are given.
_OPTIONAL = ("softcap", "is_causal", "s_aux", "position_bias")


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    terms: dict[str, Any],
    *,
    sink: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """`ordinate.attention` with a result in transformers' shape: ``[batch, seq, heads, head_dim]``."""
    if len({q.dtype, k.dtype, v.dtype}) > 1 and torch.is_autocast_enabled(q.device.type):
        # Norms and rotations return other dtypes under autocast; its matrix products would cast them back.
        dtype = torch.get_autocast_dtype(q.device.type)
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    if sink is None:
        out = attention(q, k, v, **terms, **options)
    else:
        # One more key of logit s and value 0 multiplies the other weights by e^lse / (e^lse + e^s).
        out, lse = attention(q, k, v, **terms, **options, return_lse=True)
        out = out * torch.sigmoid(lse - sink.reshape(1, -1, 1).to(lse.dtype))[..., None].to(out.dtype)
    assert isinstance(out, Tensor)
    return out.transpose(1, 2).contiguous()


def _terms(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    mask: Tensor | MaskDescription | None,
    given: dict[str, Any],
) -> dict[str, Any] | None:
    """The mask as arguments of `ordinate.attention`; None if the call needs the model's previous implementation."""
    # Options that are off change nothing, such as ModernBERT's deterministic=False.
    known = {*_WITHOUT_EFFECT, "is_causal", "s_aux"}
    unknown = [x for x, y in given.items() if x not in known and y is not None and y is not False]
    # PyTorch's own attention repeats a single row of an encoder for all rows of a batch.
    if unknown or given.get("output_attentions") or query.shape[0] != key.shape[0]:
        return None
    causal = given.get("is_causal")
    causal = bool(getattr(module, "is_causal", True) if causal is None else causal)
    if isinstance(mask, MaskDescription):
        terms = mask.terms() if mask.fits(query.shape[2], key.shape[2]) else None
        if terms is None or terms["causal"] == causal or not mask.is_omitted():
            return terms
    elif mask is not None:
        return None
    # Without a mask transformers uses the layer's `is_causal`, as in PaliGemma, and a single query sees every key.
    windowed = given.get("sliding_window") is not None
    if windowed or (causal and query.shape[2] not in (1, key.shape[2])):
        return None
    return {"causal": causal and query.shape[2] > 1}


def _implementation(module: nn.Module, name: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """An attention function by name, from the registry that the module's own code uses."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    scope = forward_scope(module)
    known = scope.get("ALL_ATTENTION_FUNCTIONS", ALL_ATTENTION_FUNCTIONS)
    return scope["eager_attention_forward"] if name == "eager" else known[name]


def forward_scope(module: nn.Module) -> dict[str, Any]:
    """The globals of the file in which a module's class is written."""
    scope: dict[str, Any] = inspect.unwrap(type(module).forward).__globals__
    return scope


def uses_interface(kind: type[nn.Module]) -> bool:
    """Whether the forward of a class looks up its attention function by name."""
    code = getattr(inspect.unwrap(kind.forward), "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names


_own_code_reasons: dict[type[nn.Module], str | None] = {}


@constant_while_compiling
def own_code_reason(kind: type[nn.Module]) -> str | None:
    """Why ordinate cannot compute the attention of a class, cached; None if it can."""
    if kind not in _own_code_reasons:
        _own_code_reasons[kind] = _find_own_code_reason(kind)
    return _own_code_reasons[kind]


def _find_own_code_reason(kind: type[nn.Module]) -> str | None:
    if not uses_interface(kind):
        return None
    code = inspect.unwrap(kind.forward).__code__
    groups = (x if isinstance(x, (tuple, frozenset)) else (x,) for x in code.co_consts)
    if {"sdpa", "eager"} <= set(itertools.chain.from_iterable(groups)):
        return Text("it masks in another way for implementations that it does not know")
    steps = [step.argval for step in dis.get_instructions(code)]
    if ("isinstance", "attention_mask") in itertools.pairwise(steps):
        return Text("it treats a mask in another way that is not a tensor")
    return None
