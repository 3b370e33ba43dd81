"""Reads and writes safetensors files one tensor at a time.

The format is a length, a header in JSON and the tensors' bytes (github.com/huggingface/safetensors). A
conversion that only reorders rows changes no size, so the header and all offsets stay the same. Only the size of a
tensor's dtype matters, which gives the bytes of a row.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from ..checks import refused, short
from ..text import Text

_LARGEST_HEADER = 100 * 2**20  # the limit of the format's own reader
_LARGEST_SIZE = 2**63
_BLOCK = 16 * 2**20

# The format's dtypes → the bits of a number.
_BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "BOOL": 8, "U8": 8, "I8": 8,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64,
}  # fmt: skip

Rows = Callable[[Tensor], Tensor]  # reorders the rows of a tensor [rows, bytes]


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file: its bytes are from ``start`` to ``stop``, counted from the end of the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class SafetensorsFile:
    """The header of a file: its tensors in the order of their bytes, and its metadata."""

    path: Path
    data_start: int
    tensors: tuple[StoredTensor, ...]
    metadata: Mapping[str, str]

    @classmethod
    def open(cls, path: Path) -> SafetensorsFile:
        """Read a file's header; refuse a file that does not match its header.

        Raises:
            ValueError: Not a complete safetensors file.
        """
        size, length, header = _header(path)
        metadata = header.pop("__metadata__", None)
        metadata = {} if metadata is None else metadata
        is_mapping = isinstance(metadata, dict)
        if not is_mapping or not all(isinstance(value, str) for value in metadata.values()):
            raise refused(
                Text("__metadata__ of {file}", file=path.name), "must be text by names", short(metadata)
            )
        found = [_stored(name, entry) for name, entry in header.items()]
        tensors = tuple(sorted(found, key=lambda tensor: (tensor.start, tensor.stop)))
        end = 0
        for tensor in tensors:
            if tensor.start != end:
                raise refused(
                    "source",
                    "must have its tensors end to end",
                    Text("a gap at {tensor}", tensor=short(tensor.name)),
                )
            end = tensor.stop
        expected = 8 + length + end
        if expected != size:
            raise refused(
                "source",
                "must be a whole file",
                Text(
                    "{file} of {size} bytes instead of {expected}",
                    file=path.name,
                    size=size,
                    expected=expected,
                ),
            )
        return cls(path, 8 + length, tensors, metadata)

    def rewrite(self, target: Path, changes: Mapping[str, Rows], metadata: Mapping[str, str]) -> None:
        """Write a copy with some tensors' rows reordered, in pieces."""
        with target.open("xb") as out:
            header: dict[str, Any] = {"__metadata__": dict(self.metadata) | dict(metadata)}
            header |= {
                tensor.name: {
                    "dtype": tensor.dtype,
                    "shape": list(tensor.shape),
                    "data_offsets": [tensor.start, tensor.stop],
                }
                for tensor in self.tensors
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
                        _copy(file, out, tensor.size)
            out.flush()
            os.fsync(out.fileno())


def _header(path: Path) -> tuple[int, int, dict[str, Any]]:
    """The sizes of a file and of its header, and the header."""
    rule, facts = "must be a safetensors file", {"file": path.name}
    if not path.is_file():
        raise refused("source", rule, Text("{file}, which is not a file", **facts))
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, _LARGEST_HEADER):
                raise refused("source", rule, Text("{file} of {size} bytes", **facts, size=size))
            text = _read(file, length)
    except OSError as error:
        raise refused(
            "source", "must be a file that can be read", f"{path.name}: {error.strerror}"
        ) from None
    try:
        header = json.loads(text.decode(), object_pairs_hook=_without_repeats)
        json.dumps(header, ensure_ascii=False).encode()  # fails for half of a surrogate pair
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise refused("source", rule, Text("{file} with a header that cannot be read", **facts))
    return size, length, header


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError
    return found


def _stored(name: str, entry: object) -> StoredTensor:
    """Check one entry of a header: its dtype and shape must give the stated number of bytes."""
    quoted = short(name)
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise refused(quoted, "must have a dtype, a shape and data_offsets in the header", short(entry))
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    key = "{key} of {tensor}"
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise refused(Text(key, key="dtype", tensor=quoted), "must be one of safetensors", short(dtype))
    if not _are_sizes(shape):
        raise refused(Text(key, key="shape", tensor=quoted), "must be a list of sizes", short(shape))
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise refused(Text(key, key="data_offsets", tensor=quoted), "must be two sizes", short(offsets))
    bits = _bits(dtype, shape)
    if bits != 8 * (offsets[1] - offsets[0]):
        raise refused(
            Text(key, key="data_offsets", tensor=quoted),
            "must be as far apart as {dtype} {shape} is long",
            short(offsets),
            dtype=dtype,
            shape=short(shape),
        )
    return StoredTensor(name, dtype, tuple(shape), *offsets)


def _are_sizes(values: object) -> bool:
    """Whether these are integers that a size can be; JSON also has true, 64.0 and 1e999."""
    return isinstance(values, list) and all(
        type(value) is int and 0 <= value < _LARGEST_SIZE for value in values
    )


def _bits(dtype: str, shape: Sequence[int]) -> int | None:
    """The bits of a tensor, None if they are too many for a file."""
    bits = 0 if 0 in shape else _BITS[dtype]
    for size in shape:
        bits *= size
        if bits > _LARGEST_SIZE:  # stop before the product has millions of digits
            return None
    return bits


def _reordered(file: IO[bytes], tensor: StoredTensor, rows: Rows) -> bytearray:
    held = bytearray(_read(file, tensor.size))
    if held:
        by_row = torch.frombuffer(held, dtype=torch.uint8).view(tensor.shape[0], -1)
        by_row.copy_(rows(by_row))
    return held


def _copy(file: IO[bytes], out: IO[bytes], count: int) -> None:
    while count:
        block = _read(file, min(count, _BLOCK))
        out.write(block)
        count -= len(block)


def _read(file: IO[bytes], count: int) -> bytes:
    block = file.read(count)
    if len(block) != count:
        raise refused(
            "source",
            "must stay as it is while it is read",
            Text("{missing} bytes less", missing=count - len(block)),
        )
    return block
