"""Presets of comparisons in three sizes, each for a kind of machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..config import RunConfig

_SCALINGS = ("linear:factor=8", "ntk:factor=8", "yarn:factor=8", "dynamic:factor=1")


@dataclass(frozen=True)
class Preset:
    """Arms for a training length, the number of seeds, and settings that differ from `RunConfig`'s defaults.

    Attributes:
        steps: Task → steps, for tasks that need more steps than others.
    """

    about: str
    arms: Callable[[int], tuple[str, ...]]
    seeds: int
    settings: dict[str, Any]
    steps: dict[str, int] = field(default_factory=dict)

    def config(self, **changes: Any) -> RunConfig:
        """The config of this preset's runs, except the encoding."""
        task = changes.get("task")
        of_task = {"steps": self.steps[task]} if task in self.steps else {}
        return RunConfig("none", **{**self.settings, **of_task, **changes})


def _t5(distance: int) -> str:
    """T5's bias whose last row is at ``distance``; a short distance has fewer than 32 rows."""
    few = f",num_buckets={distance - distance % 2}" if distance <= 16 else ""
    return f"t5:max_distance={distance}{few}"


#: Tables of a relative bias have no row for distances beyond the training length: such a row would not be trained.
#: If distances share a row, the last row must include a trained distance.
PRESETS: dict[str, Preset] = {
    "quick": Preset(
        "minutes on two cores",
        lambda length: (
            "none", "learned", "sinusoidal", "rope", "alibi", _t5(length),
            f"clipped:max_distance={max(1, length // 2)}",
        ),
        1,
        {"extensions": _SCALINGS},
        # By experiment: after these steps RoPE has learned the task (docs/lab.md).
        {"passkey": 3000, "copy": 5000, "reverse": 6000, "induction": 1500},
    ),
    "standard": Preset(
        "hours on two cores: three seeds, a longer training length",
        lambda length: (
            "none", "learned", "sinusoidal", "rope", "alibi", _t5(length),
            f"clipped:max_distance={max(1, length // 2)}", f"shaw:max_distance={min(16, length)}",
        ),
        3,
        {
            "train_length": 128, "lengths": (128, 192, 256, 512, 1024, 2048), "steps": 3000,
            "num_layers": 4, "d_model": 192, "warmup": 200, "learning_rate": 2e-3,
            "evaluation_tokens": 131072, "extensions": _SCALINGS, "validate_every": 250,
        },
    ),
    "gpu": Preset(
        "about two minutes a run on one data-centre GPU",
        lambda length: (
            "none", "learned", "sinusoidal", "rope", "alibi", _t5(min(128, length)),
            f"clipped:max_distance={min(128, length)}", f"shaw:max_distance={min(16, length)}",
            "rope:base=1e6",
        ),
        1,
        {
            "train_length": 512, "lengths": (512, 576, 640, 768, 1024, 2048, 4096, 8192, 16384, 32768),
            "steps": 1200, "batch": 64, "num_layers": 8, "d_model": 512, "num_heads": 8,
            "learning_rate": 1e-3, "warmup": 120, "evaluation_tokens": 524288, "last_tokens": 64,
            "extensions": _SCALINGS, "validate_every": 200, "checkpoint_every": 400,
            "device": "cuda", "dtype": "bfloat16", "compile": True,
        },
    ),
}  # fmt: skip
