"""`Text`: a sentence that carries its template and its facts, so that it can be translated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class Text(str):
    """English text made of a template and facts; everything that takes a ``str`` takes a `Text`.

    A fact that is a `Text` itself is translated along with the sentence; any other fact, such as a number or
    what a user typed, stays as it is. Without facts the template is the text, braces and all.

    Attributes:
        template: The sentence with the names of the facts in braces.
        facts: What stands in place of each name.

    Example:
        >>> label = Text("pair {pair}", pair=3)
        >>> label, label.template
        ('pair 3', 'pair {pair}')
    """

    template: str
    facts: dict[str, Any]

    def __new__(cls, template: str, /, **facts: Any) -> Text:
        text = super().__new__(cls, template.format_map(facts) if facts else template)
        text.template, text.facts = template, facts
        return text

    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, Any]]:
        return (self.template,), self.facts  # for copy and pickle

    def reworded(self, word: Callable[[str], str]) -> Text:
        """The same facts in the template that ``word`` gives for this one, and for each `Text` among the facts.

        Example:
            >>> Text("pair {pair}", pair=3).reworded({"pair {pair}": "第 {pair} 对"}.get)
            '第 3 对'
        """
        return Text(word(self.template), **reworded(self.facts, word))


def reworded(facts: Mapping[str, Any], word: Callable[[str], str]) -> dict[str, Any]:
    """Facts, each `Text` among them in other words."""
    return {
        name: fact.reworded(word) if isinstance(fact, Text) else fact for name, fact in facts.items()
    }


def joined(*texts: str) -> str:
    """Several notes as one with semicolons between them, those that are empty left out.

    Example:
        >>> joined("grey: before scaling", "", Text("{shown} heads", shown=4))
        'grey: before scaling; 4 heads'
    """
    return _joined("{first}; {rest}", texts)


def sentences(*texts: str) -> str:
    """Several sentences in a row, those that are empty left out."""
    return _joined("{first} {rest}", texts)


def _joined(template: str, texts: tuple[str, ...]) -> str:
    found = [text if isinstance(text, Text) else Text(text) for text in texts if text]
    if not found:
        return ""
    whole = found[-1]
    for text in reversed(found[:-1]):
        whole = Text(template, first=text, rest=whole)
    return whole
