"""What `register` and the catalog refuse, collected by tests/test_errors.py."""

# ruff: noqa: E501  one case a line, however long
from __future__ import annotations

import dataclasses

import ordinate
from ordinate import Entry, entries, register
from ordinate.entry import Option


class _Plain(ordinate.PositionEncoding):
    """An encoding that claims nothing."""

    claims = frozenset()


class _WithoutDocstring(ordinate.PositionEncoding):
    claims = frozenset()


class _WithoutClaims(ordinate.PositionEncoding):
    """An encoding that does not say what it claims."""


class _ClaimsText(ordinate.PositionEncoding):
    """An encoding whose claims are text, each letter of which would be one."""

    claims = "shift invariance"  # type: ignore[assignment]


_ENTRY = Entry("plain", _Plain, "none", False, 2026, "no paper", "nothing", "no model")
change = dataclasses.replace

CASES = [
    ("register a class", lambda: register(_Plain), TypeError, r"entry must be an Entry, got <class"),
    ("register what is no encoding", lambda: register(change(_ENTRY, cls=dict)), TypeError, r"cls of 'plain' must be a subclass of PositionEncoding, got <class 'dict'>"),
    ("register an encoding as a scaling", lambda: register(change(_ENTRY, hook="scaling")), TypeError, r"cls of 'plain' must be a subclass of Scaling, got <class"),
    ("register a name that no spec can say", lambda: register(change(_ENTRY, name="my code")), ValueError, r"name must be small letters, digits and underscores, a letter first, got 'my code'"),
    ("register a name that is taken", lambda: register(change(_ENTRY, name="rope")), ValueError, r"name must be new to the catalog, got 'rope'"),
    ("register another name of none", lambda: register(change(_ENTRY, name="nope")), ValueError, r"name must be new to the catalog, got 'nope'"),
    ("register a class without a docstring", lambda: register(change(_ENTRY, cls=_WithoutDocstring)), ValueError, r"cls of 'plain' must have a docstring, got _WithoutDocstring"),
    ("register a class without claims", lambda: register(change(_ENTRY, cls=_WithoutClaims)), ValueError, r"cls of 'plain' must have claims of its own, if only frozenset\(\), got _WithoutClaims"),
    ("register claims that are text", lambda: register(change(_ENTRY, cls=_ClaimsText)), TypeError, r"claims of _ClaimsText must be a set of names, got 'shift invariance'"),
    ("register a name that is no text", lambda: register(change(_ENTRY, name=3)), ValueError, r"name must be small letters, digits and underscores, a letter first, got 3"),
    ("register an unknown hook", lambda: register(change(_ENTRY, hook="{logits}")), ValueError, r"hook of 'plain' must be one of 'none', 'embed', 'rotate', 'bias', 'scaling', got '\{logits\}'"),
    ("register options that the class does not take", lambda: register(change(_ENTRY, options={"speed": Option(0, 1)})), ValueError, r"options of 'plain' must be parameters of _Plain, got 'speed'"),
    ("unregister what is built in", lambda: entries.unregister("rope"), ValueError, r"name must be of an entry that was registered, got 'rope'"),
]  # fmt: skip
