"""How an extra is installed: every hint and every document says it in these words."""

from __future__ import annotations


def install_command(extra: str) -> str:
    """The command, for a clone of ordinate: no package index has it.

    Example:
        >>> install_command("web")
        "pip install '.[web]'"
    """
    return f"pip install '.[{extra}]'"


def how_to_install(extra: str) -> str:
    """The command and where to run it."""
    return f"{install_command(extra)} in a clone of ordinate"
