"""Evaluates a trained model at many lengths: total loss, loss at the end and by position, and against a control.

Stretches of text differ in difficulty by more than most encodings differ. So positions are compared on the same
targets, by a control, `windowed_losses`: every n-th target, predicted from exactly the last training length of
tokens, at the positions of training. The loss of a target minus its control is the effect of the position, without the
difficulty of the target.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ...encoding import PositionEncoding
from ..config import RunConfig
from ..tasks import IGNORED, Batch, Language, Problem, Task
from .model import Transformer, token_losses

# Tokens of one forward pass: enough to use the machine, few enough to fit in its memory.
_TOKENS_A_PASS = {"cpu": 4096, "cuda": 131072, "mps": 4096}


def evaluate(
    model: Transformer,
    task: Task,
    config: RunConfig,
    length: int,
    control: Float[Tensor, "stretches targets"] | None = None,
) -> dict[str, Any]:
    """Every measure of a model at one length, as `ordinate.lab.records` describes it.

    Args:
        control: The result of `windowed_losses` for this model as trained.
    """
    refused = refusal(model.encoding, config, length)
    if refused is not None:
        return {"length": length, **_no_measures(), "refused": refused}
    batch = task.test_sequences(config, length)
    losses, right = _losses(model, batch, config)
    asked = batch.targets != IGNORED
    at = torch.arange(length).expand_as(asked)
    scored, score_error = _accuracy(task, right, asked)
    ends = asked & (at >= length - config.last_tokens)
    # If only complete answers count, all of an answer counts as last tokens, wherever it starts.
    last = _accuracy(task, right, asked if task.measure == "exact match" else ends)
    if isinstance(task, Language):  # use stretches as rows, which are the same at every length
        stretches = len(task.stretches(config))
        losses, at = (part[asked].view(stretches, -1) for part in (losses, at))
        asked = torch.ones_like(losses, dtype=torch.bool)
    loss, loss_error = _mean(losses, asked)
    found = {
        "length": length,
        **_no_measures(),
        "loss": loss,
        "loss_error": loss_error,
        "stretches": losses.mean(1).tolist() if isinstance(task, Language) else [],
        "accuracy": scored,
        "accuracy_error": score_error,
        "last_accuracy": last[0],
        "last_accuracy_error": last[1],
        "variants": _variants(model, task, config, length),
    }
    level = 0.0
    if control is not None and isinstance(task, Language):
        chosen = task.controlled(config)
        losses, at, asked = (part.gather(1, chosen) for part in (losses, at, asked))
        losses = losses - control
        level = control.mean().item()
        found["windowed_loss"] = level
        gain, found["gain_error"] = _mean(-losses, asked & (at >= config.train_length))
        found["gain"] = gain
    last_loss, found["last_error"] = _mean(losses, asked & (at >= length - config.last_tokens))
    found["last_loss"] = None if last_loss is None else level + last_loss
    for start, stop in _bins(length, config.train_length):
        mean, error = _mean(losses, asked & (at >= start) & (at < stop))
        if mean is not None:
            found["positions"].append([start, stop, level + mean, error])
    return found


def windowed_losses(
    model: nn.Module,
    task: Task,
    config: RunConfig,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Float[Tensor, "stretches targets"] | None:
    """The control: the loss of every n-th target, predicted from exactly the last training length of tokens.

    A model that uses more context has a lower loss if it sees more. None for problems, whose answers need the complete
    question.

    Args:
        report: Called with the number of finished targets, 0 first, and their total number.
    """
    if not isinstance(task, Language):
        return None
    tokens, targets = task.windows(config)
    rows = max(1, _TOKENS_A_PASS[config.device] // config.train_length)
    losses: list[Tensor] = []
    report(0, len(targets))
    with torch.no_grad(), _autocast(config):
        for window, target in zip(tokens.split(rows), targets.split(rows), strict=True):
            logits = model(window.to(config.device))[:, -1:]
            losses.append(token_losses(logits, target[:, None].to(config.device)).cpu().double())
            report(sum(map(len, losses)), len(targets))
    return torch.cat(losses).view(len(task.stretches(config)), -1)


def validation_loss(model: nn.Module, task: Task, config: RunConfig) -> float:
    """The loss at the training length on a quarter of the test, during training."""
    batch = task.test_sequences(config, config.train_length)
    batch = Batch(*(part[::4] for part in batch))
    losses, _ = _losses(model, batch, config)
    return (losses.sum() / (batch.targets != IGNORED).sum()).item()


def refusal(encoding: PositionEncoding, config: RunConfig, length: int) -> str | None:
    """The error with which an encoding refuses a length; None if it does not."""
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
    """The loss of every target, and whether the target was the likeliest token; on the CPU, in float64."""
    rows = max(1, _TOKENS_A_PASS[config.device] // batch.tokens.shape[1])
    losses, right = [], []
    with torch.no_grad(), _autocast(config):
        for tokens, targets in zip(batch.tokens.split(rows), batch.targets.split(rows), strict=True):
            tokens, targets = tokens.to(config.device), targets.to(config.device)
            logits = model(tokens)
            losses.append(token_losses(logits, targets).cpu().double())
            right.append((logits.argmax(-1) == targets).cpu())
    return torch.cat(losses), torch.cat(right)


def _autocast(config: RunConfig) -> torch.autocast:
    return torch.autocast(config.device, torch.bfloat16, enabled=config.dtype == "bfloat16")


def _bins(length: int, train_length: int) -> list[tuple[int, int]]:
    """Bins of positions: eighths of the training length, then quarters of an octave, for a logarithmic axis."""
    edges = {train_length * eighth // 8 for eighth in range(9)}
    octaves = math.log2(max(length / train_length, 1))
    edges |= {round(train_length * 2 ** (quarter / 4)) for quarter in range(math.ceil(4 * octaves))}
    ordered = [*sorted(edge for edge in edges if edge < length), length]
    return list(itertools.pairwise(ordered))


def _accuracy(task: Task, right: Tensor, asked: Tensor) -> tuple[float | None, float | None]:
    """The share of right answers, complete answers or single tokens, and its standard error."""
    if task.measure is None:
        return None, None
    if task.measure == "exact match":
        right, asked = (right | ~asked).all(1, keepdim=True), torch.ones(len(asked), 1, dtype=torch.bool)
    share, error = _mean(right.double(), asked)
    # If all are right, or all wrong, the rule of three bounds the share of others by 3 / rows, which is two errors.
    rows = asked.any(1).sum().item()
    return share, None if error is None else max(error, 1.5 / rows)


def _variants(model: nn.Module, task: Task, config: RunConfig, length: int) -> dict[str, list]:
    """Accuracy and its standard error on a problem's further test sets."""
    if not isinstance(task, Problem):
        return {}
    found = {}
    for variant in task.variants:
        batch = task.test_sequences(config, length, variant)
        _, right = _losses(model, batch, config)
        found[variant] = list(_accuracy(task, right, batch.targets != IGNORED))
    return found


def _mean(
    values: Float[Tensor, "rows columns"], counted: Bool[Tensor, "rows columns"]
) -> tuple[float | None, float | None]:
    """The mean of the counted values, and its standard error; rows are drawn independently."""
    counts = counted.sum(1).double()
    sums = torch.where(counted, values, 0.0).sum(1)
    total = counts.sum()
    if total == 0:
        return None, None
    mean = sums.sum() / total
    if len(counts) < 2:
        return mean.item(), None
    # The error of a ratio of two sums, because rows may have different numbers of values.
    scatter = (sums - mean * counts).square().sum() * len(counts) / (len(counts) - 1)
    return mean.item(), (scatter.sqrt() / total).item()


def _no_measures() -> dict[str, Any]:
    """Every measure, with no value."""
    names = (
        "loss", "loss_error", "last_loss", "last_error", "windowed_loss", "gain", "gain_error",
        "accuracy", "accuracy_error", "last_accuracy", "last_accuracy_error", "refused",
    )  # fmt: skip
    return {**dict.fromkeys(names), "positions": [], "stretches": [], "variants": {}}
