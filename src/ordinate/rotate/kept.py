"""Rotations at positions in order, kept for whoever turns by the same angles next.

The layers of a model and the steps of a training do, and cos and sin in float64 take longer to compute than q
and k take to turn. What is kept cannot go stale, for its key says everything the angles come from; and it belongs
to no module, so there is nothing for ``.to``, ``deepcopy`` or a checkpoint to see.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from .rotation import Rotation

#: Of all that is kept, the angles with their cos and sin: twice 64 pairs of 100,000 tokens.
LIMIT_BYTES = 2**28
_BYTES_PER_ANGLE = 8 + 4 + 4

#: Fewer angles, as of one token while decoding, are as quickly computed as found.
_WORTH_KEEPING = 2**11

_kept: OrderedDict[Hashable, Rotation] = OrderedDict()
_lock = threading.Lock()


def rotation(key: Hashable, angles: int, device: torch.device, make: Callable[[], Rotation]) -> Rotation:
    """The rotation of this key, made if it is not kept."""
    if angles < _WORTH_KEEPING or torch.compiler.is_compiling() or _capturing(device):
        return make()
    with _lock:
        found = _kept.get(key)
        if found is not None:
            _kept.move_to_end(key)
            return found
    # As in `numerics.constant`: what is kept must be usable wherever a rotation is.
    with torch.inference_mode(False):
        found = make()
    if type(found.angles) is Tensor and found.angles.device.type != "meta":
        with _lock:
            _kept[key] = found
            while (
                len(_kept) > 1
                and sum(r.angles.numel() for r in _kept.values()) > LIMIT_BYTES // _BYTES_PER_ANGLE
            ):
                _kept.popitem(last=False)
    return found


def _capturing(device: torch.device) -> bool:
    """A CUDA graph goes on reading what it was captured with, also when that is kept no longer."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
