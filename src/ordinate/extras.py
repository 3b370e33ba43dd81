"""How an extra is installed: every hint and every document says it in these words."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution


def how_to_install(extra: str) -> str:
    """The command that adds an extra to the ordinate in use, from a wheel or a clone.

    pip takes the installed package for the requirement and asks the index only for the packages of the extra.
    Source that is not installed cannot meet that requirement: for it, the command names the clone.

    Example:
        >>> how_to_install("web")
        "pip install 'ordinate[web]'"
    """
    try:
        distribution("ordinate")
    except PackageNotFoundError:
        return f"pip install '.[{extra}]' in a clone of ordinate"
    return f"pip install 'ordinate[{extra}]'"
