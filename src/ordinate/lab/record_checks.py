"""Checks of a run's records: defines "damaged" for reports, for ``--resume`` and for a run that has just ended."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ..checks import check_choice, refused, short
from ..text import Text
from .config import RunConfig
from .strict_json import is_number, is_whole

_LONGEST_TEXT = 10_000
_MOST_THREADS = 4096


def check_lines(config: RunConfig, metrics: Sequence[dict[str, Any]], *, finished: bool) -> None:
    """Check that a run that is over has all its lines, each with its fields.

    Args:
        finished: Whether the run was trained to its last step and tested; a run that diverged was not.

    Raises:
        ValueError: A line or a field is absent or invalid.
    """
    for metric in metrics:
        _check_fields({**_ADDED_BY_FORMAT_3, **metric} if config.format < 3 else metric)
    steps = [metric["step"] for metric in metrics if metric["kind"] == "train"]
    trained = config.steps if finished else len(steps)
    _check_all(Text("steps of training"), steps, range(1, trained + 1))
    if not finished:
        return
    validated = [metric["step"] for metric in metrics if metric["kind"] == "validation"]
    every = config.validate_every
    expected = range(every, trained + every, every)
    _check_all(Text("steps of validation"), validated, expected, trained)
    tests = [(line["extension"], line["length"]) for line in metrics if line["kind"] == "evaluation"]
    _check_all(Text("evaluations"), tests, config.tests())
    for kind in ("baseline", "cost"):
        if all(metric["kind"] != kind for metric in metrics):
            raise refused("metrics.jsonl", "must have a line of kind {kind}", Text("none"), kind=kind)


def check_environments(environments: Any) -> None:
    """Check that ``environment.json`` has a description of every machine that the run was on.

    Raises:
        ValueError: It does not.
    """
    described = isinstance(environments, list) and all(isinstance(one, dict) for one in environments)
    if not described or not environments:
        raise refused("environment.json", "must be a list of descriptions", short(environments))
    for threads in (one.get("threads") for one in environments):
        if not is_whole(threads) or not 1 <= threads <= _MOST_THREADS:
            raise refused(
                Text("threads in environment.json"),
                "must be 1 to {most}",
                short(threads),
                most=_MOST_THREADS,
            )


def check_result(result: Any) -> None:
    """Check the fields of ``result.json``.

    Raises:
        ValueError: Its fields are others.
    """
    if not isinstance(result, dict):
        raise refused("result.json", "must be an object", short(result))
    check_choice(Text("state in result.json"), result.get("state"), ("finished", "diverged"))
    if not isinstance(result.get("reason"), str) or not isinstance(result.get("sha256"), dict):
        raise refused(
            "result.json", "must have a reason in words and the SHA-256 of every file", Text("others")
        )


def _check_all(what: Text, found: Sequence[Any], wanted: Sequence[Any], last: int | None = None) -> None:
    """Check that ``found`` is ``wanted``, in order; if ``last`` is given, only up to that step.

    ``wanted`` may be a range too long for memory, because a config may have any number of steps.
    """
    if len(found) != len(wanted):
        raise refused(
            "metrics.jsonl",
            "must have {count} {lines}, each in its place",
            len(found),
            count=len(wanted),
            lines=what,
        )
    if any(a != (b if last is None else min(b, last)) for a, b in zip(found, wanted, strict=True)):
        raise refused(
            "metrics.jsonl", "must have its {lines} each in its place", Text("others"), lines=what
        )


def _check_fields(metric: dict[str, Any]) -> None:
    kind = metric["kind"]
    for name, (what, holds) in _FIELDS.get(kind, {}).items():
        if name not in metric:
            raise refused(Text("a line of kind {kind}", kind=kind), "must have {field}", field=name)
        if not holds(metric[name]):
            raise refused(
                Text("{field} of a line of kind {kind}", field=name, kind=kind),
                "must be {what}",
                short(metric[name]),
                what=what,
            )
    if kind == "evaluation" and (metric["loss"] is None) != (metric["refused"] is not None):
        raise refused(
            Text("a line of kind {kind}", kind=kind), "must have a loss, or say why it was refused"
        )


# A rule for a field: in words, and as a test.
Rule = tuple[Text, Callable[[Any], bool]]


def _or_null(what: str, holds: Callable[[Any], bool]) -> Rule:
    return Text("{what} or null", what=Text(what)), lambda value: value is None or holds(value)


def _at_least_0(value: Any) -> bool:
    return is_number(value) and 0 <= value < math.inf


def _loss(value: Any) -> bool:
    """Whether a value is a loss at a length, which may be NaN or infinite."""
    return is_number(value) and not value < 0


def _text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_TEXT


def _share(value: Any) -> bool:
    return is_number(value) and 0 <= value <= 1


def _positions(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(row, list)
        and len(row) == 4
        and _at_least_0(row[0])
        and _at_least_0(row[1])
        and row[0] < row[1]
        and all(one is None or is_number(one) for one in row[2:])
        for row in value
    )


def _variants(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(pair, list)
        and len(pair) == 2
        and (pair[0] is None or _share(pair[0]))
        and (pair[1] is None or is_number(pair[1]))
        for pair in value.values()
    )


_AT_LEAST_0: Rule = (Text("a number of at least 0"), _at_least_0)
_COUNT: Rule = (Text("a whole number of at least 1"), lambda value: is_whole(value) and value >= 1)
_TEXT: Rule = (Text("text"), _text)
_SHARE_OR_NULL = _or_null("a share", _share)
_ERROR_OR_NULL = _or_null("an error", _loss)  # an error is infinite or NaN if the loss is
_LOSSES: Rule = (Text("losses"), lambda value: isinstance(value, list) and all(map(_loss, value)))

# Lines of an older format lack these.
_ADDED_BY_FORMAT_3 = dict.fromkeys(("last_accuracy", "last_accuracy_error"))

# The fields that a line of each kind must have, checked before any use.
_FIELDS: dict[str, dict[str, Rule]] = {
    "baseline": {"name": _TEXT, "loss": _AT_LEAST_0, "accuracy": _SHARE_OR_NULL},
    "train": {"step": _COUNT, "loss": _AT_LEAST_0, "grad_norm": _AT_LEAST_0},
    "validation": {"step": _COUNT, "loss": _AT_LEAST_0},
    "cost": {
        "peak_memory_bytes": _or_null("a number of at least 0", _at_least_0),
        **dict.fromkeys(
            ("parameters", "encoding_parameters", "tokens_per_second", "operations", "bytes"), _AT_LEAST_0
        ),
    },
    "evaluation": {
        "extension": _or_null("text", _text), "length": _COUNT, "refused": _or_null("text", _text),
        "loss": _or_null("a loss", _loss),
        **dict.fromkeys(("accuracy", "last_accuracy"), _SHARE_OR_NULL),
        **dict.fromkeys(("last_loss", "windowed_loss", "gain"), _or_null("a number", is_number)),
        **dict.fromkeys(
            ("loss_error", "last_error", "gain_error", "accuracy_error", "last_accuracy_error"), _ERROR_OR_NULL
        ),
        "positions": (Text("rows of 4 numbers"), _positions), "stretches": _LOSSES,
        "variants": (Text("shares and their errors by name"), _variants),
    },
}  # fmt: skip
