"""Argument checks: each failure is one sentence with the argument, the rule and the value.

`refused` makes that sentence of its fields and leaves them on the exception, so that a command finds the option
an argument came from, and a page says the same in another language, without reading English.
"""

from __future__ import annotations

import difflib
import numbers
import operator
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from .private import assert_on_device, unwrapped
from .text import Text, reworded


def short(value: object) -> str:
    """A value as an error quotes it: on one line, never long, whatever it is or holds.

    Example:
        >>> short([1] * 100)
        '[1, 1, 1, 1, 1, 1, ...]'
    """
    text = " ".join(_repr.repr(value).split())
    return text if len(text) <= 120 else f"{text[:117]}..."


@dataclass(frozen=True)
class Refusal:
    """The fields of an error's sentence: argument, rule, ``got`` value, advice.

    Attributes:
        argument: The name of the argument; empty where the rule is the whole sentence.
        rule: What must hold: a template with the names of ``facts`` in braces.
        value: The value that was given, as the sentence quotes it; None where the sentence does not.
        facts: What the template names. The name of another argument, and words that a translation must change,
            are a `Text`; so may ``argument`` and ``value`` be. A plain ``str`` is never translated.
        advice: What to do instead: a template like the rule.

    Example:
        >>> str(Refusal("window", "must be at least {minimum}", "0", {"minimum": 1}))
        'window must be at least 1, got 0'
    """

    argument: str
    rule: str
    value: str | None = None
    facts: Mapping[str, object] = field(default_factory=dict)
    advice: str = ""

    def __str__(self) -> str:
        subject = f"{self.argument} " if self.argument else ""
        got = "" if self.value is None else f", got {self.value}"
        return f"{subject}{self.rule.format_map(self.facts)}{got}{self.advice.format_map(self.facts)}"

    def renamed(self, names: Mapping[str, str]) -> Refusal:
        """The same refusal with other names for its argument, and for the arguments that its facts name.

        Example:
            >>> found = Refusal("d_model", "must be a multiple of {of}", "10", {"of": Text("num_heads")})
            >>> str(found.renamed({"d_model": "--d-model", "num_heads": "--heads"}))
            '--d-model must be a multiple of --heads, got 10'
        """

        def name(template: str) -> str:
            whole = template.partition("[")[0] if template.endswith("]") else template  # of "at[0]"
            return names.get(template) or names.get(whole, template)

        argument = self.argument
        argument = argument.reworded(name) if isinstance(argument, Text) else name(argument)
        return replace(self, argument=argument, facts=reworded(self.facts, name))


def refused(
    argument: str,
    rule: str,
    value: object = None,
    *,
    error: Callable[[str], Exception] = ValueError,
    advice: str = "",
    **facts: Any,
) -> Exception:
    """The exception to raise, whose ``refusal`` has the fields of its sentence.

    Args:
        value: Text is quoted as it stands; pass ``short(value)`` for what a user gave.

    Example:
        >>> raise refused("window", "must be at least {minimum}", 0, minimum=1)
        Traceback (most recent call last):
        ValueError: window must be at least 1, got 0
    """
    quoted = value if value is None or isinstance(value, str) else str(value)
    refusal = Refusal(argument, rule, quoted, facts, advice)
    made = error(str(refusal))
    made.refusal = refusal  # type: ignore[attr-defined]
    return made


def refusal_of(error: BaseException) -> Refusal:
    """The fields of an error's sentence; of one that was not made by `refused`, the sentence alone."""
    found = getattr(error, "refusal", None)
    return (
        found
        if isinstance(found, Refusal)
        else Refusal("", "{sentence}", facts={"sentence": str(error) or type(error).__name__})
    )


