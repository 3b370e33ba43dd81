"""The package has four layers, and a module imports none above its own; imports inside functions count."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import ordinate

SOURCE = Path(ordinate.__file__).parent

# What is not named here is the core: encodings, biases, attention, kernels and their helpers.
LAYERS = {
    "knowledge of encodings": (
        "entry",
        "entries",
        "parts",
        "setting",
        "spec",
        "verification",
        "walkthrough",
        "plots",
    ),
    "real models, and models trained to compare": ("hf", "lab"),
    "what people touch": ("cli", "web", "__main__"),
}
_NUMBER = {room: number for number, rooms in enumerate(LAYERS.values(), start=1) for room in rooms}


def _imported(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line and parts of the name, below ordinate, of each module that a file imports from the package."""
    package = list(path.relative_to(SOURCE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
            yield from ((node.lineno, name[1:]) for name in names if name[0] == "ordinate" and name[1:])
        elif isinstance(node, ast.ImportFrom):
            module = node.module.split(".") if node.module else []
            if node.level:
                module = package[: len(package) - node.level + 1] + module
            elif module[:1] == ["ordinate"]:
                module = module[1:]
            else:
                continue
            yield from ((node.lineno, [*module, alias.name]) for alias in node.names)


def test_no_module_imports_from_a_layer_above_its_own():
    found = []
    for path in SOURCE.rglob("*.py"):
        own = path.relative_to(SOURCE).with_suffix("").parts
        if own == ("__init__",):  # which offers everything
            continue
        for line, (room, *_) in _imported(path):
            above = _NUMBER.get(room, 0) > _NUMBER.get(own[0], 0)
            beside = {room, own[0]} == {"hf", "lab"}
            if above or beside:
                found.append(f"{'/'.join(own)}.py:{line} imports {room}")
    assert not found


def test_what_trains_and_what_reports_know_only_the_records_between_them():
    """`lab/run` and `lab/report` import neither each other nor, in what both import, one of the two."""
    found = []
    for path in (SOURCE / "lab").rglob("*.py"):
        own = _folder(path.relative_to(SOURCE).with_suffix("").parts)
        for line, name in _imported(path):
            if name[:1] == ["lab"] and _folder(name) not in {own, "lab"}:
                found.append(f"{path.relative_to(SOURCE)}:{line} imports {'.'.join(name)}")
    assert not found


def _folder(name: Sequence[str]) -> str:
    """Which part of the lab a module is in: ``run``, ``report``, or the part that both share."""
    return name[1] if len(name) > 1 and name[1] in {"run", "report"} else "lab"


def test_the_layers_name_rooms_that_are_there():
    rooms = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert set(_NUMBER) <= rooms
