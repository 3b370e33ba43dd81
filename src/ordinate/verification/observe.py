"""The three hooks of any encoding, called in float64 on known inputs.

No encoding is known here by name, so an encoding that a user wrote is measured like the built-in ones.
"""

from __future__ import annotations

import copy
import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attending.call import scaled_dense
from ..bias.add import parts_of
from ..bias.types import Bias
from ..encoding import PositionEncoding
from ..parts import hooks_of
from ..setting import Setting
from .report import BrokenAnswer, NotApplicable


def cast(encoding: PositionEncoding, dtype: torch.dtype) -> PositionEncoding:
    """The encoding itself in another dtype; complex tensors stay complex, as with ``encoding.bfloat16()``.

    ``encoding.to(dtype)`` would drop their imaginary parts.
    """

    def held(tensor: Tensor) -> Tensor:
        if tensor.is_complex():
            return tensor.to(torch.complex128) if dtype == torch.float64 else tensor
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return encoding._apply(held)


def bias_of(
    encoding: PositionEncoding,
    q: Tensor,
    k: Tensor,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
    *,
    x: Tensor,
) -> Bias | None:
    """What ``bias`` returns, which attention would refuse if it were no bias."""
    bias = encoding.bias(q, k, q_positions, k_positions, x=x)
    if bias is not None and not isinstance(bias, Bias):
        raise BrokenAnswer(
            f"bias must be one of ordinate's bias types (a dense matrix is not), got {type(bias).__name__}"
        )
    return bias


def key_heads(encoding: PositionEncoding, setting: Setting, count: int = 1) -> int:
    """``count`` key heads if the encoding takes so few (1 saves work on long rows), else as many as query heads."""
    q, k = (
        setting.signs(1, setting.num_heads, 1, setting.head_dim),
        setting.signs(1, count, 1, setting.head_dim),
    )
    here = torch.zeros(1, 1, dtype=torch.int64)
    try:
        lengths = setting.length_for(encoding)
        some, x = copy.deepcopy(encoding), setting.signs(1, 1, setting.d_model)
        _, turned = some.rotate(q, k.clone(), here, here, lengths=lengths)
        some.bias(q, k, here, here, x=x)
    except Exception:  # the property that fails for it reports it
        return setting.num_heads
    return count if turned.shape == k.shape else setting.num_heads


def few_heads(encoding: PositionEncoding, setting: Setting) -> int:
    """The smallest number of key heads above 1, if the encoding takes grouped queries; else as many as query heads."""
    heads = setting.num_heads
    fewest = next((count for count in range(2, heads) if heads % count == 0), 1)
    return key_heads(encoding, setting, fewest)


def need(hook: str, encoding: PositionEncoding) -> None:
    """The measurement does not apply to an encoding without this hook."""
    reasons = {
        "embed": "it adds no code to the embeddings",
        "rotate": "it does not turn queries and keys",
        "bias": "it adds nothing to the scores",
    }
    if hook not in hooks_of(encoding):
        raise NotApplicable(reasons[hook])


def need_any(encoding: PositionEncoding) -> None:
    """The measurement does not apply to an encoding without hooks."""
    if not hooks_of(encoding):
        raise NotApplicable("it does nothing")


def codes(
    encoding: PositionEncoding, setting: Setting, positions: Int[Tensor, " seq"]
) -> Float[Tensor, "seq d_model"]:
    """What `embed` adds at each position, on an input that is the same everywhere."""
    need("embed", encoding)
    x = setting.signs(setting.d_model).repeat(1, len(positions), 1)
    return encoding.embed(x.clone(), positions)[0] - x[0]


def turned(
    encoding: PositionEncoding,
    setting: Setting,
    positions: Int[Tensor, " seq"],
    x: Tensor | None = None,
    *,
    keys: bool = False,
) -> Float[Tensor, "seq channels"]:
    """One query (or key) rotated at each position; all heads side by side.

    Args:
        x: ``[heads, head_dim]`` in place of random signs.
    """
    need("rotate", encoding)
    if x is None:
        x = setting.signs(setting.num_heads, setting.head_dim)
    many = x[None, :, None].repeat(1, 1, len(positions), 1)
    one = setting.signs(1, setting.num_heads, 1, setting.head_dim).to(x.dtype)
    q, k, at_q, at_k = one, many, positions[:1], positions
    if not keys:
        q, k, at_q, at_k = many, one, positions, positions[:1]
    rotated = encoding.rotate(q, k, at_q, at_k, lengths=setting.length_for(encoding))
    return rotated[keys][0].transpose(0, 1).flatten(1)


