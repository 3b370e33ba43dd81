"""`show`: the steps of an encoding, its own or what its hooks return."""

from __future__ import annotations

import torch

from ..encoding import Along, Combined, PositionEncoding
from ..entries import entry_of, parse
from ..entry import Entry
from ..parts import HOOKS, entries_of, hooks_of, name_of
from ..setting import Setting, normal
from .biases import bias_matrices
from .walk import Step, Walk, step

PLACES = {
    "none": "acts nowhere",
    "embed": "added to the embeddings",
    "rotate": "turns queries and keys",
    "bias": "added to the logits",
    "scaling": "stretches RoPE's frequencies",
}


def show(
    encoding: str | PositionEncoding,
    *,
    position: int = 3,
    dim: int = 8,
    heads: int = 8,
    length: int = 8,
    train_length: int = 4096,
) -> Walk:
    """The computation of an encoding step by step, every number computed by the encoding itself.

    Args:
        encoding: A spec as in `create`, where the bare name of a scaling stands for RoPE with it; or an encoding,
            whose own sizes then count.
        position: The token whose computation is followed.
        dim: Channels: of a head for rotations and biases, of an embedding for codes.
        heads: Number of heads, for biases.
        length: Tokens in the matrices.
        train_length: The length that wavelengths are compared with, and where scalings start from.

    Example:
        >>> walk = show("alibi", heads=2, length=3)
        >>> walk.steps[0].title
        'the slope of each head'
        >>> walk.steps[0].rows[0]
        (0, 0.0625, -4.0, 16.0)
        >>> show(ordinate.ALiBi(2)).name
        'ALiBi'
    """
    setting = Setting.of_steps(
        position=position, dim=dim, heads=heads, length=length, train_length=train_length
    )
    if isinstance(encoding, PositionEncoding):
        places, formula = _about(entries_of(encoding))
        places = places or "; ".join(PLACES[hook] for hook in HOOKS if hook in hooks_of(encoding))
        steps = tuple(_steps(encoding, setting.around(encoding)))
        return Walk(name_of(encoding), places, formula, steps)
    made = setting.encoding(encoding)
    return Walk(encoding, *_about([entry for entry, _ in parse(encoding)]), tuple(_steps(made, setting)))


def _about(entries: list[Entry]) -> tuple[str, str]:
    """Where an encoding acts, its paper and its formula; of a combination, of each part."""
    places = "; ".join(f"{PLACES[entry.hook]} ({entry.paper}, {entry.year})" for entry in entries)
    return places, "\n".join(entry.formula for entry in entries)


def _steps(encoding: PositionEncoding, setting: Setting) -> list[Step]:
    if isinstance(encoding, Combined):
        return [item for part in encoding.encodings for item in _steps(part, setting)]
    if isinstance(encoding, Along):
        return _steps(encoding.encoding, setting)
    entry = entry_of(encoding)
    own_steps = entry.steps_function() if entry else None
    return (own_steps or _by_hooks)(encoding, setting)


def _by_hooks(encoding: PositionEncoding, setting: Setting) -> list[Step]:
    """The outputs of the hooks on a short sequence, for any encoding."""
    hooks, steps = hooks_of(encoding), []
    if "embed" in hooks:
        x = torch.zeros(1, setting.length, setting.d_model, dtype=torch.float64)
        codes = encoding.embed(x)[0].detach()
        columns = ("position", *(str(channel) for channel in range(setting.d_model)))
        steps.append(
            step("what is added to the embeddings", columns, [(p, *row) for p, row in enumerate(codes)])
        )
    if "rotate" in hooks:
        q = normal(setting.head_dim).expand(1, setting.num_heads, 1, -1)
        place = torch.tensor([setting.position])
        turned, _ = encoding.rotate(q, q.clone(), place, place, lengths=setting.length_for(encoding))
        rows = [(c, q[0, 0, 0, c], turned[0, 0, 0, c].detach()) for c in range(setting.head_dim)]
        steps.append(
            step(
                f"a query before and after, at position {setting.position}",
                ("channel", "before", "after"),
                rows,
            )
        )
    if "bias" in hooks:
        steps += bias_matrices(encoding, setting, causal=True)
    return steps
