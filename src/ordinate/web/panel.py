"""The first tab: an encoding with its options and views, and a second one beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import answers
from .answers import plain
from .controls import MAX_SPEC, OWN, Control, all_controls, defaults_of, names
from .parts import FIT, Parts, Redraw, code_of, quietly
from .words import text


def encodings(parts: Parts, choice: Any) -> list[Redraw]:
    """Two panels over common sizes; the second is hidden until asked for."""
    import gradio as gr

    with gr.Row():
        sizes = [parts.add(name, _size(name, parts)) for name in answers.LIMITS]
    compare = parts.add("compare", gr.Checkbox(False, label=parts.label("compare"), elem_id="compare"))
    with gr.Row():
        first = _panel(parts, choice, sizes, "rope", "a")
        second = _panel(parts, choice, sizes, "alibi", "b")
    redraw = second.redraw

    def reveal(shown: bool, *given: Any) -> tuple[Any, ...]:
        return gr.update(visible=bool(shown)), *redraw.ask(*given)

    compare.input(
        reveal,
        [compare, *redraw.inputs],
        [second.column, *redraw.outputs],
        api_name=False,
        **redraw.quietly,
    ).then(None, js=FIT)
    return [first.redraw, second.redraw]


def _size(name: str, parts: Parts) -> Any:
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
    redraw: Redraw


def _panel(parts: Parts, choice: Any, sizes: list[Any], start: str, name: str) -> _Panel:
    """One encoding: its name, its options, a view, the picture and the command that draws the same."""
    import gradio as gr

    visible = name == "a"
    first = answers.draw(parts.language, start, "", "", {}, {}) if visible else answers.Answer()
    kinds, kind = answers.views(start, "", {}, {})
    controls = all_controls()
    with gr.Column(visible=visible, min_width=420, elem_id=f"panel-{name}") as column:
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
            options = [
                parts.add(option, _option(control, parts, start, name))
                for option, control in controls.items()
            ]
        message = gr.Markdown("", elem_classes="message", elem_id=f"message-{name}")
        plot = gr.Plot(first.figure, show_label=False, elem_id=f"plot-{name}")
        command = gr.Markdown(
            _command(first, parts.language), elem_classes="command", elem_id=f"command-{name}"
        )
    inputs = [choice, encoding, view, typed, *options, *sizes]

    def split(given: Sequence[Any]) -> tuple[Any, ...]:
        spoken, chosen, kind, spec, *rest = given
        moved = dict(zip(controls, rest[: len(controls)], strict=True))
        measured = dict(zip(answers.LIMITS, rest[len(controls) :], strict=True))
        return code_of(spoken), chosen, kind, spec if isinstance(spec, str) else "", moved, measured

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
            for option in controls
        ]
        picked = gr.update(choices=_view_choices(kinds, language), value=kind) if kinds else gr.skip()
        moved = [start.get(option, control.default) for option, control in controls.items()]
        if chosen == OWN and not spec.strip():  # nothing has been typed yet, so nothing is wrong
            drawn: tuple[Any, ...] = (gr.skip(), gr.skip(), "")
        else:
            drawn = draw(*given[:2], kind, spec, *moved, *given[4 + len(controls) :])
        return gr.update(visible=chosen == OWN), picked, *shown, *drawn

    outputs = [plot, command, message]
    lane = f"panel-{name}"
    quick = {**quietly(lane, preprocess=False), "trigger_mode": "always_last"}
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
        picked = gr.update(choices=_view_choices(kinds, language), value=kind) if kinds else gr.skip()
        return picked, *draw(*given)

    return _Panel(column, Redraw(again, inputs, [view, *outputs], lane, preprocess=False))


def _option(control: Control, parts: Parts, encoding: str, panel: str) -> Any:
    import gradio as gr

    name, start = control.name, defaults_of(encoding)
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
