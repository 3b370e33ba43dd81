"""Sentences of the library in Chinese, looked up by the English template and filled with the same facts."""

from __future__ import annotations

from ..checks import Refusal
from ..text import Text, reworded
from . import core, hf, lab, labels, tools

#: English template → Chinese template with the same names in braces. Advice has entries of its own.
TEMPLATES = {**labels.RULES, **core.RULES, **hf.RULES, **lab.RULES, **tools.RULES}


def translated(text: str) -> str:
    """A label or sentence in Chinese; what has no translation stays English.

    Example:
        >>> translated(Text("pair {pair}", pair=3)), translated("position")
        ('第 3 对', '位置')
    """
    return text.reworded(_label) if isinstance(text, Text) else _label(text)


def in_chinese(refusal: Refusal) -> str:
    """The sentence of a refusal in Chinese; a part that has no translation stays English.

    Example:
        >>> in_chinese(Refusal("window", "must be at least {least}", "0", {"least": 1}))
        '窗口 不能小于 1，现在是 0'
    """
    facts = reworded(refusal.facts, _template)
    rule, advice = (_template(text).format_map(facts) for text in (refusal.rule, refusal.advice))
    argument, value = refusal.argument, refusal.value
    argument = argument.reworded(_template) if isinstance(argument, Text) else _template(argument)
    value = value.reworded(_template) if isinstance(value, Text) else value
    got = "" if value is None else f"，现在是 {value}"
    return f"{argument} {rule}".strip() + got + advice


def _template(english: str) -> str:
    return TEMPLATES.get(english, english)


def _label(english: str) -> str:
    return labels.RULES.get(english, english)
