"""What the page answers, asked without a browser: numbers are the library's, bounds hold, both languages are whole."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import runpy
import zipfile
from pathlib import Path

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

import ordinate
from ordinate import plots
from ordinate.hf.config.api import from_config
from ordinate.hf.doctor import diagnose
from ordinate.setting import Setting
from ordinate.web import answers, texts
from ordinate.web.controls import OWN, all_controls, controls_of, defaults_of, names, spec_of
from ordinate.web.records_zip import unpack

LLAMA3 = {
    "model_type": "llama", "hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 2,
    "max_position_embeddings": 131072, "rope_theta": 500000.0,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 8192},
}  # fmt: skip


def ask(encoding="rope", kind="", typed="", options=None, sizes=None, language="en") -> answers.Answer:
    return answers.draw(language, encoding, kind, typed, options or {}, sizes or {})


@pytest.mark.parametrize("encoding", [name for name in names() if name != OWN])
def test_every_view_of_every_encoding_draws_the_librarys_numbers(encoding):
    kinds, first = answers.views(encoding, "", {}, {})
    assert first in kinds
    for kind in kinds:
        answer = ask(encoding, kind)
        stretch = {"factor": all_controls()["factor"].default} if kind == "scalings" else {}
        expected = plots.picture(encoding, kind, **answers.DEFAULTS, **stretch)
        assert answer.message == ""
        assert answer.picture is not None
        assert answer.picture.to_dict() == expected.to_dict()


def test_options_reach_the_encoding_and_the_command_draws_the_same():
    options = {"log_base": 6.0, "layout": "interleaved", "scaling": "yarn", "factor": 16.0}
    answer = ask("rope", "wavelengths", options=options, sizes={"dim": 32, "train_length": 2048})
    spec = "rope:base=1e+06,layout=interleaved+yarn:factor=16"
    assert f"ordinate plot {spec} --kind wavelengths" in answer.spec
    series = answer.picture.panels[0].series[-1]
    rope = ordinate.create(spec, head_dim=32, max_positions=2048)
    torch.testing.assert_close(series.y, 2 * math.pi / rope.inv_freq())


@pytest.mark.parametrize("encoding", [name for name in names() if controls_of(name)])
def test_every_option_can_be_moved_to_both_ends(encoding):
    for option in controls_of(encoding):
        control = all_controls()[option]
        ends = control.choices or ((control.low, control.high) if control.is_slider else (True, False))
        for value in ends:
            answer = ask(encoding, "scores", options={option: value, "scaling": "linear"})
            if answer.message:  # two options can contradict each other, which is then said
                assert (encoding, option, value) in [("t5", "max_distance", 1)], answer.message
                assert "max_distance must be greater than the 16 exact buckets" in answer.message


def test_bare_options_are_left_out_of_the_spec():
    for name in names():
        if name != OWN:
            assert spec_of(name, "", defaults_of(name)) == name
    assert spec_of("alibi", "", {"symmetric": True}) == "alibi:symmetric=true"
    assert spec_of("sinusoidal", "", {"layout": "half"}) == "sinusoidal:layout=half"
    assert spec_of(OWN, " rope+alibi ", {}) == "rope+alibi"


BAD = [
    ({"sizes": {"positions": 100000}}, "positions must be from 2 to 512, got 100000"),
    ({"sizes": {"dim": 0}}, "dim must be from 2 to 256, got 0"),
    ({"sizes": {"dim": 63}}, "head_dim must be even, channels turn in pairs, got 63"),
    ({"sizes": {"heads": float("nan")}}, "heads must be from 1 to 32, got nan"),
    ({"sizes": {"train_length": None}}, "train_length must be a number from 2 to 1048576, got 'None'"),
    ({"options": {"log_base": 400}}, "log_base must be from 1 to 8, got 400"),
    ({"encoding": OWN, "typed": "rop"}, "unknown encoding 'rop' in spec 'rop'; did you mean 'rope'"),
    ({"encoding": OWN, "typed": ""}, "spec must be text such as 'rope:base=1e6', got ''"),
    ({"encoding": OWN, "typed": "t5:max_distance=99999999"}, "max_distance of an example must be at most 65536"),
    ({"encoding": OWN, "typed": "r" * 300}, "spec must be at most 200 characters, got 300"),
    ({"encoding": "learned", "sizes": {"train_length": 1048576}}, "numbers in the table of learned must be at most"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "sentence"), BAD, ids=[sentence[:40] for _, sentence in BAD])
def test_bad_input_is_a_sentence_in_either_language_and_draws_nothing(given, sentence):
    answer = ask(**given)
    assert answer.figure is None
    assert sentence in answer.message
    chinese = ask(**given, language="zh").message
    assert re.search(r"[一-鿿]", chinese), chinese


ODD = (
    "rope:base=nan", "rope:base=1e-300", "rope:base=1e308", "rope:sections=(1,)", "rope:rotary_dim=7", "rope+rope",
    "rope+yarn:factor=1e308", "rope+linear:factor=nan", "rope+yarn:factor=4,beta_fast=1e-9", "t5:num_buckets=0",
    "t5:max_distance=17+rope", "shaw:max_distance=-1", "alibi:heads=3", "alibi:max_exponent=1e9",
    "learned:offset=65536", "sinusoidal+learned+rope+t5",
)  # fmt: skip
_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.lists(st.integers(), max_size=2),
)


@pytest.mark.plain  # what is sent is not of the types that are promised
@hypothesis.settings(max_examples=150)
@hypothesis.given(
    encoding=st.one_of(st.sampled_from(names()), _VALUES),
    kind=_VALUES,
    typed=st.one_of(st.text(max_size=40), st.sampled_from(ODD)),
    options=st.dictionaries(st.sampled_from(sorted(all_controls())), _VALUES),
    sizes=st.dictionaries(st.sampled_from(sorted(answers.LIMITS)), _VALUES),
)  # fmt: skip
def test_whatever_is_sent_is_drawn_or_refused_in_one_line(encoding, kind, typed, options, sizes):
    answer = answers.draw("en", encoding, kind, typed, options, sizes)
    assert (answer.figure is None) == bool(answer.message)
    assert "\n" not in answer.message


def test_the_permutation_experiment_is_the_librarys():
    from ordinate.plots.attention import shuffle

    answer = answers.experiment("en", "rope", "", "a cat sees a dog", 3)
    view = Setting.of_picture(dim=64, heads=4)
    rope = view.encoding("rope")
    placed = shuffle(rope, ["a", "cat", "sees", "a", "dog"], view.around(rope), seed=3)
    assert answer.picture is not None
    torch.testing.assert_close(answer.picture.panels[3].matrix, placed.before)
    torch.testing.assert_close(answer.picture.panels[4].matrix, placed.after)
    assert f"by {placed.change:.1e} with rope" in answer.picture.note
    other = answers.experiment("en", "rope", "", "a cat sees a dog", 4)
    assert other.picture is not None
    assert other.picture.note != answer.picture.note


@pytest.mark.parametrize(
    ("sentence", "words_"),
    [
        ("", "text must have 2 to 16 words, got 0"),
        ("w " * 17, "got 17"),
        ("x" * 201, "characters of the sentence must be at most 200, got 201"),
    ],
)
def test_a_sentence_has_bounds(sentence, words_):
    answer = answers.experiment("en", "rope", "", sentence, 0)
    assert answer.figure is None
    assert words_ in answer.message


def test_the_doctors_table_is_the_doctors():
    found = answers.doctor("en", json.dumps(LLAMA3))
    expected = diagnose(from_config(LLAMA3))
    (group,) = expected.groups
    assert len(found.pairs) == len(group.pairs) == 32
    for row, pair in zip(found.pairs, group.pairs, strict=True):
        assert row[1] == pair.index
        assert row[2] == pytest.approx(pair.wavelength, rel=1e-6)
        assert row[3] == pytest.approx(pair.scaled, rel=1e-6)
        assert row[4] == pytest.approx(pair.turns, rel=1e-6)
        assert row[5] == pair.fate
    assert "context in positions: 131072" in found.facts
    assert found.figure is not None
    assert "上下文" in answers.doctor("zh", json.dumps(LLAMA3)).facts


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (None, "nothing has been given yet"),
        ("  ", "nothing has been given yet"),
        ("{", "Expecting property name"),
        ("[1]", "config must be a JSON object, got list"),
        ('{"model_type": "llama", "rope_theta": -3}', "rope_theta"),
        ("[" * 100_000, "config is nested too deeply"),
        ("x" * (answers.MAX_CONFIG + 1), "characters of a config must be at most 262144, got 262145"),
    ],
)
def test_a_config_that_cannot_be_read_is_one_sentence(config, sentence):
    found = answers.doctor("en", config)
    assert sentence in found.message
    assert "\n" not in found.message
    assert found.facts == ""


def test_a_config_cannot_write_into_the_page():
    # The doctor says model_type and other text of a config; none of it may become markup.
    assert answers.plain("<img src=x onerror=alert(1)>") == "&#60;img src=x onerror=alert(1)&#62;"
    assert answers.plain("a_b & `c`") == "a&#95;b &#38; &#96;c&#96;"


def _synthetic():
    """The made-up records the tests of the lab's report use."""
    path = Path(__file__).resolve().parents[1] / "lab" / "synthetic_records.py"
    found = importlib.util.spec_from_file_location("synthetic_records", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_a_lab_report_shows_its_curves_and_its_table(tmp_path):
    from ordinate.lab.report.api import read_report
    from ordinate.lab.report.figures import charts

    _synthetic().write_sweep(tmp_path / "out", specs=("rope", "alibi"), seeds=(0, 1))
    found = answers.lab_report(tmp_path / "out")
    report = read_report(tmp_path / "out")
    assert found.refusal is None
    expected = charts(report.summary)
    assert [picture.to_dict() for picture in found.charts] == [chart.to_dict() for chart in expected]
    for picture in found.charts:
        plots.figure_of(picture, "plotly")
        plots.figure_of(picture)
    assert [row[0] for row in found.rows] == ["rope", "alibi"]
    assert len(found.columns) == len(found.rows[0])


def test_no_answer_without_a_report():
    assert str(answers.lab_report(None).refusal) == "nothing has been given yet"


def test_a_folder_without_a_comparison_is_one_sentence(tmp_path):
    found = answers.lab_report(tmp_path)
    assert found.refusal
    assert "\n" not in str(found.refusal)
    assert found.charts == ()


def test_a_folder_with_a_name_of_any_bytes_is_refused_in_text_that_can_be_sent(tmp_path):
    refusal = answers.lab_report(tmp_path / "caf\udce9").refusal
    assert refusal
    message = texts.refusal_text(refusal, "en")
    assert message.encode().endswith(
        rb"caf\udce9 must hold a comparison, got a folder without sweep.json"
    )


def test_an_archive_cannot_reach_outside_its_folder(tmp_path):
    path = tmp_path / "a.zip"
    inside = {"x/sweep.json": "{}", "x/runs/a-0/config.json": "{}", "x/runs/a-0/notes.txt": "no"}
    outside = {
        "../../evil.json": "no",
        "x/runs/../../evil/config.json": "no",
        "/etc/runs/b/config.json": "{}",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**inside, **outside}.items():
            archive.writestr(name, content)
    out = tmp_path / "deep" / "out"
    unpack(path, out)
    written = sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file())
    assert written == [
        "a.zip", "deep/out/runs/a-0/config.json", "deep/out/runs/b/config.json", "deep/out/sweep.json",
    ]  # fmt: skip


