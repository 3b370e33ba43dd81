"""Rotations on a GPU: every start and length, against angles in float64, without a wait for the device."""

from __future__ import annotations

import copy

import mpmath
import pytest
import torch
from torch import Tensor

import ordinate
from conformance.budgets import assert_within, rotation_budget

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none"),
]

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
ROPES = {
    "plain": ordinate.RoPE(64),
    "partial, in pairs": ordinate.RoPE(96, rotary_dim=32, layout="interleaved"),
    "an odd number of pairs": ordinate.RoPE(70, rotary_dim=22),
    "YaRN": ordinate.RoPE(128, base=1e6, scaling=ordinate.scaling.YaRN(8, 64)),
}


def expected(rope: ordinate.RoPE, x: Tensor, positions: Tensor) -> Tensor:
    """On the CPU in float64, where every angle is made anew."""
    exact, _ = rope.rotate(x.cpu().double(), x.cpu().double(), positions.cpu(), positions.cpu())
    return exact


def check(rope: ordinate.RoPE, found: Tensor, x: Tensor, positions: Tensor) -> None:
    exact = expected(rope, x, positions)
    assert_within(
        found.cpu(), exact, rotation_budget(exact, x.dtype, rope.rotary_dim, rope.layout)
    )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ROPES)
def test_tables_of_any_start_and_length_serve_each_other(name, dtype):
    """Longer ones first, then shorter, then later starts: each is a view of what is there, or made anew."""
    rope = copy.deepcopy(ROPES[name])
    for q_len, k_len in [(257, 257), (31, 31), (1, 31), (3, 258), (129, 257), (513, 513), (1, 1)]:
        q = torch.randn(2, 4, q_len, rope.head_dim, device="cuda").to(dtype)
        k = torch.randn(2, 2, k_len, rope.head_dim, device="cuda").to(dtype)
        turned_q, turned_k = rope.rotate(q, k)
        keys = torch.arange(k_len)
        check(rope, turned_q, q, keys[k_len - q_len :])
        check(rope, turned_k, k, keys)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_turn_back(dtype):
    rope = ROPES["plain"]
    q, k = (torch.randn(1, 2, 77, 64, device="cuda").to(dtype).requires_grad_() for _ in range(2))
    pull = torch.randn(1, 2, 77, 64, device="cuda").to(dtype)
    (turned, _) = rope.rotate(q, k)
    (found,) = torch.autograd.grad(turned, q, pull)
    check(rope, found, pull, -torch.arange(77))


@pytest.mark.parametrize(
    "encoding", [ordinate.RoPE(64), ordinate.Sinusoidal(64)], ids=["RoPE", "Sinusoidal"]
)
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_new_lengths_do_not_wait_for_the_device(encoding):
    """Tables in float64 are made on the device itself: nothing is copied there, and no value is looked at."""
    x = torch.randn(1, 1, 600, 64, device="cuda")
    positions = torch.arange(600, device="cuda")

    def once(length: int) -> None:
        if isinstance(encoding, ordinate.Sinusoidal):
            encoding.embed(x[:, 0, :length])
        else:
            encoding.rotate(x[:, :, :length], x[:, :, :length])
            encoding.rotate(
                x[:, :, :length], x[:, :, :length], positions[:length] + 5, positions[:length] + 5
            )

    once(8)  # constants are brought, kernels compiled
    torch.cuda.set_sync_debug_mode("error")
    try:
        once(300)
        once(600)
        once(299)
    finally:
        torch.cuda.set_sync_debug_mode("default")


FAR = (2**29, 2**32 + 5, 2**40 + 1, 2**53 + 1, 2**62 + 12345, 2**63 - 1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", ROPES)
def test_any_int64_is_a_position(name, compiled):
    rope = ROPES[name]
    positions = torch.tensor([*FAR, *(-p for p in FAR), -(2**63), 7])
    x = torch.randn(1, 2, len(positions), rope.head_dim, device="cuda")

    def turn(x: Tensor, positions: Tensor) -> Tensor:
        return rope.rotate(x, x, positions)[0]

    run = torch.compile(turn, fullgraph=True) if compiled else turn
    with mpmath.workdps(60):  # the frequencies of a GPU differ from those of the CPU in the last bit
        speeds = rope.inv_freq(device=x.device).tolist()
        angles = [[p * mpmath.mpf(w) % (2 * mpmath.pi) for w in speeds] for p in positions.tolist()]
        angles = torch.tensor([[[float(angle) for angle in row] for row in angles]], dtype=torch.float64)
    factor = 1.0 if rope.scaling is None else rope.scaling.attention_factor
    exact = ordinate.Rotation(angles, factor, rope.layout, rope.head_dim).apply(x.cpu().double())
    found = run(x, positions.cuda()).cpu()
    assert_within(found, exact, rotation_budget(exact, x.dtype, rope.rotary_dim, rope.layout))


def test_tables_are_let_go_with_their_encoding_and_when_told():
    from ordinate.rotate import rotation_cache

    ordinate.clear_caches()
    q = torch.randn(1, 4, 4096, 64, device="cuda")
    before = torch.cuda.memory_allocated()
    rope, other = ordinate.RoPE(64), ordinate.RoPE(64)
    for length in range(4096, 96, -40):
        rope.rotate(q[:, :, :length], q[:, :, :length])
        other.rotate(q[:, :, :length], q[:, :, :length])
    held = torch.cuda.memory_allocated() - before
    assert held <= 4096 * 32 * (8 + 4 + 4) + 2**16  # angles, cos and sin of the longest, once
    del rope, other
    assert not rotation_cache._cache
    assert torch.cuda.memory_allocated() - before <= 2**16
