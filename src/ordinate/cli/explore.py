"""``ordinate explore``: the interactive page."""

from __future__ import annotations

import contextlib
import sys
import webbrowser
from pathlib import Path

import typer

from ..extras import how_to_install
from .errors import Misuse, within_reach

_EPILOG = """Examples:

\b
  ordinate explore                      the page, in a browser
  ordinate explore --language zh        in Chinese
  ordinate explore --port 7860          at a port of one's own
  ordinate explore --runs runs          with the comparisons in a folder
  ordinate explore --no-browser         print the address only

The page answers to this machine alone unless --host says otherwise; it fetches nothing and reports nothing.
"""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("explore", epilog=_EPILOG)(explore_command)


def explore_command(
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
        raise Misuse(f"--language must be en or zh, got {language!r}", "ordinate explore --help")
    if port is not None and not 1 <= port <= 65535:
        raise Misuse(f"--port must be from 1 to 65535, got {port}", "ordinate explore --help")
    if runs is not None:
        with within_reach("--runs must be a folder", runs, "ordinate explore --help"):
            if not runs.is_dir():
                raise Misuse(f"--runs must be a folder, got {str(runs)!r}", "ordinate explore --help")
    from ..web.serve import serve

    def tell(address: str) -> None:
        print(address, flush=True)
        print("Ctrl+C ends it.", file=sys.stderr)
        if browser:
            webbrowser.open(address)

    print("starting …", file=sys.stderr)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            serve(host=host, port=port, language=language, runs=runs, on_ready=tell)
    except ModuleNotFoundError as error:
        raise Misuse(str(error), how_to_install("web")) from None
    except ValueError as error:
        if not str(error).startswith("host "):
            raise
        raise Misuse(f"--{error}", "ordinate explore --help") from None
    except OSError as error:
        where = f"{host}:{port}" if port else host
        raise Misuse(
            f"--host and --port must be free to listen at, got {where}: {error}",
            "ordinate explore --help",
        ) from None
