"""The architecture in one page: positions in, three places out.

An encoding tells attention the order of its tokens in one of three places. It may add a code to
the embeddings (`embed`), turn queries and keys (`rotate`), or add to the logits (`bias`). A model
that calls all three takes any encoding, for each does nothing unless an encoding overrides it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from .bias.types import Bias
from .checks import check_instance, check_positive_int, refused
from .places import Places, Positions, resolve
from .text import Text

Lengths = int | Int[Tensor, "..."] | tuple[Int[Tensor, "..."], Int[Tensor, "..."]]


_METHODS = ("embed", "rotate", "bias")


class PositionEncoding(nn.Module):
    """The base of every encoding, and by itself the absence of one (NoPE).

    Subclass it, override what the encoding needs (almost always one method), and the result
    works in `attention`, `MultiHeadAttention` and `verify` like any encoding of the catalog.

    Example:
        >>> class Recency(PositionEncoding):
        ...     def bias(self, q, k, q_positions=None, k_positions=None, *, x=None):
        ...         places = ordinate.positions.resolve(q, k, q_positions, k_positions)
        ...         return ordinate.LinearBias(torch.ones(q.shape[1]), places, symmetric=True)
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

    #: How many coordinates of a position it reads, one from each axis.
    axes: int = 1

    #: What it was made for, where it was made for one number only: heads, channels of a head or of an embedding,
    #: and the positions that it has a code for. None: any.
    num_heads: int | None = None
    head_dim: int | None = None
    d_model: int | None = None
    max_positions: int | None = None

    #: The properties this encoding promises, by their names in `ordinate.verify`.
    claims: frozenset[str] = frozenset()

    def methods(self) -> tuple[str, ...]:
        """Which of ``embed``, ``rotate`` and ``bias`` do something."""
        own, base = type(self), PositionEncoding
        return tuple([name for name in _METHODS if getattr(own, name) is not getattr(base, name)])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """`embed` or `rotate`, where the encoding has that method alone.

        Example:
            >>> rope, q, k = ordinate.RoPE(8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
            >>> torch.equal(rope(q, k)[0], rope.rotate(q, k)[0])
            True
        """
        methods = self.methods()
        if methods in (("embed",), ("rotate",)):
            return getattr(self, methods[0])(*args, **kwargs)
        rule = "is not called itself: call {methods}, or give it to attention"
        listed = _listed(methods) if methods else Text("embed, rotate or bias")
        raise refused(type(self).__name__, rule, error=TypeError, methods=listed)

    def embed(
        self, x: Float[Tensor, "batch seq d_model"], positions: Int[Tensor, "..."] | None = None
    ) -> Float[Tensor, "batch seq d_model"]:
        """Add the code of each position to its embedding. Positions left out count from 0."""
        return x

    def rotate(
        self,
        q: Float[Tensor, "batch heads q_len head_dim"],
        k: Float[Tensor, "batch kv_heads k_len head_dim"] | None = None,
        q_positions: Positions | None = None,
        k_positions: Int[Tensor, "..."] | None = None,
        *,
        lengths: Lengths | None = None,
    ) -> tuple[
        Float[Tensor, "batch heads q_len head_dim"], Float[Tensor, "batch kv_heads k_len head_dim"]
    ]:
        """Turn queries and keys by their positions; values are never turned.

        Args:
            q_positions, k_positions: As the caller gave them, or one `Places` of both: see `positions.resolve`,
                which makes one of them all.
            lengths: The length of each sequence, for scalings that depend on it: an int, one
                number a row ``[batch]``, one a token ``[batch or 1, seq]``, or a pair of those for
                q and k. Default: the row's largest position + 1.
        """
        if k is None:
            methods, facts = self.methods(), {"encoding": type(self).__name__}
            if not methods:
                rule = "must be given along with q ({encoding} does not rotate)"
                raise refused("k", rule, "None", error=TypeError, **facts)
            rule = "must be given along with q ({encoding} does not rotate: call {methods})"
            raise refused("k", rule, "None", error=TypeError, **facts, methods=_listed(methods))
        return q, k

    def bias(
        self,
        q: Float[Tensor, "batch heads q_len head_dim"],
        k: Float[Tensor, "batch kv_heads k_len head_dim"],
        q_positions: Positions | None = None,
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


def _listed(methods: Sequence[str]) -> str:
    listed = methods[0]
    for method in methods[1:]:
        listed = Text("{first} and {second}", first=listed, second=method)
    return listed


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
            check_instance(
                f"encodings[{index}]", encoding, PositionEncoding, "must be a PositionEncoding"
            )
        self.encodings = nn.ModuleList(encodings)  # type: ignore[assignment]
        self.logit_factor = math.prod(encoding.logit_factor for encoding in encodings)
        self.axes = max((encoding.axes for encoding in encodings), default=1)
        for name in ("num_heads", "head_dim", "d_model", "max_positions"):
            sizes = [size for part in encodings if (size := getattr(part, name)) is not None]
            setattr(self, name, min(sizes, default=None))
        for name in ("reads_keys", "reads_input", "length_dependent"):
            setattr(self, name, any(getattr(encoding, name) for encoding in encodings))

    def methods(self):
        found = {name for encoding in self.encodings for name in encoding.methods()}
        return tuple([name for name in _METHODS if name in found])

    def embed(self, x, positions=None):
        for encoding in self.encodings:
            x = encoding.embed(x, positions)
        return x

    def rotate(self, q, k=None, q_positions=None, k_positions=None, *, lengths=None):
        if k is None:  # refused by the part that rotates, which says how one tensor is rotated
            rotating = [part for part in self.encodings if "rotate" in part.methods()]
            rotating[0].rotate(q) if rotating else super().rotate(q)
        places = resolve(q, k, q_positions, k_positions, axes=self.axes)
        for encoding in self.encodings:
            q, k = encoding.rotate(q, k, places, lengths=lengths)
        return q, k

    def bias(self, q, k, q_positions=None, k_positions=None, *, x=None):
        places = resolve(q, k, q_positions, k_positions, axes=self.axes)
        total: Bias | None = None
        for encoding in self.encodings:
            part = encoding.bias(q, k, places, x=x)
            if part is not None:
                total = part if total is None else total + part
        return total


class Along(PositionEncoding):
    """An encoding that reads one coordinate of positions that have several, next to others in a `Combined`.

    Args:
        axis: Which coordinate it reads, counted from 0.
        axes: How many there are, where it is used alone. Default: up to the one it reads.

    Example:
        >>> both = Combined(ordinate.RoPE(8, sections=(2, 2)), Along(ordinate.ALiBi(2, symmetric=True), axis=0))
        >>> q = k = v = torch.randn(1, 2, 6, 8)
        >>> ordinate.attention(q, k, v, both, q_positions=ordinate.positions.grid(2, 3)).shape
        torch.Size([1, 2, 6, 8])
    """

    def __init__(self, encoding: PositionEncoding, axis: int, axes: int | None = None) -> None:
        super().__init__()
        check_instance("encoding", encoding, PositionEncoding, "must be a PositionEncoding")
        if encoding.axes > 1:
            raise refused(
                "encoding", "must read one axis", Text("one that reads {axes}", axes=encoding.axes)
            )
        self.axis = check_positive_int("axis", axis, minimum=0)
        least = self.axis + 1
        self.axes = least if axes is None else check_positive_int("axes", axes, minimum=least)
        self.encoding = encoding
        for name in (
            "logit_factor", "length_dependent", "reads_keys", "reads_input",
            "num_heads", "head_dim", "d_model", "max_positions",
        ):  # fmt: skip
            setattr(self, name, getattr(encoding, name))
        # Positions that differ along another axis alone get the same code.
        self.claims = encoding.claims - ({"uniqueness"} if self.axes > 1 else set())

    def methods(self):
        return self.encoding.methods()

    def embed(self, x, positions=None):
        several = isinstance(positions, Tensor) and positions.dim() == 3
        return self.encoding.embed(x, positions[self.axis] if several else positions)

    def rotate(self, q, k=None, q_positions=None, k_positions=None, *, lengths=None):
        if k is None:  # refused by the encoding, which says how one tensor is rotated
            self.encoding.rotate(q)
        return self.encoding.rotate(q, k, self._places(q, k, q_positions, k_positions), lengths=lengths)

    def bias(self, q, k, q_positions=None, k_positions=None, *, x=None):
        return self.encoding.bias(q, k, self._places(q, k, q_positions, k_positions), x=x)

    def _places(self, q, k, q_positions, k_positions):
        axes = q_positions.axes if isinstance(q_positions, Places) else self.axes
        return resolve(q, k, q_positions, k_positions, axes=axes).along(self.axis)

    def extra_repr(self) -> str:
        return f"axis={self.axis}"
