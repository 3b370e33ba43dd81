"""The rules that transformers' mask functions consist of, by name.

Its masks are functions of two indices, made by a few factories: causal, a window, packed sequences, chunks, and the
intersection of several. torch.compile cannot inspect a function, so each factory stores the rules on the function
that it makes.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

Rules = list[tuple[str, Any]]


def rules_of(function: Callable) -> Rules | None:
    """The rules of a mask function, each with its argument; None if a rule is unknown."""
    stored: Rules | None = getattr(function, "ordinate_rules", None)
    if stored is None and not torch.compiler.is_compiling():
        code = getattr(function, "__code__", None)
        if code is not None and code.co_argcount == 0 and not code.co_freevars and bool(function()):
            return []  # it allows all pairs; some models pass it so that a mask is made
    return stored


def _all_of(*parts: Callable) -> Rules | None:
    known = [rules for rules in map(rules_of, parts) if rules is not None]
    return [rule for rules in known for rule in rules] if len(known) == len(parts) else None


# Factory → the rules of its mask function, from the factory's arguments.
_FACTORIES: dict[str, Callable[..., Rules | None]] = {
    "and_masks": _all_of,
    "sliding_window_overlay": lambda sliding_window: [("window", sliding_window)],
    "sliding_window_bidirectional_overlay": lambda sliding_window: [
        ("window both ways", sliding_window)
    ],
    "packed_sequence_mask_function": lambda packed_sequence_mask: [("packed", packed_sequence_mask)],
    "chunked_overlay": lambda chunk_size, left_padding: [
        ("chunks", {"chunk_size": chunk_size, "left_padding": left_padding})
    ],
}


def store_rules() -> None:
    """Make transformers' factories store the rules on their mask functions, which otherwise do not change."""
    from transformers import masking_utils as theirs

    theirs.causal_mask_function.ordinate_rules = [("causal", None)]  # type: ignore[attr-defined]
    theirs.bidirectional_mask_function.ordinate_rules = [("both ways", None)]  # type: ignore[attr-defined]
    for name, rules in _FACTORIES.items():
        factory = getattr(theirs, name)
        if hasattr(factory, "ordinate_factory"):
            continue
        storing = _storing(factory, rules)
        for module in list(sys.modules.values()):  # models may have imported the factory by name
            if vars(module).get(name) is factory:
                setattr(module, name, storing)


def _storing(factory: Callable, rules: Callable[..., Rules | None]) -> Callable:
    @functools.wraps(factory)
    def make(*args: Any, **kwargs: Any) -> Any:
        function = factory(*args, **kwargs)
        function.ordinate_rules = rules(*args, **kwargs)
        return function

    make.ordinate_factory = factory  # type: ignore[attr-defined]
    return make
