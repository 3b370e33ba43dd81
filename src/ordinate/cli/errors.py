"""How a command refuses: one sentence about an option and a hint, never a traceback."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ..checks import Refusal, refusal_of, refused
from ..entries import UNKNOWN_ENCODING, parse


class Misuse(Exception):
    """A command line that cannot be carried out; the hint is a command that can."""

    def __init__(self, sentence: str, hint: str) -> None:
        super().__init__(sentence)
        self.hint = hint


def misuse(argument: str, rule: str, value: object = None, *, hint: str, **facts: Any) -> Exception:
    """The exception to raise for an option or argument of a command; see `ordinate.checks.refused`."""
    return refused(argument, rule, value, error=partial(Misuse, hint=hint), **facts)


def misuse_of(
    error: BaseException | Refusal,
    hint: str,
    options: Mapping[str, str] | None = None,
    given: Mapping[str, object] | None = None,
) -> Exception:
    """The exception to raise for an error of the library: its sentence, with options in the place of arguments.

    Args:
        options: Argument of the library → option of the command. Of ``"path"``: the option that names a file.
        given: Arguments that the user set elsewhere, such as in a spec; they keep their names.
    """
    options = {name: option for name, option in (options or {}).items() if name not in (given or {})}
    if isinstance(error, OSError) and error.strerror and "path" in options:
        where = f"{error.filename}: {error.strerror}"
        return misuse(options["path"], "must be a file that can be written", where, hint=hint)
    found = (error if isinstance(error, Refusal) else refusal_of(error)).renamed(options)
    return refused(
        found.argument, found.rule, found.value, error=partial(Misuse, hint=hint), advice=found.advice,
        **found.facts,
    )  # fmt: skip


@contextlib.contextmanager
def errors_as_misuse(
    hint: str | Callable[[Exception], str],
    options: Mapping[str, str] | None = None,
    given: Mapping[str, object] | None = None,
    errors: tuple[type[Exception], ...] = (ValueError, TypeError),
) -> Iterator[None]:
    """Within the block, errors of the library become refusals of the command; see `misuse_of`."""
    try:
        yield
    except errors as error:
        chosen = hint if isinstance(hint, str) else hint(error)
        raise misuse_of(error, chosen, options, given) from None


@contextlib.contextmanager
def file_errors(option: str, rule: str, path: Path, hint: str) -> Iterator[None]:
    """Within the block, errors of the file system become refusals of the option that named the path."""
    try:
        yield
    except OSError as error:
        if error.filename is None:  # not of a file: a lost connection, or standard output
            raise
        raise misuse(option, rule, f"{path}: {error.strerror}", hint=hint) from None


def options_in(spec: str) -> dict[str, object]:
    """The options that a spec sets itself; none of a spec that cannot be read."""
    try:
        return {name: value for _, options in parse(spec) for name, value in options.items()}
    except ValueError:
        return {}


def hint_of_spec(help_command: str) -> Callable[[Exception], str]:
    """The hint for an error of a spec: the catalog where a name is not in it, else the help of the command."""
    return lambda error: "ordinate list" if refusal_of(error).rule == UNKNOWN_ENCODING else help_command
