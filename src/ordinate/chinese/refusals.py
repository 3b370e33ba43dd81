"""Refusals in Chinese, by the fields of their sentence."""

from __future__ import annotations

from ..checks import Refusal
from . import core, hf, lab, tools

#: English template → Chinese template with the same names in braces. Advice has entries of its own.
RULES = {**core.RULES, **hf.RULES, **lab.RULES, **tools.RULES}


def in_chinese(refusal: Refusal) -> str:
    """The sentence of a refusal in Chinese; a part that has no translation stays English.

    Example:
        >>> in_chinese(Refusal("window", "must be at least {least}", "0", {"least": 1}))
        'window 不能小于 1，得到 0'
    """
    facts = refusal.facts
    rule = RULES.get(refusal.rule, refusal.rule).format_map(facts)
    got = "" if refusal.value is None else f"，得到 {refusal.value}"
    advice = RULES.get(refusal.advice, refusal.advice).format_map(facts)
    return f"{refusal.argument} {rule}".strip() + got + advice
