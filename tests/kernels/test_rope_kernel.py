"""The fused rotation against the specification in plain operations, bit for bit."""

from __future__ import annotations

import subprocess
import sys

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from torch import Tensor

from ordinate import RoPE
from ordinate.kernels import rope as kernel
from ordinate.rotate import fused
from ordinate.rotate.pairs import rotate_pairs_reference
from ordinate.rotate.rotation import Rotation

# Triton reads the source of its kernels, which run-time shape checks would have wrapped.
pytestmark = pytest.mark.plain

LAYOUTS = ("half", "interleaved")
DTYPES = (torch.bfloat16, torch.float16, torch.float32)

# batch, q heads, k heads, q_len, k_len, head_dim, pairs, rows of the tables
SHAPES = {
    "grouped queries": (2, 6, 2, 5, 5, 16, 8, 1),
    "one key head": (1, 3, 1, 7, 7, 8, 4, 1),
    "many heads of few tokens": (1, 19, 9, 2, 2, 8, 4, 1),
    "positions of their own in each row": (3, 2, 1, 4, 4, 16, 8, 3),
    "head_dim 80": (1, 2, 1, 3, 3, 80, 40, 1),
    "head_dim 24, a partial turn": (2, 3, 2, 5, 5, 24, 6, 1),
    "head_dim 10, odd in pairs": (1, 2, 2, 9, 9, 10, 5, 1),
    "one pair turns": (1, 2, 1, 3, 3, 7, 1, 1),
    "one query, many keys": (2, 4, 2, 1, 70, 16, 8, 2),
    "more queries than keys": (1, 2, 2, 67, 3, 16, 8, 1),
    "no keys": (1, 2, 0, 3, 3, 8, 4, 1),
    "no tokens": (1, 2, 1, 0, 0, 8, 4, 1),
}


def _tensor(batch, heads, seq, head_dim, dtype, device) -> Tensor:
    """Laid out as projections are: ``[batch, seq, heads, head_dim]`` behind a transpose."""
    return torch.randn(batch, seq, heads, head_dim, device=device).to(dtype).transpose(1, 2)


def _tables(rows, seq, pairs, device) -> fused.Tables:
    angles = torch.randn(rows, seq, pairs, dtype=torch.float64, device=device) * 100
    return (1.1 * angles.cos()).float(), (1.1 * angles.sin()).float()


def _case(name, dtype, device):
    batch, q_heads, k_heads, q_len, k_len, head_dim, pairs, rows = SHAPES[name]
    q = _tensor(batch, q_heads, q_len, head_dim, dtype, device)
    k = _tensor(batch, k_heads, k_len, head_dim, dtype, device)
    return q, k, _tables(rows, q_len, pairs, device), _tables(rows, k_len, pairs, device)


def _round(x: Tensor, dtype: torch.dtype) -> Tensor:
    """float32 to ``dtype`` as the kernel's machine does it: Triton's interpreter cuts bfloat16 off."""
    if dtype == torch.bfloat16 and x.device.type == "cpu":
        x = (x.view(torch.int32) & -0x10000).view(torch.float32)
    return x.to(dtype)


def _expected(x: Tensor, tables: fused.Tables, layout: str, inverse: bool = False) -> Tensor:
    cos, sin = (table[:, None] for table in tables)
    return _round(rotate_pairs_reference(x.float(), cos, -sin if inverse else sin, layout), x.dtype)


def _rotate(q, k, q_tables, k_tables, layout):
    return fused.rotate(q, k, q_tables, k_tables, interleaved=layout == "interleaved")


