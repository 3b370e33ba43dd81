"""`show`: which steps belong to which encoding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..attending.api import attention
from ..bias.alibi import ALiBi
from ..bias.clipped import ClippedBias
from ..bias.shaw import Shaw
from ..bias.t5 import T5Bias
from ..embed.learned import Learned
from ..embed.sinusoidal import Sinusoidal
from ..encoding import Along, Combined, NoPE, PositionEncoding
from ..entries import parse
from ..rotate.rope import RoPE
from ..verification.observe import hooks_of
from .biases import bias_matrices, steps_of_alibi, steps_of_clipped, steps_of_shaw, steps_of_t5
from .codes import steps_of_learned, steps_of_sinusoidal
from .rotary import steps_of_rope
from .setting import Example, example_encoding
from .walk import Step, Walk, step

PLACES = {
    "none": "acts nowhere",
    "embed": "added to the embeddings",
    "rotate": "turns queries and keys",
    "bias": "added to the logits",
    "scaling": "stretches RoPE's frequencies",
}

_STEPS: dict[type, Callable[[Any, Example], list[Step]]] = {
    Sinusoidal: steps_of_sinusoidal,
    Learned: steps_of_learned,
    RoPE: steps_of_rope,
    ALiBi: steps_of_alibi,
    T5Bias: steps_of_t5,
    ClippedBias: steps_of_clipped,
    Shaw: steps_of_shaw,
}


def show(
    spec: str,
    *,
    position: int = 3,
    dim: int = 8,
    heads: int = 8,
    length: int = 8,
    train_length: int = 4096,
) -> Walk:
    """The computation of an encoding step by step, every number computed by the encoding itself.

    Args:
        spec: As in `create`; the bare name of a scaling stands for RoPE with it.
        position: The token whose computation is followed.
        dim: Channels: of a head for what turns or scores, of an embedding for codes.
        heads: Number of heads, for biases.
        length: Tokens in the matrices.
        train_length: What wavelengths are compared with, and where scalings start from.

    Example:
        >>> walk = show("alibi", heads=2, length=3)
        >>> walk.steps[0].title
        'the slope of each head'
        >>> walk.steps[0].rows[0]
        (0, 0.0625, -4.0, 16.0)
    """
    example = Example(position, dim, heads, length, train_length)
    encoding = example_encoding(spec, **example.sizes)
    return Walk(spec, *_about(spec), tuple(_steps(encoding, example)))


def _about(spec: str) -> tuple[str, str]:
    """Where an encoding acts, its paper and its formula; of a combination, of each part."""
    entries = [entry for entry, _ in parse(spec)]
    places = "; ".join(f"{PLACES[entry.hook]} ({entry.paper}, {entry.year})" for entry in entries)
    return places, "\n".join(entry.formula for entry in entries)


def _steps(encoding: PositionEncoding, example: Example) -> list[Step]:
    if isinstance(encoding, Combined):
        return [item for part in encoding.encodings for item in _steps(part, example)]
    if isinstance(encoding, Along):
        return _steps(encoding.encoding, example)
    specific = _STEPS.get(type(encoding))
    if specific is not None:
        return specific(encoding, example)
    if type(encoding) is NoPE:
        return _without_positions(example)
    return _by_hooks(encoding, example)


def _without_positions(example: Example) -> list[Step]:
    """Shuffle the tokens of an attention without positions: the outputs shuffle with them."""
    x = example.vectors(1, example.dim)
    order = torch.randperm(example.length, generator=torch.Generator().manual_seed(0))
    out = attention(x, x, x, impl="reference")
    shuffled = attention(*(x[:, :, order],) * 3, impl="reference")
    assert isinstance(out, torch.Tensor)
    assert isinstance(shuffled, torch.Tensor)
    rows = [
        (place, int(token), shuffled[0, 0, place, 0], out[0, 0, token, 0])
        for place, token in enumerate(order)
    ]
    change = float((shuffled - out[:, :, order]).abs().amax())
    return [
        step(
            f"{example.length} tokens attend to each other, then again in another order",
            ("place", "token", "channel 0, shuffled", "channel 0 of that token before"),
            rows,
            note=f"every token keeps its output wherever it stands (largest change {change:.1e}): "
            "without positions or a mask, order is invisible",
        )
    ]


def _by_hooks(encoding: PositionEncoding, example: Example) -> list[Step]:
    """What can be said of any encoding: what it adds, turns and biases on a short sequence."""
    hooks, steps = hooks_of(encoding), []
    if "embed" in hooks:
        x = torch.zeros(1, example.length, example.dim, dtype=torch.float64)
        codes = encoding.embed(x)[0].detach()
        columns = ("position", *(str(channel) for channel in range(example.dim)))
        steps.append(
            step("what is added to the embeddings", columns, [(p, *row) for p, row in enumerate(codes)])
        )
    if "rotate" in hooks:
        q = example.vector(example.dim).expand(1, example.heads, 1, -1)
        place = torch.tensor([example.position])
        turned, _ = encoding.rotate(q, q.clone(), place, place, lengths=example.length_for(encoding))
        rows = [(c, q[0, 0, 0, c], turned[0, 0, 0, c].detach()) for c in range(example.dim)]
        steps.append(
            step(
                f"a query before and after, at position {example.position}",
                ("channel", "before", "after"),
                rows,
            )
        )
    if "bias" in hooks:
        steps += bias_matrices(encoding, example, causal=True)
    return steps
