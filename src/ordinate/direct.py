"""Operators without their way through PyTorch's dispatcher, for calls that nobody looks on at.

That way takes the host as long as a short kernel takes the device. Who looks on, a compiler say, must see an operator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _python_dispatch

from .numerics import is_transformed, pushes_forward

_PLAIN = (Tensor, torch.nn.Parameter)


def somebody_looks_on(*tensors: Tensor) -> bool:
    """Whether there is a compiler, transform, tracer, dispatch mode, forward-mode gradient or subclass of tensors.

    Dispatch modes are how selective checkpointing knows what to save, counters count and fake tensors stay fake.
    """
    return (
        torch.compiler.is_compiling()
        or is_transformed()
        or _python_dispatch.is_in_torch_dispatch_mode()
        or torch.jit.is_tracing()
        or pushes_forward()
        or any(type(tensor) not in _PLAIN for tensor in tensors)
    )


def refuse_second_derivatives(backward_op: Any, impl: str) -> None:
    """Register with an operator that computes gradients that it has none itself, and who has."""

    def refuse(ctx, *grads):
        raise NotImplementedError(no_second_derivatives(impl))

    backward_op.register_autograd(refuse)


def no_second_derivatives(impl: str) -> str:
    return f"impl must be 'reference' for second derivatives, got {impl!r}, which has the first alone"


def autograd_function(run: Callable, setup_context: Callable, pull_back: Callable) -> Any:
    """What `register_autograd` makes of the same functions, around ``run`` itself.

    PyTorch would bind the arguments to a signature for a ``setup_context`` of the class's own, which takes half as long
    as the dispatcher.
    """

    class Direct(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *inputs):
            output = run(*inputs)
            setup_context(ctx, inputs, output)
            return output

        backward = staticmethod(pull_back)

    return Direct
