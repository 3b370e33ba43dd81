"""The fused kernels compiled and run: every bias kind × mask, dtype and head_dim, on a CUDA device.

Error at most twice that of plain PyTorch in the same dtype, both against float64, for outputs and
all gradients.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from fused_cases import BIASES, MASKS, POSITIONS, Case, Sizes, check, results

import ordinate
from ordinate import PositionEncoding

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.plain,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none"),
]

# Of each kind one; what differs in numbers alone (the ends of a table) shares its kernels.
KINDS = (
    "none", "line", "line_symmetric", "t5_both_ways", "kerple", "gates", "row", "row_of_keys", "both_rows", "sum",
    "sum_of_all",
)  # fmt: skip
HEAD_DIMS = (32, 64, 80, 96, 128, 256)
# bfloat16 with both masks, the others in turn: compiling dominates, and dtypes share all of the source.
TYPES = [
    *((torch.bfloat16, head_dim, mask) for head_dim in HEAD_DIMS for mask in ("full", "causal")),
    *((torch.float16, head_dim, ("full", "causal")[i % 2]) for i, head_dim in enumerate(HEAD_DIMS)),
    *((torch.float32, head_dim, ("causal", "full")[i % 2]) for i, head_dim in enumerate(HEAD_DIMS)),
]


def _name(value: object) -> str:
    return str(value).removeprefix("torch.")


def _sizes(head_dim: int) -> Sizes:
    """Lengths that end inside of a tile and are longer than the widest one."""
    return Sizes(q_len=201, k_len=201, batch=2, heads=2, kv_heads=1, head_dim=head_dim, v_dim=head_dim)


@pytest.mark.parametrize(("dtype", "head_dim", "mask"), TYPES, ids=_name)
@pytest.mark.parametrize("bias", KINDS)
def test_every_bias_in_every_dtype_and_head_dim(bias, mask, dtype, head_dim):
    check(Case(bias, mask, sizes=_sizes(head_dim), dtype=dtype, device="cuda"))


def _in_turn() -> list[tuple[str, str, torch.dtype, int]]:
    """Every bias under every mask, in dtypes and head dims that change, so that every mask meets all of them too."""
    dtypes = (torch.bfloat16, torch.float16, torch.float32)
    masks = sorted(set(MASKS) - {"full", "causal"})
    return [
        (bias, mask, dtypes[(i + 2 * j) % 3], HEAD_DIMS[(i + j) % 6])
        for i, bias in enumerate(KINDS)
        for j, mask in enumerate(masks)
    ]


@pytest.mark.parametrize(("bias", "mask", "dtype", "head_dim"), _in_turn(), ids=_name)
def test_every_bias_under_every_mask(bias, mask, dtype, head_dim):
    check(Case(bias, mask, sizes=_sizes(head_dim), dtype=dtype, device="cuda"))


def _rest_of_the_product() -> list[tuple[str, str, torch.dtype, int]]:
    """Bias kind × mask × dtype × head_dim without what the two tests above have: half an hour of a large machine.

    `whole_product.py` runs them, or ``ORDINATE_WHOLE_PRODUCT`` in the environment; ``-k`` with a dtype, a mask or a
    bias runs a part.
    """
    if "ORDINATE_WHOLE_PRODUCT" not in os.environ:
        return []
    elsewhere = {(bias, mask, dtype, dim) for bias in KINDS for dtype, dim, mask in TYPES} | set(
        _in_turn()
    )
    dtypes = (torch.bfloat16, torch.float16, torch.float32)
    return [case for case in itertools.product(KINDS, MASKS, dtypes, HEAD_DIMS) if case not in elsewhere]


@pytest.mark.parametrize(("bias", "mask", "dtype", "head_dim"), _rest_of_the_product(), ids=_name)
def test_the_whole_product(bias, mask, dtype, head_dim):
    check(Case(bias, mask, sizes=_sizes(head_dim), dtype=dtype, device="cuda"))


@pytest.mark.parametrize("bias", KINDS)
def test_every_bias_under_all_masks_at_once_in_float32(bias):
    check(Case(bias, "all_at_once", sizes=_sizes(64), dtype=torch.float32, device="cuda"))


@pytest.mark.parametrize("bias", sorted(set(BIASES) - set(KINDS)))
def test_tables_that_end_elsewhere(bias):
    check(Case(bias, "full", sizes=_sizes(64), dtype=torch.bfloat16, device="cuda"))


@pytest.mark.parametrize("mask", ["full", "causal", "segments", "padding"])
@pytest.mark.parametrize("bias", ["t5_both_ways", "clipped"])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_tables_of_which_few_tiles_are_looked_up(head_dim, bias, mask):
    """Without segments and padding, some kernels take these few in parts."""
    sizes = replace(_sizes(head_dim), q_len=401, k_len=401)
    check(Case(bias, mask, sizes=sizes, dtype=torch.bfloat16, device="cuda"))


@pytest.mark.parametrize("positions", sorted(set(POSITIONS)))
@pytest.mark.parametrize("bias", ["line_symmetric", "kerple", "row", "row_of_keys", "sum_of_all"])
def test_positions_are_data_whatever_their_order(bias, positions):
    check(Case(bias, "full", positions, _sizes(64), torch.bfloat16, "cuda"))


@pytest.mark.parametrize("mask", ["segments", "all_at_once"])
@pytest.mark.parametrize("bias", ["line", "t5_both_ways", "both_rows", "sum_of_all"])
def test_wide_heads_of_tokens_that_are_told_much_of(bias, mask):
    """Their keys and values leave little shared memory for positions, segments and padding."""
    check(Case(bias, mask, "gaps", _sizes(128), torch.bfloat16, "cuda"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=_name)
@pytest.mark.parametrize("q_len", [201, 3])
@pytest.mark.parametrize("bias", ["line", "line_symmetric", "sum_of_all"])
def test_documents_far_apart_in_one_tile_keep_the_distances_within_them(bias, q_len, dtype):
    document = torch.arange(201, device="cuda") >= 100
    check(
        Case(bias, "causal", "two_documents", replace(_sizes(64), q_len=q_len), dtype, "cuda"),
        q_segment_ids=document[-q_len:], k_segment_ids=document,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("q_len", "k_len"),
    [(1, 1), (1, 300), (300, 1), (64, 64), (65, 129), (256, 512), (333, 77), (190, 333)],
)
@pytest.mark.parametrize("causal", ["full", "causal"])
@pytest.mark.parametrize("bias", ["none", "every_distance", "sum", "sum_of_all"])
def test_lengths_that_fill_their_tiles_or_do_not(bias, causal, q_len, k_len):
    sizes = Sizes(q_len, k_len, batch=1, heads=4, kv_heads=2, head_dim=64, v_dim=64)
    check(Case(bias, causal, sizes=sizes, dtype=torch.bfloat16, device="cuda"))


@pytest.mark.parametrize(("q_len", "k_len"), [(1501, 1613), (1613, 1501)])
@pytest.mark.parametrize("mask", ["full", "causal", "causal_window"])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_programs_of_a_tables_gradient_that_have_many_tiles(head_dim, mask, q_len, k_len):
    """With many heads there are programs enough, and each goes along its diagonal for long."""
    sizes = Sizes(q_len, k_len, batch=1, heads=64, kv_heads=64, head_dim=head_dim, v_dim=head_dim)
    check(Case("every_distance", mask, sizes=sizes, dtype=torch.bfloat16, device="cuda"))


@pytest.mark.parametrize(("head_dim", "v_dim"), [(64, 128), (128, 64), (8, 40), (192, 128)])
def test_values_have_a_head_dim_of_their_own(head_dim, v_dim):
    sizes = Sizes(130, 130, head_dim=head_dim, v_dim=v_dim)
    check(Case("t5_both_ways", "causal", sizes=sizes, dtype=torch.bfloat16, device="cuda"))


@pytest.mark.parametrize("softcap", [0.7, 30.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_softcap(dtype, softcap):
    check(Case("clipped", "causal", sizes=_sizes(64), dtype=dtype, device="cuda"), softcap=softcap)


@pytest.mark.parametrize("bias", ["line", "kerple", "both_rows", "sum_of_all"])
def test_aligned_positions_give_the_same_bits_every_time(bias):
    case = Case(bias, "causal", sizes=_sizes(64), dtype=torch.bfloat16, device="cuda")
    leaves = case.leaves()
    runs = [
        results(leaves, ordinate.attention(**case.arguments(leaves), return_lse=True, impl="fused"))
        for _ in range(5)
    ]
    for again in runs[1:]:
        for name, wanted in runs[0].items():
            torch.testing.assert_close(again[name], wanted, rtol=0, atol=0, msg=name)


def test_more_heads_than_a_grid_has_room_for_along_its_second_axis():
    """Small windows bring large batches, and 65,535 programs are the most along that axis."""
    sizes = Sizes(16, 16, batch=21_850, heads=3, kv_heads=3, head_dim=16, v_dim=16)
    check(Case("clipped", "full", sizes=sizes, dtype=torch.bfloat16, device="cuda"))


# Heads that share keys lie in one tile, 16 rows of it at most: all of 4 queries of 4 heads, not of 7 queries.
@pytest.mark.parametrize(
    ("q_len", "k_len", "kv_heads"),
    [(1, 5000, 4), (1, 5000, 2), (7, 3001, 4), (7, 3001, 2), (4, 3001, 2)],
)
@pytest.mark.parametrize("bias", KINDS)
def test_few_queries_of_many_keys(bias, q_len, k_len, kv_heads):
    sizes = Sizes(q_len, k_len, batch=1, heads=8, kv_heads=kv_heads, head_dim=64, v_dim=64)
    check(Case(bias, "causal", sizes=sizes, dtype=torch.bfloat16, device="cuda"))


@pytest.mark.parametrize("mask", sorted(set(MASKS) - {"causal"}))
@pytest.mark.parametrize("bias", ["none", "sum_of_all"])
def test_few_queries_of_grouped_heads_under_every_mask(bias, mask):
    sizes = Sizes(3, 1501, batch=2, heads=8, kv_heads=2, head_dim=64, v_dim=64)
    check(Case(bias, mask, sizes=sizes, dtype=torch.bfloat16, device="cuda"))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_packed_sequences_wait_for_the_device_once():
    """To look at the starts is to wait; every layer of a model is given the same."""
    q, k, v = (torch.randn(300, 2, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    starts = torch.tensor([0, 100, 300], device="cuda")

    encoding = ordinate.T5Bias(2).to("cuda")

    def attend() -> torch.Tensor:
        return ordinate.attention_varlen(q, k, v, starts, encoding=encoding, causal=True, impl="fused")

    attend()
    torch.cuda.set_sync_debug_mode("error")
    try:
        attend()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    starts[1] = 400
    with pytest.raises(ValueError, match="cu_seqlens_q must rise"):
        attend()


GRAPHED = {
    "none": PositionEncoding,
    "RoPE": lambda: ordinate.RoPE(64),
    "ALiBi": lambda: ordinate.ALiBi(4, trainable=True),
    "T5": lambda: ordinate.T5Bias(4),
    "Shaw": lambda: ordinate.Shaw(64, 16),
    "RoPE and T5": lambda: ordinate.Combined(ordinate.RoPE(64), ordinate.T5Bias(4)),
}


def _captured(step: Callable[[], tuple[torch.Tensor, ...]]):
    """The graph of a step, and the tensors it writes its results to."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(2):  # compiled, and launches kept
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    return graph, results


