"""Masks of transformers as descriptions instead of matrices.

transformers makes a mask by calling a function of the attention implementation in use, with a rule (a function of two
indices), the lengths and the padding. The function of the implementation ``"ordinate"`` stores those arguments in a
`MaskDescription`. If the rule is known, it gives the arguments of `ordinate.attention` (causal, window, segments,
padding); it can always compute the mask that another implementation would get.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...positions import left_padded
from .mask_rules import rules_of


def describe_mask(**arguments: Any) -> MaskDescription:
    """The mask function of the attention implementation ``"ordinate"``."""
    given = arguments.get("attention_mask")
    if isinstance(given, MaskDescription):
        return given  # from an outer model, or from `generate` for a static cache
    if isinstance(given, Tensor) and given.dim() == 2:
        # Positions past the given mask hold no tokens. Pad it, so that all masks of a static cache have one length.
        missing = arguments.get("kv_offset", 0) + arguments["kv_length"] - given.shape[1]
        arguments["attention_mask"] = F.pad(given, (0, missing)) if missing > 0 else given
    if isinstance(arguments.get("q_offset"), Tensor):
        # A static cache updates this count in place before attention reads the mask.
        arguments["q_offset"] = arguments["q_offset"].clone()
    return MaskDescription(arguments)


class MaskDescription:
    """A mask by the arguments that transformers passes to a mask function.

    Models pass it on like a mask. If a model reads it or computes with it, it becomes the matrix that the model's own
    implementation would get, and from then on attention uses that matrix too.
    """

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments
        self._cast: torch.dtype | None = None
        self._matrix: Tensor | None = None
        self._own: dict[str, Tensor | None] = {}
        self._computed: dict[str, Any] = {}
        # Looked up early: torch.compile would recompile for each new mask function of a mask made outside the graph.
        self._rules = rules_of(arguments["mask_function"])

    def _once(self, name: str, compute: Callable[[], Any]) -> Any:
        """The result of ``compute``, computed once for all layers."""
        if name not in self._computed:
            self._computed[name] = compute()
        return self._computed[name]

    # Attributes that models read and that need no matrix

    @property
    def shape(self) -> torch.Size:
        given = self.arguments
        return torch.Size((given["batch_size"], 1, given["q_length"], given["kv_length"]))

    @property
    def ndim(self) -> int:
        # 2, because Falcon would write its ALiBi into a mask of 4 dimensions.
        return 2 if getattr(self.arguments.get("config"), "alibi", False) else 4

    @property
    def device(self) -> torch.device:
        return torch.device(self.arguments.get("device", "cpu"))

    @property
    def dtype(self) -> torch.dtype:
        if self._cast is not None:
            return self._cast
        eager = self._implementation == "eager"
        return self.arguments.get("dtype", torch.float32) if eager else torch.bool

    def dim(self) -> int:
        return self.ndim

    def to(self, *args: Any, **kwargs: Any) -> MaskDescription:
        asked = (*args, *kwargs.values())
        dtype = next((x for x in asked if isinstance(x, torch.dtype)), self.dtype)
        if dtype == self.dtype:
            return self
        cast = copy.copy(self)  # MPT casts its masks
        cast._cast, cast._own = dtype, {}
        cast._matrix = None if self._matrix is None else self._matrix.to(dtype)
        return cast

    def contiguous(self, **kwargs: Any) -> MaskDescription:
        return self

    # Attributes that need the matrix

    @property
    def _implementation(self) -> str:
        """The attention implementation that the model had before."""
        return getattr(self.arguments.get("config"), "ordinate_previous", "sdpa")

    def matrix(self) -> Tensor:
        """The described mask, ``[batch, 1, queries, keys]``."""
        if self._matrix is None:
            from transformers.masking_utils import sdpa_mask

            found = self.own(self._implementation)
            if found is None or found.dim() != 4:  # transformers makes no mask for this rule
                shown = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
                found = sdpa_mask(**(self.arguments | shown))
            assert found is not None
            self._matrix = found.to(self.dtype)
        return self._matrix

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(Tensor, name):
            # Not `refused`: copy and hasattr expect an AttributeError, and torch.compile must trace it.
            missing = AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise missing
        return getattr(self.matrix(), name)

    @classmethod
    def __torch_function__(
        cls, function: Callable, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return function(*_matrices(args), **_matrices(kwargs or {}))

    __hash__ = object.__hash__

    def own(self, implementation: str) -> Tensor | None:
        """The mask that another attention implementation gets for the same arguments."""
        if self._matrix is not None and implementation == self._implementation:
            return self._matrix
        if implementation not in self._own:
            from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

            found = ALL_MASK_ATTENTION_FUNCTIONS[implementation](**self.arguments)
            self._own[implementation] = found if found is None else found.to(self._cast or found.dtype)
        return self._own[implementation]

    # Attributes for attention by ordinate

    def is_omitted(self) -> bool:
        """Whether the model's own kernels would get no mask for this rule, only the layer's ``is_causal``."""
        return self.own(self._implementation) is None

    def fits(self, queries: int, keys: int | None) -> bool:
        """Whether the mask has these lengths; a matrix of other lengths would be broadcast."""
        given = self.arguments
        return bool(given["q_length"] == queries and keys in (None, given["kv_length"]))

    def terms(self) -> dict[str, Any] | None:
        """The mask as arguments of `ordinate.attention`; None if they cannot express it."""
        if self._matrix is not None:  # the model may have written into the matrix
            return None
        return self._once("terms", self._find_terms) or None

    def tokens(self) -> Tensor | None:
        """True at each row's tokens from its start, even if keys are a window; None if all are tokens.

        Keys are in the order of `align`.
        """
        given, order = self.arguments.get("attention_mask"), self.order()
        if given is None and not isinstance(order, Tensor):
            return None
        start = self.arguments.get("kv_offset", 0)
        length = start + self.arguments["kv_length"]
        row = torch.ones(1, length, dtype=torch.bool, device=self.device) if given is None else given
        row = row[:, :length]
        if order is None:
            return row
        keys = self._in_order(row[:, start:], dim=1)
        keys = keys & (order < self._filled()) if isinstance(order, Tensor) else keys
        return torch.cat((row[:, :start], keys), dim=1)

    def key_tokens(self) -> Tensor | None:
        """True at keys that are tokens; None if all keys are tokens."""
        row = self.tokens()
        if row is None:
            return None
        tokens = row[:, self.arguments.get("kv_offset", 0) :]

        def known_without_padding() -> bool:
            unknown = torch.compiler.is_compiling() or isinstance(self.order(), Tensor)
            return not unknown and bool(tokens.all())

        # Kernels have less to do where there is no padding.
        return None if self._once("no padding", known_without_padding) else tokens

    def token_positions(self) -> Tensor | None:
        """Each key's position among its row's tokens; None if indices give all distances.

        Padding at either end changes no distance between tokens, so only padding between tokens needs positions.
        """
        tokens = self.key_tokens()
        if tokens is None:
            return None
        compiling = torch.compiler.is_compiling()
        gaps = self._once("gaps", lambda: compiling or _has_gaps(tokens))
        return left_padded(tokens) if gaps else None

    # A static cache passes all its slots, including those that are not filled yet

    def align(self, *keys: Tensor) -> tuple[Tensor, ...]:
        """Keys or values ``[batch, heads, kv_length, channels]`` in an order that ends with the last query's token.

        `terms` and `tokens` describe keys in this order, because masks of `ordinate.attention` go by index and align
        the last query with the last key.
        """
        return tuple(self._in_order(x, dim=2) for x in keys)

    @property
    def ends_at_query(self) -> bool:
        """Whether the last key is known to be of the last query's token."""
        filled = self._filled()
        return isinstance(filled, int) and filled == self.arguments["kv_length"]

    def order(self) -> int | Tensor | None:
        """The keys that `align` returns: an int for the first ones, a tensor of indices, or None for all unchanged."""
        return self._once("order", self._find_order)

    def _find_order(self) -> int | Tensor | None:
        if not self._is_causal():
            return None
        filled, length = self._filled(), self.arguments["kv_length"]
        single = torch.compiler.is_compiling() and self.arguments["q_length"] == 1
        if isinstance(filled, Tensor) or (single and filled < length):
            # Empty slots come first, because the shapes in a graph must not grow with every decoded token.
            return (torch.arange(length, device=self.device) + filled) % length
        return filled if filled < length else None

    def _filled(self) -> int | Tensor:
        """How many keys there are up to the last query's token."""
        given = self.arguments
        filled: int | Tensor = given.get("q_offset", 0) + given["q_length"] - given.get("kv_offset", 0)
        return filled

    def _in_order(self, x: Tensor, dim: int) -> Tensor:
        order = self.order()
        if order is None:
            return x
        return x.index_select(dim, order) if isinstance(order, Tensor) else x.narrow(dim, 0, order)

    def _is_causal(self) -> bool:
        return any(name == "causal" for name, _ in self._rules or [])

    def _find_terms(self) -> dict[str, Any]:
        causal, filled, length = self._is_causal(), self._filled(), self.arguments["kv_length"]
        too_long = causal and isinstance(filled, int) and filled > length
        # Masks of `ordinate.attention` align the last query with the last key.
        unaligned = not causal and len(self._rules or []) > 1 and not self.ends_at_query
        if self._rules is None or too_long or unaligned:
            return {}
        tokens = self.key_tokens()
        terms: dict[str, Any] = {
            "causal": causal,
            "key_padding_mask": None if tokens is None else ~tokens,
        }
        for name, value in self._rules:
            if name == "window" and causal:
                terms["window"] = value
            elif name == "window both ways" and not causal:
                terms["window"] = value + 1  # their window includes the distance `value`, ours does not
            elif name in ("packed", "chunks") and "q_segment_ids" not in terms:
                terms["q_segment_ids"], terms["k_segment_ids"] = self._segments(name, value)
            elif name not in ("causal", "both ways"):
                return {}
        return terms

    def _segments(self, name: str, value: Any) -> tuple[Tensor, Tensor]:
        given = self.arguments
        device = value["left_padding"].device if name == "chunks" else value.device
        queries = torch.arange(given["q_length"], device=device) + given.get("q_offset", 0)
        keys = torch.arange(given["kv_length"], device=device) + given.get("kv_offset", 0)
        keys = self._in_order(keys, dim=0)
        if name == "packed":
            return value[:, queries], value[:, keys]
        left, size = value["left_padding"].reshape(-1, 1), value["chunk_size"]
        return tuple(torch.div(i[None] - left, size, rounding_mode="floor") for i in (queries, keys))  # type: ignore[return-value]


