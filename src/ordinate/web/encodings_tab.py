"""The first tab: an encoding with its options and views, and a second one next to it to compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import answers
from .answers import plain
from .components import FIT, Components, Redraw, code_of, one_at_a_time
from .controls import MAX_SPEC, OWN, Control, all_controls, defaults_of, names
from .gradio_quiet import gr
from .texts import text


def encodings_tab(components: Components, choice: Any) -> list[Redraw]:
    """Two encodings of common sizes; the second is hidden until asked for."""
    with gr.Row():
        sizes = [_size(components, name) for name in answers.LIMITS]
    compare = components.add(gr.Checkbox, "compare", False, elem_id="compare")
    with gr.Row():
        first = _Encoding(components, choice, sizes, "a")
        second = _Encoding(components, choice, sizes, "b")
    redraw = second.redraw

    def reveal(shown: bool, *given: Any) -> tuple[Any, ...]:
        return gr.update(visible=bool(shown)), *redraw.ask(*given)

    how = one_at_a_time(redraw.queue, preprocess=False)
    inputs, outputs = [compare, *redraw.inputs], [second.column, *redraw.outputs]
    compare.input(reveal, inputs, outputs, api_name=False, **how).then(None, js=FIT)
    return [first.redraw, redraw]


def _size(components: Components, name: str) -> Any:
    (low, high), value = answers.LIMITS[name], answers.DEFAULTS[name]
    common: dict[str, Any] = {"value": value, "elem_id": f"size-{name}", "min_width": 150}
    if high > 10_000:  # too wide for a slider; `answers` checks the number like the other sizes
        return components.add(gr.Number, name, precision=None, **common)
    return components.add(gr.Slider, name, low, high, step=1, **common)


class _Encoding:
    """One encoding: its name, its options, a view, the picture and the command that draws the same."""

    def __init__(self, components: Components, choice: Any, sizes: list[Any], name: str) -> None:
        start, key, visible = (
            ("rope", "encoding", True) if name == "a" else ("alibi", "encoding_b", False)
        )
        language = components.language
        first = answers.draw(language, start, "", "", {}, {}) if visible else answers.Answer()
        kinds, kind = answers.views(start, "", {}, {})
        self.controls = all_controls()
        with gr.Column(visible=visible, min_width=420, elem_id=f"panel-{name}") as self.column:
            with gr.Row():
                encoding = components.add(
                    gr.Dropdown, key, names(), value=start, elem_id=f"encoding-{name}"
                )
                view = components.add(
                    gr.Dropdown, "view", _view_choices(kinds, language), value=kind, elem_id=f"view-{name}",
                    allow_custom_value=True,  # the views depend on the encoding: answers.draw checks the choice
                )  # fmt: skip
            typed = components.add(
                gr.Textbox, "own_spec", "", visible=False, max_length=MAX_SPEC + 50,
                placeholder="rope:base=1e6+yarn:factor=16", elem_id=f"spec-{name}",
            )  # fmt: skip
            with gr.Row():
                options = [
                    _option(components, control, start, name) for control in self.controls.values()
                ]
            message = gr.Markdown("", elem_classes="message", elem_id=f"message-{name}")
            plot = gr.Plot(first.figure, show_label=False, elem_id=f"plot-{name}", elem_classes="figure")
            command = gr.Markdown(
                _command(first, language), elem_classes="command", elem_id=f"command-{name}"
            )
        inputs = [choice, encoding, view, typed, *options, *sizes]
        outputs, queue = [plot, command, message], f"panel-{name}"
        latest = {**one_at_a_time(queue, preprocess=False), "trigger_mode": "always_last"}
        everything = [typed, view, *options, *outputs]
        encoding.input(self.choose, inputs, everything, api_name=f"choose_{name}", **latest)
        typed.submit(self.choose, inputs, everything, api_name=False, **latest)
        events = [control.input for control in (view, *options, *sizes)]
        gr.on(events, self.draw, inputs, outputs, api_name=f"draw_{name}", **latest)
        self.redraw = Redraw(self.draw_again, inputs, [view, *outputs], queue, preprocess=False)

    def draw(self, *given: Any) -> tuple[Any, ...]:
        """The picture, its command, and why there is none."""
        question = self._question(given)
        answer = answers.draw(*question)
        if answer.message:
            return gr.skip(), gr.skip(), plain(answer.message)
        return answer.figure, _command(answer, question[0]), ""

    def choose(self, *given: Any) -> tuple[Any, ...]:
        """Another encoding: other options, other views."""
        language, chosen, _, spec, _, sizes = self._question(given)
        start = defaults_of(chosen) if chosen in names() else {}
        kinds, kind = answers.views(chosen, spec, start, sizes)
        shown = [
            gr.update(visible=True, value=start[option]) if option in start else gr.update(visible=False)
            for option in self.controls
        ]
        if chosen == OWN and not spec.strip():  # nothing has been typed yet, so nothing is wrong
            drawn: tuple[Any, ...] = (gr.skip(), gr.skip(), "")
        else:
            moved = [start.get(name, control.default) for name, control in self.controls.items()]
            drawn = self.draw(*given[:2], kind, spec, *moved, *given[4 + len(moved) :])
        return gr.update(visible=chosen == OWN), _view_update(kinds, kind, language), *shown, *drawn

    def draw_again(self, *given: Any) -> tuple[Any, ...]:
        """The names of the views and the picture in another language."""
        language, chosen, kind, spec, moved, sizes = self._question(given)
        kinds, _ = answers.views(chosen, spec, moved, sizes)
        return _view_update(kinds, kind, language), *self.draw(*given)

    def _question(self, given: Sequence[Any]) -> tuple[Any, ...]:
        """The values of all controls as the arguments of `answers.draw`."""
        spoken, chosen, kind, spec, *rest = given
        count = len(self.controls)
        moved = dict(zip(self.controls, rest[:count], strict=True))
        sizes = dict(zip(answers.LIMITS, rest[count:], strict=True))
        return code_of(spoken), chosen, kind, spec if isinstance(spec, str) else "", moved, sizes


def _option(components: Components, control: Control, encoding: str, panel: str) -> Any:
    name, start = control.name, defaults_of(encoding)
    common: dict[str, Any] = {
        "value": start.get(name, control.default),
        "visible": name in start,
        "elem_id": f"{name}-{panel}",
        "min_width": 200,
    }
    if control.is_slider:
        return components.add(gr.Slider, name, control.low, control.high, step=control.step, **common)
    if control.choices:
        return components.add(gr.Dropdown, name, list(control.choices), **common)
    return components.add(gr.Checkbox, name, **common)


def _view_choices(kinds: Sequence[str], language: str) -> list[tuple[str, str]]:
    return [(text(f"kind_{kind}", language), kind) for kind in kinds]


def _view_update(kinds: Sequence[str], kind: str, language: str) -> Any:
    return gr.update(choices=_view_choices(kinds, language), value=kind) if kinds else gr.skip()


def _command(answer: answers.Answer, language: str) -> str:
    return f"{text('command', language)} `{answer.spec}`" if answer.spec else ""
