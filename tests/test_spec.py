"""A spec may come from anybody: its sizes, its depth and its length are refused before memory is filled."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import ordinate
from ordinate import catalog, create
from ordinate.entries import example_specs, parse
from ordinate.spec import read_value

pytestmark = pytest.mark.plain

SIZES = {"d_model": 64, "num_heads": 4, "head_dim": 16, "max_positions": 64}
MEMORY = 2**32

_IN_LITTLE_MEMORY = """
import sys
from ordinate import create
for line in sys.stdin.read().splitlines():
    spec, _, size = line.partition(" ")
    sizes = {"d_model": 64, "num_heads": 4, "head_dim": 16, "max_positions": 64}
    if size:
        sizes = {size: 10**9}
    try:
        create(spec, **sizes)
    except (ValueError, TypeError) as error:
        assert len(str(error)) < 1000 and "\\n" not in str(error), error
"""


def options_of(name: str) -> list[str]:
    entry = catalog[name]
    return [] if name == "none" else list(inspect.signature(entry.cls).parameters)


def hostile_specs() -> list[str]:
    """Every option of every encoding and scaling, as large as a typing error or malice makes it."""
    specs = []
    for whole in example_specs(16).values():
        name = whole.partition(":")[0].rpartition("+")[2]
        for option in options_of(name):
            others = [o for o in whole.partition(":")[2].split(",") if o and not o.startswith(option)]
            kept = ",".join(others) if "factor=(" not in whole else ""
            for value in (10**9, 2**40, 10**30, -(10**9), "1e9", "1e400", "(1000000000,7)"):
                extra = f"{option}={value}" + (f",{kept}" if kept else "")
                specs.append(f"{whole.partition(':')[0]}:{extra}")
    return specs


def test_no_option_of_any_encoding_fills_the_memory():
    pytest.importorskip("resource")  # bounds the memory of a process
    names = [name for name, entry in catalog.items() if not entry.is_scaling]
    lines = [*hostile_specs(), *(f"{name} {size}" for name in names for size in SIZES)]
    assert len(lines) > 150
    assert "alibi:num_heads=1000000000" in lines
    script = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({MEMORY},) * 2)"
    script += _IN_LITTLE_MEMORY
    done = subprocess.run(
        [sys.executable, "-c", script],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("alibi:num_heads=1000000000", r"num_heads must be at most 1048576, got 1000000000"),
        ("rope:head_dim=2000000000", r"head_dim must be at most 1048576, got 2000000000"),
        ("sinusoidal:d_model=2000000000", r"d_model must be at most 1048576, got 2000000000"),
        ("t5:max_distance=1000000000", r"max_distance must be at most 1048576, got 1000000000"),
        ("learned:max_positions=1000000000", r"numbers in the table of learned must be at most 268435456"),
        ("learned:offset=1000000000", r"numbers in the table of learned must be at most 268435456"),
        ("shaw:max_distance=16777216", r"numbers in the table of shaw must be at most 268435456"),
    ],
)  # fmt: skip
def test_a_size_is_refused_by_its_name_and_bound(spec, message):
    with pytest.raises(ValueError, match=message):
        create(spec, **SIZES)


@pytest.mark.parametrize(
    "value",
    [
        "-" * 3000 + "1", "+-" * 3000 + "1", "(" * 3000 + "1" + ")" * 3000, "[" * 3000, ")" * 3000,
        "1" + "+1" * 3000, "1" + ".real" * 3000, "a" + ".b" * 3000, "f" + "()" * 3000, "not " * 3000 + "1",
        "~" * 3000 + "1", "{" * 3000, "lambda:" * 1000 + "1", "'" * 3000, "9" * 5000, "(" * 9 + "1" + ")" * 9,
        "0x" + "f" * 60, "1e999", "(1,(2", "1)", "(1]",
    ],
    ids=lambda value: f"{value[:6]} x {len(value)}",
)  # fmt: skip
@pytest.mark.parametrize("option", ["rope:base", "rope:sections", "rope:layout", "alibi:num_heads"])
def test_nesting_of_any_kind_is_refused_in_a_sentence(option, value):
    with pytest.raises((ValueError, TypeError)) as caught:
        create(f"{option}={value}", **SIZES)
    assert type(caught.value) in (ValueError, TypeError)
    assert len(str(caught.value)) < 1000
    assert "\n" not in str(caught.value)


def test_how_long_a_spec_may_be_is_bounded():
    with pytest.raises(ValueError, match=r"characters of a spec must be at most 16384, got 200011"):
        create("rope:base=1" + "," * 200_000, **SIZES)
    with pytest.raises(ValueError, match=r"encodings and scalings of a spec must be at most 64, got 65"):
        create("+".join(["none"] * 65))
    assert len(create("+".join(["none"] * 64)).encodings) == 64


def test_a_long_but_sensible_spec_is_read():
    divisors = ",".join(f"{1 + pair / 3}" for pair in range(256))
    spec = f"rope+longrope:short_factor=({divisors}),long_factor=({divisors}),factor=4"
    rope = create(spec, head_dim=512, max_positions=64)
    assert isinstance(rope, ordinate.RoPE)
    assert rope.scaling.long_factor[3] == 2.0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1), ("-1", -1), ("+5", 5), ("1_000", 1000), ("0x10", 16), ("1e6", 1e6), ("1e+6", 1e6), (".5", 0.5),
        ("-2.5e-3", -2.5e-3), ("true", True), ("False", False), ("None", None), ("half", "half"), ("'half'", "half"),
        ("(2,1,1)", (2, 1, 1)), ("(1,)", (1,)), ("(1)", 1), ("()", ()), ("[1, 2]", [1, 2]),
        ("((1,2),(3,))", ((1, 2), (3,))),
        ("inf", "inf"), ("nan", "nan"), ("2*3", "2*3"), ("--1", "--1"), ("(a,1)", ("a", 1)),
    ],
)  # fmt: skip
def test_values_read_as_python_writes_them(text, value):
    read = read_value(text, "")
    assert read == value
    assert type(read) is type(value)


def test_the_size_of_every_table_is_known_before_it_is_made():
    for name, entry in catalog.items():
        if entry.is_scaling:
            continue
        encoding = create(name, **SIZES)
        held = sum(parameter.numel() for parameter in encoding.parameters())
        ((_, options),) = parse(name)
        assert entry.numbers_in_table(options, SIZES) == held, name
