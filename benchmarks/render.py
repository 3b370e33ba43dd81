"""Write the tables of docs/benchmark_records.md from the records in results/, between markers.

python benchmarks/render.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RECORD = HERE / "results" / "cpu.json"
PAGE = HERE.parent / "docs" / "benchmark_records.md"
BEGIN, END = "<!-- begin: cpu -->", "<!-- end: cpu -->"

Row = dict[str, Any]


def write() -> None:
    PAGE.write_text(rendered(PAGE.read_text(), json.loads(RECORD.read_text())))


def rendered(page: str, record: dict[str, Any]) -> str:
    """The page with what stands between its markers replaced by the record's tables."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{tables(record)}\n{END}{after}"


def tables(record: dict[str, Any]) -> str:
    parts = [_head(record["environment"])]
    if "rope_environment" in record:
        parts.append(
            "RoPE was measured again after a change to it: " + _head(record["rope_environment"])
        )
    for case in record["cases"]:
        if case["kind"] == "rope":
            parts.append(_rope(case))
    parts.append(_tokens([case for case in record["cases"] if case["kind"] == "rope token"]))
    for case in record["cases"]:
        if case["kind"] == "attention":
            parts.append(_attention(case, _peaks(record, case["dtype"])))
    for case in record["cases"]:
        if case["kind"] == "decode":
            parts.append(_decode(case))
    parts.append(_long(record))
    return "\n\n".join(part for part in parts if part)


def _head(environment: dict[str, Any]) -> str:
    machine, versions = environment["machine"], environment["versions"]
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    commit = environment["commit"] + (
        " with uncommitted changes" if environment["uncommitted_source"] else ""
    )
    return (
        f"{environment['date']}, commit {commit}. {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['threads']} threads, {machine['memory_gib']:g} GiB, {machine['capability']} "
        f"(oneDNN up to {machine['onednn_max_cpu_isa']}), load average {machine['load_average']:g} at the start. "
        f"{named}."
    )


def _table(titles: list[str], lines: list[list[str]]) -> str:
    rule = ["---"] + ["---:"] * (len(titles) - 1)
    return "\n".join("| " + " | ".join(line) + " |" for line in [titles, rule, *lines])


def _ms(row: Row) -> str:
    if "median_ms" not in row:
        return f"wrong by {row['gate']['error']:.2g}"
    return f"{row['median_ms']:.3g}" if row["median_ms"] < 1000 else f"{row['median_ms']:.0f}"


def _times(row: Row, base: Row) -> str:
    """How many times as fast as the base; a dash for what has no time."""
    if "median_ms" not in row or "median_ms" not in base:
        return "–"
    return f"{base['median_ms'] / row['median_ms']:.2f}×"


def _directions(case: dict[str, Any]) -> dict[str, dict[str, Row]]:
    """Candidate → direction → row, in the order of the record."""
    found: dict[str, dict[str, Row]] = {}
    for row in case["rows"]:
        found.setdefault(row["candidate"], {})[row["direction"]] = row
    return found


def _compared(case: dict[str, Any], base: str) -> list[list[str]]:
    found = _directions(case)
    lines = []
    for name, rows in found.items():
        line = [name]
        for direction in next(iter(found.values())):
            line += [_ms(rows[direction]), _times(rows[direction], found[base][direction])]
        lines.append(line)
    return lines


def _rope(case: dict[str, Any]) -> str:
    q_heads, k_heads, seq, dim = case["shape"]
    pages = {"default": "default allocator", "kept": "freed pages kept by the allocator"}[
        case["allocator"]
    ]
    title = f"**RoPE, {case['dtype']}, {case['memory']}, {pages}**, q and k [1, {q_heads} + {k_heads}, {seq}, {dim}]"
    titles = ["", "forward ms", "× transformers", "forward + backward ms", "× transformers"]
    return f"{title}\n\n" + _table(titles, _compared(case, "transformers"))


def _tokens(cases: list[dict[str, Any]]) -> str:
    if not cases:
        return ""
    found = [_directions(case) for case in cases]
    lines = [
        [name, *(f"{one[name]['forward'].get('median_ms', float('nan')) * 1e3:.0f}" for one in found)]
        for name in found[0]
    ]
    titles = ["", *(f"{case['dtype']} µs" for case in cases)]
    return "**RoPE of one token, all in one call**\n\n" + _table(titles, lines)


def _peaks(record: dict[str, Any], dtype: str) -> dict[tuple[str, str], float]:
    return {
        (row["candidate"], row["direction"]): row["peak_extra_mib"]
        for case in record["cases"]
        if case["kind"] == "memory" and case["dtype"] == dtype
        for row in case["rows"]
    }


def _attention(case: dict[str, Any], peaks: dict[tuple[str, str], float]) -> str:
    heads, _, length, dim = case["shape"]
    base = "SDPA, dense mask made before"
    found = _directions(case)
    lines = []
    for name, rows in found.items():
        line = [name]
        for direction, row in rows.items():
            peak = peaks.get((name, direction))
            line += [
                _ms(row),
                _times(row, found[base][direction]),
                "" if peak is None else f"{peak:.0f}",
            ]
        lines.append(line)
    titles = ["", "forward ms", "× dense", "peak MiB", "forward + backward ms", "× dense", "peak MiB"]
    title = f"**Causal attention, {case['dtype']}**, {heads} heads, {length} tokens, head_dim {dim}"
    return f"{title}\n\n" + _table(titles, lines)


def _decode(case: dict[str, Any]) -> str:
    heads, _, length, dim = case["shape"]
    title = f"**One query, {length} keys, {case['dtype']}**, {heads} heads, head_dim {dim}"
    titles = ["", "ms", "× dense mask made inside"]
    return f"{title}\n\n" + _table(titles, _compared(case, "SDPA, dense mask made inside"))


def _long(record: dict[str, Any]) -> str:
    timed = [case for case in record["cases"] if case["kind"] == "long"]
    peak = [case for case in record["cases"] if case["kind"] == "long memory"]
    if not timed or not peak:
        return ""
    heads, _, length, dim = timed[0]["shape"]
    rows = _directions(timed[0])["ordinate T5, learned"]
    lines = [
        [direction, f"{row['median_ms'] / 1e3:.3g}" if "median_ms" in row else _ms(row)]
        for direction, row in rows.items()
    ]
    mib = peak[0]["rows"][0]["peak_extra_mib"]
    title = f"**Causal attention with a learned T5 table, float32**, {heads} heads, {length} tokens, head_dim {dim}"
    dense = heads * length * length * 4 / 2**20
    return (
        f"{title}\n\n{_table(['', 's'], lines)}\n\nForward and backward peak {mib:.0f} MiB above the inputs; "
        f"one dense matrix of logits would be {dense:.0f} MiB."
    )


if __name__ == "__main__":
    write()
