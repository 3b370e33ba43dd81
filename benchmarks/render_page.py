"""Write the tables of docs/benchmarks.md, one for each question, from the records in results/, between markers.

python benchmarks/render_page.py

All rows of every record are in docs/benchmark_records.md, which render.py and render_gpu.py write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import gpu_targets
import render
import render_gpu

PAGE = render.HERE.parent / "docs" / "benchmarks.md"
_MARKED = re.compile(r"(<!-- begin: (\S+) -->\n).*?(<!-- end: \2 -->)", re.DOTALL)
_BOTH = "forward + backward"
_SHAPES = ("B4 H16 L4096 D64", "B1 H16 L16384 D128", "B1 H16 L4096 D64")

Row = dict[str, Any]


def write() -> None:
    PAGE.write_text(rendered(PAGE.read_text()))


def rendered(page: str) -> str:
    """The page with each of its tables made anew."""
    return _MARKED.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}", page)


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int = 1) -> str:
    rule = ["---"] * text_columns + ["---:"] * (len(titles) - text_columns)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (titles, rule, *rows))


def _read(path: Any) -> Any:
    return json.loads(path.read_text())


def _cpu_cases(kind: str, **wanted: Any) -> list[dict[str, Any]]:
    cases = _read(render.RECORD)["cases"]
    return [
        case
        for case in cases
        if case["kind"] == kind and all(case[name] == value for name, value in wanted.items())
    ]


def _cell(rows: dict[str, Row], base: dict[str, Row], direction: str) -> str:
    """Milliseconds, and in brackets how many times as fast as the base."""
    row = rows[direction]
    return f"{render._ms(row)} ({render._times(row, base[direction])})"


def _cpu_table(cases: list[dict[str, Any]], base: str, left_out: Sequence[str] = ()) -> str:
    """A row for each candidate, a column for each dtype and direction."""
    found = [render._directions(case) for case in cases]
    directions = list(next(iter(found[0].values())))
    titles = ["ms (× as fast)", *(f"{case['dtype']}, {way}" for case in cases for way in directions)]
    lines = [
        [name, *(_cell(rows[name], rows[base], way) for rows in found for way in directions)]
        for name in found[0]
        if name not in left_out
    ]
    return _table(titles, lines)


def cpu_rope() -> str:
    cases = _cpu_cases("rope", allocator="kept", memory="transposed")
    return _cpu_table(cases, "transformers", ("ordinate, interleaved, Rotation made before",))


def cpu_attention() -> str:
    return _cpu_table(_cpu_cases("attention"), "SDPA, dense mask made before")


def cpu_one_query() -> str:
    return _cpu_table(_cpu_cases("decode"), "SDPA, dense mask made before")


def gpu_aims() -> str:
    return gpu_targets.tables(_read(render_gpu.ATTENTION), _read(render_gpu.ROPE))


def gpu_attention() -> str:
    shapes = _read(render_gpu.ATTENTION)["shapes"]
    found = [
        {(row["kind"], row["name"]): row for row in shapes[shape]["rows"] if "error" not in row}
        for shape in _SHAPES
    ]
    named = dict.fromkeys(key for rows in found for key in rows)
    lines = [
        [kind, name, *(_of_cudnn(rows, (kind, name)) for rows in found)]
        for kind, name in sorted(named, key=lambda key: (key[0] != "none", key[0]))
        if name != "FlexAttention, vector, autotuned"
    ]
    return _table(["bias", "by", *_SHAPES], lines, text_columns=2)


def _of_cudnn(rows: dict[tuple[str, str], Row], key: tuple[str, str]) -> str:
    if key not in rows:
        return "–"
    time, floor = (rows[which]["forward_backward_ms"] for which in (key, ("none", "cuDNN")))
    return f"{time:.3g} ({time / floor:.2f})" if time < 100 else f"{time:.0f} ({time / floor:.0f})"


def gpu_one_query() -> str:
    rows = _read(render_gpu.ATTENTION)["decoding"]["rows"]
    names = [name for name in rows[0] if name != "shape"]
    lines = [
        [row["shape"], *(f"{row[name]['ms']:.3f} ({row[name]['device_ms']:.3f})" for name in names)]
        for row in rows
    ]
    return _table(["ms (of it device)", *names], lines)


def gpu_masks() -> str:
    found: dict[tuple[str, str], dict[str, str]] = {}
    names: dict[str, None] = {}
    for row in _read(render_gpu.MASKS)["rows"]:
        names[row["name"]] = None
        time = "–" if "error" in row else f"{row['forward_backward_ms']:.2f} ({row['device_ms']:.2f})"
        found.setdefault((row["mask"], row["kind"]), {})[row["name"]] = time
    lines = [[*key, *(times.get(name, "–") for name in names)] for key, times in found.items()]
    return _table(["masked", "bias", *names], lines, text_columns=2)


def gpu_rope() -> str:
    """The share of a copy's speed that each reaches, forward in the half layout."""
    rows = [row for row in _read(render_gpu.ROPE)["results"] if row["layout"] in ("half", None)]
    rows = [row for row in rows if row["pass"] == "forward"]
    shapes = list(dict.fromkeys((row["batch"], row["seq"]) for row in rows))
    by = {(row["name"], row["batch"], row["seq"]): row for row in rows}
    lines = [
        [
            name,
            *(f"{by[name, *shape]['ms']:.4f} ({by[name, *shape]['of_copy']:.2f})" for shape in shapes),
        ]
        for name in dict.fromkeys(row["name"] for row in rows)
    ]
    return _table(["ms (of a copy's speed)", *(f"{batch} × {seq}" for batch, seq in shapes)], lines)


def gpu_models() -> str:
    found: dict[tuple[str, int], dict[str, str]] = {}
    names: dict[str, None] = {}
    for row in _read(render_gpu.MODELS)["rows"]:
        names[row["by"]] = None
        cell = "out of memory" if "error" in row else f"{row['step_ms']:.1f} ({row['peak_GiB']:.1f})"
        found.setdefault((row["model"], row["length"]), {})[row["by"]] = cell
    lines = [
        [model, str(length), *(cells.get(name, "–") for name in names)]
        for (model, length), cells in found.items()
    ]
    return _table(["model, ms (GiB)", "tokens", *names], lines, text_columns=2)


def gpu_training() -> str:
    first, second = _read(render_gpu.TRAINING)["lengths"]
    lines = [
        [
            short["arm"],
            *(f"{row['tokens_per_second']:,.0f} ({row['relative']:.3f})" for row in (short, long)),
        ]
        for short, long in zip(first["rows"], second["rows"], strict=True)
    ]
    titles = ["tokens/s (of none)", *(f"{part['length']:,} tokens" for part in (first, second))]
    return _table(titles, lines)


#: What stands between the markers of this name.
TABLES: dict[str, Callable[[], str]] = {
    "cpu-rope": cpu_rope,
    "cpu-attention": cpu_attention,
    "cpu-one-query": cpu_one_query,
    "gpu-aims": gpu_aims,
    "gpu-attention": gpu_attention,
    "gpu-one-query": gpu_one_query,
    "gpu-masks": gpu_masks,
    "gpu-rope": gpu_rope,
    "gpu-models": gpu_models,
    "gpu-training": gpu_training,
}


if __name__ == "__main__":
    write()
