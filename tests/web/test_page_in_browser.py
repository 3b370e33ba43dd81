"""A real browser drives the page: what it shows is what the library computes, and it asks nobody else."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest

from ordinate import plots
from ordinate.web import answers

pytestmark = pytest.mark.browser
slow = pytest.mark.slow

LLAMA3 = {
    "model_type": "llama", "hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 2,
    "max_position_embeddings": 131072, "rope_theta": 500000.0,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 8192},
}  # fmt: skip

# The numbers of a figure as the browser holds them: packed arrays become lists.
_READ = """([selector, axis]) => {
  const plot = document.querySelector(selector + ' .js-plotly-plot');
  return plot ? plot.data.map(trace => trace[axis] === undefined ? null : Array.from(trace[axis], v => v)) : null;
}"""


class Watched:
    """A page in the browser, and everything it said and asked for."""

    def __init__(self, page: Any, address: str) -> None:
        self.page, self.address = page, address
        self.said: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda m: self.said.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))

    def numbers(self, selector: str, axis: str = "y") -> Any:
        return self.page.evaluate(_READ, [selector, axis])

    def wait_for(self, selector: str, expected: list, axis: str = "y", trace: int = 0) -> None:
        """Until the figure shows these numbers, exactly."""
        self.page.wait_for_function(
            """([selector, axis, trace, expected]) => {
              const plot = document.querySelector(selector + ' .js-plotly-plot');
              if (!plot || !plot.data[trace] || plot.data[trace][axis] === undefined) return false;
              const shown = Array.from(plot.data[trace][axis]);
              return shown.length === expected.length && shown.every((v, i) => v === expected[i]);
            }""",
            arg=[selector, axis, trace, expected],
        )

    def choose(self, selector: str, name: str) -> None:
        """Pick from a dropdown as a visitor does."""
        self.pause()
        self.page.click(f"{selector} input")
        self.page.get_by_role("option", name=name, exact=True).click()

    def pause(self) -> None:
        """As a hand does. A figure may stand before Gradio has noted that its answer is over, and what a script types
        in between is lost."""
        self.page.wait_for_timeout(400)

    def enter(self, selector: str, text: str) -> None:
        self.pause()
        self.page.fill(selector, text)
        self.page.press(selector, "Enter")

    def type(self, selector: str, text: str) -> None:
        """Key by key, as a visitor does."""
        self.page.click(f"{selector} textarea, {selector} input")
        self.page.keyboard.press("Control+A")
        self.page.keyboard.type(text)

    def tab(self, index: int) -> None:
        self.page.get_by_role("tab").nth(index).click()


@pytest.fixture
def shown(browser, server) -> Iterator[Watched]:
    """The page once its first figure stands; afterwards nothing may have gone wrong or outside."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000}, locale="en-US")
    context.set_default_timeout(60_000)
    watched = Watched(context.new_page(), server.address)
    watched.page.goto(server.address)
    watched.page.wait_for_selector("#plot-a .main-svg")
    yield watched
    outside = [url for url in watched.asked if not url.startswith((server.address, "data:", "blob:"))]
    context.close()
    assert outside == []
    assert watched.said == []
    assert "OUTSIDE" not in server.errors.read_text()


def curve(spec: str, kind: str, series: int = 0, **sizes: Any) -> list[float]:
    drawn = plots.picture(spec, kind, **{**answers.DEFAULTS, **sizes})
    return drawn.panels[0].series[series].y.tolist()


def test_the_page_opens_with_a_figure_the_library_computed(shown):
    assert shown.page.title() == "ordinate"
    drawn = plots.picture("rope", "rotation", **answers.DEFAULTS)
    tips = [[0, x] for x in drawn.panels[0].tracks[:, 3, 0].tolist()]
    assert shown.numbers("#plot-a", "x")[:3] == tips
    assert shown.page.locator("#panel-b").count() == 0 or not shown.page.locator("#panel-b").is_visible()


