"""The attention kernels compile for every GPU they are meant for, within its shared memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.plain

# What one program may have, in bytes (CUDA C++ Programming Guide, compute capabilities).
SHARED_MEMORY = {80: 163 * 1024, 89: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024}

FORWARD_AND_BACKWARD = {
    "_attention_fwd_kernel", "_shared_kernel", "_attention_bwd_q_kernel", "_attention_bwd_kv_kernel",
}  # fmt: skip


def _compile(
    capability, dtype="bfloat16", head_dim=64, bias="t5", causal=True, length=256, few=False, groups=1,
    told=(),
):  # fmt: skip
    """In a process of its own, because in this one Triton interprets."""
    case = {
        "capability": capability, "shared_memory": SHARED_MEMORY[capability], "dtype": dtype,
        "head_dim": head_dim, "bias": bias, "causal": causal, "length": length, "few": few, "groups": groups,
        "told": told,
    }  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_DISABLE_LINE_INFO"] = "1"  # line numbers take time, and nobody reads these
    script = Path(__file__).with_name("compiled_attention.py")
    run = subprocess.run(
        [sys.executable, str(script), json.dumps([case])],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    (kernels,) = json.loads(run.stdout)
    return kernels


ROWS = {"_project_kernel", "_features_gradient_kernel", "_table_gradient_kernel"}


def _assert_it_fits(kernels, capability, *, table: bool, rows: bool = False, few: bool = False) -> None:
    extra = {"_merge_fwd_kernel"} if few else set()
    extra |= ROWS if rows else set()
    if table:
        extra |= {"_table_grad_kernel", "_fold_table_kernel"}
    assert set(kernels) == FORWARD_AND_BACKWARD | extra
    for name, found in kernels.items():
        assert found["bytes of machine code"] > 0
        assert found["shared memory"] <= SHARED_MEMORY[capability], name


def test_unbiased_kernels_fit_an_h100():
    _assert_it_fits(_compile(90, bias="none"), 90, table=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "head_dim"), [("bfloat16", 64), ("bfloat16", 128), ("bfloat16", 256), ("float32", 64)]
)
@pytest.mark.parametrize("capability", SHARED_MEMORY)
def test_kernels_of_a_learned_table_fit(capability, dtype, head_dim):
    """Among so many keys that few are near, and looked up, for which kernels have loops of their own."""
    _assert_it_fits(_compile(capability, dtype, head_dim, length=4096), capability, table=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "head_dim"), [("bfloat16", 64), ("bfloat16", 128), ("bfloat16", 256), ("float32", 64)]
)
@pytest.mark.parametrize("capability", SHARED_MEMORY)
def test_kernels_of_a_table_with_every_distance_fit(capability, dtype, head_dim):
    kernels = _compile(
        capability, dtype, head_dim, "every distance", length=256 if head_dim > 64 else 250
    )
    _assert_it_fits(kernels, capability, table=True)


@pytest.mark.slow
@pytest.mark.parametrize("bias", ["alibi", "shaw", "both rows", "t5"])
@pytest.mark.parametrize("capability", SHARED_MEMORY)
def test_other_biases_over_lengths_that_end_inside_a_tile_fit(capability, bias):
    kernels = _compile(capability, "float16", 128, bias, causal=False, length=250)
    _assert_it_fits(kernels, capability, table=bias == "t5", rows=bias in ("shaw", "both rows"))


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "head_dim"), [("bfloat16", 64), ("bfloat16", 256), ("float32", 128)])
@pytest.mark.parametrize("capability", SHARED_MEMORY)
def test_kernels_of_few_queries_fit(capability, dtype, head_dim):
    kernels = _compile(capability, dtype, head_dim, few=True)
    _assert_it_fits(kernels, capability, table=True, few=True)


@pytest.mark.slow
@pytest.mark.parametrize(("bias", "head_dim"), [("alibi", 128), ("all", 64), ("all", 128)])
@pytest.mark.parametrize("capability", SHARED_MEMORY)
def test_kernels_of_few_queries_of_grouped_heads_fit(capability, bias, head_dim):
    kernels = _compile(
        capability, "bfloat16", head_dim, bias, causal=False, length=250, few=True, groups=4
    )
    _assert_it_fits(kernels, capability, table=bias == "all", rows=bias == "all", few=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bias", "told"),
    [
        ("alibi", ["segments"]),
        ("t5", ["padding"]),
        ("every distance", ["segments", "padding"]),
        *(
            (bias, ["positions", "indices", "segments", "padding"])
            for bias in ("alibi", "t5", "both rows")
        ),
    ],
)
@pytest.mark.parametrize("capability", SHARED_MEMORY)
def test_what_is_told_of_tokens_fits_beside_wide_heads(capability, bias, told):
    """Positions, ids and padding have their room in a pipeline too, which queries, keys and values nearly fill."""
    kernels = _compile(capability, "bfloat16", 128, bias, told=told)
    del kernels["_tile_ranges_kernel"]
    # At positions that are data the kernel of the keys adds a table's gradient up, and another only folds it.
    table = bias in ("t5", "every distance")
    if table and "positions" in told:
        assert "_table_grad_kernel" not in kernels
        del kernels["_fold_table_kernel"]
        table = False
    _assert_it_fits(kernels, capability, table=table, rows=bias == "both rows")


@pytest.mark.slow
def test_where_every_tile_is_masked_nothing_else_is_compiled():
    """Of the runs of tiles one is left then; ptxas of CUDA 12.8 crashed on some kernels that had all of them."""
    plain, packed = (_compile(90, bias="alibi", told=told) for told in ((), ("indices", "segments")))
    assert set(packed) == {*plain, "_tile_ranges_kernel"}
    for name in FORWARD_AND_BACKWARD - {"_shared_kernel"}:
        assert 0 < packed[name]["products"] < plain[name]["products"], name


@pytest.mark.slow
def test_float32_has_one_loop_for_all_tiles():
    """Without tensor cores a product is so much code that the loops of all others took most of a minute to compile."""
    half, single = (_compile(90, dtype, bias="all", causal=False) for dtype in ("float16", "float32"))
    for name in FORWARD_AND_BACKWARD - {"_shared_kernel"}:
        assert single[name]["bytes of machine code"] < 2 * half[name]["bytes of machine code"], name
