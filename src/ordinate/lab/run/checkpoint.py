"""The state of a run in progress, in one safetensors file that is written atomically."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ...checks import refused
from ...files import write_file
from ..config import RunConfig
from ..records import MetricsPrefix
from ..strict_json import open_regular, parse

_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass
class State:
    """The state of a run. Batches depend on the step only, so no state of a random generator is stored.

    Attributes:
        config: The run's config.
        prefix: The lines of the metrics up to this step.
    """

    config: RunConfig
    step: int
    seconds: float
    prefix: MetricsPrefix
    tensors: dict[str, Tensor]


def capture(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Weights and the optimizer's moments, keyed by the parameters' names."""
    tensors = {}
    for name, parameter in model.named_parameters():
        tensors[f"model.{name}"] = parameter.detach()
        for moment in _MOMENTS if parameter in optimizer.state else ():
            tensors[f"{moment}.{name}"] = optimizer.state[parameter][moment]
    return tensors


def restore(state: State, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Load a state into a model and its optimizer, on their device."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(state.tensors[f"model.{name}"])
            if f"{_MOMENTS[0]}.{name}" in state.tensors:
                held = optimizer.state[parameter]
                held["step"] = torch.tensor(float(state.step))
                if parameter.is_cuda:  # the fused optimizer counts steps on the device
                    held["step"] = held["step"].to(parameter.device)
                for moment in _MOMENTS:
                    held[moment] = state.tensors[f"{moment}.{name}"].to(parameter.device).clone()


def save(state: State, path: Path) -> None:
    about = {
        "config": json.dumps(state.config.to_dict()), "step": str(state.step),
        "seconds": repr(state.seconds), "lines": str(state.prefix.lines), "metrics": state.prefix.sha256,
    }  # fmt: skip
    save_tensors(state.tensors, path, about)


def save_tensors(tensors: dict[str, Tensor], path: Path, about: dict[str, str] | None = None) -> None:
    """Save tensors and metadata, with the SHA-256 of both."""
    from safetensors.torch import save as to_bytes

    tensors = {name: tensor.contiguous().cpu() for name, tensor in tensors.items()}
    about = about or {}
    write_file(path, to_bytes(tensors, {**about, "sha256": _digest(tensors, about)}))


def load(path: Path) -> State:
    """The state in a file.

    Raises:
        ValueError: The file is not a complete checkpoint.
    """
    from safetensors import SafetensorError, safe_open

    open_regular(path).close()  # refuses a pipe, for which safetensors would wait
    try:
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        whole = about.pop("sha256") == _digest(tensors, about)
        state = State(
            RunConfig.from_dict(parse(about["config"].encode(), "config")), int(about["step"]), float(about["seconds"]),
            MetricsPrefix(int(about["lines"]), about["metrics"]), tensors,
        )  # fmt: skip
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise refused(
            path.name, "must be a checkpoint, cannot be read: {reason}", reason=f"{error!r:.400}"
        ) from None
    if not whole:
        raise refused(path.name, "must be as it was written, its SHA-256 differs")
    return state


def step_of(directory: Path) -> int:
    """The step of an unfinished run's checkpoint; 0 without a readable checkpoint."""
    from safetensors import SafetensorError, safe_open

    path = directory / "checkpoint.safetensors"
    try:
        open_regular(path).close()
        with safe_open(path, "pt") as file:
            return int((file.metadata() or {})["step"])
    except (SafetensorError, KeyError, ValueError, OSError):
        return 0


def how_it_resumes(directory: Path) -> str:
    """The step from which an unfinished run will continue, in words."""
    step = step_of(directory)
    return (
        f"goes on from the checkpoint at step {step}"
        if step
        else "starts again, for it has no checkpoint"
    )


def _digest(tensors: dict[str, Tensor], about: dict[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].numpy().tobytes())
    return digest.hexdigest()
