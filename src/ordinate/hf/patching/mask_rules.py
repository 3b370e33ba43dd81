"""The rules that transformers' mask functions are made of, by name.

Its masks are functions of two indices, made by a few factories: causal, a window, packed sequences, chunks, and the
intersection of several. A compiler cannot look into a function for what it was made of, so each factory notes it on
the function that it makes, under the compiler as without one.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

Rules = list[tuple[str, Any]]


def rules_of(function: Callable) -> Rules | None:
    """The rules a mask function is made of, each with what it was given; None if one is not known."""
    noted: Rules | None = getattr(function, "ordinate_rules", None)
    if noted is None and not torch.compiler.is_compiling():
        code = getattr(function, "__code__", None)
        if code is not None and code.co_argcount == 0 and not code.co_freevars and bool(function()):
            return []  # a rule that looks at nothing and allows all, as some models pass to have a mask made
    return noted


def _all_of(*parts: Callable) -> Rules | None:
    found: Rules = []
    for part in parts:
        rules = rules_of(part)
        if rules is None:
            return None
        found += rules
    return found


def _window(sliding_window: int) -> Rules:
    return [("window", sliding_window)]


def _window_both_ways(sliding_window: int) -> Rules:
    return [("window both ways", sliding_window)]


def _packed(packed_sequence_mask: torch.Tensor) -> Rules:
    return [("packed", packed_sequence_mask)]


def _chunks(chunk_size: int, left_padding: torch.Tensor) -> Rules:
    return [("chunks", {"chunk_size": chunk_size, "left_padding": left_padding})]


_FACTORIES: dict[str, Callable[..., Rules | None]] = {
    "and_masks": _all_of,
    "sliding_window_overlay": _window,
    "sliding_window_bidirectional_overlay": _window_both_ways,
    "packed_sequence_mask_function": _packed,
    "chunked_overlay": _chunks,
}


def note_rules() -> None:
    """Have transformers' factories of mask functions note their rules; the functions stay what they are."""
    from transformers import masking_utils as theirs

    theirs.causal_mask_function.ordinate_rules = [("causal", None)]  # type: ignore[attr-defined]
    theirs.bidirectional_mask_function.ordinate_rules = [("both ways", None)]  # type: ignore[attr-defined]
    for name, rules in _FACTORIES.items():
        factory = getattr(theirs, name)
        if hasattr(factory, "ordinate_factory"):
            continue
        noting = _noting(factory, rules)
        for module in list(sys.modules.values()):  # models may have imported it by name
            if vars(module).get(name) is factory:
                setattr(module, name, noting)


def _noting(factory: Callable, rules: Callable[..., Rules | None]) -> Callable:
    @functools.wraps(factory)
    def make(*args: Any, **kwargs: Any) -> Any:
        function = factory(*args, **kwargs)
        function.ordinate_rules = rules(*args, **kwargs)
        return function

    make.ordinate_factory = factory  # type: ignore[attr-defined]
    return make
