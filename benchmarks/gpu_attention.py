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
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from triton.testing import do_bench, do_bench_cudagraph

import ordinate
from environment import describe
from ordinate import DistanceBias, PositionEncoding

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
SLOW_PEERS = ("B4 H16 L4096 D64", "B1 H16 L16384 D128")
DECODING = (  # batch, heads, heads of keys, keys, head_dim
    (1, 32, 8, 32768, 128),
    (8, 32, 8, 8192, 128),
    (1, 16, 16, 4096, 64),
)
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
_SMALL_TILES = {"BLOCK_M": 64, "BLOCK_N": 32, "num_stages": 1}  # of FlexAttention


class Kerple(PositionEncoding):
    """KERPLE's logarithmic bias, to stand for any learned vector as long as the sequence."""

    def __init__(self, num_heads: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.rate = nn.Parameter(torch.rand(num_heads) * 2)
        self.spread = nn.Parameter(torch.rand(num_heads))

    def bias(self, q, k, q_positions=None, k_positions=None, *, x=None):
        queries, keys = ordinate.positions.resolve(q, k, q_positions, k_positions)
        distance = torch.arange(self.length, device=q.device)
        table = -self.rate[:, None] * torch.log1p(self.spread[:, None] * distance)
        return DistanceBias(table, queries, keys, lo=0, aligned=q_positions is None)


@dataclass
class Candidate:
    """One way to compute a biased attention, with the parameters that learn."""

    name: str
    kind: str
    ours: bool
    attend: Attend
    parameters: list[Tensor]
    reps: int = 60


def fused(encoding: PositionEncoding, name: str, kind: str) -> Candidate:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ordinate.attention(q, k, v, encoding, causal=True, impl="fused")

    learning = [p for p in encoding.parameters() if p.requires_grad]
    return Candidate(name, kind, True, attend, learning)


def sdpa(backend: SDPBackend) -> Attend:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return attend


@functools.cache
def _causal_blocks(length: int):
    return create_block_mask(lambda b, h, q, k: q >= k, None, None, length, length, device="cuda")


def flex(score_mod, length: int, **options) -> Attend:
    compiled = torch.compile(flex_attention, **options.pop("compile", {"dynamic": False}))
    kernel_options = options or None

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return compiled(
            q,
            k,
            v,
            score_mod=score_mod,
            block_mask=_causal_blocks(length),
            kernel_options=kernel_options,
        )

    return attend


def frozen(encoding: PositionEncoding) -> PositionEncoding:
    return encoding.requires_grad_(False)


def candidates(name: str) -> Iterator[Callable[[], Candidate]]:
    """Each is made only when its turn comes, for some hold gigabytes."""
    batch, heads, length, dim = SHAPES[name]
    cuda = torch.device("cuda")
    slopes = ordinate.ALiBi(heads).slopes_on(cuda)

    yield lambda: Candidate("cuDNN", "none", False, sdpa(SDPBackend.CUDNN_ATTENTION), [])
    yield lambda: Candidate("flash SDPA", "none", False, sdpa(SDPBackend.FLASH_ATTENTION), [])
    yield lambda: fused(PositionEncoding(), "ordinate", "none")
    yield lambda: fused(ordinate.ALiBi(heads).to(cuda), "ordinate", "ALiBi")
    yield lambda: fused(frozen(ordinate.T5Bias(heads).to(cuda)), "ordinate", "T5 fixed")
    yield lambda: fused(frozen(ordinate.ClippedBias(heads, 64).to(cuda)), "ordinate", "clipped fixed")
    yield lambda: fused(ordinate.T5Bias(heads).to(cuda), "ordinate", "T5 learned")
    yield lambda: fused(Kerple(heads, length).to(cuda), "ordinate", "KERPLE learned")
    yield lambda: fused(ordinate.Shaw(dim, 16).to(cuda), "ordinate", "Shaw learned")

    yield lambda: Candidate("FlexAttention", "none", False, flex(None, length), [])
    yield lambda: Candidate(
        "FlexAttention", "ALiBi", False,
        flex(lambda s, b, h, q, k: s - slopes[h] * (q - k), length), [],
    )  # fmt: skip
    yield lambda: _dense_alibi(slopes, length)
    if batch == 1 and length <= 4096:
        yield lambda: _shaw_einsum(heads, length, dim)
    yield lambda: _flex_learned_vector(heads, length)
    if name in SLOW_PEERS:
        yield lambda: _flex_learned_as_written(heads, length)
        yield lambda: _flex_learned_vector(heads, length, autotuned=True)


def _dense_alibi(slopes: Tensor, length: int) -> Candidate:
    index = torch.arange(length, device="cuda")
    distance = index[:, None] - index
    mask = torch.where(distance >= 0, -slopes[:, None, None] * distance, -math.inf)[None].bfloat16()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    return Candidate("SDPA, dense mask", "ALiBi", False, attend, [], 20)


def _shaw_einsum(heads: int, length: int, dim: int) -> Candidate:
    """Shaw's layer as tutorials write it: a vector for every pair, contracted with the queries."""
    keys = nn.Parameter(torch.randn(33, dim, device="cuda").bfloat16() * 0.1)
    index = torch.arange(length, device="cuda")
    rows = (index[None, :] - index[:, None]).clamp(-16, 16) + 16
    hidden = torch.ones(length, length, dtype=torch.bool, device="cuda").triu(1)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        logits = (
            q @ k.transpose(-1, -2) + torch.einsum("bhqd,qkd->bhqk", q, F.embedding(rows, keys))
        ) * dim**-0.5
        return torch.softmax(logits.masked_fill(hidden, -math.inf), dim=-1) @ v

    return Candidate("einsum", "Shaw learned", False, attend, [keys], 5)


def _flex_learned_vector(heads: int, length: int, autotuned: bool = False) -> Candidate:
    """FlexAttention at its best known: the buckets expanded to a vector over distances first.

    With its default tiles it does not compile, for want of shared memory; a table as users write it does with small
    ones.
    """
    vector = nn.Parameter(torch.randn(heads, length, device="cuda") * 0.02)
    tuned = {"compile": {"dynamic": False, "mode": "max-autotune-no-cudagraphs"}}
    attend = flex(
        lambda s, b, h, q, k: s + vector[h, (q - k).clamp(min=0)],
        length,
        **(tuned if autotuned else _SMALL_TILES),
    )
    name = "FlexAttention, vector, autotuned" if autotuned else "FlexAttention, vector"
    return Candidate(name, "T5 learned", False, attend, [vector], 5)


def _flex_learned_as_written(heads: int, length: int) -> Candidate:
    table = nn.Parameter(torch.randn(32, heads, device="cuda") * 0.02)
    buckets = ordinate.T5Bias(heads).buckets(torch.arange(length)).to("cuda")
    attend = flex(
        lambda s, b, h, q, k: s + table[buckets[(q - k).clamp(min=0)], h], length, **_SMALL_TILES
    )
    return Candidate("FlexAttention, as written", "T5 learned", False, attend, [table], 1)


def plain(q: Tensor, k: Tensor, v: Tensor, encoding: PositionEncoding) -> Tensor:
    """Causal attention as users write it, every step in the dtype of q."""
    scale, groups = q.shape[-1] ** -0.5, q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
    logits = q @ k.transpose(-1, -2) * scale
    bias = encoding.bias(q, k)
    if bias is not None:
        logits = logits + (bias.dense() * (scale if bias.scaled else 1.0)).to(q.dtype)
    seen = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device)
    hidden = seen.triu(1 + k.shape[2] - q.shape[2])
    return torch.softmax(logits.masked_fill(hidden, -math.inf), dim=-1) @ v


