"""The rotation of q and k as one kernel, registered with PyTorch as an operator with a gradient.

Under `torch.compile` and tracing the kernel is the operator ``ordinate::rotate``, with a fake and a
gradient; plain eager calls launch it directly, because PyTorch's dispatcher takes as long on the host
as the kernel takes on the device. Triton is imported by the first launch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..gpu import reason_against
from ..operators import Operator, schema_of
from ..tracing import has_forward_gradients, is_traced, is_transformed

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)

Tables = tuple[Tensor, Tensor]  # cos and sin, float32 [batch or 1, seq, pairs]


def supports(*tensors: Tensor) -> bool:
    """Whether the kernel supports these: on one CUDA device, in one 16- or 32-bit dtype, none dual or transformed."""
    first = tensors[0]
    return (
        first.is_cuda
        and first.dtype in _DTYPES
        and all(x.dtype == first.dtype and x.device == first.device for x in tensors)
        and not has_forward_gradients()
        and not is_transformed()
        and reason_against(first.device) is None
    )


def rotate(
    q: Tensor, k: Tensor | None, q_tables: Tables, k_tables: Tables, *, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """Rotate q and k, ``[batch, heads, seq, head_dim]`` each, in one launch; they are not modified.

    The outputs have the memory format of the inputs, so that a transposed view of
    ``[batch, seq, heads, head_dim]`` stays one.

    Args:
        k: None to rotate q alone; the second result is then empty.
    """
    k = _no_heads(q) if k is None else k
    turned: tuple[Tensor, Tensor] = _rotate(q, k, *q_tables, *k_tables, interleaved, False)
    return turned


def rotate_(
    q: Tensor, k: Tensor | None, q_tables: Tables, k_tables: Tables, *, interleaved: bool
) -> None:
    """Rotate q and k in place. Nothing is recorded for autograd.

    Args:
        q, k: With unit stride along head_dim and no element twice in memory.
    """
    k = _no_heads(q) if k is None else k
    arguments = (q, k, *q_tables, *k_tables, interleaved)
    if is_traced(q, k):
        _rotate_in_place_op(*arguments)
        return
    _launch_in_place(*arguments)
    # Autograd must notice that q and k were written to, in case one is saved for a backward pass.
    torch.autograd.graph.increment_version([x for x in (q, k) if not x.is_inference()])


def _no_heads(x: Tensor) -> Tensor:
    return x.new_empty((x.shape[0], 0, x.shape[2], x.shape[3]))


def _output_like(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    return out if out.stride(-1) == 1 else torch.empty_like(x, memory_format=torch.contiguous_format)


def _launch(
    q: Tensor, k: Tensor,
    q_cos: Tensor, q_sin: Tensor, k_cos: Tensor, k_sin: Tensor,
    interleaved: bool, inverse: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    q_out, k_out = _output_like(q), _output_like(k)
    q = q if q.stride(-1) == 1 else q.contiguous()
    k = k if k.stride(-1) == 1 else k.contiguous()
    _turn(q, k, q_out, k_out, q_cos, q_sin, k_cos, k_sin, interleaved, inverse)
    return q_out, k_out


def _launch_in_place(
    q: Tensor, k: Tensor,
    q_cos: Tensor, q_sin: Tensor, k_cos: Tensor, k_sin: Tensor,
    interleaved: bool,
) -> None:  # fmt: skip
    _turn(q, k, q, k, q_cos, q_sin, k_cos, k_sin, interleaved, False)


def _turn(
    q: Tensor, k: Tensor, q_out: Tensor, k_out: Tensor,
    q_cos: Tensor, q_sin: Tensor, k_cos: Tensor, k_sin: Tensor,
    interleaved: bool, inverse: bool,
) -> None:  # fmt: skip
    from ..kernels import rope

    tables = [table.contiguous() for table in (q_cos, q_sin, k_cos, k_sin)]
    rope.turn(q, k, q_out, k_out, *tables, interleaved=interleaved, inverse=inverse)


def _save_tables(ctx, inputs, output) -> None:
    *_, q_cos, q_sin, k_cos, k_sin, ctx.interleaved, ctx.inverse = inputs
    ctx.save_for_backward(q_cos, q_sin, k_cos, k_sin)


def _turn_back(ctx, needs, _, q_grad: Tensor, k_grad: Tensor):
    """The gradient of a rotation is the inverse rotation, multiplied by the same factor in the tables."""
    needs_q, needs_k = needs[:2]
    q_cos, q_sin, k_cos, k_sin = ctx.saved_tensors
    flags = ctx.interleaved, not ctx.inverse
    if needs_q and needs_k:
        q_grad, k_grad = _rotate(q_grad, k_grad, q_cos, q_sin, k_cos, k_sin, *flags)
    elif needs_q:
        q_grad = _rotate(q_grad, _no_heads(q_grad), q_cos, q_sin, q_cos, q_sin, *flags)[0]
    elif needs_k:
        k_grad = _rotate(k_grad, _no_heads(k_grad), k_cos, k_sin, k_cos, k_sin, *flags)[0]
    return q_grad if needs_q else None, k_grad if needs_k else None, *(None,) * 6


_rotate = Operator(
    "rotate", _launch, lambda q, k, *tables_and_flags: (_output_like(q), _output_like(k)),
    learns=2, save=_save_tables, pull_back=_turn_back,
)  # fmt: skip
_rotate_in_place_op = torch.library.custom_op(
    "ordinate::rotate_", _launch_in_place, mutates_args=("q", "k"),
    schema=schema_of(_launch_in_place, mutated=("q", "k")),
)  # fmt: skip
_rotate_in_place_op.register_fake(lambda *arguments: None)
