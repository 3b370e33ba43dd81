"""The fused kernels against `reference` in float64: outputs, logsumexps and the gradient of every input."""

from __future__ import annotations

import copy
import math
import re

import pytest
import torch
from fused_cases import (
    BIASES,
    MASKS,
    POSITIONS,
    SIZES,
    Case,
    Sizes,
    assert_at_most_twice_as_wrong,
    check,
    exact_results,
    plain,
    positions_of,
    results,
)
from torch import Tensor

import ordinate
from ordinate import ALiBi, ClippedBias, Combined, DistanceBias, RowBias, Shaw, SumBias, T5Bias

# Triton reads the source of its kernels, which run-time shape checks would have wrapped.
pytestmark = [
    pytest.mark.plain,
    # NumPy tells of the weights of hidden keys, which may be anything before they become 0.
    pytest.mark.filterwarnings("ignore:overflow encountered in exp2"),
]


def _covering(stride: int) -> list[tuple[str, str, str, str]]:
    """Every bias with every mask; positions and sizes take turns, so that each meets each bias and mask."""
    names = list(SIZES)
    return [
        (bias, mask, POSITIONS[(3 * i + j) % len(POSITIONS)], names[(i + 2 * j) % len(names)])
        for i, bias in enumerate(BIASES)
        for j, mask in enumerate(MASKS)
        if (5 * i + j) % stride == 0
    ]


_FEW = _covering(len(MASKS))  # one mask for every bias
_MOST = [case for case in _covering(1) if case not in _FEW]


@pytest.mark.usefixtures("_poisoned_memory")
@pytest.mark.parametrize(("bias", "mask", "positions", "sizes"), _FEW)
def test_every_bias_is_at_most_twice_as_wrong_as_plain_pytorch(bias, mask, positions, sizes, device):
    check(Case(bias, mask, positions, SIZES[sizes], device=str(device)))


@pytest.mark.slow
@pytest.mark.usefixtures("_poisoned_memory")
@pytest.mark.parametrize(("bias", "mask", "positions", "sizes"), _MOST)
def test_every_bias_under_every_mask_is_at_most_twice_as_wrong_as_plain_pytorch(
    bias, mask, positions, sizes, device
):
    check(Case(bias, mask, positions, SIZES[sizes], device=str(device)))


@pytest.mark.slow
@pytest.mark.usefixtures("_poisoned_memory")
@pytest.mark.parametrize("positions", sorted(set(POSITIONS)))
@pytest.mark.parametrize(
    "bias", ["line", "t5_both_ways", "kerple", "row", "row_of_keys", "sum", "sum_of_all"]
)
def test_positions_are_data_whatever_their_order(bias, positions, device):
    check(
        Case(bias, "full", positions, Sizes(q_len=33, k_len=49, batch=2, kv_heads=1), device=str(device))
    )


LENGTHS = [(1, 1), (1, 39), (39, 1), (32, 16), (3, 17)]


@pytest.mark.usefixtures("_poisoned_memory")
@pytest.mark.parametrize(("q_len", "k_len"), LENGTHS)
@pytest.mark.parametrize("mask", ["full", "causal_window"])
def test_short_and_unequal_lengths(mask, q_len, k_len, device):
    check(Case("sum_of_all", mask, sizes=Sizes(q_len, k_len, heads=1, kv_heads=1), device=str(device)))


@pytest.mark.usefixtures("_poisoned_memory")
@pytest.mark.parametrize("q_len", [1, 5])
@pytest.mark.parametrize(
    ("bias", "mask"),
    [("none", "causal"), ("line", "causal_window"), ("t5_both_ways", "segments"), ("kerple", "padding"),
     ("sum", "all_at_once"), ("row_of_keys", "window"), ("sum_of_all", "causal")],
)  # fmt: skip
def test_few_queries_share_their_keys_out(bias, mask, q_len, device, monkeypatch):
    """As when decoding: many programs a query, some of which see nothing, and their outputs merged."""
    # Not while collecting: kernels cannot be imported with shapes checked.
    from ordinate.attention import fused_plans
    from ordinate.attention.fused_tiles import key_shares

    counts = []
    monkeypatch.setattr(
        fused_plans, "key_shares", lambda *known: counts.append(key_shares(*known)) or counts[-1]
    )
    sizes = Sizes(q_len, k_len=150, heads=2, kv_heads=1, batch=2)
    check(Case(bias, mask, sizes=sizes, device=str(device)))
    assert counts == [4]