@slow
def test_the_rotation_plays_and_follows_its_slider(shown):
    tracks = plots.picture("rope", "rotation", **answers.DEFAULTS).panels[0].tracks

    def wait_for_step(step: int) -> None:
        for hand, x in enumerate(tracks[:, step, 0].tolist()):
            shown.wait_for("#plot-a", [0, x], "x", hand)

    said = "document.querySelector('#plot-a .slider-label').textContent"
    assert shown.page.evaluate(said) == "position 3"
    shown.page.locator("#plot-a .updatemenu-button").nth(0).click()
    shown.page.wait_for_function(f"{said} === 'position 7'")
    shown.page.locator("#plot-a .updatemenu-button").nth(1).click()
    shown.page.wait_for_timeout(300)
    stopped = shown.page.evaluate(said)
    shown.page.wait_for_timeout(400)
    assert shown.page.evaluate(said) == stopped != "position 31"
    wait_for_step(int(stopped.split()[1]))
    rail = shown.page.locator("#plot-a .slider-rail-touch-rect").bounding_box()
    shown.page.mouse.click(rail["x"] + rail["width"] - 8, rail["y"] + rail["height"] / 2)
    shown.page.wait_for_function(f"{said} === 'position 31'")
    wait_for_step(31)


@slow
def test_an_option_that_moves_redraws_the_figure(shown):
    shown.choose("#view-a", "score against distance")
    shown.wait_for("#plot-a", curve("rope", "scores"))
    shown.enter("#log_base-a input[type=number]", "6")
    shown.wait_for("#plot-a", curve("rope:base=1e6", "scores"))
    assert "rope:base=1e+06" in shown.page.inner_text("#command-a")
    shown.choose("#scaling-a", "linear")
    shown.wait_for("#plot-a", curve("rope:base=1e6+linear:factor=4", "scores"))


@slow
def test_two_encodings_side_by_side(shown):
    shown.page.click("#compare input")
    shown.page.wait_for_selector("#plot-b .main-svg")
    shown.choose("#view-a", "score against distance")
    shown.choose("#encoding-b", "t5")
    shown.page.wait_for_function("document.querySelector('#view-b input').value === 'buckets'")
    shown.choose("#view-b", "score against distance")
    shown.wait_for("#plot-a", curve("rope", "scores"))
    shown.wait_for("#plot-b", curve("t5", "scores"))
    shown.enter("#size-distance input[type=number]", "100")
    shown.wait_for("#plot-a", curve("rope", "scores", distance=100))
    shown.wait_for("#plot-b", curve("t5", "scores", distance=100))
    boxes = [shown.page.locator(f"#plot-{name} .main-svg").first.bounding_box() for name in "ab"]
    panels = [shown.page.locator(f"#panel-{name}").bounding_box() for name in "ab"]
    for box, panel in zip(boxes, panels, strict=True):
        assert (
            box["x"] + box["width"] <= panel["x"] + panel["width"] + 1
        )  # no figure reaches under the other


@slow
def test_figures_drawn_while_another_tab_is_open_fit_when_seen(shown):
    """Each tab's figure is drawn anew in the other language while the tab is hidden, and fills it afterwards."""
    shown.page.click("#compare input")
    shown.page.wait_for_selector("#plot-b .main-svg")
    shown.tab(1)
    shown.page.wait_for_selector("#shuffle-plot .main-svg")
    shown.tab(2)
    shown.page.fill("#config-text textarea", json.dumps(LLAMA3))
    shown.page.click("#config-read")
    shown.page.wait_for_selector("#config-plot .main-svg")
    shown.tab(3)
    shown.choose("#report-known", "demo")
    shown.page.wait_for_selector("#report-plot .main-svg")
    figures = ("plot-a", "plot-b", "shuffle-plot", "config-plot", "report-plot")
    for spoken in ("中文", "English"):
        titles = [shown.page.text_content(f"#{name} .gtitle") for name in figures]
        shown.page.get_by_text(spoken, exact=True).click()
        for name, title in zip(figures, titles, strict=True):
            shown.page.wait_for_function(
                "([name, before]) => document.querySelector(`#${name} .gtitle`)?.textContent !== before",
                arg=[name, title],
            )
        for tab, names in ((0, ("plot-a", "plot-b")), (1, ("shuffle-plot",)), (2, ("config-plot",)),
                           (3, ("report-plot",))):  # fmt: skip
            shown.tab(tab)
            for name in names:
                shown.page.wait_for_function(
                    """name => {
                      const frame = document.querySelector(`#${name} .js-plotly-plot`);
                      const drawn = document.querySelector(`#${name} .main-svg`);
                      return frame.clientWidth > 0 && Math.abs(drawn.clientWidth - frame.clientWidth) <= 1;
                    }""",
                    arg=name,
                    timeout=5_000,
                )
        shown.tab(0)


