"""Records from anywhere: whatever a file holds or is, one sentence names it, and nothing waits or crashes."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
import zipfile

import pytest
from synthetic_records import rewrite, sign, write_sweep

from ordinate.cli.app import run
from ordinate.lab.config import RunConfig, run_names
from ordinate.lab.records import Sweep, read_run
from ordinate.lab.report.api import read_report
from ordinate.lab.report.figures import charts
from ordinate.lab.report.gather import gather
from ordinate.lab.run import checkpoint
from ordinate.lab.run.sweep import plan, run_all
from ordinate.web import answers, records_zip

pytestmark = pytest.mark.plain  # a shape checker would be the first to mind

HUGE = 10**400
FILES = ("sweep.json", "runs/rope-0/config.json", "runs/rope-0/environment.json",
         "runs/rope-0/metrics.jsonl", "runs/rope-0/result.json", "runs/rope-0/model.safetensors")  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    write_sweep(tmp_path, ["rope", "alibi"], seeds=(0,), extensions=(), steps=8)
    return tmp_path


def outcome(folder) -> str:
    """What became of rope's run, or of the comparison as a whole."""
    try:
        left_out = gather(folder).left_out
        said = left_out[0].reason if left_out else ""
    except ValueError as error:
        said = str(error)
    assert "\n" not in said
    assert len(said) < 1000
    return said


def fields(value, path=()):
    """Every place in a JSON value where a value stands that is no object."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from fields(inner, (*path, key))
    else:
        yield path


def with_value(value, path, new):
    if not path:
        return new
    return {**value, path[0]: with_value(value[path[0]], path[1:], new)}


@pytest.mark.parametrize(
    "new",
    [HUGE, -HUGE, "[" * 200_000 + "]" * 200_000, '"\\ud800"', "1e999"],
    ids=["huge", "negative", "nested", "half a letter", "overflow"],
)
@pytest.mark.parametrize("name", ["sweep.json", "runs/rope-0/config.json", "runs/rope-0/result.json"])
def test_no_value_that_is_json_crashes_a_report_in_any_field(folder, name, new):
    path = folder / name
    whole = json.loads(path.read_text())
    for field in fields(whole):
        text = json.dumps(with_value(whole, field, "@@"))
        path.write_text(text.replace('"@@"', str(new)))
        if "config" in name:
            sign(folder / "runs/rope-0")
        if "result" not in name or field[0] in ("state", "reason", "sha256"):
            assert outcome(folder), field


@pytest.mark.parametrize(
    "new", [HUGE, float("nan"), -1, True, "x", [[1]], {"a": 1}], ids=lambda new: f"{new!r:.8}"
)
@pytest.mark.parametrize("kind", ["baseline", "train", "validation", "cost"])
def test_a_value_that_cannot_be_is_damage_in_every_field_of_the_metrics(folder, kind, new):
    read = {"name", "accuracy", "step", "loss", "grad_norm", "parameters", "encoding_parameters",
            "tokens_per_second", "peak_memory_bytes", "operations", "bytes"}  # fmt: skip
    run = folder / "runs/rope-0"
    before = (run / "metrics.jsonl").read_bytes()
    line = next(one for one in map(json.loads, before.splitlines()) if one["kind"] == kind)
    for name in read & set(line) - ({"name"} if new == "x" else set()):
        (run / "metrics.jsonl").write_bytes(before)
        rewrite(run, lambda one, name=name: {**one, name: new} if one["kind"] == kind else one)
        assert outcome(folder), name


def with_half_a_letter(content: bytes) -> bytes:
    """As raw bytes, in the last text of the file; Python's JSON takes it."""
    before, between, after = content.rpartition(b': "')
    return before + between + b"\xed\xa0\x80" + after


def with_a_letter_of_latin_1(content: bytes) -> bytes:
    return with_half_a_letter(content).replace(b"\xed\xa0\x80", b"\xe9")


