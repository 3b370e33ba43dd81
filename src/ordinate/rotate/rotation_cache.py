"""A bounded cache of rotations at consecutive positions, shared by all layers and steps.

Layers of a model rotate by the same angles, and cos and sin in float64 take longer to compute than a rotation takes.
The cache belongs to no module, so ``.to``, ``deepcopy`` and checkpoints do not see it. The key is everything that the
angles follow from, except their number: the longest table serves every shorter length by its first rows. An entry is
dropped with the last encoding that used it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any

import torch

from ..caches import cleared_by, drop_the_oldest
from ..tracing import is_captured, is_traced
from .rotation import Rotation

#: Bytes of all entries on one device: the angles of 64 pairs at 131,072 positions, for example.
LIMIT_BYTES = 2**28

#: Fewer angles, as of one token while decoding, are computed as quickly as found.
_LEAST_CACHED = 2**11


class _Entry:
    """The longest rotation from a start, the part of it that was used last, and the encodings that use it."""

    def __init__(self, rotation: Rotation, users: set[weakref.ref]) -> None:
        self.rotation, self.part, self.users = rotation, rotation, users

    def first(self, seq: int) -> Rotation:
        part = self.part  # read once: another thread may need another length
        if part.angles.shape[1] != seq:
            part = self.part = self.rotation.first(seq)
        return part


# Oldest use first. There is no lock, because a forked process could inherit it locked: the dict is valid after every
# step, and two threads that miss at the same time compute the same rotation twice.
_cache: dict[Hashable, _Entry] = {}
cleared_by(_cache.clear)


def rotation(
    user: Any, settings: Hashable, start: int, seq: int, pairs: int, device: torch.device,
    make: Callable[[], Rotation],
) -> Rotation:  # fmt: skip
    """The rotation at positions from ``start`` on, computed if no cached rotation is long enough.

    Args:
        user: The encoding that rotates. An entry without a living user is dropped.
    """
    # torch.compile would guard the comparison of lengths, so `is_traced` comes first.
    if is_traced() or seq * pairs < _LEAST_CACHED or is_captured(device):
        return make()
    # On another stream an entry might be read before it is written.
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None
    key = (settings, start, device, stream)
    entry = _cache.pop(key, None)
    # As in `numerics.constant`: a cached tensor must be usable outside of inference mode.
    with torch.inference_mode(False):
        if entry is None or entry.rotation.angles.shape[1] < seq:
            found = make()
            if _bytes(found) > LIMIT_BYTES or device.type == "meta":
                if entry is not None:
                    _cache[key] = entry
                return found
            entry = _Entry(found, set() if entry is None else entry.users)
            _cache[key] = entry
            entries = [(k, e.rotation) for k, e in list(_cache.items())]
            sizes = [(k, _bytes(r)) for k, r in entries if r.angles.device == device]
            drop_the_oldest(_cache, sizes, LIMIT_BYTES)
        else:
            _cache[key] = entry
            found = entry.first(seq)
    if weakref.ref(user) not in entry.users:
        entry.users.add(weakref.ref(user, lambda gone: _drop_user(key, gone)))
    return found


def _drop_user(key: Hashable, gone: weakref.ref) -> None:
    entry = _cache.get(key)
    if entry is not None:
        entry.users.discard(gone)
        # Another thread may have used the entry while one of its users was deleted.
        if all(user() is None for user in tuple(entry.users)):
            _cache.pop(key, None)


def _bytes(rotation: Rotation) -> int:
    """The angles, with cos and sin in float32 and float64: the most that it may hold."""
    return 4 * rotation.angles.nbytes