@slow
def test_on_a_phone_a_figure_keeps_its_width_and_moves_sideways(shown):
    shown.page.set_viewport_size({"width": 390, "height": 800})
    shown.page.reload()
    shown.page.wait_for_selector("#plot-a .legend")
    shown.pause()
    assert shown.page.evaluate("document.querySelector('#plot-a .main-svg').clientWidth") >= 700
    assert shown.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    hidden = """() => {
      const legend = document.querySelector('#plot-a .legend').getBoundingClientRect();
      const box = document.querySelector('#plot-a').getBoundingClientRect();
      return legend.right > box.right;
    }"""
    assert shown.page.evaluate(hidden)
    shown.page.evaluate("document.querySelector('#plot-a').scrollLeft = 10000")
    assert not shown.page.evaluate(hidden)


@slow
def test_another_encoding_has_its_own_options(shown):
    shown.choose("#encoding-a", "shaw")
    shown.page.wait_for_selector("#max_distance-a", state="visible")
    assert not shown.page.locator("#log_base-a").is_visible()
    assert shown.page.input_value("#max_distance-a input[type=number]") == "16"
    shown.choose("#encoding-a", "spec")
    shown.page.wait_for_selector("#spec-a textarea, #spec-a input", state="visible")
    shown.enter("#spec-a textarea, #spec-a input", "rope+alibi")
    shown.wait_for("#plot-a", curve("rope+alibi", "scores"))


@slow
def test_the_language_switches_labels_and_figures(shown):
    shown.page.get_by_text("中文", exact=True).click()
    shown.page.wait_for_function(
        "document.querySelector('#plot-a .gtitle')?.textContent.includes('旋转')"
    )
    for words in ("位置编码", "打乱句子", "模型配置", "实验报告"):
        assert shown.page.get_by_role("tab", name=words).is_visible()
    assert "频率缩放" in shown.page.inner_text("#scaling-a")
    shown.choose("#view-a", "得分随距离变化")
    shown.wait_for("#plot-a", curve("rope", "scores"))
    assert "距离" in shown.page.text_content("#plot-a .xtitle")
    shown.page.get_by_text("English", exact=True).click()
    shown.page.wait_for_function(
        "document.querySelector('#plot-a .xtitle')?.textContent.includes('distance')"
    )
    assert shown.page.get_by_role("tab", name="Shuffle a sentence").is_visible()


@slow
def test_bad_input_is_said_and_the_figure_stays(shown):
    before = shown.numbers("#plot-a", "x")
    for typed, sentence in (
        ("9999999999", "train_length must be from 2 to"),
        ("1", "got 1"),
        ("2.5", "whole number"),
    ):
        shown.enter("#size-train_length input", typed)
        shown.page.wait_for_function(
            "words => document.querySelector('#message-a')?.textContent.includes(words)", arg=sentence
        )
    assert shown.numbers("#plot-a", "x") == before
    shown.enter("#size-train_length input", "4096")
    shown.page.wait_for_function("!document.querySelector('#message-a')?.textContent.trim()")


@slow
def test_a_slider_typed_out_of_its_bounds_is_a_sentence_too(shown):
    before = shown.numbers("#plot-a", "x")
    shown.page.fill("#size-positions input[type=number]", "999999")
    shown.page.wait_for_function(
        "document.querySelector('#message-a')?.textContent.includes('positions must be from 2 to 512, got')"
    )
    assert shown.numbers("#plot-a", "x") == before
    assert shown.page.locator(".toast-wrap .error").count() == 0
    assert "Error" not in shown.page.inner_text("#panel-a")


@slow
def test_a_sentence_is_shuffled(shown):
    shown.tab(1)
    shown.page.wait_for_selector("#shuffle-plot .main-svg")
    shown.type("#sentence", "we read books")
    expected = answers.experiment("en", "rope", "", "we read books", 0).picture
    rows = expected.panels[3].matrix.tolist()
    shown.page.wait_for_function(
        """expected => {
          const plot = document.querySelector('#shuffle-plot .js-plotly-plot');
          const z = plot && plot.data[3] && plot.data[3].z;
          return z && z.length === expected.length && expected.every((row, i) => row.every((v, j) => z[i][j] === v));
        }""",
        arg=rows,
    )
    title = shown.page.text_content("#shuffle-plot .gtitle")
    shown.page.click("#shuffle-again")
    shown.page.wait_for_function(
        "before => document.querySelector('#shuffle-plot .gtitle')?.textContent !== before", arg=title
    )
    shown.type("#sentence", "a " * 30)
    shown.page.wait_for_function(
        "document.querySelector('#shuffle-message')?.textContent.includes('2 to 16 words, got 30')"
    )


