"""RoPE on a GPU beside its peers, in one run: first that it is right, then how long it takes.

    PYTHONPATH=src python3 benchmarks/gpu_rope.py --out DIR            # about a minute
    PYTHONPATH=src python3 benchmarks/gpu_rope.py --out DIR --sweep    # block sizes as well

Every timing is the median over calls between two CUDA events. Before each call the L2 cache is overwritten,
and the device waits until the host has run ahead, so that the events enclose the device's work alone. Inputs lie
in memory as projections leave them, ``[batch, seq, heads, head_dim]``. The ceiling is a copy of as many bytes.
Exits with 1, untimed, where any result differs from the specification by one bit.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch._functorch.config as functorch_config
from torch import Tensor

import ordinate
from environment import describe
from ordinate.rotate import fused, rotation_cache
from ordinate.rotate.pairs import rotate_pairs_reference

DEVICE = torch.device("cuda")
LAYOUTS = ("half", "interleaved")
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
SHAPES = {"large": (4, 8192), "middle": (2, 4096), "small": (1, 2048)}  # batch, seq
# In place nothing is recorded; flash-attn's kernel has its gradient elsewhere; that of apply_both is RoPE.rotate's.
WITHOUT_BACKWARD = (
    "ordinate, in place", "ordinate, Rotation.apply_both", "Liger, in place", "flash-attn", "flash-attn, in place",
)  # fmt: skip
CALLS, WARMUP = 40, 5
HEAD_START = (
    2_000_000  # cycles, about a millisecond: twice what the host takes to begin the slowest call
)


def projections(
    batch: int, seq: int, dtype=torch.bfloat16, heads=HEADS, kv_heads=KV_HEADS, dim=HEAD_DIM
):
    q = torch.randn(batch, seq, heads, dim, device=DEVICE).to(dtype).transpose(1, 2)
    k = torch.randn(batch, seq, kv_heads, dim, device=DEVICE).to(dtype).transpose(1, 2)
    return q, k


def tables(rows: int, seq: int, pairs: int) -> fused.Tables:
    angles = torch.randn(rows, seq, pairs, dtype=torch.float64, device=DEVICE) * 100
    return angles.cos().float(), angles.sin().float()


# ---------------------------------------------------------------------------------------- right


def expect_equal(what: str, actual: Tensor, expected: Tensor) -> None:
    if not torch.equal(actual, expected):
        wrong = (actual != expected).float().mean().item()
        largest = (actual.double() - expected.double()).abs().max().item()
        raise SystemExit(
            f"RED, not timed: {what}: {wrong:.2%} of elements differ, by up to {largest:.3g}"
        )


def check() -> int:
    """Compare with the specification bit for bit; the number of comparisons made."""
    made = 0
    whole = itertools.product(DTYPES, LAYOUTS, [(HEAD_DIM, HEAD_DIM // 2, 1)])
    other = itertools.product(DTYPES[:1], LAYOUTS, [(80, 20, 3), (72, 36, 1), (96, 48, 3)])
    for dtype, layout, (dim, pairs, rows) in itertools.chain(whole, other):
        q, k = projections(3, 131, dtype, heads=12, kv_heads=3, dim=dim)
        k = k[:, :, :77]
        q_tables, k_tables = tables(rows, 131, pairs), tables(rows, 77, pairs)
        q.requires_grad_()
        k = k.detach().requires_grad_()
        before = q.detach().clone(), k.detach().clone()
        outputs = fused.rotate(q, k, q_tables, k_tables, interleaved=layout == "interleaved")
        gradients = [torch.randn_like(output) for output in outputs]
        torch.autograd.backward(outputs, gradients)
        in_place = [x.detach().clone() for x in (q, k)]
        fused.rotate_(*in_place, q_tables, k_tables, interleaved=layout == "interleaved")
        for index, (x, (cos, sin)) in enumerate(((q, q_tables), (k, k_tables))):
            what = f"{'qk'[index]} {dtype} {layout} head_dim {dim} pairs {pairs}"
            cos, sin = cos[:, None], sin[:, None]
            expected = rotate_pairs_reference(x.detach(), cos, sin, layout)
            gradient = rotate_pairs_reference(gradients[index], cos, -sin, layout)
            expect_equal(what, outputs[index], expected)
            expect_equal(f"{what} gradient", x.grad, gradient)
            expect_equal(f"{what} in place", in_place[index], expected)
            expect_equal(f"{what} input", x.detach(), before[index])
            made += 4
    return made + check_public_paths()


def check_public_paths() -> int:
    """`RoPE.rotate`, compiled without breaks and captured in a CUDA graph, gives the eager numbers."""
    rope = ordinate.RoPE(HEAD_DIM)
    q, k = projections(2, 333)
    cos, sin = (
        table[:, None] for table in rope.at(torch.arange(333, device=DEVICE)).cos_sin(torch.float32)
    )
    expected = [rotate_pairs_reference(x, cos, sin, "half") for x in (q, k)]
    compiled = torch.compile(rope.rotate, fullgraph=True)
    rotation = rope.at(torch.arange(333, device=DEVICE))
    rotation.apply_both(q, k)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = rotation.apply_both(q, k)
    graph.replay()
    results = {"eager": rope.rotate(q, k), "compiled": compiled(q, k), "CUDA graph": captured}
    for name, turned in results.items():
        for index in range(2):
            expect_equal(f"RoPE.rotate {name} {'qk'[index]}", turned[index], expected[index])
    return 2 * len(results)


# ---------------------------------------------------------------------------------------- peers


def complex_form(q: Tensor, k: Tensor, turns: Tensor) -> tuple[Tensor, Tensor]:
    """The rotation as a product of complex numbers, as in Meta's first release of Llama."""
    pairs = (torch.view_as_complex(x.float().unflatten(-1, (-1, 2))) for x in (q, k))
    q_turned, k_turned = (torch.view_as_real(pair * turns).flatten(-2).to(q.dtype) for pair in pairs)
    return q_turned, k_turned


