"""The config doctor's result as a picture."""

from __future__ import annotations

import math

import torch

from ..checks import refused
from ..plots.pictures import Axis, Lines, Mark, Picture, Series
from ..text import Text
from .doctor import Diagnosis


def picture_of(found: Diagnosis, subject: str) -> Picture:
    """Wavelengths of every pair before and after scaling, with the lengths that matter."""
    rotating = [group for group in found.groups if group.pairs]
    if not rotating:
        raise refused("CONFIG", "must have a rotation to draw its wavelengths", Text("none"))
    original, context = found.original_max_positions, found.effective_context
    marks = []
    if original:
        marks.append(Mark("y", float(original), Text("trained at {length}", length=original)))
    if context and context != original:
        marks.append(Mark("y", float(context), Text("context {length}", length=context)))
    panels = []
    for group in rotating:
        pairs = torch.tensor([float(pair.index) for pair in group.pairs])
        before = torch.tensor([pair.wavelength for pair in group.pairs])
        after = torch.tensor([math.nan if math.isinf(p.scaled) else p.scaled for p in group.pairs])
        series = [Series("as trained", pairs, before, quiet=True), Series("after scaling", pairs, after)]
        axes = Axis("pair"), Axis("wavelength in positions", log=True)
        panels.append(Lines(*axes, tuple(series), title=group.title, marks=tuple(marks)))
    note = "a pair above the line never completes a turn within that length"
    title = Text("{family}: wavelengths of the pairs", family=found.family)
    return Picture("wavelengths", subject, title, tuple(panels), note, columns=len(panels))