def test_every_text_has_both_languages():
    for key, (english, chinese) in texts.TEXTS.items():
        assert english, key
        assert chinese, key
    for control in (*all_controls(), *answers.LIMITS):
        assert control in texts.TEXTS
    for kind in plots.KINDS:
        assert f"kind_{kind}" in texts.TEXTS


@pytest.mark.parametrize("encoding", [name for name in names() if name != OWN])
def test_every_label_of_every_picture_has_chinese(encoding):
    kinds, _ = answers.views(encoding, "", {}, {})
    allowed = {"NTK", "YaRN", "Llama 3", ""}
    for kind in kinds:
        drawn = texts.picture_in(plots.picture(encoding, kind, **answers.DEFAULTS), "zh")
        labels = [drawn.title, drawn.note]
        for panel in drawn.panels:
            labels += [panel.title, panel.x.label, panel.y.label]
            labels += [series.name for series in getattr(panel, "series", ())]
            labels += [mark.label for mark in getattr(panel, "marks", ())]
            labels += list(getattr(panel, "names", ())) if hasattr(panel, "tracks") else []
        for label in labels:
            assert label in allowed or re.search(r"[一-鿿]", label), (kind, label)


def test_translation_changes_words_and_no_numbers():
    drawn = plots.picture("alibi", "bias", positions=4)
    chinese = texts.picture_in(drawn, "zh")
    assert [p.matrix.nan_to_num().tolist() for p in chinese.panels] == [
        p.matrix.nan_to_num().tolist() for p in drawn.panels
    ]
    assert chinese.subject == drawn.subject
    assert texts.picture_in(drawn, "en") is drawn


