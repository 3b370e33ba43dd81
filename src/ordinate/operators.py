"""`Operator`: a function that goes through PyTorch's dispatcher if a call is traced, and is called directly otherwise.

The dispatcher takes the host as long as a short kernel takes the device. torch.compile, torch.func, dispatch modes,
tracers and tensor subclasses need it.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any, get_type_hints

import torch
from torch import Tensor

from .checks import refused
from .tracing import is_traced

#: ``(ctx, needs, backward, *grads)``: the gradients of the inputs that need one, by calling ``backward``.
PullBack = Callable[..., tuple[Any, ...]]


class Operator:
    """A function of tensors with a gradient, registered as ``torch.ops.ordinate.<name>``.

    Args:
        run: The function itself. Its annotations are the schema, see `schema_of`.
        fake: Returns what ``run`` would return, without the values.
        learns: How many of the first inputs may have a gradient. Their types also show whether the call is traced.
        save: ``(ctx, inputs, output)``: saves what the gradient needs.
        pull_back: See `PullBack`.
        backward: Computes the gradients; a separate operator, without a gradient itself. None where ``pull_back``
            calls this operator again.
    """

    def __init__(
        self, name: str, run: Callable, fake: Callable, *, learns: int, save: Callable,
        pull_back: PullBack, backward: Backward | None = None,
    ) -> None:  # fmt: skip
        self.run, self.learns = with_flat_inputs(run), learns
        self.op = _registered(name, run, self.run, fake)
        traced_backward, direct_backward = (
            (None, None) if backward is None else (backward.op, backward.run)
        )

        def traced(ctx, *grads):
            return pull_back(ctx, ctx.needs_input_grad, traced_backward, *grads)

        def direct(ctx, needs, *grads):
            # With create_graph, the gradients must be an operator, which refuses second derivatives.
            by_operator = torch.is_grad_enabled() or is_traced(*grads)
            return pull_back(ctx, needs, traced_backward if by_operator else direct_backward, *grads)

        self.op.register_autograd(traced, setup_context=save)
        lists = any(
            argument.type.kind() == "ListType" for argument in self.op._opoverload._schema.arguments
        )
        self._apply = (_apply_lists if lists else _apply)(self.run, save, direct)

    def __call__(self, *inputs: Any) -> Any:
        tensors = _tensors(inputs[: self.learns])
        if is_traced(*tensors):
            return self.op(*inputs)
        if torch.is_grad_enabled():
            for tensor in tensors:
                if tensor.requires_grad:
                    return self._apply(*inputs)
        return self.run(*inputs)


class Backward:
    """A function that computes gradients, as an operator that has no gradient itself.

    Args:
        impl: The implementation's name in the error about second derivatives.
        traced: What the operator computes, if not ``run``: an operator returns tensors, never None.
    """

    def __init__(
        self, name: str, run: Callable, fake: Callable, *, impl: str, traced: Callable | None = None
    ) -> None:
        self.run = with_flat_inputs(run)
        traced = run if traced is None else traced
        self.op = _registered(name, traced, with_flat_inputs(traced), fake)

        def refuse(ctx, *grads):
            raise no_second_derivatives(impl)

        self.op.register_autograd(refuse)


def _registered(name: str, run: Callable, flat: Callable, fake: Callable) -> Any:
    op = torch.library.custom_op(f"ordinate::{name}", flat, mutates_args=(), schema=schema_of(run))
    op.register_fake(fake)
    return op


# An int may follow from a length, which is symbolic under `torch.compile` with dynamic shapes.
_SCHEMA_TYPES = {"Tensor": "Tensor", "bool": "bool", "int": "SymInt", "float": "float", "str": "str"}


def schema_of(run: Callable, mutated: Sequence[str] = ()) -> str:
    """The `torch.library` schema of a function, from its annotations.

    PyTorch's `infer_schema` cannot read the annotations of a function with run-time shape checks, and supports
    no dataclasses or NamedTuples. Here each field of one is an input.

    Example:
        >>> def scaled(x: Tensor, factor: float, at: list[int] | None) -> Tensor: ...
        >>> schema_of(scaled)
        '(Tensor x, float factor, SymInt[]? at) -> Tensor'
    """
    inputs: dict[str, str] = {}
    for parameter, _, fields_of in _inputs_of(run):
        for name, annotation in fields_of.items():
            # A field name that two dataclasses share gets the second dataclass's parameter as a prefix.
            inputs[name if name not in inputs else f"{parameter}_{name}"] = _spelled(annotation)
    for name, alias in zip(mutated, "abcdef", strict=False):
        inputs[name] = f"Tensor({alias}!)"
    returned = _annotation_text(inspect.signature(run).return_annotation)
    if returned.startswith("tuple["):
        outputs = f"({', '.join(map(_spelled, returned[6:-1].split(', ')))})"
    else:
        outputs = "()" if returned == "None" else _spelled(returned)
    return f"({', '.join(f'{kind} {name}' for name, kind in inputs.items())}) -> {outputs}"


def with_flat_inputs(run: Callable) -> Callable:
    """``run``, called with the fields of its dataclasses one by one."""
    groups = [(kind, len(fields_of)) for _, kind, fields_of in _inputs_of(run)]
    if not any(kind for kind, _ in groups):
        return run

    if len(groups) == 1:
        ((only, _),) = groups
        return lambda *inputs: run(only(*inputs))

    def flat(*inputs):
        grouped, start = [], 0
        for kind, count in groups:
            of_kind = inputs[start : start + count]
            grouped.append(of_kind[0] if kind is None else kind(*of_kind))
            start += count
        return run(*grouped)

    return flat


def _inputs_of(run: Callable) -> list[tuple[str, Any, dict[str, str]]]:
    """Each parameter with its class, if the class has fields, and the names and annotations of the fields."""
    scope, found = inspect.unwrap(run).__globals__, []
    for name, parameter in inspect.signature(run).parameters.items():
        text = _annotation_text(parameter.annotation)
        kind = scope.get(text)
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            fields_of = {f.name: _annotation_text(f.type) for f in dataclasses.fields(kind)}
        elif hasattr(kind, "_fields"):  # a NamedTuple
            fields_of = {n: _annotation_text(x) for n, x in get_type_hints(kind).items()}
        else:
            kind, fields_of = None, {name: text}
        found.append((name, kind, fields_of))
    return found


def _annotation_text(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return text.replace("torch.", "")


def _spelled(annotation: str) -> str:
    inner = annotation.removesuffix(" | None")
    spelled = f"{_spelled(inner[5:-1])}[]" if inner.startswith("list[") else _SCHEMA_TYPES[inner]
    return spelled if inner == annotation else f"{spelled}?"


def no_second_derivatives(impl: str) -> Exception:
    rule, got = "must be 'reference' for second derivatives", f"{impl!r}, which has the first alone"
    return refused("impl", rule, got, error=NotImplementedError)


def _tensors(inputs: Sequence[Any]) -> list[Tensor]:
    """The tensors among inputs that are tensors, lists of tensors, or None."""
    found: list[Tensor] = []
    for one in inputs:
        if isinstance(one, Tensor):
            found.append(one)
        elif one is not None:
            found.extend(one)
    return found


# autograd.Functions like those of `register_autograd`, but around `run` itself. They have no `setup_context`, because
# PyTorch binds arguments to its signature, which takes half as long as the dispatcher.


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
    """The same for inputs with lists of tensors, passed one by one, because autograd sees no tensors in lists."""

    class Direct(torch.autograd.Function):
        @staticmethod
        def forward(ctx, lengths, *flat):
            inputs, ctx.lengths = _nested(flat, lengths), lengths
            output = run(*inputs)
            save(ctx, inputs, output)
            return output

        @staticmethod
        def backward(ctx, *grads):
            nested = pull_back(ctx, _nested(ctx.needs_input_grad[1:], ctx.lengths), *grads)
            return None, *_flat(nested, ctx.lengths)[1]

    def apply(*inputs):
        lengths, flat = _flat(inputs)
        return Direct.apply(lengths, *flat)

    return apply


def _flat(
    inputs: Sequence[Any], lengths: Sequence[int | None] = ()
) -> tuple[list[int | None], list[Any]]:
    """The length of each input that is a list, and all of them in one list.

    Args:
        lengths: The lengths of inputs that are lists, used where such an input is None.
    """
    flat: list[Any] = []
    found: list[int | None] = []
    for index, x in enumerate(inputs):
        length = lengths[index] if lengths else len(x) if isinstance(x, list) else None
        found.append(length)
        if length is None:
            flat.append(x)
        else:
            flat.extend([None] * length if x is None else x)
    return found, flat


def _nested(flat: Sequence[Any], lengths: Sequence[int | None]) -> list[Any]:
    """The inverse of `_flat`."""
    nested: list[Any] = []
    start = 0
    for length in lengths:
        stop = start + (1 if length is None else length)
        nested.append(flat[start] if length is None else list(flat[start:stop]))
        start = stop
    return nested
