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

from ..positions import left_padded
from .mask_rules import rules_of


def make_visible(**arguments: Any) -> Visible:
    """The mask function of the attention implementation ``"ordinate"``.

    A model within a model may be given a mask that is made already, and keeps it.
    """
    given = arguments.get("attention_mask")
    return given if isinstance(given, Visible) else Visible(arguments)


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
            self._whole = not torch.compiler.is_compiling() and bool(seen.all())
        return None if self._whole else seen

    def tokens(self) -> Tensor | None:
        """True at each row's real tokens from its beginning, also where keys are a window; None if none is given."""
        given = self.arguments.get("attention_mask")
        if given is None:
            return None
        length = self.arguments.get("kv_offset", 0) + self.arguments["kv_length"]
        row = given[:, :length]
        if row.shape[1] < length:  # what is past the end of the given mask is no token
            row = torch.nn.functional.pad(row, (0, length - row.shape[1]))
        return row

    def token_positions(self) -> Tensor | None:
        """Each key's place among its row's tokens; None where indices tell all distances.

        Padding at either end changes no distance between tokens, so only holes between them need this.
        """
        seen = self.seen()
        if seen is None:
            return None
        if self._holes is None:
            starts = (seen[:, 1:] & ~seen[:, :-1]).sum(-1) + seen[:, 0]
            self._holes = torch.compiler.is_compiling() or bool((starts > 1).any())
        return left_padded(seen) if self._holes else None

    def _find_terms(self) -> dict[str, Any]:
        named = self.arguments
        rules = rules_of(named["mask_function"])
        if rules is None:
            return {}
        q_offset, kv_offset = named.get("q_offset", 0), named.get("kv_offset", 0)
        if not (isinstance(q_offset, int) and isinstance(kv_offset, int)):
            return {}  # with a static cache offsets are tensors
        causal = any(name == "causal" for name, _ in rules)
        level = q_offset + named["q_length"] == kv_offset + named["kv_length"]
        if not level and (causal or len(rules) > 1):
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
        if name == "packed":
            return value[:, queries], value[:, keys]
        left, size = value["left_padding"].reshape(-1, 1), value["chunk_size"]
        return tuple(torch.div(i[None] - left, size, rounding_mode="floor") for i in (queries, keys))  # type: ignore[return-value]


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
