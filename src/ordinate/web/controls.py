"""The options a visitor can move, and the spec they make."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..entries import catalog

#: In place of a name: the visitor types a whole spec.
OWN = "spec"

#: The longest spec that can be typed.
MAX_SPEC = 200


@dataclass(frozen=True)
class Control:
    """One option: a slider from ``low`` to ``high``, one of ``choices``, or, with neither, a switch."""

    name: str
    default: Any
    low: float = 0
    high: float = 0
    step: float = 1
    choices: tuple[str, ...] = ()

    @property
    def is_slider(self) -> bool:
        return self.high > self.low


#: Every option the page knows, in the order it shows them.
CONTROLS = {
    control.name: control
    for control in (
        Control("log_base", 4.0, 1, 8, 0.1),
        Control("layout", "half", choices=("half", "interleaved")),
        Control("endpoint", False),
        Control("scaling", "none", choices=("none", "linear", "ntk", "dynamic", "yarn", "llama3")),
        Control("factor", 4.0, 1, 64, 0.5),
        Control("symmetric", False),
        Control("bidirectional", False),
        Control("num_buckets", 32, 4, 128, 4),
        Control("max_distance", 128, 1, 1024, 1),
    )
}

_OPTIONS = {
    "sinusoidal": ("log_base", "layout", "endpoint"),
    "rope": ("log_base", "layout", "scaling", "factor"),
    "alibi": ("symmetric",),
    "clipped": ("max_distance",),
    "t5": ("bidirectional", "num_buckets", "max_distance"),
    "shaw": ("max_distance",),
}

_SCALING_EXTRAS = {"llama3": ",low_freq_factor=1,high_freq_factor=4"}


def names() -> list[str]:
    """What can be chosen: every encoding of the catalog, and a spec of one's own."""
    return [*(entry.name for entry in catalog.values() if not entry.is_scaling), OWN]


def options_of(encoding: str) -> Sequence[str]:
    """The options an encoding has on the page."""
    return _OPTIONS.get(encoding, ())


def defaults_of(encoding: str) -> dict[str, Any]:
    """Where the options of an encoding start: at the library's own defaults.

    Example:
        >>> defaults_of("shaw"), defaults_of("sinusoidal")["layout"]
        ({'max_distance': 16}, 'interleaved')
    """
    return {name: _library_default(encoding, name) for name in options_of(encoding)}


def _library_default(encoding: str, name: str) -> Any:
    if name in ("log_base", "scaling", "factor"):
        return CONTROLS[name].default
    entry = catalog[encoding]
    return entry.defaults.get(name, inspect.signature(entry.cls).parameters[name].default)


def spec_of(encoding: str, typed: str, values: Mapping[str, Any]) -> str:
    """The spec of a choice and its options, those left at the library's defaults unsaid.

    Example:
        >>> spec_of("rope", "", {"log_base": 6, "layout": "half", "scaling": "yarn", "factor": 16})
        'rope:base=1e+06+yarn:factor=16'
    """
    if encoding == OWN:
        if len(typed) > MAX_SPEC:
            raise ValueError(f"spec must be at most {MAX_SPEC} characters, got {len(typed)}")
        return typed.strip()
    if encoding not in names():
        raise ValueError(f"encoding must be one of {', '.join(names())}, got {str(encoding)[:40]!r}")
    defaults = defaults_of(encoding)
    chosen = {
        name: _checked(CONTROLS[name], values.get(name, value)) for name, value in defaults.items()
    }
    scaling, factor = chosen.pop("scaling", "none"), chosen.pop("factor", 1)
    said = []
    for name, value in chosen.items():
        if value != defaults[name]:
            said.append(
                f"base={10**value:.4g}" if name == "log_base" else f"{name}={str(value).lower()}"
            )
    spec = f"{encoding}:{','.join(said)}" if said else encoding
    if scaling == "none":
        return spec
    return f"{spec}+{scaling}:factor={factor:g}{_SCALING_EXTRAS.get(scaling, '')}"


def factor_of(values: Mapping[str, Any]) -> float:
    """How far the scalings stretch that are put side by side: as far as the one that is chosen."""
    return _checked(CONTROLS["factor"], values.get("factor", CONTROLS["factor"].default))


def _checked(control: Control, value: Any) -> Any:
    """A value from outside, within its bounds; whole where the steps are."""
    if control.choices:
        if value not in control.choices:
            raise ValueError(
                f"{control.name} must be one of {', '.join(control.choices)}, got {str(value)[:40]!r}"
            )
        return value
    if not control.is_slider:
        if not isinstance(value, bool):
            raise ValueError(f"{control.name} must be true or false, got {str(value)[:40]!r}")
        return value
    return number(control.name, value, control.low, control.high, whole=float(control.step).is_integer())


def number(name: str, value: Any, low: float, high: float, *, whole: bool) -> Any:
    """A number a visitor gave, refused with its bounds where it is none or beyond them."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(
            f"{name} must be a number from {low:.12g} to {high:.12g}, got {str(value)[:40]!r}"
        )
    if not low <= value <= high:
        raise ValueError(f"{name} must be from {low:.12g} to {high:.12g}, got {value:.12g}")
    if whole and value != int(value):
        raise ValueError(f"{name} must be a whole number, got {value:g}")
    return int(value) if whole else float(value)
