"""Who else is at work on a call: compilers, ``torch.func``, dispatch modes, CUDA graphs. One room for the question."""

from __future__ import annotations

import torch
from torch import Tensor

from .private import has_forward_gradients as has_forward_gradients
from .private import in_dispatch_mode
from .private import is_transformed as is_transformed
from .private import is_transformed_beyond_grad as is_transformed_beyond_grad

_PLAIN = (Tensor, torch.nn.Parameter)


def is_traced() -> bool:
    """Whether tensors may be stand-ins for others: under torch.compile, a dispatch mode or torch.func.

    Do not read or fill caches then.
    """
    return torch.compiler.is_compiling() or in_dispatch_mode() or is_transformed()


def needs_dispatcher(*tensors: Tensor) -> bool:
    """Whether a call of these must go through PyTorch's dispatcher: traced, recorded, dual or subclasses of tensors.

    Dispatch modes are how selective checkpointing knows what to save, counters count and fake tensors stay fake.
    """
    if (
        torch.compiler.is_compiling()
        or is_transformed()
        or in_dispatch_mode()
        or torch.jit.is_tracing()
        or has_forward_gradients()
    ):
        return True
    for tensor in tensors:  # noqa: SIM110  in short calls a generator would show
        if type(tensor) not in _PLAIN:
            return True
    return False


def is_captured(device: torch.device) -> bool:
    """Whether a CUDA graph is being captured, which goes on reading the memory it was captured with."""
    return (
        device.type == "cuda" and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    )
