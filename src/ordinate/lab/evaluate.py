"""A trained model at many lengths: its loss as a whole, at the end, by position, and with its context cut."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..encoding import PositionEncoding
from .config import RunConfig
from .model import Transformer, token_losses
from .tasks import UNASKED, Batch, Language, Task

# Tokens of one forward pass: enough to keep a machine busy, few enough to fit beside everything else.
_TOKENS_A_PASS = {"cpu": 16384, "cuda": 131072}

# Bins of the loss by position, at most.
_MOST_BINS = 128


def evaluate(
    model: Transformer, task: Task, config: RunConfig, length: int, *, windowed: bool = True
) -> dict[str, Any]:
    """Every measure of a model at one length, as `ordinate.lab.records` describes it.

    ``windowed_loss`` is the control for "does it use the longer context?": the same targets, each
    with between half a training length and a whole one before it, positions counting from 0 as in training.
    A model that gains from a longer context has a loss below it.
    """
    refused = refusal(model.encoding, config, length)
    if refused is not None:
        names = ("loss", "loss_error", "last_loss", "windowed_loss", "accuracy", "accuracy_error")
        empty: dict[str, list] = {"positions": [], "stretches": []}
        return {"length": length, **dict.fromkeys(names), **empty, "refused": refused}
    batch = task.test_sequences(config.evaluation_tokens, length, max(config.lengths))
    losses, right = _losses(model, batch, config)
    asked = batch.targets != UNASKED
    scored, score_error = _accuracy(task, right, asked)
    per_sequence = losses.sum(1) / asked.sum(1)
    cut = _windowed(model, batch, config) if windowed and task.measure is None else None
    return {
        "length": length,
        "loss": (losses.sum() / asked.sum()).item(),
        "loss_error": _standard_error(per_sequence),
        "last_loss": _mean(losses[:, -config.last_tokens :], asked[:, -config.last_tokens :]),
        "windowed_loss": None if cut is None else cut.mean().item(),
        "positions": _by_position(losses, asked, config.train_length),
        "stretches": _by_stretch(losses, cut, max(config.lengths)) if isinstance(task, Language) else [],
        "accuracy": scored,
        "accuracy_error": score_error,
        "refused": None,
    }


def validation_loss(model: nn.Module, task: Task, config: RunConfig) -> float:
    """The loss at the training length on a quarter of the test, for a look during training."""
    tokens = max(config.evaluation_tokens // 4, config.train_length)
    batch = task.test_sequences(tokens, config.train_length, max(config.lengths))
    losses, _ = _losses(model, batch, config)
    return (losses.sum() / (batch.targets != UNASKED).sum()).item()


def refusal(encoding: PositionEncoding, config: RunConfig, length: int) -> str | None:
    """Why an encoding declines a length, in its own words; None if it does not."""
    device = torch.device(config.device)
    x = torch.zeros(1, length, config.d_model, device=device)
    q = x.view(1, length, config.num_heads, -1).transpose(1, 2)
    try:
        encoding.embed(x)
        encoding.rotate(q, q)
        encoding.bias(q, q, x=x)
    except ValueError as error:
        return str(error)
    return None


def _losses(model: nn.Module, batch: Batch, config: RunConfig) -> tuple[Tensor, Tensor]:
    """The loss of every target, and whether it was the likeliest token; on the CPU, in float64."""
    rows = max(1, _TOKENS_A_PASS[config.device] // batch.tokens.shape[1])
    losses, right = [], []
    bfloat16 = config.dtype == "bfloat16"
    with torch.no_grad(), torch.autocast(config.device, torch.bfloat16, enabled=bfloat16):
        for tokens, targets in zip(batch.tokens.split(rows), batch.targets.split(rows), strict=True):
            tokens, targets = tokens.to(config.device), targets.to(config.device)
            logits = model(tokens)
            losses.append(token_losses(logits, targets).double().cpu())
            right.append((logits.argmax(-1) == targets).cpu())
    return torch.cat(losses), torch.cat(right)


def _windowed(model: nn.Module, batch: Batch, config: RunConfig) -> Tensor:
    """The loss of each of the same targets with no more context than in training."""
    window, half = config.train_length, config.train_length // 2
    length = batch.tokens.shape[1]
    starts = [*range(0, length - window, half), length - window] if length > window else [0]
    cut = Batch(*(torch.cat([part[:, s : s + window] for s in starts]) for part in batch))
    losses, _ = _losses(model, cut, config)
    found, known = [], 0  # targets before the known one have their loss
    for start, part in zip(starts, losses.split(batch.tokens.shape[0]), strict=True):
        found.append(part[:, known - start :])
        known = start + window
    return torch.cat(found, 1)


def _by_stretch(losses: Tensor, cut: Tensor | None, longest: int) -> list[list[float | None]]:
    """``[loss, windowed loss]`` of every stretch of text: the same stretches at all lengths.

    Two lengths, or a loss and its control, differ far less from stretch to stretch than stretches do from
    each other; their errors can only be told from pairs.
    """
    pieces = longest // losses.shape[1]
    whole, windowed = (
        None if part is None else part.reshape(-1, pieces * part.shape[1]).mean(1).tolist()
        for part in (losses, cut)
    )
    return [[loss, windowed[i] if windowed else None] for i, loss in enumerate(whole or [])]


def _by_position(losses: Tensor, asked: Tensor, train_length: int) -> list[list[float]]:
    """``[start, stop, loss]`` in bins of equal width, with an edge at the training length."""
    length = losses.shape[1]
    width = max(1, train_length // 8)
    while length > width * _MOST_BINS:
        width *= 2
    bins = []
    for start in range(0, length, width):
        mean = _mean(losses[:, start : start + width], asked[:, start : start + width])
        if mean is not None:
            bins.append([start, min(start + width, length), mean])
    return bins


def _accuracy(task: Task, right: Tensor, asked: Tensor) -> tuple[float | None, float | None]:
    if task.measure is None:
        return None, None
    if task.measure == "exact match":
        scores = (right | ~asked).all(1).double()
    else:
        scores = (right & asked).sum(1).double() / asked.sum(1)
    return scores.mean().item(), _standard_error(scores)


def _mean(losses: Tensor, asked: Tensor) -> float | None:
    count = asked.sum().item()
    return losses.sum().item() / count if count else None


def _standard_error(values: Tensor) -> float | None:
    return None if len(values) < 2 else (values.std() / math.sqrt(len(values))).item()
