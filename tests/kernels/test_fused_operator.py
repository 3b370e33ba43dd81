"""The fused kernels as an operator: strides, gradients asked for alone, refusals, opcheck, `torch.compile`."""

from __future__ import annotations

import re

import pytest
import torch
from fused_cases import (
    Case,
    Sizes,
    assert_at_most_twice_as_wrong,
    plain,
    positions_of,
    results,
)
from torch import Tensor

import ordinate
from ordinate import DistanceBias, RowBias, SumBias, T5Bias
from ordinate.positions import Places

# Triton reads the source of its kernels, which run-time shape checks would have wrapped.
pytestmark = [
    pytest.mark.plain,
    # NumPy tells of the weights of hidden keys, which may be anything before they become 0.
    pytest.mark.filterwarnings("ignore:overflow encountered in exp2"),
]


def _views(x: Tensor) -> dict[str, Tensor]:
    heads, head_dim = x.shape[1], x.shape[3]
    return {
        "[batch, seq, heads, head_dim]": x.transpose(1, 2).contiguous().transpose(1, 2),
        "[seq, batch, heads, head_dim]": x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3),
        "channels of a wider head": torch.cat((x, x), dim=-1)[..., :head_dim],
        "channels apart": x.transpose(2, 3).contiguous().transpose(2, 3),
        "channels and heads apart": x.permute(0, 3, 2, 1).contiguous().permute(0, 3, 2, 1),
        "one head for all": x[:, :1].expand(-1, heads, -1, -1),
    }


@pytest.mark.usefixtures("_poisoned_memory")
@pytest.mark.parametrize("view", _views(torch.empty(1, 1, 1, 1)))
def test_strides_change_no_bit(view, device):
    case = Case("line", sizes=Sizes(17, 17, batch=2), device=str(device))
    leaves = case.leaves()
    viewed = {
        name: (_views(leaf.detach())[view] if name in "qkv" else leaf.detach()).requires_grad_()
        for name, leaf in leaves.items()
    }
    straight = {
        name: leaf.detach().clone().contiguous().requires_grad_() for name, leaf in viewed.items()
    }
    found, expected = (
        results(x, ordinate.attention(**case.arguments(x), return_lse=True, impl="fused"))
        for x in (viewed, straight)
    )
    for name, wanted in expected.items():
        torch.testing.assert_close(found[name], wanted, rtol=0, atol=0, msg=name)


def test_outputs_and_gradients_keep_the_memory_format_of_projections(device):
    case = Case("none", sizes=Sizes(33, 33), device=str(device))
    leaves = {
        name: leaf.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
        for name, leaf in case.leaves().items()
    }
    out = ordinate.attention(**case.arguments(leaves), impl="fused")
    assert out.transpose(1, 2).is_contiguous()
    for gradient in torch.autograd.grad(out.sum(), leaves.values()):
        assert gradient.transpose(1, 2).is_contiguous()


