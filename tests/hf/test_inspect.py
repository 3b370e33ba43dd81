"""The config doctor, as a person and as a program see it."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any

import pytest

from ordinate.cli.app import run
from ordinate.hf import diagnose, from_config

LLAMA31: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
    "max_position_embeddings": 131072, "rope_theta": 500000.0,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 8192},
}  # fmt: skip
QWEN: dict[str, Any] = {
    "model_type": "qwen2", "hidden_size": 3584, "num_attention_heads": 28, "num_hidden_layers": 28,
    "max_position_embeddings": 32768, "rope_theta": 1000000.0,
    "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
}  # fmt: skip


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def write(values: dict[str, Any]) -> str:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(values), encoding="utf-8")
        return str(path)

    return write


def test_llama_3_1_keeps_29_pairs_blends_6_and_divides_29():
    (group,) = diagnose(from_config(LLAMA31)).groups
    assert [(b.first, b.last, b.fate) for b in group.bands] == [
        (0, 28, "kept"), (29, 34, "blended"), (35, 63, "interpolated")]  # fmt: skip
    pair = group.pairs[63]
    assert pair.scaled == pytest.approx(2 * math.pi / 3.068925989e-7, rel=1e-9)
    assert pair.scaled == pytest.approx(8 * pair.wavelength, rel=1e-12)
    assert group.pairs[0].turns == pytest.approx(8192 / (2 * math.pi))


def test_a_context_before_scaling_is_told_apart_from_one_after():
    before = diagnose(from_config(QWEN))
    after = diagnose(from_config({**QWEN, "max_position_embeddings": 131072}))
    assert before.effective_context == after.effective_context == 131072
    assert any("is the length before scaling; the scaling reaches 131072" in w for w in before.warnings)
    assert after.warnings == ()
    too_far = diagnose(from_config({**QWEN, "max_position_embeddings": 262144}))
    assert too_far.effective_context == 131072
    assert any(
        "promises more than the scaling reaches, 32768 x 4 = 131072" in w for w in too_far.warnings
    )


def _with(**changes: Any) -> dict[str, Any]:
    return {**QWEN, "rope_scaling": {**QWEN["rope_scaling"], **changes}}


WARNINGS = [
    (_with(attention_factor=1.0), "attention factor 1 is not YaRN's 0.1 ln(4) + 1 = 1.13863"),
    (_with(original_max_position_embeddings=65536), "the original length 65536 is longer than"),
    (
        {**QWEN, "rope_scaling": {"type": "linear", "factor": 4.0}},
        "linear scaling has no original length",
    ),
    (_with(short_factor=[1.0]), "rope_scaling.short_factor has no effect with rope_type 'yarn'"),
]


@pytest.mark.parametrize(("values", "words"), WARNINGS, ids=[words for _, words in WARNINGS])
def test_contradictions_are_warned_of(values: dict[str, Any], words: str):
    warnings = diagnose(from_config(values)).warnings
    assert any(words in warning for warning in warnings), warnings


def test_p_rope_leaves_pairs_still_and_dynamic_ones_are_shown_at_the_context():
    gemma = diagnose(from_config({"model_type": "gemma4_text", "num_hidden_layers": 6})).groups[1]
    assert [(b.first, b.last, b.fate) for b in gemma.bands] == [(0, 63, "kept"), (64, 255, "still")]
    dynamic = diagnose(from_config({**QWEN, "rope_scaling": {"type": "dynamic", "factor": 2.0}}))
    (group,) = dynamic.groups
    assert group.length == dynamic.effective_context == 65536
    assert [b.fate for b in group.bands] == ["kept", "blended", "interpolated"]


def test_the_report_names_everything_that_matters(write, capsys):
    assert run(["inspect", write(QWEN)]) == 0
    captured = capsys.readouterr()
    out = re.sub(r"\s+", " ", captured.out)
    assert captured.out.startswith("Qwen 2  qwen2 · 28 layers\n")
    for words in (
        "context 131072 positions, frequencies trained at 32768",
        "rotation base 1000000, half layout, 128 of 128 channels turn",
        "scaling YaRN: factor 4, original max positions 32768, beta fast 32, beta slow 1, hf dialect",
        "factor 1.13863 on cos and sin (logits of turned channels x 1.29648); softmax scale 0.0883883",
        "24 of 64 pairs do not complete a turn within 32768 positions",
        "! max_position_embeddings 32768 is the length before scaling",
    ):
        assert words in out
    assert re.search(
        r"^ +63 +5,063,256 +20,253,023 +0\.006472 +interpolated", captured.out, re.MULTILINE
    )
    assert captured.err == ""
    assert max(map(len, captured.out.splitlines())) <= 80


@pytest.mark.parametrize("columns", [20, 30, 40, 49, 60])
def test_a_narrow_terminal_loses_nothing(columns: int, write, capsys, monkeypatch):
    reports = []
    for width in (200, columns):
        monkeypatch.setenv("COLUMNS", str(width))
        assert run(["inspect", write(QWEN), "--read"]) == 0
        reports.append(capsys.readouterr().out)
    assert max(map(len, reports[1].splitlines())) <= columns
    wide, narrow = (Counter(re.sub(r"\s", "", report)) for report in reports)
    assert {x: narrow[x] for x in "0123456789.,:;!()"} == {x: wide[x] for x in "0123456789.,:;!()"}
    # Pairs that are stacked repeat the names of the columns.
    assert all(narrow[letter] >= count for letter, count in wide.items())
    assert reports[1].count("interpolated") >= 2


def _notes(**values: Any) -> list[str]:
    return [note for note in diagnose(from_config(values)).notes if "complete a turn" in note]


def test_notes_say_what_becomes_of_slow_pairs():
    (plain,) = _notes(**{**QWEN, "rope_scaling": None})
    assert plain.endswith("past that length they meet angles they were never trained on")
    (yarn,) = _notes(**QWEN)
    assert yarn.endswith("the scaling keeps them within the angles of that length up to 131072")
    (llama,) = _notes(**LLAMA31)  # divided by 8 and read at 16 times the length
    assert llama.endswith("at 131072 positions 29 of them go past the angles of that length")


def test_notes_name_the_layers_and_leave_out_those_that_do_not_see_so_far():
    (note,) = _notes(model_type="gpt_oss", num_hidden_layers=4)
    assert note.startswith("layers 1, 3: ")
    scaled = {"rope_type": "linear", "factor": 8.0}
    assert _notes(**{**QWEN, "rope_scaling": scaled}) == []
    (note,) = _notes(model_type="gemma3_text", num_hidden_layers=6, rope_scaling=scaled)
    assert note.startswith("layers 5: 55 of 128 pairs do not complete a turn within 131072 positions")
    (note,) = _notes(model_type="gemma3_text", num_hidden_layers=6)
    assert note.startswith("layers 5: ")


def test_deepseeks_factor_is_said_to_be_on_the_whole_head(write, capsys):
    scaling = {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
               "original_max_position_embeddings": 4096}  # fmt: skip
    values = {"model_type": "deepseek_v3", "max_position_embeddings": 163840, "rope_scaling": scaling}
    assert run(["inspect", write(values)]) == 0
    out = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "interleaved layout, 64 of 192 (from 128) channels turn" in out
    assert "deepseek dialect" in out
    assert "softmax scale 0.135234, in which 1.87385 from mscale_all_dim, on the whole head" in out


@pytest.mark.parametrize(
    "name", ["t5", "bloom", "gpt2", "whisper", "falcon", "roberta", "llama4_text", "mpt"]
)
def test_families_of_every_kind_have_a_report(name: str, write, capsys):
    assert run(["inspect", write({"model_type": name}), "--read"]) == 0
    out = capsys.readouterr().out
    assert "\nread\n" in out
    assert "the family's default" in re.sub(r"\s+", " ", out)


def test_json_is_all_there_is_on_stdout(write, capsys):
    assert run(["inspect", write(QWEN), "--json"]) == 0
    captured = capsys.readouterr()
    parsed = json.loads(captured.out)
    assert parsed["effective_context"] == 131072
    assert len(parsed["groups"][0]["pairs"]) == 64
    assert parsed["groups"][0]["bands"][0] == {"first": 0, "last": 23, "fate": "kept"}
    read = {item["key"]: item["value"] for item in parsed["read"]}
    assert read["rope_theta"] == 1000000.0
    assert captured.err == ""


def test_every_pair_is_listed_when_asked_for(write, capsys):
    assert run(["inspect", write(QWEN), "--pairs"]) == 0
    out = capsys.readouterr().out
    for index in range(64):
        assert re.search(rf"^ +{index} +[\d.,]+ +[\d.,]+ +[\d.,]+ +\w+", out, re.MULTILINE), index


def test_a_plot_is_written(write, tmp_path, capsys):
    target = tmp_path / "pairs.png"
    assert run(["inspect", write(QWEN), "--plot", str(target)]) == 0
    assert target.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().err == f"wrote {target}\n"
    assert run(["inspect", write({"model_type": "t5"}), "--plot", str(target)]) == 2
    assert "CONFIG must have a rotation to draw" in capsys.readouterr().err


MISUSE = [
    ({"model_type": "llama", "rope_scaling": {"type": "warp"}}, [], "rope_scaling.type must be one of default, linear"),
    ({"model_type": "nobody"}, [], "model_type must be a family that ordinate reads, got 'nobody'"),
    ({"model_type": "lama"}, [], "say so with --family NAME; did you mean 'llama'?"),
    ({"model_type": "llama"}, ["--dialect", "klingon"], "--dialect must be one of hf, paper, minimind"),
    ({"model_type": "llama"}, ["--dialect", "paper"], "--dialect must be left out where there is no YaRN, got 'paper'"),
    ({"model_type": "x"}, ["--family", "lama"], "--family must be a model_type that ordinate reads, got 'lama'"),
    ({"model_type": "llama"}, ["--plot", "/no/p.png"], "--plot must be a file that can be written, got /no/p.png: No"),
    ({"model_type": "llama"}, ["--plot", "x.docx"], "--plot must end in .png, .svg, .html, got 'x.docx'"),
]  # fmt: skip


@pytest.mark.plain
@pytest.mark.parametrize(("values", "options", "sentence"), MISUSE, ids=[m[2] for m in MISUSE])
def test_misuse_is_one_sentence_a_blank_line_and_a_hint(write, capsys, values, options, sentence):
    assert run(["inspect", write(values), *options]) == 2
    captured = capsys.readouterr()
    first, blank, last = captured.err.splitlines()
    assert captured.out == ""
    assert sentence in first
    assert blank == ""
    assert last.startswith("hint: ")


@pytest.mark.plain
@pytest.mark.parametrize("command", ["inspect", "extend --to 8192"])
def test_a_config_that_is_not_there_is_refused_by_its_argument(capsys, command):
    assert run([*command.split(), "no{where}.json"]) == 2
    first = capsys.readouterr().err.splitlines()[0]
    assert first == "CONFIG must be a config.json or a folder with one, got 'no{where}.json'"


def test_help_ends_with_examples_that_run(write, tmp_path, capsys, monkeypatch):
    write(QWEN)
    model = tmp_path / "path" / "to" / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(QWEN), encoding="utf-8")
    assert run(["inspect", "--help"]) == 0
    text = capsys.readouterr().out
    examples = re.findall(
        r"^ +ordinate (inspect.*?)(?:  +.*)?$", text[text.index("Examples:") :], re.MULTILINE
    )
    assert len(examples) >= 6
    monkeypatch.chdir(tmp_path)
    for example in examples:
        assert run(example.split()) == 0, example
        capsys.readouterr()
