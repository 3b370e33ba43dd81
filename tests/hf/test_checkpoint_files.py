"""Checkpoint files that are not what they say, and conversions that are killed."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock
import pytest
import safetensors
import safetensors.torch
import torch

from ordinate.hf import to_half, to_interleaved

CONFIG = {"model_type": "llama", "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1}
NAMES = [f"model.layers.0.self_attn.{name}_proj.weight" for name in "qkvo"]


def checkpoint(path: Path) -> Path:
    safetensors.torch.save_file({name: torch.randn(32, 32) for name in NAMES}, path)
    return path


# Headers that do not fit.

_ODD_VALUES: list[Any] = [
    0, 1, -1, 31, 33, 64.9, 32.0, True, None, "32", [], {}, [32], float("inf"), float("nan"), 2**31, 2**63 - 1,
    2**63, 2**64, 10**400, "F32", "F16", "F17", "f32", "BF16", "F4", "F6_E2M3", "I8", "", "\u0000",
]  # fmt: skip


def mutated(header: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """The header with one to three of its values, entries or names changed."""
    header = json.loads(json.dumps(header))
    for _ in range(draw.randint(1, 3)):
        name = draw.choice(list(header))
        entry = header[name]
        key = draw.choice(list(entry)) if isinstance(entry, dict) and entry else None
        held = entry[key] if key else None
        kind = draw.randrange(6)
        if kind == 0 and isinstance(held, list) and held:
            held[draw.randrange(len(held))] = draw.choice(_ODD_VALUES)
        elif kind == 1 and isinstance(held, list):
            held.append(draw.choice(_ODD_VALUES))
        elif kind == 2 and isinstance(held, list) and held:
            held.pop(draw.randrange(len(held)))
        elif kind == 3 and key:
            entry[key] = draw.choice(_ODD_VALUES)
        elif kind == 4 and key:
            del entry[key]
        else:
            header[name] = draw.choice(_ODD_VALUES)
        if not header:
            break
    return header


def official_reader_accepts(path: Path) -> bool:
    try:
        with safetensors.safe_open(path, "pt") as file:
            return bool(list(file.keys())) or True
    except safetensors.SafetensorError:
        return False


@pytest.mark.plain
@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_header_is_refused_in_one_sentence_or_fits_the_formats_own_reader(tmp_path, seed):
    draw = random.Random(seed)
    content = checkpoint(tmp_path / "good.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    good, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    source, target = tmp_path / "own.safetensors", tmp_path / "other.safetensors"
    read, refused = 0, 0
    for _ in range(250):
        text = json.dumps(mutated(good, draw)).encode()
        if draw.random() < 0.3:  # damage its bytes as well
            place = draw.randrange(len(text))
            text = text[:place] + bytes(draw.choices(b'"{}[]:,0129eE.-\\u\xff ', k=2)) + text[place:]
        source.write_bytes(len(text).to_bytes(8, "little") + text + data)
        try:
            to_half(source, target, config=CONFIG)
        except ValueError as error:
            sentence = str(error)
            assert " must " in sentence
            assert ", got " in sentence
            assert len(sentence) < 300
            assert sentence.isprintable()
            refused += 1
        else:
            assert official_reader_accepts(source)
            assert official_reader_accepts(target)
            target.unlink()
            read += 1
        assert {path.name for path in tmp_path.iterdir()} == {"good.safetensors", "own.safetensors"}
    assert refused > 150


@pytest.mark.plain
def test_every_dtype_of_the_format_is_converted_as_its_own_reader_takes_it(tmp_path):
    """Its reader is asked, so that a table of ours with another size would show."""
    from ordinate.hf.safetensors_file import _BITS

    for dtype, bits in _BITS.items():
        source, target = tmp_path / f"{dtype}.safetensors", tmp_path / f"{dtype}-other.safetensors"
        size = 32 * 32 * bits // 8
        header = {
            name: {"dtype": dtype, "shape": [32, 32], "data_offsets": [i * size, (i + 1) * size]}
            for i, name in enumerate(NAMES)
        }
        text = json.dumps(header).encode()
        data = random.Random(0).randbytes(4 * size)
        source.write_bytes(len(text).to_bytes(8, "little") + text + data)
        assert official_reader_accepts(source), dtype
        to_interleaved(source, target, config=CONFIG)
        assert official_reader_accepts(target), dtype
        rows = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(4, 32, -1)
        written = target.read_bytes()[-4 * size :]
        after = torch.frombuffer(bytearray(written), dtype=torch.uint8).view(4, 32, -1)
        order = torch.arange(8).view(2, 4).T.flatten()  # of a head of 8 rows
        expected = rows[:2].unflatten(1, (4, 8))[:, :, order].flatten(1, 2)
        assert torch.equal(after[:2], expected), dtype
        assert torch.equal(after[2:], rows[2:]), dtype


# Conversions that are killed.

_STOPS_WITHIN_A_COPY = """
import sys, time
from ordinate.hf import safetensors_file, to_half

copy = safetensors_file._copy

def stop(file, out, count):
    copy(file, out, count)
    out.flush()
    print("copied", flush=True)
    time.sleep(600)

