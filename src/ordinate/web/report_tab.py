"""The fourth tab: the report of a comparison, from an archive or from a folder the page was started with."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from ..checks import refusal_of
from ..lab.formats import writable
from ..plots.api import figure_of
from . import answers
from .answers import Lab, plain
from .components import Components, Redraw, code_of, one_at_a_time
from .gradio_quiet import gr
from .records_zip import unpack
from .texts import refusal_text


def report_tab(components: Components, choice: Any, runs: Path | None) -> Redraw:
    """A comparison's curves and table."""
    folders = comparisons_in(runs)
    with gr.Row():
        archive = components.add(
            gr.File, "report_zip", file_types=[".zip"], elem_id="report-zip", height=140
        )
        listed = components.add(
            gr.Dropdown,
            "report_known",
            list(folders),
            value=None,
            visible=bool(folders),
            elem_id="report-known",
        )
    message = gr.Markdown("", elem_classes="message", elem_id="report-message")
    summary = gr.Markdown("", elem_id="report-summary")
    opened = gr.State(None)
    figure = components.add(gr.Dropdown, "curve", [], visible=False, elem_id="report-figure")
    plot = gr.Plot(show_label=False, visible=False, elem_id="report-plot", elem_classes="figure")
    table = components.add(
        gr.Dataframe, "arms", visible=False, interactive=False, elem_id="report-table"
    )

    def open_archive(spoken: str, path: str | None) -> tuple[Any, ...]:
        return _shown(Lab() if path is None else _report_of_archive(Path(path)), spoken)

    def open_listed(spoken: str, name: str | None) -> tuple[Any, ...]:
        return _shown(answers.lab_report(folders.get(name or "")), spoken)

    def pick(spoken: str, index: int | None, found: Lab | None) -> Any:
        if found is None or index is None or not 0 <= index < len(found.charts):
            return gr.skip()
        return figure_of(answers.in_language(found, code_of(spoken)).charts[index], "plotly")

    def again(spoken: str, index: int | None, found: Lab | None) -> tuple[Any, ...]:
        return (gr.skip(),) * 6 if found is None else _shown(found, spoken, index or 0)

    outputs = [message, summary, opened, figure, plot, table]
    how = one_at_a_time("report")
    events = [archive.upload, archive.clear]
    gr.on(events, open_archive, [choice, archive], outputs, api_name=False, **how)
    listed.input(open_listed, [choice, listed], outputs, api_name="report", **how)
    figure.input(pick, [choice, figure, opened], plot, api_name=False, **how)
    return Redraw(again, [choice, figure, opened], outputs, "report")


def comparisons_in(runs: Path | None) -> dict[str, Path]:
    """The comparisons in a folder, itself included, under the names that the page lists."""
    if runs is None:
        return {}
    found = {writable(path.parent.name): path.parent for path in sorted(runs.glob("*/sweep.json"))[:200]}
    # os.path.exists, unlike Path.exists, is False in a folder that cannot be read.
    return {".": runs, **found} if os.path.exists(runs / "sweep.json") else found


def _report_of_archive(path: Path) -> Lab:
    with tempfile.TemporaryDirectory() as folder:
        try:
            unpack(path, Path(folder))
        except ValueError as error:
            return Lab(refusal_of(error))
        return answers.lab_report(Path(folder))


def _shown(found: Lab, spoken: str, index: int = 0) -> tuple[Any, ...]:
    """What the tab shows of a report, with the chart of an index."""
    language = code_of(spoken)
    message = plain(refusal_text(found.refusal, language)) if found.refusal else ""
    shown = answers.in_language(found, language)
    titles = [(picture.title, place) for place, picture in enumerate(shown.charts)]
    drawn = figure_of(shown.charts[index], "plotly") if shown.charts else None
    rows = {"headers": list(shown.columns), "data": [list(row) for row in shown.rows]}
    return (
        message,
        shown.summary,
        found,
        gr.update(choices=titles, value=index if titles else None, visible=bool(titles)),
        gr.update(value=drawn, visible=drawn is not None),
        gr.update(value=rows, visible=bool(shown.rows)),
    )
