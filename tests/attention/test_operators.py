"""The custom operators and the FlexAttention export, as PyTorch itself checks and runs them."""

from __future__ import annotations

import warnings

import pytest
import torch
from attention_cases import BIASES, MASKS, Shape, leaves_of
from torch.nn.attention.flex_attention import flex_attention

import ordinate
from ordinate.attending.work import Work

pytestmark = pytest.mark.plain  # both trace the library, which shape checks would get in the way of


def operator_arguments(bias: str, mask: str, *, softcap=None, dropout_p=0.0, requires_grad=True):
    """What `chunked.run` passes on, for a small call."""
    case, shape = BIASES[bias], Shape(q_len=5, k_len=7)
    leaves = {
        name: leaf.detach().requires_grad_(requires_grad)
        for name, leaf in leaves_of(case, shape, torch.float32).items()
    }
    given = MASKS[mask].arguments(shape)
    built = case.build(leaves, shape)
    masks = [None, None, *(given.get(n) for n in ("q_segment_ids", "k_segment_ids", "key_padding_mask"))]
    return (
        leaves["q"],
        leaves["k"],
        leaves["v"],
        *(([], [], "") if built is None else built.flattened()),
        masks,
        given.get("causal", False),
        given.get("window"),
        2,
        0.5,
        softcap,
        dropout_p,
        torch.tensor(7) if dropout_p else None,
    )


@pytest.mark.parametrize(
    ("bias", "mask", "options"),
    [
        ("none", "causal", {}),
        ("none", "full", {"requires_grad": False}),
        ("linear", "causal_window", {"softcap": 3.0}),
        ("distance", "everything", {"dropout_p": 0.3}),
        ("row_values_shared", "padding", {}),
        ("sum_mixing_scaled", "segments", {}),
    ],
)
def test_the_forward_operator_passes_opcheck(bias, mask, options):
    torch.library.opcheck(
        torch.ops.ordinate.chunked.default,
        operator_arguments(bias, mask, **options),
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize("with_lse", [False, True])
@pytest.mark.parametrize(
    ("bias", "mask"), [("none", "causal"), ("distance", "everything"), ("row_values_shared", "padding")]
)
def test_the_backward_operator_passes_opcheck(bias, mask, with_lse):
    arguments = operator_arguments(bias, mask, requires_grad=False)
    out, lse = torch.ops.ordinate.chunked(*arguments)
    grad_lse = torch.randn_like(lse) if with_lse else None
    torch.library.opcheck(
        torch.ops.ordinate.chunked_backward.default,
        (torch.randn_like(out), grad_lse, out, lse, *arguments, bias != "none"),
    )


@pytest.mark.parametrize("scale", [0.2, None])
@pytest.mark.parametrize("bias", [name for name in BIASES if name not in ("none", "row_values_shared")])
def test_score_mod_in_flex_attention_equals_our_attention(bias, scale):
    case, shape = BIASES[bias], Shape(q_len=9, k_len=12, kv_heads=4)
    leaves = {name: leaf.detach() for name, leaf in leaves_of(case, shape, torch.float32).items()}
    built = case.build(leaves, shape)
    if case.value_table is not None:  # acts after the softmax, out of a score_mod's reach
        built = ordinate.RowBias(**{**vars(built), "values": None})
    mod = built.score_mod(8**-0.5 if scale is None else scale)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that flex_attention is slow without torch.compile
        out = flex_attention(leaves["q"], leaves["k"], leaves["v"], score_mod=mod, scale=scale)
    reached = built.causal_only
    expected = chunked_or_dense(leaves, built, scale, causal_allowed=not reached)
    torch.testing.assert_close(out, expected)


def chunked_or_dense(leaves, built, scale, *, causal_allowed: bool):
    """Our attention over all keys; an asymmetric line, which we refuse there, written out instead."""
    if causal_allowed:
        return ordinate.attention(
            leaves["q"], leaves["k"], leaves["v"], bias=built, scale=scale, impl="reference"
        )
    scale = 8**-0.5 if scale is None else scale
    logits = leaves["q"] @ leaves["k"].transpose(-1, -2) * scale + built.dense()
    return logits.softmax(-1) @ leaves["v"]


def test_a_block_is_as_large_as_its_budget_allows_and_never_smaller_than_sixteen_queries():
    arguments = operator_arguments("none", "causal")
    work = Work(*arguments)
    assert [rows.stop - rows.start for rows, _ in work.blocks()] == [5]
