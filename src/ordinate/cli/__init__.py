"""The command line: one file a command."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def main() -> None:
    """Run ``ordinate``; without the packages it needs, say which and how to get them."""
    missing = [name for name in ("typer", "rich") if find_spec(name) is None]
    if missing:
        print(
            f"The ordinate command needs {' and '.join(missing)}, not installed here.", file=sys.stderr
        )
        print("\nhint: pip install 'ordinate[lab]'", file=sys.stderr)
        raise SystemExit(1)
    from .app import run

    raise SystemExit(run(sys.argv[1:]))