def assert_equal(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.usefixtures("_poisoned_memory")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_kernel_equals_the_reference_to_the_last_bit_and_leaves_its_inputs_alone(
    name, dtype, layout, device
):
    q, k, q_tables, k_tables = _case(name, dtype, device)
    before = [x.clone() for x in (q, k, *q_tables, *k_tables)]
    q_turned, k_turned = _rotate(q, k, q_tables, k_tables, layout)
    assert_equal(q_turned, _expected(q, q_tables, layout))
    assert_equal(k_turned, _expected(k, k_tables, layout))
    for now, then in zip((q, k, *q_tables, *k_tables), before, strict=True):
        assert_equal(now, then)


@pytest.mark.usefixtures("_poisoned_memory")
@pytest.mark.slow
@hypothesis.settings(max_examples=30)
@hypothesis.given(data=st.data())
def test_kernel_equals_the_reference_at_any_shape(data):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    draw = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    batch, q_heads, k_heads, q_len, k_len = draw(1, 3), draw(1, 9), draw(1, 9), draw(1, 9), draw(1, 9)
    head_dim, rows = draw(2, 40), data.draw(st.sampled_from((1, batch)))
    pairs = draw(1, head_dim // 2)
    layout, dtype = data.draw(st.sampled_from(LAYOUTS)), data.draw(st.sampled_from(DTYPES))
    q = _tensor(batch, q_heads, q_len, head_dim, dtype, device)
    k = _tensor(batch, k_heads, k_len, head_dim, dtype, device)
    q_tables, k_tables = _tables(rows, q_len, pairs, device), _tables(rows, k_len, pairs, device)
    q_turned, k_turned = _rotate(q, k, q_tables, k_tables, layout)
    assert_equal(q_turned, _expected(q, q_tables, layout))
    assert_equal(k_turned, _expected(k, k_tables, layout))


def _views(x: Tensor) -> dict[str, Tensor]:
    _, heads, seq, head_dim = x.shape
    packed = torch.cat((x, x, x), dim=1).transpose(1, 2).contiguous().transpose(1, 2)
    return {
        "[batch, heads, seq, head_dim]": x.contiguous(),
        "[seq, batch, heads, head_dim]": x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3),
        "a slice of packed q, k, v": packed[:, heads : 2 * heads],
        "every other token": x.repeat_interleave(2, dim=2)[:, :, ::2],
        "channels of a wider head": torch.cat((x, x), dim=-1)[..., :head_dim],
        "an odd offset": torch.cat((x[..., :1], x), dim=-1)[..., 1:],
        "channels apart": x.transpose(2, 3).contiguous().transpose(2, 3),
        "one head for all": x[:, :1].expand(-1, heads, -1, -1),
        "one token for all": x[:, :, :1].expand(-1, -1, seq, -1),
    }


@pytest.mark.usefixtures("_poisoned_memory")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("view", _views(torch.empty(1, 1, 1, 2)))
def test_any_strides_give_the_same_numbers(view, layout, device):
    q, k, q_tables, k_tables = _case("grouped queries", torch.float32, device)
    q, k = _views(q)[view], _views(k)[view]
    q_turned, k_turned = _rotate(q, k, q_tables, k_tables, layout)
    assert_equal(q_turned, _expected(q, q_tables, layout))
    assert_equal(k_turned, _expected(k, k_tables, layout))
    assert q_turned.stride(-1) == k_turned.stride(-1) == 1


def test_outputs_keep_the_memory_format_of_projections(device):
    q, k, q_tables, k_tables = _case("grouped queries", torch.float32, device)
    q_turned, k_turned = _rotate(q, k, q_tables, k_tables, "half")
    assert q_turned.stride() == q.stride()
    assert k_turned.stride() == k.stride()
    sliced = _views(q)["a slice of packed q, k, v"]
    assert _rotate(sliced, k, q_tables, k_tables, "half")[0].transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("head_dim", "pairs"), [(16, 8), (24, 6)])
@pytest.mark.parametrize(("block_seq", "block_heads"), [(1, 1), (2, 8), (8, 2), (16, 4)])
def test_every_tiling_gives_the_same_bits_and_writes_nothing_else(
    block_seq, block_heads, head_dim, pairs, layout, device
):
    q = _tensor(2, 5, 5, head_dim, torch.float32, device)
    k = _tensor(2, 3, 6, head_dim, torch.float32, device)
    q_tables, k_tables = _tables(1, 5, pairs, device), _tables(2, 6, pairs, device)
    # Outputs inside a larger sheet of sevens: one more token, head and channel on each side.
    sheets = [
        torch.full((2, x.shape[2] + 2, x.shape[1] + 2, head_dim + 2), 7.0).to(device) for x in (q, k)
    ]
    q_out, k_out = (sheet[:, 1:-1, 1:-1, 1:-1].transpose(1, 2) for sheet in sheets)
    kernel.turn(
        q, k, q_out, k_out, *q_tables, *k_tables, interleaved=layout == "interleaved", inverse=False,
        tiling=kernel.Tiling(block_seq, block_heads, num_warps=1),
    )  # fmt: skip
    for x, out, sheet, tables in ((q, q_out, sheets[0], q_tables), (k, k_out, sheets[1], k_tables)):
        assert_equal(out, _expected(x, tables, layout))
        out.fill_(7.0)
        assert_equal(sheet, torch.full_like(sheet, 7.0))


