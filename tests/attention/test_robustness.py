"""What attention must survive: uninitialised memory, odd strides, autocast, inference mode, long inputs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from attention_cases import BIASES, MASKS, Shape, gradients, leaves_of
from fused_cases import check_merged_results_of_queries_that_see_nothing

import ordinate
from ordinate.attending import work

IMPLEMENTATIONS = ["reference", "chunked", "sdpa"]


@pytest.fixture(autouse=True)
def _several_blocks(monkeypatch):
    monkeypatch.setitem(work._LOGITS_PER_BLOCK, "cpu", 1)


def pass_through(impl: str, bias: str, mask: str, dtype=torch.float32, change=lambda t: t):
    """Output and gradients of one call on fixed inputs."""
    torch.manual_seed(2)
    case, shape = BIASES["none" if impl == "sdpa" else bias], Shape()
    leaves = leaves_of(case, shape, dtype)
    leaves = {name: change(leaf.detach()).requires_grad_() for name, leaf in leaves.items()}
    out = ordinate.attention(
        leaves["q"], leaves["k"], leaves["v"], bias=case.build(leaves, shape), impl=impl,
        **MASKS["causal" if impl == "sdpa" else mask].arguments(shape),
    )  # fmt: skip
    return {"out": out.detach(), **gradients(leaves, out)}


def _poison(function):
    def poisoned(*args, **kwargs):
        made = function(*args, **kwargs)
        return made.fill_(torch.nan) if made.is_floating_point() else made

    return poisoned


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("bias", ["none", "distance", "row_values_shared", "sum_mixing_scaled"])
def test_memory_that_starts_as_nan_leaves_results_as_they_are(bias, impl, dtype, monkeypatch):
    clean = pass_through(impl, bias, "causal_window", dtype)
    monkeypatch.setattr(torch, "empty", _poison(torch.empty))
    monkeypatch.setattr(torch, "empty_like", _poison(torch.empty_like))
    monkeypatch.setattr(torch.Tensor, "new_empty", _poison(torch.Tensor.new_empty))
    torch.testing.assert_close(pass_through(impl, bias, "causal_window", dtype), clean, rtol=0, atol=0)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rotation_fills_all_the_memory_it_takes(dtype, layout, monkeypatch):
    q, k = torch.randn(2, 1, 2, 70, 8).to(dtype)
    rope = ordinate.RoPE(8, rotary_dim=4, layout=layout)
    clean = rope.rotate(q, k)
    monkeypatch.setattr(torch, "empty_like", _poison(torch.empty_like))
    torch.testing.assert_close(rope.rotate(q, k), clean, rtol=0, atol=0)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("bias", ["none", "linear_symmetric", "distance", "row_values_shared", "key"])
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda t: t.mT.contiguous().mT if t.dim() > 1 else t, id="columns_first"),
        pytest.param(
            lambda t: t.transpose(0, -2).contiguous().transpose(0, -2) if t.dim() > 1 else t,
            id="as_models_hold_them",
        ),
        pytest.param(lambda t: torch.stack((t, t), dim=-1)[..., 0], id="every_other_element"),
        pytest.param(lambda t: torch.cat((t, t), dim=-1)[..., : t.shape[-1]], id="a_slice"),
    ],
)
def test_strides_do_not_matter(change, bias, impl):
    expected, actual = (
        pass_through(impl, bias, "causal"),
        pass_through(impl, bias, "causal", change=change),
    )
    for name in expected:
        # Sums may run in another order over other strides.
        rounding = 64 * torch.finfo(torch.float32).eps * float(expected[name].abs().max())
        torch.testing.assert_close(actual[name], expected[name], rtol=0.0, atol=rounding)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_an_expanded_batch_is_read_without_a_copy_of_its_own(impl):
    q, k, v = (torch.randn(1, 2, 20, 8).expand(3, -1, -1, -1) for _ in range(3))
    out = ordinate.attention(q, k, v, causal=True, impl=impl)
    torch.testing.assert_close(out, out[:1].expand_as(out), rtol=0.0, atol=0.0)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("bias", ["none", "distance", "row_values_per_head"])
def test_inputs_are_untouched_bit_for_bit(bias, impl):
    case, shape = BIASES["none" if impl == "sdpa" else bias], Shape()
    leaves = leaves_of(case, shape, torch.float32)
    before = {name: leaf.detach().clone() for name, leaf in leaves.items()}
    out = ordinate.attention(
        leaves["q"], leaves["k"], leaves["v"], bias=case.build(leaves, shape), causal=True, impl=impl
    )
    gradients(leaves, out)
    for name, leaf in leaves.items():
        torch.testing.assert_close(leaf.detach(), before[name], rtol=0.0, atol=0.0)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_autocast_does_not_reach_into_attention(impl):
    q, k, v = (torch.randn(1, 2, 20, 8) for _ in range(3))
    encoding = None if impl == "sdpa" else ordinate.Combined(ordinate.RoPE(8), ordinate.Shaw(8, 3))
    expected = ordinate.attention(q, k, v, encoding, causal=True, impl=impl)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = ordinate.attention(q, k, v, encoding, causal=True, impl=impl)
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=0.0)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: ordinate.ALiBi(7), id="alibi"),
        pytest.param(lambda: ordinate.T5Bias(7, num_buckets=10, max_distance=21), id="t5"),
        pytest.param(
            lambda: ordinate.RoPE(
                8,
                sections=(2, 1, 1),
                scaling=ordinate.scaling.LongRoPE((1, 1, 1, 1.7), (2, 2, 2, 2.7), 4),
            ),
            id="longrope",
        ),
    ],
)
def test_constants_first_made_in_inference_mode_serve_training_later(make, monkeypatch):
    monkeypatch.setattr(ordinate.numerics, "_constants", {})
    encoding = make()
    q, k, v = (torch.randn(1, 7, 12, 8, requires_grad=True) for _ in range(3))
    with torch.inference_mode():
        expected = ordinate.attention(q, k, v, encoding, causal=True).clone()
    assert ordinate.numerics._constants
    assert not any(made.is_inference() for made in ordinate.numerics._constants.values())
    out = ordinate.attention(q, k, v, encoding, causal=True)
    out.sum().backward()
    torch.testing.assert_close(out, expected)


def test_a_bias_type_that_only_knows_its_matrix_gets_the_reference():
    class Diagonal(ordinate.Bias):
        scaled, causal_only, heads, shape = False, False, 2, (1, 5, 5)

        def dense(self):
            return torch.eye(5).expand(1, 2, 5, 5)

        def tensors(self):
            return []

    q, k, v = (torch.randn(1, 2, 5, 8) for _ in range(3))
    explanation = ordinate.explain(q, k, v, bias=Diagonal())
    assert explanation.chosen == "reference"
    assert explanation.reasons["chunked"] == [
        "Diagonal does not define block",
        "Diagonal does not define pullback",
    ]
    logits = q @ k.transpose(-1, -2) / 8**0.5 + torch.eye(5)
    torch.testing.assert_close(ordinate.attention(q, k, v, bias=Diagonal()), logits.softmax(-1) @ v)


def test_explain_tells_the_choice_and_every_reason_without_computing():
    q, k, v = (torch.randn(1, 2, length, 8) for length in (3, 5, 5))
    explanation = ordinate.explain(
        q, k, v, ordinate.T5Bias(2), causal=True, window=4, softcap=5.0, return_lse=True,
        q_segment_ids=torch.zeros(1, 3, dtype=torch.int64),
        k_segment_ids=torch.zeros(1, 5, dtype=torch.int64),
    )  # fmt: skip
    assert explanation.chosen == "chunked"
    assert explanation.reasons["sdpa"] == [
        "a bias (DistanceBias) would have to be a dense mask",
        "softcap is not among its arguments",
        "return_lse is not among its results",
        "window would have to be a dense mask",
        "segments would have to be a dense mask",
        "a causal mask with 3 queries and 5 keys would have to be dense",
    ]
    lines = str(explanation).splitlines()
    assert lines.count("chunked    chosen") == 1
    assert lines.count("reference  would do, not preferred") == 1
    assert sum(line.startswith("sdpa       no: ") for line in lines) == 6
    assert repr(explanation) == str(explanation)


def test_explain_of_a_named_implementation_says_whether_it_is_obeyed():
    q = k = v = torch.randn(1, 2, 5, 8)
    assert ordinate.explain(q, k, v, impl="sdpa").chosen == "sdpa"
    assert ordinate.explain(q, k, v, impl="reference").chosen == "reference"
    assert ordinate.explain(q, k, v, ordinate.ALiBi(2), causal=True, impl="sdpa").chosen is None


@pytest.mark.parametrize(
    ("arguments", "chosen"),
    [
        ({}, "sdpa"),
        ({"causal": True}, "sdpa"),
        ({"causal": True, "window": 3}, "chunked"),
        ({"softcap": 2.0}, "chunked"),
        ({"return_lse": True}, "chunked"),
    ],
    ids=str,
)
def test_auto_takes_the_first_that_can(arguments, chosen):
    q = k = v = torch.randn(1, 2, 5, 8)
    assert ordinate.explain(q, k, v, **arguments).chosen == chosen
    auto = ordinate.attention(q, k, v, **arguments)
    named = ordinate.attention(q, k, v, **arguments, impl=chosen)
    torch.testing.assert_close(auto, named, rtol=0.0, atol=0.0)


_MEMORY = """
import resource, sys, torch, ordinate
torch.manual_seed(0)
q, k, v = (torch.randn(1, 8, 16384, 64, requires_grad=True) for _ in range(3))
t5 = ordinate.T5Bias(8)
warm = [t.detach()[:, :, :64].clone().requires_grad_() for t in (q, k, v)]
ordinate.attention(*warm, t5, causal=True, impl="chunked").sum().backward()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ordinate.attention(q, k, v, t5, causal=True, impl="chunked").sum().backward()
assert all(t.grad.isfinite().all() for t in (q, k, v, t5.weight))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20)
"""


@pytest.mark.slow
def test_a_biased_pass_of_16384_tokens_and_its_gradients_fit_in_a_gibibyte_and_a_half():
    # The matrix of logits alone would be 8 GiB.
    done = subprocess.run(
        [sys.executable, "-c", _MEMORY], capture_output=True, text=True, check=True,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
    )  # fmt: skip
    assert float(done.stdout) < 1.5, f"{done.stdout.strip()} GiB above the inputs"


@pytest.mark.parametrize("impl", ["reference", "chunked"])
def test_merged_results_of_queries_that_see_nothing_pull_at_no_key(impl):
    check_merged_results_of_queries_that_see_nothing(impl, torch.device("cpu"))
