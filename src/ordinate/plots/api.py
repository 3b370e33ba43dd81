"""`picture`, `plot` and `save`: from a spec to numbers, to a figure, to a file."""

from __future__ import annotations

import os
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from ..checks import check_choice, nearest, refused, short
from ..encoding import PositionEncoding
from ..extras import how_to_install
from ..parts import name_of
from ..setting import PICTURE_OPTIONS, Setting
from ..text import Text
from .draw_matplotlib import to_matplotlib
from .draw_plotly import to_plotly
from .kinds import KINDS, default_kind, kinds_of
from .pictures import Picture

Backend = Literal["matplotlib", "plotly"]
_SUFFIXES = (".png", ".svg", ".html")


def picture(encoding: str | PositionEncoding, kind: str | None = None, **options: Any) -> Picture:
    """The numbers of a picture, before anything draws them.

    Args:
        encoding: A spec as in `ordinate.create`, or an encoding.
        kind: One of `kinds_of` the encoding; default `default_kind`.
        options: ``positions``, ``dim``, ``heads``, ``distance``, ``train_length``, ``channels``, ``pairs``, ``at``,
            ``factor`` and ``text``, as `ordinate.setting.Setting` describes them.

    Example:
        >>> drawn = picture("alibi", "slopes", heads=2)
        >>> drawn.panels[0].values.tolist()
        [0.0625, 0.00390625]
    """
    for name in options:
        if name not in PICTURE_OPTIONS:
            rule, hint = "unknown option {name!r} of a picture{hint}", nearest(name, PICTURE_OPTIONS)
            raise refused("", rule, name=name, hint=hint)
    setting = Setting.of_picture(**options)
    if isinstance(encoding, PositionEncoding):
        made, subject = encoding, name_of(encoding)
    else:
        made, subject = setting.encoding(encoding), encoding
    chosen = default_kind(made) if kind is None else kind
    if chosen not in KINDS:
        rule, hint = "unknown kind {kind} of picture{hint}", nearest(str(chosen), KINDS)
        raise refused("", rule, kind=short(chosen), hint=hint)
    has = kinds_of(made)
    if chosen not in has:
        rule = "must be one that {encoding} has, {kinds}"
        raise refused("kind", rule, repr(chosen), encoding=subject, kinds=", ".join(has))
    return KINDS[chosen].draw(made, setting.around(made), subject)


def plot(
    encoding: str | PositionEncoding,
    kind: str | None = None,
    *,
    backend: Backend = "matplotlib",
    **options: Any,
) -> Any:
    """A figure of an encoding: matplotlib's, or plotly's with ``backend="plotly"``. See `picture`.

    Example:
        >>> figure = plot("rope", "waves", positions=64, pairs=(0, 15, 31))
        >>> figure.axes[-1].get_xlabel()
        'position'
    """
    check_choice("backend", backend, ("matplotlib", "plotly"))
    return figure_of(picture(encoding, kind, **options), backend)


def figure_of(picture: Picture, backend: Backend = "matplotlib") -> Any:
    """A picture as a figure of a backend."""
    if find_spec(backend) is None:
        rule = "must be installed: {command}"
        raise refused(
            Text("backend {name!r}", name=backend),
            rule,
            error=ModuleNotFoundError,
            command=how_to_install("plot"),
        )
    return to_matplotlib(picture) if backend == "matplotlib" else to_plotly(picture)


def save(
    encoding: str | PositionEncoding, path: str | os.PathLike, kind: str | None = None, **options: Any
) -> Path:
    """Draw a picture into a file: ``.png`` and ``.svg`` with matplotlib, ``.html`` with plotly, for any browser."""
    check_path(path)
    return save_picture(picture(encoding, kind, **options), path)


def check_path(path: str | os.PathLike) -> None:
    """The suffix of the file must be one that a picture can be written as."""
    if Path(path).suffix.lower() not in _SUFFIXES:
        raise refused("path", "must end in {suffixes}", repr(str(path)), suffixes=", ".join(_SUFFIXES))


def save_picture(picture: Picture, path: str | os.PathLike) -> Path:
    """Write a picture in the format of the file's suffix; the same picture gives the same bytes."""
    check_path(path)
    target = Path(path)
    suffix = target.suffix.lower()
    if suffix == ".html":
        figure_of(picture, "plotly").write_html(
            target, include_plotlyjs=True, div_id="picture", auto_play=False
        )
        return target
    _save_with_matplotlib(figure_of(picture, "matplotlib"), target)
    return target


def _save_with_matplotlib(figure: Any, target: Path) -> None:
    from matplotlib import rc_context

    # No dates and no random names, so that a rebuilt gallery differs only where its pictures do.
    settings = (
        {"metadata": {"Date": None}}
        if target.suffix.lower() == ".svg"
        else {"metadata": {"Software": None}}
    )
    with rc_context({"svg.hashsalt": "ordinate"}), warnings.catch_warnings():
        warnings.filterwarnings("error", message="Glyph .* missing")
        try:
            figure.savefig(target, dpi=120, **settings)
        except UserWarning as missing:
            rule = "must have letters that a font here can draw, or go to a file .html"
            raise refused("text", rule, missing) from None
