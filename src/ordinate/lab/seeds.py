"""Random generators keyed by purpose: each purpose has independent numbers."""

from __future__ import annotations

import hashlib

import torch


def seed_of(*key: object) -> int:
    """A generator's seed, by a hash: keys that differ, even by 1, give unrelated seeds."""
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(*key: object) -> torch.Generator:
    """The generator of a key, the same on every machine."""
    return torch.Generator().manual_seed(seed_of(*key))
