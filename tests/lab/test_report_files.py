"""The files of a report: one page that needs nothing else, pictures, Markdown, JSON, the same every time."""

from __future__ import annotations

import html.parser
import json
import math
import os
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from synthetic_records import LENGTHS, REFUSED, rewrite, write_sweep
from test_report_summary import change_losses

from ordinate.lab.report import api as reporting
from ordinate.lab.report import figures
from ordinate.lab.report.api import read_report, write_report

HOSTILE = "<script>alert(1)</script>&{{plotly}}|`x`"


class Page(html.parser.HTMLParser):
    """What a browser would see of a page: its elements, and the text outside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag in ("script", "style"):
            self._inside = tag

    def handle_endtag(self, tag):
        if tag == self._inside:
            self._inside = ""

    def handle_data(self, data):
        if not self._inside:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("comparison")
    write_sweep(made)
    write_report(made)
    return made


def files(folder: Path) -> dict[str, bytes]:
    made = [
        folder / "report.html",
        folder / "report.md",
        folder / "report.json",
        *(folder / "figures").iterdir(),
    ]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in made}


def test_the_same_records_give_the_same_bytes(folder, tmp_path):
    shutil.copytree(folder / "runs", tmp_path / "again/runs")
    shutil.copy(folder / "sweep.json", tmp_path / "again")
    report = write_report(tmp_path / "again")
    assert files(tmp_path / "again") == files(folder)
    assert sorted(path.relative_to(tmp_path / "again").as_posix() for path in report.files) == sorted(
        files(folder)
    )


def test_the_page_asks_for_nothing_outside_itself(folder):
    page = Page((folder / "report.html").read_text(encoding="utf-8"))
    for tag, attributes in page.elements:
        assert tag not in ("link", "iframe", "object", "base", "form")
        for name in ("src", "href", "srcset", "action", "data"):
            assert (attributes.get(name) or "data:").startswith("data:"), (tag, attributes)
    (policy,) = [
        a["content"] for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy
    style = re.search(r"<style>(.*?)</style>", (folder / "report.html").read_text(), re.DOTALL)[1]
    assert "url(" not in style
    assert "@import" not in style


def test_the_page_has_every_arm_finding_figure_and_how_to_reproduce(folder):
    page, report = Page((folder / "report.html").read_text(encoding="utf-8")), read_report(folder)
    for arm in (*report.summary.arms, *report.summary.extensions):
        assert arm.label in page.text
        for column in report.narrative.columns if arm.extension is None else ():
            assert column.cell(arm).text in page.text
    for one in report.narrative.findings:
        assert " ".join(one.text.split()) in page.text
    plots = [a["id"] for _, a in page.elements if a.get("class") == "plot"]
    assert plots == [
        "plot-perplexity",
        "plot-positions",
        "plot-context",
        "plot-extensions",
        "plot-training",
    ]
    assert (
        "pip install '.[lab]' # in a clone of ordinate 0.1.0 ordinate compare none learned" in page.text
    )
    assert "2.13.0" in page.text
    assert REFUSED in page.text


def test_the_charts_in_the_page_carry_the_means_of_the_records(folder):
    text = (folder / "report.html").read_text(encoding="utf-8")
    (data,) = re.findall(r'<script id="charts" type="application/json">(.*?)</script>', text, re.DOTALL)
    figure = json.loads(data)["perplexity"]
    traces = {trace["name"]: trace for trace in figure["data"] if trace.get("showlegend")}
    arms = {arm.label: arm for arm in read_report(folder).summary.arms}
    assert set(traces) - set(arms) == {"learned (refused from 96)"}
    for name, trace in traces.items():
        arm = arms[name.partition(" ")[0]]
        assert trace["x"] == [one.length for one in arm.evaluations if one.loss]
        assert trace["y"] == pytest.approx(
            [one.perplexity for one in arm.evaluations if one.loss], rel=1e-6
        )
    crosses = [trace for trace in figure["data"] if trace.get("marker", {}).get("symbol") == "x-thin"]
    assert [cross["x"] for cross in crosses] == [[64]]  # where learned is refused
    layout = figure["layout"]
    assert (layout["xaxis"]["type"], layout["yaxis"]["type"]) == ("log", "log")
    assert (layout["shapes"][0]["x0"], layout["annotations"][0]["text"]) == (64, "trained at 64")


def curves(folder):
    """The curves of every chart of a comparison, by the chart's name."""
    return {
        chart.kind: chart.panels[0].series for chart in reporting.charts(read_report(folder).summary)
    }


