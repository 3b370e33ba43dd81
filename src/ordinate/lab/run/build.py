"""The parts of a run: its task, its model, its optimizer and its learning rate at each step."""

from __future__ import annotations

import math

import torch
from torch import nn

from ...checks import refused
from ...encoding import PositionEncoding
from ...entries import create
from ...text import Text
from ..config import RunConfig
from ..corpus import load_corpus
from ..seeds import seed_of
from ..tasks import TASKS, Language, Task
from .model import Transformer


def make_task(config: RunConfig) -> Task:
    """The task of a run; its text must match the config's fingerprint.

    Raises:
        ValueError: The text has changed since the config was made.
    """
    if config.task != "language":
        return TASKS[config.task]()
    corpus = load_corpus(config.text)
    if config.corpus and corpus.fingerprint != config.corpus:
        raise refused(
            "text",
            "must be what the comparison began with, of fingerprint {fingerprint}",
            Text("{source} of {fingerprint}", source=corpus.source, fingerprint=corpus.fingerprint),
            fingerprint=config.corpus,
        )
    return Language(corpus)


def make_model(config: RunConfig) -> Transformer:
    """An untrained model. With one seed, models of all encodings start from the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of("encoding", config.seed))  # for a learned encoding's own parameters
        encoding = make_encoding(config.spec, config)
        torch.manual_seed(seed_of("weights", config.seed))
        return Transformer(
            encoding,
            d_model=config.d_model,
            num_layers=config.num_layers,
            num_heads=config.num_heads,
        )


def make_encoding(spec: str, config: RunConfig) -> PositionEncoding:
    """The encoding of a spec with the sizes of a run; its positions end at the training length."""
    return create(
        spec, d_model=config.d_model, num_heads=config.num_heads, max_positions=config.train_length
    )


def make_optimizer(model: nn.Module, config: RunConfig) -> torch.optim.AdamW:
    """AdamW, with weight decay for matrices, but not for gains and the encoding's own parameters."""
    groups: dict[str, list[nn.Parameter]] = {"matrices": [], "gains": [], "encoding": []}
    for name, parameter in model.named_parameters():
        kind = (
            "encoding"
            if name.startswith("encoding.")
            else "matrices"
            if parameter.dim() > 1
            else "gains"
        )
        groups[kind].append(parameter)
    settings = {
        "matrices": {"weight_decay": config.weight_decay, "factor": 1.0},
        "gains": {"weight_decay": 0.0, "factor": 1.0},
        "encoding": {"weight_decay": 0.0, "factor": config.encoding_rate},
    }
    listed = [{"params": members, **settings[kind]} for kind, members in groups.items() if members]
    return torch.optim.AdamW(listed, lr=config.learning_rate, betas=(0.9, 0.95), fused=True)


def learning_rate(config: RunConfig, step: int) -> float:
    """A linear warm-up to the full rate, then a cosine down to a tenth of it."""
    if step < config.warmup:
        return config.learning_rate * (step + 1) / config.warmup
    done = (step - config.warmup) / max(1, config.steps - config.warmup)
    return config.learning_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))
