"""Files and folders are written whole or not at all, and a lock ends with its process."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

import pytest

from ordinate.files import lock, lock_holder, partial_folder, write_file, write_then_move

fcntl = pytest.importorskip("fcntl", reason="a stand-in for a file system without locks")


def no_locks(*_):
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


@pytest.fixture
def another_writes(tmp_path):
    """A process in the middle of writing the folder ``slow``."""
    code = (
        "import sys, time; from pathlib import Path; from ordinate.files import write_then_move\n"
        "with write_then_move(Path(sys.argv[1])) as folder:\n"
        "    folder.mkdir(); (folder / 'half').write_text('x'); print('begun', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "slow")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "begun\n"
        yield process
        process.kill()


@pytest.mark.plain
def test_a_folder_appears_when_it_is_whole_and_a_killed_ones_remains_are_removed(
    tmp_path, another_writes
):
    with pytest.raises(
        FileExistsError, match=r"two processes at once \(remove '.slow.ordinate-partial'"
    ):
        write_then_move(tmp_path / "slow").__enter__()
    half = partial_folder(tmp_path / "slow") / "slow" / "half"
    assert half.is_file()
    another_writes.send_signal(signal.SIGKILL)
    another_writes.wait()
    assert half.is_file()
    with write_then_move(tmp_path / "other") as folder:
        folder.mkdir()
        assert [path.name for path in tmp_path.iterdir()] == [".other.ordinate-partial"]
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    with pytest.raises(ZeroDivisionError), write_then_move(tmp_path / "third") as file:
        file.write_text(str(1 / 0))
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


@pytest.mark.plain
def test_without_locks_nothing_is_taken_for_abandoned(tmp_path, another_writes, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", no_locks)
    with write_then_move(tmp_path / "quick") as file:
        file.write_text("whole")
    with pytest.raises(FileExistsError, match=r"remove '.slow.ordinate-partial' next to it"):
        write_then_move(tmp_path / "slow").__enter__()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {".slow.ordinate-partial", "quick"}
    with pytest.raises(OSError, match=os.strerror(errno.ENOSYS)), lock(tmp_path / "a.lock"):
        pass


def test_a_lock_that_another_holds_is_refused_when_its_time_is_over(tmp_path):
    with lock(tmp_path / "a.lock"):
        with pytest.raises(TimeoutError), lock(tmp_path / "a.lock", timeout=0):
            pass
        assert lock_holder(tmp_path / "a.lock")
    assert lock_holder(tmp_path / "a.lock") == ""
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_there_is_replaced_only_where_that_is_asked_for(tmp_path):
    (tmp_path / "precious").write_text("years of work")
    (tmp_path / "link").symlink_to("precious")
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "link", b"{}", overwrite=False)
    write_file(tmp_path / "link", b"{}")
    assert (tmp_path / "link").read_bytes() == b"{}"
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "link").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "precious").read_text() == "years of work"
    assert len(list(tmp_path.iterdir())) == 2
