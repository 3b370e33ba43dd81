"""What a Hugging Face model masks, kept as its description instead of a matrix.

transformers makes masks by calling a function of the attention implementation in use, with the rule (a
function of two indices), the lengths and the padding. Ours keeps those arguments. From them `Visible`
gives attention its own terms (causal, window, segments, padding) where the rule is one of transformers'
named ones, and in any case the very mask that another implementation would have got.
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


def make_visible(**arguments: Any) -> Visible:
    """The mask function of the attention implementation ``"ordinate"``."""
    given = arguments.get("attention_mask")
    if isinstance(given, Visible):
        return given  # made for a model around this one, or by `generate` for a static cache
    if isinstance(given, Tensor) and given.dim() == 2:
        # What is past the end of it is no token. Here, so that a static cache's masks have one length.
        missing = arguments.get("kv_offset", 0) + arguments["kv_length"] - given.shape[1]
        arguments["attention_mask"] = F.pad(given, (0, missing)) if missing > 0 else given
    if isinstance(arguments.get("q_offset"), Tensor):
        # A static cache counts in place, and will have counted these tokens too before attention looks.
        arguments["q_offset"] = arguments["q_offset"].clone()
    return Visible(arguments)


class Visible:
    """Who sees whom in one call of a model: the arguments of a mask function of transformers.

    It stands where models expect a mask and pass it on. A model that looks into it finds the mask: whatever a
    tensor can do is done by the matrix that the model's own implementation would have got, and from then on
    attention gets that matrix too.
    """

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments
        self._own: dict[str, Tensor | None] = {}
        self._cast: torch.dtype | None = None
        self._matrix: Tensor | None = None
        self._terms: dict[str, Any] | None = None
        self._whole: bool | None = None
        self._holes: bool | None = None
        self._order: int | Tensor | None = None
        # Looked up here, for a compiler that gets a mask made before would compile for each new function.
        self._rules = rules_of(arguments["mask_function"])

    # What models ask of a mask on its way, which needs no matrix

    @property
    def shape(self) -> torch.Size:
        named = self.arguments
        return torch.Size((named["batch_size"], 1, named["q_length"], named["kv_length"]))

    @property
    def ndim(self) -> int:
        # Falcon would write its ALiBi into a mask of 4 dimensions.
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

    def to(self, *args: Any, **kwargs: Any) -> Visible:
        asked = (*args, *kwargs.values())
        dtype = next((x for x in asked if isinstance(x, torch.dtype)), self.dtype)
        if dtype == self.dtype:
            return self
        cast = copy.copy(self)  # MPT casts its masks on their way
        cast._cast, cast._own = dtype, {}
        cast._matrix = None if self._matrix is None else self._matrix.to(dtype)
        return cast

    def contiguous(self, **kwargs: Any) -> Visible:
        return self

    # What only a matrix can answer

    @property
    def _implementation(self) -> str:
        """The attention implementation that the model had before."""
        return getattr(self.arguments.get("config"), "ordinate_before", "sdpa")

    def matrix(self) -> Tensor:
        """The mask that it stands for, ``[batch, 1, queries, keys]``."""
        if self._matrix is None:
            from transformers.masking_utils import sdpa_mask

            found = self.own(self._implementation)
            if found is None or found.dim() != 4:  # their kernels need no mask for this rule
                shown = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
                found = sdpa_mask(**(self.arguments | shown))
            assert found is not None
            self._matrix = found.to(self.dtype)
        return self._matrix

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(Tensor, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.matrix(), name)

    @classmethod
    def __torch_function__(
        cls, function: Callable, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return function(*_matrices(args), **_matrices(kwargs or {}))

    __hash__ = object.__hash__

    def is_left_out(self) -> bool:
        """Whether the kernels the model had before were given no mask for it, and went by the layer alone."""
        return self.own(self._implementation) is None

    def fits(self, queries: int, keys: int | None) -> bool:
        """Whether it speaks of this many queries and keys; a matrix of other sizes would be broadcast."""
        named = self.arguments
        return bool(named["q_length"] == queries and keys in (None, named["kv_length"]))

    def own(self, implementation: str) -> Tensor | None:
        """The mask that another implementation gets for the same arguments."""
        if self._matrix is not None and implementation == self._implementation:
            return self._matrix
        if implementation not in self._own:
            from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

            make = ALL_MASK_ATTENTION_FUNCTIONS[implementation]
            found = make(**self.arguments)
            self._own[implementation] = found if found is None else found.to(self._cast or found.dtype)
        return self._own[implementation]

    def terms(self) -> dict[str, Any] | None:
        """The mask as arguments of `ordinate.attention`; None where it is no such mask."""
        if self._matrix is not None:  # a model has looked into it, and may have written
            return None
        if self._terms is None:
            self._terms = self._find_terms()
        return self._terms or None

    def padding(self) -> Tensor | None:
        """True at keys nobody may see, ``[batch, keys]``; None where every key may be seen."""
        seen = self.seen()
        return None if seen is None else ~seen

    def seen(self) -> Tensor | None:
        """True at real tokens among the keys; None where all of them are."""
        row = self.tokens()
        if row is None:
            return None
        seen = row[:, self.arguments.get("kv_offset", 0) :]
        # Looked up once for all layers: kernels have less to do where there is no padding.
        if self._whole is None:
            known = not (torch.compiler.is_compiling() or isinstance(self.order(), Tensor))
            self._whole = known and bool(seen.all())
        return None if self._whole else seen

    def tokens(self) -> Tensor | None:
        """True at each row's real tokens from its beginning, also where keys are a window; None if all are.

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

    # Static caches hand over all their slots, those that are not filled yet too

    def align(self, *keys: Tensor) -> tuple[Tensor, ...]:
        """Keys or values ``[batch, heads, kv_length, channels]`` so that the last query's token is the last one.

        `terms` and `tokens` speak of keys in this order, for masks of attention go by index and are level at the end.
        """
        return tuple(self._in_order(x, dim=2) for x in keys)

    @property
    def is_level(self) -> bool:
        """Whether the last key is known to be that of the last query."""
        filled = self._filled()
        return isinstance(filled, int) and filled == self.arguments["kv_length"]

    def order(self) -> int | Tensor | None:
        """Which keys `align` gives: so many from the first, all by this index, or None for all as they are."""
        if self._order is None and self._is_causal():
            filled, length = self._filled(), self.arguments["kv_length"]
            single = torch.compiler.is_compiling() and self.arguments["q_length"] == 1
            if isinstance(filled, Tensor) or (single and filled < length):
                # Empty slots come first. A graph's shapes must not grow with every token that is decoded.
                self._order = (torch.arange(length, device=self.device) + filled) % length
            elif filled < length:
                self._order = filled
        return self._order

    def _filled(self) -> int | Tensor:
        """How many keys there are up to that of the last query."""
        named = self.arguments
        filled: int | Tensor = named.get("q_offset", 0) + named["q_length"] - named.get("kv_offset", 0)
        return filled

    def _in_order(self, x: Tensor, dim: int) -> Tensor:
        order = self.order()
        if order is None:
            return x
        return x.index_select(dim, order) if isinstance(order, Tensor) else x.narrow(dim, 0, order)

    def _is_causal(self) -> bool:
        return any(name == "causal" for name, _ in self._rules or [])

    def token_positions(self) -> Tensor | None:
        """Each key's place among its row's tokens; None where indices tell all distances.

        Padding at either end changes no distance between tokens, so only holes between them need this.
        """
        seen = self.seen()
        if seen is None:
            return None
        if self._holes is None:
            self._holes = torch.compiler.is_compiling() or _has_holes(seen)
        return left_padded(seen) if self._holes else None

    def _find_terms(self) -> dict[str, Any]:
        named = self.arguments
        rules = self._rules
        if rules is None:
            return {}
        causal, filled, length = self._is_causal(), self._filled(), named["kv_length"]
        if causal and isinstance(filled, int) and filled > length:
            return {}
        if not causal and len(rules) > 1 and not self.is_level:
            return {}  # our masks take the last query and the last key for the same token
        terms: dict[str, Any] = {"causal": causal, "key_padding_mask": self.padding()}
        for name, value in rules:
            if name == "window" and causal:
                terms["window"] = value
            elif name == "window both ways" and not causal:
                terms["window"] = value + 1  # their window is of distances up to value, ours below
            elif name in ("packed", "chunks") and "q_segment_ids" not in terms:
                terms["q_segment_ids"], terms["k_segment_ids"] = self._segments(name, value)
            elif name not in ("causal", "both ways"):
                return {}
        return terms

    def _segments(self, name: str, value: Any) -> tuple[Tensor, Tensor]:
        named = self.arguments
        device = value["left_padding"].device if name == "chunks" else value.device
        queries = torch.arange(named["q_length"], device=device) + named.get("q_offset", 0)
        keys = torch.arange(named["kv_length"], device=device) + named.get("kv_offset", 0)
        keys = self._in_order(keys, dim=0)
        if name == "packed":
            return value[:, queries], value[:, keys]
        left, size = value["left_padding"].reshape(-1, 1), value["chunk_size"]
        return tuple(torch.div(i[None] - left, size, rounding_mode="floor") for i in (queries, keys))  # type: ignore[return-value]


