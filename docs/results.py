"""Write docs/results.md, its picture and the reports it links, from the records: ``python docs/results.py``."""

from __future__ import annotations

import io
import itertools
import math
from pathlib import Path

import torch

from ordinate.lab import formats
from ordinate.lab.report.api import read_report, write_report
from ordinate.lab.report.figures import styles_of
from ordinate.lab.report.summary import Arm, Evaluation, Summary
from ordinate.lab.report.training_findings import past_best
from ordinate.plots.api import figure_of
from ordinate.plots.pictures import Axis, Lines, Mark, Picture, Series

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "results.md"
RECORDS = DOCS / "results" / "gpu"
PICTURE = DOCS / "results" / "published.png"

#: Perplexity by length of a model of 247M trained at 512 tokens of WikiText-103: Press et al. 2021,
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

#: Our arms of the same encodings.
SPECS = {"sinusoidal": "sinusoidal", "rope": "rope", "t5": "t5:max_distance=128", "alibi": "alibi"}
#: Nats by which a loss has clearly risen.
RISE = 0.1
Losses = dict[int, float]


def published_losses() -> dict[str, Losses]:
    """In nats per token."""
    return {
        name: {length: math.log(value) for length, value in by_length.items()}
        for name, by_length in PUBLISHED.items()
    }


def our_losses(summary: Summary) -> dict[str, Losses]:
    """The same encodings of ours; refused lengths have no loss."""
    return {name: _losses(_arm(summary, spec)) for name, spec in SPECS.items()}


def _arm(summary: Summary, spec: str) -> Arm:
    return next(arm for arm in summary.arms if arm.spec == spec)


def _losses(arm: Arm) -> Losses:
    return {one.length: one.loss.mean for one in arm.evaluations if one.loss is not None}


def best(losses: Losses) -> str:
    """Up to which length it still gets better, in training lengths."""
    lengths = list(losses)
    lowest = min(lengths, key=losses.__getitem__)
    factor = f"{lowest / lengths[0]:.4g}×"
    return f"at the longest, {factor}" if lowest == lengths[-1] else factor


def reach(losses: Losses, rise: float) -> str:
    """Where the loss has risen by so many nats, on a straight line over log length, in training lengths."""
    lengths = list(losses)
    limit = losses[lengths[0]] + rise
    for last, length in itertools.pairwise(lengths):
        if losses[length] > limit:
            share = (limit - losses[last]) / (losses[length] - losses[last])
            return f"{last / lengths[0] * (length / last) ** share:.3g}×"
    return f"not up to {lengths[-1] / lengths[0]:.3g}×"


def risen(losses: Losses, length: int) -> str:
    return f"{losses[length] - losses[min(losses)]:+.2f}".replace("-", "−")


