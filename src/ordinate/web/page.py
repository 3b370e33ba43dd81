"""The page: the four tabs and the choice of a language. The answers are in answers.py."""

from __future__ import annotations

from pathlib import Path

from .components import Components
from .config_tab import config_tab
from .encodings_tab import encodings_tab
from .gradio_quiet import gr
from .report_tab import report_tab
from .shuffle_tab import shuffle_tab
from .texts import LANGUAGES

CSS = """
.message p { color: #b3261e; font-weight: 600; }
.command code { white-space: pre-wrap; }
footer { display: none !important; }
/* On a phone, titles and panels would lie over one another: a figure keeps its width and moves sideways. */
@media (max-width: 760px) {
  .figure { overflow-x: auto !important; }
  .figure .js-plotly-plot { min-width: 760px; }
}
"""


def build(language: str = "en", runs: Path | None = None) -> gr.Blocks:
    """The whole page.

    Args:
        language: The one it opens in, ``"en"`` or ``"zh"``.
        runs: A folder with comparisons, each of which can then be opened.
    """
    with gr.Blocks(
        title="ordinate", analytics_enabled=False, fill_width=True, delete_cache=(300, 600)
    ) as page:
        components = Components(language)
        with gr.Row(equal_height=True):
            with gr.Column(scale=5):
                components.add(gr.Markdown, "title")
                components.add(gr.Markdown, "about")
            with gr.Column(scale=1, min_width=180):
                spoken = next(name for name, code in LANGUAGES.items() if code == language)
                choice = components.add(gr.Radio, "language", list(LANGUAGES), value=spoken)
        with gr.Tabs():
            with components.tab("tab_encodings"):
                figures = encodings_tab(components, choice)
            with components.tab("tab_shuffle") as tab:
                shuffle = shuffle_tab(components, choice)
            tab.select(**shuffle.event)  # not before: the first view has enough to draw
            with components.tab("tab_config"):
                config = config_tab(components, choice)
            with components.tab("tab_lab"):
                report = report_tab(components, choice, runs)
        # Labels first, then the figures, each from the present values of its controls.
        choice.input(
            components.in_language, choice, components.labelled, api_name=False, show_progress="hidden"
        )
        for figure in (*figures, shuffle, config, report):
            choice.input(**figure.event)
    return page