def _has_holes(seen: Tensor) -> bool:
    """Whether any row of tokens starts more than once."""
    starts = (seen[:, 1:] & ~seen[:, :-1]).sum(-1) + seen[:, 0]
    return bool((starts > 1).any())


def _matrices(given: Any) -> Any:
    """Arguments of a function of PyTorch, with the mask itself in the place of what stands for it."""
    if isinstance(given, Visible):
        return given.matrix()
    if isinstance(given, dict):
        return {name: _matrices(part) for name, part in given.items()}
    return type(given)(map(_matrices, given)) if type(given) in (tuple, list) else given


def _asked_of_the_matrix(name: str) -> Callable[..., Any]:
    def method(self: Visible, *args: Any) -> Any:
        return getattr(self.matrix(), name)(*_matrices(args))

    return method


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")
_OPERATORS = [f"{side}{name}" for name in _BINARY for side in ("", "r", "i")]
_OPERATORS += [
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "neg",
    "abs",
    "invert",
    "bool",
    "len",
    "iter",
    "contains",
]
_OPERATORS += ["getitem", "setitem"]
for _name in _OPERATORS:  # Python looks these up in the class, past __getattr__
    if hasattr(Tensor, f"__{_name}__"):
        setattr(Visible, f"__{_name}__", _asked_of_the_matrix(f"__{_name}__"))