def test_addresses_past_two_billion_elements_are_right(device):
    sheet = torch.empty(
        2**31 + 2**10, dtype=torch.bfloat16, device=device
    )  # touched in a few places only
    x = sheet.as_strided((1, 1, 3, 16), (2**31, 2**31, 2**30, 1))
    x.copy_(torch.randn(1, 1, 3, 16))
    tables = _tables(1, 3, 8, device)
    turned, _ = fused.rotate(x, None, tables, tables, interleaved=False)
    assert_equal(turned, _expected(x, tables, "half"))
    expected = _expected(x, tables, "half")
    fused.rotate_(x, None, tables, tables, interleaved=False)
    assert_equal(x, expected)


@pytest.mark.usefixtures("_poisoned_memory")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "name", ["grouped queries", "head_dim 24, a partial turn", "one query, many keys"]
)
def test_gradient_is_the_opposite_turn_to_the_last_bit(name, dtype, layout, device):
    q, k, q_tables, k_tables = _case(name, dtype, device)
    q.requires_grad_()
    k.requires_grad_()
    outputs = _rotate(q, k, q_tables, k_tables, layout)
    gradients = [torch.randn_like(output) for output in outputs]
    torch.autograd.backward(outputs, gradients)
    assert_equal(q.grad, _expected(gradients[0], q_tables, layout, inverse=True))
    assert_equal(k.grad, _expected(gradients[1], k_tables, layout, inverse=True))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradient_equals_autograd_of_the_reference(layout, device):
    q, k, q_tables, k_tables = _case("head_dim 24, a partial turn", torch.float32, device)
    q.requires_grad_()
    k.requires_grad_()

    def gradients(outputs):
        loss = sum((output * torch.arange(output.numel()).view_as(output)).sum() for output in outputs)
        return torch.autograd.grad(loss, (q, k))

    actual = gradients(_rotate(q, k, q_tables, k_tables, layout))
    plain = [
        rotate_pairs_reference(x, cos[:, None], sin[:, None], layout)
        for x, (cos, sin) in ((q, q_tables), (k, k_tables))
    ]
    for got, wanted in zip(actual, gradients(plain), strict=True):
        assert_equal(got, wanted)


@pytest.mark.parametrize("wanted", ["q", "k"])
def test_only_the_gradient_that_is_asked_for_is_computed(wanted, device, monkeypatch):
    q, k, q_tables, k_tables = _case("grouped queries", torch.float32, device)
    x, tables = (q, q_tables) if wanted == "q" else (k, k_tables)
    x.requires_grad_()
    outputs = _rotate(q, k, q_tables, k_tables, "half")
    launches = _count_launches(monkeypatch)
    # An expanded gradient has no unit stride along the head, and its rows share memory.
    torch.autograd.backward(outputs, [torch.ones((), device=device).expand_as(out) for out in outputs])
    assert_equal(x.grad, _expected(torch.ones_like(x), tables, "half", inverse=True))
    assert launches == [x.shape[1]]


def test_gradient_of_the_gradient_turns_back(device):
    q, k, q_tables, k_tables = _case("grouped queries", torch.float32, device)
    q.requires_grad_()
    gradient = torch.randn_like(q).requires_grad_()
    turned, _ = _rotate(q, k, q_tables, k_tables, "half")
    (first,) = torch.autograd.grad(turned, q, gradient, create_graph=True)
    direction = torch.randn_like(q)
    (second,) = torch.autograd.grad(first, gradient, direction)
    assert_equal(second, _expected(direction, q_tables, "half"))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_in_place_equals_out_of_place(name, dtype, layout, device):
    q, k, q_tables, k_tables = _case(name, dtype, device)
    expected = _expected(q, q_tables, layout), _expected(k, k_tables, layout)
    versions = q._version, k._version
    fused.rotate_(q, k, q_tables, k_tables, interleaved=layout == "interleaved")
    assert_equal(q, expected[0])
    assert_equal(k, expected[1])
    assert (q._version, k._version) == tuple(version + 1 for version in versions)