@pytest.mark.usefixtures("_poisoned_memory")
@pytest.mark.parametrize(("q_len", "k_len", "batch"), [(0, 5, 1), (5, 0, 1), (0, 0, 1), (5, 5, 0)])
@pytest.mark.parametrize("bias", ["none", "sum_of_all"])
def test_nothing_to_attend_from_or_to_gives_zeros_of_the_right_shape(bias, q_len, k_len, batch, device):
    case = Case(bias, "full", sizes=Sizes(q_len, k_len, batch), device=str(device))
    leaves = case.leaves()
    out, lse = ordinate.attention(**case.arguments(leaves), return_lse=True, impl="fused")
    torch.testing.assert_close(out, torch.zeros(batch, 2, q_len, 16, device=device))
    torch.testing.assert_close(lse, torch.full((batch, 2, q_len), -math.inf, device=device))
    for name, gradient in results(leaves, (out, lse)).items():
        if name.startswith("grad"):
            torch.testing.assert_close(gradient, torch.zeros_like(gradient), msg=name)


@pytest.fixture
def _bfloat16_products(monkeypatch):
    """Triton's interpreter keeps bfloat16 as bits, and would multiply matrices of bits."""
    import numpy
    from triton import language
    from triton.runtime import interpreter

    def as_float32(x):
        if x.dtype.scalar != language.bfloat16:
            return x
        bits = x.data.view(numpy.uint16).astype(numpy.uint32) << 16
        return interpreter.TensorHandle(bits.view(numpy.float32), language.float32)

    builder = interpreter.InterpreterBuilder
    multiply = builder.create_dot
    monkeypatch.setattr(
        builder,
        "create_dot",
        lambda self, a, b, *rest: multiply(self, as_float32(a), as_float32(b), *rest),
    )


@pytest.mark.usefixtures("_poisoned_memory", "_bfloat16_products")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("bias", "mask"),
    [
        ("none", "full"),
        ("line", "causal"),
        ("t5_both_ways", "window"),
        ("sum", "causal"),
        ("both_rows", "full"),
    ],
)
def test_low_precision_is_at_most_twice_as_wrong_as_plain_pytorch(bias, mask, dtype, device):
    check(Case(bias, mask, sizes=SIZES["grouped"], dtype=dtype, device=str(device)))


@pytest.mark.usefixtures("_poisoned_memory")
@pytest.mark.parametrize(
    ("bias", "softcap"), [("none", 0.7), ("none", 50.0), ("sum_of_all", 300.0)]
)  # far into the bend, and close to a straight line
def test_softcap_bounds_the_content_and_not_the_bias(bias, softcap, device):
    check(Case(bias, "causal", device=str(device)), softcap=softcap)


@pytest.mark.parametrize("scale", [0.0, -0.3])
def test_scale_multiplies_the_content_and_whatever_is_scaled_with_it(scale, device):
    check(Case("sum_of_all", "causal", sizes=Sizes(33, 33), device=str(device)), scale=scale)


@pytest.mark.parametrize("causal", [False, True])
def test_a_window_wider_than_any_sequence_hides_nothing(causal, device):
    case = Case("none", "causal" if causal else "full", sizes=Sizes(20, 20), device=str(device))
    arguments = case.arguments(case.leaves())
    expected = ordinate.attention(**arguments, impl="fused")
    for window in (20, 2**31 - 1, 2**40):
        out = ordinate.attention(**arguments, window=window, impl="fused")
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("bias", ["none", "kerple"])
@pytest.mark.parametrize(("q_len", "k_len", "heads"), [(1, 63, 1), (40, 200, 4)])
@pytest.mark.parametrize("segment", [0, 1])
def test_queries_whose_segment_lies_before_their_window_see_nothing(
    segment, q_len, k_len, heads, bias, device
):
    sizes = Sizes(q_len, k_len, batch=1, heads=heads, kv_heads=heads, head_dim=16, v_dim=16)
    segments = {
        "q_segment_ids": torch.full((1, q_len), segment, device=device),
        "k_segment_ids": (torch.arange(k_len, device=device) >= 16).long()[None],
    }
    check(Case(bias, "causal", sizes=sizes, device=str(device)), window=4, **segments)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_the_default_dtype_changes_nothing(dtype, device):
    case = Case("sum_of_all", "causal", sizes=Sizes(20, 20), device=str(device))
    leaves = case.leaves()

    def found():
        out, lse = ordinate.attention(**case.arguments(leaves), return_lse=True, impl="fused")
        return torch.autograd.grad(out.sin().sum() + lse.sum(), list(leaves.values()))

    expected = found()
    torch.set_default_dtype(dtype)
    try:
        again = found()
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(again, expected, rtol=0, atol=0)


