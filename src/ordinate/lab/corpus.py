"""The training text: bytes of files, split by file into training and validation.

By default it is the source of Python's standard library: real text with short and long dependencies, on every machine
without a download. It differs between patch versions of Python, so a comparison records the version
(`Corpus.describe`).
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor

from ..caches import cleared_by
from ..checks import refused
from . import formats as words

# Tests and tables of characters are unlike other source, and not every machine has the tests.
_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "__pycache__"}

_VALIDATION_SHARE = 0.1


@dataclass(frozen=True, eq=False)
class Corpus:
    """Training bytes and validation bytes; no file, and no copy of a file, is in both."""

    train: UInt8[Tensor, " train_bytes"]
    validation: UInt8[Tensor, " validation_bytes"]
    files: int
    source: str

    def describe(self) -> str:
        """The source of the text, and its size."""
        size = (len(self.train) + len(self.validation)) / 1e6
        return f"{self.source}, {words.plural(self.files, 'file')}, {size:.1f} MB"

    @property
    def fingerprint(self) -> str:
        """A hash of the bytes and of their split."""
        digest = hashlib.sha256(self.train.numpy().tobytes())
        digest.update(b"validation")  # so that another split gives another hash
        digest.update(self.validation.numpy().tobytes())
        return digest.hexdigest()[:16]


def absolute_paths(text: Iterable[str]) -> tuple[str, ...]:
    """Paths as records hold them, valid in any current folder.

    Raises:
        ValueError: A path is empty, which would be the current folder, or cannot be written as UTF-8.
    """
    found = []
    for given in map(os.fspath, text):
        if not given:
            raise refused("text", "must be files or folders", repr(given))
        found.append(os.path.realpath(os.path.expanduser(given)))
        try:
            (given + found[-1]).encode()
        except UnicodeEncodeError:  # Python reads a byte that is not UTF-8 as half of a surrogate pair
            raise refused("text", "must be named in UTF-8", repr(found[-1])) from None
    return tuple(found)


@functools.lru_cache(maxsize=2)
def load_corpus(text: tuple[str, ...] = ()) -> Corpus:
    """Read files and folders, or Python's standard library.

    In the order of their names' hashes, files go to validation until it has a tenth of the bytes; a
    text of one file is cut instead. Duplicates of a file count once. Within a
    folder, files that are not text are skipped; a file given by name must be text.

    Raises:
        FileNotFoundError: A path does not exist.
        ValueError: A named file is empty or binary, a folder holds no text, or one of them cannot be read.
    """
    try:
        found = list(_named_files(text) if text else _library_files())
    except OSError as error:
        if error.filename is None:  # raised below, as a sentence
            raise
        raise refused(
            "text",
            "must be files or folders that can be read, got {path}: {reason}",
            path=error.filename,
            reason=error.strerror,
        ) from None
    # Names of files in a folder may be arbitrary bytes.
    found.sort(
        key=lambda file: (hashlib.sha256(file[0].encode(errors="surrogatepass")).digest(), file[1])
    )
    contents = list(dict.fromkeys(content for _, content in found))
    if len(contents) == 1:
        cut = int(len(contents[0]) * (1 - _VALIDATION_SHARE))
        train, validation = [contents[0][:cut]], [contents[0][cut:]]
    else:
        wanted, taken, count = _VALIDATION_SHARE * sum(map(len, contents)), 0, 0
        while taken < wanted and count < len(contents) - 1:
            taken, count = taken + len(contents[count]), count + 1
        train, validation = contents[count:], contents[:count]
    source = ", ".join(text) if text else f"the standard library of {_this_python()}"
    return Corpus(_bytes(train), _bytes(validation), len(contents), source)


cleared_by(load_corpus.cache_clear)


def bigram_loss(corpus: Corpus, targets: Tensor, before: Tensor) -> float:
    """The loss, in nats, of a table of byte pairs counted in the training text.

    This loss needs no attention, so only losses far below it depend on positions.

    Args:
        targets: Bytes to predict.
        before: The byte before each target.
    """
    pairs = corpus.train[:-1].long() * 256 + corpus.train[1:].long()
    counts = torch.bincount(pairs, minlength=256 * 256).view(256, 256).double() + 1.0 / 256
    table = (counts / counts.sum(dim=1, keepdim=True)).log()
    return -table[before.long(), targets.long()].mean().item()


def _this_python() -> str:
    return f"{platform.python_implementation()} {platform.python_version()}"


def _library_files() -> Iterator[tuple[str, bytes]]:
    root = Path(sysconfig.get_path("stdlib"))
    return _texts_in(root, "*.py", lambda part: part in _LEFT_OUT)


def _named_files(text: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    for path in map(Path, text):
        if path.is_dir():
            found = list(_texts_in(path, "*", lambda part: part.startswith(".")))
            if not found:
                raise refused(
                    "text", "must be files or folders of text", path, advice=", which holds none"
                )
            yield from found
            continue
        if not path.exists():
            raise refused(
                "text",
                "must be files or folders",
                path,
                error=FileNotFoundError,
                advice=", which is not there",
            )
        if path.stat().st_size == 0:
            raise refused("text", "must not be empty", path, advice=", which has 0 bytes")
        content = path.read_bytes()
        if not _is_text(content):
            raise refused("text", "must be text, got {path}, which is binary", path=path)
        yield path.name, content


def _texts_in(
    folder: Path, pattern: str, leaves_out: Callable[[str], bool]
) -> Iterator[tuple[str, bytes]]:
    """Names and contents of all text files below a folder; ``leaves_out`` excludes parts of paths."""
    for path in folder.rglob(pattern):
        name = path.relative_to(folder)
        if path.is_file() and not any(map(leaves_out, name.parts)):
            content = path.read_bytes()
            if _is_text(content):
                yield name.as_posix(), content


def _is_text(content: bytes) -> bool:
    return bool(content) and b"\0" not in content


def _bytes(contents: Sequence[bytes]) -> Tensor:
    joined = bytearray(b"\n".join(contents))
    if not joined:  # `torch.frombuffer` does not accept an empty buffer
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(joined, dtype=torch.uint8)