def peers(layout: str, q_len: int) -> dict[str, Callable[[Tensor, Tensor], object]]:
    """Functions of q and k, each with tables made beforehand, as models make them once for all layers.

    Ours are float32; peers get them in bfloat16, as models pass them, and have half as much to read.
    """
    rope = ordinate.RoPE(HEAD_DIM, layout=layout)
    rotation = rope.at(torch.arange(q_len, device=DEVICE))
    own = rotation.cos_sin(torch.float32)
    turn = {"interleaved": layout == "interleaved"}

    def anew(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        rotation_cache._cache.clear()
        return rope.rotate(q, k)

    found: dict[str, Callable] = {
        "ordinate": lambda q, k: fused.rotate(q, k, own, own, **turn),
        "ordinate, in place": lambda q, k: fused.rotate_(q, k, own, own, **turn),
        "ordinate, Rotation.apply_both": rotation.apply_both,
        "ordinate, RoPE.rotate": rope.rotate,
        "ordinate, RoPE.rotate, angles made anew": anew,
    }
    if layout == "interleaved":
        turns = torch.complex(*own)
        found["complex form"] = lambda q, k: complex_form(q, k, turns)
    elif importlib.util.find_spec("transformers"):
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        cos, sin = (torch.cat((table, table), dim=-1).bfloat16() for table in own)
        compiled = torch.compile(apply_rotary_pos_emb, dynamic=False)
        found["transformers, eager"] = lambda q, k: apply_rotary_pos_emb(q, k, cos, sin)
        found["transformers, compiled"] = lambda q, k: compiled(q, k, cos, sin)
        if importlib.util.find_spec("liger_kernel"):
            from liger_kernel.ops.rope import LigerRopeFunction

            found["Liger, in place"] = lambda q, k: LigerRopeFunction.apply(q, k, cos, sin)
    if importlib.util.find_spec("flash_attn"):
        from flash_attn.ops.triton.rotary import apply_rotary

        narrow = [table[0].bfloat16() for table in own]

        def flash(q: Tensor, k: Tensor, inplace: bool = False) -> list[Tensor]:
            return [apply_rotary(x.transpose(1, 2), *narrow, **turn, inplace=inplace) for x in (q, k)]

        found["flash-attn"] = flash
        found["flash-attn, in place"] = lambda q, k: flash(q, k, inplace=True)
    return found


def peers_versions() -> dict[str, str]:
    """Of the packages that are there; neither Liger nor flash-attn has to be."""
    names = {"transformers": "transformers", "liger-kernel": "liger_kernel", "flash-attn": "flash_attn"}
    return {
        package: importlib.metadata.version(package)
        for package, module in names.items()
        if importlib.util.find_spec(module)
    }


# ---------------------------------------------------------------------------------------- time


class Timer:
    """Medians of a call's time on the device, in milliseconds, over input sets taken in turn."""

    def __init__(self) -> None:
        self.flush = torch.empty(2**29, dtype=torch.int8, device=DEVICE)  # several times any L2

    def __call__(self, call: Callable, sets: list[tuple]) -> float:
        for index in range(WARMUP):
            call(*sets[index % len(sets)])
        torch.cuda.synchronize()
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(CALLS)]
        for index, (start, end) in enumerate(events):
            self.flush.zero_()
            torch.cuda._sleep(HEAD_START)
            start.record()
            call(*sets[index % len(sets)])
            end.record()
        torch.cuda.synchronize()
        return statistics.median(start.elapsed_time(end) for start, end in events)


