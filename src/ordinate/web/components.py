"""Components whose text changes with the language, and figures that are drawn again after such a change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .gradio_quiet import gr
from .texts import LANGUAGES, text

#: A figure that is drawn while it is hidden has no width to fill. Once it is visible, this makes it fill the page.
FIT = "() => setTimeout(() => window.dispatchEvent(new Event('resize')), 60)"


class Components:
    """Every component with text on it, so that a change of language reaches all of them."""

    def __init__(self, language: str) -> None:
        self.language = language
        self.labelled: list[Any] = []
        self._texts: list[
            tuple[str, str]
        ] = []  # of each component: which of its values is the text, and its key

    def add(self, kind: Callable[..., Any], key: str, *values: Any, **options: Any) -> Any:
        """A component of this ``kind`` that is labelled with the text of ``key``."""
        shows = "value" if kind in (gr.Markdown, gr.Button) else "label"
        component = kind(*values, **{shows: text(key, self.language)}, **options)
        self.labelled.append(component)
        self._texts.append((shows, key))
        return component

    def tab(self, key: str) -> Any:
        tab = self.add(gr.Tab, key, id=key)
        tab.select(None, js=FIT)
        return tab

    def in_language(self, spoken: str) -> list[Any]:
        """Every component's text in a language, as Gradio's updates."""
        changes: list[dict[str, Any]] = [
            {shows: text(key, code_of(spoken))} for shows, key in self._texts
        ]
        return [gr.update(**change) for change in changes]


@dataclass(frozen=True)
class Redraw:
    """A figure with text in it: how to draw it again in another language.

    Attributes:
        queue: The name of its queue, see `one_at_a_time`.
        preprocess: See `one_at_a_time`.
    """

    ask: Callable[..., Any]
    inputs: list[Any]
    outputs: list[Any]
    queue: str
    preprocess: bool = True

    @property
    def event(self) -> dict[str, Any]:
        """The event that draws it again, for a listener of Gradio."""
        how = one_at_a_time(self.queue, preprocess=self.preprocess)
        return {"fn": self.ask, "inputs": self.inputs, "outputs": self.outputs, "api_name": False, **how}


def one_at_a_time(queue: str, *, preprocess: bool = True) -> dict[str, Any]:
    """Options of an event: no spinner, and the questions of a queue are answered in order, the newest last.

    Args:
        preprocess: False where the answer checks every value itself, and says so in a sentence; Gradio would
            raise an error of its own.
    """
    return {
        "show_progress": "hidden",
        "concurrency_id": queue,
        "concurrency_limit": 1,
        "preprocess": preprocess,
    }


def code_of(language: Any) -> str:
    return LANGUAGES.get(language, "en") if isinstance(language, str) else "en"
