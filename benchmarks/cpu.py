"""CPU benchmarks: ordinate and its peers in one process on the same inputs, eager mode.

    python benchmarks/cpu.py                      all cases, into results/cpu.json and the pages of docs/
    python benchmarks/cpu.py --rope               RoPE alone again, into the record there is
    python benchmarks/cpu.py --quick --out FILE   the same code at tiny sizes, to see that it runs

Every case runs in a fresh process, so that no case inherits another's memory. Before anything is timed,
each candidate is compared with float64. A peer that fails is listed without a time; if ordinate fails,
nothing is recorded.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

# Some virtual machines report AMX and then refuse its instructions: bfloat16 products in PyTorch end
# the process. Up to AVX-512 everything runs everywhere, and the record says what was allowed.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

FORWARD, BOTH = "forward", "forward + backward"

# glibc hands large blocks back to the system at once, and each new page then costs a fault. How often that
# happens depends on what a process did before; "kept" takes it out of the comparison.
ALLOCATORS = {
    "default": {},
    "kept": {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**34)},
}

ATTENTION = (
    "SDPA causal, no bias",
    "SDPA, dense mask made before",
    "SDPA, dense mask made inside",
    "ordinate ALiBi",
    "ordinate T5, fixed",
    "SDPA, dense T5, learned",
    "ordinate T5, learned",
    "ordinate clipped, learned",
    "ordinate Shaw, learned",
)


def cases(quick: bool) -> list[dict[str, Any]]:
    """Everything that is measured, as plain data."""
    rope_shape = [4, 2, 64, 16] if quick else [32, 8, 2048, 128]
    heads, length, dim = (2, 96, 8) if quick else (8, 4096, 64)
    long = 128 if quick else 16384
    few, some, many = (1, 2, 2) if quick else (1, 3, 15)
    found: list[dict[str, Any]] = []
    for allocator in ALLOCATORS:
        for dtype in ("float32", "bfloat16"):
            for memory in ("transposed", "contiguous"):
                found.append(
                    {"kind": "rope", "allocator": allocator, "dtype": dtype, "memory": memory,
                     "shape": rope_shape, "repetitions": many}
                )  # fmt: skip
    for dtype in ("float32", "bfloat16"):
        found.append({"kind": "rope token", "dtype": dtype, "shape": rope_shape, "position": 4095,
                      "repetitions": many})  # fmt: skip
    for dtype in ("float32", "bfloat16"):
        found.append({"kind": "attention", "dtype": dtype, "shape": [heads, length, length, dim],
                      "candidates": ATTENTION, "directions": [FORWARD, BOTH], "repetitions": some})  # fmt: skip
        decoding = [name for name in ATTENTION if name != "SDPA, dense T5, learned"]
        found.append({"kind": "decode", "dtype": dtype, "shape": [heads, 1, length, dim],
                      "candidates": decoding, "directions": [FORWARD], "repetitions": 10 * many})  # fmt: skip
        for name in ATTENTION:
            for direction in (FORWARD, BOTH) if dtype == "float32" else (BOTH,):
                found.append(
                    {"kind": "memory", "dtype": dtype, "shape": [heads, length, length, dim],
                     "candidates": [name], "directions": [direction]}
                )  # fmt: skip
    learned = ["ordinate T5, learned"]
    long_case = {"dtype": "float32", "shape": [heads, long, long, dim], "candidates": learned}
    found.append({"kind": "long", **long_case, "directions": [FORWARD, BOTH], "repetitions": few})
    found.append({"kind": "long memory", **long_case, "directions": [BOTH]})
    return _one_of_each(found) if quick else found


def _one_of_each(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first bfloat16 case of every kind, or the first at all."""
    kinds = {case["kind"]: case for case in reversed(found)}
    kinds |= {case["kind"]: case for case in reversed(found) if case["dtype"] == "bfloat16"}
    return list(kinds.values())


def run_here(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Run one case in this process."""
    import torch

    torch.manual_seed(0)
    if case["kind"].startswith("rope"):
        import cpu_rope

        return cpu_rope.run(case) if case["kind"] == "rope" else cpu_rope.run_token(case)
    import cpu_attention

    return (cpu_attention.run_memory if "memory" in case["kind"] else cpu_attention.run)(case)


def run_apart(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Run one case in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--case", json.dumps(case)],
        env=os.environ | ALLOCATORS[case.get("allocator", "default")],
        stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"a case ended with status {done.returncode}: {case}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes; proves that everything runs")
    parser.add_argument("--rope", action="store_true", help="RoPE alone, into the record there is")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "cpu.json")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(run_here(json.loads(arguments.case))))
        return

    import measure

    record: dict[str, Any] = {"environment": measure.environment(), "cases": []}
    wanted = cases(arguments.quick)
    if arguments.rope:
        record = json.loads(arguments.out.read_text()) | {"rope_environment": measure.environment()}
        record["cases"] = [case for case in record["cases"] if not case["kind"].startswith("rope")]
        wanted = [case for case in wanted if case["kind"].startswith("rope")]
    for case in wanted:
        label = " · ".join(
            str(case[key]) for key in ("kind", "dtype", "memory", "allocator") if key in case
        )
        print(label, *(case["candidates"] if "memory" in case["kind"] else []), file=sys.stderr)
        rows = run_apart(case)
        record["cases"].append({**case, "rows": rows})
        wrong = [
            f"{label}: {row['candidate']}: {row['gate']}"
            for row in rows
            if row["candidate"].startswith("ordinate")
            and not row.get("gate", {"passed": True})["passed"]
        ]
        if wrong:
            raise SystemExit("nothing is recorded, for ordinate is wrong:\n" + "\n".join(wrong))
    record["cases"].sort(key=lambda case: not case["kind"].startswith("rope"))
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    if arguments.out == HERE / "results" / "cpu.json":
        import render
        import render_page

        render.write()
        render_page.write()


if __name__ == "__main__":
    main()
