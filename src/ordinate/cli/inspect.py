"""``ordinate inspect``: the config doctor."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import typer
from rich.console import Console
from rich.console import Group as Stack
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ..checks import short
from ..extras import how_to_install
from ..hf.config.api import from_config
from ..hf.config.families.family import DIALECTS
from ..hf.config.plan import ConfigError
from ..hf.doctor import Diagnosis, Group, Pair, diagnose
from .errors import errors_as_misuse, misuse
from .output import plain_table, print_facts, print_json, print_notes

_HELP = "ordinate inspect --help"

EPILOG = """Examples:

\b
  ordinate inspect config.json                   what a model does with positions, and what is odd
  ordinate inspect path/to/model                 the config.json of a model's folder
  ordinate inspect config.json --pairs           every pair of channels
  ordinate inspect config.json --read            which keys say so
  ordinate inspect config.json --dialect paper   YaRN as in the paper
  ordinate inspect config.json --family llama    an unknown model that is built like Llama
  ordinate inspect config.json --json            for a program to read
  ordinate inspect config.json --plot pairs.png  wavelengths before and after scaling

Nothing is downloaded and nothing of the config is executed.
Exit code: 0 if it could be read, with or without warnings; 2 if not.
"""

_OPTIONS = {
    "source": "CONFIG",
    "family": "--family",
    "family=…": "--family NAME",
    "dialect": "--dialect",
}
_FATES = {"kept": "green", "blended": "yellow", "interpolated": "magenta", "still": "dim"}


def command(
    config: Path = typer.Argument(
        metavar="CONFIG", help="A config.json, or a folder with one.", show_default=False
    ),
    every_pair: bool = typer.Option(
        False, "--pairs", help="List every pair, not those at the edges of a band."
    ),
    read: bool = typer.Option(False, "--read", help="List what was read, from which key."),
    family: str | None = typer.Option(
        None, metavar="NAME", help="Read it as a model of this model_type."
    ),
    dialect: str | None = typer.Option(
        None, metavar="NAME", help=f"YaRN's dialect: {', '.join(DIALECTS)}."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    plot: Path | None = typer.Option(
        None, metavar="FILE", help="Draw wavelengths: .png, .svg or .html."
    ),
) -> None:
    """Explain how a model knows the order of its tokens, from its config alone."""
    with errors_as_misuse(_HELP, _OPTIONS, errors=(ConfigError,)):
        plan = from_config(config, family=family, dialect=dialect)  # type: ignore[arg-type]
    found = diagnose(plan)
    if dialect is not None and not any(group.dialect for group in found.groups):
        raise misuse("--dialect", "must be left out where there is no YaRN", repr(dialect), hint=_HELP)
    if plot is not None:
        _draw(found, plot, config.name)
    if as_json:
        print_json(found.to_dict(), default=short)
    else:
        print_diagnosis(Console(highlight=False), found, every_pair=every_pair, read=read)


def print_diagnosis(
    console: Console, found: Diagnosis, *, every_pair: bool = False, read: bool = False
) -> None:
    """Everything found, the most important first."""
    count = "1 layer" if found.layers == 1 else f"{found.layers} layers"
    console.print(Text.assemble((found.family, "bold"), f"  {found.model_type} · {count}"))
    codes = "{} codes" if len(found.embeddings) > 1 else "codes"
    embeddings = [(codes.format(stack), text) for stack, text in found.embeddings.items()]
    print_facts(console, [("context", _context(found)), *embeddings])
    for group in found.groups:
        print_facts(console, _group_facts(group), group.title)
        if group.pairs:
            console.print(_pair_table(console, group, every_pair))
    print_notes(console, found.notes, found.warnings)
    if read:
        rows = [(reading.key, f"{short(reading.value)}  {reading.meaning}") for reading in found.read]
        print_facts(console, rows, "read")


def _context(found: Diagnosis) -> str:
    trained, context = found.original_max_positions, found.effective_context
    if context is None:
        return "no limit in the config"
    return f"{context} positions" + (
        "" if trained in (None, context) else f", frequencies trained at {trained}"
    )


def _group_facts(group: Group) -> list[tuple[str, str]]:
    mask = "causal" if group.causal else "both directions"
    mask += "" if group.window is None else f", window {group.window}"
    mask += "" if group.chunk is None else f", chunks of {group.chunk}"
    softmax = f"scale {group.softmax_scale:.6g}"
    if group.base is None:
        return [("encoding", group.encoding), ("mask", mask), ("softmax", softmax)]
    dialect = f", {group.dialect} dialect" if group.dialect else ""
    return [
        ("rotation", f"base {group.base:.10g}, {group.layout} layout, {group.channels} channels turn"),
        ("scaling", f"{group.scaling or 'none'}{dialect}"),
        ("attention", _factors(group)),
        ("mask", mask),
    ]


def _factors(group: Group) -> str:
    factor = 1.0 if group.attention_factor is None else group.attention_factor
    logits = f" (logits of turned channels x {factor**2:.6g})" if factor != 1 else ""
    text = f"factor {factor:.6g} on cos and sin{logits}; softmax scale {group.softmax_scale:.6g}"
    if group.logit_factor != 1:
        text += f", in which {group.logit_factor:.6g} from mscale_all_dim, on the whole head"
    return text


_COLUMNS = ("pair", "wavelength", "scaled", "turns")


def _pair_table(console: Console, group: Group, every_pair: bool) -> Table | Stack:
    """Every pair, or the first and the last of each band with dots between; stacked where it is too wide."""
    table = plain_table(2)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    shown = _shown(group, every_pair)
    for pair in shown:
        if pair is None:
            table.add_row("…", style="dim")
        else:
            table.add_row(*_cells(pair), Text(pair.fate, style=_FATES[pair.fate]))
    if Measurement.get(console, console.options.update(max_width=10**4), table).maximum <= console.width:
        return table
    return Stack(*(Text("…", style="dim") if pair is None else _stacked(pair) for pair in shown))


def _shown(group: Group, every_pair: bool) -> list[Pair | None]:
    shown: list[Pair | None] = []
    for band in group.bands:
        inside = group.pairs[band.first : band.last + 1]
        shown += inside if every_pair or len(inside) <= 3 else (inside[0], None, inside[-1])
    return shown


def _stacked(pair: Pair) -> Text:
    """A pair on lines of its own, for narrow terminals."""
    index, *numbers = _cells(pair)
    lines = [f"  {name} {number}" for name, number in zip(_COLUMNS[1:], numbers, strict=True) if number]
    return Text.assemble(
        f"pair {index} ", (pair.fate, _FATES[pair.fate]), *(f"\n{line}" for line in lines)
    )


def _cells(pair: Pair) -> list[str]:
    scaled = "–" if math.isinf(pair.scaled) else _number(pair.scaled)
    turns = "" if pair.turns is None else _number(pair.turns)
    return [str(pair.index), _number(pair.wavelength), scaled, turns]


def _number(value: float) -> str:
    return f"{value:.4g}" if value < 1e4 else f"{value:,.0f}" if value < 1e12 else f"{value:.3e}"


def _draw(found: Diagnosis, path: Path, subject: str) -> None:
    from ..hf.picture import picture_of
    from ..plots.api import save_picture

    try:
        with errors_as_misuse(_HELP, {"path": "--plot"}, errors=(ValueError, OSError)):
            save_picture(picture_of(found, subject), path)
        print(f"wrote {path}", file=sys.stderr)
    except ImportError as error:
        hint, package = how_to_install("plot"), error.name or "matplotlib"
        rule = "needs {package}, not installed here."
        raise misuse("--plot", rule, hint=hint, package=package) from None
