"""The targets on one H200 next to what the records show; `render_page` puts them into docs/benchmarks.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Row = tuple[str, str]  # kind of bias, or layout; and whose
Rows = dict[Row, dict[str, float]]


@dataclass(frozen=True)
class Target:
    """A quotient of two measurements and where it has to be: ours by theirs at most, or theirs by ours at least.

    Args:
        limit: One for all shapes, or for those that are named.
    """

    what: str
    limit: float | dict[str, float]
    ours: Row
    theirs: Row
    at_least: bool = False
    field: str = "forward_backward_ms"

    def cell(self, shape: str, rows: Rows) -> str:
        if self.ours not in rows or self.theirs not in rows:
            return "–"
        value = rows[self.ours][self.field] / rows[self.theirs][self.field]
        limit = self.limit.get(shape) if isinstance(self.limit, dict) else self.limit
        missed = limit is not None and (1 / value < limit if self.at_least else value > limit)
        shown = 1 / value if self.at_least else value
        text = f"{shown:.3f}" if shown < 10 else f"{shown:.1f}"
        return f"**{text}**" if missed else text

    def row(self, shapes: dict[str, Rows]) -> str:
        limits = self.limit.values() if isinstance(self.limit, dict) else [self.limit]
        bound = f"{'≥' if self.at_least else '≤'} {', '.join(f'{limit:g}' for limit in limits)}"
        cells = [self.cell(shape, rows) for shape, rows in shapes.items()]
        return f"| {self.what} | {bound} | {' | '.join(cells)} |"


def _ordinate(kind: str) -> Row:
    return kind, "ordinate"


CUDNN, FLEX = ("none", "cuDNN"), ("ALiBi", "FlexAttention")
# A vector is the same work for FlexAttention whatever it says, so that T5's stands for KERPLE's.
VECTOR, WRITTEN = ("T5 learned", "FlexAttention, vector"), ("T5 learned", "FlexAttention, as written")
ALIBI, T5, KERPLE, SHAW = (
    _ordinate(kind) for kind in ("ALiBi", "T5 learned", "KERPLE learned", "Shaw learned")
)
EINSUM = ("Shaw learned", "einsum")
ATTENTION = [
    Target("ALiBi forward, of FlexAttention's time", 1.0, ALIBI, FLEX, field="forward_ms"),
    Target("ALiBi, of FlexAttention's time", 1.0, ALIBI, FLEX),
    Target("T5 fixed, of our ALiBi's time", 1.1, _ordinate("T5 fixed"), ALIBI),
    Target("clipped fixed, of our ALiBi's time", 1.1, _ordinate("clipped fixed"), ALIBI),
    Target("T5 learned, times faster than FlexAttention's vector", 10.0, T5, VECTOR, at_least=True),
    Target("T5 learned, times faster than as users write it", 350.0, T5, WRITTEN, at_least=True),
    Target(
        "KERPLE learned, times faster than FlexAttention's vector", 6.0, KERPLE, VECTOR, at_least=True
    ),
    Target("Shaw, times faster than the einsum", 8.0, SHAW, EINSUM, at_least=True),
    Target(
        "Shaw, times less memory than the einsum", 20.0, SHAW, EINSUM, at_least=True, field="extra_MiB"
    ),
    Target("aim: ALiBi forward, of cuDNN's time without a bias", 1.25, ALIBI, CUDNN, field="forward_ms"),
    Target("aim: ALiBi, of cuDNN's", 1.4, ALIBI, CUDNN),
    Target("aim: T5 learned, of cuDNN's", 1.5, T5, CUDNN),
    Target("aim: KERPLE learned, of cuDNN's", 2.0, KERPLE, CUDNN),
    Target("aim: Shaw, of cuDNN's", 2.0, SHAW, CUDNN),
]
COPY = ("", "copy of the same bytes")
OF_A_COPY = {"4 × 8192": 0.97, "1 × 2048": 0.85}
HALF, INTERLEAVED = ("half", "ordinate"), ("interleaved", "ordinate")
COMPILED, LIGER = ("half", "transformers, compiled"), ("half", "Liger, in place")
ROPE = [
    Target("of compiled transformers' time", 1.05, HALF, COMPILED, field="ms"),
    Target("in place, of Liger's time", 1.05, ("half", "ordinate, in place"), LIGER, field="ms"),
    Target("aim: part of a copy's speed, half", OF_A_COPY, HALF, COPY, at_least=True, field="ms"),
    Target(
        "aim: part of a copy's speed, interleaved",
        OF_A_COPY,
        INTERLEAVED,
        COPY,
        at_least=True,
        field="ms",
    ),
]


def tables(attention: dict[str, Any], rope: dict[str, Any]) -> str:
    """Both tables of targets; what is missed is bold, what was not measured is a dash."""
    shapes: dict[str, Rows] = {
        name: _with_the_best_vector(
            {(row["kind"], row["name"]): row for row in shape["rows"] if "error" not in row}
        )
        for name, shape in attention["shapes"].items()
    }
    rotations: dict[str, Rows] = {}
    for row in rope["results"]:
        if row["pass"] == "forward":
            rows = rotations.setdefault(f"{row['batch']} × {row['seq']}", {})
            rows[row["layout"], row["name"]] = row
    return f"{_table('attention', ATTENTION, shapes)}\n\n{_table('RoPE, forward', ROPE, rotations)}"


def _with_the_best_vector(rows: Rows) -> Rows:
    """FlexAttention's vector with the faster of two tilings: chosen by hand, or by its autotuner."""
    kind, name = VECTOR
    measured = [rows[row] for row in (VECTOR, (kind, f"{name}, autotuned")) if row in rows]
    if not measured:
        return rows
    return {**rows, VECTOR: min(measured, key=lambda row: row["forward_backward_ms"])}


def _table(title: str, targets: list[Target], shapes: dict[str, Rows]) -> str:
    head = [f"| {title} | limit | {' | '.join(shapes)} |", f"|---|---:|{'---:|' * len(shapes)}"]
    return "\n".join([*head, *(target.row(shapes) for target in targets)])