def gate(make: Callable[[int, int, int], PositionEncoding], heads: int, dim: int) -> float:
    """How many times further from float64 than plain bfloat16 PyTorch, at worst over output and gradients."""
    batch, length = 2, 515
    torch.manual_seed(1)
    encoding = make(heads, length, dim).to("cuda")
    inputs = [torch.randn(batch, heads, length, dim, device="cuda").bfloat16() for _ in range(4)]

    def results(dtype: torch.dtype, attend: Attend) -> list[Tensor]:
        *qkv, grad = (x.to(dtype, copy=True) for x in inputs)
        qkv = [x.requires_grad_() for x in qkv]
        out = attend(*qkv)
        leaves = [*qkv, *(p for p in encoding.parameters() if p.requires_grad)]
        return [out.detach(), *torch.autograd.grad(out, leaves, grad)]

    attend = functools.partial(ordinate.attention, encoding=encoding, causal=True)
    exact = results(torch.float64, functools.partial(attend, impl="reference"))
    ours = results(torch.bfloat16, functools.partial(attend, impl="fused"))
    theirs = results(torch.bfloat16, functools.partial(plain, encoding=encoding))
    errors = [
        ((o.double() - e.double()).abs().max(), (t.double() - e.double()).abs().max())
        for o, t, e in zip(ours, theirs, exact, strict=True)
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
        record["decoding"] = {"environment": describe(), "gated": True, "rows": rows}
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
    for make in candidates(name):
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
        "compiled_before": True,
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
