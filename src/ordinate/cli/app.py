"""The ``ordinate`` command and how it fails: one sentence, a blank line, a hint, exit code 2."""

from __future__ import annotations

import codecs
import errno
import io
import itertools
import os
import re
import shlex
import sys
from collections.abc import Sequence

import typer

import ordinate

from ..memory import is_out_of_memory
from . import compare, explore, extend, inspect, plot, report, show, verify
from . import list as list_
from .errors import Misuse

# What stands for a sign where a terminal cannot write it; verdicts must still be told apart.
_PLAIN = {"✓": "+", "✗": "x", "·": ".", "–": "-", "→": ">", "×": "x", "…": "~", "−": "-", "≡": "="}


def _in_plain_signs(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    unwritten = error.object[error.start : error.end]
    return "".join(_PLAIN.get(sign, "?") for sign in unwritten), error.end


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


list_.register(app)
compare.register(app)
report.register(app)
show.register(app)
plot.register(app)
explore.register(app)
verify.register(app)
inspect.register(app)
extend.register(app)


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
        sys.stdout.flush()  # so that a reader who left is noticed here
        return code if isinstance(code, int) else 0
    except (BrokenPipeError, SystemExit) as stopped:
        # The reader, head or less, has seen enough. Typer and Rich make an exit with status 1 of it.
        if isinstance(stopped, SystemExit) and not isinstance(stopped.__context__, BrokenPipeError):
            raise
        _let_go_of_output()
        return 0
    except Misuse as misuse:
        return _refuse(str(misuse), misuse.hint)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO) or error.filename is not None:
            raise
        _let_go_of_output()
        sentence = f"standard output must take what is written, got: {error.strerror}"
        return _refuse(sentence, _hint(arguments))
    except Exception as error:
        if is_out_of_memory(error):
            return _refuse(_too_large(arguments, error), _hint(arguments))
        # typer ships its own copy of click, or needs it; either way misuse knows its message.
        if not hasattr(error, "format_message"):
            raise
        return _refuse(_wrong_number(error, arguments) or error.format_message(), _hint(arguments))


def _too_large(arguments: Sequence[str], error: Exception) -> str:
    """Our own sentence where there is one; an allocator's words say nothing to whom gave a size."""
    if type(error) is MemoryError and str(error):
        return str(error)
    return f"the sizes must fit into memory, got {shlex.join(arguments)}, which needs more than there is"


def _wrong_number(error: Exception, arguments: Sequence[str]) -> str | None:
    """A sentence for an option that is no number, with the value, which typer's own leaves out."""
    options = getattr(getattr(error, "param", None), "opts", ())
    wanted = re.search(r"valid (integer|number|float)", str(error))
    if wanted is None:
        return None
    rule = "a whole number" if wanted[1] == "integer" else "a number"
    words = list(arguments)
    for option in options:
        for word, following in itertools.zip_longest(words, words[1:]):
            given = following if word == option else word.partition(f"{option}=")[2]
            if given and not _is_number(given, wanted[1]):
                return f"{option} must be {rule}, got {given!r}"
    return None


def _is_number(text: str, kind: str) -> bool:
    try:
        int(text) if kind == "integer" else float(text)
    except ValueError:
        return False
    return True


def _let_go_of_output() -> None:
    """Write no more to it, not even when Python ends and empties its buffer."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _hint(arguments: Sequence[str]) -> str:
    commands = [command.name for command in app.registered_commands]
    first = next((word for word in arguments if not word.startswith("-")), None)
    return f"ordinate {first} --help" if first in commands else "ordinate --help"


def _refuse(sentence: str, hint: str) -> int:
    print(f"{sentence}\n\nhint: {hint}", file=sys.stderr)
    return 2
