"""ALiBi: each head penalises distance at its own rate."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..checks import check_bool, check_number, check_size, refused, short
from ..encoding import PositionEncoding
from ..numerics import compute_dtype, constant
from ..places import Positions, resolve
from .types import LinearBias


def alibi_slopes(num_heads: int, max_exponent: float = 8.0) -> tuple[float, ...]:
    """The slope of each head, by the rule of the authors' code.

    For a power of two, ``2^(-8h/n)`` for h = 1 … n, or with another exponent than 8. For other head
    counts, the slopes of the power of two below, followed by every other slope of the power of two
    above. Their order is not monotone, and checkpoints depend on it.

    Example:
        >>> alibi_slopes(6)
        (0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125)
    """
    num_heads = check_size("num_heads", num_heads)
    max_exponent = check_number("max_exponent", max_exponent, above=0)
    power = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-max_exponent * head / power) for head in range(1, power + 1)]
    between = [2.0 ** (-max_exponent / 2 * head / power) for head in range(1, 2 * power + 1, 2)]
    return tuple(slopes + between[: num_heads - power])


@final
class ALiBi(PositionEncoding):
    """Subtract ``slope · distance`` from the logits (Press et al. 2021, arXiv:2108.12409).

    The bias is added after the softmax scale and not multiplied by it, unless `scaled`. Causal by default:
    without a causal mask it would reward future keys, so `attention` refuses it there.

    Args:
        symmetric: Penalise ``|distance|``, for attention in both directions.
        trainable: Make the slopes a parameter, starting at the fixed ones.
        heads: The heads this instance holds, a slice of ``num_heads`` (tensor parallelism).
        scaled: Multiply the bias by the softmax scale as well, as Falcon does.
        max_exponent: The gentlest slope is ``2^-max_exponent`` (MPT's ``alibi_bias_max``).

    Example:
        >>> ALiBi(8).slopes_on(torch.device("cpu"))[:3]
        tensor([0.5000, 0.2500, 0.1250])
    """

    num_heads: int
    claims = frozenset({"shift invariance", "decay with distance", "slopes"})

    def __init__(
        self,
        num_heads: int,
        symmetric: bool = False,
        trainable: bool = False,
        heads: slice | None = None,
        scaled: bool = False,
        max_exponent: float = 8.0,
    ) -> None:
        super().__init__()
        slopes = alibi_slopes(num_heads, max_exponent)
        check_bool("symmetric", symmetric)
        check_bool("trainable", trainable)
        check_bool("scaled", scaled)
        if heads is not None:
            if not isinstance(heads, slice):
                raise refused(
                    "heads",
                    "must be a slice of the {count} heads",
                    short(heads),
                    error=TypeError,
                    count=num_heads,
                )
            slopes = slopes[heads]
            if not slopes:
                raise refused("heads", "must select some of the {count} heads", heads, count=num_heads)
        self.num_heads, self.symmetric, self.heads = int(num_heads), symmetric, heads
        self.scaled, self.max_exponent = scaled, float(max_exponent)
        self._slopes = slopes
        self.slopes = nn.Parameter(torch.empty(len(slopes))) if trainable else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.slopes is not None:
            with torch.no_grad():
                self.slopes.copy_(torch.tensor(self._slopes))

    def slopes_on(
        self, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, " heads"]:
        """The slopes, trained or fixed."""
        if self.slopes is None:
            return constant(self._slopes, dtype, device)
        return self.slopes.to(dtype)

    def bias(
        self,
        q: Float[Tensor, "batch heads q_len head_dim"],
        k: Float[Tensor, "batch kv_heads k_len head_dim"],
        q_positions: Positions | None = None,
        k_positions: Int[Tensor, "..."] | None = None,
        *,
        x: Float[Tensor, "batch seq d_model"] | None = None,
    ) -> LinearBias:
        places = resolve(q, k, q_positions, k_positions)
        slopes = self.slopes_on(q.device, compute_dtype(q.dtype))
        return LinearBias(slopes, places, symmetric=self.symmetric, scaled=self.scaled)

    def extra_repr(self) -> str:
        trainable = self.slopes is not None
        text = f"{self.num_heads}, symmetric={self.symmetric}, trainable={trainable}, heads={self.heads}"
        if self.scaled:
            text += ", scaled=True"
        return text if self.max_exponent == 8 else f"{text}, max_exponent={self.max_exponent:g}"
