"""The one way records are read, whatever a file holds: its content or one sentence about it.

Records may come from another machine, a damaged disk or an upload. So a file must be a regular one and not too
large, its text UTF-8, and its JSON must not be nested deeply nor hold a number that arithmetic cannot take. What the
values mean is checked by those who use them (`record_checks`, `RunConfig`, `Sweep`). What is written is read first.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from ..checks import check_at_most

#: Bytes of a JSON file, and of a ``metrics.jsonl``.
LARGEST_JSON, LARGEST_METRICS = 1 << 20, 1 << 28
#: Squares and sums of losses this large are still finite.
LARGEST_NUMBER = 1e60
_MOST_DIGITS = 18  # of a whole number, which then fits into 64 bits
LARGEST_WHOLE = 10**_MOST_DIGITS - 1
_DEEPEST = 16


def open_regular(path: Path, largest: int | None = None) -> BinaryIO:
    """A file opened for reading; a pipe or a device is refused and never waited for.

    Raises:
        ValueError: It is not there, is no regular file, is too large or may not be read.
    """
    try:
        # Without O_NONBLOCK, opening a pipe waits for a writer.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise ValueError(f"{path.name} must be a file that can be read, got: {error.strerror}") from None
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        os.close(handle)
        raise ValueError(f"{path.name} must be a regular file, got a folder, a pipe or a device")
    if largest is not None and found.st_size > largest:
        os.close(handle)
        raise ValueError(f"{path.name} must have at most {largest} bytes, got {found.st_size}")
    return os.fdopen(handle, "rb")


def read_bytes(path: Path, largest: int = LARGEST_METRICS) -> bytes:
    """All of a file, which may grow meanwhile.

    Raises:
        ValueError: It cannot be read, or is too large.
    """
    with open_regular(path, largest) as file:
        return file.read(largest)


def read_json(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        ValueError: It cannot be read, or is not JSON of plain values.
    """
    return parse(read_bytes(path, LARGEST_JSON), path.name)


def as_json(value: Any, name: str, *, indent: int | None = 2, largest: int = LARGEST_JSON) -> bytes:
    """What a record is to hold, read once before it is written, by the rules it will be read by.

    Raises:
        ValueError: It could not be read.
    """
    content = (json.dumps(value, indent=indent) + "\n").encode()
    check_at_most(f"bytes of {name}", len(content), largest)
    parse(content, name)
    return content


def sha256_of(path: Path, largest: int | None = None) -> str:
    with open_regular(path, largest) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def parse(content: bytes, name: str) -> Any:
    """JSON whose numbers and nesting are bounded, and whose text can be written. NaN and infinity pass."""
    try:
        # Given bytes, json guesses: UTF-16 passes too, and half of a surrogate pair as it is.
        text = content.decode()
        value = json.loads(text, parse_int=_whole, parse_float=_real)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair cannot be
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} must be JSON, cannot be read: {error!s:.200}") from None
    if content.count(b"[") + content.count(b"{") > _DEEPEST:
        _check_depth(value, name)
    return value


def _whole(text: str) -> int:
    check_at_most("digits of a whole number", len(text), _MOST_DIGITS)
    return int(text)


def _real(text: str) -> float:
    value = float(text)
    check_at_most("a number", abs(value), LARGEST_NUMBER)
    return value


def _check_depth(value: Any, name: str) -> None:
    level = [value]
    for _ in range(_DEEPEST + 1):
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return
    raise ValueError(f"{name} must not be nested more than {_DEEPEST} deep, got more")
