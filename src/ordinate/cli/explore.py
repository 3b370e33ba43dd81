"""``ordinate explore``: the interactive page."""

from __future__ import annotations

import contextlib
import sys
import webbrowser
from pathlib import Path

import typer

from ..checks import refusal_of
from ..extras import how_to_install
from .errors import file_errors, misuse, misuse_of

_HELP = "ordinate explore --help"

EPILOG = """Examples:

\b
  ordinate explore                      the page, in a browser
  ordinate explore --language zh        in Chinese
  ordinate explore --port 7860          at a port of one's own
  ordinate explore --runs runs          with the comparisons in a folder
  ordinate explore --no-browser         print the address only

The page answers to this machine alone unless --host says otherwise; it fetches nothing and reports nothing.
"""


def command(
    host: str = typer.Option("127.0.0.1", help="The address to listen at; 0.0.0.0 is every one."),
    port: int | None = typer.Option(None, help="The port to listen at. Default: a free one."),
    language: str = typer.Option("en", help="The language to open in: en or zh."),
    runs: Path | None = typer.Option(
        None, metavar="FOLDER", help="A folder of comparisons that can be opened on the page."
    ),
    browser: bool = typer.Option(True, help="Open a browser once the page is there."),
) -> None:
    """Explore encodings on an interactive page: move options, compare two, shuffle a sentence, read a config."""
    if language not in ("en", "zh"):
        raise misuse("--language", "must be en or zh", repr(language), hint=_HELP)
    if port is not None and not 1 <= port <= 65535:
        raise misuse("--port", "must be from 1 to 65535", port, hint=_HELP)
    if runs is not None:
        rule = "must be a folder"
        with file_errors("--runs", rule, runs, _HELP):
            if not runs.is_dir():
                raise misuse("--runs", rule, repr(str(runs)), hint=_HELP)
    from ..web.serve import serve

    def announce(address: str) -> None:
        print(address, flush=True)
        print("Ctrl+C ends it.", file=sys.stderr)
        if browser:
            webbrowser.open(address)

    print("starting …", file=sys.stderr)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            serve(host=host, port=port, language=language, runs=runs, on_ready=announce)
    except ModuleNotFoundError as error:
        raise misuse_of(error, how_to_install("web")) from None
    except ValueError as error:
        if refusal_of(error).argument != "host":
            raise
        raise misuse_of(error, _HELP, {"host": "--host"}) from None
    except OSError as error:
        where = f"{host}:{port}" if port else host
        rule = "must be free to listen at"
        raise misuse("--host and --port", rule, f"{where}: {error}", hint=_HELP) from None
