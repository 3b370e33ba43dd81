"""The fused kernels against `reference` in float64: outputs, logsumexps and the gradient of every input."""

from __future__ import annotations

import copy
import math

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
    results,
)
from torch import Tensor

import ordinate
from ordinate import ALiBi, ClippedBias, Combined, Shaw, T5Bias

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


@pytest.mark.usefixtures("_poisoned_memory")
@pytest.mark.parametrize(
    ("bias", "mask", "positions"),
    [("none", "causal", "aligned"), ("t5_both_ways", "window", "gaps"), ("line", "causal_window", "aligned"),
     ("clipped", "full", "aligned"), ("every_distance", "causal", "aligned"), ("kerple", "padding", "shuffled"),
     ("both_rows", "segments", "aligned"), ("row", "all_at_once", "gaps"), ("sum", "causal", "aligned"),
     ("sum_of_all", "interleaved_segments", "rows_of_their_own"), ("sum_of_every_distance", "full", "aligned")],
)  # fmt: skip
def test_one_loop_for_all_tiles_as_float32_has_it_where_it_is_compiled(
    bias, mask, positions, device, monkeypatch
):
    from ordinate.attending.fused import call as fused_launch

    monkeypatch.setattr(fused_launch, "tells_tiles_apart", lambda dtype: False)
    check(Case(bias, mask, positions, Sizes(40, 50, kv_heads=1), device=str(device)))


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
    from ordinate.attending.fused import plans as fused_plans
    from ordinate.attending.fused.tiles import key_shares

    counts = []
    monkeypatch.setattr(
        fused_plans, "key_shares", lambda *known: counts.append(key_shares(*known)) or counts[-1]
    )
    sizes = Sizes(q_len, k_len=150, heads=2, kv_heads=1, batch=2)
    check(Case(bias, mask, sizes=sizes, device=str(device)))
    assert counts == [4]


@pytest.mark.usefixtures("_poisoned_memory")
@pytest.mark.parametrize(
    ("q_len", "k_len", "batch", "mask"),
    [(0, 5, 1, "full"), (5, 0, 1, "full"), (0, 0, 1, "full"), (5, 5, 0, "full"), (5, 5, 0, "segments")],
)
@pytest.mark.parametrize("bias", ["none", "sum_of_all"])
def test_nothing_to_attend_from_or_to_gives_zeros_of_the_right_shape(
    bias, q_len, k_len, batch, mask, device
):
    case = Case(bias, mask, sizes=Sizes(q_len, k_len, batch), device=str(device))
    leaves = case.leaves()
    out, lse = ordinate.attention(**case.arguments(leaves), return_lse=True, impl="fused")
    torch.testing.assert_close(out, torch.zeros(batch, 2, q_len, 16, device=device))
    torch.testing.assert_close(lse, torch.full((batch, 2, q_len), -math.inf, device=device))
    for name, gradient in results(leaves, (out, lse)).items():
        if name.startswith("grad"):
            torch.testing.assert_close(gradient, torch.zeros_like(gradient), msg=name)


@pytest.mark.usefixtures("_poisoned_memory")
def test_values_without_channels_leave_the_logsumexp_and_its_gradients(device):
    check(Case("sum_of_all", "causal", sizes=Sizes(37, 37, v_dim=0), device=str(device)))


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
        ("every_distance", "causal"),
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bias", "positions"),
    [("t5_both_ways", "aligned"), ("every_distance", "aligned"), ("t5_both_ways", "shuffled")],
)
def test_a_table_whose_gradient_is_the_sum_of_many(bias, positions, device):
    """Three sequences of nine tiles: 24 runs along diagonals, or 27 tables in order, 16 of them loaded at a time."""
    sizes = Sizes(130, 130, batch=3, heads=1, kv_heads=1)
    case = Case(bias, "full", positions, sizes, device=str(device))
    leaves = case.leaves()
    rough = results(leaves, plain(case.arguments(leaves), case.dtype))
    assert_at_most_twice_as_wrong(_in_order(case, leaves), exact_results(case, leaves), rough)


@pytest.mark.parametrize("positions", ["aligned", "indices_as_data"])
@pytest.mark.parametrize(
    "bias", ["line", "line_symmetric", "t5_both_ways", "kerple", "gates", "row_of_keys"]
)
def test_what_a_bias_learns_is_free_of_the_rounding_of_the_output(bias, positions):
    """The output is rounded to float16; sums of thousands of logits' gradients are not off by that."""
    sizes = Sizes(q_len=70, k_len=70, batch=2, heads=2, kv_heads=2, head_dim=16, v_dim=16)
    case = Case(bias, "causal", positions, sizes, torch.float16)
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
@pytest.mark.parametrize(
    ("q_lens", "k_lens"), [((19, 0, 1, 20), (19, 3, 17, 20)), ((19, 0, 1, 70), None)]
)
def test_packed_sequences_see_themselves_alone(q_lens, k_lens, name, window, device):
    starts = [
        None if lens is None else torch.tensor([0, *lens]).cumsum(0).to(device)
        for lens in (q_lens, k_lens)
    ]
    k_lens = k_lens or q_lens
    encoding = ENCODINGS[name]().to(device)
    leaves = {
        "q": _packed(q_lens, 4, 16, device),
        "k": _packed(k_lens, 2, 16, device),
        "v": _packed(k_lens, 2, 8, device),
    }

    def run(leaves, encoding, impl):
        out = ordinate.attention_varlen(
            *leaves.values(), *starts, encoding, causal=True, window=window, return_lse=True, impl=impl
        )
        return results({**leaves, **dict(encoding.named_parameters())}, out)

    double = {name: leaf.detach().double().requires_grad_() for name, leaf in leaves.items()}
    exact = run(double, copy.deepcopy(encoding).double(), "reference")
    rough = run(leaves, encoding, "reference")
    assert_at_most_twice_as_wrong(run(leaves, encoding, "fused"), exact, rough)
