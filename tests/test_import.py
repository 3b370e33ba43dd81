"""Importing ordinate costs little and brings nothing optional; all it offers is documented."""

from __future__ import annotations

import inspect
import json
import os
import pkgutil
import subprocess
import sys
import types

import pytest

import ordinate

pytestmark = pytest.mark.plain  # the shape checker adds names and imports of its own

OPTIONAL = [
    "triton",
    "matplotlib",
    "plotly",
    "rich",
    "typer",
    "click",
    "gradio",
    "fastapi",
    "ray",
    "transformers",
    "safetensors",
    "tokenizers",
    "huggingface_hub",
    "scipy",
    "pandas",
    "beartype",
    "hypothesis",
    "pytest",
    "ordinate.cli",
]

_PROBE = """
import json, sys, time
import torch
before = set(sys.modules)
start = time.perf_counter()
import ordinate
seconds = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "added": sorted(set(sys.modules) - before)}))
"""


@pytest.fixture(scope="module")
def probe() -> dict:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _PROBE],
        capture_output=True,
        text=True,
        check=True,
        env=clean,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", OPTIONAL)
def test_importing_ordinate_loads_nothing_optional(probe, name):
    loaded = [module for module in probe["added"] if module == name or module.startswith(f"{name}.")]
    assert loaded == []


def test_importing_ordinate_brings_only_itself_and_jaxtyping(probe):
    top = {module.partition(".")[0] for module in probe["added"]}
    foreign = {name for name in top if name not in sys.stdlib_module_names}
    # numpy and torch's own lazy parts are loaded with torch, by whoever first needs them.
    assert foreign <= {"ordinate", "jaxtyping", "wadler_lindig", "torch", "numpy", "typing_extensions"}


def test_importing_ordinate_loads_what_attention_needs_and_no_room_beyond(probe):
    own = [name for name in probe["added"] if name.partition(".")[0] == "ordinate"]
    assert len(own) <= 60
    rooms = {"hf", "plots", "lab", "cli", "web", "verification", "walkthrough"}
    assert not [name for name in own if set(name.split(".")) & rooms]


def test_what_is_loaded_on_use_is_there_and_what_is_not_is_no_attribute():
    assert {"hf", "plots", "show", "verify"} <= set(dir(ordinate))
    for name in dir(ordinate):
        assert getattr(ordinate, name) is getattr(ordinate, name)
    assert "checks" not in dir(ordinate)


def test_the_time_ordinate_adds_to_torch_is_recorded(probe, record_property):
    record_property("import_seconds", probe["seconds"])
    assert probe["seconds"] > 0


def _public() -> dict[str, object]:
    return {name: getattr(ordinate, name) for name in dir(ordinate) if not name.startswith("_")}


def test_the_public_modules_are_those_meant_for_users():
    modules = {name for name, value in _public().items() if isinstance(value, types.ModuleType)}
    assert modules == {"hf", "plots", "positions", "scaling"}


@pytest.mark.parametrize("name", sorted(_public()))
def test_every_public_name_has_a_docstring(name):
    value = getattr(ordinate, name)
    if name == "catalog":
        assert ordinate.Entry.__doc__  # a table has no docstring, its lines do
        return
    text = value.__doc__ if isinstance(value, types.ModuleType) else inspect.getdoc(value)
    assert text
    assert not text.startswith(f"{name}(")  # a dataclass that only repeats its signature
    assert text.splitlines()[0].endswith((".", ":", ")", "?"))


_EVERY_MODULE = sorted(module.name for module in pkgutil.walk_packages(ordinate.__path__, "ordinate."))


@pytest.mark.parametrize("name", _EVERY_MODULE)
def test_every_module_is_imported_by_its_dotted_name(name):
    """A public function does not hide a module of its name, as ``hf.patch`` would hide ``hf/patch.py``."""
    namespace: dict[str, object] = {}
    exec(f"import {name} as m", namespace)
    assert namespace["m"] is sys.modules[name]


@pytest.mark.parametrize("module", ["positions", "scaling"])
def test_every_public_function_of_the_public_modules_has_a_docstring(module):
    found = vars(getattr(ordinate, module))
    own = {
        name: value
        for name, value in found.items()
        if not name.startswith("_") and getattr(value, "__module__", "") == f"ordinate.{module}"
    }
    undocumented = [name for name, value in own.items() if callable(value) and not inspect.getdoc(value)]
    assert undocumented == []
