"""An encoding registered in one call is known everywhere: to the commands, the page and a comparison."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest
import torch

import ordinate
from conformance import cases, oracles
from ordinate import Entry, catalog, create, entries, plots, register
from ordinate.cli.app import run
from ordinate.entry import Option
from ordinate.positions import as_positions, resolve, sequential
from ordinate.walkthrough.walk import step

_PAGE = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
_BLOCKS = re.findall(r"```python\n(.*?)```", _PAGE, flags=re.DOTALL)


def _kerple() -> tuple[type, Entry, Any]:
    """The class, the entry and the conformance case that CONTRIBUTING shows, from its text."""
    source, entry, oracle, case = _BLOCKS
    module = ModuleType("ordinate.bias.kerple")
    module.__package__ = "ordinate.bias"
    exec(source, vars(module))
    names = {**vars(cases), **vars(entries), "KERPLE": module.KERPLE, "Option": Option, "Entry": Entry}
    exec(oracle, vars(oracles))
    return module.KERPLE, eval(entry, names), eval(case, names)


KERPLE, KERPLE_ENTRY, KERPLE_CASE = _kerple()


class Spin(ordinate.PositionEncoding):
    """Rotate the two halves of a head by one angle for all pairs."""

    claims = frozenset({"shift invariance", "norm preservation"})

    def __init__(self, speed: float = 0.5, direction: Literal["left", "right"] = "left") -> None:
        super().__init__()
        self.speed, self.direction = speed, direction

    def rotate(self, q, k, q_positions=None, k_positions=None, *, lengths=None):
        places = resolve(q, k, q_positions, k_positions)
        return self._rotated(q, places.queries), self._rotated(k, places.keys)

    def _rotated(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        angle = (
            positions.double()[:, None, :, None] * self.speed * (1 if self.direction == "left" else -1)
        )
        a, b = x.double().chunk(2, dim=-1)
        cos, sin = angle.cos(), angle.sin()
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class Ramp(ordinate.PositionEncoding):
    """Add the position, divided by a thousand, to every channel."""

    claims = frozenset({"uniqueness"})

    def __init__(self, flat: bool = False) -> None:
        super().__init__()
        self.flat = flat

    def embed(self, x, positions=None):
        if positions is None:
            positions = sequential(x.shape[1])
        batch, seq, _ = x.shape
        places = as_positions("positions", positions, batch=batch, seq=seq, device=x.device)
        return x + (places.double()[..., None] / 1000).to(x.dtype) * (not self.flat)


SPIN = Entry(
    "spin", Spin, "rotate", False, 2026, "no paper", "q[p], k[p] turned by p·speed", "no model",
    options={"speed": Option(0.1, 2, 0.1), "direction": Option()},
    steps=lambda encoding, setting: [step("the angle of a step", ("speed",), [(encoding.speed,)])],
)  # fmt: skip
RAMP = Entry("ramp", Ramp, "embed", False, 2026, "no paper", "x[p] + p/1000", "no model")
ENTRIES = {entry.name: entry for entry in (KERPLE_ENTRY, SPIN, RAMP)}
named = pytest.mark.parametrize("name", ENTRIES)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    for entry in ENTRIES.values():
        register(entry)
    yield
    for name in ENTRIES:
        entries.unregister(name)


@named
def test_it_is_listed_and_made_by_name(capsys, monkeypatch, name):
    assert list(catalog)[-len(ENTRIES) :] == list(ENTRIES)
    assert type(create(name, num_heads=2, head_dim=8)) is ENTRIES[name].cls
    monkeypatch.setenv("COLUMNS", "100")
    assert run(["list"]) == 0
    assert f"\n{name} " in capsys.readouterr().out
    assert run(["list", "--json"]) == 0
    (line,) = [line for line in json.loads(capsys.readouterr().out) if line["name"] == name]
    assert line["class"] == ENTRIES[name].cls.__name__
    assert line["formula"] == ENTRIES[name].formula


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("kerple", "what head 0 adds to the scores"),
        ("spin", "the angle of a step"),
        ("ramp", "what is added to the embeddings"),
    ],
)
def test_show_explains_it_by_its_own_steps_or_by_its_hooks(capsys, name, title):
    walk = ordinate.show(name, length=4)
    assert title in [one.title for one in walk.steps]
    assert walk.formula == ENTRIES[name].formula
    assert run(["show", name]) == 0
    assert title in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("kerple", ["bias", "distance", "scores", "attention"]),
        ("spin", ["scores", "attention"]),
        ("ramp", ["codes", "channels", "profile", "scores", "attention"]),
    ],
)
def test_plot_draws_it(capsys, name, kinds):
    encoding = create(name, num_heads=2, head_dim=8)
    assert plots.kinds_of(encoding) == kinds
    assert plots.default_kind(encoding) == kinds[0]
    assert run(["plot", name, "--positions", "8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == kinds[0]


@named
def test_verify_measures_it_by_name(capsys, name):
    properties = ["--property", "shift", "--property", "determinism", "--property", "rows apart"]
    assert run(["verify", name, *properties, "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)["encodings"]
    assert report["name"] == name
    assert report["ok"]


def test_a_claim_that_is_no_property_is_a_sentence_of_verify(capsys):
    class Claimant(ordinate.PositionEncoding):
        """Claim what nothing measures."""

        claims = frozenset({"{speed}"})

    register(Entry("claimant", Claimant, "none", False, 2026, "no paper", "nothing", "no model"))
    try:
        assert run(["verify", "claimant"]) == 2
    finally:
        entries.unregister("claimant")
    first, _, hint = capsys.readouterr().err.splitlines()[-3:]
    assert first.startswith("claims of Claimant must be properties, got '{speed}'")
    assert hint == "hint: ordinate verify --help"


def test_a_comparison_trains_it(capsys, tmp_path):
    tiny = [
        "--task", "copy", "--train-length", "8", "--lengths", "1x,2x", "--steps", "3", "--batch", "2",
        "--d-model", "16", "--heads", "2", "--layers", "1", "--extend", "none", "--no-report", "--no-control",
    ]  # fmt: skip
    arms = ["kerple:max_distance=32", "spin", "ramp"]
    assert run(["compare", "--workers", "1", *arms, *tiny, "--out", str(tmp_path / "out")]) == 0
    captured = capsys.readouterr()
    assert all(arm in captured.out for arm in arms)
    assert "3 runs" in captured.err


@pytest.mark.parametrize(
    ("name", "moved", "spec"),
    [
        ("kerple", {"max_distance": 64}, "kerple:max_distance=64"),
        ("spin", {"speed": 0.7, "direction": "right"}, "spin:speed=0.7,direction=right"),
        ("ramp", {"flat": True}, "ramp:flat=true"),
    ],
)
def test_the_page_offers_its_options_and_draws_it(name, moved, spec):
    from ordinate.web import answers
    from ordinate.web.controls import all_controls, controls_of, names

    assert name in names()
    assert set(controls_of(name)) == set(moved) <= set(all_controls())
    for language in ("en", "zh"):
        answer = answers.draw(language, name, "scores", "", moved, {"dim": 8, "heads": 2, "distance": 9})
        assert answer.message == ""
        assert answer.picture.subject == spec
        assert answer.picture.kind == "scores"


def test_contributing_shows_kerple_as_it_must_be():
    encoding = KERPLE_CASE.build()
    (oracle,) = KERPLE_CASE.oracle(encoding)
    q = torch.zeros(1, 4, 5, 8, dtype=torch.float64)
    dense = encoding.bias(q, q).dense()[0]
    for head in range(4):
        for i in range(5):
            for j in range(5):
                assert math.isclose(
                    dense[head, i, j].item(), oracle.logit(head, [], i - j), abs_tol=1e-12
                )
    assert {"bucket coverage", *KERPLE.claims} >= {"shift invariance", "decay with distance"}
    report = ordinate.verify(
        create("kerple", num_heads=2), properties=["shift", "decay", "gradients", "gaps"]
    )
    assert report.ok


def test_the_catalog_is_read_only():
    with pytest.raises(TypeError, match="does not support item assignment"):
        catalog["rope"] = RAMP  # type: ignore[index]
    with pytest.raises(TypeError, match="does not support item deletion"):
        del catalog["rope"]  # type: ignore[attr-defined]


@pytest.fixture
def installed(monkeypatch) -> None:
    """Two packages that offer an encoding each, one of which cannot be imported."""
    points = [
        importlib.metadata.EntryPoint("other", f"{__name__}:OTHER", entries.GROUP),
        importlib.metadata.EntryPoint("broken", "no_such_package:ENTRY", entries.GROUP),
    ]
    monkeypatch.setattr(entries, "entry_points", lambda group: points)
    monkeypatch.setattr(entries._known, "_loads_packages", True)
    yield
    if "other" in entries._known._entries:
        entries.unregister("other")


OTHER = Entry("other", Ramp, "embed", False, 2026, "no paper", "x[p] + p/1000", "no model")


@pytest.mark.parametrize("look", [lambda: catalog["other"], lambda: catalog[list(catalog)[-1]]])
def test_entries_of_installed_packages_are_loaded_at_the_first_look_for_them(installed, look):
    assert catalog["rope"].cls is ordinate.RoPE
    assert "other" not in entries._known._entries
    with pytest.warns(
        RuntimeWarning, match=r"entry point 'broken' = 'no_such_package:ENTRY' is left out"
    ):
        found = look()
    assert found.cls.__name__ == "Ramp"
    assert create("other") is not None


def test_no_room_names_an_encoding_class():
    """Only the steps of `show`, which an entry names, are written for one class; rooms read the class and the entry."""
    own = {entry.cls.__module__ for entry in catalog.values() if not entry.is_scaling}
    own -= {"ordinate.encoding", *(entry.cls.__module__ for entry in ENTRIES.values())}
    source = Path(ordinate.__file__).parent
    steps = {entry.steps.partition(":")[0] for entry in catalog.values() if isinstance(entry.steps, str)}
    rooms = (
        "verification",
        "plots",
        "walkthrough",
        "lab",
        "cli",
        "web",
        "setting.py",
        "parts.py",
        "entry.py",
    )
    found = []
    for path in source.rglob("*.py"):
        parts = path.relative_to(source).with_suffix("").parts
        if path.relative_to(source).parts[0] not in rooms or ".".join(("ordinate", *parts)) in steps:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                package = ("ordinate", *parts)[: -node.level] if node.level else ()
                if ".".join((*package, node.module)) in own:
                    found.append(f"{'/'.join(parts)}:{node.lineno} imports {node.module}")
    assert found == []
