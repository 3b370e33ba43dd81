"""What the config doctor found, as a picture."""

from __future__ import annotations

import math

import torch

from ..plots.pictures import Axis, Lines, Mark, Picture, Series
from ..text import Text
from .doctor import Diagnosis


def picture_of(found: Diagnosis, subject: str) -> Picture:
    """Wavelengths of every pair before and after scaling, with the lengths that matter."""
    turning = [group for group in found.groups if group.pairs]
    if not turning:
        raise ValueError("CONFIG must have a rotation to draw its wavelengths, got none")
    marks = []
    if found.original_max_positions:
        marks.append(
            Mark(
                "y",
                float(found.original_max_positions),
                Text("trained at {length}", length=found.original_max_positions),
            )
        )
    if found.effective_context and found.effective_context != found.original_max_positions:
        marks.append(
            Mark(
                "y",
                float(found.effective_context),
                Text("context {length}", length=found.effective_context),
            )
        )
    panels = []
    for group in turning:
        pairs = torch.tensor([float(pair.index) for pair in group.pairs])
        before = torch.tensor([pair.wavelength for pair in group.pairs])
        after = torch.tensor([math.nan if math.isinf(p.scaled) else p.scaled for p in group.pairs])
        series = [Series("as trained", pairs, before, quiet=True), Series("after scaling", pairs, after)]
        axes = Axis("pair"), Axis("wavelength in positions", log=True)
        panels.append(Lines(*axes, tuple(series), title=group.title, marks=tuple(marks)))
    note = "a pair above the line never completes a turn within that length"
    title = Text("{family}: wavelengths of the pairs", family=found.family)
    return Picture("wavelengths", subject, title, tuple(panels), note, columns=len(panels))