# Leaves are made on another stream than the one that is captured, as they are in any model.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")
@pytest.mark.parametrize("mask", ["causal", "segments", "padding", "positions", "few queries"])
@pytest.mark.parametrize("name", GRAPHED)
def test_both_passes_can_be_captured_in_a_cuda_graph(name, mask):
    encoding = GRAPHED[name]().to("cuda")
    q, k, v, pull = (torch.randn(2, 4, 150, 64, device="cuda").bfloat16() for _ in range(4))
    if mask == "few queries":
        q, pull = q[:, :, :3].clone(), pull[:, :, :3].clone()
    leaves = [x.requires_grad_() for x in (q, k, v)] + list(encoding.parameters())
    tokens = torch.arange(150, device="cuda")
    options = {
        "segments": {"q_segment_ids": tokens // 60},
        "padding": {"key_padding_mask": tokens < torch.tensor([[0], [20]], device="cuda")},
        "positions": {"q_positions": tokens * 2},
    }

    def step() -> tuple[torch.Tensor, ...]:
        out = ordinate.attention(
            q, k, v, encoding, causal=True, impl="fused", **options.get(mask, {})
        )  # fmt: skip
        return out, *torch.autograd.grad(out, leaves, pull)

    graph, results = _captured(step)
    with torch.no_grad():
        for x in leaves:
            x.copy_(torch.randn_like(x))
    graph.replay()
    # At positions that are data a table's gradient is added up in no fixed order.
    slack = 1e-4 if mask == "positions" else 0.0
    for found, wanted in zip(results, step(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=slack, atol=slack)


def test_a_captured_graph_drops_other_weights_every_time():
    q, k, v = (torch.randn(1, 2, 40, 64, device="cuda").bfloat16() for _ in range(3))
    graph, (out,) = _captured(
        lambda: (ordinate.attention(q, k, v, dropout_p=0.5, impl="fused"),)
    )  # fmt: skip
    graph.replay()
    first = out.clone()
    graph.replay()
    assert not torch.equal(out, first)
