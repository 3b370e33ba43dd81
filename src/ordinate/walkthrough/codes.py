"""Codes added to embeddings, row by row: sinusoidal from its angles, learned from its table."""

from __future__ import annotations

import torch

from ..embed.learned import Learned
from ..embed.sinusoidal import Sinusoidal
from ..setting import Setting
from .rotary import pairs_of_channels, wavelength
from .walk import Step, step

_SHIFT = 5


def steps_of_sinusoidal(encoding: Sinusoidal, setting: Setting) -> list[Step]:
    """Frequencies, the code of one position, the first rows, and the code further on as a rotation."""
    speeds, place = encoding.inv_freq(), setting.position
    code = encoding.codes(torch.tensor([place]))[0]
    further = encoding.codes(torch.tensor([place + _SHIFT]))[0]
    channels = pairs_of_channels(encoding.layout, encoding.d_model // 2)
    rows = encoding.codes(torch.arange(setting.length))
    angles = (place + encoding.offset) * speeds
    turn = _SHIFT * speeds
    return [
        step(
            "the frequency of each pair of channels",
            ("pair", "w", "wavelength"),
            [(i, w, wavelength(w)) for i, w in enumerate(speeds)],
            formula=_frequency_formula(encoding),
            note="wavelength = 2π/w, in positions",
        ),
        step(
            f"the code of position {place}",
            ("pair", "angle", "channel", "sin", "channel", "cos"),
            [(i, angles[i], s, code[s], c, code[c]) for i, (s, c) in enumerate(channels)],
            formula="angle = position · w" if not encoding.offset else f"angle = (position + {encoding.offset}) · w",
        ),
        _rows_of("the codes row by row", rows),
        step(
            f"the code of position {place + _SHIFT} from that of {place}",
            ("pair", f"cos {_SHIFT}w", f"sin {_SHIFT}w", "sin, turned", "sin, itself"),
            [
                (i, turn[i].cos(), turn[i].sin(), code[s] * turn[i].cos() + code[c] * turn[i].sin(), further[s])
                for i, (s, c) in enumerate(channels)
            ],
            formula=f"sin(angle + {_SHIFT}w) = sin(angle) cos {_SHIFT}w + cos(angle) sin {_SHIFT}w",
            note=f"the same matrix for every position: the code {_SHIFT} further on is linear in the code here",
        ),
    ]  # fmt: skip


def _frequency_formula(encoding: Sinusoidal) -> str:
    if encoding.endpoint:
        return f"w = {encoding.base:g}^(-pair/{max(encoding.d_model // 2 - 1, 1)})"
    return f"w = {encoding.base:g}^(-2·pair/{encoding.d_model})"


def steps_of_learned(encoding: Learned, setting: Setting) -> list[Step]:
    """The table as it is initialised, and where it ends."""
    count = min(setting.length, encoding.max_positions)
    x = torch.zeros(1, count, encoding.d_model, dtype=torch.float64)
    last, place = encoding.max_positions - 1, torch.tensor([setting.position])
    row = encoding.embed(x[:, :1], place)[0, 0].detach()
    return [
        step(
            f"the code of position {setting.position}",
            ("channel", "code"),
            list(enumerate(row)),
            formula=f"row {setting.position + encoding.offset} of the table",
        ),
        _rows_of("the first rows of the table", encoding.embed(x)[0].detach()),
        step(
            "what the table holds",
            ("positions", "channels", "parameters", "last position"),
            [(encoding.max_positions, encoding.d_model, encoding.weight.numel(), last)],
            note=f"position {last + 1} has no row: asking for it is an error, not a wrong answer",
        ),
    ]


def _rows_of(title: str, rows: torch.Tensor) -> Step:
    columns = ("position", *(str(channel) for channel in range(rows.shape[1])))
    return step(title, columns, [(p, *row) for p, row in enumerate(rows)], note="one column a channel")
