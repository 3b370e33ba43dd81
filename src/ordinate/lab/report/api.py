"""The report of a comparison, computed from its records only: a page, pictures, Markdown and JSON."""

from __future__ import annotations

import io
import json
import os
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...checks import refused
from ...extras import how_to_install
from ...files import write_file
from ...plots.api import figure_of
from ...plots.pictures import Picture
from ...text import Text
from ..strict_json import read_bytes
from .figures import charts
from .gather import LeftOut, gather
from .markdown import build_markdown
from .page import build_page
from .sentences import Narrative, narrate
from .summarize import summarize
from .summary import Summary
from .table import as_data

_FIGURES = "figures"


@dataclass(frozen=True)
class Report:
    """The results of a comparison.

    Attributes:
        left_out: Runs whose numbers were not used, each with the reason.
        files: The files that `write_report` wrote, the page first; empty before.
    """

    summary: Summary
    narrative: Narrative
    files: tuple[Path, ...] = ()

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        return self.summary.gathered.left_out

    def to_dict(self) -> dict[str, Any]:
        """Everything measured and concluded, for a program to read."""
        sweep = self.summary.gathered.sweep
        return {
            "title": self.narrative.title,
            "headline": self.narrative.headline,
            "findings": [{"topic": one.topic, "text": one.text} for one in self.narrative.findings],
            "command": sweep.command,
            "version": sweep.version,
            "settings": self.narrative.settings,
            "environment": dict(self.narrative.environment),
            "baselines": [one._asdict() for one in self.summary.baselines.values()],
            "encodings": as_data(self.summary),
            "left_out": [
                {"run": one.name, "state": one.state, "reason": one.reason} for one in self.left_out
            ],
        }

    def to_json(self) -> str:
        """The same as text that ends with a newline."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def read_report(directory: str | Path) -> Report:
    """Read a comparison's records and summarise them; writes nothing, and needs no plotting packages.

    Raises:
        FileNotFoundError: The folder holds no comparison.
        ValueError: Its ``sweep.json`` cannot be read, or no run of it is finished.
    """
    summary = summarize(gather(Path(directory)))
    return Report(summary, narrate(summary))


def write_report(directory: str | Path) -> Report:
    """Write the report of a comparison next to its records.

    Makes ``report.html`` (one file, works offline), ``report.md``, ``report.json`` and
    ``figures/*.png``. The same records give the same bytes.

    Args:
        directory: The comparison's folder, as given to ``ordinate compare --out``.

    Raises:
        FileNotFoundError: The folder holds no comparison.
        ValueError: Its ``sweep.json`` cannot be read, or no run of it is finished.
        ModuleNotFoundError: matplotlib or plotly is not installed.

    Example:
        >>> report = write_report("runs/demo")  # doctest: +SKIP
        >>> report.narrative.headline  # doctest: +SKIP
        'alibi holds at 8× the training length; 6 others do not, or not surely.'
    """
    report = read_report(directory)
    missing = [name for name in ("matplotlib", "plotly") if find_spec(name) is None]
    if missing:
        raise refused(
            "",
            "a report needs {packages}, not installed here",
            error=ModuleNotFoundError,
            advice=": {command}",
            packages=Text("{first} and {second}", first=missing[0], second=missing[1])
            if len(missing) > 1
            else missing[0],
            command=how_to_install("lab"),
        )
    summary, narrative, folder = report.summary, report.narrative, Path(directory)
    drawn = charts(summary)
    pictures = {chart.kind: _png(chart) for chart in drawn}
    contents = {
        "report.html": build_page(summary, narrative, drawn, pictures).encode(),
        "report.md": build_markdown(summary, narrative, drawn, _FIGURES).encode(),
        "report.json": report.to_json().encode(),
        **{f"{_FIGURES}/{key}.png": picture for key, picture in pictures.items()},
    }
    (folder / _FIGURES).mkdir(exist_ok=True)
    for old in _pictures_of_the_last(folder):
        if old.stem not in pictures:
            old.unlink()  # a chart that this report does not have
    for name, content in contents.items():
        write_file(folder / name, content)
    return Report(summary, narrative, tuple(folder / name for name in contents))


def _png(chart: Picture) -> bytes:
    """A chart of 1440 × 864 pixels, without its caption; the same chart gives the same bytes."""
    figure, buffer = figure_of(replace(chart, note="")), io.BytesIO()
    figure.savefig(buffer, format="png", dpi=1440 / figure.get_figwidth(), metadata={"Software": None})
    return buffer.getvalue()


def _pictures_of_the_last(folder: Path) -> list[Path]:
    """The pictures of the previous report in a folder; other files there belong to the user."""
    try:
        shown = read_bytes(folder / "report.md")
    except ValueError:  # there is no previous report
        return []
    found = (folder / _FIGURES).glob("*.png")
    return [path for path in found if os.fsencode(f"({_FIGURES}/{path.name})") in shown]
