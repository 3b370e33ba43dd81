"""Write docs/results.md, its picture and the reports it links, from the records: ``python docs/results.py``."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

from ordinate.lab.report import read_report, write_report
from ordinate.lab.summary import LOSS_RISE, Arm, Summary

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "results.md"
RECORDS = DOCS / "results" / "gpu"
PICTURE = DOCS / "results" / "published.png"

#: Perplexity by length of a model of 247M trained at 512 tokens of WikiText-103: Press et al. 2022,
#: arXiv:2108.12409, table 2.
PUBLISHED: dict[str, dict[int, float]] = {
    "sinusoidal": {
        512: 20.05, 532: 19.91, 612: 20.59, 712: 24.86, 812: 30.82, 1012: 43.54, 1112: 50.36, 1512: 76.23,
        2512: 132.41, 4512: 209.37, 8512: 305.65, 15512: 406.01,
    },
    "rope": {
        512: 20.07, 532: 19.98, 612: 19.81, 712: 19.79, 812: 20.17, 1012: 21.37, 1112: 22.01, 1512: 25.99,
        2512: 31.58, 4512: 39.15, 8512: 54.98, 15512: 79.25,
    },
    "t5": {
        512: 19.65, 532: 19.53, 612: 19.27, 712: 19.10, 812: 18.94, 1012: 18.79, 1112: 18.77, 1512: 18.91,
        2512: 20.41, 4512: 25.91, 8512: 43.08,
    },
    "alibi": {
        512: 19.73, 532: 19.61, 612: 19.38, 712: 19.14, 812: 18.99, 1012: 18.73, 1112: 18.68, 1512: 18.52,
        2512: 18.41, 4512: 18.41, 8512: 18.34, 15512: 18.31,
    },
}  # fmt: skip

Losses = dict[int, float]


def published_losses() -> dict[str, Losses]:
    """In nats per token."""
    return {
        name: {length: math.log(value) for length, value in by_length.items()}
        for name, by_length in PUBLISHED.items()
    }


def our_losses(summary: Summary) -> dict[str, Losses]:
    """The same encodings of ours; refused lengths have no loss."""
    return {name: _losses(_arm(summary, name)) for name in PUBLISHED}


def _arm(summary: Summary, name: str) -> Arm:
    return next(arm for arm in summary.arms if arm.spec.partition(":")[0] == name)


def _losses(arm: Arm) -> Losses:
    return {one.length: one.loss.mean for one in arm.evaluations if one.loss is not None}


def best(losses: Losses) -> str:
    """Up to which length it still gets better, in training lengths."""
    lengths = list(losses)
    lowest = min(lengths, key=losses.__getitem__)
    factor = f"{lowest / lengths[0]:.4g}×"
    return f"at the longest, {factor}" if lowest == lengths[-1] else factor


def stretch(losses: Losses) -> str:
    """Where the loss is a tenth above that at the training length, on a straight line over log length."""
    lengths = list(losses)
    limit = losses[lengths[0]] * (1 + LOSS_RISE)
    for last, length in itertools.pairwise(lengths):
        if losses[length] > limit:
            share = (limit - losses[last]) / (losses[length] - losses[last])
            return f"{last / lengths[0] * (length / last) ** share:.2g}×"
    return f"not up to {lengths[-1] / lengths[0]:.3g}×"


def _at(stretch: str) -> str:
    return stretch if stretch.startswith("not") else f"at {stretch}"


def render() -> str:
    """The page."""
    report = read_report(RECORDS)
    summary = report.summary
    ours, theirs = our_losses(summary), published_losses()
    rows = [
        f"| {name} | {best(theirs[name])} | {best(ours[name])} | {stretch(theirs[name])} | {stretch(ours[name])} |"
        for name in PUBLISHED
    ]
    others = [
        arm
        for arm in summary.arms
        if arm.spec.partition(":")[0] not in PUBLISHED and len(_losses(arm)) > 1
    ]
    others += [arm for arm in summary.arms if arm.spec == "rope:base=1e6"]
    further = [
        f"  - `{arm.spec}`: better up to {best(_losses(arm))}, a tenth worse {_at(stretch(_losses(arm)))}"
        for arm in others
    ]
    seconds = [line["seconds"] for run in summary.gathered.runs for line in run.of_kind("train")[-1:]]
    alibi = _arm(summary, "alibi").evaluations[-1]
    assert alibi.gain is not None
    assert alibi.gain_margin is not None
    return f"""# Results

