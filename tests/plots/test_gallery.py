"""The gallery is what its script makes, and every command on it runs."""

from __future__ import annotations

import importlib.util
import json
import shlex
import sys
from pathlib import Path

import pytest
from matplotlib.image import imread

from ordinate.cli.app import run

DOCS = Path(__file__).resolve().parents[2] / "docs"


def script():
    found = importlib.util.spec_from_file_location("docs_gallery", DOCS / "gallery.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules["docs_gallery"] = module  # where dataclasses look their module up
    found.loader.exec_module(module)
    return module


GALLERY = script()


def test_the_page_is_what_the_script_writes():
    assert (DOCS / "gallery.md").read_text(encoding="utf-8") == GALLERY.render(), "run docs/gallery.py"


def test_the_folder_holds_the_pictures_of_the_page_and_no_others():
    assert sorted(path.name for path in (DOCS / "gallery").iterdir()) == sorted(
        entry.file for entry in GALLERY.entries()
    )


def test_pictures_are_small():
    sizes = [path.stat().st_size for path in (DOCS / "gallery").iterdir()]
    assert max(sizes) < 150_000
    assert sum(sizes) < 1_500_000


@pytest.mark.parametrize("entry", GALLERY.entries(), ids=lambda entry: entry.file)
def test_every_command_of_the_gallery_draws_the_picture_that_is_there(capsys, tmp_path, entry):
    path = tmp_path / entry.file
    assert run(["plot", *shlex.split(entry.arguments), "--json", "-o", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["panels"]
    kept, drawn = (imread(file)[..., :3] for file in (DOCS / "gallery" / entry.file, path))
    assert kept.shape == drawn.shape, "run docs/gallery.py"
    differ = (
        abs(kept - drawn).max(axis=-1) > 0.1
    )  # other machines may round the edge of a letter otherwise
    assert differ.mean() < 0.002, "run docs/gallery.py"


def test_the_pictures_of_the_documents_are_all_there():
    commands = " | ".join(entry.arguments for entry in GALLERY.entries())
    for wanted in (
        "--positions 20 --dim 32", "--positions 50 --dim 64", "--positions 100 --dim 512",
        "--channels 2,6,12 --positions 128", "--at 1,5", "--pairs 0,15,31", "--kind rotation",
        "alibi --kind slopes", "alibi --kind bias", "--kind buckets", "t5 --kind bias", "--kind scores",
        "--kind scalings", "--kind attention",
    ):  # fmt: skip
        assert wanted in commands
