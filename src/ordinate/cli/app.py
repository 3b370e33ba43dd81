"""The ``ordinate`` command and how it fails: one sentence, a blank line, a hint, exit code 2."""

from __future__ import annotations

import codecs
import errno
import io
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer

import ordinate

from ..checks import Refusal
from ..memory import is_out_of_memory
from . import compare, explore, extend, inspect, plot, report, show, verify
from . import list as list_
from .errors import Misuse

# ASCII in place of a sign that a terminal cannot write; every verdict keeps a sign of its own.
_ASCII = {"✓": "+", "✗": "x", "·": ".", "–": "-", "→": ">", "×": "x", "…": "~", "−": "-", "≡": "="}


def _in_plain_signs(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    unwritten = error.object[error.start : error.end]
    return "".join(_ASCII.get(sign, "?") for sign in unwritten), error.end


codecs.register_error("ordinate.plain", _in_plain_signs)

app = typer.Typer(
    name="ordinate",
    help="Position encodings for Transformers: exact, fast and visible.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example:  ordinate verify rope alibi",
)


def _print_version(wanted: bool | None) -> None:
    if wanted:
        print(f"ordinate {ordinate.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool | None = typer.Option(
        None, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    pass


_COMMANDS: dict[str, Any] = {
    "list": list_, "compare": compare, "report": report, "show": show, "plot": plot, "explore": explore,
    "verify": verify, "inspect": inspect, "extend": extend,
}  # fmt: skip
for _name, _module in _COMMANDS.items():
    app.command(_name, epilog=_module.EPILOG)(_module.command)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, and the next file opened would have its number
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  as long as the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="ordinate.plain")  # a terminal without ✓ is no reason to fail
    try:
        code = app(args=list(arguments) or ["--help"], standalone_mode=False, prog_name="ordinate")
        sys.stdout.flush()  # so that a closed pipe is noticed here
        return code if isinstance(code, int) else 0
    except (BrokenPipeError, SystemExit) as stopped:
        # `head` or `less` closed the pipe; Typer and Rich turn that error into an exit with status 1.
        if isinstance(stopped, SystemExit) and not isinstance(stopped.__context__, BrokenPipeError):
            raise
        _discard_output()
        return 0
    except Misuse as error:
        return _refuse(str(error), error.hint)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO) or error.filename is not None:
            raise
        _discard_output()
        return _refuse(
            f"standard output must take what is written, got: {error.strerror}", _hint(arguments)
        )
    except Exception as error:
        if is_out_of_memory(error):
            return _refuse(_too_large(arguments, error), _hint(arguments))
        # Of typer's own copy of click or of click itself, by version; both have the method.
        if not hasattr(error, "format_message"):
            raise
        return _refuse(_wrong_number(error, arguments) or error.format_message(), _hint(arguments))


def _too_large(arguments: Sequence[str], error: Exception) -> str:
    """The sentence of an error of ours; the message of an allocator does not name the option."""
    if type(error) is MemoryError and str(error):
        return str(error)
    return f"the sizes must fit into memory, got {shlex.join(arguments)}, which needs more than there is"


# Annotation of an option → the function that reads its text, and the rule in words.
_NUMBERS: dict[str, tuple[Callable[[str], object], str]] = {
    "int": (int, "must be a whole number"), "float": (float, "must be a number"),
}  # fmt: skip


def _wrong_number(error: Exception, arguments: Sequence[str]) -> str | None:
    """A sentence with the value for an option that is not a number: the parser's own leaves the value out."""
    parameter, module = getattr(error, "param", None), _COMMANDS.get(_command_in(arguments))
    annotation = module.command.__annotations__.get(getattr(parameter, "name", ""), "") if module else ""
    read, rule = _NUMBERS.get(annotation.partition(" ")[0], (str, ""))
    for option in getattr(parameter, "opts", ()):
        for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
            given = following if word == option else word.partition(f"{option}=")[2]
            try:
                read(given or "0")
            except ValueError:
                return str(Refusal(option, rule, repr(given)))
    return None


def _discard_output() -> None:
    """Send standard output to the null device, also what is flushed when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _hint(arguments: Sequence[str]) -> str:
    command = _command_in(arguments)
    return f"ordinate {command} --help" if command else "ordinate --help"


def _command_in(arguments: Sequence[str]) -> str:
    """The command that a command line names, or nothing."""
    first = next((word for word in arguments if not word.startswith("-")), "")
    return first if first in _COMMANDS else ""


def _refuse(sentence: str, hint: str) -> int:
    print(f"{sentence}\n\nhint: {hint}", file=sys.stderr)
    return 2
