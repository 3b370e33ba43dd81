"""A launch that is repeated reaches the driver with what Triton's own way would have passed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.plain, pytest.mark.slow]

KERNELS = [
    "_attention_fwd_kernel", "_shared_kernel", "_attention_bwd_q_kernel", "_attention_bwd_kv_kernel",
    "_table_grad_kernel", "_fold_table_kernel",
]  # fmt: skip
GRADIENTS_OF_ROWS = ["_features_gradient_kernel", "_table_gradient_kernel"]


@pytest.fixture(scope="module")
def passes():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = Path(__file__).with_name("repeated_launches.py")
    run = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_the_first_pass_goes_triton_s_own_way(passes):
    assert passes["first"]["bound"] == KERNELS
    assert [launch[0] for launch in passes["first"]["launches"]] == KERNELS


@pytest.mark.parametrize("again", ["again", "and back"])
def test_a_repeated_pass_passes_the_same_without_it(passes, again):
    assert passes[again]["bound"] == []
    assert passes[again]["launches"] == passes["first"]["launches"]


def test_tensors_that_begin_elsewhere_get_kernels_of_their_own(passes):
    """A kernel compiled for multiples of 16 bytes would read whole vectors where there are none."""
    assert "_attention_fwd_kernel" in passes["shifted"]["bound"]
    assert passes["shifted again"]["bound"] == []
    assert passes["shifted again"]["launches"] == passes["shifted"]["launches"]


def test_kernels_that_add_in_order_compile(passes):
    """Where positions are data and PyTorch is told to be deterministic."""
    ranges = "_tile_ranges_kernel"  # to tell which tiles lie beyond the tables
    in_order = [ranges, *KERNELS[:2], ranges, KERNELS[2], ranges, KERNELS[3]]
    assert passes["table in order"]["bound"] == [*in_order, "_fold_table_kernel"]
    with_rows = ["_project_kernel", *in_order, *GRADIENTS_OF_ROWS]
    assert passes["rows in order"]["bound"] == with_rows
    assert passes["rows of keys in order"]["bound"] == with_rows
