"""The words of a spec: how its text is cut at commas, and what a value reads as.

A spec may come from anybody: a config, a web page, a command line. So text is read in one pass, and how long,
how deep and how large it may be is decided before anything is made of it.
"""

from __future__ import annotations

from typing import Any

MOST_CHARACTERS = 2**14  # LongRoPE's divisors of 512 channels, all digits of each, take half of that
MOST_PARTS = 64
_DEEPEST = 8
_LONGEST_WORD = 64
_MOST_DIGITS = 18  # fits 64 bits
_CLOSING = {"(": ")", "[": "]"}
_CONSTANTS = {"true": True, "false": False}


def quoted(text: str) -> str:
    """Text for an error message: in quotes, the end of a long one left out.

    Example:
        >>> quoted("rope")
        "'rope'"
    """
    return repr(text) if len(text) <= 200 else repr(text[:199] + "…")


def split(text: str, spec: str) -> list[str]:
    """Cut at the commas that stand in no brackets.

    Example:
        >>> split("a=1,b=(2,3)", "")
        ['a=1', 'b=(2,3)']
    """
    parts, open_brackets, start = [], [], 0
    for index, character in enumerate(text):
        if character in _CLOSING:
            open_brackets.append(_CLOSING[character])
            if len(open_brackets) > _DEEPEST:
                raise ValueError(
                    f"brackets must be nested at most {_DEEPEST} deep in spec {quoted(spec)}, "
                    f"got {quoted(text)}"
                )
        elif character in _CLOSING.values():
            if not open_brackets or open_brackets.pop() != character:
                raise ValueError(
                    f"brackets must be opened before they are closed in spec {quoted(spec)}, "
                    f"got {quoted(text)}"
                )
        elif character == "," and not open_brackets:
            parts.append(text[start:index])
            start = index + 1
    if open_brackets:
        raise ValueError(f"brackets must be closed in spec {quoted(spec)}, got {quoted(text)}")
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
        raise ValueError(
            f"a value must have at most {_LONGEST_WORD} characters in spec {quoted(spec)}, "
            f"got {len(text)}"
        )
    if len(text) > 1 and text[0] in "'\"" and text[0] == text[-1]:
        return text[1:-1]
    return _read_number(text, spec)


def _read_sequence(text: str, spec: str) -> Any:
    parts = split(text[1:-1], spec)
    one = len(parts) == 1 and text[0] == "("  # brackets around a value, which are no tuple
    if not parts[-1].strip():
        parts.pop()
    if one and parts:
        return read_value(parts[0], spec)
    values = [read_value(part, spec) for part in parts]
    return tuple(values) if text[0] == "(" else values


def _read_number(text: str, spec: str) -> int | float | str:
    if not text.lstrip("+-.")[:1].isdigit():  # Python also reads "inf" and "nan", which here are words
        return text
    for read in (lambda number: int(number, 0), float):
        try:
            value = read(text)
        except ValueError:
            continue
        if isinstance(value, int) and abs(value) >= 10**_MOST_DIGITS:
            raise ValueError(
                f"a whole number must have at most {_MOST_DIGITS} digits in spec {quoted(spec)}, "
                f"got {value}"
            )
        return value
    return text