# Encodings as users have them; the matrix above builds its biases by hand.
ENCODINGS = {
    "ALiBi": lambda: ALiBi(4),
    "ALiBi trainable": lambda: ALiBi(4, trainable=True),
    "ALiBi symmetric and trainable": lambda: ALiBi(4, symmetric=True, trainable=True),
    "ALiBi, a slice of its heads": lambda: ALiBi(8, heads=slice(2, 6)),
    "T5": lambda: T5Bias(4, 8, 20),
    "T5 both ways": lambda: T5Bias(4, 8, 20, bidirectional=True),
    "clipped": lambda: ClippedBias(4, 6),
    "clipped longer than the sequence": lambda: ClippedBias(4, 90),
    "Shaw": lambda: Shaw(16, 3),
    "RoPE and T5": lambda: Combined(ordinate.RoPE(16), T5Bias(4, 8, 20)),
    "Shaw, T5 and ALiBi": lambda: Combined(Shaw(16, 3), T5Bias(4, 8, 20), ALiBi(4, trainable=True)),
}


def _named(encoding, q, k, v):
    names = [name for name, _ in encoding.named_parameters()]
    return {"q": q, "k": k, "v": v, **dict(zip(names, encoding.parameters(), strict=True))}


def _check_encoding(encoding, sizes: Sizes, device, **options):
    case = Case("none", sizes=sizes, device=str(device))
    content = case.leaves()
    encoding = encoding.to(device)
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.normal_()  # tables start as zeros, which would hide a wrong row
    double = copy.deepcopy(encoding).double()

    def run(encoding, leaves, impl):
        leaves = {name: leaf.detach().requires_grad_() for name, leaf in leaves.items()}
        named = _named(encoding, *leaves.values())
        out = ordinate.attention(
            *leaves.values(), encoding, return_lse=True, impl=impl, **options
        )  # fmt: skip
        return results(named, out)

    found = run(encoding, content, "fused")
    rough = run(encoding, content, "reference")
    exact = run(double, {name: leaf.double() for name, leaf in content.items()}, "reference")
    assert_at_most_twice_as_wrong(found, exact, rough)


@pytest.mark.parametrize("name", ENCODINGS)
def test_encodings_train_through_the_kernels(name, device):
    _check_encoding(
        ENCODINGS[name](), Sizes(33, 33, heads=4, kv_heads=2), device, causal="both" not in name
        and "symmetric" not in name,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["T5", "Shaw, T5 and ALiBi"])
def test_encodings_take_positions_through_the_kernels(name, device):
    positions = torch.arange(33, device=device) * 2 + 2**20
    _check_encoding(
        ENCODINGS[name](), Sizes(33, 33, heads=4), device, causal=True, q_positions=positions
    )


def _in_order(case, leaves):
    torch.use_deterministic_algorithms(True)
    try:
        outputs = ordinate.attention(**case.arguments(leaves), return_lse=True, impl="fused")
        return results(leaves, outputs)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("positions", ["shuffled", "repeated"])
@pytest.mark.parametrize("bias", ["t5_both_ways", "row", "row_of_keys", "both_rows", "sum_of_all"])
def test_gradients_at_positions_that_are_data_have_an_order_on_request(bias, positions, device):
    """Also where distances repeat within a row; on a GPU, the same bits every time."""
    sizes = Sizes(35, 21, heads=2, kv_heads=1, batch=2)
    case = Case(bias, "full", positions, sizes, device=str(device))
    leaves = case.leaves()
    first, second = (_in_order(case, leaves) for _ in range(2))
    for name, found in first.items():
        torch.testing.assert_close(second[name], found, rtol=0, atol=0)
    rough = results(leaves, plain(case.arguments(leaves), case.dtype))
    assert_at_most_twice_as_wrong(first, exact_results(case, leaves), rough)