def own_masks(value: Any, implementation: str) -> Any:
    """Convert mask descriptions in an argument to tensors, for the model's own code."""
    if type(value) is dict:  # masks by layer type. Outputs of models are subclasses of dict.
        return {name: own_masks(part, implementation) for name, part in value.items()}
    return value.own(implementation) if isinstance(value, MaskDescription) else value


def _has_gaps(tokens: Tensor) -> bool:
    """Whether a row has padding between tokens, so that its tokens start more than once."""
    starts = (tokens[:, 1:] & ~tokens[:, :-1]).sum(-1) + tokens[:, 0]
    return bool((starts > 1).any())


def _matrices(given: Any) -> Any:
    """Replace descriptions by matrices in the arguments of a PyTorch function."""
    if isinstance(given, MaskDescription):
        return given.matrix()
    if isinstance(given, dict):
        return {name: _matrices(part) for name, part in given.items()}
    return type(given)(map(_matrices, given)) if type(given) in (tuple, list) else given


def _operator_of_the_matrix(name: str) -> Callable[..., Any]:
    def method(self: MaskDescription, *args: Any) -> Any:
        return getattr(self.matrix(), name)(*_matrices(args))

    return method


_BINARY = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"]
_OPERATORS = [
    *(f"{side}{name}" for name in _BINARY for side in ("", "r", "i")), "eq", "ne", "lt", "le", "gt", "ge", "neg",
    "abs", "invert", "bool", "len", "iter", "contains", "getitem", "setitem",
]  # fmt: skip
for _name in _OPERATORS:  # Python looks up operators in the class, not by __getattr__
    if hasattr(Tensor, f"__{_name}__"):
        setattr(MaskDescription, f"__{_name}__", _operator_of_the_matrix(f"__{_name}__"))
