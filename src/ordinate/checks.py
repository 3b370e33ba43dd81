"""Argument checks: each failure is one sentence with the argument, the rule and the value."""

from __future__ import annotations

import difflib
import numbers
import operator
import reprlib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from .private import assert_on_device, unwrapped


def short(value: object) -> str:
    """A value as an error quotes it: on one line, never long, whatever it is or holds.

    Example:
        >>> short([1] * 100)
        '[1, 1, 1, 1, 1, 1, ...]'
    """
    text = " ".join(_repr.repr(value).split())
    return text if len(text) <= 120 else f"{text[:117]}..."


class _Repr(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        # A number of a million digits takes seconds to print, and Python refuses past 4300.
        return repr(x) if x.bit_length() < 256 else f"an integer of {x.bit_length()} bits"


_repr = _Repr()
_repr.maxlevel, _repr.maxstring, _repr.maxother = 3, 60, 60


def check_rank(name: str, tensor: Tensor, axes: str) -> None:
    """``tensor`` must have one dimension per name in ``axes``, e.g. ``"batch, seq, d_model"``."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor [{axes}], got {type(tensor).__name__}")
    if tensor.dim() != axes.count(",") + 1:
        raise ValueError(f"{name} must have shape [{axes}], got {list(tensor.shape)}")


def check_table(name: str, table: Tensor, axes: str, lo: object) -> int:
    """A table over distances: a rank, at least one distance, and the distance it starts from, which is returned."""
    check_rank(name, table, axes)
    if table.shape[1] == 0:
        raise ValueError(f"{name} must hold at least one distance, got {list(table.shape)}")
    try:
        return check_int("lo", lo)
    except TypeError:
        raise TypeError(f"lo must be an int, the distance {name} starts from, got {short(lo)}") from None


def check_floating(name: str, tensor: Tensor) -> None:
    if not tensor.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {tensor.dtype}")
    if tensor.dtype.itemsize == 1:  # float8, in which PyTorch adds nothing up
        raise TypeError(f"{name} must be floating point of at least 16 bits, got {tensor.dtype}")


def check_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        got = short(value) if isinstance(value, (str, int, float)) else type(value).__name__
        raise TypeError(f"{name} must be True or False, got {got}")


def as_int(name: str, value: object) -> int:
    """``value`` as an int: anything that `operator.index` takes (NumPy's integers, say) but a bool."""
    if type(value) in (int, torch.SymInt):
        return value  # type: ignore[return-value]
    if not _is_bool(value):
        try:
            return int(operator.index(value))  # type: ignore[arg-type]
        except TypeError:
            pass
    raise TypeError(f"{name} must be an int, got {short(value)}")


def check_int(name: str, value: object) -> int:
    """``value`` as an int that a tensor can hold."""
    value = as_int(name, value)
    # What a compiler knows as a symbol comes from a tensor.
    if not torch.compiler.is_compiling() and type(value) is int and not -(2**63) <= value < 2**63:
        raise ValueError(f"{name} must fit in 64 bits, got {short(value)}")
    return value


def _is_bool(value: object) -> bool:
    """Whether ``value`` is a bool of Python, NumPy or PyTorch; an index can be made of all three."""
    return "bool" in str(getattr(value, "dtype", type(value)))


def check_positive_int(name: str, value: object, *, minimum: int = 1) -> int:
    """``value`` as an int, which must be at least ``minimum``."""
    value = check_int(name, value)
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {short(value)}")
    return value


#: The most heads, channels, buckets or distances in buckets: lists and tables grow with each of them.
LARGEST_SIZE = 2**20
#: The longest distance that an encoding makes a list or a table of.
LARGEST_DISTANCE = 2**24


def check_size(name: str, value: object, *, minimum: int = 1, most: int = LARGEST_SIZE) -> int:
    """``value`` as an int between ``minimum`` and ``most``, so that a slip costs a sentence and not the memory."""
    value = check_positive_int(name, value, minimum=minimum)
    check_at_most(name, value, most)
    return value


def check_at_most(name: str, value: float, most: float) -> None:
    if value > most:
        raise ValueError(f"{name} must be at most {most}, got {short(value)}")


def check_sequence(name: str, value: object, of: str) -> Sequence[Any]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"{name} must be a sequence of {of}, got {short(value)}")
    return value


def check_ints(name: str, values: object, *, minimum: int = 1) -> tuple[int, ...]:
    """A sequence of ints, each at least ``minimum``; arrays of NumPy and tensors are welcome."""
    values = values.tolist() if hasattr(values, "tolist") else values
    return tuple(
        check_positive_int(f"{name}[{index}]", value, minimum=minimum)
        for index, value in enumerate(check_sequence(name, values, "ints"))
    )


def check_even(name: str, value: object) -> int:
    value = check_size(name, value, minimum=2)
    if value % 2:
        raise ValueError(f"{name} must be even, channels turn in pairs, got {short(value)}")
    return value


def check_number(
    name: str, value: object, *, above: float | None = None, at_least: float | None = None
) -> float:
    """``value`` as an int of 64 bits or a float; NumPy's numbers are welcome."""
    if type(value) not in (int, float):
        if _is_bool(value) or not isinstance(value, numbers.Real):
            raise TypeError(f"{name} must be a number, got {short(value)}")
        value = operator.index(value) if isinstance(value, numbers.Integral) else float(value)
    assert isinstance(value, (int, float))
    # Not math.isfinite: under a compiler with dynamic=True a number may be a symbol.
    if not -sys.float_info.max <= value <= sys.float_info.max:
        raise ValueError(f"{name} must be finite, got {short(value)}")
    if not -(2**63) <= value < 2**63:  # where PyTorch takes no int
        value = float(value)
    if above is not None and not value > above:
        raise ValueError(f"{name} must be greater than {above:g}, got {value:g}")
    if at_least is not None and not value >= at_least:
        raise ValueError(f"{name} must be at least {at_least:g}, got {value:g}")
    return value


def check_fields(owner: object, check: Callable[..., object], *names: str, **rule: float) -> None:
    """Check fields of a dataclass, be it frozen, and put what ``check`` returns in their place."""
    for name in names:
        object.__setattr__(owner, name, check(name, getattr(owner, name), **rule))


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    choices = list(choices)
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {short(value)}")


def nearest(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'rope'?"`` when something known is close, else the list of what is known."""
    known = list(known)
    close = difflib.get_close_matches(word.lower(), known, n=3, cutoff=0.5)
    if close:
        return "; did you mean " + " or ".join(repr(name) for name in close) + "?"
    return "; known: " + ", ".join(known)


def check_within(name: str, values: Tensor, lowest: int, highest: int, rule: str) -> None:
    """Every value must lie in ``[lowest, highest]``.

    In eager mode the offending value is raised; a compiled graph cannot raise for data, so there
    the check becomes an assertion on the device, without a graph break.
    """
    if torch.compiler.is_compiling():
        inside = ((values >= lowest) & (values <= highest)).all()
        assert_on_device(inside, f"{name} must be {rule}")
        return
    values = unwrapped(values)  # the numbers of a tensor under vmap cannot be read
    if values.numel() == 0 or values.device.type == "meta":
        return
    low, high = (int(value) for value in torch.aminmax(values))
    if low < lowest or high > highest:
        raise ValueError(f"{name} must be {rule}, got {low if low < lowest else high}")
