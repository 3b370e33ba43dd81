"""Modes that refuse float64 tensors made anywhere but in `numerics.in_float64`."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from torch import Tensor, float64
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ordinate import numerics


class Refused(AssertionError):
    """A float64 tensor was made elsewhere."""


def _check(function: Any, given: Any, made: Any) -> None:
    """Results in float64 come from `in_float64`; a view of what it made is nothing new."""
    new = [x for x in tree_leaves(made) if isinstance(x, Tensor) and x.dtype == float64]
    if not new or _inside(sys._getframe(2)):
        return
    old = {x.untyped_storage()._cdata for x in tree_leaves(given) if isinstance(x, Tensor)}
    if any(x.untyped_storage()._cdata not in old for x in new):
        raise Refused(f"{function} made a float64 tensor")


def _inside(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code is numerics.in_float64.__code__:
            return True
        frame = frame.f_back
    return False


class Dispatched(TorchDispatchMode):
    """Sees every operator. While it looks on, nothing is cached."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        _check(func, (args, kwargs), made)
        return made


class Called(TorchFunctionMode):
    """Sees the calls of PyTorch's functions, and does not keep anything from being cached."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        _check(func, (args, kwargs), made)
        return made