def test_bands_are_one_standard_deviation_and_absent_with_one_seed(folder, tmp_path):
    def rope(where):
        return next(curve for curve in curves(where)["perplexity"] if curve.name == "rope")

    arm = next(arm for arm in read_report(folder).summary.arms if arm.label == "rope")
    losses = [one.loss for one in arm.evaluations]
    low, high = rope(folder).low.tolist(), rope(folder).high.tolist()
    assert low == pytest.approx([math.exp(loss.mean - loss.spread) for loss in losses])
    assert high == pytest.approx([math.exp(loss.mean + loss.spread) for loss in losses])
    write_sweep(tmp_path, ["rope"], seeds=(0,))
    assert rope(tmp_path).low is rope(tmp_path).high is None


def test_positions_and_context_are_drawn_with_the_margins_of_their_tests(tmp_path):
    write_sweep(tmp_path, ["rope"], seeds=(0,), extensions=())
    arm = read_report(tmp_path).summary.arms[0]
    (curve,) = curves(tmp_path)["positions"]
    assert curve.high.tolist() == pytest.approx(
        [one.loss.mean + one.loss.margin() for one in arm.furthest.positions]
    )
    assert (curve.low < curve.high).all()
    (curve,) = curves(tmp_path)["context"]
    past = [one for one in arm.evaluations if one.length > 64]
    assert curve.x.tolist() == [96, 128, 256, 512]
    assert curve.low.tolist() == pytest.approx([one.gain.mean - one.gain.margin() for one in past])


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (10.3, 11.8),
        (10.0, 10.01),
        (5, 5),
        (1, 1e9),
        (4.9, 5.1),
        (99, 101),
        (5, 60),
        (1e-3, 2),
        (7.01, 9.99),
    ],
)
def test_an_axis_has_enough_numbers_and_not_too_many(low, high):
    ticks = figures.log_ticks(low, high)
    assert all(low <= tick <= high for tick in ticks)
    assert 4 <= len(ticks) <= 12 or low == high
    assert list(ticks) == sorted(set(ticks))


def test_the_last_tokens_are_shown_at_every_length_with_their_margins(folder):
    page = Page((folder / "report.html").read_text(encoding="utf-8")).text
    text = (folder / "report.md").read_text(encoding="utf-8")
    arm = next(arm for arm in read_report(folder).summary.arms if arm.label == "t5")
    for one in arm.evaluations:
        shown = f"{one.last_loss.mean:.3f} ± {one.last_loss.margin():.3f}"
        assert shown in page
        assert shown in text