def test_an_expanded_gradient_has_no_strides_and_is_taken_all_the_same(device):
    case = Case("clipped", sizes=Sizes(33, 33), device=str(device))
    leaves = case.leaves()
    out = ordinate.attention(**case.arguments(leaves), impl="fused")
    ones = torch.ones((), device=device)
    found, expected = (
        torch.autograd.grad(out, leaves.values(), grad, retain_graph=True)
        for grad in (ones.expand_as(out), torch.ones_like(out))
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("bias", ["line", "kerple", "sum_of_all"])
def test_aligned_positions_give_the_same_bits_every_time(bias, device):
    case = Case(bias, sizes=Sizes(50, 50, heads=2, kv_heads=1), device=str(device))
    leaves = case.leaves()
    first, second = (
        results(leaves, ordinate.attention(**case.arguments(leaves), return_lse=True, impl="fused"))
        for _ in range(2)
    )
    for name, wanted in first.items():
        torch.testing.assert_close(second[name], wanted, rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("through", ["out", "lse"])
def test_either_output_alone_brings_gradients(through, device):
    case = Case("sum_of_all", sizes=Sizes(20, 20), device=str(device))
    leaves = case.leaves()
    moved = {name: leaf.detach().double().requires_grad_() for name, leaf in leaves.items()}
    index = 0 if through == "out" else 1

    def gradients(leaves, outputs):
        loss = outputs[index].sin().sum()
        found = torch.autograd.grad(loss, leaves.values(), allow_unused=True)
        return {
            name: torch.zeros_like(leaf) if grad is None else grad
            for (name, leaf), grad in zip(leaves.items(), found, strict=True)
        }

    found = gradients(
        leaves, ordinate.attention(**case.arguments(leaves), return_lse=True, impl="fused")
    )
    rough = gradients(leaves, plain(case.arguments(leaves), torch.float32))
    exact = gradients(moved, plain(case.arguments(moved), torch.float64))
    assert_at_most_twice_as_wrong(found, exact, rough)


@pytest.mark.parametrize(
    "wanted",
    ["q", "v", "slopes", "table", "gates", "features", "row_table", "key_features", "key_row_table"],
)
def test_one_gradient_asked_for_alone_is_the_same(wanted, device):
    case = Case("sum_of_all", sizes=Sizes(20, 20), device=str(device))
    leaves = case.leaves()

    def gradient(leaves):
        out = ordinate.attention(**case.arguments(leaves), impl="fused")
        return torch.autograd.grad(out.sin().sum(), leaves[wanted])[0]

    alone = {
        name: leaf.detach().requires_grad_(name == wanted or name == "q")
        for name, leaf in leaves.items()
    }
    torch.testing.assert_close(gradient(alone), gradient(leaves), rtol=0, atol=0)


def test_without_gradients_the_same_output_comes_out(device):
    case = Case("sum", sizes=Sizes(20, 20), device=str(device))
    leaves = case.leaves()
    expected = ordinate.attention(**case.arguments(leaves), impl="fused")
    with torch.inference_mode():
        out = ordinate.attention(**case.arguments(leaves), impl="fused")
    torch.testing.assert_close(out, expected.detach(), rtol=0, atol=0)


def test_the_gradient_of_a_gradient_is_refused_rather_than_wrong(device):
    case = Case("none", sizes=Sizes(5, 5), device=str(device))
    leaves = case.leaves()
    out = ordinate.attention(**case.arguments(leaves), impl="fused")
    (first,) = torch.autograd.grad(out.sin().sum(), leaves["q"], create_graph=True)
    with pytest.raises(NotImplementedError, match=r"impl must be .reference."):
        first.sum().backward()


def _call(device, batch=1, dtype=torch.float32, head_dim=8, v_dim=8, bias=None):
    q = torch.randn(batch, 2, 5, head_dim, device=device, dtype=dtype)
    v = torch.randn(batch, 2, 5, v_dim, device=device, dtype=dtype)
    return {"q": q, "k": q, "v": v, "bias": bias}


def _endless(device, head_dim: int, keys: int) -> dict:
    q = torch.zeros(1, 1, 1, head_dim, device=device)
    k = q.expand(1, 1, keys, head_dim)
    return {"q": q, "k": k, "v": k}


def _biases(device) -> dict[str, ordinate.Bias]:
    at = positions_of("aligned", Sizes(5, 5)).on(device)
    features, rows = torch.randn(1, 2, 5, 3, device=device), torch.randn(2, 4, 3, device=device)
    table = DistanceBias(torch.randn(2, 4, device=device), at.places, lo=0)
    row = RowBias(features, rows, at.places, lo=0)
    key_row = RowBias(features, rows, at.places, lo=0, side="key")
    moved = DistanceBias(torch.randn(2, 4, device=device), Places.at(at.queries + 1, at.keys), lo=0)
    long = DistanceBias(torch.randn(2, 600, device=device), at.places, lo=-90)
    endless = RowBias(features, torch.randn(1, 2050, 3, device=device), at.places, lo=0)
    return {
        "values": RowBias(features, rows, at.places, lo=0, values=torch.randn(2, 4, 8).to(device)),
        "several": SumBias((table, row, table)),
        "rows of queries": SumBias((row, key_row, row)),
        "rows of keys": SumBias((key_row, row, key_row)),
        "moved": SumBias((moved, row)),
        "long": SumBias((long, key_row)),
        "endless": endless,
    }


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda d: _call(d, dtype=torch.float64), "float16, bfloat16 and float32, not float64"),
        (lambda d: _call(d, head_dim=257), "head_dim is at most 256, not 257"),
        (lambda d: _call(d, v_dim=300), "head_dim is at most 256, not 300"),
        (lambda d: _call(d, bias=_biases(d)["values"]), "a value term"),
        (lambda d: _call(d, bias=_biases(d)["several"]), "one DistanceBias, not several"),
        (
            lambda d: _call(d, bias=_biases(d)["rows of queries"]),
            "one RowBias over queries, not several",
        ),
        (lambda d: _call(d, bias=_biases(d)["rows of keys"]), "one RowBias over keys, not several"),
        (lambda d: _call(d, bias=_biases(d)["moved"]), "share their positions"),
        (
            lambda d: _call(d, bias=_biases(d)["long"]),
            "rows would have to be as long as .* of the sum, 600",
        ),
        (lambda d: _call(d, bias=_biases(d)["endless"]), "rows have at most 2049 distances, not 2050"),
        (lambda d: _endless(d, 128, 2_097_121), "lengths are at most 2097120, not 2097121"),
        (lambda d: _endless(d, 129, 1_048_561), "lengths are at most 1048560, not 1048561"),
    ],
)
def test_what_the_kernels_cannot_do_is_refused_with_the_reason(make, reason, device):
    arguments = make(device)
    with pytest.raises(NotImplementedError, match=f"impl='fused' cannot do this call: .*{reason}"):
        ordinate.attention(**arguments, impl="fused")
    assert any(re.search(reason, why) for why in ordinate.explain(**arguments).reasons["fused"])


