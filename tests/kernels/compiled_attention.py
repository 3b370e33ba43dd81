"""Compile the attention kernels for a GPU that need not be here, and print what they ask of it.

A process of its own, because in the one of the tests Triton interprets.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from dataclasses import replace
from types import SimpleNamespace

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

import ordinate
from ordinate.attending import api
from ordinate.attending.fused import operator as fused_op
from ordinate.attending.fused import rows as fused_rows
from ordinate.attending.fused import terms as fused
from ordinate.attending.fused.call import Launch
from ordinate.attending.fused.plans import Wanted
from ordinate.kernels import (
    attention_forward,
    key_gradient,
    query_gradient,
    row_projection,
    table_gradient,
    tile_ranges,
)


class RowsOfKeys(ordinate.PositionEncoding):
    """Each key has a logit for every distance from -20 to 20."""

    def bias(self, q, k, q_positions=None, k_positions=None, *, x=None) -> ordinate.RowBias:
        places = ordinate.positions.resolve(q, k, q_positions, k_positions)
        table = torch.zeros(1, 41, k.shape[-1])
        features = k.float().repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        return ordinate.RowBias(features, table, places, lo=-20, side="key")


class EveryDistance(ordinate.PositionEncoding):
    """Each head has a logit for every distance there is."""

    def bias(self, q, k, q_positions=None, k_positions=None, *, x=None) -> ordinate.DistanceBias:
        places = ordinate.positions.resolve(q, k, q_positions, k_positions)
        table = torch.zeros(q.shape[1], q.shape[2] + k.shape[2] - 1)
        return ordinate.DistanceBias(table, places, lo=1 - q.shape[2])


class Gates(ordinate.PositionEncoding):
    """Each head has a logit for every key."""

    def bias(self, q, k, q_positions=None, k_positions=None, *, x=None) -> ordinate.KeyBias:
        return ordinate.KeyBias(torch.zeros(*q.shape[:2], k.shape[2]), causal_only=False)


class _Driver:
    """As much of a driver as compiling for a GPU takes. The devices are numbered by their compute capability."""

    capability = 0

    def get_current_device(self) -> int:
        return self.capability

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)


class _Compiled:
    """Stands in for a kernel: a launch compiles it and runs nothing."""

    def __init__(self, kernel, found: dict[str, dict[str, int]]) -> None:
        self.kernel, self.found = kernel, found

    def __getitem__(self, grid):
        return self.launch

    def launch(self, **arguments):
        compiled = self.kernel.warmup(grid=(1,), **arguments)
        self.found[self.kernel.__name__] = {
            "shared memory": compiled.metadata.shared,
            "bytes of machine code": len(compiled.asm["cubin"]),
            "products": compiled.asm["ptx"].count("wgmma.mma_async"),
        }


def both_passes(q, k, v, grad, encoding, *, causal: bool = True, told: Collection[str] = ()) -> None:
    """Forward and backward, with every gradient, straight through the operators.

    Args:
        told: What of the tokens is data: "positions", "segments", "padding", or "indices" within segments.
    """
    tokens = torch.arange(k.shape[2])
    further = {
        "positions": {"q_positions": tokens[-q.shape[2] :], "k_positions": tokens},
        "segments": {"q_segment_ids": tokens[-q.shape[2] :], "k_segment_ids": tokens},
        "padding": {"key_padding_mask": torch.zeros(q.shape[0], k.shape[2], dtype=torch.bool)},
        "indices": {},
    }
    options = {name: value for what in told for name, value in further[what].items()}
    call = api._prepare(q, k, v, encoding, causal=causal, **options)
    if "indices" in told:
        indices = {"q_index": tokens[None, -q.shape[2] :], "k_index": tokens[None]}
        call = replace(call, mask=replace(call.mask, **indices))
    _, _, _, *rest = fused.operator_inputs(call)
    biases = [None if x is None else x.detach() for x in rest[:5]]
    launch = Launch(q, k, v, *biases, *rest[5:])
    out, lse = fused_op.forward(launch)
    fused_op.backward(grad, None, out, lse, launch, Wanted(*[x is not None for x in biases]))
    for part in call.parts:
        if isinstance(part, ordinate.RowBias):
            features, table = part.features.detach(), part.table.detach()
            grad_rows = features.new_zeros(*features.shape[:3], table.shape[1], dtype=torch.float32)
            fused_rows.backward(grad_rows, features, table, 1.0, of_features=True, of_table=True)


def compile_all(
    capability: int,
    shared_memory: int,
    dtype: str,
    head_dim: int,
    bias: str,
    causal: bool,
    length: int,
    few: bool,
    groups: int,
    told: list[str],
) -> dict[str, dict[str, int]]:
    """Forward and backward, with every gradient, of one attention call."""
    found: dict[str, dict[str, int]] = {}
    stub = _Driver()
    stub.capability = capability
    driver.set_active(stub)
    for module in (
        attention_forward, query_gradient, key_gradient, row_projection, table_gradient, tile_ranges
    ):  # fmt: skip
        for name, kernel in list(vars(module).items()):
            kernel = kernel.kernel if isinstance(kernel, _Compiled) else kernel
            if name.endswith("_kernel"):
                setattr(module, name, _Compiled(kernel, found))
    device = SimpleNamespace(
        shared_memory_per_block_optin=shared_memory, multi_processor_count=128, major=capability // 10
    )
    torch.cuda.get_device_properties = lambda _: device
    q_len, k_len = (3, 4 * length) if few else (length, length)
    torch.manual_seed(0)
    heads = 2 * groups
    q, k, v, grad = (
        torch.randn(1, of, rows, head_dim).to(getattr(torch, dtype))
        for of, rows in ((heads, q_len), (2, k_len), (2, k_len), (heads, q_len))
    )
    encodings = {
        "none": ordinate.NoPE,
        "alibi": lambda: ordinate.ALiBi(heads, symmetric=not causal, trainable=True),
        "t5": lambda: ordinate.T5Bias(heads, bidirectional=not causal),
        "every distance": EveryDistance,
        "shaw": lambda: ordinate.Shaw(head_dim, 16),
        "both rows": lambda: ordinate.Combined(ordinate.Shaw(head_dim, 16), RowsOfKeys()),
        "all": lambda: ordinate.Combined(
            ordinate.T5Bias(heads, bidirectional=not causal),
            ordinate.Shaw(head_dim, 16),
            RowsOfKeys(),
            Gates(),
        ),
    }
    both_passes(q, k, v, grad, encodings[bias](), causal=causal, told=told)
    return found


if __name__ == "__main__":
    print(json.dumps([compile_all(**case) for case in json.loads(sys.argv[1])]))  # noqa: T201
