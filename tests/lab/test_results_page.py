"""The results that are shown are those of the records that lie beside them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from ordinate.lab.report import read_report, write_report

pytestmark = pytest.mark.plain

DOCS = Path(__file__).resolve().parents[2] / "docs"


def _load():
    found = importlib.util.spec_from_file_location("docs_results", DOCS / "results.py")
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    sys.modules["docs_results"] = module
    found.loader.exec_module(module)
    return module


RESULTS = _load()


def test_the_page_is_that_of_the_records():
    assert RESULTS.PAGE.read_text(encoding="utf-8") == RESULTS.render(), "run docs/results.py"


def test_the_report_is_that_of_the_records(tmp_path):
    records = tmp_path / "gpu"
    records.mkdir()
    for name in ("sweep.json", "runs"):
        (records / name).symlink_to(RESULTS.RECORDS / name)
    write_report(records)
    kept = (RESULTS.RECORDS / "report.md").read_text(encoding="utf-8")
    assert (records / "report.md").read_text(encoding="utf-8") == kept, "run docs/results.py"


def test_every_run_counts():
    report = read_report(RESULTS.RECORDS)
    assert report.left_out == ()
    assert len(report.summary.arms) == len(report.summary.gathered.sweep.arms) >= 8


def test_where_a_curve_turns_and_where_it_is_a_tenth_worse():
    curve = {100: 2.0, 200: 1.9, 400: 2.1, 800: 2.3, 1600: 3.0}
    assert RESULTS.best(curve) == "2×"
    assert RESULTS.stretch(curve) == "5.7×"  # 2.2 lies in the middle between 2.1 and 2.3
    assert RESULTS.best({100: 2.0, 200: 1.9}) == "at the longest, 2×"
    assert RESULTS.stretch({100: 2.0, 200: 1.9}) == "not up to 2×"


def test_ours_stretch_as_far_as_the_report_says():
    summary = read_report(RESULTS.RECORDS).summary
    for name, losses in RESULTS.our_losses(summary).items():
        (stretch,) = RESULTS._arm(summary, name).stretches
        found = RESULTS.stretch(losses)
        assert found == (
            f"{stretch.factor:.2g}×" if stretch.end == "crossed" else f"not up to {stretch.factor:.3g}×"
        )
