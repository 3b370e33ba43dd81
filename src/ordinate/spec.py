"""The syntax of a spec: its text is split at commas, and each value is read as Python writes it.

A spec may come from a config, a web page or a command line. So its text is read in one pass, and its length, its
depth of brackets and the size of its numbers are limited before anything is made of it.
"""

from __future__ import annotations

from typing import Any

from .checks import refused

MOST_CHARACTERS = 2**14  # LongRoPE's divisors of 512 channels, all digits of each, take half of that
MOST_PARTS = 64
_DEEPEST = 8
_LONGEST_WORD = 64
_MOST_DIGITS = 18  # fits 64 bits
_CLOSING = {"(": ")", "[": "]"}
_CONSTANTS = {"true": True, "false": False}


def quoted(text: str) -> str:
    """Text for an error message: in quotes, and a long text shortened.

    Example:
        >>> quoted("rope")
        "'rope'"
    """
    return repr(text) if len(text) <= 200 else repr(text[:199] + "…")


def split(text: str, spec: str) -> list[str]:
    """Split at the commas outside of brackets.

    Example:
        >>> split("a=1,b=(2,3)", "")
        ['a=1', 'b=(2,3)']
    """
    parts, open_brackets, start = [], [], 0
    for index, character in enumerate(text):
        if character in _CLOSING:
            open_brackets.append(_CLOSING[character])
            if len(open_brackets) > _DEEPEST:
                rule = "must be nested at most {most} deep in spec {spec}"
                raise refused("brackets", rule, quoted(text), most=_DEEPEST, spec=quoted(spec))
        elif character in _CLOSING.values():
            if not open_brackets or open_brackets.pop() != character:
                rule = "must be opened before they are closed in spec {spec}"
                raise refused("brackets", rule, quoted(text), spec=quoted(spec))
        elif character == "," and not open_brackets:
            parts.append(text[start:index])
            start = index + 1
    if open_brackets:
        raise refused("brackets", "must be closed in spec {spec}", quoted(text), spec=quoted(spec))
    return [*parts, text[start:]]


def read_value(text: str, spec: str) -> Any:
    """Numbers, True, False, None, tuples and lists as Python writes them; anything else is a word.

    Example:
        >>> read_value("1e6", ""), read_value("(2,1,1)", ""), read_value("half", "")
        (1000000.0, (2, 1, 1), 'half')
    """
    text = text.strip()
    if text[:1] in _CLOSING and text[-1] == _CLOSING[text[0]]:
        return _read_sequence(text, spec)
    if text == "None" or text.lower() in _CONSTANTS:
        return _CONSTANTS.get(text.lower())
    if len(text) > _LONGEST_WORD:
        rule = "must have at most {most} characters in spec {spec}"
        raise refused("a value", rule, len(text), most=_LONGEST_WORD, spec=quoted(spec))
    if len(text) > 1 and text[0] in "'\"" and text[0] == text[-1]:
        return text[1:-1]
    return _read_number(text, spec)


def _read_sequence(text: str, spec: str) -> Any:
    parts = split(text[1:-1], spec)
    one = len(parts) == 1 and text[0] == "("  # a value in brackets, not a tuple
    if not parts[-1].strip():
        parts.pop()
    if one and parts:
        return read_value(parts[0], spec)
    values = [read_value(part, spec) for part in parts]
    return tuple(values) if text[0] == "(" else values


def _read_number(text: str, spec: str) -> int | float | str:
    if not text.lstrip("+-.")[:1].isdigit():  # Python also reads "inf" and "nan", which are words here
        return text
    for read in (lambda number: int(number, 0), float):
        try:
            value = read(text)
        except ValueError:
            continue
        if isinstance(value, int) and abs(value) >= 10**_MOST_DIGITS:
            rule = "must have at most {most} digits in spec {spec}"
            raise refused("a whole number", rule, value, most=_MOST_DIGITS, spec=quoted(spec))
        return value
    return text
