"""Who looks on sees operators: dispatch modes, fake tensors, selective checkpointing, counters, subclasses."""

from __future__ import annotations

import functools
import importlib

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from torch.utils.flop_counter import (
    FlopCounterMode,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

pytest.importorskip("triton", reason="the kernels are Triton's")

import ordinate

# Triton reads the source of its kernels, which run-time shape checks would have wrapped.
pytestmark = pytest.mark.plain

ENCODINGS = {
    "none": ordinate.NoPE,
    "line": lambda: ordinate.ALiBi(4),
    "table": lambda: ordinate.T5Bias(4),
    "rows": lambda: ordinate.Shaw(16, 4),
}


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def _inputs(device, v_dim=16):
    shapes = ((1, 4, 20, 16), (1, 2, 37, 16), (1, 2, 37, v_dim))
    return [torch.randn(shape, device=device, requires_grad=True) for shape in shapes]


def _attend(encoding, q, k, v):
    return ordinate.attention(q, k, v, encoding, causal=True, impl="fused")


@pytest.mark.parametrize("kind", ENCODINGS)
def test_a_dispatch_mode_sees_operators_and_changes_no_bit(kind, device):
    encoding, inputs = ENCODINGS[kind]().to(device), _inputs(device)
    leaves = [*inputs, *encoding.parameters()]
    out = _attend(encoding, *inputs)
    pull = torch.randn_like(out)
    unseen = torch.autograd.grad(out, leaves, pull)
    with _Recorder() as recorder:
        seen_out = _attend(encoding, *inputs)
        seen = torch.autograd.grad(seen_out, leaves, pull)
    names = {"ordinate.fused_attention.default", "ordinate.fused_attention_backward.default"}
    if kind == "rows":
        names |= {"ordinate.row_projection.default", "ordinate.row_projection_backward.default"}
    assert names <= set(recorder.seen)
    torch.testing.assert_close(seen_out, out, rtol=0, atol=0)
    for found, wanted in zip(seen, unseen, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_nobody_looking_on_there_is_no_operator(device, monkeypatch):
    importlib.import_module("ordinate.attending.fused.operator")  # which has the operators

    def refuse(*_):
        raise AssertionError("through the dispatcher")

    for name in ("fused_attention", "fused_attention_backward"):
        monkeypatch.setattr(torch.ops.ordinate, name, refuse)
    encoding, inputs = ordinate.ALiBi(4).to(device), _inputs(device)
    torch.autograd.grad(_attend(encoding, *inputs).sum(), inputs)


@pytest.mark.parametrize("kind", ENCODINGS)
def test_who_looks_on_at_the_backward_pass_alone_sees_its_operators(kind, device):
    encoding, inputs = ENCODINGS[kind]().to(device), _inputs(device)
    out = _attend(encoding, *inputs)
    with _Recorder() as recorder:
        torch.autograd.grad(out.sum(), [*inputs, *encoding.parameters()])
    assert "ordinate.fused_attention_backward.default" in recorder.seen
    assert ("ordinate.row_projection_backward.default" in recorder.seen) == (kind == "rows")


@pytest.mark.parametrize("kind", ENCODINGS)
def test_fake_tensors_stay_fake(kind, device):
    encoding, inputs = ENCODINGS[kind]().to(device), _inputs(device, v_dim=24)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        out = _attend(encoding, *(mode.from_tensor(x.detach()) for x in inputs))
    assert isinstance(out, torch._subclasses.FakeTensor)
    assert out.shape == (1, 4, 20, 24)


@pytest.mark.parametrize(
    ("choice", "times"), [(CheckpointPolicy.MUST_SAVE, 1), (CheckpointPolicy.MUST_RECOMPUTE, 2)]
)
def test_selective_checkpointing_decides_whether_attention_runs_again(
    choice, times, device, monkeypatch
):
    from ordinate.kernels.launch import Step

    encoding, inputs = ordinate.ALiBi(4).to(device), _inputs(device)
    wanted = torch.autograd.grad(_attend(encoding, *inputs).sum(), inputs)
    launched: list[str] = []
    launch = Step.__call__

    def counted(step, **tensors):
        launched.append(step.kernel.__name__)
        launch(step, **tensors)

    def policy(context, op, *args, **kwargs):
        is_attention = op is torch.ops.ordinate.fused_attention.default
        return choice if is_attention else CheckpointPolicy.PREFER_RECOMPUTE

    monkeypatch.setattr(Step, "__call__", counted)
    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    out = checkpoint(
        functools.partial(_attend, encoding), *inputs, use_reentrant=False, context_fn=contexts
    )
    found = torch.autograd.grad(out.sum(), inputs)
    assert launched.count("_attention_fwd_kernel") == times
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_products_are_counted_as_pytorch_counts_its_own(device):
    shapes = (2, 4, 33, 16), (2, 4, 41, 16), (2, 4, 41, 24)
    q, k, v = (torch.randn(shape, device=device, requires_grad=True) for shape in shapes)
    _attend(ordinate.NoPE(), q, k, v)  # a counter knows the formulas there were when it was made
    with FlopCounterMode(display=False) as counter:
        out = _attend(ordinate.NoPE(), q, k, v)
    assert counter.get_total_flops() == sdpa_flop_count(*shapes)
    with FlopCounterMode(display=False) as counter:
        out.sum().backward()
    # Theirs takes the gradient's shape, ours needs no more than those of q, k and v.
    assert counter.get_total_flops() == sdpa_backward_flop_count(out.shape, *shapes)


def test_a_subclass_of_tensors_sees_operators(device):
    seen: list[str] = []

    class Watched(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return super().__torch_function__(func, types, args, kwargs or {})

    q, k, v = (x.detach() for x in _inputs(device))
    out = _attend(ordinate.NoPE(), q.as_subclass(Watched), k, v)
    assert any("ordinate.fused_attention" in name for name in seen)
    torch.testing.assert_close(
        out.as_subclass(torch.Tensor), _attend(ordinate.NoPE(), q, k, v), rtol=0, atol=0
    )


@pytest.mark.parametrize("kind", ENCODINGS)
def test_second_derivatives_are_refused_with_the_implementation_that_has_them(kind, device):
    encoding, inputs = ENCODINGS[kind]().to(device), _inputs(device)
    out = _attend(encoding, *inputs)
    plain = torch.autograd.grad(out.sum(), inputs, retain_graph=True)
    first = torch.autograd.grad(out.sum(), inputs, create_graph=True)
    torch.testing.assert_close(first, plain, rtol=0.0, atol=0.0)
    with pytest.raises(NotImplementedError, match=r"impl must be 'reference' .* got 'fused'"):
        torch.autograd.grad(first[0].sum(), inputs)


def test_transforms_are_left_to_others(device):
    q, k, v = (x.detach() for x in _inputs(device))
    seen = []

    def attend(q):
        seen.append(ordinate.explain(q, k, v, ordinate.ALiBi(4), causal=True))
        return ordinate.attention(q, k, v, ordinate.ALiBi(4), causal=True).sum()

    torch.func.grad(attend)(q)
    assert (seen[0].chosen, ordinate.explain(q, k, v, causal=True).chosen) == ("reference", "fused")
    assert seen[0].reasons["fused"] == ["its kernels have no rules for torch.func"]
