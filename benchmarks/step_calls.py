"""How many of our functions a step of attention calls, forward and backward: `python benchmarks/step_calls.py`.

A count, not a time: it is the same on every machine.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import torch

import ordinate

SOURCE = str(Path(ordinate.__file__).parent)


def step_calls(
    encoding: ordinate.PositionEncoding, q_len: int = 128, k_len: int = 128, *, backward: bool = True
) -> Counter[str]:
    """Calls of functions of ours in one causal step of 8 heads on the CPU, by ``file:function``."""
    q, k, v = (torch.randn(1, 8, n, 64, requires_grad=backward) for n in (q_len, k_len, k_len))

    def step() -> None:
        out = ordinate.attention(q, k, v, encoding, causal=True)
        if backward:
            out.sum().backward()

    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCE):
            calls[f"{code.co_filename[len(SOURCE) + 1 :]}:{code.co_qualname}"] += 1

    step()  # fills the caches
    sys.setprofile(count)
    try:
        # On this thread, where the profile is set.
        with torch.autograd.set_multithreading_enabled(False):
            step()
    finally:
        sys.setprofile(None)
    return calls


def rope_and_t5() -> ordinate.PositionEncoding:
    return ordinate.Combined(ordinate.RoPE(64), ordinate.T5Bias(8))


if __name__ == "__main__":
    found = step_calls(rope_and_t5())
    for name, times in found.most_common():
        print(f"{times:4d}  {name}")
    print(f"{found.total():4d}  calls")
