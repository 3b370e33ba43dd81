"""What a patched model remembers: how to undo the patch, and what each thread's call of it is doing."""

from __future__ import annotations

import copy
import functools
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import MethodType
from typing import Any, NamedTuple

from torch import Tensor, nn

from .masks import Visible

NAME = "ordinate"  # of the attention implementation


class Here(threading.local):
    """What this thread's calls of a patched model have under way: a model may be called by several threads.

    Attributes:
        calls: For each call under way, one within the other, whether the model's own code answers it.
        stream: The streaming cache of the call under way.
        waiting: Whether queries and keys were left unturned that no attention has turned yet.
    """

    def __init__(self) -> None:
        self.calls: list[bool] = []
        self.stream: Any = None
        self.waiting = False


class Unturned(NamedTuple):
    """What a query or key bears that its attention is to turn: the rotation, and its form."""

    turn: Any
    form: Any


def unturned(x: Tensor) -> Unturned | None:
    """What a query or key bears if it was left unturned; what a layer made of one, such as a norm, bears nothing."""
    mark = getattr(x, "_ordinate_unturned", None)
    assert mark is None or isinstance(mark, Unturned)
    return mark


@dataclass(eq=False)
class Patch:
    """The state of one patched model, reached from each of its modules that changed."""

    impl: str
    sites: list[Site] = field(default_factory=list)
    hooked: list[nn.Module] = field(default_factory=list)
    appliers: list[Any] = field(default_factory=list)
    # Where a module held a config: the module, the attribute, and the config shared before.
    shared_configs: list[tuple[nn.Module, str, Any]] = field(default_factory=list)
    # Each config of this model's own that names us, and the implementation it named before.
    configs: list[tuple[Any, str]] = field(default_factory=list)
    # Layers that turn no keys, by the config's plan: what they cache is the same wherever it stands.
    still: frozenset[int] = frozenset()
    here: Here = field(default_factory=Here)
    # While `patch` looks on: for each attention layer that was called, whether ordinate ever answered.
    attended: dict[nn.Module, bool] | None = None

    # Calls that the model's own code must answer

    @property
    def bypassed(self) -> bool:
        """Whether the model's own code answers the call under way in this thread."""
        return any(self.here.calls)

    def enter(self, own: bool) -> None:
        self.here.calls.append(own)

    def leave(self) -> None:
        self.here.calls.pop()

    def note(self, layer: nn.Module, ours: bool) -> None:
        """Remember who answered a call of an attention layer, while `patch` looks on."""
        if self.attended is not None:
            self.attended[layer] = ours or self.attended.get(layer, False)

    def check_chosen(self) -> None:
        """Refuse a pass whose keys are to turn in attention, where another attention was chosen since."""
        for config, _ in self.configs:
            if config._attn_implementation != NAME:
                raise NotImplementedError(
                    f"attn_implementation must be {NAME!r} where cached keys turn anew (dynamic NTK, LongRoPE, "
                    f"a streaming cache), got {config._attn_implementation!r}: choose it by "
                    f"set_attn_implementation({NAME!r}), or unpatch the model"
                )

    def start(self) -> None:
        """Have the model's configs name us, except in bypassed calls."""
        for config, _ in self.configs:
            config._attn_implementation_internal = NAME
        self._name_by_call()

    def _name_by_call(self) -> None:
        for config, before in self.configs:
            config.__class__ = _named_by_call(type(config), self, before)

    # Copies

    def __deepcopy__(self, memo: dict[int, Any]) -> Patch:
        twin = memo[id(self)] = object.__new__(type(self))
        twin.here = Here()
        kept = {name: value for name, value in self.__dict__.items() if name != "here"}
        twin.__dict__.update(copy.deepcopy(kept, memo))
        twin._name_by_call()
        for applier in twin.appliers:
            applier.install()  # counted for the copied model too
        return twin

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "model must be unpatched before it is pickled whole (state_dict and save_pretrained work as it "
            "is), got a patched one"
        )

    # Late rotation: keys are cached before they are turned, and all of them are turned when attention reads them

    def leave_unturned(self, turn: Any, form: Any, tensors: list[Tensor]) -> None:
        """Leave the rotation of a layer's queries and keys to its attention, which comes next."""
        _check_late(not self.here.waiting and len(tensors) == 2)
        self.here.waiting = True
        for x in tensors:
            x._ordinate_unturned = Unturned(turn, form)  # type: ignore[attr-defined]

    def refuse_late(self, query: Tensor, mask: Visible) -> None:
        """Refuse keys that turn anew where their places are unknown: a static cache, and a mask without terms."""
        if unturned(query) is not None and not mask.is_level:
            raise NotImplementedError(
                "past_key_values must not be a static cache where cached keys turn anew (dynamic NTK, LongRoPE) "
                "and the mask has rules other than causality, windows, chunks and padding, got a static one"
            )

    def turn_late(self, query: Tensor, key: Tensor, mask: Any) -> tuple[Tensor, Tensor]:
        """Queries and all keys, from the cache and new, turned at the places they have now.

        The query's mark says by what, so a layer may attend several times with what it turned once.
        """
        mark = unturned(query)
        if mark is None:
            self.check_none_waits()
            return query, key
        self.here.waiting = False
        mask = mask if isinstance(mask, Visible) else None
        query, key = mark.turn.apply(mark.form, query, key, key.shape[-2], mask)
        return query, key

    def check_none_waits(self) -> None:
        """Refuse attention that did not get what was left to it, or was the model's own."""
        _check_late(not self.here.waiting)