def host_microseconds(call: Callable, inputs: tuple, calls: int = 200) -> float:
    """How long the host is busy with a call, the device's work not waited for."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call(*inputs)
    elapsed = time.perf_counter() - start
    torch.cuda.synchronize()
    return elapsed / calls * 1e6


def backward(call: Callable, q: Tensor, k: Tensor) -> tuple:
    """Arguments of `torch.autograd.grad` for the backward pass of a call alone."""
    leaves = [x.detach().requires_grad_() for x in (q, k)]
    outputs = call(*leaves)
    return outputs, leaves, [torch.randn_like(output) for output in outputs], True


def measure(timer: Timer) -> list[dict]:
    rows = []
    for shape, (batch, seq) in SHAPES.items():
        sets = [projections(batch, seq) for _ in range(3)]
        flat = [torch.cat([x.flatten() for x in pair]) for pair in sets]
        target = torch.empty_like(flat[0])
        moved = 2 * target.nbytes
        ceiling = timer(lambda x, target=target: target.copy_(x), [(x,) for x in flat])
        common = {"shape": shape, "batch": batch, "seq": seq, "bytes": moved}
        rows.append(
            common | {"layout": "", "name": "copy of the same bytes", "pass": "forward", "ms": ceiling}
        )
        for layout in LAYOUTS:
            for name, call in peers(layout, seq).items():
                row = common | {"layout": layout, "name": name}
                ms = timer(call, sets)
                host = host_microseconds(call, sets[0]) if shape == "small" else None
                rows.append(row | {"pass": "forward", "ms": ms, "host_us": host})
                if name in WITHOUT_BACKWARD:
                    continue
                graphs = [backward(call, *pair) for pair in sets]
                rows.append(row | {"pass": "backward", "ms": timer(torch.autograd.grad, graphs)})
        for row in rows:
            if row["shape"] == shape:
                row["of_copy"] = ceiling / row["ms"]
                row["TB/s"] = moved / row["ms"] / 1e9
    return rows


def sweep(timer: Timer) -> list[dict]:
    """Every sensible tiling at every shape, fastest first."""
    from ordinate.kernels import rope

    rows = []
    for layout, block_seq, block_heads, num_warps in itertools.product(
        LAYOUTS, (4, 8, 16, 32), (2, 4, 8, 16), (1, 2, 4, 8)
    ):
        vectors = block_seq * block_heads * HEAD_DIM * 2 // 16 // (32 * num_warps)
        if not 4 <= vectors <= 32 or block_seq * HEAD_DIM // 16 < 32 * num_warps // 2:
            continue
        tiling = rope.Tiling(block_seq, block_heads, num_warps)
        for shape, (batch, seq) in SHAPES.items():
            own = ordinate.RoPE(HEAD_DIM).at(torch.arange(seq, device=DEVICE)).cos_sin(torch.float32)
            q, k = projections(batch, seq)
            inputs = q, k, torch.empty_like(q), torch.empty_like(k), *own, *own

            def call(*inputs, tiling=tiling, interleaved=layout == "interleaved"):
                rope.turn(*inputs, interleaved=interleaved, inverse=False, tiling=tiling)

            ms = timer(call, [inputs])
            rows.append(
                {"shape": shape, "layout": layout, **tiling._asdict(), "vectors": vectors, "ms": ms}
            )
    return sorted(rows, key=lambda row: (row["shape"], row["layout"], row["ms"]))


# ---------------------------------------------------------------------------------------- report


def print_rows(rows: list[dict]) -> None:
    print(
        f"\n{'shape':7} {'layout':11} {'name':38} {'pass':8} {'ms':>8} {'TB/s':>5} {'of copy':>7} {'host µs':>7}"
    )
    for row in rows:
        host = f"{row['host_us']:7.1f}" if row.get("host_us") else ""
        print(
            f"{row['shape']:7} {row['layout']:11} {row['name']:38} {row['pass']:8} {row['ms']:8.4f} "
            f"{row['TB/s']:5.2f} {row['of_copy']:7.3f} {host}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="RoPE on a GPU beside its peers.")
    parser.add_argument("--out", type=Path, required=True, help="folder for gpu_rope.json")
    parser.add_argument("--sweep", action="store_true", help="time block sizes too")
    options = parser.parse_args()
    started = time.perf_counter()
    torch.manual_seed(0)
    functorch_config.donated_buffer = False  # one graph is walked backward many times
    checks = check()
    print(f"green: {checks} comparisons, equal to the last bit ({time.perf_counter() - started:.0f} s)")
    timer = Timer()
    record = {"environment": describe() | peers_versions(), "checks": checks, "results": measure(timer)}
    print_rows(record["results"])
    if options.sweep:
        record["sweep"] = sweep(timer)
        for _, rows in itertools.groupby(record["sweep"], key=lambda row: (row["shape"], row["layout"])):
            for row in itertools.islice(rows, 6):
                print(*(f"{key}={value}" for key, value in row.items()))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "gpu_rope.json").write_text(json.dumps(record, indent=1) + "\n")
    print(f"\n{time.perf_counter() - started:.0f} s, written to {options.out / 'gpu_rope.json'}")


if __name__ == "__main__":
    main()
