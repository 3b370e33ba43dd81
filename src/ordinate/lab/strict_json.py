"""Reads JSON files strictly: any file gives its value or one sentence on why it is refused.

Records may come from another machine, a damaged disk or an upload. So a file must be a regular file and not too large,
its text UTF-8, and its JSON must not be nested deeply or hold numbers that overflow. Callers check the meaning of the
values (`record_checks`, `RunConfig`, `Sweep`). `as_json` reads values by the same rules before it returns them.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from ..checks import check_at_most, refused
from ..text import Text

#: The most bytes of a JSON file, and of a ``metrics.jsonl``.
LARGEST_JSON, LARGEST_METRICS = 1 << 20, 1 << 28
#: The largest number: its squares and their sums are still finite.
LARGEST_NUMBER = 1e60
_MOST_DIGITS = 18  # of an integer, which then fits in 64 bits
LARGEST_WHOLE = 10**_MOST_DIGITS - 1
_DEEPEST = 16


def is_number(value: object) -> bool:
    """Whether a value is a number in JSON, including NaN and infinity."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def open_regular(path: Path, largest: int | None = None) -> BinaryIO:
    """Open a file for reading; refuse a pipe or a device without waiting for it.

    Raises:
        ValueError: The file does not exist, is not a regular file, is too large or cannot be read.
    """
    try:
        # Without O_NONBLOCK, opening a pipe waits for a writer.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise refused(
            path.name, "must be a file that can be read, got: {reason}", reason=error.strerror
        ) from None
    found = os.fstat(handle)
    if stat.S_ISREG(found.st_mode) and (largest is None or found.st_size <= largest):
        return os.fdopen(handle, "rb")
    os.close(handle)
    if stat.S_ISREG(found.st_mode):
        raise refused(path.name, "must have at most {most} bytes", found.st_size, most=largest)
    raise refused(path.name, "must be a regular file", Text("a folder, a pipe or a device"))


def read_bytes(path: Path, largest: int = LARGEST_METRICS) -> bytes:
    """The content of a file, at most ``largest`` bytes if it grows meanwhile.

    Raises:
        ValueError: It cannot be read, or is too large.
    """
    with open_regular(path, largest) as file:
        return file.read(largest)


def read_json(path: Path) -> Any:
    """The value in a JSON file.

    Raises:
        ValueError: It cannot be read, or is not JSON of plain values.
    """
    return parse(read_bytes(path, LARGEST_JSON), path.name)


def as_json(value: Any, name: str, *, indent: int | None = 2, largest: int = LARGEST_JSON) -> bytes:
    """The JSON of a value, checked by the same rules as for reading.

    Raises:
        ValueError: The JSON could not be read again.
    """
    content = (json.dumps(value, indent=indent) + "\n").encode()
    check_at_most(Text("bytes of {file}", file=name), len(content), largest)
    parse(content, name)
    return content


def sha256_of(path: Path, largest: int | None = None) -> str:
    with open_regular(path, largest) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def parse(content: bytes, name: str) -> Any:
    """Parse JSON with bounded numbers and nesting, and text that can be encoded. NaN and infinity are allowed."""
    try:
        # json.loads guesses the encoding of bytes, so UTF-16 would pass too, and half of a surrogate pair.
        text = content.decode()
        value = json.loads(text, parse_int=_whole, parse_float=_real)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # fails for half of a surrogate pair
    except (ValueError, RecursionError) as error:
        raise refused(name, "must be JSON, cannot be read: {reason}", reason=f"{error!s:.200}") from None
    level = [value] if content.count(b"[") + content.count(b"{") > _DEEPEST else []
    for _ in range(_DEEPEST + 1):
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, (dict, list))
        ]
    if level:
        raise refused(name, "must not be nested more than {most} deep", Text("more"), most=_DEEPEST)
    return value


def _whole(text: str) -> int:
    check_at_most(Text("digits of a whole number"), len(text), _MOST_DIGITS)
    return int(text)


def _real(text: str) -> float:
    value = float(text)
    check_at_most(Text("a number"), abs(value), LARGEST_NUMBER)
    return value
