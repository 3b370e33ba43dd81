"""Safetensors files, read and written a tensor at a time without loading them.

The format is a length, a header in JSON and the tensors' bytes (github.com/huggingface/safetensors). A
conversion that only reorders rows changes no size, so the header and all offsets stay, and a tensor's dtype
need not be known: a row is so many bytes.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

_LARGEST_HEADER = 100 * 2**20  # the limit of the format's own reader
_BLOCK = 16 * 2**20

Rows = Callable[[Tensor], Tensor]  # reorders the rows of a tensor [rows, bytes]


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies in a file, counted from the end of the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class SafetensorsFile:
    """The header of a file: its tensors in the order of their bytes, and its metadata."""

    path: Path
    data_start: int
    tensors: tuple[StoredTensor, ...]
    metadata: Mapping[str, str]

    @classmethod
    def open(cls, path: Path) -> SafetensorsFile:
        """Read a file's header, and refuse a file that does not fit it.

        Raises:
            ValueError: Not a whole safetensors file.
        """
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, _LARGEST_HEADER):
                raise ValueError(f"source must be a safetensors file, got {path.name} of {size} bytes")
            try:
                header = json.loads(file.read(length))
                metadata = dict(header.pop("__metadata__", {}))
                found = [_stored(name, entry) for name, entry in header.items()]
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                raise ValueError(
                    f"source must be a safetensors file, got {path.name} with a header that cannot be read"
                ) from None
        tensors = tuple(sorted(found, key=lambda tensor: (tensor.start, tensor.stop)))
        end = 0
        for tensor in tensors:
            if tensor.start != end or tensor.stop < tensor.start:
                raise ValueError(
                    f"source must have its tensors end to end, got a gap at {tensor.name!r}"
                )
            end = tensor.stop
        if 8 + length + end != size:
            raise ValueError(
                f"source must be a whole file, got {path.name} of {size} bytes instead of {8 + length + end}"
            )
        return cls(path, 8 + length, tensors, metadata)

    def rewrite(self, target: Path, changes: Mapping[str, Rows], metadata: Mapping[str, str]) -> None:
        """Write a copy with some tensors' rows reordered: in pieces, and under its name only when whole."""
        with writing(target) as out:
            header: dict[str, Any] = {"__metadata__": dict(self.metadata) | dict(metadata)}
            for tensor in self.tensors:
                header[tensor.name] = {
                    "dtype": tensor.dtype,
                    "shape": list(tensor.shape),
                    "data_offsets": [tensor.start, tensor.stop],
                }
            text = json.dumps(header, separators=(",", ":")).encode()
            text += b" " * (-len(text) % 8)
            out.write(len(text).to_bytes(8, "little") + text)
            with self.path.open("rb") as file:
                file.seek(self.data_start)
                for tensor in self.tensors:
                    if tensor.name in changes:
                        out.write(_reordered(file, tensor, changes[tensor.name]))
                    else:
                        _copy(file, out, tensor.stop - tensor.start)


def _stored(name: str, entry: Mapping[str, Any]) -> StoredTensor:
    start, stop = entry["data_offsets"]
    return StoredTensor(
        str(name), str(entry["dtype"]), tuple(map(int, entry["shape"])), int(start), int(stop)
    )


def _reordered(file: IO[bytes], tensor: StoredTensor, rows: Rows) -> bytearray:
    held = bytearray(file.read(tensor.stop - tensor.start))
    if held:
        by_row = torch.frombuffer(held, dtype=torch.uint8).view(tensor.shape[0], -1)
        by_row.copy_(rows(by_row))
    return held


def _copy(file: IO[bytes], out: IO[bytes], count: int) -> None:
    while count:
        block = file.read(min(count, _BLOCK))
        out.write(block)
        count -= len(block)


@contextmanager
def writing(target: Path) -> Iterator[IO[bytes]]:
    """A file that appears under its name when all of it is on the disk, or not at all."""
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