def test_in_place_is_seen_by_whoever_saved_the_tensor(device):
    q, k, q_tables, k_tables = _case("grouped queries", torch.float32, device)
    weight = torch.ones((), device=device, requires_grad=True)
    product = weight * q  # saves q
    fused.rotate_(q, k, q_tables, k_tables, interleaved=False)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_in_place_works_on_inference_tensors(device):
    with torch.inference_mode():
        q, k, q_tables, k_tables = _case("grouped queries", torch.float32, device)
        expected = _expected(q, q_tables, "half")
        fused.rotate_(q, k, q_tables, k_tables, interleaved=False)
        assert_equal(q, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grouped queries", "head_dim 24, a partial turn", "no keys"])
def test_operators_pass_opcheck(name, device):
    q, k, q_tables, k_tables = _case(name, torch.float32, device)
    tables = (*q_tables, *k_tables)
    for view in (lambda x: x.clone(), lambda x: _views(x)["channels apart"]):
        leaves = [view(x).requires_grad_() for x in (q, k)]
        torch.library.opcheck(torch.ops.ordinate.rotate.default, (*leaves, *tables, True, False))
    torch.library.opcheck(torch.ops.ordinate.rotate_.default, (q, k, *tables, False))


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_compiles_without_breaks_and_once_for_all_lengths(layout, device):
    torch._dynamo.reset()
    compiled = torch.compile(_rotate, fullgraph=True, dynamic=True, backend="aot_eager")

    def run(rotate, length):
        torch.manual_seed(length)
        q = _tensor(2, 4, length, 16, torch.float32, device).requires_grad_()
        k = _tensor(2, 2, length, 16, torch.float32, device).requires_grad_()
        tables = _tables(1, length, 6, device)
        outputs = rotate(q, k, tables, tables, layout)
        sum(output.square().sum() for output in outputs).backward()
        return *outputs, q.grad, k.grad

    with torch._dynamo.config.patch(error_on_recompile=True):
        for length in (5, 9, 16):
            for got, wanted in zip(run(compiled, length), run(_rotate, length), strict=True):
                assert_equal(got, wanted)


def test_in_place_compiles_without_breaks(device):
    torch._dynamo.reset()

    def step(q, k, q_tables, k_tables):
        q, k = q * 2, k * 2
        fused.rotate_(q, k, q_tables, k_tables, interleaved=False)
        return q, k

    case = _case("grouped queries", torch.float32, device)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for got, wanted in zip(compiled(*case), step(*case), strict=True):
        assert_equal(got, wanted)


def _count_launches(monkeypatch) -> list[int]:
    """Of each launch from here on, how many heads it turns."""
    launches: list[int] = []
    turn = kernel.turn

    def counted(q, k, *arguments, **options):
        launches.append(q.shape[1] + k.shape[1])
        turn(q, k, *arguments, **options)

    monkeypatch.setattr(kernel, "turn", counted)
    return launches


def _is_turnable(*tensors: Tensor) -> bool:
    return all(x.dtype in DTYPES and x.dtype == tensors[0].dtype for x in tensors)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rope_turns_q_and_k_in_one_launch(layout, device, monkeypatch):
    launches = _count_launches(monkeypatch)
    monkeypatch.setattr(fused, "supports", _is_turnable)
    encoding = RoPE(24, rotary_dim=12, layout=layout)
    q, k = _tensor(2, 4, 5, 24, torch.bfloat16, device), _tensor(2, 2, 5, 24, torch.bfloat16, device)
    positions = torch.randint(1000, (2, 5), device=device)
    turned = encoding.rotate(q, k, positions)
    tables = encoding.at(positions).cos_sin(torch.float32)
    assert_equal(turned[0], _expected(q, tables, layout))
    assert_equal(turned[1], _expected(k, tables, layout))
    assert launches == [6]


def test_rope_turns_q_and_k_at_positions_of_their_own_in_one_launch(device, monkeypatch):
    launches = _count_launches(monkeypatch)
    monkeypatch.setattr(fused, "supports", _is_turnable)
    encoding = RoPE(16, sections=(4, 2, 2))
    q, k = _tensor(2, 4, 3, 16, torch.float32, device), _tensor(2, 2, 5, 16, torch.float32, device)
    q_positions = torch.randint(1000, (3, 2, 3), device=device)
    k_positions = torch.randint(1000, (3, 1, 5), device=device)
    turned = encoding.rotate(q, k, q_positions, k_positions)
    assert_equal(turned[0], _expected(q, encoding.at(q_positions).cos_sin(torch.float32), "half"))
    assert_equal(turned[1], _expected(k, encoding.at(k_positions).cos_sin(torch.float32), "half"))
    assert launches == [6]


def test_rotation_applies_to_one_tensor_or_in_place_in_one_launch(device, monkeypatch):
    launches = _count_launches(monkeypatch)
    monkeypatch.setattr(fused, "supports", _is_turnable)
    q, k = _tensor(2, 4, 5, 16, torch.float32, device), _tensor(2, 2, 5, 16, torch.float32, device)
    rotation = RoPE(16).at(torch.arange(5, device=device))
    expected = [_expected(x, rotation.cos_sin(torch.float32), "half") for x in (q, k)]
    assert_equal(rotation.apply(q), expected[0])
    results = rotation.apply_both(q, k, inplace=True)
    assert results[0] is q
    assert results[1] is k
    assert_equal(q, expected[0])
    assert_equal(k, expected[1])
    assert launches == [4, 6]


@pytest.mark.parametrize("both", [False, True])
def test_angles_that_learn_are_not_turned_by_the_kernel_which_has_no_gradient_for_them(
    both, device, monkeypatch
):
    angles = torch.randn(1, 5, 4, dtype=torch.float64, device=device, requires_grad=True)
    x = _tensor(1, 2, 5, 8, torch.float32, device)

    def gradient() -> Tensor:
        rotation = Rotation(angles, 1.0, "half", 8)
        turned = rotation.apply_both(x, x.clone())[1] if both else rotation.apply(x)
        return torch.autograd.grad(turned.sum(), angles)[0]

    with monkeypatch.context() as without:
        without.setattr(fused, "supports", lambda *tensors: False)
        expected = gradient()
    launches = _count_launches(monkeypatch)
    monkeypatch.setattr(fused, "supports", _is_turnable)
    torch.testing.assert_close(gradient(), expected)
    with torch.no_grad():
        Rotation(angles, 1.0, "half", 8).apply(x)
    assert launches == [2]


def test_kernel_is_not_chosen_for_float64_mixed_dtypes_or_the_cpu(device):
    q = torch.randn(1, 1, 1, 2, device=device)
    assert fused.supports(q, q) == (device.type == "cuda")
    assert not fused.supports(q.double())
    assert not fused.supports(q, q.bfloat16())
    assert not fused.supports(q.cpu())


def test_tiling_follows_its_rules():
    def choose(batch, heads, seq, head_dim, itemsize=2, pairs=None):
        pairs = head_dim // 2 if pairs is None else pairs
        return kernel.choose_tiling(
            batch=batch, heads=heads, seq=seq, head_dim=head_dim, pairs=pairs, itemsize=itemsize,
            copy_rest=2 * pairs < head_dim,
        )  # fmt: skip

    assert choose(4, 40, 8192, 128) == kernel.Tiling(8, 2, 2)
    assert choose(1, 40, 2048, 128) == kernel.Tiling(8, 2, 2)
    assert choose(4, 40, 8192, 64) == kernel.Tiling(16, 2, 2)
    assert choose(4, 40, 8192, 128, itemsize=4) == kernel.Tiling(4, 2, 2)
    assert choose(4, 40, 8192, 80, pairs=16) == kernel.Tiling(32, 1, 2)  # three tiles a head, one wide
    assert choose(1, 40, 128, 128) == kernel.Tiling(8, 1, 2)  # fewer heads each, for more programs
    assert choose(64, 40, 1, 128) == kernel.Tiling(1, 4, 1)  # decoding


def test_importing_ordinate_imports_no_triton():
    code = "import sys, ordinate; ordinate.RoPE(8); sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