def bias_by_distance(
    encoding: PositionEncoding,
    setting: Setting,
    distances: Int[Tensor, " count"],
    dtype: torch.dtype = torch.float64,
) -> Float[Tensor, "heads count"]:
    """What `bias` adds to the scores of one query with equal keys, at these distances."""
    need("bias", encoding)
    query = torch.stack((distances.amax(), distances.new_zeros(()))).amax()
    q = setting.signs(1, setting.num_heads, 1, setting.head_dim).to(dtype)
    k = q.repeat(1, 1, len(distances), 1)
    x = setting.signs(1, 1, setting.d_model).to(dtype).expand(-1, len(distances), -1)
    bias = bias_of(encoding, q, k, query[None], query - distances, x=x)
    if bias is None:
        return torch.zeros(setting.num_heads, len(distances), dtype=dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return dense_bias(bias, encoding, setting, wide)[0, :, 0]


def logits(
    encoding: PositionEncoding,
    setting: Setting,
    x: Float[Tensor, "batch seq d_model"],
    q_positions: Int[Tensor, "..."],
    k_positions: Int[Tensor, "..."],
) -> Float[Tensor, "batch heads q seq"]:
    """The scores of the last tokens of ``x`` with all of them, before any mask and softmax.

    Queries and keys are the embedded tokens themselves, cut into heads.
    """
    hidden = encoding.embed(x.clone(), k_positions)
    k = _heads(hidden, setting)
    q = k[:, :, -q_positions.shape[-1] :].clone()
    bias = bias_of(encoding, q, k, q_positions, k_positions, x=hidden)
    length = setting.length_for(encoding)
    q, k = encoding.rotate(q, k, q_positions, k_positions, lengths=length)
    scores = q @ k.transpose(-1, -2) * _scale(encoding, setting)
    return scores if bias is None else scores + dense_bias(bias, encoding, setting, scores.dtype)


def score_curves(
    encoding: PositionEncoding, setting: Setting, tokens: Float[Tensor, "batch d_model"], count: int
) -> Float[Tensor, "curves count"]:
    """The score of each token with a copy of itself at distances 0 to ``count - 1``, averaged over the tokens.

    One curve a head where the encoding biases scores, else the mean of the heads. Of random signs and their
    opposites the mean is the score of random vectors with themselves, without sampling noise.
    """
    x = tokens[:, None].repeat(1, count, 1)
    scores = logits(encoding, setting, x, torch.tensor([count - 1]), torch.arange(count))
    curves = scores.mean(dim=0)[:, 0].flip(-1)
    return curves if "bias" in hooks_of(encoding) else curves.mean(dim=0, keepdim=True)


def causal_only(encoding: PositionEncoding, setting: Setting) -> bool:
    """Whether attention refuses the encoding's bias without a causal mask."""
    q = setting.signs(1, setting.num_heads, 2, setting.head_dim)
    bias = bias_of(encoding, q, q.clone(), x=setting.signs(1, 2, setting.d_model))
    return bias is not None and bool(bias.causal_only)


def signature(
    encoding: PositionEncoding, setting: Setting, positions: Int[Tensor, " seq"], *, keys: bool = False
) -> Float[Tensor, "seq channels"]:
    """All outputs that may differ between positions; of a bias, between distances.

    Args:
        keys: Rotate a key instead of a query, with one head where the encoding takes one.
    """
    hooks = hooks_of(encoding)
    seen = []
    if "embed" in hooks:
        seen.append(codes(encoding, setting, positions))
    if "rotate" in hooks:
        x = setting.signs(key_heads(encoding, setting), setting.head_dim) if keys else None
        seen.append(turned(encoding, setting, positions, x, keys=keys))
    if "bias" in hooks:
        bias = bias_by_distance(encoding, setting, positions).t()
        # A window hides keys by minus infinity, which no difference can be taken of.
        seen.append(torch.where(bias == -torch.inf, -(2.0**100), bias))
    return torch.cat(seen, dim=-1) if seen else torch.zeros(len(positions), 1, dtype=torch.float64)


def _scale(encoding: PositionEncoding, setting: Setting) -> float:
    return encoding.logit_factor / math.sqrt(setting.head_dim)


def dense_bias(
    bias: Bias, encoding: PositionEncoding, setting: Setting, dtype: torch.dtype
) -> Float[Tensor, "batch heads q k"]:
    """All parts of a bias as they enter the logits."""
    scale = _scale(encoding, setting)
    total = torch.zeros((), dtype=dtype)
    for part in parts_of(bias):
        total = total + scaled_dense(part, scale, dtype)
    return total


def bias_by_pairs(
    bias: Bias | None, encoding: PositionEncoding, setting: Setting, shape: tuple[int, int, int, int]
) -> Float[Tensor, "batch heads q k"]:
    """The same by ``score_mod``, which FlexAttention calls for one pair at a time."""
    scores = torch.zeros(shape, dtype=torch.float64)
    indices = torch.meshgrid(*map(torch.arange, shape), indexing="ij")
    for part in parts_of(bias):
        scale = (_scale(encoding, setting),) if part.scaled else ()
        scores = part.score_mod(*scale)(scores, *indices)
    return scores


def _heads(
    x: Float[Tensor, "batch seq d_model"], setting: Setting
) -> Float[Tensor, "batch heads seq d"]:
    """Tokens cut into heads; where the sizes do not fit, through one fixed random projection."""
    width = setting.num_heads * setting.head_dim
    if x.shape[-1] != width:
        x = x @ setting.random(x.shape[-1], width) / math.sqrt(x.shape[-1])
    return x.unflatten(-1, (setting.num_heads, setting.head_dim)).transpose(1, 2)
