"""The page's own API, over HTTP to a server that users would start: its numbers are the library's."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import ordinate
from ordinate import plots
from ordinate.hf.config.api import from_config
from ordinate.hf.doctor import diagnose
from ordinate.setting import Setting
from ordinate.web import answers
from ordinate.web.controls import all_controls, defaults_of
from ordinate.web.serve import MAX_SESSIONS

# A server has to start, so the quick tests ask one question of each kind.
slow = pytest.mark.slow


def given(encoding: str, kind: str, language: str = "English", typed: str = "", **changes) -> list:
    start = defaults_of(encoding) if encoding in ordinate.catalog else {}
    options = [
        changes.get(name, start.get(name, control.default)) for name, control in all_controls().items()
    ]
    sizes = [changes.get(name, value) for name, value in answers.DEFAULTS.items()]
    return [language, encoding, kind, typed, *options, *sizes]


def figure(answer: dict) -> dict:
    assert answer["type"] == "plotly"
    return json.loads(answer["plot"])


def numbers(value) -> list:
    """A list as plotly sends it, packed or not."""
    if isinstance(value, dict):
        import base64

        import numpy

        flat = numpy.frombuffer(base64.b64decode(value["bdata"]), dtype=value["dtype"])
        return flat.reshape(
            [int(n) for n in value["shape"].split(",")] if "shape" in value else -1
        ).tolist()
    return value


CASES = [
    ("rope", "scores", {"log_base": 6.0}, "rope:base=1e+06"),
    ("rope", "wavelengths", {"scaling": "yarn", "factor": 8.0}, "rope+yarn:factor=8"),
    ("alibi", "scores", {"symmetric": True, "heads": 12}, "alibi:symmetric=true"),
    (
        "t5",
        "distance",
        {"bidirectional": True, "max_distance": 64},
        "t5:bidirectional=true,max_distance=64",
    ),
    ("sinusoidal", "channels", {"layout": "half", "dim": 32}, "sinusoidal:layout=half"),
]


@slow
@pytest.mark.parametrize("panel", ["a", "b"])
@pytest.mark.parametrize(("encoding", "kind", "changes", "spec"), CASES)
def test_the_numbers_of_a_figure_are_the_librarys(server, panel, encoding, kind, changes, spec):
    drawn, command, message = server.call(f"draw_{panel}", *given(encoding, kind, **changes))
    sizes = {name: changes.get(name, value) for name, value in answers.DEFAULTS.items()}
    expected = plots.picture(spec, kind, **sizes)
    assert message == ""
    assert f"ordinate plot {spec} --kind {kind}" in command
    traces = figure(drawn)["data"]
    series = expected.panels[0].series
    assert len(traces) == len(series)
    for trace, curve in zip(traces, series, strict=True):
        assert numbers(trace["y"]) == curve.y.tolist()
        assert numbers(trace["x"]) == curve.x.tolist()


@slow
def test_a_matrix_is_the_librarys_too(server):
    drawn, *_ = server.call("draw_a", *given("alibi", "bias", positions=6))
    expected = plots.picture("alibi", "bias", **{**answers.DEFAULTS, "positions": 6})
    for trace, panel in zip(figure(drawn)["data"], expected.panels, strict=True):
        sent = [[x for x in row if x is not None] for row in trace["z"]]
        assert sent == [[x for x in row if x == x] for row in panel.matrix.tolist()]


@slow
def test_choosing_another_encoding_brings_its_options_and_views(server):
    answer = server.call(
        "choose_a", *given("rope", "rotation")[:1], "shaw", *given("rope", "rotation")[2:]
    )
    _, view, *options = answer[: 2 + len(all_controls())]
    assert [
        name for name, option in zip(all_controls(), options, strict=True) if option.get("visible")
    ] == ["max_distance"]
    assert options[list(all_controls()).index("max_distance")]["value"] == 16
    assert [kind for _, kind in view["choices"]] == plots.kinds_of(Setting.of_picture().encoding("shaw"))
    drawn = figure(answer[2 + len(all_controls())])
    expected = plots.picture("shaw", "bias", **answers.DEFAULTS)
    assert [numbers(row) for row in drawn["data"][0]["z"]] == expected.panels[0].matrix.tolist()


@slow
def test_a_spec_is_not_wrong_before_it_is_typed(server):
    *_, message = server.call("choose_a", "English", "spec", *given("rope", "rotation")[2:])
    assert message == ""
    *_, message = server.call("choose_a", "English", "spec", "", "rop", *given("rope", "rotation")[4:])
    assert "unknown encoding" in message


def test_bad_input_over_the_api_is_a_sentence_and_leaves_the_figure(server):
    for changes, sentence in (
        ({"train_length": 10**9}, "train_length must be from 2 to 1048576, got 1000000000"),
        ({"train_length": None}, "train_length must be a number from 2 to 1048576, got 'None'"),
        ({"positions": 10**9}, "positions must be from 2 to 512, got 1000000000"),
        ({"positions": "many"}, "positions must be a number from 2 to 512, got 'many'"),
        ({"log_base": -1}, "log_base must be from 1 to 8, got -1"),
        ({"log_base": [4]}, "log_base must be a number from 1 to 8, got '[4]'"),
        ({"layout": "quarter"}, "layout must be one of half, interleaved, got 'quarter'"),
        ({"layout": {}}, "layout must be one of half, interleaved, got '{}'"),
        ({"dim": 7}, "head_dim must be even, channels turn in pairs, got 7"),
    ):
        drawn, command, message = server.call("draw_a", *given("rope", "rotation", **changes))
        assert message == answers.plain(sentence)
        assert drawn["__type__"] == command["__type__"] == "update"
    for encoding, typed in (("rop", ""), (["rope"], ""), ("spec", 7)):
        _, _, message = server.call("draw_a", {}, encoding, *given("rope", "rotation", typed=typed)[2:])
        assert "must be" in message
    *_, message = server.call("choose_a", "English", {}, *given("rope", "rotation")[2:])
    assert "encoding must be one of" in message
    assert "Traceback" not in server.errors.read_text()


def test_the_experiment_and_the_doctor_answer_over_the_api(server):
    drawn, message = server.call("shuffle", "English", "a cat sees a dog", "rope")
    assert message == ""
    expected = answers.experiment("en", "rope", "", "a cat sees a dog", 0).picture
    assert [numbers(row) for row in figure(drawn)["data"][3]["z"]] == expected.panels[3].matrix.tolist()
    config = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1}
    message, facts, _, table, *_ = server.call("doctor", "English", json.dumps(config))
    assert message == ""
    assert facts.startswith("### Llama")
    pairs = diagnose(from_config(config)).groups[0].pairs
    assert [row[2] for row in table["value"]["data"]] == [
        float(f"{pair.wavelength:.7g}") for pair in pairs
    ]


@slow
def test_a_report_of_the_folder_it_was_started_with_opens_and_no_other(server):
    message, summary, *_, table = server.call("report", "English", "demo")
    assert message == ""
    assert "### " in summary
    assert [row[0] for row in table["value"]["data"]] == ["rope", "alibi"]


@slow
def test_a_comparison_whose_folder_has_a_name_of_any_bytes_opens(server, runs_folder):
    if len(list(runs_folder.iterdir())) == 1:
        pytest.skip("this file system takes names of UTF-8 alone")
    message, summary, *_ = server.call("report", "English", "caf\\udce9")
    assert message == ""
    assert "### " in summary


def ask(address: str, **headers: str) -> tuple[int, dict, str]:
    """Status, headers and text of one answer, also of a refusal."""
    request = urllib.request.Request(
        address, headers={name.replace("_", "-"): v for name, v in headers.items()}
    )
    try:
        answer = urllib.request.urlopen(request, timeout=30)
    except urllib.error.HTTPError as refused:
        answer = refused
    with answer:
        return answer.status, dict(answer.headers.items()), answer.read().decode()


def test_other_websites_get_no_answer(server):
    """By a name of their own for this machine, from a page of theirs, and before they send a file."""
    for path in ("", "config", "gradio_api/info"):
        status, _, text = ask(server.address + path, Host="evil.example")
        assert (status, text) == (403, "Host must be a name of this machine, got 'evil.example'")
        status, headers, text = ask(server.address + path, Origin="http://evil.example")
        assert (status, text) == (403, "Origin must be the page's own, got 'http://evil.example'")
        assert not [name for name in headers if name.lower().startswith("access-control")]
    preflight = urllib.request.Request(
        server.address + "gradio_api/upload", method="OPTIONS",
        headers={"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"},
    )  # fmt: skip
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(preflight, timeout=30)
    _, headers, _ = ask(server.address, Origin=server.address.rstrip("/"))
    assert not [name for name in headers if name.lower().startswith("access-control")]


@slow
def test_memory_does_not_grow_with_the_number_of_visitors(server):
    """Each call without a session is a visitor of its own to Gradio, who holds 0.2 MiB of every one."""

    def resident() -> float:
        pages = int((Path("/proc") / str(server.pid) / "statm").read_text().split()[1])
        return pages * 4096 / 2**20

    def visit(times: int) -> float:
        for turn in range(times):
            server.call("draw_a", *given("rope", "scores", log_base=4 + turn / times))
        return resident()

    before = visit(MAX_SESSIONS + 50)
    assert visit(200) - before < 0.1 * 200


def test_every_answer_tells_the_browser_to_stay_here(server):
    for path in ("", "theme.css", "config"):
        with urllib.request.urlopen(server.address + path, timeout=30) as answer:
            policy = answer.headers["content-security-policy"]
            assert "default-src 'self'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "http" not in policy


@slow
def test_the_page_names_no_font_or_script_of_anybody_else(server):
    with urllib.request.urlopen(server.address, timeout=30) as answer:
        text = answer.read().decode()
    assert not re.search(r"<(?:script|link)[^>]+(?:src|href)=[\"']?(?:https?:)?//(?!127\.0\.0\.1)", text)
    with urllib.request.urlopen(server.address + "theme.css", timeout=30) as answer:
        assert not re.search(r"url\([\"']?https?:|@import|@font-face", answer.read().decode())


@slow
def test_the_server_itself_connects_to_nobody(server):
    server.call("draw_a", *given("rope", "rotation"))
    assert "OUTSIDE" not in server.errors.read_text()
