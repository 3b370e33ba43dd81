"""How fast the lab's model trains with each encoding on one CUDA device, side by side in one process.

    PYTHONPATH=src python3 benchmarks/gpu_training.py --out DIR [--arms SPEC …] [--lengths LENGTH …] [--prepare]

The model, its sizes, dtype and compilation are those of ``ordinate compare --preset gpu``, and so is the attention,
which is ours for all arms, without a bias too; only the length of a sequence differs, and the batch with it, for as
many tokens a step. All models stand ready, and each round gives each some steps, in a new order. ``--prepare``
compiles all arms, each in a process of its own, and times nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from environment import describe
from measure import rounds
from ordinate.lab.config import RunConfig
from ordinate.lab.corpus import load_corpus
from ordinate.lab.run.build import make_model, make_optimizer, make_task
from ordinate.lab.run.model import token_losses
from ordinate.lab.run.presets import PRESETS

TOKENS_A_STEP = 32768
LENGTHS = (4096, 16384)
ARMS = (
    "none", "rope", "alibi", "t5:max_distance=128", "clipped:max_distance=128", "shaw:max_distance=16",
)  # fmt: skip


def config_of(spec: str, length: int, **changes: Any) -> RunConfig:
    """The gpu preset at another length."""
    sizes = {"train_length": length, "lengths": (length,), "batch": max(1, TOKENS_A_STEP // length)}
    config = PRESETS["gpu"].config(**{**sizes, "corpus": load_corpus(()).fingerprint, **changes})
    return dataclasses.replace(config, spec=spec)


def training_step(config: RunConfig) -> Callable[[], None]:
    """One step of training after the other, on the same batch."""
    model = make_model(config).to(config.device)
    trained: nn.Module = torch.compile(model) if config.compile else model  # type: ignore[assignment]
    optimizer = make_optimizer(model, config)
    batch = make_task(config).training_batch(0, 0, config.batch, config.train_length)
    tokens, targets = (part.to(config.device) for part in batch)

    def step() -> None:
        with torch.autocast(config.device, torch.bfloat16, enabled=config.dtype == "bfloat16"):
            logits = trained(tokens)
        token_losses(logits, targets).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def several(step: Callable[[], None], steps: int) -> Callable[[], None]:
    """So many steps, and nothing left to be done after them."""

    def run() -> None:
        for _ in range(steps):
            step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return run


def measure(
    arms: list[str], length: int, repetitions: int, steps: int, **changes: Any
) -> dict[str, Any]:
    """Every arm at one length; the first is what the others are compared with, round by round."""
    torch.compiler.reset()  # at another length it would compile for any
    configs = {spec: config_of(spec, length, **changes) for spec in arms}
    tokens = steps * configs[arms[0]].batch * length
    spent = rounds(
        {spec: several(training_step(one), steps) for spec, one in configs.items()}, repetitions
    )
    rows = []
    for spec in arms:
        ratios = sorted(first / own for first, own in zip(spent[arms[0]], spent[spec], strict=True))
        rows.append(
            {
                "arm": spec,
                "tokens_per_second": tokens / statistics.median(spent[spec]) * 1e3,
                "relative": statistics.median(ratios),
                "middle_half": [ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]],
            }
        )
    return {"length": length, "batch": configs[arms[0]].batch, "rounds": repetitions, "rows": rows}


def prepare(arguments: argparse.Namespace) -> None:
    """Compile on many cores what the timed process then finds in its caches."""
    command = [sys.executable, __file__, "--out", os.devnull, "--rounds", "0"]
    lengths = map(str, arguments.lengths)
    command += ["--lengths", *lengths, "--arms"]
    few_threads = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "2"}
    running = [subprocess.Popen([*command, spec], env=few_threads) for spec in arguments.arms]
    failed = [spec for spec, process in zip(arguments.arms, running, strict=True) if process.wait()]
    if failed:
        raise SystemExit(f"not compiled: {', '.join(failed)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--arms", nargs="*", default=list(ARMS))
    parser.add_argument("--lengths", nargs="*", type=int, default=list(LENGTHS))
    parser.add_argument(
        "--rounds", type=int, default=15, help="0 takes one step of each and records nothing"
    )
    parser.add_argument("--steps", type=int, default=4, help="of each arm in each round")
    parser.add_argument("--prepare", action="store_true")
    arguments = parser.parse_args()
    if arguments.prepare:
        prepare(arguments)
        return
    # One compiled form for every arm, where 8 would be the most.
    torch._dynamo.config.recompile_limit = 64
    torch.use_deterministic_algorithms(PRESETS["gpu"].config().deterministic, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if not arguments.rounds:
        for length in arguments.lengths:
            torch.compiler.reset()
            for spec in arguments.arms:
                training_step(config_of(spec, length))()
        return
    record: dict[str, Any] = {"environment": describe(), "lengths": []}
    for length in arguments.lengths:
        found = measure(arguments.arms, length, arguments.rounds, arguments.steps)
        record["lengths"].append(found)
        for row in found["rows"]:
            print(length, row["arm"], f"{row['tokens_per_second']:,.0f} tokens/s, {row['relative']:.3f}")
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "gpu_training.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
