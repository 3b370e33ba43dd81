"""The rotation on the CPU in one pass over memory, compiled by Numba.

Each PyTorch operation reads and writes memory once, and a rotation of bfloat16 takes five of them: widen, two products,
their sum, narrow. Here a head is read, rotated in float32, rounded once and written. Sums are fused multiply-adds,
like those of PyTorch's `addcmul` on most processors, so the result is bitwise the same.

Numba cannot compile functions that run-time shape checks have wrapped, hence ``@no_type_check``.
"""

from __future__ import annotations

import ctypes
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

# With fewer channels, starting a thread takes longer than it saves.
_CHANNELS_PER_THREAD = 2**18
# Threads do not survive a fork. The thread pool here can be recreated; OpenMP would wait for its threads forever.
_PROCESS = os.getpid()


def turn(
    x: Tensor, out: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool, threads: int | None = None
) -> None:
    """Rotate ``x`` into ``out``, both ``[batch, heads, seq, head_dim]`` in bfloat16 or float32.

    Args:
        x, out: With unit stride along head_dim.
        cos, sin: float32 ``[batch or 1, 1, seq, pairs]``.
        threads: Default: as many as save time, at most the number that PyTorch may use.
    """
    if x.numel() == 0:
        return
    bfloat16 = x.dtype == torch.bfloat16
    cos, sin = cos.contiguous(), sin.contiguous()
    memory = [_flat(tensor) for tensor in (x, out, cos, sin)]
    table = (cos.stride(0) if cos.shape[0] > 1 else 0, 0, cos.stride(2))
    # Loop in the memory order of x.
    order = sorted(zip(x.stride()[:3], x.shape[:3], out.stride()[:3], table, strict=True), reverse=True)
    x_strides, sizes, out_strides, table_strides = zip(*order, strict=True)
    told = (*sizes, *x_strides, *out_strides, *table_strides, x.shape[-1], cos.shape[-1])
    numbers = np.array(told, dtype=np.int64)
    heads = sizes[0] * sizes[1] * sizes[2]
    if threads is None:
        threads = min(torch.get_num_threads(), max(1, x.numel() // _CHANNELS_PER_THREAD))
    shares = min(threads, heads)
    if shares == 1:
        _kernel(bfloat16, interleaved)(*memory, numbers, 0, heads)
    elif _team() is not None and os.getpid() == _PROCESS:
        _run_in_team(_share_of_team(bfloat16, interleaved).address, memory, numbers, shares)
    else:
        _run_in_pool(_kernel(bfloat16, interleaved), memory, numbers, shares)


def _flat(x: Tensor) -> np.ndarray:
    span = 1 + sum([(size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)])
    x = x.detach().as_strided((span,), (1,))
    return (x.view(torch.uint16) if x.dtype == torch.bfloat16 else x).numpy()


@functools.cache
def _team() -> Any:
    """The OpenMP library of PyTorch, to run on PyTorch's own threads; None where PyTorch uses other threads.

    PyTorch's threads spin for a while after each operation, so other threads would compete with them for cores.
    """
    if "parallel backend: OpenMP" not in torch.__config__.parallel_info():
        return None
    try:
        library = ctypes.CDLL(None)
        for name in ("omp_get_thread_num", "omp_get_num_threads"):
            entry = getattr(library, name)
            entry.restype, entry.argtypes = ctypes.c_int, []
        library.GOMP_parallel.restype = None
        library.GOMP_parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    except (AttributeError, OSError, TypeError):  # another compiler's OpenMP; Windows
        return None
    return library


def _run_in_team(share: int, memory: list[np.ndarray], numbers: np.ndarray, shares: int) -> None:
    addresses = [number for array in memory for number in (array.ctypes.data, array.size)]
    arguments = np.concatenate((np.array(addresses, dtype=np.int64), numbers))
    _team().GOMP_parallel(share, arguments.ctypes.data, shares, 0)


def _run_in_pool(
    kernel: Callable[..., None], memory: list[np.ndarray], numbers: np.ndarray, shares: int
) -> None:
    heads = int(numbers[0] * numbers[1] * numbers[2])
    bounds = [heads * share // shares for share in range(shares + 1)]
    (_, own), *others = pairwise(bounds)
    waiting = [_submit(kernel, *memory, numbers, first, last) for first, last in others]
    kernel(*memory, numbers, 0, own)
    for share in waiting:
        share.result()


def _submit(function: Callable[..., None], *arguments: Any) -> Future[None]:
    try:
        return _pool().submit(function, *arguments)
    except RuntimeError:  # the interpreter is shutting down and starts no threads
        function(*arguments)
        done: Future[None] = Future()
        done.set_result(None)
        return done


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="ordinate")


if hasattr(os, "register_at_fork"):  # on systems with fork: the child must start its own threads
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
    """Round to the nearest bfloat16, ties to even: add half a unit, less one bit where the result is even."""
    bits = np.float32(value).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.uint16(rounded if value == value else np.uint32(0x7FC0))


@numba.njit
@no_type_check
def _same(value):
    return value


@functools.cache
def _kernel(bfloat16: bool, interleaved: bool) -> Callable[..., None]:
    """Rotates heads ``first`` to ``last``, counted along three axes; ``numbers`` has their sizes and strides."""
    widen, narrow = (_widen, _narrow) if bfloat16 else (_same, _same)
    step = 2 if interleaved else 1
    multiply_add: Any = _multiply_add

    @numba.njit(nogil=True)
    @no_type_check
    def kernel(x, out, cos, sin, numbers, first, last):
        head_dim, pairs = numbers[12], numbers[13]
        partner = 1 if step == 2 else pairs  # from a pair's first channel to its second
        i, j = first // numbers[2] // numbers[1], first // numbers[2] % numbers[1]
        k = first % numbers[2]
        for _ in range(first, last):
            start = i * numbers[3] + j * numbers[4] + k * numbers[5]
            head = x[start : start + head_dim]
            start = i * numbers[6] + j * numbers[7] + k * numbers[8]
            turned = out[start : start + head_dim]
            start = i * numbers[9] + j * numbers[10] + k * numbers[11]
            c, s = cos[start : start + pairs], sin[start : start + pairs]
            for pair in range(pairs):
                a, b = widen(head[step * pair]), widen(head[step * pair + partner])
                turned[step * pair] = narrow(multiply_add(-b, s[pair], a * c[pair]))
                turned[step * pair + partner] = narrow(multiply_add(a, s[pair], b * c[pair]))
            for channel in range(2 * pairs, head_dim):
                turned[channel] = head[channel]
            k += 1
            if k == numbers[2]:
                k, j = 0, j + 1
            if j == numbers[1]:
                j, i = 0, i + 1

    return kernel


@intrinsic
@no_type_check
def _pointer(typing, address):
    """A pointer to the data at an address."""

    def emit(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(numba.types.voidptr))

    return numba.types.voidptr(address), emit


@functools.cache
def _share_of_team(bfloat16: bool, interleaved: bool) -> Any:
    """A C function that does one thread's share; its only argument is one array of integers."""
    kernel, pointer = _kernel(bfloat16, interleaved), _pointer
    member, members = _team().omp_get_thread_num, _team().omp_get_num_threads
    channel = np.uint16 if bfloat16 else np.float32

    @numba.cfunc(numba.types.void(numba.types.voidptr))
    @no_type_check
    def share(told):
        told = numba.carray(told, 22, np.int64)
        x = numba.carray(pointer(told[0]), told[1], channel)
        out = numba.carray(pointer(told[2]), told[3], channel)
        cos = numba.carray(pointer(told[4]), told[5], np.float32)
        sin = numba.carray(pointer(told[6]), told[7], np.float32)
        numbers = told[8:]
        heads = numbers[0] * numbers[1] * numbers[2]
        of = members()
        kernel(x, out, cos, sin, numbers, heads * member() // of, heads * (member() + 1) // of)

    return share
