"""One training step of whole models on one CUDA device, as transformers runs them and patched by ordinate.

    PYTHONPATH=src python3 benchmarks/gpu_models.py --out DIR [--budget SECONDS] [--only NAME …] [--smoke]

A T5-base encoder and BLOOM-560m with random weights, batch 1, forward and backward. First both are held to
float64, loss and every gradient, with padding and without: a patched model more than twice as far from it in
float32 as the unpatched one is not timed. Then they are timed in bfloat16. A peer that runs out of memory is
recorded as such. ``--smoke`` does all of it with tiny models on the CPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from environment import describe
from ordinate.attending import api
from ordinate.hf.patching.api import patch, unpatch

LOSS_LIMIT, GRADIENT_SLACK = 1e-5, 2e-5  # relative, float32


@dataclass(frozen=True)
class Family:
    """A model, how its loss is computed, and the implementations transformers offers for it."""

    name: str
    make: Callable[..., nn.Module]
    loss: Callable[[nn.Module, Tensor, Tensor | None], Tensor]
    peers: tuple[str, ...]


def t5_encoder(tiny: bool, smooth: bool = False) -> nn.Module:
    sizes = {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12}
    if tiny:
        sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    activation = "gated-gelu" if smooth else "relu"  # of T5 1.1, and of the first T5
    config = transformers.T5Config(**sizes, dropout_rate=0.0, feed_forward_proj=activation)
    return transformers.T5EncoderModel(config)


def bloom(tiny: bool, smooth: bool = True) -> nn.Module:
    sizes = {"vocab_size": 250880, "hidden_size": 1024, "n_layer": 24, "n_head": 16}
    if tiny:
        sizes = {"vocab_size": 512, "hidden_size": 32, "n_layer": 2, "n_head": 4}
    return transformers.BloomForCausalLM(transformers.BloomConfig(**sizes, use_cache=False))


def regression(model: nn.Module, ids: Tensor, mask: Tensor | None) -> Tensor:
    """Distance of the encoder's output to noise: the output alone has a constant length."""
    hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
    generator = torch.Generator().manual_seed(2)
    target = torch.randn(hidden.shape[1:], generator=generator).to(hidden.device)
    errors = (hidden - target).square().mean(-1)
    return (errors if mask is None else errors[mask.bool()]).mean()


def next_token(model: nn.Module, ids: Tensor, mask: Tensor | None) -> Tensor:
    labels = ids
    if mask is not None:
        # No label for padding, nor for the first token, which padding would have to predict.
        before = torch.nn.functional.pad(mask, (1, 0))[:, :-1]
        labels = ids.masked_fill((mask == 0) | (before == 0), -100)
    return model(input_ids=ids, attention_mask=mask, labels=labels).loss


FAMILIES = (
    Family("T5-base encoder", t5_encoder, regression, ("eager", "sdpa")),
    Family("BLOOM-560m", bloom, next_token, ("eager",)),
)


