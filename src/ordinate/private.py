"""All uses of PyTorch's private names, each with a fallback if the name is missing.

The fallbacks are "traced" and "not supported": the call is slower or refused, but never wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils import _python_dispatch

Question = TypeVar("Question", bound=Callable[..., object])


def constant_while_compiling(question: Question) -> Question:
    """Mark a function that torch.compile calls instead of tracing, like `torch.compiler.assume_constant_result`,
    which would import the compiler. (Graphs have guards on the torch.func transforms around them.)"""
    question._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return question


@constant_while_compiling
def is_transformed() -> bool:
    """Whether a ``torch.func`` transform is active; True if the private name is missing."""
    try:
        return torch._C._functorch.peek_interpreter_stack() is not None
    except AttributeError:
        return True


@constant_while_compiling
def is_transformed_beyond_grad() -> bool:
    """Whether transforms other than one ``grad``, ``vjp`` or ``jacrev`` are active; True if a name is missing."""
    try:
        innermost = torch._C._functorch.peek_interpreter_stack()
        return innermost is not None and (
            innermost.level() > 1 or innermost.key() != torch._C._functorch.TransformType.Grad
        )
    except AttributeError:
        return True


_PLAIN = (Tensor, torch.nn.Parameter, NoneType)


def is_traced(*tensors: Tensor | None) -> bool:
    """Whether a call is traced: under torch.compile, torch.func, a dispatch mode, a tracer or forward-mode gradients,
    or with a tensor subclass; True if a private name is missing.

    A traced call goes through PyTorch's dispatcher, and neither reads nor fills a cache. (Selective checkpointing,
    FLOP counters and fake tensors are dispatch modes.)
    """
    try:
        if (
            torch.compiler.is_compiling()
            or torch._C._functorch.peek_interpreter_stack() is not None
            or _python_dispatch.is_in_torch_dispatch_mode()
            or forward_ad._current_level >= 0
            or torch.jit.is_tracing()
        ):
            return True
    except AttributeError:
        return True
    for tensor in tensors:  # noqa: SIM110  a generator would slow down short calls
        if type(tensor) not in _PLAIN:
            return True
    return False


def has_forward_gradients() -> bool:
    """Whether there may be dual tensors; True if the private name is missing."""
    return bool(getattr(forward_ad, "_current_level", 0) >= 0)


def unwrapped(tensor: Tensor) -> Tensor:
    """The values of a ``torch.func`` tensor; if a name is missing the tensor itself, whose values may be unreadable."""
    try:
        while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            tensor = torch._C._functorch.get_unwrapped(tensor)
    except AttributeError:
        pass
    return tensor


def assert_on_device(inside: Tensor, message: str) -> bool:
    """Add an assertion that a compiled graph keeps (it drops `torch._assert_async`); False if the name is missing."""
    try:
        torch.ops.aten._assert_async.msg(inside, message)
    except AttributeError:
        return False
    return True


def cpu_attention() -> tuple[Any, Any] | None:
    """PyTorch's fused CPU attention and its gradient, which accept a mask with overlapping strides; or None."""
    try:
        forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return forward, torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    except AttributeError:
        return None
