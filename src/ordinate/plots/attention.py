"""The permutation experiment: attention before and after the words of a sentence are shuffled."""

from __future__ import annotations

import copy
import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

from ..attending.api import attention
from ..checks import check_at_most, refused
from ..encoding import NoPE, PositionEncoding
from ..setting import Setting
from ..text import Text
from ..verification.observe import causal_only
from .biases import largest
from .pictures import Axis, Heatmap, Picture

MAX_WORDS = 16
MAX_WIDTH = 2048  # channels of all heads; the layer holds three times its square


@dataclass(frozen=True, eq=False)
class Shuffle:
    """One encoding, one sentence, two orders.

    Attributes:
        before, after: Attention weights of the sentence, and of the shuffled one put back into its order.
        change: The largest change of any output, put back into order: 0 where order does not count.
    """

    words: tuple[str, ...]
    order: tuple[int, ...]
    before: Tensor
    after: Tensor
    change: float


def shuffle(
    encoding: PositionEncoding,
    words: list[str],
    setting: Setting,
    seed: int = 0,
    *,
    causal: bool = False,
) -> Shuffle:
    """Attend to the words in their order and in another, through one fixed random layer.

    Args:
        setting: The sizes of the layer.
        seed: Of the order; the words' vectors and the layer are always the same.
        causal: Under a causal mask, which shows the order even without positions.
    """
    check_at_most("dim times heads of an attention", setting.num_heads * setting.head_dim, MAX_WIDTH)
    order = _another_order(len(words), seed)
    x = torch.stack([_vector(word, setting.d_model) for word in words])[None]
    weights, out = _attend(encoding, x, setting, causal)
    shuffled_weights, shuffled_out = _attend(encoding, x[:, order], setting, causal)
    back = torch.argsort(order)
    change = float((shuffled_out[:, back] - out).abs().amax())
    put_back = shuffled_weights[back][:, back]
    return Shuffle(tuple(words), tuple(order.tolist()), weights, put_back, change)


def experiment(encoding: PositionEncoding, setting: Setting, subject: str, seed: int = 0) -> Picture:
    """Attention before and after a shuffle, without positions and with the encoding, under one and the same mask."""
    words = split(setting.text)
    placed = both_ways(encoding)
    causal = causal_only(placed, setting)
    means = "symmetric, for attention without a mask" if placed is not encoding else ""
    means = "all under a causal mask, which tells the order too" if causal else means
    without = shuffle(NoPE(), words, setting, seed, causal=causal)
    return draw(without, shuffle(placed, words, setting, seed, causal=causal), subject, means)


def both_ways(encoding: PositionEncoding) -> PositionEncoding:
    """The encoding for attention without a causal mask: a part with an option ``symmetric`` has it switched on.

    A mask shows the order of the words by itself, and would hide what the encoding shows of it.
    """
    if not any(getattr(part, "symmetric", None) is False for part in encoding.modules()):
        return encoding
    changed = copy.deepcopy(encoding)
    for part in changed.modules():
        if getattr(part, "symmetric", None) is False:
            part.symmetric = True  # type: ignore[assignment]
    return changed


def draw(plain: Shuffle, placed: Shuffle, subject: str, means: str = "") -> Picture:
    """Without and with positions: the weights before, after, and what became of them."""
    limit = largest(plain.before, plain.after, placed.before, placed.after)
    names = tuple(f"{place + 1} {word}" for place, word in enumerate(plain.words))
    axes = (Axis("looks at"), Axis("word"))
    changes = [float((result.after - result.before).abs().amax()) for result in (plain, placed)]
    visible = max(*changes, 0.01)  # so that rounding stays white
    panels = []
    for result, who in (
        (plain, "without positions"),
        (placed, Text("with {encoding}", encoding=subject)),
    ):
        change = result.after - result.before
        for matrix, title in ((result.before, who), (result.after, "shuffled, put back in order")):
            panels.append(Heatmap(matrix, *axes, "attention weight", 0.0, limit, title, names, names))
        panels.append(Heatmap(change, *axes, "change", -visible, visible, "change", names, names))
    shuffled = " ".join(plain.words[index] for index in plain.order)
    note = Text(
        "shuffled: {words}. Outputs change by {without} without positions, by {placed} with {encoding}{means}",
        words=shuffled, without=f"{plain.change:.1e}", placed=f"{placed.change:.1e}", encoding=subject,
        means=Text(" ({means})", means=Text(means)) if means else "",
    )  # fmt: skip
    return Picture("attention", subject, "attention before and after a shuffle", tuple(panels), note, 3)


def split(text: str) -> list[str]:
    """The words of a sentence; of one without spaces, such as Chinese, its characters."""
    words = text.split()
    if len(words) == 1:
        words = list(words[0])
    if not 2 <= len(words) <= MAX_WORDS:
        raise refused("text", "must have 2 to {most} words", len(words), most=MAX_WORDS)
    return [word[:24] for word in words]


def _another_order(count: int, seed: int) -> Tensor:
    """A permutation that moves something."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(count, generator=generator)
        if not torch.equal(order, torch.arange(count)):
            return order


def _vector(word: str, dim: int) -> Tensor:
    """A random vector that depends on the word only."""
    generator = torch.Generator().manual_seed(zlib.crc32(word.encode()))
    return torch.randn(dim, dtype=torch.float64, generator=generator)


def _attend(
    encoding: PositionEncoding, x: Tensor, setting: Setting, causal: bool
) -> tuple[Tensor, Tensor]:
    """The weights, averaged over heads, and the outputs ``[heads, seq, head_dim]`` of one random layer."""
    count, heads = x.shape[1], setting.num_heads
    generator = torch.Generator().manual_seed(1)
    shape = (3, heads, setting.d_model, setting.head_dim)
    projections = torch.randn(shape, dtype=torch.float64, generator=generator) / setting.d_model**0.5
    with torch.no_grad():
        hidden = encoding.embed(x.clone())
        q, k, v = (torch.einsum("bsd,hde->bhse", hidden, projection) for projection in projections)
        # Attention over one-hot values is its weights.
        seen = torch.eye(count, dtype=torch.float64).expand(1, heads, count, count)
        weights = attention(q, k, seen, encoding, causal=causal, x=hidden, impl="reference")
        assert isinstance(weights, Tensor)
    return weights[0].mean(dim=0), (weights @ v)[0]
