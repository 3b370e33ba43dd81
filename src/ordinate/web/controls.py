"""The controls for the options of an encoding, and the spec that their values make."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from ..checks import refused
from ..entries import catalog
from ..entry import Option

#: The choice under which the visitor types a spec, in place of the name of an encoding.
OWN = "spec"

#: The longest spec that can be typed.
MAX_SPEC = 200


@dataclass(frozen=True)
class Control:
    """One option: a slider from ``low`` to ``high``, one of ``choices``, or, with neither, a switch.

    Attributes:
        power_of_ten: The option that is 10 to the power of this one; empty where the control is the option.
    """

    name: str
    default: Any
    low: float = 0
    high: float = 0
    step: float = 1
    choices: tuple[str, ...] = ()
    power_of_ten: str = ""

    @property
    def is_slider(self) -> bool:
        return self.high > self.low


_FACTOR = Control("factor", 4.0, 1, 64, 0.5)


def names() -> list[str]:
    """What can be chosen: every encoding of the catalog, and a spec that the visitor types."""
    return [*(entry.name for entry in catalog.values() if not entry.is_scaling), OWN]


def controls_of(encoding: str) -> dict[str, Control]:
    """The controls of an encoding by name: its options that the page shows, each at the library's default.

    Example:
        >>> list(controls_of("rope")), controls_of("shaw")["max_distance"].default
        (['log_base', 'layout', 'scaling', 'factor'], 16)
    """
    entry = catalog.get(encoding)
    if entry is None:
        return {}
    parameters = entry.parameters
    options = dict.fromkeys(parameters, Option()) if entry.options is None else entry.options
    found = [
        _control(
            name, option, parameters[name].annotation, entry.defaults.get(name, parameters[name].default)
        )
        for name, option in options.items()
    ]
    if entry.takes_scaling:
        found += [Control("scaling", "none", choices=("none", *_scalings())), _FACTOR]
    return {control.name: control for control in found if control is not None}


def _control(name: str, option: Option, annotation: Any, default: Any) -> Control | None:
    """A switch, a choice or a slider; None for another kind of option."""
    if isinstance(default, bool):
        return Control(name, default)
    if get_origin(annotation) is Literal:
        return Control(name, default, choices=get_args(annotation))
    if option.high <= option.low:
        return None
    bounds = option.low, option.high, option.step
    if option.logarithmic:
        return Control(f"log_{name}", math.log10(default), *bounds, power_of_ten=name)
    return Control(name, default, *bounds)


def _scalings() -> dict[str, str]:
    """The scalings that have a factor to move, with the other options of their examples."""
    split = {
        entry.name: entry.example.partition(",")[::2]
        for entry in catalog.values()
        if entry.is_scaling and isinstance(entry.example, str)
    }
    return {name: others for name, (first, others) in split.items() if first.startswith("factor=")}


def all_controls() -> dict[str, Control]:
    """Every control of any encoding, in the order of the catalog."""
    return {name: control for encoding in names() for name, control in controls_of(encoding).items()}


def defaults_of(encoding: str) -> dict[str, Any]:
    """Where the controls of an encoding start.

    Example:
        >>> defaults_of("shaw"), defaults_of("sinusoidal")["layout"]
        ({'max_distance': 16}, 'interleaved')
    """
    return {name: control.default for name, control in controls_of(encoding).items()}


def spec_of(encoding: str, typed: str, values: Mapping[str, Any]) -> str:
    """The spec of a choice and its options; options at the library's defaults are left out.

    Example:
        >>> spec_of("rope", "", {"log_base": 6, "layout": "half", "scaling": "yarn", "factor": 16})
        'rope:base=1e+06+yarn:factor=16'
    """
    if encoding == OWN:
        if len(typed) > MAX_SPEC:
            raise refused("spec", "must be at most {most} characters", len(typed), most=MAX_SPEC)
        return typed.strip()
    _check_choice("encoding", encoding, names())
    controls = controls_of(encoding)
    chosen = {
        name: _checked(control, values.get(name, control.default)) for name, control in controls.items()
    }
    scaling, factor = "none", 1.0
    if catalog[encoding].takes_scaling:
        scaling, factor = chosen.pop("scaling"), chosen.pop("factor")
    moved = ",".join(
        f"{controls[name].power_of_ten}={10**value:.4g}"
        if controls[name].power_of_ten
        else f"{name}={str(value).lower()}"
        for name, value in chosen.items()
        if value != controls[name].default
    )
    spec = f"{encoding}:{moved}" if moved else encoding
    if scaling == "none":
        return spec
    others = _scalings()[scaling]
    return f"{spec}+{scaling}:factor={factor:g}" + (f",{others}" if others else "")


def factor_of(values: Mapping[str, Any]) -> float:
    """By how much the scalings stretch that are compared: as much as the one that is chosen."""
    return _checked(_FACTOR, values.get("factor", _FACTOR.default))


def _checked(control: Control, value: Any) -> Any:
    """A value that a visitor sent, within its bounds; whole where the steps are."""
    if control.is_slider:
        whole = float(control.step).is_integer()
        return number(control.name, value, control.low, control.high, whole=whole)
    if control.choices:
        _check_choice(control.name, value, control.choices)
    elif not isinstance(value, bool):
        raise refused(control.name, "must be true or false", _quoted(value))
    return value


def _check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        raise refused(name, "must be one of {choices}", _quoted(value), choices=", ".join(choices))


def number(name: str, value: Any, low: float, high: float, *, whole: bool) -> Any:
    """A number that a visitor sent, refused with its bounds if it is not a number or outside them."""
    bounds: dict[str, Any] = {"least": f"{low:.12g}", "most": f"{high:.12g}"}
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise refused(name, "must be a number from {least} to {most}", _quoted(value), **bounds)
    if not low <= value <= high:
        raise refused(name, "must be from {least} to {most}", f"{value:.12g}", **bounds)
    if whole and value != int(value):
        raise refused(name, "must be a whole number", f"{value:g}")
    return int(value) if whole else float(value)


def _quoted(value: Any) -> str:
    return repr(str(value)[:40])
