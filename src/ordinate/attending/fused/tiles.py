"""Tile sizes of the attention kernels, forward and backward."""

from __future__ import annotations

import functools
import os
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Tile(NamedTuple):
    """Queries, keys, warps and pipeline stages of a tile; and the most registers of a thread, if limited.

    A multiprocessor has 65,536 registers: with at most 168 per thread, three programs of four warps run at once, with
    128 four. A lookup needs many: where few tiles are looked up, they are processed in parts, so that all others run
    with fewer.
    """

    m: int
    n: int
    warps: int
    stages: int
    registers: int | None = None
    parts: int = 1


class Traits(NamedTuple):
    """The properties of a call that, with shapes and dtypes, determine its tiles."""

    bias: str  # "none", "line", "whole", "looked up" or "short"
    causal: bool
    dropout: bool


class ExtraBytes(NamedTuple):
    """Bytes of shared memory for each query, key and pair of a tile, in addition to q, k, v and gradients."""

    query: int
    key: int
    pair: int


# For head dims up to 64 and 128 chosen by measurements on an H200, with masks and without; up to 256 what fits. Other
# GPUs were not measured. "line" is for slopes and vectors over keys, "whole" for tables with every distance,
# "short" for tables and rows of which few tiles are looked up, "looked up" for others. The gradient of a table has no
# more queries than keys in a tile. Where timings of a few calls and of a quarter of a second disagree, "line" follows
# the latter and gains most: under load a GPU lowers its clock to save power, and larger tiles read less.
_TILES = {
    "few queries": (Tile(16, 128, 4, 3), Tile(16, 128, 4, 2), Tile(16, 64, 4, 1)),
    "forward": (Tile(64, 64, 4, 3, 128), Tile(128, 128, 8, 3), Tile(64, 32, 8, 1)),
    "forward, line": (Tile(128, 64, 8, 3, 128), Tile(64, 64, 4, 3), Tile(64, 32, 8, 1)),
    "forward, looked up": (Tile(64, 64, 4, 3, 168), Tile(128, 64, 8, 3), Tile(64, 32, 8, 1)),
    "forward, short": (Tile(64, 64, 4, 3, 128, parts=2), Tile(64, 64, 4, 3), Tile(64, 32, 8, 1)),
    "forward, whole": (Tile(64, 64, 4, 3, 128), Tile(128, 128, 8, 3), Tile(64, 32, 8, 1)),
    "queries": (Tile(128, 64, 8, 3, 128), Tile(128, 64, 8, 3, 168), Tile(64, 32, 8, 1)),
    "queries, line": (Tile(128, 64, 8, 3, 128), Tile(128, 64, 8, 3, 200), Tile(64, 32, 8, 1)),
    "queries, looked up": (Tile(64, 64, 4, 3), Tile(128, 64, 8, 3), Tile(64, 32, 8, 1)),
    "queries, short": (Tile(64, 64, 4, 3, 168, parts=2), Tile(128, 64, 8, 3), Tile(64, 32, 8, 1)),
    "queries, whole": (Tile(64, 64, 4, 3, 168), Tile(128, 64, 8, 3, 200), Tile(64, 32, 8, 1)),
    "keys": (Tile(32, 64, 4, 3, 128), Tile(64, 128, 8, 3), Tile(64, 32, 8, 1)),
    "keys, line": (Tile(32, 128, 8, 3, 128), Tile(64, 128, 8, 3, 240), Tile(64, 32, 8, 1)),
    "keys, looked up": (Tile(32, 64, 4, 3, 168), Tile(64, 128, 8, 3), Tile(64, 32, 8, 1)),
    "keys, short": (Tile(32, 64, 4, 3, 168), Tile(64, 128, 8, 3, parts=2), Tile(64, 32, 8, 1)),
    "keys, whole": (Tile(32, 128, 8, 3, 128), Tile(64, 128, 8, 3, 240), Tile(64, 32, 8, 1)),
    "table": (Tile(64, 64, 4, 3), Tile(64, 64, 8, 3), Tile(64, 64, 8, 1)),
    "table, whole": (Tile(64, 64, 4, 3), Tile(64, 128, 8, 2), Tile(64, 64, 8, 1)),
}
# Without a causal mask no tile is cut by the diagonal, and other sizes are best. For head dims up to 64.
_TILES_BOTH_WAYS = {
    "forward, none": Tile(128, 64, 8, 3, 128),
    "forward, looked up": Tile(128, 64, 8, 3, 128),
    "forward, short": Tile(128, 64, 8, 3, 128),
    "keys, line": Tile(32, 64, 4, 3, 168),
}


#: Up to this many queries, as in decoding, reading the keys takes all the time.
FEW_QUERIES = 16