@pytest.mark.parametrize("typed", ODD)
def test_an_odd_spec_is_drawn_or_refused_in_one_line(typed):
    for kind in plots.KINDS:
        answer = ask(OWN, kind, typed)
        assert (answer.figure is None) == bool(answer.message)
        assert "\n" not in answer.message


@pytest.mark.parametrize(
    "spec",
    [
        "clipped:max_distance=+1000000000",
        "learned:max_positions=65536,d_model=65536",
        "shaw:max_distance=0xffff,head_dim=1024",
    ],
)
def test_a_typed_spec_of_gigabytes_is_refused_in_a_sentence(spec):
    refused = answers.draw("en", "spec", "", spec, {}, {})
    assert refused.figure is None
    assert "must be at most" in refused.message


def test_the_shuffle_of_alibi_says_what_it_does_in_both_languages():
    english, chinese = (
        answers.experiment(code, "alibi", "", "we read books", 0) for code in ("en", "zh")
    )
    assert "without positions, by" in english.figure.layout.title.text
    assert "(symmetric, for attention without a mask)" in english.figure.layout.title.text
    assert "对称形式，不加掩码" in chinese.figure.layout.title.text
    assert "Outputs" not in chinese.figure.layout.title.text


ENGLISH = re.compile(r"[a-z]{3,} [a-z]{2,} [a-z]{2,}")  # three words in a row


