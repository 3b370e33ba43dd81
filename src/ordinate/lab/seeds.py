"""Random numbers that follow from what they are for: every purpose has a stream of its own."""

from __future__ import annotations

import hashlib

import torch


def seed_of(*key: object) -> int:
    """A generator's seed. Keys that differ anywhere, be it by one, give seeds that have nothing in common."""
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(*key: object) -> torch.Generator:
    """A generator of a key, the same on every machine."""
    return torch.Generator().manual_seed(seed_of(*key))