@pytest.mark.parametrize("bias", ["kerple", "t5_both_ways"])
@pytest.mark.parametrize("positions", ["aligned", "indices_as_data", "rows_of_keys"])
def test_the_rounding_of_the_output_does_not_reach_the_gradient_of_a_table(bias, positions, device):
    """It is the same for a whole row, and would stay in a sum over pairs: 1e-4 and more, where 1e-5 is the limit."""
    sizes = Sizes(67, 67, batch=2, heads=2, kv_heads=1)
    case = Case(bias, "full", positions, sizes, torch.float16, str(device))
    leaves = case.leaves()
    outputs = ordinate.attention(**case.arguments(leaves), return_lse=True, impl="fused")
    found, exact = results(leaves, outputs), exact_results(case, leaves)
    for name in leaves.keys() - {"q", "k", "v"}:
        wanted = exact[f"grad of {name}"]
        worst = (found[f"grad of {name}"].double() - wanted).abs().max() / wanted.abs().max()
        assert worst < 1e-5, name


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("options", [{"window": 9}, {}], ids=["window", "short"])
@pytest.mark.parametrize("size", [1.0, 1e4])
def test_entries_that_no_pair_sees_get_no_gradient_at_all(size, options, dtype, device):
    """Optimizers that divide by the size of a gradient would move them as far as any other, by rounding alone."""
    q, k, v = (torch.randn(1, 2, 35, 16).to(device, dtype) for _ in range(3))
    encoding = ordinate.ClippedBias(2, 40).to(device)
    torch.nn.init.normal_(encoding.weight, std=size)
    out, lse = ordinate.attention(
        q, k, v, encoding, causal=True, return_lse=True, impl="fused", **options
    )
    (out.float().square().sum() + lse.sum()).backward()
    assert encoding.weight.grad is not None
    seen = torch.zeros(81, dtype=torch.bool, device=device)
    seen[40 : 40 + options.get("window", 35)] = True  # from distance 0 on
    assert encoding.weight.grad[seen].any()
    assert not encoding.weight.grad[~seen].any()


def _packed(sequences, heads, head_dim, device) -> Tensor:
    return torch.randn(sum(sequences), heads, head_dim).to(device).requires_grad_()


@pytest.mark.usefixtures("_poisoned_memory")
@pytest.mark.parametrize("window", [None, 11])
@pytest.mark.parametrize("name", ["T5", "Shaw, T5 and ALiBi"])
def test_packed_sequences_see_themselves_alone(name, window, device):
    q_lens, k_lens = (19, 0, 1, 20), (19, 3, 17, 20)
    encoding = ENCODINGS[name]().to(device)
    leaves = {
        "q": _packed(q_lens, 4, 16, device),
        "k": _packed(k_lens, 2, 16, device),
        "v": _packed(k_lens, 2, 8, device),
    }
    starts = [torch.tensor([0, *lens]).cumsum(0).to(device) for lens in (q_lens, k_lens)]

    def run(leaves, encoding, impl):
        out = ordinate.attention_varlen(
            *leaves.values(), *starts, encoding, causal=True, window=window, return_lse=True, impl=impl
        )
        return results({**leaves, **dict(encoding.named_parameters())}, out)

    double = {name: leaf.detach().double().requires_grad_() for name, leaf in leaves.items()}
    exact = run(double, copy.deepcopy(encoding).double(), "reference")
    rough = run(leaves, encoding, "reference")
    assert_at_most_twice_as_wrong(run(leaves, encoding, "fused"), exact, rough)


def _dropped_weights(case: Case, leaves: dict, p: float) -> Tensor:
    """With the identity for values the weights after dropout are the output itself."""
    s = case.sizes
    eye = torch.eye(s.k_len, device=case.device).expand(s.batch, s.kv_heads, s.k_len, s.k_len)
    arguments = case.arguments({**leaves, "v": eye}, dropout_p=p)
    torch.manual_seed(11)
    return ordinate.attention(**arguments, impl="fused").detach()


