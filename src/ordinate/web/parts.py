"""What the parts of the page share: words that change with the language, and figures that are then drawn again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .words import LANGUAGES, text

#: A figure that is drawn while it is hidden has no width to fill. Once it is visible, this makes it fill the page.
FIT = "() => setTimeout(() => window.dispatchEvent(new Event('resize')), 60)"


class Parts:
    """Everything with words on it, so that a change of language reaches all of it."""

    def __init__(self, language: str) -> None:
        self.language = language
        self.labelled: list[tuple[str, Any]] = []

    def add(self, key: str, component: Any) -> Any:
        self.labelled.append((key, component))
        return component

    def markdown(self, key: str) -> Any:
        import gradio as gr

        return self.add(key, gr.Markdown(text(key, self.language)))

    def tab(self, key: str) -> Any:
        import gradio as gr

        tab = self.add(key, gr.Tab(text(key, self.language), id=key))
        tab.select(None, js=FIT)
        return tab

    def label(self, key: str) -> str:
        return text(key, self.language)

    def update(self, key: str, component: Any, language: str) -> Any:
        import gradio as gr

        words = text(key, language)
        if isinstance(component, (gr.Markdown, gr.Button)):
            return gr.update(value=words)
        return gr.update(label=words)


@dataclass(frozen=True)
class Redraw:
    """A figure that speaks: how to draw it again in another language.

    Attributes:
        lane: Its questions are answered one after the other, so that no late answer replaces a newer one.
        preprocess: Whether Gradio may judge the values first; see `quietly`.
    """

    ask: Any
    inputs: list[Any]
    outputs: list[Any]
    lane: str
    preprocess: bool = True

    @property
    def quietly(self) -> dict[str, Any]:
        return quietly(self.lane, preprocess=self.preprocess)


def quietly(lane: str, *, preprocess: bool = True) -> dict[str, Any]:
    """How the questions of a lane are asked: without a spinner, and one after the other.

    Args:
        preprocess: False where the answer checks every value itself, and says so in a sentence; Gradio would
            raise an error of its own.
    """
    return {
        "show_progress": "hidden",
        "concurrency_id": lane,
        "concurrency_limit": 1,
        "preprocess": preprocess,
    }


def code_of(language: Any) -> str:
    return LANGUAGES.get(language, "en") if isinstance(language, str) else "en"
