"""Records of a comparison that was never run, in the format of the real ones."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path

from ordinate.lab.config import RunConfig
from ordinate.lab.records import Sweep, sha256_of, write_json

# In-length loss, and how much of it each doubling of the length adds.
SHAPES = {
    "none": (1.92, 0.07),
    "learned": (1.80, None),
    "sinusoidal": (1.78, 0.20),
    "rope": (1.60, 0.16),
    "alibi": (1.62, -0.004),
    "t5": (1.63, 0.03),
    "clipped:max_distance=16": (1.66, 0.01),
}
LENGTHS = (64, 96, 128, 256, 512)
STRETCHES = 16
REFUSED = "positions must be below max_positions 64, got 95"


def write_sweep(
    out: Path,
    specs=tuple(SHAPES),
    seeds=(0, 1, 2),
    *,
    noise: float = 0.004,
    accuracy: bool = False,
    extensions=("linear:factor=8", "yarn:factor=8"),
    **settings,
) -> Sweep:
    """A whole comparison, the same for the same arguments."""
    settings = {
        "steps": 40,
        "validate_every": 4,
        "lengths": LENGTHS,
        "task": "passkey" if accuracy else "language",
        **settings,
    }
    template = RunConfig("rope", corpus="0123456789abcdef", extensions=tuple(extensions), **settings)
    command = f"ordinate compare {' '.join(specs)} --seeds {len(seeds)}"
    sweep = Sweep(tuple(specs), tuple(seeds), template.settings(), command, "0.1.0")
    sweep.save(out)
    for config in sweep.configs():
        write_run(sweep.directory(out, config), config, noise=noise, accuracy=accuracy)
    return sweep


def write_run(
    directory: Path, config: RunConfig, *, noise: float = 0.004, accuracy: bool = False
) -> None:
    directory.mkdir(parents=True)
    draw = random.Random(f"{config.spec} {config.seed}")
    level, slope = SHAPES.get(config.spec, (1.7, 0.1))
    level += draw.gauss(0, noise)
    metrics = [
        {"kind": "baseline", "name": "byte bigram", "loss": 2.47, "accuracy": 0.1 if accuracy else None}
    ]
    for step in range(1, config.steps + 1):
        fall = math.exp(-6 * step / config.steps)
        norm = 9.0 if (config.spec, config.seed, step) == ("t5", 1, 30) else 0.6 + 0.1 * draw.random()
        metrics.append(
            {
                "kind": "train", "step": step, "loss": level + 3 * fall + draw.gauss(0, 0.03),
                "grad_norm": norm, "learning_rate": 1e-3,
                "tokens": step * 2048, "seconds": step * 0.05,
            }
        )  # fmt: skip
        if step % config.validate_every == 0 or step == config.steps:
            metrics.append({"kind": "validation", "step": step, "loss": level + 3 * fall})
    metrics.append(
        {
            "kind": "cost", "parameters": 462_000, "encoding_parameters": 256 if "t5" in config.spec else 0,
            "tokens_per_second": 31000 + 500 * draw.random(), "peak_memory_bytes": 180 << 20,
            "operations": 512, "bytes": 0,
        }
    )  # fmt: skip
    extensions = [None, *(config.extensions if config.spec == "rope" else ())]
    for extension in extensions:
        for length in config.lengths:
            metrics.append(_evaluation(config, extension, length, level, slope, draw, accuracy))
    finish(directory, config, metrics)


def finish(directory: Path, config: RunConfig, metrics: list[dict]) -> None:
    """Write what a run writes when it ends, with a checksum that fits."""
    content = "".join(json.dumps(metric) + "\n" for metric in metrics).encode()
    (directory / "metrics.jsonl").write_bytes(content)
    write_json(directory / "config.json", config.to_dict())
    environment = {
        "ordinate": "0.1.0",
        "torch": "2.13.0",
        "python": "3.11.7",
        "device": "cpu, 2 threads",
        "threads": 2,
    }
    write_json(directory / "environment.json", [environment])
    sign(directory)


def sign(directory: Path, state: str = "finished", reason: str = "") -> None:
    """Write the result of a run, with checksums that fit what is there."""
    names = ("config.json", "environment.json", "metrics.jsonl")
    digests = {name: sha256_of(directory / name) for name in names}
    write_json(directory / "result.json", {"state": state, "reason": reason, "sha256": digests})


def diverge(directory: Path, step: int = 9) -> None:
    """Make a run one that diverged, as the engine records it."""
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    kept = [line for line in lines if line.get("step", step) < step]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    sign(directory, "diverged", f"at step {step} its loss is nan")


def rewrite(directory: Path, change) -> None:
    """Change a run's metrics, line by line, and make the checksum fit again."""
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    config = RunConfig.from_dict(json.loads((directory / "config.json").read_text()))
    finish(
        directory, replace(config), [changed for line in lines if (changed := change(line)) is not None]
    )


def stretches(mean: float, spread: float = 0.1) -> list[float]:
    """Losses of as many stretches of text, some hard and some easy, with this mean."""
    return [
        mean * (1 + spread * math.cos(2 * math.pi * number / STRETCHES)) for number in range(STRETCHES)
    ]


def _evaluation(config, extension, length, level, slope, draw, accuracy) -> dict:
    doublings = math.log2(length / config.train_length)
    numbers = ("loss", "last_loss", "windowed_loss", "gain", "accuracy", "last_accuracy")
    empty = {
        "kind": "evaluation", "extension": extension, "length": length, **dict.fromkeys(numbers),
        **{f"{name}_error": None for name in ("loss", "last", "gain", "accuracy", "last_accuracy")}, "positions": [],
        "stretches": [], "variants": {}, "refused": None,
    }  # fmt: skip
    if slope is None and doublings > 0:
        return {**empty, "refused": REFUSED}
    trained = level
    if extension is not None:
        level, slope = level + 0.06, 0.02
    loss = level * (1 + (slope or 0) * doublings) + (draw.gauss(0, 0.001) if doublings else 0)
    bins, step = [], max(1, length // 16)
    for start in range(0, length, step):
        past = max(0.0, math.log2((start + step) / config.train_length))
        early = 0.8 * math.exp(-start / 8)
        bins.append([start, start + step, level + early + 2 * (slope or 0) * past * level, 0.01])
    found = {
        **empty, "loss": loss, "loss_error": 0.006, "positions": bins,
        "last_loss": loss + 2 * (slope or 0) * doublings, "last_error": 0.004,
    }  # fmt: skip
    if accuracy:
        right = max(0.0, 0.98 - 3 * abs(slope or 0) * doublings)
        of_last = {"last_accuracy": right, "last_accuracy_error": 0.004}
        return {**found, "accuracy": right, "accuracy_error": 0.004, **of_last}
    gain = trained - 0.001 - loss if doublings > 0 else None
    # The hard stretches are not quite the same at every length, so a rise has an error.
    return {
        **found, "stretches": stretches(loss, 0.1 + 0.01 * doublings), "windowed_loss": trained,
        "gain": gain, "gain_error": None if gain is None else 0.006,
    }  # fmt: skip
