"""Biased attention on one CUDA device beside its peers, in one process on the same inputs.

    PYTHONPATH=src python3 benchmarks/gpu_attention.py --out DIR [--budget SECONDS] [--parts PART …]
        [--shapes SHAPE …] [--only NAME …]

A candidate of ours is timed only if its outputs and gradients are right in this run: at most twice as
far from float64 as plain PyTorch in the same dtype. Times are medians over CUDA events; the device's own share of
them is the sum over its kernels. What is not measured stays in a record that is there: parts and shapes as they are,
peers with the commit they were measured at.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from triton.testing import do_bench, do_bench_cudagraph

import ordinate
from environment import describe
from gpu_candidates import Attend, Candidate, Kerple, candidates, plain
from ordinate import PositionEncoding

SHAPES = {  # batch, heads, length, head_dim
    "B4 H16 L4096 D64": (4, 16, 4096, 64),
    "B1 H16 L16384 D128": (1, 16, 16384, 128),
    "B2 H16 L8192 D64": (2, 16, 8192, 64),
    "B1 H16 L4096 D64": (1, 16, 4096, 64),
}
#: Of bfloat16 products without sparsity, by the data sheet of an H200.
LIMIT_TFLOPS = 989
PARTS = ("shapes", "long", "decoding")
# Peers that take minutes to compile or to run are measured at these.
SLOW_PEERS = ("B4 H16 L4096 D64", "B1 H16 L16384 D128", "B2 H16 L8192 D64")
# Kernels differ where queries fill their tiles and where most keys lie beyond a table, as in all that is timed.
GATED_LENGTHS = (515, 2048)
DECODING = (  # batch, heads, heads of keys, keys, head_dim
    (1, 32, 8, 32768, 128),
    (8, 32, 8, 8192, 128),
    (1, 16, 16, 4096, 64),
)


def gate(make: Callable[[int, int, int], PositionEncoding], heads: int, dim: int) -> float:
    """The worse `errors_beside_plain` of a causal call of either length."""
    worst = 0.0
    for length in GATED_LENGTHS:
        encoding = make(heads, length, dim).to("cuda")
        attend = functools.partial(ordinate.attention, encoding=encoding, causal=True)
        theirs = functools.partial(plain, encoding=encoding)
        worst = max(worst, errors_beside_plain(attend, theirs, encoding, (2, heads, length, dim)))
    return worst


def errors_beside_plain(
    attend: Callable[..., Tensor],
    theirs: Attend,
    encoding: PositionEncoding,
    shape: tuple[int, int, int, int],
) -> float:
    """How many times further from float64 than plain bfloat16 PyTorch, at worst over output and gradients."""
    torch.manual_seed(1)
    inputs = [torch.randn(shape, device="cuda").bfloat16() for _ in range(4)]

    def results(dtype: torch.dtype, attend: Attend) -> list[Tensor]:
        *qkv, grad = (x.to(dtype, copy=True) for x in inputs)
        qkv = [x.requires_grad_() for x in qkv]
        out = attend(*qkv)
        leaves = [*qkv, *(p for p in encoding.parameters() if p.requires_grad)]
        return [out.detach(), *torch.autograd.grad(out, leaves, grad)]

    exact = results(torch.float64, functools.partial(attend, impl="reference"))
    ours = results(torch.bfloat16, functools.partial(attend, impl="fused"))
    others = results(torch.bfloat16, theirs)
    errors = [
        ((o.double() - e.double()).abs().max(), (t.double() - e.double()).abs().max())
        for o, t, e in zip(ours, others, exact, strict=True)
    ]
    return max(float(mine / other.clamp(min=1e-12)) for mine, other in errors)


GATES: dict[str, Callable[[int, int, int], PositionEncoding]] = {
    "none": lambda heads, length, dim: PositionEncoding(),
    "ALiBi": lambda heads, length, dim: ordinate.ALiBi(heads, trainable=True),
    "T5 fixed": lambda heads, length, dim: ordinate.T5Bias(heads),
    "T5 learned": lambda heads, length, dim: ordinate.T5Bias(heads),
    "clipped fixed": lambda heads, length, dim: ordinate.ClippedBias(heads, 64),
    "KERPLE learned": lambda heads, length, dim: Kerple(heads, length),
    "Shaw learned": lambda heads, length, dim: ordinate.Shaw(dim, 16),
}


def measure(candidate: Candidate, shape: tuple[int, int, int, int]) -> dict[str, float | str]:
    torch.manual_seed(0)
    q, k, v, grad = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    leaves = [x.requires_grad_() for x in (q, k, v)] + candidate.parameters

    def forward() -> Tensor:
        with torch.no_grad():
            return candidate.attend(q, k, v)

    def both() -> None:
        torch.autograd.grad(candidate.attend(q, k, v), leaves, grad)

    options = {
        "warmup": 10 if candidate.reps > 5 else 1,
        "rep": candidate.reps * 4,
        "return_mode": "median",
    }
    figures = {"forward_ms": do_bench(forward, **options)}
    both()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    both()
    torch.cuda.synchronize()
    figures["extra_MiB"] = (torch.cuda.max_memory_allocated() - held) / 2**20
    figures["forward_backward_ms"] = do_bench(both, **options)
    figures["device_ms"] = _device_ms(both, 10 if candidate.reps > 5 else 1)
    batch, heads, length, dim = shape
    operations = (
        4 * batch * heads * length * length * dim / 2
    )  # two products; the backward pass needs five
    figures["forward_TFLOPs"] = operations / figures["forward_ms"] / 1e9
    figures["forward_backward_TFLOPs"] = 3.5 * operations / figures["forward_backward_ms"] / 1e9
    return figures


def _device_ms(call: Callable[[], None], times: int) -> float:
    """What the kernels of a call take, without the host."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(times):
            call()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in profile.key_averages()) / times / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--budget", type=float, default=480.0, help="seconds after which no case is begun"
    )
    parser.add_argument("--parts", nargs="*", default=PARTS, choices=PARTS, help="those to measure")
    parser.add_argument("--shapes", nargs="*", default=SHAPES, choices=SHAPES, help="those to measure")
    parser.add_argument(
        "--only", nargs="*", default=None, help="names or kinds to run; other peers' rows stay"
    )
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.budget
    path = arguments.out / "gpu_attention.json"
    record = json.loads(path.read_text()) if path.exists() else {"shapes": {}}
    record["limit_TFLOPs"] = LIMIT_TFLOPS
    for name in arguments.shapes if "shapes" in arguments.parts else ():
        kept = _earlier_rows(record["shapes"].get(name)) if arguments.only else []
        shape = {"environment": describe(), "gates": {}, "rows": []}
        for row in _rows(name, arguments.only, deadline, shape["gates"]):
            print(_line(row), flush=True)
            shape["rows"].append(row)
            new = {(row.get("name"), row.get("kind")) for row in shape["rows"]}
            rows = [*shape["rows"], *(row for row in kept if (row["name"], row["kind"]) not in new)]
            record["shapes"][name] = shape | {"rows": rows}
            _save(path, record)
    if "long" in arguments.parts:
        record["long"] = {"environment": describe(), **_long(131072)}
        print(record["long"], flush=True)
    if "decoding" in arguments.parts:
        rows = [_decoding(*shape) for shape in DECODING]
        record["decoding"] = {"environment": describe(), "rows": rows}
        print(*rows, sep="\n", flush=True)
    _save(path, record)


