"""Unpack the records of a comparison from an archive that a visitor sends: no other files, and not too many."""

from __future__ import annotations

import lzma
import re
import struct
import zipfile
import zlib
from pathlib import Path

from ..checks import refused
from ..text import Text

MAX_FILES = 2000
MAX_BYTES = 64 * 2**20

_RECORD = re.compile(
    r"(?:^|.*/)(sweep\.json|runs/[a-z0-9._=-]{1,200}/(?:config|environment|result)\.json|runs/[a-z0-9._=-]{1,200}/metrics\.jsonl)"
)


# Errors of reading a damaged archive: of its structure, and of each kind of compression (bzip2: OSError).
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError, EOFError, NotImplementedError, RuntimeError,
    UnicodeError, OverflowError, struct.error,
)  # fmt: skip


def unpack(archive: Path, folder: Path) -> None:
    """Write the records found in ``archive`` into ``folder``.

    Sizes are counted as the bytes come out, not as the archive announces them, and no name of the
    archive is ever a path here: each is matched against the few a comparison has.

    Raises:
        ValueError: It is no archive, holds no comparison, or is too large.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            _unpack(opened, folder)
    except _DAMAGE as error:
        rule = "must be a .zip that can be read"
        raise refused("archive", rule, Text("one with {error}", error=error)) from None


def _unpack(opened: zipfile.ZipFile, folder: Path) -> None:
    found = {}
    for entry in opened.infolist():
        match = _RECORD.fullmatch(entry.filename)
        if match and not entry.is_dir():
            if match[1] in found:
                twice = Text("{name} twice", name=repr(match[1]))
                raise refused("archive", "must hold one comparison", twice)
            found[match[1]] = entry
    if "sweep.json" not in found:
        raise refused("archive", "must hold the sweep.json of a comparison", Text("none"))
    if len(found) > MAX_FILES:
        raise refused("archive", "must hold at most {most} records", len(found), most=MAX_FILES)
    left = MAX_BYTES
    for name, entry in found.items():
        with opened.open(entry) as stream:
            content = stream.read(left + 1)
        left -= len(content)
        if left < 0:
            raise refused("archive", "must unpack to at most {most} bytes", Text("more"), most=MAX_BYTES)
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
