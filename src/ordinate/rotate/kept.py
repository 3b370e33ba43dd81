"""Rotations at positions in order, kept for whoever turns by the same angles next.

The layers of a model and the steps of a training do, and cos and sin in float64 take longer to compute than q
and k take to turn. What is kept belongs to no module, so there is nothing for ``.to``, ``deepcopy`` or a checkpoint
to see, and its key says everything the angles come from.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch

from ..numerics import is_watched
from .rotation import Rotation

#: Of all that is kept on one device: the angles of 64 pairs at 131,072 positions, for one.
LIMIT_BYTES = 2**28

#: Fewer angles, as of one token while decoding, are as quickly computed as found.
_WORTH_KEEPING = 2**11

# Oldest use first. There is no lock, which a fork could inherit closed: every step leaves the dict whole, and two
# threads that miss at once compute the same twice.
_kept: dict[Hashable, Rotation] = {}


def rotation(
    settings: Hashable, start: int, seq: int, pairs: int, device: torch.device, make: Callable[[], Rotation]
) -> Rotation:  # fmt: skip
    """The rotation at ``start`` and onward, made if it is not kept."""
    if is_watched() or seq * pairs < _WORTH_KEEPING or _capturing(device):
        return make()
    # On another stream it might be read before it is written.
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None
    key = (settings, start, seq, device, stream)
    found = _kept.pop(key, None)
    if found is None:
        # As in `numerics.constant`: what is kept must be usable wherever a rotation is.
        with torch.inference_mode(False):
            found = make()
    if _bytes(found) <= LIMIT_BYTES and device.type != "meta":
        _kept[key] = found
        _forget_the_oldest(device)
    return found


def _forget_the_oldest(device: torch.device) -> None:
    mine = [(key, _bytes(found)) for key, found in list(_kept.items()) if found.angles.device == device]
    excess = sum(size for _, size in mine) - LIMIT_BYTES
    for key, size in mine:
        if excess <= 0:
            break
        _kept.pop(key, None)
        excess -= size


def _bytes(rotation: Rotation) -> int:
    """The angles, with cos and sin in float32 and float64: as much as it may come to hold."""
    return 4 * rotation.angles.nbytes


def _capturing(device: torch.device) -> bool:
    """A CUDA graph goes on reading what it was captured with, also when that is kept no longer."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
