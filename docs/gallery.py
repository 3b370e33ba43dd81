"""Write docs/gallery.md and its pictures, each by the command that stands under it: ``python docs/gallery.py``."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from ordinate.cli.app import run

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "gallery.md"
FOLDER = ROOT / "docs" / "gallery"


@dataclass(frozen=True)
class Entry:
    """One picture: its file, the command without the file, and what to see."""

    file: str
    arguments: str
    text: str


SECTIONS: dict[str, tuple[Entry, ...]] = {
    "Codes": (
        Entry("codes-20.png", "sinusoidal --positions 20 --dim 32",
              "Sinusoidal codes of the first 20 positions: sines in even channels, cosines in odd ones, fast on the "
              "left and slow on the right."),
        Entry("codes-50.png", "sinusoidal --positions 50 --dim 64", "50 positions and 64 channels."),
        Entry("codes-100.png", "sinusoidal --positions 100 --dim 512",
              "100 positions and 512 channels: most of them hardly move within a hundred positions."),
        Entry("channels.png", "sinusoidal --kind channels --channels 2,6,12 --positions 128",
              "Three channels along 128 positions."),
        Entry("profile.png", "sinusoidal --kind profile --at 1,5",
              "The whole codes of positions 1 and 5; the zigzag is sine and cosine in turn."),
    ),
    "Rotations": (
        Entry("rotation.png", "rope --kind rotation --positions 16",
              "Three pairs of a RoPE head from position 0 to 15, each on a circle of its own. With `-o rotation.html` "
              "they turn."),
        Entry("waves.png", "rope:base=1e6 --kind waves --pairs 0,15,31 --positions 512",
              "Cosines of a fast, a middle and a slow pair at base 10⁶, head_dim 64."),
        Entry("wavelengths.png", "rope --kind wavelengths",
              "The wavelength of each pair. Pairs above the line see less than a turn in training."),
        Entry("scalings.png", "rope --kind scalings --factor 8",
              "What four scalings do to each pair: linear divides all of them, NTK the slow ones more and more, YaRN "
              "and Llama 3 keep the fast ones as they are."),
    ),
    "Biases": (
        Entry("alibi-slopes.png", "alibi --kind slopes", "ALiBi's slopes for 8 heads."),
        Entry("alibi-bias.png", "alibi --kind bias",
              "The matrices they make, in one scale: the first head hardly sees beyond its neighbours, the last "
              "hardly minds."),
        Entry("t5-buckets.png", "t5:bidirectional=true --kind buckets --positions 14",
              "T5's buckets in both directions: exact up to distance 7, shared from 8 on, the future in the upper "
              "half."),
        Entry("t5-bias.png", "t5 --kind bias --heads 4",
              "What T5's table adds on each head, here as it is initialised."),
        Entry("shaw-bias.png", "shaw --kind bias --heads 4",
              "Shaw's term depends on the query, so its rows differ; beyond 16 positions it is constant."),
    ),
    "Scores": (
        Entry("rope-scores.png", "rope --kind scores",
              "RoPE's scores sink with distance on average, but not evenly: they rise again and again."),
        Entry("alibi-scores.png", "alibi --kind scores", "ALiBi's fall on straight lines."),
        Entry("attention.png", "rope --kind attention --text 'the dog bites the man'",
              "The permutation experiment. Without positions, shuffling the words only shuffles attention with them: "
              "put back in order, nothing has changed. With RoPE it has."),
    ),
}  # fmt: skip


def entries() -> list[Entry]:
    return [entry for section in SECTIONS.values() for entry in section]


def render() -> str:
    """The page."""
    lines = [
        "# Gallery",
        "",
        "Every picture here was drawn by the command under it, which takes `.png`, `.svg` or `.html`; `--json` gives",
        "the numbers instead. `python docs/gallery.py` makes the page anew, and [see.md](see.md) says how to do the",
        "same in Python.",
        "",
    ]
    for title, listed in SECTIONS.items():
        lines += [f"## {title}", ""]
        for entry in listed:
            lines += [f"![{entry.text}](gallery/{entry.file})", "", entry.text, ""]
            lines += ["```sh", f"ordinate plot {entry.arguments} -o {entry.file}", "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def draw(entry: Entry) -> None:
    """Run the command, and write the file with a palette where no pixel shows the difference."""
    from PIL import Image, ImageChops

    path = FOLDER / entry.file
    if run(["plot", *shlex.split(entry.arguments), "-o", str(path)]):
        sys.exit(f"ordinate plot {entry.arguments} failed")
    with Image.open(path) as image:
        full = image.convert("RGB")
    small = full.quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    worst = max(high for _, high in ImageChops.difference(full, small.convert("RGB")).getextrema())
    (small if worst <= 10 else full).save(path, optimize=True)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for entry in entries():
        draw(entry)
    PAGE.write_text(render(), encoding="utf-8")