safetensors_file._copy = stop
to_half(sys.argv[1], sys.argv[2], config=eval(sys.argv[3]))
"""


@contextmanager
def converting(source: Path, target: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process in the middle of a conversion."""
    command = [sys.executable, "-c", _STOPS_WITHIN_A_COPY, str(source), str(target), repr(CONFIG)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "copied\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def sources(tmp_path) -> tuple[Path, Path]:
    """A checkpoint as a file, and as a folder."""
    (tmp_path / "sources" / "folder").mkdir(parents=True)
    checkpoint(tmp_path / "sources" / "folder" / "model.safetensors")
    return checkpoint(tmp_path / "sources" / "own.safetensors"), tmp_path / "sources" / "folder"


@pytest.mark.plain
@pytest.mark.parametrize("kind", [0, 1], ids=["file", "folder"])
def test_what_a_killed_conversion_left_has_a_known_name_and_the_next_one_removes_it(
    tmp_path, sources, kind
):
    for name in ("same", "another"):
        folder = tmp_path / name
        folder.mkdir()
        with converting(sources[kind], folder / "killed") as process:
            process.send_signal(signal.SIGKILL)
            process.wait()
        left = folder / ".killed.ordinate-partial"
        assert list(folder.iterdir()) == [left]
        written = [path for path in left.rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in written) > 32 * 32 * 4
        target = folder / ("killed" if name == "same" else "other")
        to_half(sources[kind], target, config=CONFIG)
        assert list(folder.iterdir()) == [target]
        to_half(sources[kind], tmp_path / f"{name}-undisturbed", config=CONFIG)
        for path in (tmp_path / f"{name}-undisturbed").glob("*"):
            assert (target / path.name).read_bytes() == path.read_bytes()


@pytest.mark.plain
@pytest.mark.parametrize("kind", [0, 1], ids=["file", "folder"])
def test_what_a_living_conversion_writes_is_not_touched(tmp_path, sources, kind):
    folder = tmp_path / "targets"
    folder.mkdir()
    with converting(sources[kind], folder / "slow"):
        left = folder / ".slow.ordinate-partial"
        before = {path: path.stat().st_size for path in left.rglob("*")}
        assert len(before) >= 2
        to_half(sources[kind], folder / "quick", config=CONFIG)
        with pytest.raises(
            FileExistsError, match=r"target must not be written by two processes at once"
        ):
            to_half(sources[kind], folder / "slow", config=CONFIG)
        assert {path: path.stat().st_size for path in left.rglob("*")} == before
    to_half(sources[kind], folder / "slow", config=CONFIG)
    assert {path.name for path in folder.iterdir()} == {"quick", "slow"}


@pytest.mark.plain
def test_only_what_these_functions_left_is_removed(tmp_path, sources):
    """A link, a file and a folder without a lock have the name by chance, or by malice."""
    precious = tmp_path / "precious"
    precious.mkdir()
    for name in ("lock", "thesis.tex"):
        (precious / name).write_text("years of work")
    folder = tmp_path / "targets"
    (folder / ".plain.ordinate-partial").mkdir(parents=True)
    (folder / ".plain.ordinate-partial" / "notes").write_text("mine")
    (folder / ".file.ordinate-partial").write_text("mine")
    (folder / ".link.ordinate-partial").symlink_to(precious)
    before = sorted(folder.rglob("*"))
    to_half(sources[0], folder / "target", config=CONFIG)
    assert sorted(folder.rglob("*")) == sorted([*before, folder / "target"])
    for name in ("plain", "file", "link"):
        with pytest.raises(FileExistsError, match=rf"remove '.{name}.ordinate-partial' next to it"):
            to_half(sources[0], folder / name, config=CONFIG)
    assert len(list(precious.iterdir())) == 2


def _no_locks(*_: object) -> None:
    """What some network file systems answer."""
    raise OSError(errno.ENOLCK, "No locks available")


@pytest.mark.plain
def test_where_no_file_can_be_locked_nothing_is_taken_for_abandoned(tmp_path, sources, monkeypatch):
    with converting(sources[0], tmp_path / "slow"):
        monkeypatch.setattr(filelock.FileLock, "acquire", _no_locks)
        to_half(sources[0], tmp_path / "quick", config=CONFIG)
        with pytest.raises(FileExistsError, match=r"remove '.slow.ordinate-partial' next to it"):
            to_half(sources[0], tmp_path / "slow", config=CONFIG)
        assert (tmp_path / ".slow.ordinate-partial" / "slow").is_file()
    monkeypatch.undo()
    to_half(sources[0], tmp_path / "slow", config=CONFIG)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.plain
def test_a_name_too_long_to_be_written_under_is_refused_before_anything_is(tmp_path, sources):
    room = os.pathconf(tmp_path, "PC_NAME_MAX") - len("..ordinate-partial")
    to_half(sources[0], tmp_path / ("a" * room), config=CONFIG)
    before = sorted(tmp_path.iterdir())
    for length in (room + 1, 250, 300):
        with pytest.raises(
            ValueError, match=r"with room for the name '.a.* too, got .*: File name too long"
        ):
            to_half(sources[0], tmp_path / ("a" * length), config=CONFIG)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.plain
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="Linux")
def test_a_folder_that_only_seems_writable_is_not_taken_for_another_process(sources):
    sentence = r"target must be in a folder that can be written, .*, got '/proc/x': No such file"
    with pytest.raises(ValueError, match=sentence):
        to_half(sources[0], "/proc/x", config=CONFIG)
