"""Compile the rotation for a GPU that need not be here, and print what its memory accesses became.

A process of its own, because in the one of the tests Triton interprets.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ordinate.kernels import rope
from ordinate.kernels.arguments import Strides


def accesses(
    capability: int, dtype: str, head_dim: int, interleaved: bool, aligned: int
) -> dict[str, int]:
    kernel, pairs = rope._rope_turn_kernel, head_dim // 2
    tiling = rope.choose_tiling(
        batch=4, heads=40, seq=8192, head_dim=head_dim, pairs=pairs,
        itemsize=4 if dtype == "fp32" else 2, copy_rest=False,
    )  # fmt: skip
    turn = rope.Turn(
        head_dim, pairs, interleaved, INVERSE=False, COPY_REST=False, ALIGNMENT=aligned,
        BLOCK_SEQ=tiling.block_seq, BLOCK_HEADS=tiling.block_heads,
        BLOCK_PAIRS=triton.next_power_of_2(pairs), BLOCK_REST=1,
    )  # fmt: skip
    signature: dict = {"TURN": "constexpr"}
    attributes = {}
    for index, name in enumerate(kernel.arg_names):
        if name.endswith("_ptr"):
            signature[name] = "*fp32" if "_cos_" in name or "_sin_" in name else f"*{dtype}"
            attributes[(index,)] = [["tt.divisibility", 16]]
        elif name.endswith("_strides"):
            signature[name] = Strides("i32", "i32", "i32")
            if aligned == 16:
                attributes |= {(index, axis): [["tt.divisibility", 16]] for axis in range(3)}
        else:
            signature.setdefault(name, "i32")
    source = ASTSource(
        fn=kernel,
        signature={name: signature[name] for name in kernel.arg_names},
        constexprs={(kernel.arg_names.index("TURN"),): turn},
        attrs=attributes,
    )
    options = {"num_warps": tiling.num_warps, "enable_fp_fusion": False}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    pattern = r"\b(ld\.global|st\.global|ld\.shared|st\.shared|fma)\S*?(\.v4\.b32)?\s"
    found = Counter(kind + vector for kind, vector in re.findall(pattern, compiled.asm["ptx"]))
    return dict(found) | {
        "heads": tiling.block_heads,
        "bytes of machine code": len(compiled.asm["cubin"]),
    }


if __name__ == "__main__":
    print(json.dumps([accesses(**case) for case in json.loads(sys.argv[1])]))  # noqa: T201
