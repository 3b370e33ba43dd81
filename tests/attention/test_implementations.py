"""Every implementation × every bias × every mask: the oracle's numbers, or a refusal with every reason."""

from __future__ import annotations

import pytest
import torch
from attention_cases import (
    BIASES,
    MASKS,
    BiasCase,
    MaskCase,
    Shape,
    as_double,
    assert_as_good_as_plain,
    gradients,
    leaves_of,
    plain,
)

import ordinate
from ordinate.attending import work

LOW = (torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def _several_blocks(monkeypatch):
    """Blocks of 16 queries, the fewest there are, so that short lengths span several of them."""
    monkeypatch.setitem(work._LOGITS_PER_BLOCK, "cpu", 1)


def run(leaves, bias: BiasCase, mask: MaskCase, shape: Shape, impl: str, **options):
    arguments = mask.arguments(shape)
    if bias.causal_only:
        assert arguments.get("causal")
    return ordinate.attention(
        leaves["q"], leaves["k"], leaves["v"], bias=bias.build(leaves, shape), impl=impl,
        **arguments, **options,
    )  # fmt: skip


def check(
    bias: BiasCase,
    mask: MaskCase,
    shape: Shape,
    impl: str,
    dtype: torch.dtype = torch.float32,
    softcap: float | None = None,
    scale: float | None = None,
) -> None:
    """Output, logsumexp and every gradient, through the output alone and through both."""
    leaves = leaves_of(bias, shape, dtype)
    options = {"softcap": softcap, "scale": scale}
    exact_leaves = as_double(leaves)
    exact = plain(exact_leaves, bias, mask, shape, torch.float64, **options)
    rough = plain(leaves, bias, mask, shape, dtype, **options)
    ways = {"reference": (True,), "chunked": (False, True), "sdpa": (False,)}
    for return_lse in ways[impl]:  # chunked has a backward pass of its own for each
        result = run(leaves, bias, mask, shape, impl, return_lse=return_lse, **options)
        out = result[0] if return_lse else result
        assert out.dtype == dtype
        if return_lse:
            assert result[1].dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        results = (
            everything(leaves, result if return_lse else (result,)),
            everything(exact_leaves, exact if return_lse else exact[:1]),
            everything(leaves, rough if return_lse else rough[:1]),
        )
        assert_as_good_as_plain(*results, dtype=dtype)


def everything(leaves, outputs) -> dict[str, torch.Tensor]:
    """Outputs by name, and the gradient of every leaf."""
    named = dict(zip(("out", "lse"), outputs, strict=False))
    found = gradients(leaves, *outputs)
    assert all(found[name].dtype == leaf.dtype for name, leaf in leaves.items())
    return named | {f"grad of {name}": grad for name, grad in found.items()}


def refusals(bias, mask, shape, impl, softcap, scale) -> list[str]:
    """What each implementation must say it cannot do; nothing for those that can do everything."""
    if impl != "sdpa":
        return []
    arguments, reasons = mask.arguments(shape), []
    if bias.name != "none":
        reasons.append("a bias")
    if softcap is not None:
        reasons.append("softcap")
    if "window" in arguments:
        reasons.append("window")
    if "q_segment_ids" in arguments:
        reasons.append("segments")
    if arguments.get("causal"):
        if shape.q_len not in (1, shape.k_len) or shape.k_len == 0:
            reasons.append(f"a causal mask with {shape.q_len} queries and {shape.k_len} keys")
        if scale is not None and scale <= 0:
            reasons.append("its causal kernels give NaN")
        if "key_padding_mask" in arguments:
            reasons.append("key_padding_mask along with a causal mask")
    return reasons


def obeys_or_refuses(bias, mask, shape, impl, dtype=torch.float32, softcap=None, scale=None) -> None:
    """The oracle's numbers, or NotImplementedError with every reason; never a third thing."""
    expected = refusals(bias, mask, shape, impl, softcap, scale)
    if not expected:
        check(bias, mask, shape, impl, dtype, softcap, scale)
        return
    leaves = leaves_of(bias, shape, dtype)
    with pytest.raises(NotImplementedError, match=f"impl='{impl}' cannot do this call") as caught:
        run(leaves, bias, mask, shape, impl, softcap=softcap, scale=scale)
    listed = str(caught.value).split(": ", 1)[1].split("; ")
    assert len(listed) == len(expected)
    for reason, beginning in zip(listed, expected, strict=True):
        assert reason.startswith(beginning)


def pairs_of_bias_and_mask():
    for bias in BIASES.values():
        for mask in MASKS.values():
            if (
                not bias.causal_only
                or "causal" in mask.name
                or mask.name in ("everything", "window_of_one")
            ):
                yield pytest.param(bias, mask, id=f"{bias}-{mask}")


@pytest.mark.parametrize("impl", ["reference", "chunked", "sdpa"])
@pytest.mark.parametrize(("bias", "mask"), list(pairs_of_bias_and_mask()))
def test_every_bias_under_every_mask_equals_the_oracle_or_is_refused_with_every_reason(bias, mask, impl):
    obeys_or_refuses(bias, mask, Shape(), impl)


@pytest.mark.parametrize("impl", ["reference", "chunked", "sdpa"])
@pytest.mark.parametrize(
    "mask", ["full", "causal", "causal_window", "segments", "left_padding_and_causal"]
)
@pytest.mark.parametrize("bias", ["none", "linear_symmetric", "distance", "key", "row_values_shared"])
@pytest.mark.parametrize(("q_len", "k_len"), [(1, 33), (18, 37), (37, 18), (37, 1)])
def test_unequal_lengths_are_aligned_to_the_bottom_right(bias, mask, q_len, k_len, impl):
    # With more queries than keys, a causal mask leaves the first rows with nothing to see.
    obeys_or_refuses(BIASES[bias], MASKS[mask], Shape(q_len=q_len, k_len=k_len), impl)


@pytest.mark.parametrize("impl", ["reference", "chunked", "sdpa"])
@pytest.mark.parametrize("mask", ["full", "causal", "causal_window", "segments"])
@pytest.mark.parametrize("bias", ["none", "linear_symmetric", "distance", "key", "sum_mixing_scaled"])
@pytest.mark.parametrize(
    "sizes", [{"q_len": 0}, {"k_len": 0}, {"q_len": 0, "k_len": 0}, {"batch": 0}], ids=str
)
def test_nothing_to_attend_from_or_to_gives_zeros_of_the_right_shape(bias, mask, sizes, impl):
    obeys_or_refuses(BIASES[bias], MASKS[mask], Shape(**sizes), impl)


@pytest.mark.parametrize("impl", ["reference", "chunked", "sdpa"])
@pytest.mark.parametrize("mask", ["full", "causal", "causal_window", "everything_padded_in_one_row"])
@pytest.mark.parametrize("bias", sorted(set(BIASES) - {"linear"}))
@pytest.mark.parametrize("dtype", [torch.float64, *LOW], ids=str)
def test_every_dtype_is_at_most_twice_as_wrong_as_plain_pytorch(bias, mask, dtype, impl):
    obeys_or_refuses(BIASES[bias], MASKS[mask], Shape(), impl, dtype)


@pytest.mark.parametrize("impl", ["reference", "chunked", "sdpa"])
@pytest.mark.parametrize("bias", sorted(set(BIASES) - {"linear"}))
@pytest.mark.parametrize(
    "sizes",
    [
        {"heads": 6, "kv_heads": 1},
        {"heads": 6, "kv_heads": 3},
        {"heads": 3, "kv_heads": 3},
        {"heads": 1, "kv_heads": 1, "batch": 1},
        {"v_dim": 5},
        {"v_dim": 13, "head_dim": 3},
    ],
    ids=str,
)
def test_grouped_heads_and_another_value_dimension(bias, sizes, impl):
    obeys_or_refuses(BIASES[bias], MASKS["causal"], Shape(**sizes), impl)


@pytest.mark.parametrize("impl", ["reference", "chunked", "sdpa"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mask", ["full", "everything"])
@pytest.mark.parametrize("bias", ["none", "distance", "sum_mixing_scaled", "row_values_per_head"])
def test_softcap_bounds_the_content_and_not_the_bias(bias, mask, dtype, impl):
    obeys_or_refuses(BIASES[bias], MASKS[mask], Shape(), impl, dtype, softcap=0.7)


@pytest.mark.parametrize("impl", ["reference", "chunked", "sdpa"])
@pytest.mark.parametrize("bias", ["none", "linear_scaled", "distance", "row_query", "sum_mixing_scaled"])
@pytest.mark.parametrize("scale", [1.0, 0.0, -0.3])
def test_scale_multiplies_the_content_and_whatever_is_scaled_with_it(bias, scale, impl):
    obeys_or_refuses(BIASES[bias], MASKS["causal"], Shape(), impl, scale=scale)


def _positions(kind: str, shape: Shape) -> dict[str, torch.Tensor]:
    b, q, k = shape.batch, shape.q_len, shape.k_len
    later = torch.arange(q)[None] + 2**20, torch.arange(k)[None] + 2**20 - 3
    kinds = {
        "offset": later,
        "negative": (torch.arange(q)[None] - 50, torch.arange(k)[None] - 40),
        "repeated": (torch.arange(q)[None] // 3, torch.arange(k)[None] // 3),
        "gaps": (torch.arange(q)[None] * 2, torch.arange(k)[None] * 2 + 1),
        "shuffled": (torch.randperm(q)[None], torch.randperm(k)[None]),
        "per_row": (
            torch.arange(q) + torch.tensor([[0], [9]]),
            torch.arange(k) + torch.tensor([[4], [7]]),
        ),
        "per_row_gaps": (torch.randint(-9, 99, (b, q)), torch.randint(-9, 99, (b, k))),
        "queries_per_row": (torch.arange(q) + torch.tensor([[0], [9]]), torch.arange(k)[None]),
        "keys_per_row": (torch.arange(q)[None], torch.arange(k) + torch.tensor([[4], [7]])),
        "consecutive_queries_only": (torch.arange(q)[None], torch.randperm(k)[None]),
    }
    queries, keys = kinds[kind]
    return {"q_positions": queries, "k_positions": keys}


@pytest.mark.parametrize("impl", ["reference", "chunked"])
@pytest.mark.parametrize(
    "bias", [name for name in BIASES if name not in ("none", "key", "linear", "row_values_shared")]
)
@pytest.mark.parametrize(
    "kind",
    [
        "offset",
        "negative",
        "repeated",
        "gaps",
        "shuffled",
        "per_row",
        "per_row_gaps",
        "queries_per_row",
        "keys_per_row",
        "consecutive_queries_only",
    ],
)
def test_positions_are_data_whatever_their_order(kind, bias, impl):
    shape = Shape(q_len=21, k_len=35)
    check(BIASES[bias], MASKS["causal"], Shape(q_len=21, k_len=35, **_positions(kind, shape)), impl)


@pytest.mark.parametrize("impl", ["reference", "chunked"])
@pytest.mark.parametrize("bias", ["key", "row_query", "row_key_shared", "row_values_shared"])
def test_a_bias_of_one_row_serves_the_whole_batch(bias, impl):
    case, shape = BIASES[bias], Shape()
    leaves = leaves_of(case, shape, torch.float64)
    for name in ("vector", "features"):
        if name in leaves:
            leaves[name] = leaves[name].detach()[:1].requires_grad_()
    wide = {
        name: leaf.expand(shape.batch, *leaf.shape[1:]) if name in ("vector", "features") else leaf
        for name, leaf in leaves.items()
    }
    exact = everything(leaves, plain(wide, case, MASKS["causal"], shape, torch.float64)[:1])
    out = run(leaves, case, MASKS["causal"], shape, impl)
    assert_as_good_as_plain(everything(leaves, (out,)), exact, exact, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bias", ["none", "linear_symmetric", "distance", "row_values_shared"])
def test_the_size_of_a_block_changes_nothing_but_rounding(bias, dtype, monkeypatch):
    case, mask, shape = BIASES[bias], MASKS["causal_window"], Shape(q_len=301, k_len=333)
    leaves = leaves_of(case, shape, dtype)
    results = []
    for budget in (1, 2**13, 2**40):  # blocks of 16, of some, of all 256 queries
        monkeypatch.setitem(work._LOGITS_PER_BLOCK, "cpu", budget)
        results.append(everything(leaves, (run(leaves, case, mask, shape, "chunked"),)))
    exact_leaves = as_double(leaves)
    exact = everything(exact_leaves, (run(exact_leaves, case, mask, shape, "reference"),))
    for result in results:
        assert_as_good_as_plain(result, exact, results[0], dtype=dtype)
