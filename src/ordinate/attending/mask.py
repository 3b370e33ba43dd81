"""Which keys a query may see, by index: causal, windowed, segmented, padded."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Mask:
    """A description of the visible pairs; `block` slices it like a bias.

    Indices of queries are aligned to the end: with ``offset = k_len - q_len`` the last query has the index of the
    last key. Packed sequences whose queries are not the same tokens as their keys have explicit indices.

    Attributes:
        window: See ``0 <= query - key < window`` if causal, ``|query - key| < window`` if not.
        q_index, k_index: Indices that replace ``i + offset`` and ``j``.
        q_segments, k_segments: A query sees only keys of its own segment.
        key_padding: True at keys that no query sees.
    """

    q_len: int
    k_len: int
    offset: int
    causal: bool = False
    window: int | None = None
    q_index: Int[Tensor, "#batch q"] | None = None
    k_index: Int[Tensor, "#batch k"] | None = None
    q_segments: Int[Tensor, "#batch q"] | None = None
    k_segments: Int[Tensor, "#batch k"] | None = None
    key_padding: Bool[Tensor, "#batch k"] | None = None

    #: Whether the visibility of a pair depends on ``i - j`` only.
    by_distance: bool = field(init=False)
    #: Whether every query sees every key.
    sees_all: bool = field(init=False)

    def __post_init__(self) -> None:
        by_distance = self.q_index is None and self.q_segments is None and self.key_padding is None
        object.__setattr__(self, "by_distance", by_distance)
        object.__setattr__(self, "sees_all", by_distance and not self.causal and self.window is None)

    def visible_distances(self, distance: Int[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
        """Whether causality and window allow a distance ``query - key``."""
        allowed = torch.ones_like(distance, dtype=torch.bool)
        if self.causal:
            allowed = allowed & (distance >= 0)
        if self.window is not None:
            allowed = allowed & ((distance if self.causal else distance.abs()) < self.window)
        return allowed

    def dense(self, device: torch.device) -> Bool[Tensor, "batch 1 q k"]:
        """True where a query sees a key."""
        q_index, k_index = self.q_index, self.k_index
        if q_index is None or k_index is None:
            q_index = torch.arange(self.q_len, device=device)[None] + self.offset
            k_index = torch.arange(self.k_len, device=device)[None]
        allowed = self.visible_distances(q_index[:, :, None] - k_index[:, None, :])
        if self.q_segments is not None and self.k_segments is not None:
            allowed = allowed & (self.q_segments[:, :, None] == self.k_segments[:, None, :])
        if self.key_padding is not None:
            allowed = allowed & ~self.key_padding[:, None, :]
        return allowed[:, None]

    def block(self, q: slice, k: slice) -> Mask:
        """The same mask for some of the queries and some of the keys."""

        def cut(tensor: Tensor | None, part: slice) -> Tensor | None:
            return None if tensor is None else tensor[:, part]

        return replace(
            self,
            q_len=q.stop - q.start,
            k_len=k.stop - k.start,
            offset=self.offset + q.start - k.start,
            q_index=cut(self.q_index, q),
            k_index=cut(self.k_index, k),
            q_segments=cut(self.q_segments, q),
            k_segments=cut(self.k_segments, k),
            key_padding=cut(self.key_padding, k),
        )

    def visible_keys(self, q: slice) -> slice:
        """A range that contains every key that these queries see."""
        if not self.by_distance:
            return self._visible_keys_by_looking(q)
        start, stop = 0, self.k_len
        if self.causal:
            stop = min(stop, q.stop + self.offset)
        if self.window is not None:
            start = max(start, q.start + self.offset - self.window + 1)
            if not self.causal:
                stop = min(stop, q.stop - 1 + self.offset + self.window)
        return slice(min(start, self.k_len), max(stop, min(start, self.k_len)))

    def sees_any(self, q: slice, device: torch.device) -> Bool[Tensor, " q"]:
        """Whether each of these queries sees a key, by causality and window."""
        index = torch.arange(q.start, q.stop, device=device) + self.offset
        first, last = torch.zeros_like(index), torch.full_like(index, self.k_len - 1)
        if self.causal:
            last = torch.minimum(last, index)
        if self.window is not None:
            first = torch.maximum(first, index - self.window + 1)
            if not self.causal:
                last = torch.minimum(last, index + self.window - 1)
        return first <= last

    def _visible_keys_by_looking(self, q: slice) -> slice:
        tensors = (self.q_index, self.q_segments, self.key_padding)
        device = next(tensor.device for tensor in tensors if tensor is not None)
        seen = self.block(q, slice(0, self.k_len)).dense(device).any(dim=(0, 1, 2)).nonzero()
        return slice(int(seen[0]), int(seen[-1]) + 1) if len(seen) else slice(0, 0)
