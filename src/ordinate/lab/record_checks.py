"""When the records of a run count: the one meaning of "damaged", for a report, for ``--resume`` and for a
run that has just ended."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ..checks import check_choice
from .config import RunConfig

_LONGEST_TEXT = 10_000
_MOST_THREADS = 4096


def check_lines(config: RunConfig, metrics: Sequence[dict[str, Any]], *, finished: bool) -> None:
    """The lines of a run that is over must be all there, and each what it says it is.

    Args:
        finished: Whether the run was trained to its last step and tested, and not given up on the way.

    Raises:
        ValueError: They are not.
    """
    for metric in metrics:
        _check_fields({**_BEFORE_3, **metric} if config.format < 3 else metric)
    steps = [metric["step"] for metric in metrics if metric["kind"] == "train"]
    _check_all("steps of training", steps, range(1, (config.steps if finished else len(steps)) + 1))
    if not finished:
        return
    every, last = config.validate_every, config.steps
    looks = [metric["step"] for metric in metrics if metric["kind"] == "validation"]
    _check_all("steps of validation", looks, range(every, last + every, every), last)
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
        if not _count(one.get("threads")) or one["threads"] > _MOST_THREADS:
            raise ValueError(
                f"threads in environment.json must be 1 to {_MOST_THREADS}, got {one.get('threads')!r:.60}"
            )


def check_result(result: Any) -> None:
    """What ``result.json`` must say before it is believed.

    Raises:
        ValueError: It says something else.
    """
    if not isinstance(result, dict):
        raise ValueError(f"result.json must be an object, got {result!r:.60}")
    check_choice("state in result.json", result.get("state"), ("finished", "diverged"))
    if not isinstance(result.get("reason"), str) or not isinstance(result.get("sha256"), dict):
        raise ValueError(
            "result.json must have a reason in words and the SHA-256 of every file, got others"
        )


def _check_all(what: str, found: Sequence[Any], wanted: Sequence[Any], last: int | None = None) -> None:
    """Every one, in order; the last of a range may come earlier. A config may ask for more than memory holds."""
    if len(found) != len(wanted):
        raise ValueError(
            f"metrics.jsonl must have {len(wanted)} {what}, each in its place, got {len(found)}"
        )
    if any(a != (b if last is None else min(b, last)) for a, b in zip(found, wanted, strict=True)):
        raise ValueError(f"metrics.jsonl must have its {what} each in its place, got others")


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


def _at_least_0(value: object) -> bool:
    return _number(value) and 0 <= value < math.inf  # type: ignore[operator]


def _loss(value: object) -> bool:
    """What a trained model may give at a length: also NaN and infinity."""
    return _number(value) and not value < 0  # type: ignore[operator]


def _share(value: object) -> bool:
    return _number(value) and 0 <= value <= 1  # type: ignore[operator]


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_TEXT


def _bins(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(row, list)
        and len(row) == 4
        and _at_least_0(row[0])
        and _at_least_0(row[1])
        and row[0] < row[1]
        and all(one is None or _number(one) for one in row[2:])
        for row in value
    )


def _losses(value: object) -> bool:
    return isinstance(value, list) and all(map(_loss, value))


def _shares(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(pair, list)
        and len(pair) == 2
        and _or_null(_share)(pair[0])
        and _or_null(_number)(pair[1])
        for pair in value.values()
    )


def _or_null(holds: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or holds(value)


_AT_LEAST_0 = ("a number of at least 0", _at_least_0)
_COUNT = ("a whole number of at least 1", _count)
_TEXT = ("text", _text)
_NUMBER_OR_NULL = ("a number or null", _or_null(_number))
_SHARE_OR_NULL = ("a share or null", _or_null(_share))
# An error is infinite, or not a number, where the loss is.
_ERROR_OR_NULL = ("an error or null", _or_null(_loss))
_TEXT_OR_NULL = ("text or null", _or_null(_text))

# What lines of an older format lack.
_BEFORE_3 = dict.fromkeys(("last_accuracy", "last_accuracy_error"))

# What a line of each kind must have before anything is computed from it.
_FIELDS: dict[str, dict[str, tuple[str, Callable[[object], bool]]]] = {
    "baseline": {"name": _TEXT, "loss": _AT_LEAST_0, "accuracy": _SHARE_OR_NULL},
    "train": {"step": _COUNT, "loss": _AT_LEAST_0, "grad_norm": _AT_LEAST_0},
    "validation": {"step": _COUNT, "loss": _AT_LEAST_0},
    "cost": {
        "peak_memory_bytes": ("a number of at least 0 or null", _or_null(_at_least_0)),
        **dict.fromkeys(
            ("parameters", "encoding_parameters", "tokens_per_second", "operations", "bytes"), _AT_LEAST_0
        ),
    },
    "evaluation": {
        "extension": _TEXT_OR_NULL, "length": _COUNT, "refused": _TEXT_OR_NULL,
        "loss": ("a loss or null", _or_null(_loss)),
        **dict.fromkeys(("accuracy", "last_accuracy"), _SHARE_OR_NULL),
        **dict.fromkeys(("last_loss", "windowed_loss", "gain"), _NUMBER_OR_NULL),
        **dict.fromkeys(
            ("loss_error", "last_error", "gain_error", "accuracy_error", "last_accuracy_error"), _ERROR_OR_NULL
        ),
        "positions": ("rows of 4 numbers", _bins), "stretches": ("losses", _losses),
        "variants": ("shares and their errors by name", _shares),
    },
}  # fmt: skip
