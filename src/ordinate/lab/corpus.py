"""The text to learn from: bytes of files, split by file into training and validation.

Without files of your own it is the source of Python's standard library: on every machine that can run
this, real text with structure near and far, nothing shipped and nothing downloaded. It is another text in
every patch version of Python, so a comparison records which one it was (`Corpus.describe`).
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor

from ..caches import cleared_by
from . import formats as words

# Tests and tables of characters are no prose, and not every machine has the former.
_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "__pycache__"}

_VALIDATION_SHARE = 0.1


@dataclass(frozen=True, eq=False)
class Corpus:
    """Bytes to train on and bytes to test on; no file is in both, nor a copy of it."""

    train: UInt8[Tensor, " train_bytes"]
    validation: UInt8[Tensor, " validation_bytes"]
    files: int
    source: str

    def describe(self) -> str:
        """Whose text it is, and how much."""
        size = (len(self.train) + len(self.validation)) / 1e6
        return f"{self.source}, {words.plural(self.files, 'file')}, {size:.1f} MB"

    @property
    def fingerprint(self) -> str:
        """The same for the same bytes in the same split, and for nothing else."""
        digest = hashlib.sha256(self.train.numpy().tobytes())
        digest.update(b"validation")  # so that moving the boundary shows
        digest.update(self.validation.numpy().tobytes())
        return digest.hexdigest()[:16]


def absolute_paths(text: Iterable[str]) -> tuple[str, ...]:
    """Paths as records keep them, the same from any folder.

    Raises:
        ValueError: One is empty, which would be the current folder, or has a name that no record can hold.
    """
    whole = []
    for given in map(os.fspath, text):
        if not given:
            raise ValueError("text must be files or folders, got ''")
        whole.append(os.path.realpath(os.path.expanduser(given)))
        try:
            (given + whole[-1]).encode()
        except UnicodeEncodeError:  # a byte that is not UTF-8 is half of a surrogate pair to Python
            raise ValueError(f"text must be named in UTF-8, got {whole[-1]!r}") from None
    return tuple(whole)


@functools.lru_cache(maxsize=2)
def load_corpus(text: tuple[str, ...] = ()) -> Corpus:
    """Read files and folders, or Python's standard library.

    Files go to validation in an order given by their names' hashes until it has a tenth of the bytes; a
    text that is one file is cut instead. A file that is given twice, or has a copy, counts once. Within a
    folder, files that are not text are passed over; a file named by itself must be text.

    Raises:
        FileNotFoundError: A path is not there.
        ValueError: A named file is empty or binary, a folder holds no text, or one of them cannot be read.
    """
    try:
        found = list(_named_files(text) if text else _library_files())
    except OSError as error:
        if error.filename is None:  # it is a sentence already
            raise
        raise ValueError(
            f"text must be files or folders that can be read, got {error.filename}: {error.strerror}"
        ) from None
    # Within a folder a name may be of any bytes.
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

    What every model must beat by far before its losses mean anything: this much is known without
    attention, let alone positions.

    Args:
        targets: Bytes to predict, and ``before`` the byte in front of each.
    """
    pairs = corpus.train[:-1].long() * 256 + corpus.train[1:].long()
    counts = torch.bincount(pairs, minlength=256 * 256).view(256, 256).double() + 1.0 / 256
    table = (counts / counts.sum(dim=1, keepdim=True)).log()
    return -table[before.long(), targets.long()].mean().item()


def _this_python() -> str:
    return f"{platform.python_implementation()} {platform.python_version()}"


def _library_files() -> Iterator[tuple[str, bytes]]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in root.rglob("*.py"):
        name = path.relative_to(root)
        if not _LEFT_OUT.intersection(name.parts):
            content = _read(path)
            if content is not None:
                yield name.as_posix(), content


def _named_files(text: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    for given in text:
        path = Path(given)
        if path.is_dir():
            count = 0
            for file in path.rglob("*"):
                name = file.relative_to(path)
                hidden = any(part.startswith(".") for part in name.parts)
                content = None if hidden or not file.is_file() else _read(file)
                if content is not None:
                    count += 1
                    yield name.as_posix(), content
            if count == 0:
                raise ValueError(f"text must be files or folders of text, got {given}, which holds none")
        elif not path.exists():
            raise FileNotFoundError(f"text must be files or folders, got {given}, which is not there")
        else:
            if path.stat().st_size == 0:
                raise ValueError(f"text must not be empty, got {given}, which has 0 bytes")
            content = _read(path)
            if content is None:
                raise ValueError(f"text must be text, got {given}, which is binary")
            yield path.name, content


def _read(path: Path) -> bytes | None:
    """A file's bytes; None for what is no text."""
    content = path.read_bytes()
    return None if not content or b"\0" in content else content


def _bytes(contents: Sequence[bytes]) -> Tensor:
    joined = bytearray(b"\n".join(contents))
    if not joined:  # nine tenths of one byte, which `torch.frombuffer` does not take
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(joined, dtype=torch.uint8)