def in_utf_16(content: bytes) -> bytes:
    return content.decode().encode("utf-16")


@pytest.mark.parametrize("spoiled", [with_half_a_letter, with_a_letter_of_latin_1, in_utf_16])
@pytest.mark.parametrize("name", FILES[:5])
def test_a_record_that_is_not_strictly_utf_8_is_refused(folder, name, spoiled):
    path = folder / name
    path.write_bytes(spoiled(path.read_bytes()))
    if name.startswith("runs/") and "result" not in name:
        sign(folder / "runs/rope-0")
    said = outcome(folder)
    assert "'utf-8' codec can't decode byte" in said or "must end with a whole line" in said
    assert path.name in said
    assert run(["report", str(folder)]) == (2 if name == "sweep.json" else 0)


def as_pipe(path):
    os.mkfifo(path)


def as_zeros(path):
    path.symlink_to("/dev/zero")


def as_folder(path):
    path.mkdir()


def as_link_to_nothing(path):
    path.symlink_to("nowhere")


def as_much(path):
    with path.open("wb") as file:
        file.truncate(1 << 40)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("replaced", [as_pipe, as_zeros, as_folder, as_link_to_nothing, as_much])
def test_what_is_no_file_of_records_is_refused_and_never_waited_for(folder, name, replaced):
    (folder / name).unlink(missing_ok=True)
    replaced(folder / name)
    before = time.monotonic()
    assert name.rpartition("/")[2] in outcome(folder)
    assert time.monotonic() - before < 5


@pytest.mark.parametrize("replaced", [as_pipe, as_zeros, as_folder])
def test_a_checkpoint_that_is_no_file_is_damage(tmp_path, replaced):
    replaced(tmp_path / "checkpoint.safetensors")
    with pytest.raises(ValueError, match=r"checkpoint.safetensors must be a regular file"):
        checkpoint.load(tmp_path / "checkpoint.safetensors")


def as_link(run):
    run.rename(run.parent / ".elsewhere")
    run.symlink_to(".elsewhere")


def as_file(run):
    shutil.rmtree(run)
    run.write_text("x")


def as_lost(run):
    shutil.rmtree(run)
    run.symlink_to("nowhere")


@pytest.mark.parametrize("replaced", [as_link, as_file, as_lost])
def test_a_damaged_run_behind_a_link_or_a_file_is_named_and_run_again(tmp_path, replaced):
    small = {"steps": 3, "d_model": 16, "num_heads": 2, "num_layers": 1, "batch": 2, "lengths": (8,)}
    sweep = plan(arms=["rope"], task="copy", train_length=8, extensions=(), **small)
    run_all(sweep, tmp_path)
    run = tmp_path / "runs/rope-0"
    replaced(run)
    if run.is_dir():
        assert read_run(run).state == "finished"  # runs may lie on another disk
        (run / "metrics.jsonl").write_text("{}")
    assert read_run(run).state == "damaged"
    run_all(sweep, tmp_path)
    assert read_run(run).state == "finished"
    assert not run.is_symlink()
    assert replaced is not as_link or (tmp_path / "runs/.elsewhere/result.json").exists()


@pytest.mark.parametrize("kind", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_archive_whose_content_is_damaged_is_refused(folder, kind):
    path = folder / "records.zip"
    with zipfile.ZipFile(path, "w", kind) as archive:
        archive.write(folder / "sweep.json", "sweep.json")
    whole, refused = path.read_bytes(), 0
    for at in range(30, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xA5]) + whole[at + 1 :])
        try:
            records_zip.unpack(path, folder / "out")
        except ValueError:
            refused += 1
    assert refused > 20


def test_four_thousand_seeds_are_read_in_a_moment(folder):
    sweep = json.loads((folder / "sweep.json").read_text())
    (folder / "sweep.json").write_text(json.dumps({**sweep, "seeds": list(range(4000))}))
    before = time.monotonic()
    assert len(gather(folder).left_out) == 2 * 4000 - 2
    assert answers.lab_report(folder).charts
    assert time.monotonic() - before < 15


