"""What belongs together reaches a kernel as one named tuple, so that signatures stay short enough to read."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import ordinate

pytestmark = pytest.mark.plain

SOURCES = sorted((Path(ordinate.__file__).parent / "kernels").glob("*.py"))


def _compiled_functions() -> dict[str, ast.FunctionDef]:
    """The functions that Triton compiles."""
    return {
        node.name: node
        for source in SOURCES
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
        and any("triton.jit" in ast.unparse(decorator) for decorator in node.decorator_list)
    }


def test_kernels_have_at_most_30_arguments_and_helpers_12():
    functions = _compiled_functions()
    assert len(functions) > 30
    for name, function in functions.items():
        limit = 30 if name.endswith("_kernel") else 12
        assert len(function.args.args) <= limit, name


def test_all_four_attention_kernels_compute_a_tile_of_logits_by_one_function():
    functions = _compiled_functions()
    for name in ("_attend", "_pull_to_queries", "_pull_to_keys", "_pull_to_diagonal"):
        calls = [
            ast.unparse(node.func) for node in ast.walk(functions[name]) if isinstance(node, ast.Call)
        ]
        assert calls.count("tile_logits") == 1, name
