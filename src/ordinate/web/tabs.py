"""The other tabs: a sentence shuffled, a config read, a comparison opened."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from ..lab.formats import writable
from ..plots.api import figure_of
from . import answers
from .answers import plain
from .controls import OWN, names
from .parts import Parts, Redraw, code_of, quietly
from .records_zip import unpack
from .words import say


def shuffle(parts: Parts, choice: Any) -> Redraw:
    """The permutation experiment."""
    import gradio as gr

    start = "the dog bites the man"
    parts.markdown("shuffle_about")
    with gr.Row():
        sentence = parts.add(
            "sentence",
            gr.Textbox(
                start,
                label=parts.label("sentence"),
                scale=3,
                max_length=answers.MAX_TEXT + 50,
                elem_id="sentence",
            ),
        )
        encoding = parts.add(
            "encoding",
            gr.Dropdown(
                [name for name in names() if name not in (OWN, "none")], value="rope", label=parts.label("encoding"),
                elem_id="shuffle-encoding",
            ),
        )  # fmt: skip
        again = parts.add("again", gr.Button(parts.label("again"), elem_id="shuffle-again"))
    seed = gr.State(0)
    message = gr.Markdown("", elem_classes="message", elem_id="shuffle-message")
    plot = gr.Plot(show_label=False, elem_id="shuffle-plot")

    def ask(spoken: str, words: str, chosen: str, number: int) -> tuple[Any, ...]:
        answer = answers.experiment(code_of(spoken), chosen, "", words, number)
        return (gr.skip(), plain(answer.message)) if answer.message else (answer.figure, "")

    def ask_again(spoken: str, words: str, chosen: str, number: int) -> tuple[Any, ...]:
        return *ask(spoken, words, chosen, number + 1), number + 1

    inputs, outputs = [choice, sentence, encoding, seed], [plot, message]
    quick = {**quietly("shuffle"), "trigger_mode": "always_last"}
    gr.on(
        [sentence.change, sentence.submit, encoding.input],
        ask,
        inputs,
        outputs,
        api_name="shuffle",
        **quick,
    )
    again.click(ask_again, inputs, [*outputs, seed], api_name=False, **quick)
    return Redraw(ask, inputs, outputs, "shuffle")


def config(parts: Parts, choice: Any) -> Redraw:
    """The config doctor."""
    import gradio as gr

    with gr.Row():
        file = parts.add(
            "config_file",
            gr.File(
                label=parts.label("config_file"), file_types=[".json"], elem_id="config-file", height=140
            ),
        )
        pasted = parts.add(
            "config_text",
            gr.Textbox(label=parts.label("config_text"), lines=5, max_lines=12, elem_id="config-text"),
        )
    read = parts.add("diagnose", gr.Button(parts.label("diagnose"), elem_id="config-read"))
    message = gr.Markdown("", elem_classes="message", elem_id="config-message")
    facts = gr.Markdown("", elem_id="config-facts")
    plot = gr.Plot(show_label=False, visible=False, elem_id="config-plot")
    heads = ["layers", "pair", "wavelength", "scaled", "turns", "fate"]
    table = parts.add(
        "pairs",
        gr.Dataframe(
            headers=heads, label=parts.label("pairs"), visible=False, interactive=False, elem_id="config-pairs",
            max_height=420,
        ),
    )  # fmt: skip

    read_last = gr.State(None)

    def ask(spoken: str, config: str | None) -> tuple[Any, ...]:
        found = answers.doctor(code_of(spoken), config)
        pairs = [list(row) for row in found.pairs]
        spoken_heads = [say(head, code_of(spoken)) for head in heads]
        shown = gr.update(value={"headers": spoken_heads, "data": pairs}, visible=bool(pairs))
        drawn = gr.update(value=found.figure, visible=found.figure is not None)
        return plain(found.message), found.facts, drawn, shown, config

    def ask_file(spoken: str, path: str | None) -> tuple[Any, ...]:
        if path is None:
            return "", "", gr.update(visible=False), gr.update(visible=False), None
        with open(path, encoding="utf-8", errors="replace") as stream:
            return ask(spoken, stream.read(answers.MAX_CONFIG + 1))

    def again(spoken: str, config: str | None) -> tuple[Any, ...]:
        return (gr.skip(),) * 5 if config is None else ask(spoken, config)

    outputs = [message, facts, plot, table, read_last]
    read.click(ask, [choice, pasted], outputs, api_name="doctor", show_progress="hidden")
    gr.on(
        [file.upload, file.clear],
        ask_file,
        [choice, file],
        outputs,
        api_name=False,
        show_progress="hidden",
    )
    return Redraw(again, [choice, read_last], outputs, "config")


def lab(parts: Parts, choice: Any, runs: Path | None) -> Redraw:
    """A comparison's curves and table."""
    import gradio as gr

    found = sorted(path.parent for path in runs.glob("*/sweep.json"))[:200] if runs else []
    if runs and os.path.exists(runs / "sweep.json"):  # False, too, where nobody may look
        found = [runs, *found]
    known = {"." if path == runs else writable(path.name): path for path in found}
    with gr.Row():
        archive = parts.add(
            "report_zip",
            gr.File(
                label=parts.label("report_zip"), file_types=[".zip"], elem_id="report-zip", height=140
            ),
        )
        listed = parts.add(
            "report_known",
            gr.Dropdown(
                list(known),
                value=None,
                label=parts.label("report_known"),
                visible=bool(known),
                elem_id="report-known",
            ),
        )
    message = gr.Markdown("", elem_classes="message", elem_id="report-message")
    summary = gr.Markdown("", elem_id="report-summary")
    opened = gr.State(None)
    figure = parts.add(
        "curve", gr.Dropdown([], label=parts.label("curve"), visible=False, elem_id="report-figure")
    )
    plot = gr.Plot(show_label=False, visible=False, elem_id="report-plot")
    table = parts.add(
        "arms",
        gr.Dataframe(
            label=parts.label("arms"), visible=False, interactive=False, elem_id="report-table"
        ),
    )

    def show(found: answers.Lab, spoken: str, index: int = 0) -> tuple[Any, ...]:
        said = answers.in_language(found, code_of(spoken))
        titles = [(picture.title, index) for index, picture in enumerate(said.charts)]
        drawn = figure_of(said.charts[index], "plotly") if said.charts else None
        rows = {"headers": list(said.columns), "data": [list(row) for row in said.rows]}
        return (
            plain(said.message), said.summary, found,
            gr.update(choices=titles, value=index if titles else None, visible=bool(titles)),
            gr.update(value=drawn, visible=drawn is not None), gr.update(value=rows, visible=bool(said.rows)),
        )  # fmt: skip

    def open_archive(spoken: str, path: str | None) -> tuple[Any, ...]:
        if path is None:
            return show(answers.Lab(), spoken)
        with tempfile.TemporaryDirectory() as folder:
            try:
                unpack(Path(path), Path(folder))
            except ValueError as error:
                return show(answers.Lab(message=str(error)), spoken)
            return show(answers.lab_report(code_of(spoken), Path(folder)), spoken)

    def open_known(spoken: str, name: str | None) -> tuple[Any, ...]:
        return show(answers.lab_report(code_of(spoken), known.get(name or "")), spoken)

    def pick(spoken: str, index: int | None, found: answers.Lab | None) -> Any:
        if found is None or index is None or not 0 <= index < len(found.charts):
            return gr.skip()
        return figure_of(answers.in_language(found, code_of(spoken)).charts[index], "plotly")

    def again(spoken: str, index: int | None, found: answers.Lab | None) -> tuple[Any, ...]:
        return (gr.skip(),) * 6 if found is None else show(found, spoken, index or 0)

    outputs = [message, summary, opened, figure, plot, table]
    gr.on(
        [archive.upload, archive.clear],
        open_archive,
        [choice, archive],
        outputs,
        api_name=False,
        **quietly("report"),
    )
    listed.input(open_known, [choice, listed], outputs, api_name="report", **quietly("report"))
    figure.input(pick, [choice, figure, opened], plot, api_name=False, **quietly("report"))
    return Redraw(again, [choice, figure, opened], outputs, "report")
