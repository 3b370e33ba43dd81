"""The compiled loop on the CPU gives the numbers of PyTorch's operations, wherever the channels lie."""

from __future__ import annotations

import builtins
import math
import multiprocessing
import subprocess
import sys

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from ordinate import RoPE
from ordinate.rotate import pairs
from ordinate.rotate.rotation import Rotation

pytest.importorskip("numba", reason="needs Numba, the extra cpu")

LAYOUTS = ("half", "interleaved")
DTYPES = (torch.bfloat16, torch.float32)

#: How q lies in memory, by name: from [batch, heads, seq, head_dim] numbers, a tensor of the same numbers.
MEMORIES = {
    "contiguous": lambda x: x.contiguous(),
    "as models hold it": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "a slice of a projection": lambda x: torch.cat((x, x, x), -1).narrow(-1, 0, x.shape[-1]),
    "sequence first": lambda x: x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3),
    "one head for all": lambda x: x[:, :1].clone().expand_as(x),
}


@pytest.fixture
def calls(monkeypatch):
    """Every size goes to the compiled loop, which is counted; nothing else would tell it from the others."""
    from ordinate.kernels import rope_cpu

    seen = []

    def counted(*args, **kwargs):
        seen.append(args[0].shape)
        return turn(*args, **kwargs)

    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        pytest.skip("PyTorch's operations do not fuse products and sums on this processor")
    for dtype in DTYPES:
        for layout in LAYOUTS:
            assert pairs._loop_agrees(dtype, layout)
    turn = rope_cpu.turn
    monkeypatch.setattr(rope_cpu, "turn", counted)
    monkeypatch.setattr(rope_cpu, "_CHANNELS_PER_THREAD", 1)
    monkeypatch.setattr(pairs, "_WORTH_A_COMPILED_LOOP", 1)
    return seen


def _by_operations(monkeypatch, function, *args):
    with monkeypatch.context() as patch:
        patch.setattr(pairs, "_loop_agrees", lambda dtype, layout: False)
        return function(*args)


