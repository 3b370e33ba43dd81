"""`show`: the steps of an encoding, its own or what its hooks return."""

from __future__ import annotations

import torch

from ..encoding import Along, Combined, PositionEncoding
from ..entries import entry_of, parse
from ..verification.observe import hooks_of
from .biases import bias_matrices
from .setting import Example, example_encoding
from .walk import Step, Walk, step

PLACES = {
    "none": "acts nowhere",
    "embed": "added to the embeddings",
    "rotate": "turns queries and keys",
    "bias": "added to the logits",
    "scaling": "stretches RoPE's frequencies",
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
    entry = entry_of(encoding)
    own_steps = entry.steps_function() if entry else None
    return (own_steps or _by_hooks)(encoding, example)


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
