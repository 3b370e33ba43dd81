"""The third tab: the config of a model is read and explained."""

from __future__ import annotations

from typing import Any

from . import answers
from .answers import plain
from .components import Components, Redraw, code_of
from .gradio_quiet import gr
from .texts import say

_COLUMNS = ("layers", "pair", "wavelength", "scaled", "turns", "fate")


def config_tab(components: Components, choice: Any) -> Redraw:
    """The config doctor."""
    with gr.Row():
        file = components.add(
            gr.File, "config_file", file_types=[".json"], elem_id="config-file", height=140
        )
        pasted = components.add(gr.Textbox, "config_text", lines=5, max_lines=12, elem_id="config-text")
    read = components.add(gr.Button, "diagnose", elem_id="config-read")
    message = gr.Markdown("", elem_classes="message", elem_id="config-message")
    facts = gr.Markdown("", elem_id="config-facts")
    plot = gr.Plot(show_label=False, visible=False, elem_id="config-plot", elem_classes="figure")
    table = components.add(
        gr.Dataframe, "pairs", headers=list(_COLUMNS), visible=False, interactive=False, elem_id="config-pairs",
        max_height=420,
    )  # fmt: skip
    read_last = gr.State(None)

    def diagnose(spoken: str, config: str | None) -> tuple[Any, ...]:
        found = answers.doctor(code_of(spoken), config)
        pairs = [list(row) for row in found.pairs]
        headers = [say(column, code_of(spoken)) for column in _COLUMNS]
        shown = gr.update(value={"headers": headers, "data": pairs}, visible=bool(pairs))
        drawn = gr.update(value=found.figure, visible=found.figure is not None)
        return plain(found.message), found.facts, drawn, shown, config

    def diagnose_file(spoken: str, path: str | None) -> tuple[Any, ...]:
        if path is None:
            return "", "", gr.update(visible=False), gr.update(visible=False), None
        with open(path, encoding="utf-8", errors="replace") as stream:
            return diagnose(spoken, stream.read(answers.MAX_CONFIG + 1))

    def again(spoken: str, config: str | None) -> tuple[Any, ...]:
        return (gr.skip(),) * 5 if config is None else diagnose(spoken, config)

    outputs = [message, facts, plot, table, read_last]
    read.click(diagnose, [choice, pasted], outputs, api_name="doctor", show_progress="hidden")
    gr.on(
        [file.upload, file.clear],
        diagnose_file,
        [choice, file],
        outputs,
        api_name=False,
        show_progress="hidden",
    )
    return Redraw(again, [choice, read_last], outputs, "config")