def _assert_equal(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_numbers_are_those_of_the_operations(dtype, layout, memory, threads, calls, monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for shape, rotary_dim in (((2, 3, 7, 38), 38), ((1, 5, 3, 64), 20), ((3, 1, 1, 2), 2)):
            x = MEMORIES[memory](torch.randn(shape).to(dtype))
            rotation = RoPE(shape[-1], rotary_dim=rotary_dim, layout=layout).at(
                torch.randint(2**20, (shape[0], shape[2]))
            )
            kept = x.clone()
            turned = rotation.apply(x)
            assert turned.stride() == torch.empty_like(x).stride()
            _assert_equal(turned, _by_operations(monkeypatch, rotation.apply, x))
            _assert_equal(x, kept)
    finally:
        torch.set_num_threads(before)
    assert len(calls) == 3


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numbers_at_the_edges_of_their_format_turn_alike(dtype, layout, calls, monkeypatch):
    info = torch.finfo(dtype)
    edges = [0.0, -0.0, info.tiny, -info.tiny, info.tiny / 4, info.max, -info.max,
             1.0, 1.0 + info.eps, 1.0 + 3 * info.eps]  # fmt: skip
    for position in (0, 1, 1_000_003):
        rotation = RoPE(2, layout=layout).at(torch.tensor([position]))
        for x in torch.cartesian_prod(torch.tensor(edges), torch.tensor(edges)).to(dtype):
            x = x.reshape(1, 1, 1, 2)
            _assert_equal(rotation.apply(x), _by_operations(monkeypatch, rotation.apply, x))
    assert len(calls) == 3 * len(edges) ** 2


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_not_finite_stays_so(dtype, layout, calls):
    """As in the specification; PyTorch's operations on neighbours make NaN of what is infinite."""
    values = torch.tensor([math.inf, -math.inf, math.nan, 0.0, 1.0])
    x = torch.cartesian_prod(values, values).to(dtype).reshape(1, 1, -1, 2)
    rotation = RoPE(2, layout=layout).at(torch.full((x.shape[2],), 2))
    cos, sin = rotation.cos_sin(torch.float32)
    expected = pairs.rotate_pairs_reference(x, cos[:, None], sin[:, None], layout)
    torch.testing.assert_close(rotation.apply(x), expected, equal_nan=True)
    assert calls


def test_every_bfloat16_rounds_to_the_nearest_even(calls):
    """Turned by nothing and multiplied by a factor, all 65,536 of them, against PyTorch's own rounding."""
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16).reshape(1, 1, -1, 2)
    factor = 1.00390625  # 1 + 2^-8, halfway between two neighbours for many of them
    rope = RoPE(2)
    rotation = rope.at(torch.zeros(x.shape[2], dtype=torch.long))
    rotation = type(rotation)(rotation.angles, factor, rotation.layout, rotation.head_dim)
    cos, sin = rotation.cos_sin(torch.float32)
    expected = pairs.rotate_pairs_reference(x, cos[:, None], sin[:, None], "half")
    torch.testing.assert_close(rotation.apply(x), expected, rtol=0, atol=0, equal_nan=True)
    assert calls


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_go_the_same_way(dtype, layout, calls, monkeypatch):
    q = torch.randn(2, 5, 3, 16).to(dtype).transpose(1, 2).requires_grad_()
    pull = torch.randn(2, 3, 5, 16).to(dtype)
    rotation = RoPE(16, rotary_dim=12, layout=layout).at(torch.arange(5))

    def gradient():
        return torch.autograd.grad(rotation.apply(q), q, pull)[0]

    _assert_equal(gradient(), _by_operations(monkeypatch, gradient))
    assert len(calls) == 2


def test_mrope_positions_of_several_axes_turn_alike(calls, monkeypatch):
    rope = RoPE(16, sections=(2, 3, 3))
    rotation = rope.at(torch.randint(1000, (3, 2, 7)))
    x = torch.randn(2, 4, 7, 16)
    _assert_equal(rotation.apply(x), _by_operations(monkeypatch, rotation.apply, x))
    assert calls


def test_who_records_operations_sees_them(calls):
    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            names.append(function.__name__)
            return function(*args, **(kwargs or {}))

    names: list[str] = []
    rotation = RoPE(16).at(torch.arange(5))
    x, other = torch.randn(2, 2, 3, 5, 16).unbind(0)
    with Recorder():
        rotation.apply(x)
    assert any(name.startswith("mul") for name in names)
    traced = make_fx(lambda x: rotation.apply(x, "q"))(x)
    assert not calls
    torch.testing.assert_close(traced(other), rotation.apply(other))


def test_float16_and_float64_stay_with_the_operations(calls):
    rotation = RoPE(16).at(torch.arange(5))
    for dtype in (torch.float16, torch.float64):
        rotation.apply(torch.randn(1, 2, 5, 16).to(dtype))
    rotation.apply(torch.randn(1, 2, 16, 5).transpose(2, 3))  # channels apart in memory
    assert not calls


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_traced_rotation_turns_other_numbers_too(calls):
    rotation = RoPE(16).at(torch.arange(5))
    x, other = torch.randn(2, 2, 3, 5, 16).unbind(0)
    traced = torch.jit.trace(lambda q: rotation.apply(q, "q"), x, check_trace=False)
    assert not calls
    torch.testing.assert_close(traced(other), rotation.apply(other))


def test_angles_that_are_trained_get_their_gradient(calls):
    angles = torch.randn(1, 5, 8, dtype=torch.float64, requires_grad=True)
    x = torch.randn(1, 2, 5, 16, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda angles: Rotation(angles, 1.0, "half", 16).apply(x), angles)
    assert Rotation(angles, 1.0, "half", 16).apply(x.float()).requires_grad
    assert not calls


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16, torch.float64], ids=str)
def test_views_that_negate_or_overlap_turn_as_their_copies_do(dtype, layout):
    rotation = RoPE(8, layout=layout).at(torch.arange(5))
    x = torch.randn(2, 3, 5, 8).to(dtype)
    _assert_equal(rotation.apply(torch._neg_view(x)), rotation.apply(-x))
    overlapping = (
        torch.randn(2, 3, 12).to(dtype).unfold(2, 8, 1)
    )  # channels of one token are those of the next
    _assert_equal(rotation.apply(overlapping), rotation.apply(overlapping.contiguous()))


def _broken(name):
    def import_(module, *args):
        if module.startswith(name):
            raise OSError("cannot load a library")
        return original(module, *args)

    original = builtins.__import__
    return import_


@pytest.mark.parametrize("breakage", ["a library that does not load", "switched off", "other bits"])
def test_a_numba_that_does_not_work_is_done_without(breakage, monkeypatch):
    monkeypatch.setattr(pairs, "_WORTH_A_COMPILED_LOOP", 1)
    rotation = RoPE(16).at(torch.arange(5))
    x = torch.randn(1, 2, 5, 16)
    expected = _by_operations(monkeypatch, rotation.apply, x)
    from ordinate.kernels import rope_cpu

    if breakage == "a library that does not load":
        monkeypatch.delitem(sys.modules, "ordinate.kernels.rope_cpu")
        monkeypatch.delattr("ordinate.kernels.rope_cpu")
        monkeypatch.setattr(builtins, "__import__", _broken("numba"))
    elif breakage == "switched off":

        def refuse(*args, **kwargs):
            raise NotImplementedError("not usable in pure-python")

        monkeypatch.setattr(rope_cpu, "turn", refuse)
    else:
        monkeypatch.setattr(rope_cpu, "turn", lambda x, out, cos, sin, interleaved: out.copy_(x))
    pairs._loop_agrees.cache_clear()
    _assert_equal(rotation.apply(x), expected)
    assert not pairs._loop_agrees(torch.float32, "half")
    pairs._loop_agrees.cache_clear()


