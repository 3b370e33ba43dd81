"""`RunConfig`: all settings that determine the numbers of one run, in one frozen dataclass."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..checks import check_at_most, check_int, check_positive_int, refused, short
from ..entries import parse
from ..text import Text
from .strict_json import is_number, is_whole

# The most characters of a spec in the name of its folder: file systems allow 255 in total.
_LONGEST_NAME = 150
# The most tests of one model; a config file of a megabyte could name thousands of millions.
_MOST_TESTS = 10_000
#: The version of the config's fields and of the code that computes its numbers. Raised with every change of either.
FORMAT = 3
# Records of older formats can still be read. These fields were added later; older records behave like these values.
_ADDED_LATER = {2: {"text_source": "", "control": True, "threads": 1}}


@dataclass(frozen=True)
class RunConfig:
    """One run: an encoding, a seed, and the settings that all runs of a comparison share.

    Two runs with equal configs on one machine give equal numbers, to the digit.

    Args:
        spec: The encoding, as in `ordinate.create`.
        seed: For the weights, the order of batches and the tasks' random sequences.
        task: A name of `ordinate.lab.tasks.TASKS`.
        train_length: Tokens of a training sequence, and rows of a learned table.
        lengths: Lengths to test at.
        steps, batch: Optimizer steps, and sequences in each (over all processes together).
        learning_rate: At the end of the warm-up; a cosine brings it to a tenth.
        warmup: Steps until the learning rate is reached.
        encoding_rate: The factor of the learning rate for an encoding's own parameters. A table starts near zero
            and must change more than weights: at the common rate, tables are learned last.
        weight_decay: Of matrices; not of gains, nor of an encoding's tables.
        clip: The largest norm of the gradient; larger gradients are scaled down to it.
        evaluation_tokens: Tokens to test on at each length, the same text for each.
        last_tokens: How many tokens at the end of a sequence `last_loss` averages.
        extensions: Scalings to test a trained RoPE with, untrained: ``"yarn:factor=8"``.
        validate_every, checkpoint_every: In steps.
        device: ``"cpu"``, ``"cuda"`` or ``"mps"`` (Apple's GPUs).
        dtype: Of matrix products, ``"float32"`` or ``"bfloat16"``; weights are float32.
        compile: Whether the model is compiled by `torch.compile`.
        deterministic: Whether a GPU must give the same numbers in every run, which slows down PyTorch's own
            attention; a CPU always does.
        text: Files and folders to learn from; empty for Python's standard library.
        corpus: Fingerprint of that text, so that records of different texts are never mixed.
        text_source: The source and size of that text: Python's library differs between its patch versions.
        control: Whether a text is also tested with exactly the last training length of tokens visible.
        threads: The number of PyTorch's threads on the CPU. Sums over threads depend on it.
    """

    spec: str
    seed: int = 0
    task: str = "language"
    train_length: int = 64
    lengths: tuple[int, ...] = (64, 96, 128, 256, 512)
    steps: int = 1000
    batch: int = 16
    d_model: int = 96
    num_layers: int = 3
    num_heads: int = 8
    learning_rate: float = 4e-3
    warmup: int = 100
    encoding_rate: float = 10.0
    weight_decay: float = 0.1
    clip: float = 1.0
    evaluation_tokens: int = 32768
    last_tokens: int = 32
    extensions: tuple[str, ...] = ()
    validate_every: int = 100
    checkpoint_every: int = 250
    device: str = "cpu"
    dtype: str = "float32"
    compile: bool = False
    deterministic: bool = True
    text: tuple[str, ...] = ()
    corpus: str = ""
    text_source: str = ""
    control: bool = True
    threads: int = 1
    format: int = FORMAT

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # JSON cannot hold the integers of NumPy
            object.__setattr__(self, field.name, _plain_ints(field.name, getattr(self, field.name)))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RunConfig:
        """From the result of `to_dict`, also after a round trip through JSON.

        Raises:
            ValueError: A field is unknown, missing, or of another type.
        """
        if not isinstance(values, dict):
            raise refused("config", "must be an object", short(values))
        version = values.get("format")
        values = {**(_ADDED_LATER.get(version, {}) if isinstance(version, int) else {}), **values}
        types = {field.name: str(field.type) for field in dataclasses.fields(cls)}
        if set(values) != set(types):
            odd = ", ".join(sorted(set(values) ^ set(types)))
            raise refused(
                "config", "must have the fields of RunConfig, differs in: {odd}", odd=odd[:200]
            )
        frozen: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in values.items()}
        for name, value in frozen.items():
            if not _HAS_TYPE[types[name]](value):
                raise refused(name, "must be {type}", short(value), type=types[name])
            if "int" in types[name]:
                for number in value if isinstance(value, tuple) else (value,):
                    check_positive_int(name, number, minimum=0 if name in ("seed", "warmup") else 1)
        if frozen["format"] not in (*_ADDED_LATER, FORMAT):
            raise refused(
                "format",
                "must be at least {least} and at most {most}",
                frozen["format"],
                least=min(_ADDED_LATER),
                most=FORMAT,
            )
        lengths = frozen["lengths"]
        if not lengths or list(lengths) != sorted(set(lengths)):
            raise refused("lengths", "must go up", short(lengths))
        tests = len(lengths) * (1 + len(frozen["extensions"]))
        check_at_most(Text("lengths times extensions"), tests, _MOST_TESTS)
        return cls(**frozen)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values = dataclasses.asdict(self)
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}

    def check_format(self) -> None:
        """Refuse to continue a run of an older format, which can only be read.

        Raises:
            ValueError: This config is of an older format.
        """
        if self.format != FORMAT:
            raise refused(
                "format", "must be {format} for a run to be done", self.format, format=FORMAT,
                advice=": with one seed, ordinate had other weights then",
            )  # fmt: skip

    def settings(self) -> dict[str, Any]:
        """The settings that the runs of one comparison share: all except the encoding and the seed."""
        return {name: v for name, v in self.to_dict().items() if name not in ("spec", "seed")}

    def tests(self) -> list[tuple[str | None, int]]:
        """Every test of the trained model: the scaling to apply, or None, and a length.

        Scalings are only for models that were trained with plain RoPE.
        """
        alone = [entry.takes_scaling for entry, _ in parse(self.spec)] == [True]
        scalings = (None, *self.extensions) if alone else (None,)
        return [(scaling, length) for scaling in scalings for length in self.lengths]


def _plain_ints(name: str, value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple([_plain_ints(f"{name}[{index}]", one) for index, one in enumerate(value)])
    try:
        return check_int(name, value)
    except TypeError:
        return value


# Checks of the fields' types, keyed by their annotations above.
_HAS_TYPE: dict[str, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str),
    "int": is_whole,
    "float": lambda value: is_number(value) and abs(value) < math.inf,
    "bool": lambda value: isinstance(value, bool),
    "tuple[int, ...]": lambda value: isinstance(value, tuple) and all(map(is_whole, value)),
    "tuple[str, ...]": lambda value: isinstance(value, tuple) and all(isinstance(v, str) for v in value),
}


def distinct_specs(specs: Iterable[str]) -> tuple[str, ...]:
    """Specs without duplicates, also if two specs spell one encoding differently.

    Raises:
        ValueError: A spec cannot be read.

    Example:
        >>> distinct_specs(["rope", " ROPE", "rope:base=1e6", "rope:base=1000000", "nope", "none"])
        ('rope', 'rope:base=1e6', 'nope')
    """
    found: dict[str, str] = {}
    for spec in specs:
        parts = [
            # 1 and 1.0 must compare equal as text; an integer may be too large for a float.
            (entry.name, sorted((n, float(v) if is_number(v) and abs(v) < 1e300 else v) for n, v in options.items()))
            for entry, options in parse(spec)
        ]  # fmt: skip
        found.setdefault(repr(parts), spec.strip())
    return tuple(found.values())


def run_names(arms: Iterable[str], seeds: Iterable[int]) -> dict[tuple[str, int], str]:
    """The folder of every run: the spec in characters that any file system allows, and the seed.

    Specs that differ only in other characters get a number, in the given order.

    Example:
        >>> run_names(["rope", "rope+yarn:factor=4"], [0])
        {('rope', 0): 'rope-0', ('rope+yarn:factor=4', 0): 'rope_yarn_factor=4-0'}
    """
    slugs: dict[str, str] = {}
    times: Counter[str] = Counter()
    for spec in dict.fromkeys(arms):
        plain = slug = re.sub(r"^\.+|[^a-z0-9.=-]", "_", spec.strip().lower())[:_LONGEST_NAME]
        while times[slug]:
            times[plain] += 1
            slug = f"{plain}_{times[plain]}"
        times[slug] = 1
        slugs[spec] = slug
    return {(spec, seed): f"{slug}-{seed}" for spec, slug in slugs.items() for seed in seeds}
