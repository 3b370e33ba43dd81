"""JSON files read strictly: what a file holds, or one sentence about why it is refused, whatever is in it.

Records may come from another machine, a damaged disk or an upload. So a file must be a regular one and not too large,
its text UTF-8, and its JSON must not be nested deeply nor hold a number that arithmetic cannot take. What the values
mean is checked by their users (`record_checks`, `RunConfig`, `Sweep`). Values to be written are read first.
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

#: Bytes of a JSON file, and of a ``metrics.jsonl``.
LARGEST_JSON, LARGEST_METRICS = 1 << 20, 1 << 28
#: Squares and sums of losses this large are still finite.
LARGEST_NUMBER = 1e60
_MOST_DIGITS = 18  # of a whole number, which then fits into 64 bits
LARGEST_WHOLE = 10**_MOST_DIGITS - 1
_DEEPEST = 16


def is_number(value: object) -> bool:
    """Whether JSON calls it a number; NaN and infinity are."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def open_regular(path: Path, largest: int | None = None) -> BinaryIO:
    """A file opened for reading; a pipe or a device is refused without waiting for it.

    Raises:
        ValueError: It is not there, is no regular file, is too large or may not be read.
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
    """All of a file, but no more than ``largest`` bytes if it grows meanwhile.

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
    """The JSON of a value, which was read once by the rules it will be read by.

    Raises:
        ValueError: It could not be read.
    """
    content = (json.dumps(value, indent=indent) + "\n").encode()
    check_at_most(Text("bytes of {file}", file=name), len(content), largest)
    parse(content, name)
    return content


def sha256_of(path: Path, largest: int | None = None) -> str:
    with open_regular(path, largest) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def parse(content: bytes, name: str) -> Any:
    """JSON whose numbers and nesting are bounded, and whose text can be written. NaN and infinity pass."""
    try:
        # Given bytes, json guesses: UTF-16 would pass too, and half of a surrogate pair.
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
