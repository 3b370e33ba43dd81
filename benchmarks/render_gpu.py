"""Write the GPU tables of docs/benchmark_records.md from the records in results/, between markers.

python benchmarks/render_gpu.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ATTENTION = HERE / "results" / "gpu_attention.json"
MASKS = HERE / "results" / "gpu_masks.json"
ROPE = HERE / "results" / "gpu_rope.json"
MODELS = HERE / "results" / "gpu_models.json"
TRAINING = HERE / "results" / "gpu_training.json"
PAGE = HERE.parent / "docs" / "benchmark_records.md"
BEGIN, END = "<!-- begin: gpu -->", "<!-- end: gpu -->"


def write() -> None:
    PAGE.write_text(rendered(PAGE.read_text()))


def rendered(page: str) -> str:
    """The page with what stands between its markers replaced by the records' tables."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    attention, rope = json.loads(ATTENTION.read_text()), json.loads(ROPE.read_text())
    parts = [_attention(attention)]
    if MASKS.exists():
        parts.append(masks(json.loads(MASKS.read_text())))
    parts.append(_rope(rope))
    if MODELS.exists():
        parts.append(models(json.loads(MODELS.read_text())))
    if TRAINING.exists():
        parts.append(training(json.loads(TRAINING.read_text())))
    return before + "\n".join((BEGIN, "\n\n".join(parts), END)) + after


def _head(title: str, environment: dict[str, str]) -> str:
    return f"### {title}\n\n{_measured(environment)}"


def _measured(environment: dict[str, str]) -> str:
    peers = [name for name in ("transformers", "liger-kernel", "flash-attn") if name in environment]
    return (
        f"{environment['date']}, commit {environment['commit'][:12]}. {environment['gpu']}, "
        f"torch {environment['torch']}, Triton {environment['triton']}"
        + "".join(f", {name} {environment[name]}" for name in peers)
        + "."
    )


def _of_another_run(row: dict[str, Any]) -> str:
    """Rows that were not measured again name their commit."""
    return f" (at commit {row['commit'][:12]})" if "commit" in row else ""


def _attention(record: dict[str, Any]) -> str:
    parts = ["### Attention on a GPU, bfloat16, causal"]
    for name, shape in record["shapes"].items():
        rows = [row for row in shape["rows"] if "error" not in row]
        if rows:
            parts.append(_attention_table(name, rows, record["limit_TFLOPs"], shape["environment"]))
        failed = [f"- {row.get('name', '')}: {row['error']}" for row in shape["rows"] if "error" in row]
        if failed:
            parts.append("\n".join(["Not measured:", "", *failed]))
    long = record["long"]
    parts.append(
        f"One forward and backward pass of a learned T5 bias over {long['length']:,} tokens (16 heads of 64): "
        f"{long['seconds']:.2f} s, {long['extra_GiB']:.2f} GiB above the inputs. {_measured(long['environment'])}"
    )
    parts.append(_decoding(record["decoding"]["rows"], record["decoding"]["environment"]))
    return "\n\n".join(parts)


