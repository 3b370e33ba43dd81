"""PyTorch's private names, all of them, each with what is done where it is missing.

A missing name is taken for "traced" or "cannot": the call is slower or refused, never a wrong number.
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
    """A function that a compiler calls instead of tracing it, as `torch.compiler.assume_constant_result` makes one,
    which would import the compiler. (Graphs are guarded by the transforms around them.)"""
    question._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return question


@constant_while_compiling
def is_transformed() -> bool:
    """Whether ``torch.func`` transforms what is computed now; without the name, always."""
    try:
        return torch._C._functorch.peek_interpreter_stack() is not None
    except AttributeError:
        return True


@constant_while_compiling
def is_transformed_beyond_grad() -> bool:
    """Whether it is more than one ``grad``, ``vjp`` or ``jacrev``; without the names, always."""
    try:
        innermost = torch._C._functorch.peek_interpreter_stack()
        return innermost is not None and (
            innermost.level() > 1 or innermost.key() != torch._C._functorch.TransformType.Grad
        )
    except AttributeError:
        return True


_PLAIN = (Tensor, torch.nn.Parameter, NoneType)


def is_traced(*tensors: Tensor | None) -> bool:
    """Whether tensors may be stand-ins for others: under torch.compile, torch.func, a dispatch mode, a tracer or
    forward-mode gradients, and where one is of a subclass; without a private name, always.

    Such a call goes through PyTorch's dispatcher, and neither reads nor fills a cache. (By dispatch modes selective
    checkpointing knows what to save, counters count and fake tensors stay fake.)
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
    for tensor in tensors:  # noqa: SIM110  in short calls a generator would show
        if type(tensor) not in _PLAIN:
            return True
    return False


def has_forward_gradients() -> bool:
    """Whether dual tensors may be about; without the name, always."""
    return bool(getattr(forward_ad, "_current_level", 0) >= 0)


def unwrapped(tensor: Tensor) -> Tensor:
    """The numbers behind a tensor of ``torch.func``; without the names itself, which may refuse to be read."""
    try:
        while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            tensor = torch._C._functorch.get_unwrapped(tensor)
    except AttributeError:
        pass
    return tensor


def assert_on_device(inside: Tensor, message: str) -> bool:
    """Add an assertion that a compiled graph keeps (`torch._assert_async` is dropped); without the name, False."""
    try:
        torch.ops.aten._assert_async.msg(inside, message)
    except AttributeError:
        return False
    return True


def cpu_attention() -> tuple[Any, Any] | None:
    """PyTorch's fused attention of the CPU and its gradient, which take a mask with overlapping strides; or None."""
    try:
        forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return forward, torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    except AttributeError:
        return None