def _earlier_rows(shape: dict | None) -> list[dict]:
    """Peers of an earlier run, each with its commit. Ours are measured again, or are not there."""
    if shape is None:
        return []
    commit = shape["environment"]["commit"]
    theirs = (row for row in shape["rows"] if "error" not in row and row["name"] != "ordinate")
    return [{"commit": commit, **row} for row in theirs]


def _save(path: Path, record: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


def _rows(
    name: str, only: list[str] | None, deadline: float, gates: dict[str, float]
) -> Iterator[dict[str, object]]:
    """Each candidate at one shape; ours only if its numbers are right."""
    _, heads, _, dim = SHAPES[name]
    for make in candidates(*SHAPES[name], slow=name in SLOW_PEERS):
        if time.monotonic() > deadline:
            yield {"shape": name, "error": "not begun: the time was spent"}
            return
        label = "?"
        try:
            candidate = make()
            label = f"{candidate.name} / {candidate.kind}"
            if only and not {candidate.name, candidate.kind} & set(only):
                continue
            if candidate.ours:
                gates[candidate.kind] = gate(GATES[candidate.kind], heads, dim)
                if not gates[candidate.kind] <= 2.0:
                    raise RuntimeError(
                        f"gate is red: {gates[candidate.kind]:.2f} times plain PyTorch's error"
                    )
            figures = measure(candidate, SHAPES[name])
            yield {"shape": name, "name": candidate.name, "kind": candidate.kind, **figures}
        except Exception as problem:
            yield {"shape": name, "name": label, "error": f"{type(problem).__name__}: {problem}"[:300]}
        torch.cuda.empty_cache()
        torch._dynamo.reset()


def _long(length: int) -> dict[str, float]:
    """One training step of a learned T5 bias over a very long sequence; the one before it compiles."""
    if not (ratio := gate(GATES["T5 learned"], 16, 64)) <= 2.0:
        raise RuntimeError(f"gate is red: {ratio:.2f} times plain PyTorch's error")
    encoding = ordinate.T5Bias(16).to("cuda")
    q, k, v, pull = (
        torch.randn(1, 16, length, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(4)
    )

    def step() -> None:
        out = ordinate.attention(q, k, v, encoding, causal=True, impl="fused")
        torch.autograd.grad(out, [q, k, v, encoding.weight], pull)
        torch.cuda.synchronize()

    step()
    torch.cuda.reset_peak_memory_stats()
    held, started = torch.cuda.memory_allocated(), time.monotonic()
    step()
    return {
        "length": length,
        "seconds": time.monotonic() - started,
        "extra_GiB": (torch.cuda.max_memory_allocated() - held) / 2**30,
    }


@torch.no_grad()
def _decoding(batch: int, heads: int, kv_heads: int, length: int, dim: int) -> dict[str, object]:
    """One query against many keys: what a call takes, and what of it the device takes (by a CUDA graph).

    Ours is timed only if its output is at most twice as far from float64 as plain PyTorch in bfloat16.
    """
    q = torch.randn(batch, heads, 1, dim, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(batch, kv_heads, length, dim, device="cuda").bfloat16() for _ in range(2))

    def ours(encoding: PositionEncoding) -> Callable[[], object]:
        encoding = encoding.to("cuda")

        def attend() -> Tensor:
            return ordinate.attention(q, k, v, encoding, causal=True, impl="fused")

        wide = (x.double() for x in (q, k, v))
        exact = ordinate.attention(*wide, encoding, causal=True, impl="reference")
        outputs = attend(), plain(q, k, v, encoding)
        mine, other = (float((out.double() - exact).abs().max()) for out in outputs)
        if not mine <= 2 * other:
            raise RuntimeError(f"gate is red: {mine / other:.2f} times plain PyTorch's error")
        return attend

    def theirs(backend: SDPBackend) -> Callable[[], object]:
        def attend() -> Tensor:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, enable_gqa=heads != kv_heads)

        return attend

    calls: dict[str, Callable[[], Callable[[], object]]] = {
        "ordinate, none": lambda: ours(PositionEncoding()),
        "ordinate, ALiBi": lambda: ours(ordinate.ALiBi(heads)),
        "ordinate, T5": lambda: ours(ordinate.T5Bias(heads)),
        "cuDNN, none": lambda: theirs(SDPBackend.CUDNN_ATTENTION),
        "flash SDPA, none": lambda: theirs(SDPBackend.FLASH_ATTENTION),
        "copy of k and v": lambda: lambda: (k.clone(), v.clone()),
    }
    shape = f"B{batch} H{heads} and {kv_heads}, {length} keys, D{dim}"
    row: dict[str, object] = {"shape": shape}
    for name, make in calls.items():
        try:
            call = make()
            row[name] = {
                "ms": do_bench(call, return_mode="median"),
                "device_ms": do_bench_cudagraph(call, return_mode="median"),
            }
        except Exception as problem:
            row[name] = {"error": f"{type(problem).__name__}: {problem}"[:200]}
    return row


def _line(row: dict) -> str:
    if "error" in row:
        return f"{row['shape']:20} {row.get('name', ''):45} {row['error']}"
    return (
        f"{row['shape']:20} {row['name'] + ' / ' + row['kind']:45} forward {row['forward_ms']:8.3f} ms "
        f"({row['forward_TFLOPs']:4.0f} TFLOP/s)  both {row['forward_backward_ms']:8.3f} ms  "
        f"extra {row['extra_MiB']:7.0f} MiB"
    )


if __name__ == "__main__":
    main()
