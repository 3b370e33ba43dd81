"""The page: what stands where, and which question each control asks. The answers are in answers.py."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .panel import encodings
from .parts import Parts, Redraw, code_of
from .tabs import config, lab, shuffle
from .words import LANGUAGES, text

if TYPE_CHECKING:
    import gradio as gr

# Read by Gradio and by the hub's client when they are imported: nobody is told that the page is used.
QUIET = {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}

CSS = """
.message p { color: #b3261e; font-weight: 600; }
.command code { white-space: pre-wrap; }
footer { display: none !important; }
"""


def build(language: str = "en", runs: Path | None = None) -> gr.Blocks:
    """The whole page.

    Args:
        language: The one it opens in, ``"en"`` or ``"zh"``.
        runs: A folder with comparisons, each of which can then be opened.
    """
    os.environ.update(QUIET)
    import gradio as gr

    with gr.Blocks(
        title="ordinate", analytics_enabled=False, fill_width=True, delete_cache=(300, 600)
    ) as page:
        parts = Parts(language)
        with gr.Row(equal_height=True):
            with gr.Column(scale=5):
                parts.markdown("title")
                parts.markdown("about")
            with gr.Column(scale=1, min_width=180):
                spoken = next(name for name, code in LANGUAGES.items() if code == language)
                choice = gr.Radio(list(LANGUAGES), value=spoken, label=text("language", language))
                parts.add("language", choice)
        with gr.Tabs():
            with parts.tab("tab_encodings"):
                panels = encodings(parts, choice)
            with parts.tab("tab_shuffle") as tab:
                experiment = shuffle(parts, choice)
            tab.select(
                experiment.ask,
                experiment.inputs,
                experiment.outputs,
                api_name=False,
                **experiment.quietly,
            )  # not before: the first view has enough to draw
            with parts.tab("tab_config"):
                doctor = config(parts, choice)
            with parts.tab("tab_lab"):
                report = lab(parts, choice, runs)
        _switch_language(parts, choice, [*panels, experiment, doctor, report])
    return page


def _switch_language(parts: Parts, choice: Any, redraws: list[Redraw]) -> None:
    """Labels first, then the figures, each from what its controls say now."""

    def relabel(spoken: str) -> list[Any]:
        return [parts.update(key, component, code_of(spoken)) for key, component in parts.labelled]

    components = [component for _, component in parts.labelled]
    choice.input(relabel, choice, components, api_name=False, show_progress="hidden")
    for redraw in redraws:
        choice.input(redraw.ask, redraw.inputs, redraw.outputs, api_name=False, **redraw.quietly)
