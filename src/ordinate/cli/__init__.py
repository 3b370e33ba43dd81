"""The command line, one module for each command."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from ..extras import how_to_install


def main() -> None:
    """Run ``ordinate``; if packages it needs are missing, print their names and how to install them."""
    missing = [name for name in ("typer", "rich") if find_spec(name) is None]
    if missing:
        print(
            f"The ordinate command needs {' and '.join(missing)}, not installed here.", file=sys.stderr
        )
        print(f"\nhint: {how_to_install('lab')}", file=sys.stderr)
        raise SystemExit(1)
    from .app import run

    raise SystemExit(run(sys.argv[1:]))
