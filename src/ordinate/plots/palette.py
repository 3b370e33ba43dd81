"""Colours that stay apart for colour-blind readers, and on paper.

Categories are those of Okabe and Ito (2008), "Color Universal Design", the four that differ most first; ordered
things take steps of a ramp like cividis, signed values a map from blue over white to red whose white is zero.
"""

from __future__ import annotations

import itertools

from .pictures import Lines, Series, Style

CATEGORIES = ("#0072B2", "#D55E00", "#56B4E9", "#000000", "#E69F00", "#CC79A7", "#009E73", "#F0E442")
QUIET = "#9A9A9A"
#: Okabe and Ito's colours that show on a light page, and the lighter ones that take their place on a dark page.
#: Black and yellow are left out: one of the two backgrounds would swallow each.
ON_LIGHT_AND_DARK = {
    "#0072b2": "#4aa8e0",  # blue
    "#d55e00": "#f2803a",  # vermilion
    "#009e73": "#1fc79a",  # green
    "#cc79a7": "#e39ac3",  # purple
    "#b07800": "#e6a817",  # orange
    "#56b4e9": "#8fd0f7",  # sky
    "#767676": "#9a9a9a",  # grey
}
MISSING = "#E4E4E4"

# From dark blue to a yellow that still shows on white.
_RAMP = ((0.0, (0, 32, 77)), (0.5, (124, 123, 120)), (1.0, (214, 180, 62)))


def style_of(series: Series, panel: Lines) -> Style:
    """The style of a series: its own, or by its place among those that are not quiet."""
    if series.style is not None or series.quiet:
        return series.style or Style(QUIET)
    others = [one for one in panel.series if not one.quiet]
    index = next(place for place, one in enumerate(others) if one is series)
    shade = color(index, len(others), ordered=panel.ordered)
    return Style(shade, 0 if panel.ordered else index, index)


def color(index: int, count: int, *, ordered: bool) -> str:
    """The colour of one of several series.

    Example:
        >>> color(0, 2, ordered=True), color(1, 2, ordered=True)
        ('#00204d', '#d6b43e')
    """
    if not ordered:
        return CATEGORIES[index % len(CATEGORIES)]
    share = index / max(count - 1, 1)
    for (start, low), (stop, high) in itertools.pairwise(_RAMP):
        if share <= stop:
            part = (share - start) / (stop - start)
            mixed = (round(a + (b - a) * part) for a, b in zip(low, high, strict=True))
            return "#" + "".join(f"{value:02x}" for value in mixed)
    return CATEGORIES[0]