def tile_config(kernel: str, traits: Traits, q: Tensor, v: Tensor, extra: ExtraBytes) -> dict[str, Any]:
    """A kernel's rows M, columns N, how many tokens NEAR it looks up at once, and compile options."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        if kernel == "table":
            return {"M": 16, "N": 32 if traits.bias == "whole" else 16}
        m, n = 16 if kernel == "few queries" else 32, 16
        return {"M": m, "N": n, "NEAR": 8 if traits.bias == "short" else (m if kernel == "keys" else n)}
    dim = max(q.shape[-1], v.shape[-1])
    width = 0 if dim <= 64 else 1 if dim <= 128 else 2
    name = f"{kernel}, {traits.bias}"
    tile = _TILES.get(name, _TILES[kernel])[width]
    if width == 0 and not traits.causal:
        tile = _TILES_BOTH_WAYS.get(name, tile)
    if q.dtype == torch.float32:  # twice the bytes of 16-bit dtypes, and no tensor cores
        # With 32 queries of more than 128 channels, a thread's numbers would not fit its registers.
        tile = Tile(min(tile.m, 32 if dim <= 128 else 16), 32, 4, 1)
    m, n, stages = _fit(kernel, tile, q, v, extra, shared_memory_of(q.device))
    config: dict[str, Any] = {"M": m, "N": n, "num_warps": tile.warps, "num_stages": stages}
    if kernel != "table":
        streamed = m if kernel == "keys" else n
        config["NEAR"] = max(16, streamed // tile.parts)
    if tile.registers is not None and not traits.dropout:  # dropout needs many for random numbers
        config["maxnreg"] = tile.registers
    return config


def tells_tiles_apart(dtype: torch.dtype) -> bool:
    """Whether tiles that need no mask, or lie beyond the tables, have separate loops.

    Without tensor cores, products are most of a loop's code and nearly all of its time: with one loop for all tiles,
    float32 compiles in two fifths of the time for wide heads. Interpreted kernels are not compiled.
    """
    return dtype != torch.float32 or os.environ.get("TRITON_INTERPRET") == "1"


def padded(dim: int) -> int:
    """The dimension in a tile: a power of two, at least the minimum of `tl.dot`."""
    return max(16, 1 << (dim - 1).bit_length())


@functools.cache
def shared_memory_of(device: torch.device) -> int:
    """How many bytes of shared memory the tiles of one program may take."""
    properties = torch.cuda.get_device_properties(device)
    # On Blackwell, a compiled program reserves some shared memory, and needs more for every vector than on other GPUs.
    reserved = 2048 if properties.major >= 10 else 0
    return properties.shared_memory_per_block_optin - reserved  # type: ignore[attr-defined]


def key_shares(programs: int, k_len: int, n: int, device: torch.device) -> int:
    """How many programs split the keys of a tile of queries, so that there are enough programs to fill a GPU."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    processors, least = (8, 2 * n) if interpreted else (_processors_of(device), 256)
    if 2 * programs > processors:
        return 1
    return max(1, min(2 * processors // programs, k_len // least, 64))


@functools.cache
def _processors_of(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def _fit(
    kernel: str, tile: Tile, q: Tensor, v: Tensor, extra: ExtraBytes, limit: int
) -> tuple[int, int, int]:
    """Smaller tiles and fewer pipeline stages where those of an H200 do not fit.

    Queries stay in shared memory while keys are streamed, with one copy per pipeline stage; for the gradients of
    keys it is the other way round.
    """
    m, n, stages = tile.m, tile.n, tile.stages
    row = q.element_size() * padded(q.shape[-1])
    both = row + q.element_size() * padded(v.shape[-1])  # q and the gradient, or k and v
    if kernel == "table":
        # q, the gradient, k and v are all streamed.
        while stages * (m * (both + extra.query) + n * (both + extra.key)) > limit and n > 16:
            if stages > 1:
                stages -= 1
            else:
                n //= 2
                m = min(m, n)
        return m, n, stages
    keys_stay = kernel == "keys"
    resident, streamed = (n, m) if keys_stay else (m, n)
    resident_row = row if kernel in ("forward", "few queries") else both
    streamed_token = extra.query if keys_stay else extra.key
    # Streamed queries are factors of two products, one of them transposed, which needs a second copy.
    copies = 2 if keys_stay else 1

    def needed() -> int:
        # In compiled code, vectors have one buffer less than matrices.
        streams = max(stages, copies) * both + max(stages - 1, 1) * streamed_token
        return resident * (resident_row + streamed * extra.pair) + streamed * streams

    while needed() > limit:
        if stages > 2:
            stages -= 1
        elif streamed > 32:
            streamed //= 2
        elif stages > 1:
            stages -= 1
        elif resident > 16:
            resident //= 2
        elif streamed > 16:
            streamed //= 2
        else:
            break
    return (streamed, resident, stages) if keys_stay else (resident, streamed, stages)
