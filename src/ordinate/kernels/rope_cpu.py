"""The rotation on the CPU in one pass over memory, compiled by Numba.

PyTorch's operations read and write memory once each, and a rotation of bfloat16 takes five of them: widen,
two products, their sum, narrow. Here a head is read, turned in float32, rounded once and written. Sums are fused
multiply-adds, as those of PyTorch's `addcmul` are on most processors, so that the result is the same to the bit.

Run-time shape checks wrap functions in others that Numba cannot read, hence ``@no_type_check``.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any, no_type_check

import numba
import numpy as np
import torch
from numba.extending import intrinsic
from torch import Tensor

# What a thread must have to do for it to be worth its start.
_CHANNELS_PER_THREAD = 2**18


def turn(x: Tensor, out: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> None:
    """Turn ``x`` into ``out``, ``[batch, heads, seq, head_dim]`` of bfloat16 or float32 each.

    Args:
        x, out: With unit stride along head_dim.
        cos, sin: float32 ``[batch or 1, 1, seq, pairs]``.
    """
    kernel = _kernel(x.dtype == torch.bfloat16, interleaved)
    cos, sin = cos.contiguous(), sin.contiguous()
    memory = [_flat(tensor) for tensor in (x, out, cos, sin)]
    table = (cos.stride(0) if cos.shape[0] > 1 else 0, 0, cos.stride(2))
    # In the order in which heads lie in x.
    order = sorted(zip(x.stride()[:3], x.shape[:3], out.stride()[:3], table, strict=True), reverse=True)
    x_strides, sizes, out_strides, table_strides = zip(*order, strict=True)
    strides = (x_strides, out_strides, table_strides)
    longest = max(range(3), key=sizes.__getitem__)
    shares = min(torch.get_num_threads(), sizes[longest], max(1, x.numel() // _CHANNELS_PER_THREAD))
    bounds = [sizes[longest] * share // shares for share in range(shares + 1)]
    waiting = []
    for first, last in reversed(list(pairwise(bounds))):
        part = (*sizes[:longest], last - first, *sizes[longest + 1 :])
        starts = tuple([first * stride[longest] for stride in strides])
        work = (*memory, part, starts, *strides, x.shape[-1], cos.shape[-1])
        if first == 0:  # the caller's own
            kernel(*work)
        else:
            waiting.append(_submit(kernel, *work))
    for share in waiting:
        share.result()


def _flat(x: Tensor) -> np.ndarray:
    span = 1 + sum([(size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)])
    x = x.detach().as_strided((span,), (1,))
    return (x.view(torch.uint16) if x.dtype == torch.bfloat16 else x).numpy()


def _submit(function: Callable[..., None], *arguments: Any) -> Future[None]:
    try:
        return _pool().submit(function, *arguments)
    except RuntimeError:  # the interpreter is ending, and starts no more threads
        function(*arguments)
        done: Future[None] = Future()
        done.set_result(None)
        return done


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="ordinate")


if hasattr(os, "register_at_fork"):  # where processes fork; threads do not survive it
    os.register_at_fork(after_in_child=_pool.cache_clear)


@intrinsic
@no_type_check
def _multiply_add(typing, a, b, c):
    """``a * b + c``, rounded once."""

    def emit(context, builder, signature, arguments):
        return builder.fma(*arguments)

    return a(a, b, c), emit


@numba.njit
@no_type_check
def _widen(bits):
    return np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32)


@numba.njit
@no_type_check
def _narrow(value):
    """To the nearest bfloat16, ties to even: half a unit is added, less a bit where the result is even."""
    bits = np.float32(value).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.uint16(rounded if value == value else np.uint32(0x7FC0))


@numba.njit
@no_type_check
def _same(value):
    return value


@functools.cache
def _kernel(bfloat16: bool, interleaved: bool) -> Callable[..., None]:
    widen, narrow = (_widen, _narrow) if bfloat16 else (_same, _same)
    step = 2 if interleaved else 1
    multiply_add: Any = _multiply_add

    @numba.njit(nogil=True)
    @no_type_check
    def kernel(
        x, out, cos, sin, sizes, starts, x_strides, out_strides, table_strides, head_dim, pairs
    ):  # fmt: skip
        partner = 1 if step == 2 else pairs  # from a pair's first channel to its second
        for i in range(sizes[0]):
            for j in range(sizes[1]):
                for k in range(sizes[2]):
                    start = starts[0] + i * x_strides[0] + j * x_strides[1] + k * x_strides[2]
                    head = x[start : start + head_dim]
                    start = starts[1] + i * out_strides[0] + j * out_strides[1] + k * out_strides[2]
                    turned = out[start : start + head_dim]
                    start = (
                        starts[2] + i * table_strides[0] + j * table_strides[1] + k * table_strides[2]
                    )
                    c, s = cos[start : start + pairs], sin[start : start + pairs]
                    for pair in range(pairs):
                        a, b = widen(head[step * pair]), widen(head[step * pair + partner])
                        turned[step * pair] = narrow(multiply_add(-b, s[pair], a * c[pair]))
                        turned[step * pair + partner] = narrow(multiply_add(a, s[pair], b * c[pair]))
                    for channel in range(2 * pairs, head_dim):
                        turned[channel] = head[channel]

    return kernel
