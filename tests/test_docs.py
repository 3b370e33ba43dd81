"""The documentation runs: every code block, every example, every link, every generated part."""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import io
import itertools
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import ordinate

pytestmark = pytest.mark.plain  # the documentation is for users, who have no shape checker

ROOT = Path(__file__).resolve().parents[1]
EXECUTED = sorted([*ROOT.glob("README*.md"), *(ROOT / "docs").glob("*.md")])
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
READMES = (ROOT / "README.md", ROOT / "README.zh.md")

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)


def ids(paths) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in paths]


@dataclass(frozen=True)
class Block:
    """A fenced block, the line it starts on, and whether nothing but blank lines precede it since the last."""

    language: str
    text: str
    line: int
    follows: bool


def blocks(page: Path) -> list[Block]:
    text, found, end = page.read_text(encoding="utf-8"), [], 0
    for fence in _FENCE.finditer(text):
        line = text.count("\n", 0, fence.start()) + 2
        found.append(Block(fence[1], fence[2], line, not text[end : fence.start()].strip()))
        end = fence.end()
    return found


def prose(page: Path) -> str:
    """A page without its code."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def test_what_is_to_be_installed_can_be():
    """No package index has ordinate: who reads these installs from a clone, and extras.py tells the others."""
    told = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    told.remove(ROOT / "src" / "ordinate" / "extras.py")
    wrong = re.compile(r"pip install\s+['\"]?ordinate\b")
    assert [path for path in told if wrong.search(path.read_text(encoding="utf-8"))] == []


def test_nothing_cites_a_document_that_is_not_here():
    """A reader can follow a citation: by a link, an arXiv number, or a file of the repository."""
    told = [path for folder in ("src", "tests", "docs") for path in (ROOT / folder).rglob("*.py")]
    told += [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    numbered = re.compile(r"\bdocument[ _]\d+", re.IGNORECASE)
    assert [str(path) for path in told if numbered.search(path.read_text(encoding="utf-8"))] == []


def section(page: Path, level: int, number: int) -> str:
    """The text of the n-th section of a level."""
    parts = re.split(rf"^{'#' * level} ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return parts[number]


@pytest.mark.parametrize("page", EXECUTED, ids=ids(EXECUTED))
def test_every_block_of_a_page_runs_and_prints_what_it_says(page):
    names: dict[str, object] = {"__name__": page.stem}
    listed = [*blocks(page), Block("", "", 0, False)]
    checker = doctest.OutputChecker()
    for block, after in itertools.pairwise(listed):
        if block.language != "python":
            continue
        # Blank lines in front, so that a traceback has the line of the page.
        code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)
        says = after.text if after.language == "text" and after.follows else ""
        same = checker.check_output(says, printed.getvalue(), doctest.ELLIPSIS)
        assert same, f"{page.name}:{block.line} says\n{says}but prints\n{printed.getvalue()}"


@pytest.mark.parametrize("page", EXECUTED, ids=ids(EXECUTED))
def test_every_block_names_a_language_and_every_output_follows_code(page):
    listed = blocks(page)
    assert page.read_text(encoding="utf-8").count("```") == 2 * len(listed)
    for before, block in zip([Block("", "", 0, False), *listed], listed, strict=False):
        assert block.language in ("python", "text", "sh"), f"{page.name}:{block.line}"
        if block.language == "text":
            assert block.follows, f"{page.name}:{block.line} is the output of nothing"
            assert before.language == "python", f"{page.name}:{block.line} is the output of nothing"


def test_there_is_something_to_run():
    counts = {page.name: sum(b.language == "python" for b in blocks(page)) for page in EXECUTED}
    assert counts["README.md"] >= 5
    assert counts["guide.md"] >= 20
    assert counts["errata.md"] >= 13


def test_every_section_of_the_errata_shows_itself_by_running():
    text = (ROOT / "docs" / "errata.md").read_text(encoding="utf-8")
    silent = [part.splitlines()[0] for part in text.split("\n## ")[1:] if "```python" not in part]
    assert silent == []


EXAMPLES = {
    "convert_layout.py": "converted weights, half layout:      0.0e+00",
    "custom_encoding.py": "✓ shift invariance",
    "decode_with_cache.py": "t5            one by one as all at once: True",
    "extend_context.py": "slowest pair divided by 4",
    "packed_batch.py": "packed equals separate: True",
}


def test_every_example_is_run():
    assert sorted(path.name for path in (ROOT / "examples").glob("*.py")) == sorted(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short_and_prints_what_it_is_about(name):
    path = ROOT / "examples" / name
    assert len(path.read_text(encoding="utf-8").splitlines()) < 40
    # Users have no Triton interpreter switched on, as the tests of kernels do.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        check=False,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=environment,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert EXAMPLES[name] in done.stdout


def public_names() -> list[str]:
    names = [name for name in dir(ordinate) if not name.startswith("_")]
    for module in (ordinate.positions, ordinate.scaling):
        defined = (
            name
            for name, value in vars(module).items()
            if getattr(value, "__module__", "") == module.__name__
        )
        names += [name for name in defined if not name.startswith("_")]
    return names


@pytest.mark.parametrize("name", public_names())
def test_every_public_name_is_in_the_documentation(name):
    text = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))
    assert re.search(rf"\b{name}\b", text), f"{name} is public and docs/ does not mention it"


@pytest.mark.parametrize("page", READMES, ids=ids(READMES))
def test_the_quick_start_is_two_commands_that_the_makefile_has(page):
    quick = section(page, 2, 1)
    (commands,) = [block[2] for block in _FENCE.finditer(quick)]
    assert commands.split("\n") == ["make demo", "make test", ""]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test"):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_both_readmes_have_the_same_code_and_the_same_sections():
    english, chinese = READMES
    assert [(b.language, b.text) for b in blocks(english)] == [
        (b.language, b.text) for b in blocks(chinese)
    ]
    levels = [[len(marks) for marks, _ in _HEADING.findall(prose(page))] for page in READMES]
    assert levels[0] == levels[1]
    rows = [len(re.findall(r"^\|", prose(page), re.MULTILINE)) for page in READMES]
    assert rows[0] == rows[1]
    links = [set(re.findall(r"\]\(([^)#]+)", prose(page))) for page in READMES]
    assert links[0] - {"README.zh.md"} == links[1] - {"README.md"}


@cache
def builder():
    found = importlib.util.spec_from_file_location("docs_build", ROOT / "docs" / "build.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["README.md", "README.zh.md", "docs/encodings.md"])
def test_generated_parts_are_what_the_catalog_says(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert "<!-- catalog:" in text
    assert text == builder().render(text), "run docs/build.py"


def anchors(page: Path) -> set[str]:
    """The names a page's headings can be linked by, made as GitHub makes them."""
    slugs = set()
    for _, heading in _HEADING.findall(prose(page)):
        kept = re.sub(r"[^\w\- ]", "", heading.lower())
        slugs.add(kept.strip().replace(" ", "-"))
    return slugs


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_relative_links_resolve(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name} links to {target}, which is not there"
        if anchor:
            assert anchor in anchors(file), f"{page.name} links to {target}, which has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_tests_that_a_page_points_to_exist(page):
    for path, name in re.findall(r"`?(tests/[\w/]+\.py)::(\w+)", page.read_text(encoding="utf-8")):
        source = (ROOT / path).read_text(encoding="utf-8")
        assert f"def {name}(" in source, f"{page.name} points to {path}::{name}, which is not there"


def test_the_changelog_has_the_version_of_the_package():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[{re.escape(ordinate.__version__)}\]", text, re.MULTILINE)
