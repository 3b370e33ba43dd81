"""Hooks on the models within a patched model that decide whether ordinate or the model's own code computes a call.

The hook before a call decides for the complete call, before any mask is made: attention weights and masks of four
dimensions need the model's own code.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..streaming import check_stream, is_stream
from .masks import own_masks
from .state import patched_state


def hook(module: nn.Module) -> list[Any]:
    """Put the hooks on a model; their handles remove them."""
    return [
        module.register_forward_pre_hook(_before_call, with_kwargs=True),
        module.register_forward_hook(_after_call, always_call=True),
    ]


def _before_call(
    module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    state = patched_state(module)
    given, patch, thread = state.arguments(args, kwargs), state.patch, state.patch.thread
    own, cache = _needs_own_code(module, given), given.get("past_key_values")
    # Appended before anything is refused: `_after_call` is called for refused calls too.
    thread.own_code.append(own)
    if len(thread.own_code) == 1:
        thread.stream, thread.deferred = None, False
    if cache is not None and is_stream(cache):
        check_stream(given.get("attention_mask"), own or not patch.configs)
        cache.ordinate_unrotated_layers, thread.stream = patch.unrotated_layers, cache
    if own and patch.configs:
        kwargs = {name: own_masks(value, patch.configs[0][1]) for name, value in kwargs.items()}
    return args, kwargs


def _after_call(module: Any, args: Any, output: Any) -> None:
    thread = patched_state(module).patch.thread
    thread.own_code.pop()
    if thread.stream is not None and not thread.own_code:
        thread.stream.ordinate_unrotated_layers, thread.stream = None, None


def _needs_own_code(module: Any, given: dict[str, Any]) -> bool:
    weights = given.get("output_attentions")
    if weights is None:
        weights = getattr(module.config, "output_attentions", False)
    names = ("attention_mask", "decoder_attention_mask", "encoder_attention_mask")
    return bool(weights) or any(_is_dense(given.get(name)) for name in names)


def _is_dense(mask: Any) -> bool:
    if isinstance(mask, dict):
        return any(_is_dense(part) for part in mask.values())
    return isinstance(mask, Tensor) and mask.dim() > 2