@slow
def test_a_sentence_counts_however_it_is_entered(shown):
    """An input method inserts text without a key, and so does a paste; deleting is no letter either."""
    shown.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    shown.tab(1)
    shown.page.wait_for_selector("#shuffle-plot .main-svg")

    def wait_for_words(*words: str) -> None:
        shown.page.wait_for_function(
            """words => {
              const shown = document.querySelector('#shuffle-plot .js-plotly-plot')?.data[0].x;
              const expected = words.map((word, i) => `${i + 1} ${word}`);
              return shown && Array.from(shown).join('|') === expected.join('|');
            }""",
            arg=list(words),
            timeout=10_000,
        )

    shown.page.click("#sentence textarea, #sentence input")
    shown.page.keyboard.press("Control+A")
    shown.page.keyboard.insert_text("我爱读书")
    wait_for_words("我", "爱", "读", "书")
    shown.page.keyboard.press("Backspace")
    wait_for_words("我", "爱", "读")
    shown.page.keyboard.press("Home")
    shown.page.keyboard.press("Delete")
    wait_for_words("爱", "读")
    shown.page.evaluate("navigator.clipboard.writeText('the cat sat')")
    shown.page.keyboard.press("Control+A")
    shown.page.keyboard.press("Control+V")
    wait_for_words("the", "cat", "sat")


@slow
def test_a_dropped_config_shows_the_doctors_table(shown, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA3))
    shown.tab(2)
    shown.page.set_input_files("#config-file input[type=file]", path)
    shown.page.wait_for_selector("#config-plot .main-svg")
    facts = shown.page.inner_text("#config-facts")
    assert "context in positions: 131072" in facts
    assert "interpolated" in facts
    assert "8.0776" in shown.page.inner_text("#config-pairs") or "6.283185" in shown.page.inner_text(
        "#config-pairs"
    )
    shown.page.get_by_text("中文", exact=True).click()
    shown.page.wait_for_function(
        "document.querySelector('#config-facts')?.textContent.includes('所有层')"
    )
    shown.page.wait_for_function(
        "document.querySelector('#config-plot .gtitle')?.textContent.includes('波长')"
    )
    shown.page.get_by_text("English", exact=True).click()
    shown.page.wait_for_function(
        "document.querySelector('#config-facts')?.textContent.includes('all layers')"
    )
    shown.page.fill("#config-text textarea", '{"model_type": "<b>sly</b>"}')
    shown.page.click("#config-read")
    shown.page.wait_for_function(
        "document.querySelector('#config-message')?.textContent.includes('sly')"
    )
    assert shown.page.locator("#config-message b").count() == 0


@slow
def test_a_comparison_opens_with_its_curves(shown, runs_folder, tmp_path):
    path = tmp_path / "demo.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted((runs_folder / "demo").rglob("*")):
            archive.write(file, file.relative_to(runs_folder))
    found = answers.lab_report(runs_folder / "demo")
    shown.tab(3)
    shown.page.set_input_files("#report-zip input[type=file]", path)
    shown.page.wait_for_selector("#report-plot .main-svg")
    shown.wait_for("#report-plot", found.charts[0].panels[0].series[0].y.tolist())
    assert "alibi" in shown.page.inner_text("#report-table")
    shown.choose("#report-figure", found.charts[1].title)
    second = found.charts[1].panels[0].series[0].y.tolist()
    shown.wait_for("#report-plot", second)
    shown.page.get_by_text("中文", exact=True).click()
    shown.page.wait_for_function(
        "document.querySelector('#report-plot .gtitle')?.textContent.includes('各位置上的损失')"
    )
    shown.wait_for("#report-plot", second)
    shown.page.wait_for_function(
        "document.querySelector('#report-table')?.textContent.includes('可延长倍数')"
    )


@slow
def test_the_browser_itself_refuses_to_go_outside(browser, server):
    context = browser.new_context()
    page = context.new_page()
    page.goto(server.address)
    refused = page.evaluate("fetch('http://192.0.2.1/').then(() => 'went out', error => 'refused')")
    blocked = page.evaluate(
        """() => new Promise(done => {
          document.addEventListener('securitypolicyviolation', event => done(event.violatedDirective));
          fetch('http://192.0.2.1/').catch(() => {});
          setTimeout(() => done('nothing'), 3000);
        })"""
    )
    context.close()
    assert refused == "refused"
    assert blocked == "connect-src"