def test_threads_that_do_not_work_are_done_without(monkeypatch):
    from ordinate.kernels import rope_cpu

    def broken(*_):
        raise RuntimeError("no such threads")

    x, rotation = torch.randn(1, 32, 256, 64), RoPE(64).at(torch.arange(256))
    expected = _by_operations(monkeypatch, rotation.apply, x)
    for way in ("_run_in_team", "_run_in_pool"):
        monkeypatch.setattr(rope_cpu, way, broken)
    pairs._loop_agrees.cache_clear()
    try:
        _assert_equal(rotation.apply(x), expected)
        assert not pairs._loop_agrees(torch.float32, "half")
    finally:
        pairs._loop_agrees.cache_clear()


def test_small_tensors_keep_to_one_thread(monkeypatch):
    """Threads cost more than they bring there, the more of them the worse."""
    from ordinate.kernels import rope_cpu

    started = []
    for way in ("_run_in_team", "_run_in_pool"):
        monkeypatch.setattr(rope_cpu, way, lambda *work: started.append(work))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    rotation = RoPE(64).at(torch.arange(128))
    x = torch.randn(1, 32, 128, 64)
    tables = [table[:, None] for table in rotation.cos_sin(torch.float32)]
    rope_cpu.turn(x, torch.empty_like(x), *tables, interleaved=False)
    assert not started


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_threads_of_its_own_give_the_same_bits_as_those_of_pytorch(dtype, layout, monkeypatch):
    from ordinate.kernels import rope_cpu

    if rope_cpu._team() is None:
        pytest.skip("PyTorch has no OpenMP threads here")
    monkeypatch.setattr(rope_cpu, "_CHANNELS_PER_THREAD", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    x = torch.randn(2, 7, 5, 3, 24).to(dtype)[:, :, 2].transpose(1, 2)  # [2, 3, 7, 24], with gaps
    cos, sin = (table[:, None] for table in RoPE(16).at(torch.arange(7)).cos_sin(torch.float32))
    turned = {}
    for kind in ("team", "pool", "alone"):
        with monkeypatch.context() as patch:
            if kind == "pool":
                patch.setattr(rope_cpu, "_team", lambda: None)
            if kind == "alone":
                patch.setattr(torch, "get_num_threads", lambda: 1)
            turned[kind] = torch.full_like(x, math.nan)
            rope_cpu.turn(x, turned[kind], cos, sin, interleaved=layout == "interleaved")
    assert torch.equal(turned["team"], turned["alone"])
    assert torch.equal(turned["pool"], turned["alone"])


def test_many_threads_of_a_program_may_turn_at_once(monkeypatch):
    from concurrent.futures import ThreadPoolExecutor

    from ordinate.kernels import rope_cpu

    monkeypatch.setattr(rope_cpu, "_CHANNELS_PER_THREAD", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    xs = [torch.randn(1, 4, 65, 16) for _ in range(24)]
    cos, sin = (table[:, None] for table in RoPE(16).at(torch.arange(65)).cos_sin(torch.float32))

    def turned(x):
        out = torch.empty_like(x)
        rope_cpu.turn(x, out, cos, sin, interleaved=False)
        return out

    expected = [turned(x) for x in xs]
    with ThreadPoolExecutor(8) as pool:
        for found, wanted in zip(pool.map(turned, xs), expected, strict=True):
            assert torch.equal(found, wanted)


def test_a_thread_that_outlives_the_program_still_turns():
    program = """
import threading, torch
from ordinate import RoPE
torch.set_num_threads(2)
q = torch.randn(1, 32, 256, 128)
rotation = RoPE(128).at(torch.arange(256))
before = rotation.apply(q)
def late():
    threading.main_thread().join()
    print(torch.equal(rotation.apply(q), before))
threading.Thread(target=late).start()
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.stdout == "True\n", run.stderr


def _turn(queue, *tensors) -> None:
    from ordinate.kernels import rope_cpu

    rope_cpu.turn(*tensors, interleaved=False)
    queue.put(tensors[1].numpy().copy())  # PyTorch's own threads do not survive a fork


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own(monkeypatch):
    from ordinate.kernels import rope_cpu

    monkeypatch.setattr(rope_cpu, "_CHANNELS_PER_THREAD", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    x, rotation = torch.randn(1, 8, 64, 16), RoPE(16).at(torch.arange(64))
    cos, sin = (table[:, None] for table in rotation.cos_sin(torch.float32))
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    _turn(queue, x, torch.empty_like(x), cos, sin)  # the parent's threads exist from here on
    expected = queue.get(timeout=60)
    child = context.Process(target=_turn, args=(queue, x, torch.empty_like(x), cos, sin))
    child.start()
    try:
        assert (queue.get(timeout=60) == expected).all()
    finally:
        child.kill()
        child.join()
