"""The state of a patched model: how to undo the patch, and what each thread's call is doing."""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import MethodType
from typing import Any, NamedTuple

from torch import Tensor, nn

from ...checks import refused
from ...text import Text
from .masks import MaskDescription

NAME = "ordinate"  # of the attention implementation


class ThreadState(threading.local):
    """The running calls of a patched model in this thread; several threads may call one model.

    Attributes:
        own_code: For each running call, the outermost first, whether the model's own code computes it.
        stream: The streaming cache of the outermost call.
        deferred: Whether attention must still rotate queries and keys.
    """

    def __init__(self) -> None:
        self.own_code: list[bool] = []
        self.stream: Any = None
        self.deferred = False


class DeferredRotation(NamedTuple):
    """The rotation that attention must apply to a query or key: a `PassRotation`, and its `Form`."""

    rotation: Any
    form: Any


def deferred_rotation(x: Tensor) -> DeferredRotation | None:
    """The deferred rotation of a query or key; tensors computed from it (by a norm, say) have none."""
    found: DeferredRotation | None = getattr(x, "_ordinate_deferred", None)
    return found


@dataclass(eq=False)
class Patch:
    """The state of one patched model, shared by its changed modules.

    Attributes:
        states: One for each changed module.
        handles: Of the hooks on models within the model.
        functions: Rotary functions of the model's files that were replaced.
        shared_configs: For each module that held a config: the module, the attribute, and that config.
        configs: Each new config that names ordinate, and the attention implementation it named before.
        unrotated_layers: Indices of the layers without rotation, by the config's plan. Their cached keys do not
            depend on positions.
        attended: During the check of `patch`, for each attention layer that was called, whether ordinate ever
            computed it; None after the check.
    """

    impl: str
    states: list[ModuleState] = field(default_factory=list)
    handles: list[Any] = field(default_factory=list)
    functions: list[Any] = field(default_factory=list)
    shared_configs: list[tuple[nn.Module, str, Any]] = field(default_factory=list)
    configs: list[tuple[Any, str]] = field(default_factory=list)
    unrotated_layers: frozenset[int] = frozenset()
    thread: ThreadState = field(default_factory=ThreadState)
    attended: dict[nn.Module, bool] | None = None

    @property
    def bypassed(self) -> bool:
        """Whether the model's own code computes the running call of this thread."""
        return any(self.thread.own_code)

    def record_attention(self, layer: nn.Module, by_ordinate: bool) -> None:
        """During the check of `patch`, record whether ordinate computed a call of an attention layer."""
        if self.attended is not None:
            self.attended[layer] = by_ordinate or self.attended.get(layer, False)

    def check_implementation(self) -> None:
        """Refuse to defer rotations to attention if another attention implementation was chosen after the patch."""
        for config, _ in self.configs:
            if config._attn_implementation != NAME:
                raise refused(
                    "attn_implementation",
                    "must be '{name}' where cached keys are rotated anew (dynamic NTK, LongRoPE, a streaming cache)",
                    repr(config._attn_implementation),
                    error=NotImplementedError,
                    advice=": choose it by set_attn_implementation('{name}'), or unpatch the model",
                    name=NAME,
                )

    def activate(self) -> None:
        """Make the model's configs name ordinate, except in calls that the model's own code computes."""
        for config, _ in self.configs:
            config._attn_implementation_internal = NAME
        self._replace_config_classes()

    def _replace_config_classes(self) -> None:
        for config, previous in self.configs:
            config.__class__ = _call_dependent(type(config), self, previous)

    # Copies

    def __deepcopy__(self, memo: dict[int, Any]) -> Patch:
        twin = memo[id(self)] = object.__new__(type(self))
        copied = {name: value for name, value in vars(self).items() if name != "thread"}
        vars(twin).update(copy.deepcopy(copied, memo), thread=ThreadState())
        twin._replace_config_classes()
        for function in twin.functions:
            function.install()  # count the copied model too
        return twin

    def __reduce_ex__(self, protocol: Any) -> Any:
        rule = (
            "must be unpatched before it is pickled whole (state_dict and save_pretrained work as it is)"
        )
        raise refused("model", rule, Text("a patched one"), error=TypeError)

    # Deferred rotation: keys are cached unrotated, and attention rotates all of them in every pass

    def defer_rotation(self, rotation: Any, form: Any, tensors: list[Tensor]) -> None:
        """Let the attention that comes next rotate a layer's queries and keys."""
        _check_deferral(not self.thread.deferred and len(tensors) == 2)
        self.thread.deferred = True
        for x in tensors:
            x._ordinate_deferred = DeferredRotation(rotation, form)  # type: ignore[attr-defined]

    def rotate_deferred(
        self, query: Tensor, key: Tensor, mask: Any, *, aligned: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Queries, and all cached and new keys, rotated by their present positions if their rotation was deferred.

        The rotation is read from the query, so a layer may attend several times with the same query.

        Args:
            aligned: Whether the keys are in the order of `MaskDescription.align`.
        """
        deferred = deferred_rotation(query)
        if deferred is None:
            _check_deferral(not self.thread.deferred)
            return query, key
        description = mask if isinstance(mask, MaskDescription) else None
        if description is not None and not aligned and not description.ends_at_query:
            raise refused(
                "past_key_values",
                "must not be a static cache where cached keys are rotated anew (dynamic NTK, LongRoPE) "
                "and the mask has rules other than causality, windows, chunks and padding",
                Text("a static one"),
                error=NotImplementedError,
            )
        self.thread.deferred = False
        query, key = deferred.rotation.rotate(deferred.form, [query, key], key.shape[-2], description)
        return query, key


def _check_deferral(holds: bool) -> None:
    """Refuse layers that rotate parts, or attend with other queries and keys than the deferred ones."""
    if not holds:
        raise refused(
            Text("queries and keys"),
            "must be rotated whole and together, and go to attention unchanged, where cached keys "
            "are rotated anew (dynamic NTK, LongRoPE, a streaming cache)",
            Text("a layer that does it in another way"),
            error=NotImplementedError,
        )


class _CallDependentConfig:
    """A config that names ordinate, but the previous implementation in calls that the model's own code computes.

    Attention and masks read the name from the config during a call. The name depends on the calls of this thread,
    because replacing it during a call would change calls of other threads too.
    """

    ordinate_patch: Patch
    ordinate_previous: str

    def __init_subclass__(cls) -> None:
        """Do nothing: transformers would make a dataclass of this class, but it adds no field."""

    @property
    def _attn_implementation(self) -> Any:
        # A config under construction has no name yet. The user may have set another name after the patch.
        named: Any = self.__dict__.get("_attn_implementation_internal")
        return self.ordinate_previous if named == NAME and self.ordinate_patch.bypassed else named

    @_attn_implementation.setter
    def _attn_implementation(self, value: Any) -> None:
        super(_CallDependentConfig, type(self))._attn_implementation.fset(self, value)  # type: ignore[misc]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copied and pickled configs have the original class."""
        return object.__new__, (type(self).__mro__[2],), self.__dict__


def _call_dependent(kind: type, patch: Patch, previous: str) -> type:
    """A subclass of a config class and `_CallDependentConfig`, with the class's name, which transformers needs."""
    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    names |= {"ordinate_patch": patch, "ordinate_previous": previous}
    return type(kind.__name__, (_CallDependentConfig, kind), names)


@dataclass(eq=False)
class ModuleState:
    """The state that `patch` stores on a changed module: its patch, and what the module used before.

    Attributes:
        implementation: The attention implementation that the module's config named before.
        slot: The attribute that holds the replaced forward; None if the forward is not replaced.
        previous: What that attribute held before; None if the forward was that of the class.
        own_code_reason: Why the model's own code computes this layer's attention; None if ordinate does.
    """

    module: nn.Module
    patch: Patch
    implementation: str
    slot: str | None = None
    previous: Callable[..., Any] | None = None
    own_code_reason: str | None = None

    def __post_init__(self) -> None:
        # Read once, because torch.compile takes long to read a signature.
        self._names = tuple(inspect.signature(type(self.module).forward).parameters)[1:]

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call of the module, by name."""
        return dict(zip(self._names, args, strict=False)) | kwargs

    def own_forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module's original forward."""
        if self.previous is not None:
            return self.previous(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    def run_own(self, *args: Any, **kwargs: Any) -> Any:
        """Call the original forward while the config names the previous attention implementation."""
        self.patch.thread.own_code.append(True)
        try:
            found = self.own_forward(*args, **kwargs)
        finally:
            self.patch.thread.own_code.pop()
        _check_deferral(not self.patch.thread.deferred)
        return found

    def replace_forward(self, forward: Callable[..., Any]) -> None:
        # A forward wrapped by Accelerate calls the forward stored as _old_forward, so replace that one.
        self.slot = "_old_forward" if hasattr(self.module, "_hf_hook") else "forward"
        self.previous = self.module.__dict__.get(self.slot)
        self.module.__dict__[self.slot] = MethodType(forward, self.module)

    def restore(self) -> None:
        """Restore the module's original forward."""
        if self.slot is not None and self.previous is None:
            del self.module.__dict__[self.slot]
        elif self.slot is not None:
            self.module.__dict__[self.slot] = self.previous
        del self.module.__dict__["_ordinate"]


def state_of(module: nn.Module) -> ModuleState | None:
    """The state that `patch` stored on a module; None if it did not change the module."""
    state: ModuleState | None = module.__dict__.get("_ordinate")
    return state


def patched_state(module: nn.Module) -> ModuleState:
    """The state that `patch` stored on a changed module."""
    state: ModuleState = module.__dict__["_ordinate"]
    return state
