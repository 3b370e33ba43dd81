"""A kernel around what the gradient of a table asks of a diagonal of tiles. Tests import it when they run."""

from __future__ import annotations

import triton
import triton.language as tl

from ordinate.kernels.table_gradient import _of_one_segment


@triton.jit
def first_run_kernel(
    q_segment_ptr, k_segment_ptr, found_ptr, start, end, shift, q_len, k_len, M: tl.constexpr, N: tl.constexpr
):  # fmt: skip
    first, last = _of_one_segment(q_segment_ptr, k_segment_ptr, start, end, shift, q_len, k_len, M, N)
    tl.store(found_ptr, first)
    tl.store(found_ptr + 1, last)
