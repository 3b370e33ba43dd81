"""The second tab: the words of a sentence are shuffled, with and without positions."""

from __future__ import annotations

from typing import Any

from . import answers
from .answers import plain
from .components import Components, Redraw, code_of, one_at_a_time
from .controls import OWN, names
from .gradio_quiet import gr


def shuffle_tab(components: Components, choice: Any) -> Redraw:
    """The permutation experiment."""
    components.add(gr.Markdown, "shuffle_about")
    with gr.Row():
        sentence = components.add(
            gr.Textbox, "sentence", "the dog bites the man", scale=3, max_length=answers.MAX_TEXT + 50,
            elem_id="sentence",
        )  # fmt: skip
        encoding = components.add(
            gr.Dropdown, "encoding", [name for name in names() if name not in (OWN, "none")], value="rope",
            elem_id="shuffle-encoding",
        )  # fmt: skip
        again = components.add(gr.Button, "again", elem_id="shuffle-again")
    seed = gr.State(0)
    message = gr.Markdown("", elem_classes="message", elem_id="shuffle-message")
    plot = gr.Plot(show_label=False, elem_id="shuffle-plot", elem_classes="figure")

    def draw(spoken: str, words: str, chosen: str, number: int) -> tuple[Any, ...]:
        answer = answers.experiment(code_of(spoken), chosen, "", words, number)
        return (gr.skip(), plain(answer.message)) if answer.message else (answer.figure, "")

    def draw_next(spoken: str, words: str, chosen: str, number: int) -> tuple[Any, ...]:
        return *draw(spoken, words, chosen, number + 1), number + 1

    inputs, outputs = [choice, sentence, encoding, seed], [plot, message]
    latest = {**one_at_a_time("shuffle"), "trigger_mode": "always_last"}
    events = [sentence.change, sentence.submit, encoding.input]
    gr.on(events, draw, inputs, outputs, api_name="shuffle", **latest)
    again.click(draw_next, inputs, [*outputs, seed], api_name=False, **latest)
    return Redraw(draw, inputs, outputs, "shuffle")
