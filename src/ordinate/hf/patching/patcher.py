"""`Patcher`: finds the layers and rotary modules that ordinate supports, then changes them."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import nn

from ...bias.alibi import ALiBi
from ...checks import refusal_of, refused
from ...encoding import NoPE
from ...rotate.rope import RoPE
from ...text import Text
from ..config.api import from_config
from ..config.plan import ConfigError, describe_encoding
from .attention_interface import own_code_reason, register_attention, uses_interface
from .call_hooks import hook
from .check import Comparison
from .layer_forwards import FORWARDS, make_state
from .recognise import Recognised, recognise
from .report import PatchedModule, PatchReport
from .rotary import RotaryFunction, RotaryState, is_rotary, rotary_forward, rotary_functions
from .rotations import Frequencies, LiveFrequencies
from .state import ModuleState, Patch, state_of

# A model within the model, and its attention layers.
Owners = dict[Any, list[nn.Module]]


class Patcher:
    """One attempt to patch a model. Changes nothing before the search of the complete model is done.

    Args:
        no_attention: Why attention must not be replaced; None to replace it.
        no_deferral: Why attention cannot rotate all cached keys in every call; rotations that need this are then not
            replaced.
    """

    def __init__(
        self, model: Any, impl: str, no_attention: str | None = None, no_deferral: str | None = None
    ) -> None:
        self.model, self.patch = model, Patch(impl)
        self.no_attention, self.no_deferral = no_attention, no_deferral
        self.layers: list[nn.Module] = []
        self.changed: list[PatchedModule] = []
        self.left_alone: list[PatchedModule] = []
        self.names = {module: name for name, module in model.named_modules()}

    def run(self) -> None:
        """Patch the model."""
        owners = self._find_layers()
        self.layers = [layer for layers in owners.values() for layer in layers]
        if self.no_attention is None and not _any_rewritten(self.layers):
            reasons = map(own_code_reason, map(type, self.layers))
            self.no_attention = next(filter(None, reasons), None)
        self.no_deferral = self.no_deferral or self.no_attention
        rotary = self._find_rotary_modules(owners)
        rotates = any("RotaryEmbedding" in type(module).__name__ for module in self.names)
        if not owners or not (rotates or _any_rewritten(self.layers)):
            raise self.nothing_to_patch()
        if self.no_attention is None:
            register_attention()
            self._copy_configs(owners)
        for owner, layers in owners.items():
            for layer in layers:
                self._change_layer(layer, owner.config._attn_implementation)
        for module, (owner, found) in rotary.items():
            previous = owner.config._attn_implementation
            state = RotaryState(
                module, self.patch, previous, frequencies=found.frequencies, forms=found.forms
            )
            self._add(state).replace_forward(rotary_forward)
        self.patch.functions = _rotary_functions(self.layers) if rotary else []
        for function in self.patch.functions:
            function.install()
        self._hook(owners)
        self.patch.activate()

    @property
    def can_rotate_alone(self) -> bool:
        """Whether ordinate can rotate where it does not attend."""
        if self.no_attention is not None or _any_rewritten(self.layers):
            return False
        return any(isinstance(state, RotaryState) for state in self.patch.states)

    @property
    def length_limits(self) -> list[float]:
        """For each rotation that depends on the length, the length from which on it does."""
        states = [state for state in self.patch.states if isinstance(state, RotaryState)]
        every = [frequencies for state in states for frequencies in state.frequencies.values()]
        return [x.original_max_positions for x in every if x.length_dependent]

    def report(self, compared: Comparison) -> PatchReport:
        """The report. An attention layer that used its own code in the comparison counts as not patched."""
        attended = self.patch.attended or {}
        reason = "it attends by a mask of its own making, which only its own code obeys"
        for kind, alike in _by_kind(self.layers).items():
            positions = f", {FORWARDS[kind][1]}" if kind in FORWARDS else ""
            ours = [x for x in alike if self.no_attention is None and attended.get(x, True)]
            self._record(self.changed, ours, f"attention by ordinate{positions}")
            own = [layer for layer in alike if layer not in ours]
            self._record(self.left_alone, own, self.no_attention or reason)
        self.patch.attended = None
        return PatchReport(
            type(self.model).__name__, self.patch.impl, tuple(self.changed), tuple(self.left_alone),
            compared.asked, compared.unasked,
        )  # fmt: skip

    def nothing_to_patch(self) -> Exception:
        """The error for a model in which nothing can be patched."""
        kinds = [kind for kind in _by_kind([*self.names]) if re.search("rope|rotary", kind, re.I)]
        if self.left_alone:
            reasons = "; ".join(f"{entry.kind}: {entry.what}" for entry in self.left_alone)
        elif not self.layers:
            reasons = Text("none of its layers attends through transformers' attention interface")
        elif kinds:
            reasons = Text("{kinds}: it makes no rotations from position_ids", kinds=", ".join(kinds))
        else:
            reasons = Text("its attention layers have neither a rotation nor a bias that ordinate knows")
        return refused(
            "model",
            "must rotate queries and keys or bias its logits by position (RoPE, T5, ALiBi) in a way "
            "that can be taken over",
            Text("{kind} ({reasons})", kind=type(self.model).__name__, reasons=reasons),
        )

    # Search

    def _find_layers(self) -> Owners:
        """Models within the model, each with the attention layers that ordinate supports."""
        served: Owners = {}
        others: Owners = {}
        for owner, module in _with_owner(self.model):
            kind = type(module).__name__
            if kind in FORWARDS or uses_interface(type(module)):
                served.setdefault(owner, []).append(module)
            elif kind.endswith(("Attention", "Attention2")) and not any(
                type(part).__name__.endswith("Attention") for part in list(module.modules())[1:]
            ):
                others.setdefault(owner, []).append(module)
        for owner, modules in others.items():
            self._record(self.left_alone, modules, "its attention has no interface to enter by")
            unserved = served.pop(owner, [])
            self._record(self.left_alone, unserved, "its model also has attention of another kind")
        text = {type(self.model.config), type(self.model.config.get_text_config())}
        for owner in [owner for owner in served if type(owner.config) not in text]:
            reason = "it sees no text, and positions in it are not of the config's plan"
            self._record(self.left_alone, served.pop(owner), reason)
        return served

    def _find_rotary_modules(self, owners: Owners) -> dict[nn.Module, tuple[Any, Recognised]]:
        """The rotary modules that are recognised, each with the model that it belongs to."""
        found: dict[nn.Module, tuple[Any, Recognised]] = {}
        encodings, problem = self._read_plan()
        for owner, module in _with_owner(self.model):
            if owner not in owners or not is_rotary(module):
                continue
            if not encodings and problem is None:
                reason = "nothing rotates by it: the config's plan has no rotation"
                self._record(self.left_alone, [module], reason)
                continue
            recognised = recognise(module, encodings, _rotary_functions(owners[owner]))
            frequencies, reason = recognised.frequencies, ""
            if not frequencies:
                reason = problem or "no encoding of the config's plan rotates as its code does"
            elif self.no_deferral and any(x.length_dependent for x in frequencies.values()):
                reason = f"cached keys cannot be rotated anew in its attention: {self.no_deferral}"
            if reason:
                self._record(self.left_alone, [module], f"rotation by its own code: {reason}")
                continue
            found[module] = owner, recognised
            what = [_describe(kind, x) for kind, x in frequencies.items()]
            what += [problem] if recognised.notes and problem else []
            self._record(self.changed, [module], "; ".join(dict.fromkeys([*what, *recognised.notes])))
        return found

    def _read_plan(self) -> tuple[list[RoPE], str | None]:
        """The rotations of the config's plan, or why it cannot be read."""
        try:
            plan = from_config(self.model.config)
        except ConfigError as problem:
            # The advice is for callers of `from_config`.
            return [], str(replace(refusal_of(problem), advice=""))
        # Only layers that could rotate: others may cache keys that are not of tokens, such as Mllama's image keys.
        known = {
            getattr(layer, "layer_idx", None)
            for layer in self.layers
            if _any_rewritten([layer]) or rotary_functions(layer)
        }
        unrotated = {x.index for x in plan.layers if type(x.encoding) in (NoPE, ALiBi)}
        self.patch.unrotated_layers = frozenset(unrotated & known)
        encodings = dict.fromkeys(x.encoding for x in plan.layers)
        return [encoding for encoding in encodings if isinstance(encoding, RoPE)], None

    # Change

    def _copy_configs(self, owners: Owners) -> None:
        """Give the model its own configs, because other models may share the old ones."""
        from transformers import PreTrainedConfig

        memo: dict[int, Any] = {}
        for module in self.model.modules():
            for name, value in list(vars(module).items()):
                if isinstance(value, PreTrainedConfig):
                    self.patch.shared_configs.append((module, name, value))
                    module.__dict__[name] = copy.deepcopy(value, memo)
        configs = {id(owner.config): owner.config for owner in owners}.values()
        self.patch.configs = [(config, config._attn_implementation) for config in configs]

    def _change_layer(self, layer: nn.Module, implementation: str) -> None:
        state = self._add(make_state(layer, self.patch, implementation))
        state.own_code_reason = self.no_attention
        if self.no_attention is None and type(layer).__name__ in FORWARDS:
            state.replace_forward(FORWARDS[type(layer).__name__][0])

    def _hook(self, owners: Owners) -> None:
        """Put hooks on every model that has changed attention layers."""
        from transformers import PreTrainedModel

        for module in self.model.modules():
            if isinstance(module, PreTrainedModel) and any(x in owners for x in module.modules()):
                if state_of(module) is None:
                    self._add(ModuleState(module, self.patch, ""))
                self.patch.handles += hook(module)

    def _add(self, state: ModuleState) -> ModuleState:
        state.module.__dict__["_ordinate"] = state
        self.patch.states.append(state)
        return state

    def _record(self, where: list[PatchedModule], modules: list[nn.Module], what: str) -> None:
        for kind, alike in _by_kind(modules).items():
            where.append(PatchedModule(self.names[alike[0]], kind, len(alike), what))


def _any_rewritten(layers: list[nn.Module]) -> bool:
    return any(type(layer).__name__ in FORWARDS for layer in layers)


def _rotary_functions(layers: list[nn.Module]) -> list[RotaryFunction]:
    return [*dict.fromkeys(x for layer in layers for x in rotary_functions(layer))]


def _describe(layer_type: str | None, found: Frequencies) -> str:
    text = "RoPE" if isinstance(found, LiveFrequencies) else describe_encoding(found.rope)
    return text if layer_type is None else f"{layer_type}: {text}"


def _by_kind(modules: list[nn.Module]) -> dict[str, list[nn.Module]]:
    kinds: dict[str, list[nn.Module]] = {}
    for module in modules:
        kinds.setdefault(type(module).__name__, []).append(module)
    return kinds


def _with_owner(model: nn.Module) -> Iterator[tuple[Any, nn.Module]]:
    """Every module with the innermost model of transformers that contains it."""
    from transformers import PreTrainedModel

    def walk(module: nn.Module, owner: nn.Module) -> Iterator[tuple[Any, nn.Module]]:
        owner = module if isinstance(module, PreTrainedModel) else owner
        yield owner, module
        for child in module.children():
            yield from walk(child, owner)

    yield from walk(model, model)
