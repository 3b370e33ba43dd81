"""How an extra is installed: every hint and every document says it in these words."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution


def how_to_install(extra: str) -> str:
    """The command that adds an extra to the ordinate in use, from a wheel or a clone.

    pip takes what is installed for the requirement and asks no index for it, only for what the extra
    brings. Source that nobody installed has no such requirement to meet: there, the clone is named.

    Example:
        >>> how_to_install("web")
        "pip install 'ordinate[web]'"
    """
    try:
        distribution("ordinate")
    except PackageNotFoundError:
        return f"pip install '.[{extra}]' in a clone of ordinate"
    return f"pip install 'ordinate[{extra}]'"
