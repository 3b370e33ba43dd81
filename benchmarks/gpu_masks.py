"""Padded and packed calls on one CUDA device beside FlexAttention's block masks, in one process on the same inputs.

    PYTHONPATH=src python3 benchmarks/gpu_masks.py --out DIR

Ours is timed only if its outputs and gradients are right in this run: at most twice as far from float64 as plain
PyTorch in the same dtype. Block masks are made before, and not timed.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

import ordinate
from environment import describe
from gpu_attention import GATED_LENGTHS, errors_beside_plain, measure
from gpu_candidates import Candidate, flex, fused, plain
from ordinate import PositionEncoding

BATCH, HEADS, LENGTH, DIM = SHAPE = (4, 16, 4096, 64)


@dataclass(frozen=True)
class Masking:
    """Which pairs see each other, as `ordinate.attention` is told and as FlexAttention is."""

    arguments: dict[str, Any]
    sees: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

    @property
    def causal(self) -> bool:
        return self.arguments["causal"]

    def dense(self, batch: int, length: int) -> Tensor:
        """``[batch, 1, length, length]``, True where a query sees a key."""
        rows, index = torch.arange(batch, device="cuda"), torch.arange(length, device="cuda")
        seen = self.sees(rows[:, None, None, None], rows[:1], index[:, None], index)
        return seen.expand(batch, 1, length, length)


def nothing_masked(causal: bool, batch: int, length: int) -> Masking:
    return Masking({"causal": causal}, lambda b, h, q, k: q >= k if causal else q == q)


def padded(batch: int, length: int) -> Masking:
    """Both ways; the rows have from all of the length down to half of it and a little."""
    tokens = torch.tensor([length - row * length // (2 * batch) for row in range(batch)], device="cuda")
    padding = torch.arange(length, device="cuda") >= tokens[:, None]
    return Masking({"causal": False, "key_padding_mask": padding}, lambda b, h, q, k: k < tokens[b])


def packed(batch: int, length: int) -> Masking:
    """Causal; four sequences a row, of a half to an eighth of the length."""
    starts = torch.tensor([length // 2, length * 3 // 4, length * 7 // 8], device="cuda")
    ids = torch.searchsorted(starts, torch.arange(length, device="cuda"), right=True)
    return Masking(
        {"causal": True, "q_segment_ids": ids}, lambda b, h, q, k: (q >= k) & (ids[q] == ids[k])
    )


MASKS: dict[str, Callable[[int, int], Masking]] = {
    "nothing, both ways": functools.partial(nothing_masked, False),
    "padding, both ways": padded,
    "nothing, causal": functools.partial(nothing_masked, True),
    "packed, causal": packed,
}
ENCODINGS: dict[str, Callable[[int, bool], PositionEncoding]] = {
    "none": lambda heads, causal: PositionEncoding(),
    "ALiBi": lambda heads, causal: ordinate.ALiBi(heads, symmetric=not causal),
    "T5 learned": lambda heads, causal: ordinate.T5Bias(heads, bidirectional=not causal),
}


def gate(mask: str, kind: str) -> float:
    """How many times further from float64 than plain bfloat16 PyTorch, at worst over output, gradients and lengths."""
    worst, batch = 0.0, 2
    for length in GATED_LENGTHS:
        masking = MASKS[mask](batch, length)
        encoding = ENCODINGS[kind](HEADS, masking.causal).to("cuda")
        attend = functools.partial(ordinate.attention, encoding=encoding, **masking.arguments)
        theirs = functools.partial(plain, encoding=encoding, seen=masking.dense(batch, length))
        errors = errors_beside_plain(attend, theirs, encoding, (batch, HEADS, length, DIM))
        worst = max(worst, errors)
    return worst


def ours(masking: Masking, kind: str) -> Candidate:
    encoding = ENCODINGS[kind](HEADS, masking.causal).to("cuda")
    return fused(encoding, "ordinate", kind, **masking.arguments)


def flex_masked(masking: Masking, kind: str) -> Candidate:
    blocks = create_block_mask(masking.sees, BATCH, None, LENGTH, LENGTH, device="cuda")
    slopes = ordinate.ALiBi(HEADS).slopes_on(torch.device("cuda"))

    def line(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return s - slopes[h] * (q - k).abs()

    attend = flex(line if kind == "ALiBi" else None, blocks)
    return Candidate("FlexAttention", kind, False, attend, [])


def sdpa_masked(masking: Masking, kind: str) -> Candidate:
    seen = ~masking.arguments["key_padding_mask"][:, None, None]
    attend = functools.partial(F.scaled_dot_product_attention, attn_mask=seen)
    return Candidate("SDPA, mask", kind, False, attend, [])


#: By name and kind; PyTorch's own takes a mask of keys without one of every pair.
CANDIDATES: dict[tuple[str, str], Callable[[Masking, str], Candidate]] = {
    **{("ordinate", kind): ours for kind in ENCODINGS},
    **{("FlexAttention", kind): flex_masked for kind in ("none", "ALiBi")},
    ("SDPA, mask", "none"): sdpa_masked,
}


def rows_of(mask: str) -> Iterator[dict[str, Any]]:
    masking = MASKS[mask](BATCH, LENGTH)
    for (name, kind), make in CANDIDATES.items():
        if make is sdpa_masked and "key_padding_mask" not in masking.arguments:
            continue
        row: dict[str, Any] = {"mask": mask, "name": name, "kind": kind}
        try:
            candidate = make(masking, kind)
            if candidate.ours:
                row["gate"] = gate(mask, kind)
                if not row["gate"] <= 2.0:
                    raise RuntimeError(f"gate is red: {row['gate']:.2f} times plain PyTorch's error")
            figures = measure(candidate, SHAPE)
            row |= {what: figures[what] for what in figures if "TFLOPs" not in what}
        except Exception as problem:
            row["error"] = f"{type(problem).__name__}: {problem}"[:300]
        yield row
        torch._dynamo.reset()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {"environment": describe(), "shape": SHAPE, "rows": []}
    for mask in MASKS:
        for row in rows_of(mask):
            print(row, flush=True)
            record["rows"].append(row)
            (arguments.out / "gpu_masks.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
