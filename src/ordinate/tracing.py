"""Whether a call is compiled, transformed, recorded or captured, by PyTorch's compilers, modes and CUDA graphs."""

from __future__ import annotations

import torch

from .private import has_forward_gradients as has_forward_gradients
from .private import is_traced as is_traced
from .private import is_transformed as is_transformed
from .private import is_transformed_beyond_grad as is_transformed_beyond_grad


def is_captured(device: torch.device) -> bool:
    """Whether a CUDA graph is being captured: it will read the same memory at every replay."""
    return (
        device.type == "cuda" and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    )
