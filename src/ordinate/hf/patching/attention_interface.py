"""`ordinate.attention` as an attention implementation of transformers, by the name ``"ordinate"``.

Models built on transformers' `AttentionInterface` call a function by name, with q and k already rotated.
This is that function. Whatever it cannot express as arguments of `ordinate.attention` goes to the
implementation the model had before, with the mask that one expects, so nothing is dropped.
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
from ...extras import how_to_install
from ...private import constant_while_compiling
from .mask_rules import note_rules
from .masks import Visible, make_visible
from .state import NAME, site_of

# Arguments that models hand through to attention and that do not change its result.
_WITHOUT_EFFECT = frozenset(
    {
        "cache_position", "cu_seq_lens_k", "cu_seq_lens_q", "logits_to_keep", "max_length_k",
        "max_length_q", "num_items_in_batch", "output_attentions", "output_hidden_states",
        "output_router_logits", "position_ids", "return_dict", "sliding_window", "use_cache",
    }
)  # fmt: skip


def register_attention() -> None:
    """Make ``attn_implementation="ordinate"`` known to transformers, as the first `patch` does too.

    Any model of transformers' attention interface then takes that name, when it is loaded or by
    ``set_attn_implementation``. Rotations and masks stay the model's own; nothing is checked.
    """
    try:
        from transformers import AttentionInterface
        from transformers.masking_utils import AttentionMaskInterface
    except ImportError as missing:
        raise ImportError(f"register_attention needs transformers: {how_to_install('hf')}") from missing
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, make_visible)
    note_rules()


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | Visible | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention of a layer built on transformers' `AttentionInterface`.

    Args:
        s_aux: A logit per head that takes part in the softmax and has no value (gpt-oss's sinks).
    """
    site = site_of(module)
    why = why_its_own(type(module)) if site is None else site.why
    if why is not None:
        raise NotImplementedError(
            f"attn_implementation must not be {NAME!r} for {type(module).__name__}, for {why}, got {NAME!r}"
        )
    terms = _terms(module, query, key, attention_mask, is_causal, kwargs.get("sliding_window"))
    # What is off changes nothing: ModernBERT says that its kernels need not be deterministic.
    asked = [name for name, value in kwargs.items() if value is not None and value is not False]
    unknown = [name for name in asked if name not in _WITHOUT_EFFECT]
    ours = (
        terms is not None
        and not unknown
        and position_bias is None
        and not kwargs.get("output_attentions")
    )
    if isinstance(attention_mask, Visible) and ours:
        key, value = attention_mask.align(key, value)
    if site is not None:
        if isinstance(attention_mask, Visible) and not ours:
            site.patch.refuse_late(query, attention_mask)
        query, key = site.patch.turn_late(query, key, attention_mask)
        site.patch.note(module, ours)
    if terms is None or not ours:
        kwargs |= {"dropout": dropout, "scaling": scaling}
        given = {
            "softcap": softcap,
            "is_causal": is_causal,
            "s_aux": s_aux,
            "position_bias": position_bias,
        }
        kwargs |= {name: value for name, value in given.items() if value is not None}
        return _own_attention(module, query, key, value, attention_mask, kwargs)
    impl = "auto" if site is None else site.patch.impl
    out = attend(
        query,
        key,
        value,
        terms,
        impl=impl,
        dropout_p=dropout,
        scale=scaling,
        softcap=softcap,
        sink=s_aux,
    )
    return out, None


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    terms: dict[str, Any],
    *,
    sink: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """`ordinate.attention`, its result as transformers wants it: ``[batch, seq, heads, head_dim]``."""
    if len({q.dtype, k.dtype, v.dtype}) > 1 and torch.is_autocast_enabled(q.device.type):
        # Norms and rotations leave autocast's dtype; its matrix products would return to it.
        dtype = torch.get_autocast_dtype(q.device.type)
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    if sink is None:
        out = attention(q, k, v, **terms, **options)
    else:
        # One more key of logit s and value 0 leaves the weights e^lse / (e^lse + e^s) of what they were.
        out, lse = attention(q, k, v, **terms, **options, return_lse=True)
        out = out * torch.sigmoid(lse - sink.reshape(1, -1, 1).to(lse.dtype))[..., None].to(out.dtype)
    assert isinstance(out, Tensor)
    return out.transpose(1, 2).contiguous()


def _terms(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    mask: Tensor | Visible | None,
    is_causal: bool | None,
    window: int | None,
) -> dict[str, Any] | None:
    """The mask as arguments of `ordinate.attention`, or None where it cannot be said so."""
    if query.shape[0] != key.shape[0]:
        return None  # PyTorch's own attention repeats the one row of an encoder
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    if isinstance(mask, Visible):
        terms = mask.terms() if mask.fits(query.shape[2], key.shape[2]) else None
        if terms is None or terms["causal"] == causal or not mask.is_left_out():
            return terms
    elif mask is not None:
        return None
    # No mask at all: transformers then goes by the module, as in PaliGemma, and a single query sees everything.
    if window is not None or (causal and query.shape[2] not in (1, key.shape[2])):
        return None
    return {"causal": causal and query.shape[2] > 1}


def _own_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | Visible | None,
    kwargs: dict[str, Any],
) -> tuple[Tensor, Tensor | None]:
    """The implementation the model had before, with the mask it expects."""
    site = site_of(module)
    implementation = "sdpa" if site is None else site.implementation
    if isinstance(mask, Visible):
        mask = mask.own(implementation)
    return _implementation(module, implementation)(module, query, key, value, mask, **kwargs)


def _implementation(module: nn.Module, name: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """An attention function by name, looked up where the module's own code would."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    scope = forward_scope(module)
    known = scope.get("ALL_ATTENTION_FUNCTIONS", ALL_ATTENTION_FUNCTIONS)
    return scope["eager_attention_forward"] if name == "eager" else known[name]


def forward_scope(module: nn.Module) -> dict[str, Any]:
    """The global names of the file that a module's class is written in."""
    scope: dict[str, Any] = inspect.unwrap(type(module).forward).__globals__
    return scope


def uses_interface(module: nn.Module) -> bool:
    """Whether a module's own forward looks its attention up by name."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names


@constant_while_compiling
def why_its_own(kind: type[nn.Module]) -> str | None:
    """Why the forward of a class must go on attending by its own code, looked up once; None if it need not."""
    if kind not in _whys:
        _whys[kind] = _find_why(kind)
    return _whys[kind]


_whys: dict[type[nn.Module], str | None] = {}


def _find_why(kind: type[nn.Module]) -> str | None:
    code = getattr(inspect.unwrap(kind.forward), "__code__", None)
    if code is None or "ALL_ATTENTION_FUNCTIONS" not in code.co_names:
        return None
    groups = (x if isinstance(x, (tuple, frozenset)) else (x,) for x in code.co_consts)
    if {"sdpa", "eager"} <= set(itertools.chain.from_iterable(groups)):
        return "it masks in another way for implementations that it does not know"
    steps = [step.argval for step in dis.get_instructions(code)]
    if ("isinstance", "attention_mask") in itertools.pairwise(steps):
        return "it treats a mask in another way that is not a tensor"
    return None
