"""Score against distance: the score of a token with a copy of itself further and further away."""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor

from ..bias.add import parts_of
from ..bias.types import RowBias
from ..checks import check_at_most
from ..encoding import PositionEncoding
from ..setting import Setting
from ..text import Text, joined
from ..verification.observe import bias_of, score_curves
from .biases import heads_left_out, spread
from .pictures import Axis, Lines, Mark, Picture, Series

_LARGEST = 2**23  # numbers in the vectors that are scored, a few copies of which must fit


def scores(encoding: PositionEncoding, setting: Setting, subject: str) -> Picture:
    """The score of a token with a copy of itself at each distance, for each head where heads differ."""
    curves = scores_by_distance(encoding, setting)
    distances = torch.arange(curves.shape[1])
    names = (
        ["score"]
        if len(curves) == 1
        else [Text("head {head}", head=head) for head in range(len(curves))]
    )
    series = tuple(Series(names[at], distances, curves[at]) for at in spread(len(curves), 8))
    x = Axis("distance, query - key (positions)")
    panel = Lines(
        x, Axis("score (logits)"), series, marks=(Mark("y", 0.0, ""),), ordered=len(curves) > 1
    )
    tokens = "a random token with its like, averaged over signs"
    if _reads_the_query(encoding, setting):
        tokens = "one random token with its like: the term depends on the token"
    note = joined(tokens, heads_left_out(len(series), len(curves)))
    return Picture("scores", subject, "score against distance", (panel,), note)


def scores_by_distance(
    encoding: PositionEncoding, setting: Setting
) -> Float64[Tensor, "curves distances"]:
    """One curve a head where the encoding biases scores, else their mean.

    The tokens are random signs and their opposites, as `ordinate.verify` takes them for its property of decay. A
    bias that depends on the token would cancel in their mean: for such a bias there is one token.
    """
    count = setting.within(setting.distance + 1)
    check_at_most("dim times heads times distance of the scores", setting.d_model * count, _LARGEST)
    signs = setting.signs(setting.d_model)
    tokens = signs[None] if _reads_the_query(encoding, setting) else torch.stack((signs, -signs))
    with torch.no_grad():
        return score_curves(encoding, setting, tokens, count)


def _reads_the_query(encoding: PositionEncoding, setting: Setting) -> bool:
    """Whether the bias depends on the content of the query."""
    q = setting.signs(1, setting.num_heads, 1, setting.head_dim)
    bias = bias_of(encoding, q, q.clone(), x=setting.signs(1, 1, setting.d_model))
    return any(isinstance(part, RowBias) for part in parts_of(bias))