class _Repr(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        # A number of a million digits takes seconds to print, and Python refuses past 4300.
        return repr(x) if x.bit_length() < 256 else f"an integer of {x.bit_length()} bits"


_repr = _Repr()
_repr.maxlevel, _repr.maxstring, _repr.maxother = 3, 60, 60


#: What a position, a length or an id may be. Arithmetic on positions is of int64.
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def check_instance(name: str, value: object, kind: type, rule: str) -> None:
    """``value`` must be a ``kind``, which ``rule`` says in words."""
    if not isinstance(value, kind):
        raise refused(name, rule, type(value).__name__, error=TypeError)


def check_device(name: str, tensor: Tensor, device: torch.device) -> None:
    if tensor.device != device:
        raise refused(name, "must be on {device}", tensor.device, device=device)


def check_integers(name: str, tensor: object) -> None:
    """``tensor`` must be a tensor of one of `INTEGERS`."""
    if not isinstance(tensor, Tensor) or tensor.dtype not in INTEGERS:
        raise refused(
            name,
            "must be an integer tensor",
            tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__,
            error=TypeError,
        )


def check_features(name: str, tensor: Tensor, axes: str, size: int) -> None:
    """``tensor`` must be floating point, with ``axes`` as in `check_rank`, and have ``size`` numbers along the last."""
    check_rank(name, tensor, axes)
    check_floating(name, tensor)
    if tensor.shape[-1] != size:
        axis = axes.rpartition(", ")[2]
        raise refused(name, "must have {axis} {size}", tensor.shape[-1], axis=axis, size=size)


def check_rank(name: str, tensor: Tensor, axes: str) -> None:
    """``tensor`` must have one dimension per name in ``axes``, e.g. ``"batch, seq, d_model"``."""
    if not isinstance(tensor, Tensor):
        raise refused(
            name, "must be a tensor [{axes}]", type(tensor).__name__, error=TypeError, axes=axes
        )
    if tensor.dim() != axes.count(",") + 1:
        raise refused(name, "must have shape [{axes}]", list(tensor.shape), axes=axes)


def check_table(name: str, table: Tensor, axes: str, lo: object) -> int:
    """A table over distances: a rank, at least one distance, and the distance it starts from, which is returned."""
    check_rank(name, table, axes)
    if table.shape[1] == 0:
        raise refused(name, "must hold at least one distance", list(table.shape))
    try:
        return check_int("lo", lo)
    except TypeError:
        raise refused(
            "lo",
            "must be an int, the distance {table} starts from",
            short(lo),
            error=TypeError,
            table=name,
        ) from None


def check_floating(name: str, tensor: Tensor) -> None:
    if not tensor.is_floating_point():
        raise refused(name, "must be floating point", tensor.dtype, error=TypeError)
    if tensor.dtype.itemsize == 1:  # float8, in which PyTorch adds nothing up
        raise refused(name, "must be floating point of at least 16 bits", tensor.dtype, error=TypeError)


def check_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise refused(
            name,
            "must be True or False",
            short(value) if isinstance(value, (str, int, float)) else type(value).__name__,
            error=TypeError,
        )


def as_int(name: str, value: object) -> int:
    """``value`` as an int: anything that `operator.index` takes (NumPy's integers, say) but a bool."""
    if type(value) in (int, torch.SymInt):
        return value  # type: ignore[return-value]
    if not _is_bool(value):
        try:
            return int(operator.index(value))  # type: ignore[arg-type]
        except TypeError:
            pass
    raise refused(name, "must be an int", short(value), error=TypeError)


def check_int(name: str, value: object) -> int:
    """``value`` as an int that a tensor can hold."""
    value = as_int(name, value)
    # A compiler's symbol is the size of a tensor.
    if not torch.compiler.is_compiling() and type(value) is int and not -(2**63) <= value < 2**63:
        raise refused(name, "must fit in 64 bits", short(value))
    return value


def _is_bool(value: object) -> bool:
    """Whether ``value`` is a bool of Python, NumPy or PyTorch; an index can be made of all three."""
    return "bool" in str(getattr(value, "dtype", type(value)))


def check_positive_int(name: str, value: object, *, minimum: int = 1) -> int:
    """``value`` as an int, which must be at least ``minimum``."""
    value = check_int(name, value)
    if value < minimum:
        raise refused(name, "must be at least {least}", short(value), least=minimum)
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
        raise refused(name, "must be at most {most}", short(value), most=most)


def check_sequence(name: str, value: object, of: str) -> Sequence[Any]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise refused(name, "must be a sequence of {of}", short(value), error=TypeError, of=of)
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
        raise refused(name, "must be even, channels turn in pairs", short(value))
    return value


def check_number(
    name: str, value: object, *, above: float | None = None, at_least: float | None = None
) -> float:
    """``value`` as an int of 64 bits or a float; NumPy's numbers are welcome."""
    if type(value) not in (int, float):
        if _is_bool(value) or not isinstance(value, numbers.Real):
            raise refused(name, "must be a number", short(value), error=TypeError)
        value = operator.index(value) if isinstance(value, numbers.Integral) else float(value)
    assert isinstance(value, (int, float))
    # Not math.isfinite: under a compiler with dynamic=True a number may be a symbol.
    if not -sys.float_info.max <= value <= sys.float_info.max:
        raise refused(name, "must be finite", short(value))
    if not -(2**63) <= value < 2**63:  # where PyTorch takes no int
        value = float(value)
    if above is not None and not value > above:
        raise refused(name, "must be greater than {least}", f"{value:g}", least=f"{above:g}")
    if at_least is not None and not value >= at_least:
        raise refused(name, "must be at least {least}", f"{value:g}", least=f"{at_least:g}")
    return value


def check_fields(owner: object, check: Callable[..., object], *names: str, **rule: float) -> None:
    """Check fields of a dataclass, be it frozen, and put what ``check`` returns in their place."""
    for name in names:
        object.__setattr__(owner, name, check(name, getattr(owner, name), **rule))


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    choices = list(choices)
    if value not in choices:
        listed = ", ".join(map(repr, choices))
        raise refused(name, "must be one of {choices}", short(value), choices=listed)


def one_of(names: Sequence[str]) -> Text:
    """Names in quotes as alternatives.

    Example:
        >>> one_of(["rope", "none"])
        "'rope' or 'none'"
    """
    *others, last = (Text("{name!r}", name=name) for name in names)
    for name in reversed(others):
        last = Text("{first} or {rest}", first=name, rest=last)
    return last


def nearest(word: str, known: Iterable[str]) -> Text:
    """``"; did you mean 'rope'?"`` when something known is close, else the list of what is known."""
    known = list(known)
    close = difflib.get_close_matches(word.lower(), known, n=3, cutoff=0.5)
    if close:
        return Text("; did you mean {names}?", names=one_of(close))
    return Text("; known: {names}", names=", ".join(known))


def check_within(name: str, values: Tensor, lowest: int, highest: int, rule: str, **facts: Any) -> None:
    """Every value must lie in ``[lowest, highest]``, which ``rule`` says in words.

    In eager mode the offending value is raised; a compiled graph cannot raise for data, so there
    the check becomes an assertion on the device, without a graph break.
    """
    if torch.compiler.is_compiling():
        inside, check = (
            ((values >= lowest) & (values <= highest)).all(),
            Refusal(name, rule, None, facts),
        )
        if not assert_on_device(inside, str(check)):
            raise refused(
                "torch",
                "must have aten._assert_async.msg to compile a check that {check}",
                torch.__version__,
                error=NotImplementedError,
                check=check,
            )
        return
    values = unwrapped(values)  # the numbers of a tensor under vmap cannot be read
    if values.numel() == 0 or values.device.type == "meta":
        return
    low, high = (int(value) for value in torch.aminmax(values))
    if low < lowest or high > highest:
        raise refused(name, rule, low if low < lowest else high, **facts)
