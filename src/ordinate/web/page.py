"""The page: what stands where, and which question each control asks. The answers are in answers.py."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..plots.api import figure_of
from . import answers
from .answers import plain
from .controls import CONTROLS, MAX_SPEC, OWN, defaults_of, names
from .records_zip import unpack
from .words import LANGUAGES, say, text, translated

if TYPE_CHECKING:
    import gradio as gr

# Read by Gradio and by the hub's client when they are imported: nobody is told that the page is used.
QUIET = {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}

CSS = """
.message p { color: #b3261e; font-weight: 600; }
.command code { white-space: pre-wrap; }
footer { display: none !important; }
"""


# Figures fill the width they were drawn in; when that changes, they are told.
_FIT = "() => setTimeout(() => window.dispatchEvent(new Event('resize')), 60)"


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
        parts = _Parts(language)
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
                panels = _encodings(parts, choice)
            with parts.tab("tab_shuffle"):
                experiment = _shuffle(parts, choice)
            with parts.tab("tab_config"):
                _config(parts, choice)
            with parts.tab("tab_lab"):
                lab = _lab(parts, choice, runs)
        _switch_language(parts, choice, [*panels, experiment, lab])
    return page


class _Parts:
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

        return self.add(key, gr.Tab(text(key, self.language), id=key))

    def label(self, key: str) -> str:
        return text(key, self.language)

    def update(self, key: str, component: Any, language: str) -> Any:
        import gradio as gr

        words = text(key, language)
        if isinstance(component, (gr.Markdown, gr.Button)):
            return gr.update(value=words)
        return gr.update(label=words)


@dataclass(frozen=True)
class _Redraw:
    """A figure that speaks: how to draw it again in another language."""

    ask: Any
    inputs: list[Any]
    outputs: list[Any]


def _code(language: str) -> str:
    return LANGUAGES.get(language, "en")


def _encodings(parts: _Parts, choice: Any) -> list[_Redraw]:
    """Two panels over common sizes; the second is hidden until asked for."""
    import gradio as gr

    with gr.Row():
        sizes = [parts.add(name, _size(name, parts)) for name in answers.LIMITS]
    compare = parts.add("compare", gr.Checkbox(False, label=parts.label("compare"), elem_id="compare"))
    with gr.Row():
        first = _panel(parts, choice, sizes, "rope", "a")
        second = _panel(parts, choice, sizes, "alibi", "b")
    compare.input(
        lambda shown: gr.update(visible=bool(shown)),
        compare,
        second.column,
        show_progress="hidden",
        api_name=False,
    ).then(None, js=_FIT)
    return [first.redraw, second.redraw]


def _size(name: str, parts: _Parts) -> Any:
    import gradio as gr

    (low, high), value = answers.LIMITS[name], answers.DEFAULTS[name]
    common: dict[str, Any] = {
        "value": value,
        "label": parts.label(name),
        "elem_id": f"size-{name}",
        "min_width": 150,
    }
    if high > 10_000:  # too wide for a slider; what is typed is checked with the rest
        return gr.Number(precision=None, **common)
    return gr.Slider(low, high, step=1, **common)


@dataclass(frozen=True)
class _Panel:
    column: Any
    redraw: _Redraw


def _panel(parts: _Parts, choice: Any, sizes: list[Any], start: str, name: str) -> _Panel:
    """One encoding: its name, its options, a view, the picture and the command that draws the same."""
    import gradio as gr

    first = answers.draw(parts.language, start, "", "", {}, {})
    kinds, kind = answers.views(start, "", {}, {})
    with gr.Column(visible=name == "a", min_width=420, elem_id=f"panel-{name}") as column:
        with gr.Row():
            encoding = gr.Dropdown(
                names(), value=start, label=parts.label("encoding" if name == "a" else "encoding_b"),
                elem_id=f"encoding-{name}",
            )  # fmt: skip
            parts.add("encoding" if name == "a" else "encoding_b", encoding)
            view = parts.add(
                "view",
                gr.Dropdown(
                    _view_choices(kinds, parts.language),
                    value=kind,
                    label=parts.label("view"),
                    elem_id=f"view-{name}",
                    allow_custom_value=True,  # what a view may be depends on the encoding: answers.draw checks it
                ),
            )
        typed = parts.add(
            "own_spec",
            gr.Textbox(
                "", label=parts.label("own_spec"), visible=False, max_length=MAX_SPEC + 50,
                placeholder="rope:base=1e6+yarn:factor=16", elem_id=f"spec-{name}",
            ),
        )  # fmt: skip
        with gr.Row():
            options = [parts.add(option, _option(option, parts, start, name)) for option in CONTROLS]
        message = gr.Markdown("", elem_classes="message", elem_id=f"message-{name}")
        plot = gr.Plot(first.figure, show_label=False, elem_id=f"plot-{name}")
        command = gr.Markdown(
            _command(first, parts.language), elem_classes="command", elem_id=f"command-{name}"
        )
    inputs = [choice, encoding, view, typed, *options, *sizes]

    def split(given: Sequence[Any]) -> tuple[Any, ...]:
        spoken, chosen, kind, spec, *rest = given
        moved = dict(zip(CONTROLS, rest[: len(CONTROLS)], strict=True))
        measured = dict(zip(answers.LIMITS, rest[len(CONTROLS) :], strict=True))
        return _code(spoken), chosen, kind, spec, moved, measured

    def draw(*given: Any) -> tuple[Any, ...]:
        answer = answers.draw(*split(given))
        if answer.message:
            return gr.skip(), gr.skip(), plain(answer.message)
        return answer.figure, _command(answer, split(given)[0]), ""

    def choose(*given: Any) -> tuple[Any, ...]:
        """Another encoding: other options, other views."""
        language, chosen, _, spec, _, measured = split(given)
        start = defaults_of(chosen) if chosen in names() else {}
        kinds, kind = answers.views(chosen, spec, start, measured)
        shown = [
            gr.update(visible=True, value=start[option]) if option in start else gr.update(visible=False)
            for option in CONTROLS
        ]
        picked = gr.update(choices=_view_choices(kinds, language), value=kind) if kinds else gr.skip()
        moved = [start.get(option, control.default) for option, control in CONTROLS.items()]
        drawn = draw(*given[:2], kind, spec, *moved, *given[4 + len(CONTROLS) :])
        return gr.update(visible=chosen == OWN), picked, *shown, *drawn

    outputs = [plot, command, message]
    quick: dict[str, Any] = {"show_progress": "hidden", "trigger_mode": "always_last", "queue": True}
    encoding.input(choose, inputs, [typed, view, *options, *outputs], api_name=f"choose_{name}", **quick)
    typed.submit(choose, inputs, [typed, view, *options, *outputs], api_name=False, **quick)
    gr.on(
        [control.input for control in (view, *options, *sizes)],
        draw,
        inputs,
        outputs,
        api_name=f"draw_{name}",
        **quick,
    )

    def again(*given: Any) -> tuple[Any, ...]:
        language, chosen, kind, spec, moved, measured = split(given)
        kinds, _ = answers.views(chosen, spec, moved, measured)
        return gr.update(choices=_view_choices(kinds, language), value=kind), *draw(*given)

    return _Panel(column, _Redraw(again, inputs, [view, *outputs]))


def _option(name: str, parts: _Parts, encoding: str, panel: str) -> Any:
    import gradio as gr

    control, start = CONTROLS[name], defaults_of(encoding)
    value = start.get(name, control.default)
    common: dict[str, Any] = {
        "label": parts.label(name),
        "visible": name in start,
        "elem_id": f"{name}-{panel}",
        "min_width": 200,
    }
    if control.is_slider:
        return gr.Slider(control.low, control.high, value=value, step=control.step, **common)
    if control.choices:
        return gr.Dropdown(list(control.choices), value=value, **common)
    return gr.Checkbox(value, **common)


def _view_choices(kinds: Sequence[str], language: str) -> list[tuple[str, str]]:
    return [(text(f"kind_{kind}", language), kind) for kind in kinds]


def _command(answer: answers.Answer, language: str) -> str:
    return f"{text('command', language)} `{answer.spec}`" if answer.spec else ""


def _shuffle(parts: _Parts, choice: Any) -> _Redraw:
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
    plot = gr.Plot(
        answers.experiment(parts.language, "rope", "", start, 0).figure,
        show_label=False,
        elem_id="shuffle-plot",
    )

    def ask(spoken: str, words: str, chosen: str, number: int) -> tuple[Any, ...]:
        answer = answers.experiment(_code(spoken), chosen, "", words, number)
        return (gr.skip(), plain(answer.message)) if answer.message else (answer.figure, "")

    def ask_again(spoken: str, words: str, chosen: str, number: int) -> tuple[Any, ...]:
        return *ask(spoken, words, chosen, number + 1), number + 1

    inputs, outputs = [choice, sentence, encoding, seed], [plot, message]
    quick: dict[str, Any] = {"show_progress": "hidden", "trigger_mode": "always_last"}
    gr.on(
        [sentence.input, sentence.submit, encoding.input],
        ask,
        inputs,
        outputs,
        api_name="shuffle",
        **quick,
    )
    again.click(ask_again, inputs, [*outputs, seed], api_name=False, **quick)
    return _Redraw(ask, inputs, outputs)


def _config(parts: _Parts, choice: Any) -> None:
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

    def ask(spoken: str, config: str | None) -> tuple[Any, ...]:
        found = answers.doctor(_code(spoken), config)
        pairs = [list(row) for row in found.pairs]
        spoken_heads = [say(head, _code(spoken)) for head in heads]
        shown = gr.update(value={"headers": spoken_heads, "data": pairs}, visible=bool(pairs))
        drawn = gr.update(value=found.figure, visible=found.figure is not None)
        return plain(found.message), found.facts, drawn, shown

    def ask_file(spoken: str, path: str | None) -> tuple[Any, ...]:
        if path is None:
            return "", "", gr.update(visible=False), gr.update(visible=False)
        with open(path, encoding="utf-8", errors="replace") as stream:
            return ask(spoken, stream.read(answers.MAX_CONFIG + 1))

    outputs = [message, facts, plot, table]
    read.click(ask, [choice, pasted], outputs, api_name="doctor", show_progress="hidden")
    gr.on(
        [file.upload, file.clear],
        ask_file,
        [choice, file],
        outputs,
        api_name=False,
        show_progress="hidden",
    )


def _lab(parts: _Parts, choice: Any, runs: Path | None) -> _Redraw:
    """A comparison's curves and table."""
    import gradio as gr

    known = sorted(path.parent.name for path in runs.glob("*/sweep.json"))[:200] if runs else []
    if runs and (runs / "sweep.json").exists():
        known = [".", *known]
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
                known,
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

    def show(found: answers.Lab, language: str) -> tuple[Any, ...]:
        titles = [(picture.subject, index) for index, picture in enumerate(found.charts)]
        first = found.charts[0] if found.charts else None
        drawn = None if first is None else figure_of(translated(first, language), "plotly")
        rows = {"headers": list(found.columns), "data": [list(row) for row in found.rows]}
        return (
            plain(found.message), found.summary, found,
            gr.update(choices=titles, value=0 if titles else None, visible=bool(titles)),
            gr.update(value=drawn, visible=drawn is not None), gr.update(value=rows, visible=bool(found.rows)),
        )  # fmt: skip

    def open_archive(spoken: str, path: str | None) -> tuple[Any, ...]:
        language = _code(spoken)
        if path is None:
            return show(answers.Lab(), language)
        with tempfile.TemporaryDirectory() as folder:
            try:
                unpack(Path(path), Path(folder))
            except ValueError as error:
                return show(answers.Lab(message=str(error)), language)
            return show(answers.lab_report(language, Path(folder)), language)

    def open_known(spoken: str, name: str | None) -> tuple[Any, ...]:
        directory = runs / name if runs and name in known else None
        return show(answers.lab_report(_code(spoken), directory), _code(spoken))

    def pick(spoken: str, index: int | None, found: answers.Lab | None) -> Any:
        if found is None or index is None or not 0 <= index < len(found.charts):
            return gr.skip()
        return figure_of(translated(found.charts[index], _code(spoken)), "plotly")

    outputs = [message, summary, opened, figure, plot, table]
    gr.on(
        [archive.upload, archive.clear],
        open_archive,
        [choice, archive],
        outputs,
        api_name=False,
        show_progress="hidden",
    )
    listed.input(open_known, [choice, listed], outputs, api_name="report", show_progress="hidden")
    figure.input(pick, [choice, figure, opened], plot, api_name=False, show_progress="hidden")
    return _Redraw(pick, [choice, figure, opened], [plot])


def _switch_language(parts: _Parts, choice: Any, redraws: list[_Redraw]) -> None:
    """Labels first, then the figures, each from what its controls say now."""

    def relabel(spoken: str) -> list[Any]:
        return [parts.update(key, component, _code(spoken)) for key, component in parts.labelled]

    components = [component for _, component in parts.labelled]
    choice.input(relabel, choice, components, api_name=False, show_progress="hidden")
    for redraw in redraws:
        choice.input(redraw.ask, redraw.inputs, redraw.outputs, api_name=False, show_progress="hidden")