Comparisons that were run whole, with their records. `python docs/results.py` makes this page anew from them, and a
test holds it to them.

## Nine encodings on one H200, trained at 512 tokens, tested to 32,768

`ordinate compare --preset gpu`: 8 layers of 512, {dict(report.narrative.facts)["parameters"]} parameters, 1,200 steps,
bytes of Python's standard library.

**{report.narrative.headline}**

The whole report: [report.md](results/gpu/report.md). The records: [results/gpu](results/gpu), which
`ordinate report docs/results/gpu` turns into a page with figures to hover over.

![Loss over the loss at the training length: ours, and as published](results/published.png)

### Beside what was published

Press et al. (2022, [arXiv:2108.12409](https://arxiv.org/abs/2108.12409), table 2) trained 247M parameters at 512 tokens
of WikiText-103 and tested four of these encodings at lengths up to 15,512. In training lengths:

| encoding | gets better up to: published | ours | a tenth worse in loss at: published | ours |
|---|---:|---:|---:|---:|
{chr(10).join(rows)}

The order is the same: sinusoidal leaves first, rotary next, T5's bias later, ALiBi not at all. What differs:

- **sinusoidal** leaves at once here; published, it still gained a little at first. The first length tested here past
  the training length is 1.125×, so a gain before that would not be seen.
- **rotary** turns earlier, and is a tenth worse earlier.
- **T5** lasts about twice as long. So do `clipped` tables, whose end lies at the same distance, 128.
- **ALiBi** gets better to the end, as published; but with exactly the last 512 tokens in view the same targets cost
  only {alibi.gain.mean:.3f} ± {alibi.gain_margin:.3f} nats more. It holds, and makes next to nothing of what lies
  further back; the published table cannot tell.
- Not in that table, beside a learned table, which is refused past its 512 rows and shown so:
{chr(10).join(further)}

Our model is a tenth as large, reads bytes of code where theirs reads words of articles, and is trained for
{sum(seconds) / len(seconds) / 60:.1f} minutes on average; which of these makes the difference was not tried. Every arm
here has one seed: another may move these numbers, and the order of arms that lie close together.

### How it was run

Two arms at a time shared the GPU, some of them with tests and compilers beside them: training took
{min(seconds):.0f} to {max(seconds):.0f} s an arm, and the speeds in the report are those of a busy machine.
[Benchmarks](benchmarks.md#training-on-a-gpu) has speeds side by side with the GPU to themselves. On top of the commit
that the records name, the runs had one change, by which PyTorch forgets what it compiled for other arms; it does not
touch an arm that runs in a process of its own, as these did.
"""


def draw() -> bytes:
    """Both tables as curves, in one scale."""
    import io

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = {
        "ordinate, 25M, Python source": our_losses(read_report(RECORDS).summary),
        "Press et al. 2022, 247M, WikiText-103": published_losses(),
    }
    figure = Figure(figsize=(11, 4.6), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 2, sharey=True)
    for panel, (title, by_name) in zip(axes, panels.items(), strict=True):
        for marker, (name, losses) in zip("os^D", by_name.items(), strict=True):
            start = next(iter(losses))
            panel.plot(
                [length / start for length in losses],
                [loss / losses[start] for loss in losses.values()],
                marker=marker, markersize=5, linewidth=1.8, label=name,
            )  # fmt: skip
        panel.axhline(1 + LOSS_RISE, color="#666666", linestyle=":", linewidth=1)
        panel.annotate(
            "a tenth worse", (1.0, 1 + LOSS_RISE), xycoords=("axes fraction", "data"), xytext=(-2, 3),
            textcoords="offset points", fontsize=9, color="#666666", ha="right",
        )  # fmt: skip
        panel.set_xscale("log", base=2)
        panel.set_xticks([1, 2, 4, 8, 16, 32, 64], ["1", "2", "4", "8", "16", "32", "64"])
        panel.set_xlim(0.93, 72)
        panel.set_title(title, loc="left", fontsize=11, fontweight="bold")
        panel.set_xlabel("length, in training lengths of 512 tokens")
        panel.grid(True, color="#dddddd", linewidth=0.7)
        panel.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("loss / loss at the training length")
    axes[0].legend(frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


if __name__ == "__main__":
    write_report(RECORDS)
    for large in ("report.html", "report.json"):  # made in a moment, and megabytes
        (RECORDS / large).unlink()
    PICTURE.write_bytes(draw())
    PAGE.write_text(render(), encoding="utf-8")
