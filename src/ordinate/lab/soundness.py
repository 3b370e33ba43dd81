"""When the records of a run count: the one meaning of "damaged", for a report, for ``--resume`` and for a
run that has just ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .config import RunConfig


def check_lines(config: RunConfig, metrics: Sequence[dict[str, Any]], *, finished: bool) -> None:
    """The lines of a run that is over must be all there, and each what it says it is.

    Args:
        finished: Whether the run was trained to its last step and tested, and not given up on the way.

    Raises:
        ValueError: They are not.
    """
    for metric in metrics:
        _check_fields(metric)
    steps = [metric["step"] for metric in metrics if metric["kind"] == "train"]
    _check_all("steps of training", steps, range(1, (config.steps if finished else len(steps)) + 1))
    if not finished:
        return
    every, last = config.validate_every, config.steps
    looks = [metric["step"] for metric in metrics if metric["kind"] == "validation"]
    _check_all("steps of validation", looks, sorted({*range(every, last + 1, every), last}))
    tests = [(line["extension"], line["length"]) for line in metrics if line["kind"] == "evaluation"]
    _check_all("evaluations", tests, config.tests())
    for kind in ("baseline", "cost"):
        if not any(metric["kind"] == kind for metric in metrics):
            raise ValueError(f"metrics.jsonl must have a line of kind {kind}, got none")


def check_environments(environments: Any) -> None:
    """What ``environment.json`` holds: a description for every place the run was at.

    Raises:
        ValueError: It holds something else.
    """
    described = isinstance(environments, list) and all(isinstance(one, dict) for one in environments)
    if not described or not environments:
        raise ValueError(f"environment.json must be a list of descriptions, got {environments!r:.60}")
    for one in environments:
        if not _count(one.get("threads")):
            raise ValueError(
                f"threads in environment.json must be at least 1, got {one.get('threads')!r}"
            )


def _check_all(what: str, found: Sequence[Any], wanted: Sequence[Any]) -> None:
    if list(found) != list(wanted):
        raise ValueError(
            f"metrics.jsonl must have {len(wanted)} {what}, each in its place, got {len(found)}"
            if len(found) != len(wanted)
            else f"metrics.jsonl must have its {what} each in its place, got others"
        )


def _check_fields(metric: dict[str, Any]) -> None:
    kind = metric["kind"]
    for name, (what, holds) in _FIELDS.get(kind, {}).items():
        if name not in metric:
            raise ValueError(f"a line of kind {kind} must have {name}")
        if not holds(metric[name]):
            raise ValueError(f"{name} of a line of kind {kind} must be {what}, got {metric[name]!r:.60}")
    if kind == "evaluation" and (metric["loss"] is None) != (metric["refused"] is not None):
        raise ValueError("a line of kind evaluation must have a loss, or say why it was refused")


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _text(value: object) -> bool:
    return isinstance(value, str)


def _rows(width: int) -> Callable[[object], bool]:
    """A list of rows of so many numbers, of which some may be missing."""

    def holds(value: object) -> bool:
        return isinstance(value, list) and all(
            isinstance(row, list)
            and len(row) == width
            and all(one is None or _number(one) for one in row)
            for row in value
        )

    return holds


def _numbers(value: object) -> bool:
    return isinstance(value, list) and all(map(_number, value))


def _pairs(value: object) -> bool:
    return isinstance(value, dict) and _rows(2)(list(value.values()))


def _or_null(holds: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or holds(value)


_NUMBER = ("a number", _number)
_COUNT = ("a whole number of at least 1", _count)
_TEXT = ("text", _text)
_NUMBER_OR_NULL = ("a number or null", _or_null(_number))
_TEXT_OR_NULL = ("text or null", _or_null(_text))

# What a line of each kind must have before anything is computed from it.
_FIELDS: dict[str, dict[str, tuple[str, Callable[[object], bool]]]] = {
    "baseline": {"name": _TEXT, "loss": _NUMBER, "accuracy": _NUMBER_OR_NULL},
    "train": {"step": _COUNT, "loss": _NUMBER, "grad_norm": _NUMBER},
    "validation": {"step": _COUNT, "loss": _NUMBER},
    "cost": {
        "parameters": _NUMBER, "encoding_parameters": _NUMBER, "tokens_per_second": _NUMBER,
        "peak_memory_bytes": _NUMBER_OR_NULL, "operations": _NUMBER, "bytes": _NUMBER,
    },
    "evaluation": {
        "extension": _TEXT_OR_NULL, "length": _COUNT, "refused": _TEXT_OR_NULL,
        **dict.fromkeys(
            ("loss", "loss_error", "last_loss", "last_error", "windowed_loss", "gain", "gain_error",
             "accuracy", "accuracy_error"),
            _NUMBER_OR_NULL,
        ),
        "positions": ("rows of 4 numbers", _rows(4)), "stretches": ("numbers", _numbers),
        "variants": ("pairs of numbers by name", _pairs),
    },
}  # fmt: skip