def test_further_test_sets_have_columns_of_their_own(tmp_path):
    write_sweep(tmp_path, ["rope"], seeds=(0, 1), accuracy=True, extensions=())
    for seed in (0, 1):
        rewrite(
            tmp_path / f"runs/rope-{seed}",
            lambda line: (
                {**line, "variants": {"sparse": [0.9 if line["length"] == 64 else 0.5, 0.01]}}
                if line["kind"] == "evaluation"
                else line
            ),
        )
    write_report(tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "sparse (% at 64 → 512)" in text
    assert "90.0 → 50.0" in text
    data = json.loads((tmp_path / "report.json").read_text())
    assert data["encodings"][0]["lengths"][-1]["variants"]["sparse"]["mean"] == 0.5


def test_training_curves_are_means_of_neighbouring_steps(tmp_path):
    write_sweep(tmp_path, ["rope"], seeds=(0,), extensions=(), steps=240)
    arm = read_report(tmp_path).summary.arms[0]
    (curve,) = curves(tmp_path)["training"]
    assert len(curve.x) == 60
    assert curve.x[0] == 2.5  # of steps 1, 2, 3 and 4
    assert curve.y[0] == pytest.approx(sum(loss.mean for _, loss in arm.training[:4]) / 4)


def test_pictures_are_png_of_a_legible_size_and_no_two_curves_look_alike(folder):
    for name, content in files(folder).items():
        if name.endswith(".png"):
            assert content.startswith(b"\x89PNG")
            assert struct.unpack(">II", content[16:24]) == (1440, 864)
    for drawn in curves(folder).values():
        assert len({(curve.style.color, curve.style.dash) for curve in drawn}) == len(drawn)


def test_many_arms_are_still_told_apart(tmp_path):
    specs = [f"rope:base={10**power}" for power in range(2, 16)]
    write_sweep(tmp_path, specs, seeds=(0,), extensions=())
    for drawn in curves(tmp_path).values():
        looks = [(curve.style.color, curve.style.dash, curve.style.marker % 9) for curve in drawn]
        assert len(set(looks)) == len(looks) == 14


def test_markdown_has_the_tables_and_points_to_pictures_that_exist(folder):
    text = (folder / "report.md").read_text(encoding="utf-8")
    for path in re.findall(r"!\[.*?\]\((.*?)\)", text):
        assert (folder / path).is_file()
    assert re.search(r"\| alibi \| ≥ 8× \| −2\.7 ± 1\.\d % \|", text)
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert len(tables) == 4  # side by side, extensions, loss by length, last tokens by length
    for table in tables:
        assert len({line.replace("\\|", "").count("|") for line in table.splitlines()}) == 1


def test_json_has_every_number_and_no_nan(folder):
    data = json.loads((folder / "report.json").read_text(), parse_constant=pytest.fail)
    by_name = {arm["encoding"]: arm for arm in data["encodings"] if arm["extension"] is None}
    assert [one["length"] for one in by_name["rope"]["lengths"]] == list(LENGTHS)
    assert by_name["rope"]["in_length_loss"]["seeds"] == 3
    assert by_name["learned"]["lengths"][1] == {
        "length": 96, "loss": None, "perplexity": None, "last_loss": None, "rise": None,
        "windowed_gain": None, "accuracy": None, "last_accuracy": None, "fall": None, "variants": {},
        "positions": [], "refused": REFUSED,
    }  # fmt: skip
    assert data["left_out"] == []


def test_a_run_that_diverged_leaves_no_nan_in_the_json(tmp_path):
    write_sweep(tmp_path, ["rope", "alibi"], seeds=(0,), extensions=())
    change_losses(tmp_path / "runs/rope-0", dict.fromkeys(LENGTHS, float("nan")))
    write_report(tmp_path)
    data = json.loads((tmp_path / "report.json").read_text(), parse_constant=pytest.fail)
    assert data["encodings"][0]["diverged_seeds"] == [0]


def test_text_from_the_records_cannot_become_part_of_the_page(tmp_path):
    write_sweep(tmp_path, ["learned", "rope"], seeds=(0,), extensions=())

    def spoil(line):
        if line.get("refused"):
            return {**line, "refused": HOSTILE}
        return {**line, "name": HOSTILE} if line["kind"] == "baseline" else line

    rewrite(tmp_path / "runs/learned-0", spoil)
    write_report(tmp_path)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert HOSTILE in page.text
    assert "alert(1)</script" not in text
    assert [tag for tag, _ in page.elements].count("script") == 4
    assert r"\<script\>alert(1)\</script\>&\{\{plotly\}\}\|\`x\`" in (tmp_path / "report.md").read_text()


def test_figures_of_an_earlier_report_do_not_stay_behind(tmp_path):
    write_sweep(tmp_path, ["rope"], seeds=(0,))
    write_report(tmp_path)
    (tmp_path / "figures/notes.txt").write_text("mine")
    (tmp_path / "figures/mine.png").write_text("mine")
    shutil.rmtree(tmp_path / "runs")
    write_sweep(tmp_path, ["rope"], seeds=(0,), extensions=())
    write_report(tmp_path)
    assert not (tmp_path / "figures/extensions.png").exists()
    assert (tmp_path / "figures/notes.txt").exists()
    assert (tmp_path / "figures/mine.png").read_text() == "mine"


def test_pictures_where_no_report_was_are_somebodys_own(tmp_path):
    write_sweep(tmp_path, ["rope"], seeds=(0,), extensions=())
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures/extensions.png").write_text("mine")
    write_report(tmp_path)
    assert (tmp_path / "figures/extensions.png").read_text() == "mine"


def test_losses_beyond_any_perplexity_are_drawn_without_overflow(tmp_path):
    write_sweep(tmp_path, ["rope"], seeds=(0, 1), extensions=())
    for seed in (0, 1):
        change_losses(tmp_path / f"runs/rope-{seed}", {512: 5e4 + seed})
    write_report(tmp_path)


def test_tasks_have_a_figure_of_right_answers(tmp_path):
    write_sweep(tmp_path, ["rope", "alibi"], seeds=(0, 1), accuracy=True, extensions=())
    write_report(tmp_path)
    assert (tmp_path / "figures/accuracy.png").exists()
    text = (tmp_path / "report.md").read_text()
    assert "accuracy at 8×" in text
    assert "loss at 8×" not in text  # a multiple of a loss that may be next to nothing
    assert "still learning (nats since step 32)" in text


def browser() -> str:
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        reason = "no Chromium here: apt-get install chromium"
        if os.environ.get("ORDINATE_BROWSER") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@pytest.mark.slow
def test_a_browser_draws_every_figure_under_the_pages_own_policy(folder, tmp_path):
    done = subprocess.run(
        [
            browser(), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}",
            "--virtual-time-budget=10000", "--enable-logging=stderr", "--dump-dom", (folder / "report.html").as_uri(),
        ],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr  # no script failed, nothing was refused by the policy
    seen = Page(done.stdout)
    drawn = [a for tag, a in seen.elements if tag == "svg" and "main-svg" in (a.get("class") or "")]
    assert len(drawn) >= 5
    legend = " ".join(re.findall(r'data-unformatted="([^"]*)"', done.stdout))
    for arm in read_report(folder).summary.arms:
        assert arm.label in legend
