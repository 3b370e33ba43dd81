"""``torch.func`` and second derivatives: by an implementation that has them, or refused with its name."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call, grad, jacrev, jvp, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

import ordinate

# PyTorch's own forward-mode formulas for these.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

ENCODINGS = {
    "none": ordinate.NoPE,
    "rotation": lambda: ordinate.RoPE(4),
    "rotation and line": lambda: ordinate.Combined(ordinate.RoPE(4), ordinate.ALiBi(2)),
    "learned line": lambda: ordinate.ALiBi(2, trainable=True),
    "table": lambda: ordinate.T5Bias(2, num_buckets=4, max_distance=4),
    "clipped table": lambda: ordinate.ClippedBias(2, 3),
    "rows and values": lambda: ordinate.Shaw(4, 2, values=True),
}
POSITIONS = torch.tensor([[0, 1, 2, 3, 4], [3, 9, 10, 11, 30]])


class Attend(torch.nn.Module):
    def __init__(self, name: str, positions: torch.Tensor | None, impl: str = "auto") -> None:
        super().__init__()
        self.encoding = ENCODINGS[name]().double()
        for parameter in self.encoding.parameters():
            torch.nn.init.normal_(parameter)
        self.positions, self.impl = positions, impl

    def forward(self, q, k, v):
        return ordinate.attention(
            q, k, v, self.encoding, causal=True, impl=self.impl,
            q_positions=self.positions, k_positions=self.positions,
        )  # fmt: skip

    def loss(self, given: dict[str, torch.Tensor], q, k, v):
        """Of third degree in its output, so that its derivatives are not constant."""
        return functional_call(self, given, (q, k, v)).pow(3).sum()


def content() -> list[torch.Tensor]:
    return [torch.randn(2, 2, 5, 4, dtype=torch.float64) for _ in range(3)]


def derivatives(loss, leaves: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """First derivatives, and those of the sum of their squares, by plain autograd."""
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    options = {"materialize_grads": True}
    first = torch.autograd.grad(loss(*leaves), leaves, create_graph=True, **options)
    second = torch.autograd.grad(sum(x.pow(2).sum() for x in first), leaves, **options)
    return [x.detach() for x in first], list(second)


@pytest.mark.parametrize("positions", [None, POSITIONS], ids=["in order", "given"])
@pytest.mark.parametrize("name", ENCODINGS)
def test_transforms_give_what_autograd_gives(name, positions):
    attend, inputs = Attend(name, positions), content()
    learned = {key: value.detach() for key, value in attend.named_parameters()}

    def loss(*leaves):
        return attend.loss(dict(zip(learned, leaves[3:], strict=True)), *leaves[:3])

    leaves = [*inputs, *learned.values()]
    every = tuple(range(len(leaves)))
    attend.impl = "reference"
    first, second = derivatives(loss, leaves)
    plain = attend(*inputs).detach()
    attend.impl = "auto"

    torch.testing.assert_close(list(grad(loss, every)(*leaves)), first)
    torch.testing.assert_close(list(vjp(loss, *leaves)[1](torch.ones((), dtype=torch.float64))), first)

    def squares(*leaves):
        return sum(x.pow(2).sum() for x in grad(loss, every)(*leaves))

    torch.testing.assert_close(list(grad(squares, every)(*leaves)), second)
    tangent = torch.randn_like(inputs[0])
    _, along = jvp(lambda q: grad(loss)(q, *leaves[1:]), (inputs[0],), (tangent,))
    assert along.shape == tangent.shape

    stacked = [torch.stack([leaf, 2 * leaf]) for leaf in leaves]
    torch.testing.assert_close(vmap(attend)(*stacked[:3])[0], plain)
    torch.testing.assert_close([x[0] for x in vmap(grad(loss, every))(*stacked)], first)


# Its way through PyTorch's kernel is a loop, and PyTorch says so.
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", ENCODINGS)
def test_a_jacobian_is_that_of_each_output(name):
    attend, (q, k, v) = Attend(name, POSITIONS), content()
    found = jacrev(lambda q: attend(q, k, v)[:, 0, :, 0])(q)
    attend.impl = "reference"
    leaf = q.clone().requires_grad_()
    (expected,) = torch.autograd.grad(attend(leaf, k, v)[1, 0, 3, 0], leaf)
    torch.testing.assert_close(found[1, 3], expected)


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_layer_is_a_function_of_its_parameters(name):
    layer = ordinate.MultiHeadAttention(8, 2, encoding=ENCODINGS[name]()).double()
    x, learned = torch.randn(3, 5, 8, dtype=torch.float64), dict(layer.named_parameters())

    def loss(given, x):
        return functional_call(layer, given, (x,)).pow(2).sum()

    given = {key: value.detach() for key, value in learned.items()}
    expected = torch.autograd.grad(layer(x).pow(2).sum(), list(learned.values()), materialize_grads=True)
    torch.testing.assert_close(list(grad(loss)(given, x).values()), list(expected))
    of_each = vmap(grad(loss), (None, 0))(given, x[:, None])
    torch.testing.assert_close([g.sum(0) for g in of_each.values()], list(expected))


@pytest.mark.parametrize("name", ENCODINGS)
def test_packed_sequences_are_transformed(name):
    encoding = ENCODINGS[name]().double()

    def loss(q):
        starts = torch.tensor([0, 2, 5])  # made within the transform, which then holds it too
        return ordinate.attention_varlen(q, q, q, starts, encoding=encoding, causal=True).pow(3).sum()

    rows = torch.randn(3, 5, 2, 4, dtype=torch.float64)
    leaves = [row.clone().requires_grad_() for row in rows]
    expected = [torch.autograd.grad(loss(leaf), leaf)[0] for leaf in leaves]
    torch.testing.assert_close(torch.stack([grad(loss)(row) for row in rows]), torch.stack(expected))
    torch.testing.assert_close(vmap(grad(loss))(rows), torch.stack(expected))


def test_explain_says_what_a_transform_gets():
    q, k, v = content()
    seen = {}

    def attend(name, encoding):
        def run(q):
            seen[name] = ordinate.explain(q, k, v, encoding, causal=True)
            return ordinate.attention(q, k, v, encoding, causal=True).sum()

        return run

    line, none = ordinate.ALiBi(2), None
    grad(attend("grad of a biased call", line))(q)
    grad(attend("grad", none))(q)
    vmap(attend("vmap", none))(q[:, None].expand(-1, 2, -1, -1, -1))
    grad(lambda q: grad(attend("second", none))(q).sum())(q)
    assert {name: explanation.chosen for name, explanation in seen.items()} == {
        "grad of a biased call": "reference", "grad": "sdpa", "vmap": "reference", "second": "reference",
    }  # fmt: skip
    assert seen["grad of a biased call"].reasons["chunked"] == [
        "its operator has no rules for torch.func"
    ]
    assert "its kernels have no second derivatives and no rules for torch.func.vmap" in str(seen["vmap"])
    assert ordinate.explain(q, k, v, line, causal=True).chosen == "chunked"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("impl", "encoding"), [("sdpa", None), ("chunked", ordinate.ALiBi(2))])
def test_second_derivatives_are_refused_with_the_implementation_that_has_them(impl, encoding, dtype):
    q = torch.randn(1, 2, 4, 2, dtype=dtype, requires_grad=True)
    out = ordinate.attention(q, q, q, encoding, causal=True, impl=impl)
    first = torch.autograd.grad(out.sum(), q, create_graph=True)[0]
    # A graph of the gradients does not change them, nor is it refused while nobody goes back through it.
    torch.testing.assert_close(first.detach(), torch.autograd.grad(out.sum(), q)[0])
    with pytest.raises(NotImplementedError, match=f"impl must be 'reference' .* got '{impl}'"):
        torch.autograd.grad(first.sum(), q)


def test_second_derivatives_by_pytorchs_plain_operations_are_not_refused():
    q = torch.randn(1, 2, 4, 2, dtype=torch.float64, requires_grad=True)
    with sdpa_kernel(SDPBackend.MATH):
        out = ordinate.attention(q, q, q, causal=True, impl="sdpa")
    first = torch.autograd.grad(out.pow(3).sum(), q, create_graph=True)[0]
    found = torch.autograd.grad(first.pow(2).sum(), q)
    _, expected = derivatives(
        lambda q: ordinate.attention(q, q, q, causal=True, impl="reference").pow(3).sum(), [q]
    )
    torch.testing.assert_close(list(found), expected)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rotations_are_transformed_and_differentiated_twice(layout):
    rope = ordinate.RoPE(8, rotary_dim=4, layout=layout)
    q, k = torch.randn(2, 2, 2, 5, 8, dtype=torch.float64)

    def loss(q):
        return rope.rotate(q, k, POSITIONS, POSITIONS)[0].pow(3).sum()

    (first,), (second,) = derivatives(loss, [q])
    torch.testing.assert_close(grad(loss)(q), first)
    torch.testing.assert_close(grad(lambda q: grad(loss)(q).pow(2).sum())(q), second)
    plain = rope.rotate(q, k, POSITIONS, POSITIONS)
    many = vmap(lambda q, at: rope.rotate(q, k, at, at))(
        torch.stack([q, q]), torch.stack([POSITIONS] * 2)
    )
    torch.testing.assert_close([x[1] for x in many], list(plain))
    jacobian = jacrev(lambda q: rope.rotate(q, k, POSITIONS, POSITIONS)[0][1, 0, 4])(q)
    torch.testing.assert_close((jacobian * q).sum((1, 2, 3, 4)), plain[0][1, 0, 4])


def test_learned_codes_check_positions_that_vmap_holds():
    learned = ordinate.Learned(6, 4)
    x, at = torch.randn(3, 1, 5, 4), torch.arange(5) + torch.tensor([[[0]], [[1]], [[0]]])
    expected = torch.cat([learned.embed(x[row], at[row]) for row in range(3)])
    torch.testing.assert_close(vmap(learned.embed)(x, at)[:, 0], expected)
    with pytest.raises(ValueError, match=r"positions must be .*, got 6"):
        vmap(learned.embed)(x, at + 1)


def test_a_cache_takes_padding_that_vmap_holds():
    layer = ordinate.MultiHeadAttention(8, 2)
    x, padding = torch.randn(3, 2, 5, 8), torch.arange(5) < torch.tensor([[[0]], [[1]], [[2]]])

    def step(x, padding):
        cache = ordinate.KVCache()
        layer(x, cache=cache, key_padding_mask=padding.expand(2, -1))
        return layer(x, cache=cache)

    torch.testing.assert_close(vmap(step)(x, padding)[1], step(x[1], padding[1]))


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("encoding", [None, ordinate.ALiBi(2)])
def test_masked_calls_are_functionalized(impl, encoding):
    def attend(q):
        return ordinate.attention(q, q, q, encoding, causal=True, window=3, impl=impl)

    q = torch.randn(1, 2, 6, 8)
    torch.testing.assert_close(torch.func.functionalize(attend)(q), attend(q))
