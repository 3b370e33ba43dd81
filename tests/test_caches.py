"""Everything remembered between calls can be emptied, and changes no result."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest
import torch

import ordinate
from ordinate import caches, numerics
from ordinate.rotate import rotation_cache

SOURCE = Path(ordinate.__file__).parent

# Not data of calls: what devices can do (an entry for each), code that Numba compiled, the files and the
# classes of models that are patched, and numbers of statistics.
_STAYS = {
    "gpu._reasons", "attending.fused.tiles.shared_memory_of", "attending.fused.tiles._processors_of",
    "rotate.pairs._loop_agrees", "kernels.rope_cpu._team", "kernels.rope_cpu._pool", "kernels.rope_cpu._kernel",
    "kernels.rope_cpu._share_of_team", "hf.patching.rotary._replaced",
    "hf.patching.attention_interface._own_code_reasons",
    "lab.report.all_pairs.detectable", "lab.report.quantiles.student_quantile",
    "lab.report.quantiles.studentized_range_quantile",
}  # fmt: skip


def _remembering() -> set[str]:
    """Functions with a cache, and names of modules that begin empty and are filled."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                if any("cache" in ast.unparse(d) for d in node.decorator_list):
                    found.add(f"{module}.{node.name}")
            elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                value = ast.unparse(node.value)
                if value in ("{}", "[]", "set()", "dict()") or value.startswith(
                    ("Weak", "weakref.Weak")
                ):
                    target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                    found.add(f"{module}.{ast.unparse(target)}")
    return found - {"caches._clears"}


def test_every_cache_is_emptied_or_named_here():
    emptied = {
        "numerics._constants", "angles._speeds", "bias.base._parsed", "rotate.rotation_cache._cache",
        "attending.fused.plans._plans", "attending.varlen._validated",
        "kernels.rope.choose_tiling", "kernels.rope._step", "lab.corpus.load_corpus",
    }  # fmt: skip
    assert _remembering() == emptied | _STAYS
    for name in emptied:
        source = (SOURCE / f"{name.rpartition('.')[0].replace('.', '/')}.py").read_text()
        assert "cleared_by(" in source, name


def test_every_cache_is_in_the_guide():
    guide = (SOURCE.parent.parent / "docs" / "guide.md").read_text()
    section = guide[guide.index("### Caches") :].partition("\n## ")[0]
    for word in ("256 MiB", "64 MiB", "1,024", "two texts", "clear_caches"):
        assert word in section, word
    assert rotation_cache.LIMIT_BYTES == 256 * 2**20
    assert numerics._LIMIT_BYTES == 64 * 2**20


def test_clearing_empties_and_changes_no_result():
    rope, alibi = ordinate.RoPE(16), ordinate.ALiBi(2)
    q, k, v = torch.randn(3, 1, 2, 300, 16).unbind()

    def attend():
        return ordinate.attention(q, k, v, ordinate.Combined(rope, alibi), causal=True)

    before = attend()
    assert rotation_cache._cache
    assert numerics._constants
    ordinate.clear_caches()
    assert not rotation_cache._cache
    assert not numerics._constants
    torch.testing.assert_close(attend(), before, rtol=0, atol=0)


def test_clearing_empties_launches():
    pytest.importorskip("triton")
    plans = importlib.import_module("ordinate.attending.fused.plans")
    rope = importlib.import_module("ordinate.kernels.rope")
    plans.cached_plan("key", lambda: "plan")
    rope.choose_tiling(batch=1, heads=1, seq=1, head_dim=8, pairs=4, itemsize=2, copy_rest=False)
    ordinate.clear_caches()
    assert not plans._plans
    assert rope.choose_tiling.cache_info().currsize == 0


def test_constants_are_bounded(monkeypatch):
    monkeypatch.setattr(numerics, "_constants", {})
    monkeypatch.setattr(numerics, "_LIMIT_BYTES", 1000)
    for number in range(20):
        made = numerics.constant((float(number),) * 50, torch.float32, torch.device("cpu"))
        assert made.tolist() == [float(number)] * 50
    assert [key[0][0] for key in numerics._constants] == [15.0, 16.0, 17.0, 18.0, 19.0]
    numerics.constant(
        (1.0,) * 300, torch.float32, torch.device("cpu")
    )  # larger than all that may be kept
    assert len(numerics._constants) == 5


def test_the_registry_has_no_doubles():
    assert len(caches._clears) == len(set(caches._clears))


def test_a_constant_that_was_written_to_is_made_anew():
    q = torch.randn(1, 8, 5, 16)
    expected = ordinate.attention(q, q, q, ordinate.ALiBi(8), causal=True)
    ordinate.ALiBi(8).bias(q, q).slopes.mul_(0.5)
    torch.testing.assert_close(ordinate.attention(q, q, q, ordinate.ALiBi(8), causal=True), expected)
