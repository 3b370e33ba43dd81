"""The rotation compiles for every GPU it is meant for, to the memory accesses it was written for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.plain, pytest.mark.slow]


def _case(capability=90, dtype="bf16", head_dim=128, interleaved=False, aligned=16):
    return {
        "capability": capability, "dtype": dtype, "head_dim": head_dim,
        "interleaved": interleaved, "aligned": aligned,
    }  # fmt: skip


CASES = {
    "sm_80": _case(capability=80),
    "sm_89, float16, head_dim 64": _case(capability=89, dtype="fp16", head_dim=64),
    "sm_90": _case(),
    "sm_90, interleaved": _case(interleaved=True),
    "sm_90, head_dim 96": _case(head_dim=96),
    "sm_90, head_dim 80, interleaved": _case(head_dim=80, interleaved=True),
    "sm_90, head_dim 72, strides no multiple of 16": _case(head_dim=72, interleaved=True, aligned=8),
    "sm_100": _case(capability=100),
    "sm_100, interleaved": _case(capability=100, interleaved=True),
}


@pytest.fixture(scope="module")
def accesses() -> dict[str, dict[str, int]]:
    """What the memory accesses of each case became; one process compiles them all."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = Path(__file__).with_name("compiled_rope.py")
    run = subprocess.run(
        [sys.executable, str(script), json.dumps(list(CASES.values()))],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return dict(zip(CASES, json.loads(run.stdout), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_every_access_is_sixteen_bytes_and_no_product_is_fused(name, accesses):
    found = dict(accesses[name])
    heads = found.pop("heads")
    assert found.pop("bytes of machine code") > 0
    # For q and for k: two vectors a head, two of cos and two of sin; nothing narrower, nothing
    # through shared memory, no fused multiply-add.
    assert found == {"ld.global.v4.b32": 2 * (2 * heads + 4), "st.global.v4.b32": 2 * 2 * heads}