def _check_late(holds: bool) -> None:
    if not holds:
        raise NotImplementedError(
            "queries and keys must be turned whole and together, and then attend as they are, where cached keys "
            "turn anew (dynamic NTK, LongRoPE, a streaming cache), got a layer that does it in another way"
        )


class _NamedByCall:
    """A config that names our implementation, and in a bypassed call the one it named before.

    Attention and masks look the name up in the config, in the middle of a call. Were the name exchanged for
    the time of a call, another thread's call of the same model would find it exchanged.
    """

    ordinate_patch: Patch
    ordinate_before: str

    def __init_subclass__(cls) -> None:
        """Nothing: transformers makes a dataclass of every class of configs, and this adds no field."""

    @property
    def _attn_implementation(self) -> Any:
        # A config that is being made has none yet.
        named: Any = self.__dict__.get("_attn_implementation_internal")
        # Another one may have been chosen after the patch.
        return self.ordinate_before if named == NAME and self.ordinate_patch.bypassed else named

    @_attn_implementation.setter
    def _attn_implementation(self, value: Any) -> None:
        super(_NamedByCall, type(self))._attn_implementation.fset(self, value)  # type: ignore[misc]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy, or what is pickled, is a config of the plain class."""
        return _plain_config, (type(self).__mro__[2],), self.__dict__


def _plain_config(kind: type) -> Any:
    return object.__new__(kind)


def _named_by_call(kind: type, patch: Patch, before: str) -> type:
    """The class of a config that is to be `_NamedByCall`; its name stays, by which transformers knows it."""
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(
        kind.__name__, (_NamedByCall, kind), names | {"ordinate_patch": patch, "ordinate_before": before}
    )


@dataclass(eq=False)
class Site:
    """What `patch` leaves on a module: whose patch it is, and what the module used before.

    Attributes:
        implementation: The attention implementation of the module's config before.
        slot: The attribute that held, or now holds, a forward of this module's own; None if untouched.
        previous: What that attribute held, None for the forward of the class.
        why: Why its attention is left to its own code; None where it is ordinate's.
    """

    module: nn.Module
    patch: Patch
    implementation: str
    slot: str | None = None
    previous: Callable[..., Any] | None = None
    why: str | None = None

    def __post_init__(self) -> None:
        # Looked up here, for it takes a compiler long in every call.
        self._names = tuple(inspect.signature(type(self.module).forward).parameters)[1:]

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """What a call of the module was given, by name."""
        return dict(zip(self._names, args, strict=False)) | kwargs

    @property
    def own_forward(self) -> Callable[..., Any]:
        """The forward the module had before."""
        if self.previous is not None:
            return self.previous
        # Not bound anew: compilers do not trace that.
        return functools.partial(type(self.module).forward, self.module)

    def run_own(self, *args: Any, **kwargs: Any) -> Any:
        """Call that forward, with the config naming the implementation it named before."""
        self.patch.enter(own=True)
        try:
            found = self.own_forward(*args, **kwargs)
        finally:
            self.patch.leave()
        self.patch.check_none_waits()
        return found

    def replace_forward(self, forward: Callable[..., Any]) -> None:
        # A forward that Accelerate has wrapped calls the one kept as _old_forward, so that one is replaced.
        self.slot = "_old_forward" if hasattr(self.module, "_hf_hook") else "forward"
        self.previous = self.module.__dict__.get(self.slot)
        self.module.__dict__[self.slot] = MethodType(forward, self.module)

    def restore(self) -> None:
        """Leave the module as it was."""
        if self.slot is not None and self.previous is None:
            del self.module.__dict__[self.slot]
        elif self.slot is not None:
            self.module.__dict__[self.slot] = self.previous
        del self.module.__dict__["_ordinate"]

    @property
    def bypassed(self) -> bool:
        return self.patch.bypassed


def site_of(module: nn.Module) -> Site | None:
    site = module.__dict__.get("_ordinate")
    assert site is None or isinstance(site, Site)
    return site