@pytest.mark.parametrize(
    ("bias", "positions"), [("sum_of_all", "aligned"), ("sum_of_all", "shuffled"), ("line", "aligned")]
)
def test_the_backward_pass_drops_what_the_forward_pass_dropped(bias, positions, device):
    sizes = Sizes(35, 39, batch=1, heads=2, kv_heads=1, v_dim=8)
    case, p = Case(bias, "causal", positions, sizes, device=str(device)), 0.4
    leaves = case.leaves()
    full, dropped = (_dropped_weights(case, leaves, p) for p in (0.0, p))
    keep = torch.where(dropped != 0, 1 / (1 - p), 0.0)
    torch.testing.assert_close(dropped, full * keep, rtol=1e-5, atol=1e-7)

    def dense(dtype):
        moved = {name: leaf.detach().to(dtype).requires_grad_() for name, leaf in leaves.items()}
        eye = torch.eye(sizes.k_len, device=device, dtype=dtype).expand(1, 1, -1, -1)
        weights, lse = plain(case.arguments({**moved, "v": eye}), dtype)
        return results(moved, ((weights * keep) @ moved["v"].repeat_interleave(2, dim=1), lse))

    torch.manual_seed(11)
    outputs = ordinate.attention(
        **case.arguments(leaves, dropout_p=p), return_lse=True, impl="fused"
    )  # fmt: skip
    found = results(leaves, outputs)
    assert_at_most_twice_as_wrong(found, dense(torch.float64), dense(torch.float32))


def test_the_share_dropped_is_the_probability_asked_for_and_every_row_drops_its_own(device):
    case = Case("none", "full", sizes=Sizes(40, 64, batch=2, heads=2, kv_heads=1), device=str(device))
    kept = (_dropped_weights(case, case.leaves(), 0.3) != 0).double().cpu()
    deviation = math.sqrt(0.3 * 0.7 / kept.numel())
    torch.testing.assert_close(kept.mean().item(), 0.7, atol=5 * deviation, rtol=0.0)
    # Two independent rows of 64 agree in 37, give or take 4; the same row would agree in 64.
    rows = kept.flatten(0, 2)
    agreement = rows @ rows.T + (1 - rows) @ (1 - rows).T
    agreement.fill_diagonal_(37)
    torch.testing.assert_close(agreement, torch.full_like(agreement, 37), atol=24, rtol=0.0)


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
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def _call(device, batch=1, dtype=torch.float32, head_dim=8, v_dim=8, bias=None):
    q = torch.randn(batch, 2, 5, head_dim, device=device, dtype=dtype)
    v = torch.randn(batch, 2, 5, v_dim, device=device, dtype=dtype)
    return {"q": q, "k": q, "v": v, "bias": bias}


def _endless(device) -> dict:
    q = torch.zeros(1, 1, 1, 8, device=device)
    keys = q.expand(1, 1, 65_535 * 32 + 1, 8)
    return {"q": q, "k": keys, "v": keys}


def _biases(device) -> dict[str, ordinate.Bias]:
    at = positions_of("aligned", Sizes(5, 5)).on(device)
    features, rows = torch.randn(1, 2, 5, 3, device=device), torch.randn(2, 4, 3, device=device)
    table = DistanceBias(torch.randn(2, 4, device=device), at.queries, at.keys, lo=0)
    row = RowBias(features, rows, at.queries, at.keys, lo=0)
    key_row = RowBias(features, rows, at.queries, at.keys, lo=0, side="key")
    moved = DistanceBias(torch.randn(2, 4, device=device), at.queries + 1, at.keys, lo=0)
    long = DistanceBias(torch.randn(2, 600, device=device), at.queries, at.keys, lo=-90)
    return {
        "values": RowBias(
            features, rows, at.queries, at.keys, lo=0, values=torch.randn(2, 4, 8).to(device)
        ),
        "several": SumBias((table, row, table)),
        "rows of queries": SumBias((row, key_row, row)),
        "rows of keys": SumBias((key_row, row, key_row)),
        "moved": SumBias((moved, row)),
        "long": SumBias((long, key_row)),
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
        (lambda d: _call(d, bias=_biases(d)["moved"]), "share their position tensors"),
        (
            lambda d: _call(d, bias=_biases(d)["long"]),
            "rows would have to be as long as .* of the sum, 600",
        ),
        (_endless, "lengths are at most 2097120, not 2097121"),
    ],
)
def test_what_the_kernels_cannot_do_is_refused_with_the_reason(make, reason, device):
    arguments = make(device)
    with pytest.raises(NotImplementedError, match=f"impl='fused' cannot do this call: .*{reason}"):
        ordinate.attention(**arguments, impl="fused")
    assert any(re.search(reason, why) for why in ordinate.explain(**arguments).reasons["fused"])