class Bench:
    """What all cases share: sizes, device, clock, and the record."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.tiny, self.out, self.budget = arguments.smoke, arguments.out, arguments.budget
        self.only = arguments.only
        self.device = torch.device("cpu" if self.tiny else "cuda")
        self.parity_length = 64 if self.tiny else 2048
        self.lengths = (64, 128) if self.tiny else tuple(arguments.lengths)
        self.started = time.monotonic()
        environment = describe() | {"transformers": transformers.__version__}
        self.record: dict[str, Any] = {"environment": environment, "parity": {}, "rows": []}

    @property
    def spent(self) -> bool:
        return time.monotonic() - self.started > self.budget

    def save(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / "gpu_models.json").write_text(json.dumps(self.record, indent=1) + "\n")

    def clear(self) -> None:
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def build(self, family: Family, dtype: torch.dtype, **options: bool) -> nn.Module:
        torch.manual_seed(0)
        with torch.device(self.device):
            return family.make(self.tiny, **options).to(dtype).train()

    def tokens(self, batch: int, length: int) -> Tensor:
        generator = torch.Generator().manual_seed(1)
        return torch.randint(3, 500, (batch, length), generator=generator).to(self.device)


def gradients(
    family: Family, model: nn.Module, ids: Tensor, mask: Tensor | None
) -> tuple[float, dict[str, Tensor]]:
    model.zero_grad(set_to_none=True)
    loss = family.loss(model, ids, mask)
    loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return loss.item(), found


@contextmanager
def counting() -> Iterator[dict[str, int]]:
    """How often each implementation of `ordinate.attention` runs."""
    counts, modules = {}, {name: (module, module.run) for name, module in api._IMPLEMENTATIONS.items()}
    for name, (module, _) in modules.items():

        def run(call: Any, name: str = name) -> Any:
            counts[name] = counts.get(name, 0) + 1
            return modules[name][1](call)

        module.run = run
    try:
        yield counts
    finally:
        for module, original in modules.values():
            module.run = original


def parity(bench: Bench, family: Family) -> dict[str, Any]:
    """Loss and gradients of the patched model and of the unpatched one in float32, with padding and without.

    Both are held to the unpatched model in float64. In T5's perceptron a rounding may move a number across
    the corner of its ReLU, which moves gradients by far more than a rounding, in either model; so errors
    are compared with its smooth activation of version 1.1, and with the ReLU only recorded.
    """
    padded = bench.tokens(2, bench.parity_length // 4)
    tokens = torch.ones_like(padded)
    tokens[1, : padded.shape[1] // 3] = 0
    whole = bench.tokens(1, bench.parity_length)
    cases = {
        "whole": compare(bench, family, whole, None, smooth=True),
        "left padding": compare(bench, family, padded, tokens, smooth=True),
    }
    passed = all(
        case["loss_error"] <= LOSS_LIMIT
        and case["gradient_error"] <= 2 * case["transformers_gradient_error"] + GRADIENT_SLACK
        for case in cases.values()
    )
    if family.make is t5_encoder:
        cases["whole, ReLU"] = compare(bench, family, whole, None, smooth=False)
        passed = passed and cases["whole, ReLU"]["loss_error"] <= LOSS_LIMIT
    return {**cases, "passed": passed}


def compare(
    bench: Bench, family: Family, ids: Tensor, mask: Tensor | None, *, smooth: bool
) -> dict[str, Any]:
    """Errors of the patched and the unpatched model, at the gradient where ours compares worst."""
    model = bench.build(family, torch.float32, smooth=smooth)
    their_loss, theirs = gradients(family, model, ids, mask)
    patch(model)
    with counting() as counts:
        our_loss, ours = gradients(family, model, ids, mask)
    del model
    double = bench.build(family, torch.float64, smooth=smooth)
    exact_loss, exact = gradients(family, double, ids, mask)
    held_to = "float64"
    if not math.isfinite(exact_loss):  # BLOOM's mask of float64 overflows in its softmax of float32
        exact_loss, exact, held_to = their_loss, theirs, "float32"
    errors = {
        name: tuple(
            float((g[name] - wanted).norm() / wanted.norm().clamp(min=1e-30)) for g in (ours, theirs)
        )
        for name, wanted in exact.items()
    }
    worst = max(errors, key=lambda name: errors[name][0] / (2 * errors[name][1] + GRADIENT_SLACK))
    bench.clear()
    return {
        "tokens": list(ids.shape),
        "held_to": held_to,
        "loss": our_loss,
        "loss_error": abs(our_loss - exact_loss) / abs(exact_loss),
        "worst_gradient": worst,
        "gradient_error": errors[worst][0],
        "transformers_gradient_error": errors[worst][1],
        "implementations": counts,
    }


def measure(bench: Bench, family: Family, model: nn.Module, length: int) -> dict[str, Any]:
    """Time and peak memory of a training step in the model as it is."""
    ids = bench.tokens(1, length)

    def step() -> float:
        model.zero_grad(set_to_none=True)
        loss = family.loss(model, ids, None)
        loss.backward()
        return loss.item()  # waits for the device

    loss = step()
    bench.clear()
    peak = None
    if bench.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        step()
        peak = torch.cuda.max_memory_allocated()
    times = []
    for _ in range(3 if bench.tiny else 7):
        bench.synchronize()
        start = time.perf_counter()
        step()
        bench.synchronize()
        times.append(time.perf_counter() - start)
    seconds = statistics.median(times)
    return {
        "loss": loss,
        "step_ms": seconds * 1e3,
        "tokens_per_second": length / seconds,
        "peak_GiB": None if peak is None else peak / 2**30,
    }


def attempt(bench: Bench, family: Family, model: nn.Module, length: int, by: str) -> None:
    """Measure one row, recording whatever goes wrong."""
    row: dict[str, Any] = {"model": family.name, "length": length, "by": by}
    if bench.spent:
        row["error"] = "not begun: the time was spent"
    else:
        try:
            row |= measure(bench, family, model, length)
        except Exception as problem:
            row["error"] = f"{type(problem).__name__}: {problem}"[:300]
    bench.clear()
    bench.record["rows"].append(row)
    print(line(row), flush=True)
    bench.save()


def run(bench: Bench, family: Family) -> None:
    try:
        bench.record["parity"][family.name] = parity(bench, family)
    except Exception as problem:
        bench.record["parity"][family.name] = {
            "passed": False,
            "error": f"{type(problem).__name__}: {problem}"[:300],
        }
    print(family.name, json.dumps(bench.record["parity"][family.name]), flush=True)
    bench.clear()
    bench.save()
    right = bench.record["parity"][family.name]["passed"]
    model = bench.build(family, torch.float32 if bench.tiny else torch.bfloat16)
    for length in bench.lengths:
        if right:
            patch(model)
            with counting() as counts:
                attempt(bench, family, model, length, "ordinate")
            bench.record["rows"][-1]["implementations"] = sorted(counts)
            unpatch(model)
        for peer in family.peers:
            model.set_attn_implementation(peer)
            attempt(bench, family, model, length, f"transformers, {peer}")
            model.zero_grad(set_to_none=True)


def line(row: dict[str, Any]) -> str:
    head = f"{row['model']:16} {row['length']:6} {row['by']:20} "
    if "error" in row:
        return head + row["error"]
    memory = "" if row["peak_GiB"] is None else f"  peak {row['peak_GiB']:6.2f} GiB"
    return (
        head
        + f"step {row['step_ms']:9.2f} ms  {row['tokens_per_second']:9.0f} tokens/s{memory}  loss {row['loss']:.6f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--budget", type=float, default=480.0, help="seconds after which no case is begun"
    )
    parser.add_argument("--only", nargs="*", default=None, help="models to run, by a part of their name")
    parser.add_argument("--lengths", nargs="*", type=int, default=(2048, 4096, 8192))
    parser.add_argument("--smoke", action="store_true", help="tiny models on the CPU")
    bench = Bench(parser.parse_args())
    for family in FAMILIES:
        if not bench.only or any(part.lower() in family.name.lower() for part in bench.only):
            run(bench, family)
    bench.save()


if __name__ == "__main__":
    main()
