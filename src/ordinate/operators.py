"""One way to make an operator: seen by PyTorch's dispatcher where a call is traced, and called directly where none is.

The way through the dispatcher takes the host as long as a short kernel takes the device. Compilers, transforms,
dispatch modes, tracers and subclasses of tensors need it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .checks import refused
from .tracing import needs_dispatcher

#: ``(ctx, needs, backward, *grads)``: the gradients of the inputs that need one, by calling ``backward``.
PullBack = Callable[..., tuple[Any, ...]]


class Operator:
    """A function of tensors with a gradient, registered as ``torch.ops.ordinate.<name>``.

    Args:
        run: The function itself.
        schema: Its inputs and outputs as `torch.library` spells them. Written out, for PyTorch cannot read the
            annotations of a function whose shapes are being checked.
        fake: What ``run`` would return, without the numbers.
        learns: How many of the first inputs may have a gradient. By their types tracing is noticed.
        save: ``(ctx, inputs, output)``: keeps what the gradient needs.
        pull_back: See `PullBack`.
        backward: What computes the gradients, an operator of its own that has none itself. None where ``pull_back``
            calls this operator again.
    """

    def __init__(
        self, name: str, run: Callable, fake: Callable, *, schema: str, learns: int, save: Callable,
        pull_back: PullBack, backward: Backward | None = None,
    ) -> None:  # fmt: skip
        self.run, self.learns = run, learns
        self.op = torch.library.custom_op(f"ordinate::{name}", run, mutates_args=(), schema=schema)
        self.op.register_fake(fake)
        traced_backward = None if backward is None else backward.op
        direct_backward = None if backward is None else backward.run

        def traced(ctx, *grads):
            return pull_back(ctx, ctx.needs_input_grad, traced_backward, *grads)

        def direct(ctx, needs, *grads):
            # With a graph of the gradients, the operator refuses to differentiate them.
            by_operator = torch.is_grad_enabled() or needs_dispatcher(
                *[x for x in grads if x is not None]
            )
            return pull_back(ctx, needs, traced_backward if by_operator else direct_backward, *grads)

        self.op.register_autograd(traced, setup_context=save)
        of_lists = any(
            argument.type.kind() == "ListType" for argument in self.op._opoverload._schema.arguments
        )
        self._apply = (_apply_lists if of_lists else _apply)(run, save, direct)

    def __call__(self, *inputs: Any) -> Any:
        tensors = _tensors(inputs[: self.learns])
        if needs_dispatcher(*tensors):
            return self.op(*inputs)
        if torch.is_grad_enabled():
            for tensor in tensors:
                if tensor.requires_grad:
                    return self._apply(*inputs)
        return self.run(*inputs)


class Backward:
    """A function that computes gradients, as an operator: one that has no gradient itself.

    Args:
        impl: The implementation that is named where second derivatives are refused.
        traced: What the operator computes, if not ``run``: an operator returns tensors, never None.
    """

    def __init__(
        self, name: str, run: Callable, fake: Callable, *, schema: str, impl: str,
        traced: Callable | None = None,
    ) -> None:  # fmt: skip
        self.run = run
        self.op = torch.library.custom_op(
            f"ordinate::{name}", run if traced is None else traced, mutates_args=(), schema=schema
        )
        self.op.register_fake(fake)

        def refuse(ctx, *grads):
            raise no_second_derivatives(impl)

        self.op.register_autograd(refuse)


def no_second_derivatives(impl: str) -> Exception:
    rule, got = "must be 'reference' for second derivatives", f"{impl!r}, which has the first alone"
    return refused("impl", rule, got, error=NotImplementedError)


def _tensors(inputs: Sequence[Any]) -> list[Tensor]:
    """Those of a few inputs: each a tensor, a list of them, or None."""
    found: list[Tensor] = []
    for one in inputs:
        if isinstance(one, Tensor):
            found.append(one)
        elif one is not None:
            found.extend(one)
    return found


# What `register_autograd` makes of the same functions, around `run` itself. PyTorch would bind the arguments to a
# signature for a `setup_context` of the class's own, which takes half as long as the dispatcher.


def _apply(run: Callable, save: Callable, pull_back: Callable) -> Callable:
    class Direct(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *inputs):
            output = run(*inputs)
            save(ctx, inputs, output)
            return output

        @staticmethod
        def backward(ctx, *grads):
            return pull_back(ctx, ctx.needs_input_grad, *grads)

    return Direct.apply


def _apply_lists(run: Callable, save: Callable, pull_back: Callable) -> Callable:
    """The same for inputs among which are lists: autograd sees no tensor inside one, so they go one by one."""

    class Direct(torch.autograd.Function):
        @staticmethod
        def forward(ctx, lengths, *flat):
            inputs, ctx.lengths = _nested(flat, lengths), lengths
            output = run(*inputs)
            save(ctx, inputs, output)
            return output

        @staticmethod
        def backward(ctx, *grads):
            needs = _nested(ctx.needs_input_grad[1:], ctx.lengths)
            nested = zip(pull_back(ctx, needs, *grads), ctx.lengths, strict=True)
            return None, *_flat([[None] * n if x is None and n is not None else x for x, n in nested])

    def apply(*inputs):
        lengths = tuple([len(x) if isinstance(x, list) else None for x in inputs])
        return Direct.apply(lengths, *_flat(inputs))

    return apply


def _flat(inputs: Sequence[Any]) -> list[Any]:
    return [one for x in inputs for one in (x if isinstance(x, list) else (x,))]


def _nested(flat: Sequence[Any], lengths: Sequence[int | None]) -> list[Any]:
    supply = iter(flat)
    return [next(supply) if n is None else [next(supply) for _ in range(n)] for n in lengths]
