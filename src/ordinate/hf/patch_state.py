"""What a patched model remembers: how to go back, and which of its calls go back for a while."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

from torch import Tensor, nn

NAME = "ordinate"  # of the attention implementation


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
    calls: list[bool] = field(default_factory=list)
    stream: Any = None  # the streaming cache of the call under way
    late: tuple[Any, Any, int] | None = None

    @property
    def bypasses(self) -> int:
        return sum(self.calls)

    # Calls that the model's own code must answer

    def enter(self, own: bool) -> None:
        if own and not self.bypasses:
            self._swap(back=True)
        self.calls.append(own)

    def leave(self) -> None:
        if self.calls.pop() and not self.bypasses:
            self._swap(back=False)

    def start(self) -> None:
        """Have the model's configs name us."""
        self._swap(back=False)

    def _swap(self, *, back: bool) -> None:
        for config, before in self.configs:
            now, then = (NAME, before) if back else (before, NAME)
            if config._attn_implementation_internal == now:  # whoever chose another one since keeps it
                config._attn_implementation_internal = then

    # Copies

    def __deepcopy__(self, memo: dict[int, Any]) -> Patch:
        twin = memo[id(self)] = object.__new__(type(self))
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        for applier in twin.appliers:
            applier.install()  # counted for the copied model too
        return twin

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "model must be unpatched before it is pickled whole (state_dict and save_pretrained work as it "
            "is), got a patched one"
        )

    # Queries and keys that turn late, after the cache, because what is cached turns anew in every pass

    def expect_late(self, turn: Any, form: Any, tensors: list[Tensor]) -> None:
        """Remember that attention is to turn what comes next."""
        if self.late is not None or len(tensors) != 2:
            raise NotImplementedError(
                "queries and keys must be turned together and then attend, where cached keys turn anew "
                "(dynamic NTK, LongRoPE, a streaming cache), got a layer that does it in another way"
            )
        self.late = turn, form, tensors[1].shape[-1]

    def turn_late(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and all keys, from the cache and new, turned at the places they have now."""
        if self.late is None:
            return query, key
        (turn, form, head_dim), self.late = self.late, None
        if key.shape[-1] != head_dim:
            raise NotImplementedError(
                f"keys must be turned whole where cached keys turn anew (dynamic NTK, LongRoPE, a streaming "
                f"cache), got {head_dim} of {key.shape[-1]} channels"
            )
        query, key = turn.apply(form, query, key, key.shape[-2])
        return query, key


@dataclass(eq=False)
class Site:
    """What `patch` leaves on a module: whose patch it is, and what the module used before.

    Attributes:
        implementation: The attention implementation of the module's config before.
        slot: The attribute that held, or now holds, a forward of this module's own; None if untouched.
        previous: What that attribute held, None for the forward of the class.
    """

    module: nn.Module
    patch: Patch
    implementation: str
    slot: str | None = None
    previous: Callable[..., Any] | None = None

    @property
    def own_forward(self) -> Callable[..., Any]:
        """The forward the module had before."""
        if self.previous is not None:
            return self.previous
        return MethodType(type(self.module).forward, self.module)

    def run_own(self, *args: Any, **kwargs: Any) -> Any:
        """Call that forward, with the config naming what it did before."""
        self.patch.enter(own=True)
        try:
            return self.own_forward(*args, **kwargs)
        finally:
            self.patch.leave()

    def replace_forward(self, forward: Callable[..., Any]) -> None:
        # Accelerate's hooks wrap what they keep under another name.
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
        return self.patch.bypasses > 0


def site_of(module: nn.Module) -> Site | None:
    site = module.__dict__.get("_ordinate")
    assert site is None or isinstance(site, Site)
    return site
