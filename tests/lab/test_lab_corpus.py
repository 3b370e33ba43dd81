"""No byte of the training text is tested on, however the text is named."""

from __future__ import annotations

import os
import platform

import pytest
from synthetic_records import write_sweep

from ordinate.lab.corpus import load_corpus
from ordinate.lab.report.api import read_report
from ordinate.lab.run.sweep import plan


@pytest.fixture
def folder(tmp_path):
    """Ten files of different text, one of them in a folder of its own."""
    (tmp_path / "text" / "inner").mkdir(parents=True)
    for number in range(9):
        (tmp_path / "text" / f"{number}.txt").write_text(f"the text of file {number}\n" * 50)
    (tmp_path / "text" / "inner" / "9.txt").write_text("the text of the last file\n" * 50)
    return tmp_path / "text"


def shared_lines(corpus) -> set[bytes]:
    train, validation = (bytes(part.numpy()).splitlines() for part in (corpus.train, corpus.validation))
    return set(train) & set(validation) - {b""}


def test_files_of_a_folder_are_either_trained_on_or_tested_on(folder):
    corpus = load_corpus((str(folder),))
    assert corpus.files == 10
    assert shared_lines(corpus) == set()


def named_twice(folder):
    return (str(folder), str(folder))


def named_with_its_folder(folder):
    return (str(folder), str(folder / "inner" / "9.txt"), str(folder / "0.txt"))


def by_another_path(folder):
    return (str(folder), f"{folder}/inner/..")


def by_a_link(folder):
    os.symlink(folder, folder.parent / "link")
    return (str(folder.parent / "link"), str(folder))


def with_a_copy(folder):
    (folder / "copy.txt").write_bytes((folder / "3.txt").read_bytes())
    return (str(folder),)


@pytest.mark.parametrize(
    "name", [named_twice, named_with_its_folder, by_another_path, by_a_link, with_a_copy]
)
def test_text_that_is_given_twice_counts_once(folder, name):
    corpus = load_corpus(name(folder))
    assert corpus.files == 10
    assert shared_lines(corpus) == set()
    assert (
        len(corpus.train) + len(corpus.validation)
        == sum(path.stat().st_size for path in folder.rglob("*.txt") if path.name != "copy.txt") + 8
    )  # a line between files


def test_a_file_of_a_folder_may_have_a_name_of_any_bytes(folder):
    try:
        (folder / os.fsdecode(b"caf\xe9.txt")).write_text("the text of one more file\n" * 50)
    except OSError:
        pytest.skip("this file system takes names of UTF-8 alone")
    assert load_corpus((str(folder),)).files == 11


def test_one_byte_of_text_is_tested_on(tmp_path):
    (tmp_path / "byte.txt").write_text("x")
    corpus = load_corpus((str(tmp_path / "byte.txt"),))
    assert (bytes(corpus.train.numpy()), bytes(corpus.validation.numpy())) == (b"", b"x")


def test_one_file_given_twice_is_cut_and_not_tested_on_itself(folder):
    path = folder / "one.txt"
    path.write_text("".join(f"line {number} of one file\n" for number in range(500)))
    once, twice = load_corpus((str(path),)), load_corpus((str(path), f"{folder}/../text/one.txt"))
    assert twice.files == 1
    assert (twice.fingerprint, len(shared_lines(twice))) == (once.fingerprint, 0)


def test_the_split_does_not_depend_on_the_order_files_are_named_in(folder):
    paths = [str(path) for path in folder.rglob("*.txt")]
    (folder / "inner" / "0.txt").write_text("another file by a name that is taken\n" * 50)
    paths.append(str(folder / "inner" / "0.txt"))
    assert load_corpus(tuple(paths)).fingerprint == load_corpus(tuple(reversed(paths))).fingerprint


def test_a_tenth_of_the_bytes_is_for_validation(tmp_path):
    for number in range(100):
        (tmp_path / f"{number}.txt").write_text(f"file {number:02}\n" * 100)
    corpus = load_corpus((str(tmp_path),))
    assert len(corpus.validation) == 10 * 800 + 9  # with a line between files
    assert len(corpus.train) == 90 * 800 + 89
    one = load_corpus((str(tmp_path / "0.txt"),))
    assert (len(one.train), len(one.validation)) == (720, 80)


def test_the_library_is_named_by_the_python_it_is_of_and_its_size(monkeypatch):
    corpus = load_corpus()
    assert corpus.source == f"the standard library of CPython {platform.python_version()}"
    size = len(corpus.train) + len(corpus.validation)
    assert corpus.describe() == f"{corpus.source}, {corpus.files} files, {size / 1e6:.1f} MB"
    settings = plan(arms=["none"]).settings
    assert (settings["corpus"], settings["text_source"]) == (corpus.fingerprint, corpus.describe())


def test_a_report_says_of_which_text_it_is_and_what_it_can_be_compared_with(tmp_path):
    write_sweep(
        tmp_path, ["rope"], text_source="the standard library of CPython 3.11.7, 9 files, 1.0 MB"
    )
    narrative = read_report(tmp_path).narrative
    text = "the standard library of CPython 3.11.7, 9 files, 1.0 MB, fingerprint 0123456789abcdef"
    assert ("text", text) in narrative.facts
    assert "Every patch version of Python has another standard library" in narrative.caution
    assert "only if its text has this fingerprint, 0123456789abcdef" in narrative.caution
