"""`patch`: positions and attention of a live model of transformers by ordinate, and back again.

Nothing is copied or renamed: parameters, buffers, module names and ``state_dict`` stay what they are. The model gets
a config of its own that names the attention implementation ``"ordinate"``, its rotary modules mark what they
return, and layers older than the attention interface get another forward. `unpatch` takes all of it back.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn, get_args

from torch import nn

from ...attending.api import Impl
from ...bias.alibi import ALiBi
from ...checks import check_bool, check_choice, refusal_of
from ...encoding import NoPE
from ...extras import how_to_install
from ...rotate.rope import RoPE
from ..config.api import from_config
from ..config.plan import ConfigError, describe_encoding
from . import calls as patch_calls
from . import check as patch_check
from . import layers as patch_layers
from . import rotary as patch_rotary
from .attention_interface import register_attention, uses_interface, why_its_own
from .recognise import Found, recognise
from .rotary import RotarySite
from .state import Patch, Site, site_of

_FORWARDS: dict[str, tuple[Callable, str]] = {
    "T5Attention": (patch_layers.t5_forward, "T5 buckets"),
    "MT5Attention": (patch_layers.t5_forward, "T5 buckets"),
    "UMT5Attention": (patch_layers.umt5_forward, "T5 buckets, a table per layer"),
    "BloomAttention": (patch_layers.bloom_forward, "ALiBi"),
    "MptAttention": (patch_layers.mpt_forward, "ALiBi"),
    "FalconAttention": (patch_layers.falcon_forward, "ALiBi or RoPE"),
    "GPTJAttention": (patch_layers.gptj_forward, "RoPE, interleaved"),
}


class PatchedModule(NamedTuple):
    """One line of a report: modules of one kind, how many, and what was done or why not."""

    name: str
    kind: str
    how_many: int
    what: str


@dataclass(frozen=True)
class PatchReport:
    """What `patch` did to a model, what it left alone, and what it was seen to answer as before.

    Attributes:
        asked: What the model was asked before and after, with the same answer.
        unasked: What it takes or does and could not be asked, each with the reason.
    """

    model: str
    impl: str
    changed: tuple[PatchedModule, ...]
    left_alone: tuple[PatchedModule, ...]
    asked: tuple[str, ...] = ()
    unasked: tuple[str, ...] = ()

    @property
    def checked(self) -> bool:
        """Whether the model was seen to answer as before, with every kind of input that it takes."""
        return bool(self.asked) and not self.unasked

    def __str__(self) -> str:
        asked = ", ".join(self.asked)
        seen = f"answers as before ({asked})" if self.checked else f"as before with {asked}"
        lines = [f"{self.model}, patched (impl={self.impl!r}), {seen if asked else 'not checked'}"]
        rows = [("changed", entry) for entry in self.changed]
        rows += [("left alone", entry) for entry in self.left_alone]
        for title, entry in rows:
            count = f" × {entry.how_many}" if entry.how_many > 1 else ""
            lines.append(f"  {title:<10}  {entry.kind}{count} ({entry.name}): {entry.what}")
        lines += [f"  unchecked   {what}" for what in self.unasked]
        return "\n".join(lines)

    __repr__ = __str__


def patch(model: nn.Module, *, impl: Impl = "auto", check: bool = True) -> PatchReport:
    """Have a live model of transformers rotate and attend by ordinate. The model is changed in place.

    Outputs and gradients stay the same within the rounding of the dtype; parameters are the model's own.
    It goes on working with ``generate``, caches, padding, training, gradient checkpointing and
    ``save_pretrained``. A call that asks for attention weights or brings a mask of its own with four
    dimensions is answered by the model's own code, as before.

    Two things do change, for there the model's own code contradicts itself: dynamic NTK and LongRoPE
    follow the length of each row alone, by its tokens in ``attention_mask``, and turn cached keys anew; and a
    query of padding, which sees no token, gives zeros instead of an average of what is masked.

    Args:
        model: A model of transformers with RoPE, T5's bias or ALiBi.
        impl: The implementation of `ordinate.attention` to use.
        check: Let the model answer before and after, and leave it as it was if the answers differ: a few
            tokens, with padding, fed in pieces and decoded with a cache, and every other kind of input that
            it takes. What it could not be asked is in the report.

    Returns:
        What was changed and what was left alone; print it.

    Raises:
        TypeError: ``model`` is not a model of transformers.
        ValueError: It is patched already, on the meta device, has no positions that act in attention, or
            does not answer as before; it is then unchanged.
    """
    try:
        from transformers import PreTrainedModel
    except ImportError as missing:
        raise ImportError(f"patch needs transformers: {how_to_install('hf')}") from missing
    check_choice("impl", impl, get_args(Impl))
    check_bool("check", check)
    if not isinstance(model, PreTrainedModel):
        wrapped = getattr(model, "get_base_model", None)  # of PEFT
        raise TypeError(
            f"model must be a PreTrainedModel of transformers"
            f"{', such as get_base_model() gives' if callable(wrapped) else ''}, got {type(model).__name__}"
        )
    if any(site_of(module) is not None for module in model.modules()):
        raise ValueError(f"model must not be patched already, got a patched {type(model).__name__}")
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ValueError(
            f"model must have its weights loaded, got {type(model).__name__} on the meta device"
        )
    if not check:
        return _taken_over(_Patching(model, impl).run(), _Seen())
    before = patch_check.answers(model)
    patching = _Patching(model, impl).run()
    seen = _compare(model, patching.patch, before)
    if seen.problem is not None:
        unpatch(model)
        before = patch_check.steady(before, patch_check.answers(model))
        patching = _Patching(model, impl).run()
        seen = _compare(model, patching.patch, before)
    if seen.problem is not None and patching.turns_late:
        unpatch(model)
        patching = _Patching(model, impl, why_not_late=seen.problem).run()
        seen = _compare(model, patching.patch, before)
    elif seen.problem is not None and patching.may_turn_alone():
        unpatch(model)
        why = f"attention by ordinate does not answer as before: {seen.problem}"
        patching = _Patching(model, impl, why).run()
        seen = _compare(model, patching.patch, before)
    if seen.problem is not None:
        unpatch(model)
        raise ValueError(
            f"model must answer as before once it is patched, got {type(model).__name__} with "
            f"{seen.problem}; it is left as it was"
        )
    return _taken_over(patching, seen)


class _Seen(NamedTuple):
    """What a patched model was asked with the same answer, what it could not be, and what is wrong, if anything."""

    asked: tuple[str, ...] = ()
    unasked: tuple[str, ...] = ()
    problem: str | None = None


def _taken_over(patching: _Patching, seen: _Seen) -> PatchReport:
    """The report, unless there turned out to be nothing in it."""
    report = patching.report(seen)
    if not report.changed:
        unpatch(patching.model)
        patching.refuse()
    return report


def _compare(model: nn.Module, patch: Patch, before: dict[str, patch_check.Answer | str]) -> _Seen:
    """Ask a patched model what it was asked before."""
    patch.attended = {}
    after, exact = patch_check.answers(model), patch_check.is_exact(model)
    asked, unasked = [], []
    meant = _differs_from(model) < patch_check.LONGEST
    for request, theirs in before.items():
        ours = after[request]
        if isinstance(theirs, str):
            # A model whose own code takes no prompt in pieces has nothing there that could change.
            if request != patch_check.PIECES:
                unasked.append(f"{request}: before the patch it answered {theirs}")
            continue
        if meant and request in (patch_check.DECODING, patch_check.PIECES):
            unasked.append(
                f"{request}: it is meant to differ past the length that the model was trained at"
            )
            continue
        if isinstance(ours, str):
            return _Seen(problem=f"{ours} ({request})")
        alone = slice(1) if meant and request == patch_check.PADDED else slice(None)
        apart = patch_check.difference(theirs, ours, alone, exact)
        if apart > patch_check.allowed(exact):
            return _Seen(problem=f"answers {apart:.2g} of their size apart ({request})")
        asked.append(request)
    if not before:
        unasked.append("everything: it takes no kind of input that is known")
    return _Seen(tuple(asked), tuple(unasked))


def _differs_from(model: nn.Module) -> float:
    """The length from which on rows are meant to turn by their own lengths."""
    sites = [site_of(module) for module in model.modules()]
    sources = [x for site in sites if isinstance(site, RotarySite) for x in site.sources.values()]
    return min((x.original_max_positions for x in sources if x.length_dependent), default=float("inf"))


def unpatch(model: nn.Module) -> None:
    """Undo `patch`: the model's own code, bit for bit.

    Raises:
        ValueError: ``model`` is not patched.
    """
    site = site_of(model) if isinstance(model, nn.Module) else None
    if site is None:
        raise ValueError(f"model must be one that patch was given, got {type(model).__name__}")
    state = site.patch
    for module, name, config in state.shared_configs:
        module.__dict__[name] = config
    for module in state.hooked:
        patch_calls.unhook(module)
    for applier in state.appliers:
        applier.remove()
    for changed in state.sites:
        changed.restore()


class _Patching:
    """One run of `patch`: look at everything first, then change.

    Args:
        why: What went wrong with attention by ordinate: only the rotation is to be.
        why_not_late: What went wrong with keys that turn anew in attention: where they would, only attention is to be.
    """

    def __init__(
        self, model: Any, impl: str, why: str | None = None, why_not_late: str | None = None
    ) -> None:
        self.model, self.patch, self.why, self.why_not_late = model, Patch(impl), why, why_not_late
        self.layers: list[nn.Module] = []
        self.changed: list[PatchedModule] = []
        self.left_alone: list[PatchedModule] = []
        self.names = {module: name for name, module in model.named_modules()}

    def run(self) -> _Patching:
        owners = self._owners()
        self.layers = [layer for layers in owners.values() for layer in layers]
        written = [] if _are_rewritten(self.layers) else map(why_its_own, map(type, self.layers))
        self.why = self.why or next(filter(None, written), None)
        if self.why is not None and self.why_not_late is None:
            self.why_not_late = self.why
        rotary = self._rotary(owners)
        self._refuse_nothing(owners)
        if self.why is None:
            register_attention()
            self._own_configs(owners)
        for owner, layers in owners.items():
            self._layers(owner, layers)
        for module, (owner, found) in rotary.items():
            site = RotarySite(
                module,
                self.patch,
                owner.config._attn_implementation,
                sources=found.sources,
                forms=found.forms,
            )
            self._add(site)
            site.replace_forward(patch_rotary.rotary_forward)
        appliers = dict.fromkeys(
            applier
            for layers in owners.values()
            for layer in layers
            for applier in patch_rotary.appliers_of(layer)
        )
        for applier in appliers if rotary else ():
            applier.install()
            self.patch.appliers.append(applier)
        self._hook(owners)
        self.patch.start()
        return self

    def may_turn_alone(self) -> bool:
        """Whether the rotation can be ordinate's where attention is not."""
        if self.why is not None or _are_rewritten(self.layers):
            return False
        return any(isinstance(site, RotarySite) for site in self.patch.sites)

    @property
    def turns_late(self) -> bool:
        """Whether keys turn anew in every pass, by the length that their row has then."""
        sites = [site for site in self.patch.sites if isinstance(site, RotarySite)]
        return any(source.length_dependent for site in sites for source in site.sources.values())

    def report(self, seen: _Seen) -> PatchReport:
        """What was done; an attention layer that was seen to need its own code is not called changed."""
        attended = self.patch.attended or {}
        why = self.why or "it attends by a mask of its own making, which only its own code obeys"
        for kind, alike in _by_kind(self.layers).items():
            positions = f", {_FORWARDS[kind][1]}" if kind in _FORWARDS else ""
            ours = [layer for layer in alike if self.why is None and attended.get(layer, True)]
            if ours:
                self._report(self.changed, ours, f"attention by ordinate{positions}")
            self._leave([layer for layer in alike if layer not in ours], why)
        self.patch.attended = None
        return PatchReport(
            type(self.model).__name__, self.patch.impl, tuple(self.changed), tuple(self.left_alone),
            seen.asked, seen.unasked,
        )  # fmt: skip

    def _add(self, site: Site) -> None:
        site.module.__dict__["_ordinate"] = site
        self.patch.sites.append(site)

    # Looking

    def _owners(self) -> dict[Any, list[nn.Module]]:
        """Models within the model, each with the attention layers ordinate can serve."""
        owners: dict[Any, list[nn.Module]] = {}
        others: dict[Any, list[nn.Module]] = {}
        for owner, module in _with_owner(self.model):
            if type(module).__name__ in _FORWARDS or uses_interface(module):
                owners.setdefault(owner, []).append(module)
            elif type(module).__name__.endswith(("Attention", "Attention2")) and not any(
                type(part).__name__.endswith("Attention") for part in list(module.modules())[1:]
            ):
                others.setdefault(owner, []).append(module)
        for owner, modules in others.items():
            self._leave(modules, "its attention has no interface to enter by")
            if owner in owners:
                self._leave(owners.pop(owner), "its model also has attention of another kind")
        main = type(self.model.config.get_text_config())
        for owner in list(owners):
            mine = type(owner.config)
            if mine is not main and mine is not type(self.model.config):
                self._leave(
                    owners.pop(owner),
                    "it sees no text, and positions in it are not of the config's plan",
                )
        return owners

    def _rotary(self, owners: dict[Any, list[nn.Module]]) -> dict[nn.Module, tuple[Any, Found]]:
        """Rotary modules that were recognised."""
        recognised = {}
        encodings, problem = self._plan()
        for owner, module in _with_owner(self.model):
            if owner not in owners or not patch_rotary.is_rotary(module):
                continue
            if not encodings and problem is None:
                self._leave([module], "nothing turns by it: the config's plan has no rotation")
                continue
            appliers = dict.fromkeys(
                a for layer in owners[owner] for a in patch_rotary.appliers_of(layer)
            )
            found = recognise(module, encodings, appliers)
            if not found.sources:
                reason = problem or "no encoding of the config's plan turns as its code does"
                self._leave([module], f"rotation by its own code: {reason}")
                continue
            if self.why_not_late and any(source.length_dependent for source in found.sources.values()):
                reason = f"cached keys cannot turn anew in its attention: {self.why_not_late}"
                self._leave([module], f"rotation by its own code: {reason}")
                continue
            recognised[module] = owner, found
            what = [_source_name(kind, source) for kind, source in found.sources.items()]
            if found.notes and problem:
                what.append(problem)
            self._report(self.changed, [module], "; ".join(dict.fromkeys([*what, *found.notes])))
        return recognised

    def _plan(self) -> tuple[list[RoPE], str | None]:
        try:
            plan = from_config(self.model.config)
        except ConfigError as problem:
            return [], str(replace(refusal_of(problem), advice=""))  # the advice is for `from_config`
        # Of layers that could turn theirs, for what others cache may be no keys of tokens: Mllama's are of images.
        known = {getattr(x, "layer_idx", None) for x in self.layers if _could_turn(x)}
        still = {x.index for x in plan.layers if type(x.encoding) in (NoPE, ALiBi)}
        self.patch.still = frozenset(still & known)
        found = dict.fromkeys(x.encoding for x in plan.layers)
        return [encoding for encoding in found if isinstance(encoding, RoPE)], None

    def _refuse_nothing(self, owners: dict[Any, list[nn.Module]]) -> None:
        kinds = {type(layer).__name__ for layers in owners.values() for layer in layers}
        rotates = any("RotaryEmbedding" in type(module).__name__ for module in self.names)
        if not owners or not (rotates or kinds & set(_FORWARDS)):
            self.refuse()

    def refuse(self) -> NoReturn:
        reasons = [f"{entry.kind}: {entry.what}" for entry in self.left_alone]
        raise ValueError(
            f"model must turn queries and keys or bias its logits by position (RoPE, T5, ALiBi) in a way "
            f"that can be taken over, got {type(self.model).__name__} "
            f"({'; '.join(reasons) or self._why_nothing()})"
        )

    def _why_nothing(self) -> str:
        """Why a model has nothing to patch, where no module of it was looked at and left."""
        if not self.layers:
            return "none of its layers attends through transformers' attention interface"
        rotate = [kind for kind in _by_kind([*self.names]) if re.search("rope|rotary", kind, re.I)]
        if rotate:
            return f"{', '.join(rotate)}: it makes no rotations from position_ids"
        return "its attention layers have neither a rotation nor a bias that ordinate knows"

    # Changing

    def _own_configs(self, owners: dict[Any, list[nn.Module]]) -> None:
        """Configs of this model's own: they may be shared with models that are not patched."""
        from transformers import PreTrainedConfig

        memo: dict[int, Any] = {}
        for module in self.model.modules():
            for name, value in list(vars(module).items()):
                if isinstance(value, PreTrainedConfig):
                    self.patch.shared_configs.append((module, name, value))
                    module.__dict__[name] = copy.deepcopy(value, memo)
        for owner in owners:
            if all(owner.config is not config for config, _ in self.patch.configs):
                self.patch.configs.append((owner.config, owner.config._attn_implementation))

    def _layers(self, owner: Any, layers: list[nn.Module]) -> None:
        for layer in layers:
            site = patch_layers.make_site(layer, self.patch, owner.config._attn_implementation)
            site.why = self.why
            self._add(site)
            if self.why is None and type(layer).__name__ in _FORWARDS:
                site.replace_forward(_FORWARDS[type(layer).__name__][0])

    def _hook(self, owners: dict[Any, list[nn.Module]]) -> None:
        from transformers import PreTrainedModel

        for module in self.model.modules():
            if isinstance(module, PreTrainedModel) and any(
                layers_of in owners for layers_of in module.modules()
            ):
                if site_of(module) is None:
                    self._add(Site(module, self.patch, ""))
                patch_calls.hook(module)
                self.patch.hooked.append(module)

    # Telling

    def _leave(self, modules: list[nn.Module], why: str) -> None:
        for alike in _by_kind(modules).values():
            self._report(self.left_alone, alike, why)

    def _report(self, where: list[PatchedModule], modules: list[nn.Module], what: str) -> None:
        where.append(
            PatchedModule(self.names[modules[0]], type(modules[0]).__name__, len(modules), what)
        )


def _are_rewritten(layers: list[nn.Module]) -> bool:
    return any(type(layer).__name__ in _FORWARDS for layer in layers)


def _could_turn(layer: nn.Module) -> bool:
    return _are_rewritten([layer]) or bool(patch_rotary.appliers_of(layer))


def _source_name(layer_type: str | None, source: patch_rotary.Source) -> str:
    text = "RoPE" if isinstance(source, patch_rotary.LiveFrequencies) else describe_encoding(source.rope)
    return text if layer_type is None else f"{layer_type}: {text}"


def _by_kind(modules: list[nn.Module]) -> dict[str, list[nn.Module]]:
    kinds: dict[str, list[nn.Module]] = {}
    for module in modules:
        kinds.setdefault(type(module).__name__, []).append(module)
    return kinds


def _with_owner(model: nn.Module) -> Iterator[tuple[Any, nn.Module]]:
    """Every module with the innermost model of transformers it is a part of."""
    from transformers import PreTrainedModel

    def walk(module: nn.Module, owner: nn.Module) -> Iterator[tuple[Any, nn.Module]]:
        owner = module if isinstance(module, PreTrainedModel) else owner
        yield owner, module
        for child in module.children():
            yield from walk(child, owner)

    yield from walk(model, model)