def _operator_arguments(case: Case, *, requires_grad: bool, p: float = 0.0) -> tuple:
    """What `fused.run` passes on."""
    from ordinate.attending import api
    from ordinate.attending.fused import terms as fused

    leaves = {name: leaf.detach().requires_grad_(requires_grad) for name, leaf in case.leaves().items()}
    call = api._prepare(**case.arguments(leaves), dropout_p=p)
    q, k, v, *rest = fused.operator_inputs(call)
    biases = [None if x is None else x.detach().requires_grad_(requires_grad) for x in rest[:5]]
    return q, k, v, *biases, *rest[5:]


_OPERATOR_CASES = [
    ("none", "causal", "aligned", "[batch, seq, heads, head_dim]", 0.3),
    ("sum_of_all", "all_at_once", "gaps", "channels and heads apart", 0.0),
    ("row_of_keys", "full", "aligned", "[seq, batch, heads, head_dim]", 0.0),
    ("none", "padding", "aligned", "[batch, seq, heads, head_dim]", 0.0),
]


@pytest.mark.slow
@pytest.mark.parametrize(("bias", "mask", "positions", "view", "p"), _OPERATOR_CASES)
def test_operators_pass_opcheck(bias, mask, positions, view, p, device):
    from ordinate.attending.fused import operator as fused_op  # registers them; not while collecting

    case = Case(bias, mask, positions, Sizes(20, 20), device=str(device))
    for requires_grad in (True, False):
        q, k, v, *rest = _operator_arguments(case, requires_grad=requires_grad, p=p)
        q, k, v = (_views(x.detach())[view].requires_grad_(requires_grad) for x in (q, k, v))
        torch.library.opcheck(
            torch.ops.ordinate.fused_attention.default, (q, k, v, *rest), rtol=1e-4, atol=1e-5
        )
    out, lse = fused_op.attention.run(q, k, v, *rest)
    for grad_lse in (None, torch.randn_like(lse)):
        wanted = [x is not None for x in rest[:5]]
        torch.library.opcheck(
            torch.ops.ordinate.fused_attention_backward.default,
            (torch.randn_like(out), grad_lse, out, lse, q, k, v, *rest, *wanted),
        )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["a table", "fewer queries", "a table of every distance", "a window"])
def test_compiles_without_breaks_and_once_for_all_lengths(kind, device):
    """Also where a table's start or a window follows from the length."""
    torch._dynamo.reset()
    encoding = T5Bias(2, 8, 20).to(device)
    torch.nn.init.normal_(encoding.weight)
    rates = torch.rand(2, 1, device=device, requires_grad=True)

    def every_distance(length):
        places = Places.in_order(length, length, device=device)
        distances = torch.arange(1 - length, length, device=device)
        return DistanceBias(-rates * distances.abs(), places, lo=1 - length)

    def step(q, k, v):
        length = q.shape[2]
        options = {
            "a table": {"encoding": encoding, "causal": True},
            "a table of every distance": {"bias": every_distance(length)},
            "a window": {"encoding": encoding, "causal": True, "window": length // 2},
        }
        if kind == "fewer queries":
            q, options[kind] = q[:, :, length // 2 :], options["a table"]
        return ordinate.attention(q, k, v, **options[kind], impl="fused")

    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")
    learning = rates if kind == "a table of every distance" else encoding.weight

    def run(step, length):
        torch.manual_seed(length)
        content = [torch.randn(1, 2, length, 16, device=device, requires_grad=True) for _ in range(3)]
        out = step(*content)
        return (out, *torch.autograd.grad(out.sin().sum(), (*content, learning)))

    with torch._dynamo.config.patch(error_on_recompile=True):
        for length in (18, 33, 20):
            torch.testing.assert_close(run(compiled, length), run(step, length))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_a_sum_at_positions_of_ones_own_compiles_as_it_runs(dtype, device):
    """Its parts share their positions, which nobody may have to look at to know."""
    torch._dynamo.reset()
    encoding = ordinate.Combined(ordinate.Shaw(16, 3), T5Bias(2, 8, 20)).to(device)
    q, k, v = (torch.randn(1, 2, 20, 16, device=device) for _ in range(3))
    positions = torch.arange(20, device=device, dtype=dtype) * 3

    def step(q, k, v, positions):
        return ordinate.attention(q, k, v, encoding, q_positions=positions, causal=True, impl="fused")

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v, positions), step(q, k, v, positions))


@pytest.mark.parametrize("q_len", [20, 0])
def test_gradients_of_what_is_not_there_are_empty(q_len, device):
    from ordinate.attending.fused import (
        operator as fused_op,  # registers the operators; not while collecting
    )

    case = Case("none", sizes=Sizes(q_len, 20), device=str(device))
    arguments = _operator_arguments(case, requires_grad=False)
    out, lse = fused_op.attention.run(*arguments)
    found = torch.ops.ordinate.fused_attention_backward(out, None, out, lse, *arguments, *[True] * 5)
    assert [x.shape for x in found[:3]] == [x.shape for x in arguments[:3]]
    assert all(x.shape == (0,) for x in found[3:])
