"""The architecture in one page: positions in, three places out.

An encoding tells attention the order of its tokens in one of three places. It may add a code to
the embeddings (`embed`), turn queries and keys (`rotate`), or add to the logits (`bias`). A model
that calls all three takes any encoding, for each does nothing unless an encoding overrides it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jaxtyping import Float, Int
from torch import Tensor, nn

from .bias.types import Bias
from .positions import as_rows

Lengths = int | Int[Tensor, "..."] | tuple[Int[Tensor, "..."], Int[Tensor, "..."]]


class PositionEncoding(nn.Module):
    """The base of every encoding, and by itself the absence of one (NoPE).

    Subclass it, override what the encoding needs (almost always one method), and the result
    works in `attention`, `MultiHeadAttention` and `verify` like any encoding of the catalog.

    Example:
        >>> class Recency(PositionEncoding):
        ...     def bias(self, q, k, q_positions=None, k_positions=None, *, x=None):
        ...         queries, keys = ordinate.positions.resolve(q, k, q_positions, k_positions)
        ...         return ordinate.LinearBias(torch.ones(q.shape[1]), queries, keys, symmetric=True)
        >>> q = k = v = torch.randn(1, 2, 5, 8)
        >>> ordinate.attention(q, k, v, Recency()).shape
        torch.Size([1, 2, 5, 8])
    """

    #: Multiplies the default softmax scale (DeepSeek's YaRN).
    logit_factor: float = 1.0

    #: Whether `rotate` depends on `lengths`; a cache must then hold keys before rotation.
    length_dependent: bool = False

    #: Whether `bias` reads the content of k; a cache must then hold keys before rotation.
    reads_keys: bool = False

    #: Whether `bias` reads x; a cache must then hold the layer's inputs.
    reads_input: bool = False

    #: The properties this encoding promises, by their names in `ordinate.verify`.
    claims: frozenset[str] = frozenset()

    def embed(
        self, x: Float[Tensor, "batch seq d_model"], positions: Int[Tensor, "..."] | None = None
    ) -> Float[Tensor, "batch seq d_model"]:
        """Add the code of each position to its embedding. Positions left out count from 0."""
        return x

    def rotate(
        self,
        q: Float[Tensor, "batch heads q_len head_dim"],
        k: Float[Tensor, "batch kv_heads k_len head_dim"],
        q_positions: Int[Tensor, "..."] | None = None,
        k_positions: Int[Tensor, "..."] | None = None,
        *,
        lengths: Lengths | None = None,
    ) -> tuple[
        Float[Tensor, "batch heads q_len head_dim"], Float[Tensor, "batch kv_heads k_len head_dim"]
    ]:
        """Turn queries and keys by their positions; values are never turned.

        Args:
            lengths: The length of each sequence, for scalings that depend on it: an int, one
                number a row ``[batch]``, one a token ``[batch or 1, seq]``, or a pair of those for
                q and k. Default: the row's largest position + 1.
        """
        return q, k

    def bias(
        self,
        q: Float[Tensor, "batch heads q_len head_dim"],
        k: Float[Tensor, "batch kv_heads k_len head_dim"],
        q_positions: Int[Tensor, "..."] | None = None,
        k_positions: Int[Tensor, "..."] | None = None,
        *,
        x: Float[Tensor, "batch seq d_model"] | None = None,
    ) -> Bias | None:
        """Describe what is added to the logits.

        Args:
            q, k: Before rotation. An encoding that reads the content of k sets `reads_keys`.
            x: The layer's input at the keys' tokens; an encoding that reads it sets `reads_input`.
        """
        return None


NoPE = PositionEncoding


class Combined(PositionEncoding):
    """Several encodings at once: embeddings and rotations are chained, biases add up.

    Example:
        >>> both = Combined(ordinate.RoPE(8), ordinate.ALiBi(2))
        >>> q = k = v = torch.randn(1, 2, 5, 8)
        >>> ordinate.attention(q, k, v, both, causal=True).shape
        torch.Size([1, 2, 5, 8])
    """

    encodings: Sequence[PositionEncoding]

    def __init__(self, *encodings: PositionEncoding) -> None:
        super().__init__()
        for index, encoding in enumerate(encodings):
            if not isinstance(encoding, PositionEncoding):
                raise TypeError(
                    f"encodings[{index}] must be a PositionEncoding, got {type(encoding).__name__}"
                )
        self.encodings = nn.ModuleList(encodings)  # type: ignore[assignment]
        self.logit_factor = math.prod(encoding.logit_factor for encoding in encodings)
        self.axes = max((getattr(encoding, "axes", 1) for encoding in encodings), default=1)
        self.reads_keys = any(encoding.reads_keys for encoding in encodings)
        self.reads_input = any(encoding.reads_input for encoding in encodings)
        self.length_dependent = any(encoding.length_dependent for encoding in encodings)

    def embed(self, x, positions=None):
        for encoding in self.encodings:
            x = encoding.embed(x, positions)
        return x

    def rotate(self, q, k, q_positions=None, k_positions=None, *, lengths=None):
        for encoding in self.encodings:
            q, k = encoding.rotate(q, k, q_positions, k_positions, lengths=lengths)
        return q, k

    def bias(self, q, k, q_positions=None, k_positions=None, *, x=None):
        total: Bias | None = None
        # All parts of a sum get the same tensors, by which attention knows that they stand at the same positions.
        q_positions, k_positions = (
            as_rows(at) if isinstance(at, Tensor) else at for at in (q_positions, k_positions)
        )
        for encoding in self.encodings:
            part = encoding.bias(q, k, q_positions, k_positions, x=x)
            if part is not None:
                total = part if total is None else total + part
        return total