def test_lengths_and_extensions_do_not_multiply_beyond_all_bounds():
    many = {"lengths": list(range(1, 40_001)), "extensions": ["yarn"] * 40_000}
    with pytest.raises(
        ValueError, match="lengths times extensions must be at most 10000, got 1600040000"
    ):
        RunConfig.from_dict({**RunConfig("rope").to_dict(), **many})


def test_names_of_many_arms_take_no_longer_each():
    arms = [f"rope:base={'1' * 200}{number}" for number in range(5000)]
    before = time.monotonic()
    assert len(set(run_names(arms, [0]).values())) == 5000
    assert time.monotonic() - before < 2
    assert max(map(len, run_names(arms, [0]).values())) < 200


@pytest.mark.parametrize("lost", ["loss", "validation"])
def test_models_without_any_loss_have_a_report(tmp_path, lost):
    """A solved task may come to exactly 0."""
    write_sweep(tmp_path, ["rope", "alibi"], seeds=(0, 1, 2), steps=8)
    for folder in (tmp_path / "runs").iterdir():
        if lost == "loss":
            rewrite(folder, lambda one: {**one, "loss": 0.0} if one["kind"] == "evaluation" else one)
        else:
            rewrite(
                folder,
                lambda one: {**one, "loss": one["step"] - 4} if one["kind"] == "validation" else one,
            )
    assert "nats" in answers.lab_report(tmp_path).summary


def test_a_seed_that_is_far_worse_than_the_others_is_drawn(tmp_path):
    """One standard deviation below the mean of three such losses is no loss."""
    write_sweep(tmp_path, ["rope", "alibi"], seeds=(0, 1, 2), extensions=(), steps=8)
    rewrite(
        tmp_path / "runs/rope-1", lambda one: {**one, "loss": 1e5} if one.get("length") == 512 else one
    )
    (chart,) = (one for one in charts(read_report(tmp_path).summary) if one.kind == "perplexity")
    assert chart.panels[0].series[0].low.min() == 1.0
    assert chart.panels[0].y.ticks


def test_a_command_that_cannot_be_taken_apart_is_refused(folder):
    sweep = json.loads((folder / "sweep.json").read_text())
    (folder / "sweep.json").write_text(json.dumps({**sweep, "command": "ordinate 'compare"}))
    with pytest.raises(ValueError, match="cannot be read: No closing quotation"):
        Sweep.load(folder)


@pytest.mark.parametrize("call", ["os.mkdir", "tempfile.mkstemp", "os.fsync"])
def test_a_disk_that_cannot_be_written_to_is_told_in_a_sentence(tmp_path, monkeypatch, capsys, call):
    def read_only(*_args, **_kwargs):
        name = (str(tmp_path),) if call != "os.fsync" else ()
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), *name)

    words = "compare rope --task copy --steps 2 --train-length 8 --d-model 16 --heads 2 --layers 1 --out"
    with monkeypatch.context() as patch:
        patch.setattr(call, read_only)
        assert run([*words.split(), str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "--out must be a folder that can be written to, got" in said
    assert "Read-only file system" in said


def test_resume_of_records_that_cannot_be_is_one_sentence(folder, capsys):
    whole = json.loads((folder / "sweep.json").read_text())
    for field in fields(whole):
        text = json.dumps(with_value(whole, field, "@@")).replace('"@@"', str(HUGE))
        (folder / "sweep.json").write_text(text)
        assert run(["compare", "--resume", "--out", str(folder)]) == 2, field
        assert "sweep.json must be JSON, cannot be read: digits" in capsys.readouterr().err


def test_config_fields_have_a_least_value():
    config = RunConfig("rope").to_dict()
    for name, value in config.items():
        if type(value) is int and name != "format":
            with pytest.raises(ValueError, match=f"{name} must be at least"):
                RunConfig.from_dict({**config, name: -1})