def test_the_doctor_speaks_chinese_all_through():
    found = answers.doctor("zh", json.dumps({**LLAMA3, "num_hidden_layers": 4}))
    facts = [line for line in found.facts.splitlines() if not line.startswith(("- 编码", "- 频率缩放"))]
    assert [line for line in facts if ENGLISH.search(line)] == []
    assert {row[0] for row in found.pairs} == {"所有层"}
    assert {row[-1] for row in found.pairs} == {"保持", "混合", "插值"}
    assert "各通道对的波长" in found.figure.layout.title.text
    learned = answers.doctor(
        "zh", '{"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2}'
    ).facts
    assert "可学习的表" in learned


def test_a_lab_report_speaks_chinese_but_for_its_findings(tmp_path):
    path = Path(__file__).resolve().parents[1] / "lab" / "synthetic_records.py"
    runpy.run_path(str(path))["write_sweep"](tmp_path / "demo", specs=("rope", "alibi"), seeds=(0, 1))
    report = answers.lab_report(tmp_path / "demo")
    english = answers.in_language(report, "en")
    assert (english.columns, [chart.note for chart in english.charts]) == (
        report.columns,
        [chart.note for chart in report.charts],
    )
    said = answers.in_language(report, "zh")
    assert [column for column in said.columns if not re.search(r"[一-鿿]", column)] == []
    for chart in said.charts:
        panel = chart.panels[0]
        for words_shown in (chart.title, chart.note, panel.x.label, panel.y.label):
            assert re.search(r"[一-鿿]", words_shown), words_shown
            assert not ENGLISH.search(words_shown), words_shown
    assert "英文原文" in said.summary


@pytest.mark.plain  # with shapes checked, some of these are refused by the checker
@pytest.mark.parametrize(
    "spec",
    ["rope:bases=3", "none:base=3", "rope:base", "rope:base=1,base=2", "alibi+yarn:factor=4", "rope:base=3+yarn",
     "rope+linear:factor=2+ntk:factor=2", "rope:base=x", "rope:base=0.5", "rope:layout=quarter",
     "clipped:max_distance=99999999", "shaw:max_distance=65536,head_dim=1024", "t5:bidirectional=3"],
)  # fmt: skip
def test_every_refusal_of_a_spec_is_chinese_in_chinese(spec):
    message = ask(OWN, typed=spec, language="zh").message
    assert re.search(r"[一-鿿]", message)
    assert not ENGLISH.search(message), message


@pytest.mark.parametrize("config", ["[1]", "{", "[" * 100_000, "x" * 300_000])
def test_every_refusal_of_a_config_is_chinese_in_chinese(config):
    assert re.search(r"[一-鿿]", answers.doctor("zh", config).message)


def test_scalings_side_by_side_stretch_as_far_as_the_factor_says():
    answer = ask("rope", "scalings", options={"scaling": "yarn", "factor": 64.0})
    assert "stretched 64 times" in answer.picture.note
    assert "--factor 64" in answer.spec


@pytest.mark.parametrize(
    ("encoding", "kind", "shown"),
    [("alibi", "bias", 64), ("t5", "buckets", 64), ("rope", "rotation", 256)],
)
def test_a_picture_of_less_than_was_asked_for_says_so_in_both_languages(encoding, kind, shown):
    assert (
        f"the first {shown} of 512 positions"
        in ask(encoding, kind, sizes={"positions": 512}).picture.note
    )
    chinese = ask(encoding, kind, sizes={"positions": 512}, language="zh").figure.layout.title.text
    assert f"只画 512 个位置中的前 {shown} 个" in chinese
    assert "first" not in ask(encoding, kind, sizes={"positions": shown}).picture.note
