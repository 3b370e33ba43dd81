"""Write the few speeds that both READMEs show, from the GPU records in results/, between markers.

python benchmarks/render_readme.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from render_gpu import ATTENTION, MODELS

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- begin: speed -->", "<!-- end: speed -->"
SHAPES = ("B4 H16 L4096 D64", "B1 H16 L16384 D128")


class Words(NamedTuple):
    """The section's words in one language. The names of those measured are the same in both."""

    head: str
    shape: str
    rows: dict[tuple[str, str], str]  # by bias and name
    model: str


PAGES = {
    "README.md": Words(
        "milliseconds, forward and backward",
        "{0} × {1} heads, {2:,} tokens, head_dim {3}",
        {
            ("none", "cuDNN"): "no bias, cuDNN",
            ("ALiBi", "ordinate"): "ALiBi, **ordinate**",
            ("T5 learned", "ordinate"): "T5, learned, **ordinate**",
            ("T5 learned", "FlexAttention, vector"): "T5, learned, FlexAttention tuned by hand",
            ("T5 learned", "FlexAttention, as written"): "T5, learned, FlexAttention as usually written",
            ("KERPLE learned", "ordinate"): "a learned number for every distance, **ordinate**",
        },
        "One training step of a T5-base encoder at {tokens:,} tokens takes {ours:.0f} ms and {our_peak:.1f} GiB "
        "patched by ordinate, {theirs:.0f} ms and {their_peak:.1f} GiB as transformers runs it (eager). {gpu}, "
        "bfloat16, causal but for the encoder; peers ran in the same process.",
    ),
    "README.zh.md": Words(
        "毫秒，前向加反向",
        "{0} × {1} 个头，{2:,} 个 token，head_dim {3}",
        {
            ("none", "cuDNN"): "无偏置，cuDNN",
            ("ALiBi", "ordinate"): "ALiBi，**ordinate**",
            ("T5 learned", "ordinate"): "T5，可学习，**ordinate**",
            ("T5 learned", "FlexAttention, vector"): "T5，可学习，手工调优的 FlexAttention",
            ("T5 learned", "FlexAttention, as written"): "T5，可学习，通常写法的 FlexAttention",
            ("KERPLE learned", "ordinate"): "每个距离一个可学习的数，**ordinate**",
        },
        "T5-base 编码器在 {tokens:,} 个 token 上训练一步：由 ordinate 打补丁后 {ours:.0f} ms、{our_peak:.1f} GiB，"
        "transformers 自带实现（eager）{theirs:.0f} ms、{their_peak:.1f} GiB。"
        "{gpu}，bfloat16，除编码器外均为因果注意力；对照实现在同一进程中运行。",
    ),
}  # fmt: skip


def write() -> None:
    for name, words in PAGES.items():
        page = ROOT / name
        page.write_text(rendered(page.read_text(), words))


def rendered(page: str, words: Words) -> str:
    """The page with what stands between its markers replaced by the records' numbers."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    attention, models = json.loads(ATTENTION.read_text()), json.loads(MODELS.read_text())
    return f"{before}{BEGIN}\n{_table(attention, words)}\n\n{_model(models, words)}\n{END}{after}"


def _table(record: dict[str, Any], words: Words) -> str:
    measured = [
        {
            (row["kind"], row["name"]): row
            for row in record["shapes"][shape]["rows"]
            if "error" not in row
        }
        for shape in SHAPES
    ]
    sizes = [[int(part.lstrip("BHLD")) for part in shape.split()] for shape in SHAPES]
    lines = [
        f"| {words.head} | {' | '.join(words.shape.format(*size) for size in sizes)} |",
        "|---|---:|---:|",
    ]
    for row, label in words.rows.items():
        times = (found[row]["forward_backward_ms"] for found in measured)
        cells = (f"{time:.3g}" if time < 100 else f"{time:,.0f}" for time in times)
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _model(record: dict[str, Any], words: Words) -> str:
    rows = {
        (row["by"], row["length"]): row
        for row in record["rows"]
        if row["model"] == "T5-base encoder" and "error" not in row
    }
    tokens = max(length for _, length in rows)
    ours, theirs = rows["ordinate", tokens], rows["transformers, eager", tokens]
    return words.model.format(
        tokens=tokens, ours=ours["step_ms"], our_peak=ours["peak_GiB"],
        theirs=theirs["step_ms"], their_peak=theirs["peak_GiB"], gpu=record["environment"]["gpu"],
    )  # fmt: skip


if __name__ == "__main__":
    write()