def _decoding(rows: list[dict[str, Any]], environment: dict[str, str]) -> str:
    names = [name for name in rows[0] if name != "shape"]
    lines = [
        "One query: milliseconds a call takes, and in brackets what of it the device takes (by a CUDA graph). "
        f"{_measured(environment)}",
        "",
        f"| | {' | '.join(names)} |",
        f"|---|{'---:|' * len(names)}",
    ]
    for row in rows:
        cells = [
            "–" if "error" in row[name] else f"{row[name]['ms']:.3f} ({row[name]['device_ms']:.3f})"
            for name in names
        ]
        lines.append(f"| {row['shape']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _attention_table(
    shape: str, rows: list[dict[str, Any]], limit: float, environment: dict[str, str]
) -> str:
    floor = next(row for row in rows if row["name"] == "cuDNN")
    lines = [
        f"{shape}; ratios are to cuDNN without a bias, the last column to the {limit:.0f} TFLOP/s of the data sheet. "
        f"{_measured(environment)}",
        "",
        "| bias | by | forward ms | ratio | TFLOP/s | forward + backward ms | of it device | ratio | TFLOP/s "
        "| extra MiB | of the limit |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in sorted(rows, key=lambda row: (row["kind"] != "none", row["kind"])):
        forward, both = row["forward_ms"], row["forward_backward_ms"]
        device = f"{row['device_ms']:.3f}" if "device_ms" in row else "–"  # not in earlier records
        by = row["name"] + _of_another_run(row)
        lines.append(
            f"| {row['kind']} | {by} | {forward:.3f} | {forward / floor['forward_ms']:.2f} | "
            f"{row['forward_TFLOPs']:.0f} | {both:.3f} | {device} | "
            f"{both / floor['forward_backward_ms']:.2f} | {row['forward_backward_TFLOPs']:.0f} | "
            f"{row['extra_MiB']:.0f} | {row['forward_backward_TFLOPs'] / limit:.0%} |"
        )
    return "\n".join(lines)


def masks(record: dict[str, Any]) -> str:
    """Padded and packed calls, next to the same calls with no mask but the causal one."""
    batch, heads, length, dim = record["shape"]
    lines = [
        "| masked | bias | by | forward ms | forward + backward ms | of it device | extra MiB |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    for row in record["rows"]:
        head = f"| {row['mask']} | {row['kind']} | {row['name']} | "
        if "error" in row:
            lines.append(f"{head}{row['error']} | | | |")
        else:
            times = [row[name] for name in ("forward_ms", "forward_backward_ms", "device_ms")]
            lines.append(
                head + " | ".join(f"{time:.3f}" for time in times) + f" | {row['extra_MiB']:.0f} |"
            )
    title = _head("Padding and packed sequences on a GPU, bfloat16", record["environment"])
    about = (
        f"B{batch} H{heads} L{length} D{dim}. Padded are rows of the whole length down to five eighths of it; packed "
        "are four sequences a row, of a half to an eighth of it, which leave a third of the causal pairs."
    )
    return f"{title}\n\n{about}\n\n" + "\n".join(lines)


def _rope(record: dict[str, Any]) -> str:
    parts = [_head("RoPE on a GPU, bfloat16, 32 + 8 heads of 128", record["environment"])]
    lines = [
        "| batch × length | layout | by | pass | ms | part of a copy's speed | host µs |",
        "|---|---|---|---|---:|---:|---:|",
    ]
    for row in record["results"]:
        host = f"{row['host_us']:.0f}" if row.get("host_us") else ""
        lines.append(
            f"| {row['batch']} × {row['seq']} | {row['layout'] or 'any'} | {row['name']} | {row['pass']} | "
            f"{row['ms']:.4f} | {row['of_copy']:.2f} | {host} |"
        )
    parts.append("\n".join(lines))
    parts.append(
        "Milliseconds are the device's alone, which waits until the host has prepared a call; short calls are bound by "
        "what that takes, measured at the smallest shape. Computing angles takes several small launches, which a "
        "`Rotation` shared by all layers saves."
    )
    return "\n\n".join(parts)


def models(record: dict[str, Any]) -> str:
    """Training steps of whole models, as transformers runs them and patched."""
    environment = record["environment"]
    lines = [
        "| model | tokens | by | step ms | tokens/s | peak GiB |",
        "|---|---:|---|---:|---:|---:|",
    ]
    for row in record["rows"]:
        head = f"| {row['model']} | {row['length']} | {row['by']}{_of_another_run(row)} | "
        if "error" in row:
            reason = "out of memory" if "OutOfMemory" in row["error"] else row["error"]
            lines.append(f"{head}{reason} | | |")
        else:
            peak = "" if row["peak_GiB"] is None else f"{row['peak_GiB']:.1f}"
            lines.append(f"{head}{row['step_ms']:.1f} | {row['tokens_per_second']:.0f} | {peak} |")
    title = _head("Whole models on a GPU, bfloat16, one training step of batch 1", environment)
    return f"{title}\n\n" + "\n".join(lines)


def _ratio(row: dict[str, Any]) -> str:
    low, high = row.get("middle_half", (None, None))
    return f"{row['relative']:.3f}" + ("" if low is None else f" ({low:.3f} to {high:.3f})")


def training(record: dict[str, Any]) -> str:
    """How fast the lab's model trains with each encoding."""
    first, second = record["lengths"]
    lines = [
        f"| encoding | tokens/s at {first['length']:,} | of none | tokens/s at {second['length']:,} | of none |",
        "|---|---:|---:|---:|---:|",
    ]
    for short, long in zip(first["rows"], second["rows"], strict=True):
        cells = (f"{row['tokens_per_second']:,.0f} | {_ratio(row)}" for row in (short, long))
        lines.append(f"| {short['arm']}{_of_another_run(short)} | {' | '.join(cells)} |")
    title = _head("Training on a GPU", record["environment"])
    about = (
        "The lab's model of the `gpu` preset (8 layers of 512, compiled, bfloat16, 32,768 tokens a step), all models "
        "in one process, a few steps of each in turn; ratios are medians over rounds, with the middle half of the "
        "rounds in brackets where it was recorded. Our own kernels attend for `none` too; cuDNN's are faster there. "
        "Rows of another run are relative to `none` of that run."
    )
    if "note" in record:  # how an earlier run differed from what the script does now
        about += f" {record['note']}"
    return f"{title}\n\n{about}\n\n" + "\n".join(lines)


if __name__ == "__main__":
    write()
