"""An entry of the catalog: everything that `show`, `plot`, `verify`, the page and the lab know of one encoding."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import Any, Literal

Hook = Literal["none", "embed", "rotate", "bias", "scaling"]

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Table:
    """The trained table of an encoding, whose size follows from the options.

    Attributes:
        rows: How many rows there are, from those options that are known.
        width: The option that says how many numbers a row holds.
        row: What a row is called.
    """

    rows: Callable[[Mapping[str, int]], int]
    width: str
    row: str = "row"


@dataclass(frozen=True)
class Option:
    """Bounds of an option.

    Attributes:
        low, high, step: The slider of a number on the page; a number without bounds is not on the page.
        logarithmic: The slider moves the decimal logarithm, whose bounds these are.
        most: The largest number that `show`, `plot` and the page take. Default: any.
    """

    low: float = 0
    high: float = 0
    step: float = 1
    logarithmic: bool = False
    most: int | None = None


@dataclass(frozen=True)
class Entry:
    """One line of the catalog.

    Attributes:
        name: What a spec calls it: small letters, digits and underscores.
        hook: The method of `PositionEncoding` that it overrides, "none", or "scaling".
        learned: Whether it has parameters.
        paper: An identifier such as ``"arXiv:2108.12409"``.
        defaults: Options for `create`, where the class has no default of its own.
        example: Options as text, for `show`, `plot` and `verify` of the bare name, where no default makes sense;
            or a function that makes them for a ``head_dim``.
        table: The size of its table, which is then known before it is made.
        options: Bounds of options by name. The page shows these options, in this order. Default: every option
            that is a switch or a choice.
        steps: The steps of `show`: a function of the encoding and the `Setting`, or ``"module:function"``, so that
            the module is loaded when it is used. Default: what the hooks return, as tables.
        pictures: Kinds of pictures that are special to it, and the kind to draw when none is asked for, first.
    """

    name: str
    cls: type
    hook: Hook
    learned: bool
    year: int
    paper: str
    formula: str
    used_by: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    example: str | Callable[[int], str] = ""
    table: Table | None = None
    options: Mapping[str, Option] | None = None
    steps: Callable[..., Any] | str | None = None
    pictures: tuple[str, ...] = ()

    @property
    def is_scaling(self) -> bool:
        return self.hook == "scaling"

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The options of the class by name, with their annotations as types; ``*args`` are none."""
        try:
            found = inspect.signature(self.cls, eval_str=True).parameters
        except NameError:  # an annotation of what is imported for type checkers alone
            found = inspect.signature(self.cls).parameters
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        return {name: one for name, one in found.items() if one.kind not in variadic}

    @property
    def takes_scaling(self) -> bool:
        """Whether a scaling may follow it in a spec: its class has an option ``scaling``."""
        return "scaling" in self.parameters

    def example_spec(self, head_dim: int = 64) -> str:
        """The spec that stands for the bare name; a scaling is shown on rope.

        Example:
            >>> ordinate.catalog["yarn"].example_spec()
            'rope+yarn:factor=4'
        """
        options = self.example if isinstance(self.example, str) else self.example(head_dim)
        spec = f"{self.name}:{options}" if options else self.name
        return f"rope+{spec}" if self.is_scaling else spec

    def numbers_in_table(self, options: Mapping[str, Any], sizes: Mapping[str, int] = _NOTHING) -> int:
        """How many numbers the table of an encoding holds; 0 where no option makes it large.

        Args:
            options: The options of a spec; the class refuses what is no whole number.
            sizes: The sizes of the model, as `ordinate.create` is given them. What is not given counts as 0.

        Example:
            >>> ordinate.catalog["learned"].numbers_in_table({"max_positions": 100}, {"d_model": 8})
            800
        """
        if self.table is None:
            return 0
        given = {name: value for name, value in options.items() if isinstance(value, int)}
        known = {**sizes, **self.defaults, **given}
        return max(self.table.rows(known), 0) * max(known.get(self.table.width, 0), 0)

    def steps_function(self) -> Callable[..., Any] | None:
        """The function that makes the steps of `show`, loaded where it is given by name."""
        if not isinstance(self.steps, str):
            return self.steps
        module, _, function = self.steps.partition(":")
        return getattr(import_module(module), function)
