"""What the page's own modules refuse, collected by tests/test_errors.py."""

# ruff: noqa: E501  one case a line, however long
from __future__ import annotations

import tempfile
import unittest.mock
import zipfile
from pathlib import Path
from typing import Any

from ordinate.web import records_zip, serve
from ordinate.web.answers import parsed_config
from ordinate.web.controls import MAX_SPEC, _checked, all_controls, number, spec_of


def serve_without_packages() -> Any:
    with unittest.mock.patch.object(serve, "find_spec", return_value=None):
        return serve.serve()


def unpack(files: dict[str, bytes] | None = None, raw: bytes | None = None, twice: str = "") -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.zip"
        if raw is not None:
            path.write_bytes(raw)
        else:
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, content in (files or {}).items():
                    archive.writestr(name, content)
                if twice:
                    archive.writestr(twice, b"{}")
        records_zip.unpack(path, Path(folder) / "out")


def unpack_many() -> None:
    with unittest.mock.patch.object(records_zip, "MAX_FILES", 1):
        unpack({"sweep.json": b"{}", "runs/a/config.json": b"{}"})


CASES = [
    ("page: an encoding there is not", lambda: spec_of("rop", "", {}), ValueError, r"encoding must be one of none, sinusoidal, .*, got 'rop'"),
    ("page: a spec without end", lambda: spec_of("spec", "x" * (MAX_SPEC + 1), {}), ValueError, r"spec must be at most 200 characters, got 201"),
    ("page: a choice there is not", lambda: _checked(all_controls()["layout"], "quarter"), ValueError, r"layout must be one of half, interleaved, got 'quarter'"),
    ("page: a switch with a word", lambda: _checked(all_controls()["symmetric"], "yes"), ValueError, r"symmetric must be true or false, got 'yes'"),
    ("page: a number with a word", lambda: number("dim", "many", 2, 256, whole=True), ValueError, r"dim must be a number from 2 to 256, got 'many'"),
    ("page: a number beyond its bounds", lambda: number("dim", 1e9, 2, 256, whole=True), ValueError, r"dim must be from 2 to 256, got 1000000000"),
    ("page: half a head", lambda: number("heads", 1.5, 1, 32, whole=True), ValueError, r"heads must be a whole number, got 1.5"),
    ("page: without gradio", serve_without_packages, ModuleNotFoundError, r"gradio and plotly must be installed for the page: pip install 'ordinate\[web\]'"),
    ("page: no host", lambda: serve.listen("", None), ValueError, r"host must name an address of this machine, got ''"),
    ("page: no host in brackets", lambda: serve.listen("[]", None), ValueError, r"host must name an address of this machine, got '\[\]'"),
    ("page: a host that no machine can have", lambda: serve.listen("d\udce9", None), ValueError, r"host must name an address of this machine, got 'd\\udce9'"),
    ("page: no config", lambda: parsed_config("  "), ValueError, r"^nothing has been given yet$"),
    ("page: a config that is no JSON", lambda: parsed_config("{"), ValueError, r"config must be JSON: Expecting property name"),
    ("page: a config that is a list", lambda: parsed_config("[1]"), ValueError, r"config must be a JSON object, got list"),
    ("page: an archive that is none", lambda: unpack(raw=b"PK nothing"), ValueError, r"archive must be a .zip that can be read, got one with"),
    ("page: an archive without a comparison", lambda: unpack({"a.txt": b"x"}), ValueError, r"archive must hold the sweep.json of a comparison, got none"),
    ("page: an archive with two comparisons", lambda: unpack({"a/sweep.json": b"{}", "b/sweep.json": b"{}"}), ValueError, r"archive must hold one comparison, got 'sweep.json' twice"),
    ("page: an archive of too many files", unpack_many, ValueError, r"archive must hold at most 1 records, got 2"),
    ("page: an archive that swells", lambda: unpack({"sweep.json": b"0" * (records_zip.MAX_BYTES + 1)}), ValueError, r"archive must unpack to at most 67108864 bytes, got more"),
]  # fmt: skip
