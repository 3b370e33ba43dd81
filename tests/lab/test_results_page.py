"""The results that are shown are those of the records that lie beside them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from ordinate.lab.report.api import read_report, write_report

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


def test_where_a_curve_turns_and_where_it_has_risen():
    curve = {100: 2.0, 200: 1.9, 400: 2.05, 800: 2.15, 1600: 3.0}
    assert RESULTS.best(curve) == "2×"
    assert RESULTS.reach(curve, 0.1) == "5.66×"  # 2.1 lies in the middle between 2.05 and 2.15
    assert RESULTS.risen(curve, 1600) == "+1.00"
    assert RESULTS.best({100: 2.0, 200: 1.9}) == "at the longest, 2×"
    assert RESULTS.reach({100: 2.0, 200: 1.9}, 0.1) == "not up to 2×"


def test_the_prose_says_what_the_curves_do():
    """What is written, not computed: who leaves first, and what differs from the published curves."""
    ours = RESULTS.our_losses(read_report(RESULTS.RECORDS).summary)
    theirs = RESULTS.published_losses()
    for losses in (ours, theirs):
        at_twice = [
            next(loss for length, loss in one.items() if length >= 1012) - one[512]
            for one in losses.values()
        ]
        assert at_twice[0] > at_twice[1] > max(at_twice[2:])
        assert min(losses["alibi"].values()) == list(losses["alibi"].values())[-1]
    for name in ("sinusoidal", "rope"):
        assert ours[name][8192] - ours[name][512] == pytest.approx(
            theirs[name][8512] - theirs[name][512], rel=0.2
        )
    assert float(RESULTS.reach(ours["t5"], 0.1)[:-1]) > 3 * float(RESULTS.reach(theirs["t5"], 0.1)[:-1])