def _operator_arguments(case: Case, *, requires_grad: bool, p: float = 0.0) -> tuple:
    """What `fused.run` passes on."""
    from ordinate.attention import api, fused

    leaves = {name: leaf.detach().requires_grad_(requires_grad) for name, leaf in case.leaves().items()}
    call = api._prepare(**case.arguments(leaves))
    terms, mask = fused.gather_terms(call.parts, call.scale), call.mask
    biases = [
        None if x is None else x.detach().requires_grad_(requires_grad)
        for x in (terms.slopes, terms.table, terms.key, terms.row, terms.key_row)
    ]
    seed = torch.tensor(7, dtype=torch.int32, device=case.device) if p else None
    return (
        call.q, call.k, call.v, *biases, terms.q_positions, terms.k_positions,
        mask.q_index, mask.k_index, mask.q_segments, mask.k_segments, mask.key_padding, seed,
        terms.symmetric, terms.aligned, terms.lo, mask.causal, mask.window, call.scale, None, p,
    )  # fmt: skip


_OPERATOR_CASES = [
    ("none", "causal", "aligned", "[batch, seq, heads, head_dim]", 0.3),
    ("sum_of_all", "all_at_once", "gaps", "channels and heads apart", 0.0),
    ("row_of_keys", "full", "aligned", "[seq, batch, heads, head_dim]", 0.0),
]


@pytest.mark.slow
@pytest.mark.parametrize(("bias", "mask", "positions", "view", "p"), _OPERATOR_CASES)
def test_operators_pass_opcheck(bias, mask, positions, view, p, device):
    from ordinate.attention import fused_op  # registers them; not while collecting

    case = Case(bias, mask, positions, Sizes(20, 20), device=str(device))
    for requires_grad in (True, False):
        q, k, v, *rest = _operator_arguments(case, requires_grad=requires_grad, p=p)
        q, k, v = (_views(x.detach())[view].requires_grad_(requires_grad) for x in (q, k, v))
        torch.library.opcheck(
            torch.ops.ordinate.fused_attention.default, (q, k, v, *rest), rtol=1e-4, atol=1e-5
        )
    out, lse = fused_op.forward(q, k, v, *rest)
    for grad_lse in (None, torch.randn_like(lse)):
        wanted = [x is not None for x in rest[:5]]
        torch.library.opcheck(
            torch.ops.ordinate.fused_attention_backward.default,
            (torch.randn_like(out), grad_lse, out, lse, q, k, v, *rest, *wanted),
        )


@pytest.mark.slow
def test_compiles_without_breaks_and_once_for_all_lengths(device):
    torch._dynamo.reset()
    encoding = T5Bias(2, 8, 20).to(device)
    torch.nn.init.normal_(encoding.weight)

    def step(q, k, v):
        return ordinate.attention(q, k, v, encoding, causal=True, impl="fused")

    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")

    def run(step, length):
        torch.manual_seed(length)
        content = [torch.randn(1, 2, length, 16, device=device, requires_grad=True) for _ in range(3)]
        out = step(*content)
        return (out, *torch.autograd.grad(out.sin().sum(), (*content, encoding.weight)))

    with torch._dynamo.config.patch(error_on_recompile=True):
        for length in (18, 33, 20):
            torch.testing.assert_close(run(compiled, length), run(step, length))


@pytest.mark.parametrize(
    "bias", ["line", "line_symmetric", "t5_both_ways", "kerple", "gates", "row_of_keys"]
)
def test_what_a_bias_learns_is_free_of_the_rounding_of_the_output(bias):
    """The output is rounded to float16; sums of thousands of logits' gradients are not off by that."""
    sizes = Sizes(q_len=70, k_len=70, batch=2, heads=2, kv_heads=2, head_dim=16, v_dim=16)
    case = Case(bias, "causal", sizes=sizes, dtype=torch.float16)
    leaves = case.leaves()
    double = {name: leaf.detach().double().requires_grad_() for name, leaf in leaves.items()}
    learned = [name for name in leaves if name not in ("q", "k", "v")]
    found, exact = (
        torch.autograd.grad(out, [given[name] for name in learned], pull.to(out.dtype))
        for given, impl in ((leaves, "fused"), (double, "reference"))
        for out in [ordinate.attention(**case.arguments(given), impl=impl)]
        for pull in [torch.randn(out.shape, generator=torch.Generator().manual_seed(7)).half()]
    )
    for name, ours, wanted in zip(learned, found, exact, strict=True):
        error = float((ours.double() - wanted).abs().max() / wanted.abs().max())
        assert error < 1e-5, f"{name} is off by {error:.1e} of the largest"
