"""`patch` and `unpatch`: let ordinate compute positions and attention of a live model of transformers, and undo it.

Nothing is copied or renamed: parameters, buffers, module names and ``state_dict`` do not change. The model gets its
own config, which names the attention implementation ``"ordinate"``; its rotary modules attach the rotation to
their result; and layers older than the attention interface get another forward.
"""

from __future__ import annotations

from typing import get_args

from torch import nn

from ...attending.api import Impl
from ...checks import check_bool, check_choice, refused
from ...text import Text
from .attention_interface import needs_transformers
from .check import Answers, Comparison, answers, compare, steady
from .patcher import Patcher
from .report import PatchReport
from .state import state_of


def patch(model: nn.Module, *, impl: Impl = "auto", check: bool = True) -> PatchReport:
    """Let ordinate compute rotations and attention of a live model of transformers. The model is changed in place.

    Outputs and gradients stay the same within the rounding of the dtype; parameters are the model's own.
    The model still works with ``generate``, caches, padding, training, gradient checkpointing and
    ``save_pretrained``. A call that asks for attention weights or passes a mask of four
    dimensions is computed by the model's own code, as before.

    Two results differ, because the model's own code is inconsistent there: dynamic NTK and LongRoPE
    use the length of each row, by its tokens in ``attention_mask``, and rotate all cached keys in every call; and a
    query of padding, which sees no token, gives zeros instead of an average of masked values.

    Args:
        model: A model of transformers with RoPE, T5's bias or ALiBi.
        impl: The implementation of `ordinate.attention` to use.
        check: Compare the model's outputs before and after, and undo the patch if they differ: for a few
            tokens, with padding, fed in pieces and decoded with a cache, and for every other kind of input that
            the model takes. The report names what could not be compared.

    Returns:
        A printable report of what was changed and what was not.

    Raises:
        TypeError: ``model`` is not a model of transformers.
        ValueError: The model is patched already, on the meta device, has no positions that act in attention, or
            its outputs differ; it is then unchanged.
    """
    try:
        from transformers import PreTrainedModel
    except ImportError as missing:
        raise needs_transformers("patch") from missing
    check_choice("impl", impl, get_args(Impl))
    check_bool("check", check)
    name = type(model).__name__
    if not isinstance(model, PreTrainedModel):
        rule = "must be a PreTrainedModel of transformers"
        if callable(getattr(model, "get_base_model", None)):  # a PEFT model
            rule = "must be a PreTrainedModel of transformers, such as get_base_model() gives"
        raise refused("model", rule, name, error=TypeError)
    if any(state_of(module) is not None for module in model.modules()):
        raise refused("model", "must not be patched already", Text("a patched {kind}", kind=name))
    if any(parameter.is_meta for parameter in model.parameters()):
        given = Text("{kind} on the meta device", kind=name)
        raise refused("model", "must have its weights loaded", given)
    if check:
        patcher, compared = _patch_and_compare(model, impl)
    else:
        patcher, compared = Patcher(model, impl), Comparison()
        patcher.run()
    report = patcher.report(compared)
    if not report.changed:
        unpatch(model)
        raise patcher.nothing_to_patch()
    return report


def _patch_and_compare(model: nn.Module, impl: str) -> tuple[Patcher, Comparison]:
    """Patch as much of a model as possible without changing its outputs."""
    before = answers(model)
    patcher, compared = _attempt(model, impl, before)
    if compared.problem is not None:
        before = steady(before, answers(model))
        patcher, compared = _attempt(model, impl, before)
    if compared.problem is not None and patcher.length_limits:
        patcher, compared = _attempt(model, impl, before, no_deferral=compared.problem)
    elif compared.problem is not None and patcher.can_rotate_alone:
        reason = Text(
            "attention by ordinate does not answer as before: {problem}", problem=compared.problem
        )
        patcher, compared = _attempt(model, impl, before, no_attention=reason)
    if compared.problem is not None:
        raise refused(
            "model",
            "must answer as before once it is patched",
            Text("{kind} with {problem}", kind=type(model).__name__, problem=compared.problem),
            advice="; it is left as it was",
        )
    return patcher, compared


def _attempt(model: nn.Module, impl: str, before: Answers, **reasons: str) -> tuple[Patcher, Comparison]:
    """Patch a model and compare its outputs; unpatch it if they differ."""
    patcher = Patcher(model, impl, **reasons)
    patcher.run()
    patcher.patch.attended = {}
    compared = compare(model, before, min(patcher.length_limits, default=float("inf")))
    if compared.problem is not None:
        unpatch(model)
    return patcher, compared


def unpatch(model: nn.Module) -> None:
    """Undo `patch`: the model's own code, bit for bit.

    Raises:
        ValueError: ``model`` is not patched.
    """
    state = state_of(model) if isinstance(model, nn.Module) else None
    if state is None:
        raise refused("model", "must be one that patch was given", type(model).__name__)
    patch = state.patch
    for module, name, config in patch.shared_configs:
        module.__dict__[name] = config
    for undo in (*patch.handles, *patch.functions):
        undo.remove()
    for changed in patch.states:
        changed.restore()
