"""A bounded cache of rotations at consecutive positions, shared by all layers and steps.

Layers of a model turn by the same angles, and cos and sin in float64 take longer to compute than q and k take to turn.
What is cached belongs to no module, so there is nothing for ``.to``, ``deepcopy`` or a checkpoint to see. Its key is
everything the angles come from but their number: the longest table serves every shorter length by its first rows.
It is let go with the last encoding that used it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any

import torch

from ..caches import cleared_by
from ..tracing import is_captured, is_traced
from .rotation import Rotation

#: Of all that is cached on one device: the angles of 64 pairs at 131,072 positions, for one.
LIMIT_BYTES = 2**28

#: Fewer angles, as of one token while decoding, are as quickly computed as found.
_WORTH_KEEPING = 2**11


class _Entry:
    """The longest rotation from a start, the part of it that was asked for last, and the encodings that asked."""

    def __init__(self, rotation: Rotation, users: set[weakref.ref]) -> None:
        self.rotation, self.part, self.users = rotation, rotation, users

    def first(self, seq: int) -> Rotation:
        part = self.part  # read once: another thread may ask for another length
        if part.angles.shape[1] != seq:
            part = self.part = self.rotation.first(seq)
        return part


# Oldest use first. There is no lock, which a fork could inherit closed: every step leaves the dict whole, and two
# threads that miss at once compute the same twice.
_kept: dict[Hashable, _Entry] = {}
cleared_by(_kept.clear)


def rotation(
    user: Any, settings: Hashable, start: int, seq: int, pairs: int, device: torch.device,
    make: Callable[[], Rotation],
) -> Rotation:  # fmt: skip
    """The rotation at ``start`` and onward, made if no cached one is as long.

    Args:
        user: The encoding that asks. What no living encoding has asked for is not cached any more.
    """
    on_gpu = device.type == "cuda"
    if seq * pairs < _WORTH_KEEPING or is_traced() or (on_gpu and is_captured(device)):
        return make()
    # On another stream it might be read before it is written.
    stream = torch.cuda.current_stream(device).cuda_stream if on_gpu else None
    key = (settings, start, device, stream)
    entry = _kept.pop(key, None)
    # As in `numerics.constant`: what is cached must be usable wherever a rotation is.
    with torch.inference_mode(False):
        if entry is None or entry.rotation.angles.shape[1] < seq:
            found = make()
            if _bytes(found) > LIMIT_BYTES or device.type == "meta":
                if entry is not None:
                    _kept[key] = entry
                return found
            entry = _Entry(found, set() if entry is None else entry.users)
            _kept[key] = entry
            _forget_the_oldest(device)
        else:
            _kept[key] = entry
            found = entry.first(seq)
    if weakref.ref(user) not in entry.users:
        entry.users.add(weakref.ref(user, lambda gone: _forget_user(key, gone)))
    return found


def _forget_user(key: Hashable, gone: weakref.ref) -> None:
    entry = _kept.get(key)
    if entry is not None:
        entry.users.discard(gone)
        # Another thread may have had the entry in its hands when one of its users went.
        if all(user() is None for user in tuple(entry.users)):
            _kept.pop(key, None)


def _forget_the_oldest(device: torch.device) -> None:
    mine = [
        (key, _bytes(entry.rotation))
        for key, entry in list(_kept.items())
        if entry.rotation.angles.device == device
    ]
    excess = sum(size for _, size in mine) - LIMIT_BYTES
    for key, size in mine:
        if excess <= 0:
            break
        _kept.pop(key, None)
        excess -= size


def _bytes(rotation: Rotation) -> int:
    """The angles, with cos and sin in float32 and float64: as much as it may come to hold."""
    return 4 * rotation.angles.nbytes
