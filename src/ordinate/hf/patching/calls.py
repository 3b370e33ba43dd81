"""Calls of a patched model: which go to ordinate, which to the model's own code, which stream.

Hooks before and after each model within the model decide for a whole call. What a call asks for that only
the model's own code gives is seen here, before any mask is made.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..streaming import check_stream, is_stream
from .masks import Visible
from .state import Site, site_of


def hook(module: nn.Module) -> None:
    """Watch the calls of a model."""
    module.register_forward_pre_hook(_enter, with_kwargs=True)
    module.register_forward_hook(_leave, always_call=True)


def unhook(module: nn.Module) -> None:
    for hooks, ours in ((module._forward_pre_hooks, _enter), (module._forward_hooks, _leave)):
        for key in [key for key, hook in hooks.items() if hook is ours]:
            del hooks[key]
            for more in (
                "_forward_pre_hooks_with_kwargs",
                "_forward_hooks_with_kwargs",
                "_forward_hooks_always_called",
            ):
                getattr(module, more).pop(key, None)


def _enter(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    site = site_of(module)
    assert site is not None
    given = site.arguments(args, kwargs)
    own, cache = _needs_own_code(module, given), given.get("past_key_values")
    # Entered before anything is refused: `_leave` is called for refused calls too.
    site.patch.enter(own)
    here = site.patch.here
    if len(here.calls) == 1:
        here.stream, here.waiting = None, False
    if cache is not None and is_stream(cache):
        check_stream(given.get("attention_mask"), own or not site.patch.configs)
        cache.ordinate_still, here.stream = site.patch.still, cache
    if own:
        kwargs = {name: _own_mask(site, value) for name, value in kwargs.items()}
    return args, kwargs


def _leave(module: Any, args: Any, output: Any) -> None:
    site = site_of(module)
    assert site is not None
    site.patch.leave()
    here = site.patch.here
    if here.stream is not None and not here.calls:
        here.stream.ordinate_still, here.stream = None, None


def _needs_own_code(module: Any, given: dict[str, Any]) -> bool:
    weights = given.get("output_attentions")
    if weights is None:
        weights = getattr(module.config, "output_attentions", False)
    masks = [
        given.get(name)
        for name in ("attention_mask", "decoder_attention_mask", "encoder_attention_mask")
    ]
    return bool(weights) or any(_is_dense(mask) for mask in masks)


def _is_dense(mask: Any) -> bool:
    if isinstance(mask, dict):
        return any(_is_dense(part) for part in mask.values())
    return isinstance(mask, Tensor) and mask.dim() > 2


def _own_mask(site: Site, value: Any) -> Any:
    """An argument as the model's own code expects it: masks as tensors, everything else untouched."""
    if type(value) is dict:  # masks by layer type. Outputs of other models are of subclasses of dict.
        return {name: _own_mask(site, part) for name, part in value.items()}
    return value.own(site.patch.configs[0][1]) if isinstance(value, Visible) else value