def render() -> str:
    """The page."""
    report = read_report(RECORDS)
    summary = report.summary
    ours, theirs = our_losses(summary), published_losses()
    measured = ("gets better up to", f"{RISE} nats worse at", "nats worse at 16×")
    rows = [
        " | ".join(
            (
                f"| {name}",
                *(best(losses[name]) for losses in (theirs, ours)),
                *(reach(losses[name], RISE) for losses in (theirs, ours)),
                *(risen(losses[name], at) for losses, at in ((theirs, 8512), (ours, 8192))),
            )
        )
        + " |"
        for name in PUBLISHED
    ]
    others = [arm for arm in summary.arms if arm.spec not in SPECS.values() and len(_losses(arm)) > 1]
    further = [
        f"  - `{arm.spec}`: better up to {best(_losses(arm))}, {RISE} nats worse {_at(reach(_losses(arm), RISE))}"
        for arm in others
    ]
    runs = summary.gathered.runs
    seconds = [line["seconds"] for run in runs for line in run.of_kind("train")[-1:]]
    alibi, shaw = (_arm(summary, spec).evaluations[-1] for spec in ("alibi", "shaw:max_distance=16"))
    in_length = sorted((losses[512], name) for name, losses in ours.items())
    return f"""# Results

Complete comparisons with their records. `python docs/results.py` makes the numbers and pictures of this page from the
records, and a test checks that the page is up to date.

## {len(summary.arms)} encodings on one H200, trained at 512 tokens, tested to 32,768

`ordinate compare --preset gpu`: 8 layers of 512, {dict(report.narrative.facts)["parameters"]} parameters,
{summary.gathered.sweep.settings["steps"]:,} steps, bytes of Python's standard library.

**{report.narrative.headline}**

The whole report: [report.md](results/gpu/report.md). The records: [results/gpu](results/gpu), which
`ordinate report docs/results/gpu` turns into a page with figures to hover over.

![How much the loss rises with length: ours, and as published](results/published.png)

### Next to published numbers

Press et al. (2021, [arXiv:2108.12409](https://arxiv.org/abs/2108.12409), table 2) trained 247M parameters at 512 tokens
of WikiText-103 and tested four of these encodings at lengths up to 15,512. In training lengths, and in nats per token:

| encoding | {" | ".join(f"{what}: published | ours" for what in measured)} |
|---|---:|---:|---:|---:|---:|---:|
{chr(10).join(rows)}

Nats compare perplexities whatever they start from. (The report counts a tenth of the last tokens' loss at the
training length instead: of bytes, that is about {RISE} nats, of words about 0.3, so shares of a loss cannot be compared
between the two.) 16× is 8,512 tokens there and 8,192 here.

The shape is the same: the loss of sinusoidal rises first, then rotary, later T5's bias, and ALiBi not at all;
sinusoidal and rotary also rise by about as much. What differs:

- **T5** holds several times longer here, and rises less. So do `clipped` tables, which end at the same distance, 128.
- **sinusoidal** rises at once here; in the published table it still gained a little at first. The first length tested
  here past the training length is 1.125×, so a gain before that would not be seen. The length at which rotary starts to
  rise is not known more exactly either.
- **In length** the order of these four differs: from {in_length[0][1]} ({in_length[0][0]:.3f} nats) to
  {in_length[-1][1]} ({in_length[-1][0]:.3f}) here, from t5 to rope there. With one seed an arm, ours is not a ranking.
- **Most arms were trained too long** for the text there is. {past_best(summary)}
  So in-length losses also measure which encoding memorises least, and that may be part of any difference.

What the published table does not show, because it has no windowed control:

- **ALiBi** gets better to the end, yet with exactly the last 512 tokens in view the same targets cost only
  {_gain(alibi)} nats more. It holds, and hardly uses what lies further back.
- **Shaw** has a mean loss within a tenth of its in-length loss at 64×, but there the extra context costs it
  {_gain(shaw, -1)} nats compared with the last 512 tokens alone, and the loss of its last tokens is known too badly to
  say that it holds: {_rise(shaw)} %.

Not in that table, apart from a learned table, which is refused past its 512 rows and shown as refused:

{chr(10).join(line.removeprefix("  ") for line in further)}

Our model is a tenth as large, reads bytes of code where theirs reads words of articles, and is trained for
{sum(seconds) / len(seconds) / 60:.1f} minutes on average; which of these makes the difference was not tested. Every arm
here has one seed: another seed may change these numbers, and the order of arms that lie close together.

### How it was run

Two arms at a time shared the GPU, each in a process of its own, some next to running tests and compilers: training
took {min(seconds):.0f} to {max(seconds):.0f} s an arm, and the speeds in the report are those of a busy machine.
[Benchmarks](benchmarks.md#training-on-a-gpu) has speeds side by side. The runs had one change on top
of the commit that the records name: PyTorch discards what it compiled for other arms. That does not affect an arm that
runs in a process of its own, as these did.
"""


def _at(reached: str) -> str:
    return reached if reached.startswith("not") else f"at {reached}"


def _gain(one: Evaluation, sign: int = 1) -> str:
    assert one.gain is not None
    return f"{sign * one.gain.mean:.3f} ± {one.gain.margin():.3f}"


def _rise(one: Evaluation) -> str:
    assert one.rise is not None
    return f"{formats.percent(one.rise.mean).removesuffix(' %')} ± {100 * one.rise.margin():.1f}"


def picture() -> Picture:
    """Both tables as curves in one scale, each encoding in the colour that the report gives it."""
    summary = read_report(RECORDS).summary
    styles = styles_of(summary)
    tables = {
        "ordinate, 25M, Python source": our_losses(summary),
        "Press et al. 2021, 247M, WikiText-103": published_losses(),
    }
    x = Axis(
        "training lengths of 512 tokens", log=True, limits=(0.93, 72), ticks=(1, 2, 4, 8, 16, 32, 64)
    )
    y = Axis("loss above that at the training length (nats per token)")
    panels = []
    for title, by_name in tables.items():
        series = []
        for name, losses in by_name.items():
            lengths, values = torch.tensor(list(losses.items()), dtype=torch.float64).T
            style = styles[SPECS[name]]
            series.append(Series(name, lengths / lengths[0], values - values[0], style=style))
        panels.append(Lines(x, y, tuple(series), title, (Mark("y", 0.0, ""),)))
    return Picture("published", "", "How much the loss rises with length", tuple(panels), columns=2)


def draw() -> bytes:
    figure, buffer = figure_of(picture()), io.BytesIO()
    figure.set_size_inches(11, 4.6)
    figure.savefig(buffer, format="png", dpi=130, metadata={"Software": None})
    return buffer.getvalue()


if __name__ == "__main__":
    write_report(RECORDS)
    for large in ("report.html", "report.json"):  # made in a moment, and megabytes
        (RECORDS / large).unlink()
    PICTURE.write_bytes(draw())
    PAGE.write_text(render(), encoding="utf-8")
