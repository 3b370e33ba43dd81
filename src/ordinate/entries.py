"""Every encoding and scaling by name, and the small language that makes one from a line of text."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any, get_args

from . import scaling
from .bias.alibi import ALiBi
from .bias.clipped import ClippedBias
from .bias.shaw import Shaw
from .bias.t5 import T5Bias
from .checks import check_at_most, check_choice, check_positive_int, nearest, refused, short
from .embed.learned import Learned
from .embed.sinusoidal import Sinusoidal
from .encoding import Along, Combined, NoPE, PositionEncoding
from .entry import Entry, Hook, Option, Table
from .rotate.rope import RoPE
from .spec import MOST_CHARACTERS, MOST_PARTS, quoted, read_value, split
from .text import Text


def _rows_by_distance(sizes: Mapping[str, int]) -> int:
    return 2 * sizes.get("max_distance", 0) + 1


def _divisors_of_longrope(head_dim: int) -> str:
    """Divisors that rise from 1 to 4: small for the fast pairs, as the paper's search finds them."""
    pairs = head_dim // 2
    long = ",".join(f"{4 ** (pair / max(pairs - 1, 1)):.3f}" for pair in range(pairs))
    short = ",".join("1" for _ in range(pairs))
    return f"short_factor=({short},),long_factor=({long},),factor=4"


_BASE = Option(1, 8, 0.1, logarithmic=True)
_FAR = Option(1, 1024, most=2**16)
_STEPS = "ordinate.walkthrough"

_BUILT_IN = (
    Entry("none", NoPE, "none", False, 2022, "arXiv:2203.16634",
          "nothing: a causal mask alone betrays the order", "every fourth layer of Llama 4, SmolLM3",
          steps=f"{_STEPS}.nope:steps_of_nope"),
    Entry("sinusoidal", Sinusoidal, "embed", False, 2017, "arXiv:1706.03762",
          "x[p] + [sin(p·w_i), cos(p·w_i)],  w_i = base^(-2i/d)", "the Transformer, Marian, Whisper's encoder",
          options={"base": _BASE, "layout": Option(), "endpoint": Option(), "offset": Option(most=2**16)},
          steps=f"{_STEPS}.codes:steps_of_sinusoidal", pictures=("codes",)),
    Entry("learned", Learned, "embed", True, 2018, "arXiv:1810.04805",
          "x[p] + weight[p]", "BERT, GPT-2, OPT",
          table=Table(lambda sizes: sizes.get("max_positions", 0) + sizes.get("offset", 0), "d_model"),
          options={"max_positions": Option(most=2**24), "offset": Option(most=2**16)},
          steps=f"{_STEPS}.codes:steps_of_learned", pictures=("codes",)),
    Entry("rope", RoPE, "rotate", False, 2021, "arXiv:2104.09864",
          "pairs of q[p], k[p] turned by p·base^(-2i/d)", "Llama, Qwen, Mistral, Gemma, DeepSeek",
          options={"base": _BASE, "layout": Option(), "rotary_dim": Option(most=1024)},
          steps=f"{_STEPS}.rotary:steps_of_rope", pictures=("rotation", "waves", "scalings")),
    Entry("alibi", ALiBi, "bias", False, 2021, "arXiv:2108.12409",
          "q·k/sqrt(d) - m_h·(i - j)", "BLOOM, MPT, Falcon-RW",
          options={"symmetric": Option()}, steps=f"{_STEPS}.biases:steps_of_alibi", pictures=("bias", "slopes")),
    Entry("clipped", ClippedBias, "bias", True, 2018, "arXiv:1803.02155",
          "q·k/sqrt(d) + weight_h[clip(i - j)]", "tutorials; the scalar form of Shaw's clipped distances",
          {"max_distance": 128}, table=Table(_rows_by_distance, "num_heads"), options={"max_distance": _FAR},
          steps=f"{_STEPS}.biases:steps_of_clipped", pictures=("distance", "buckets")),
    Entry("t5", T5Bias, "bias", True, 2019, "arXiv:1910.10683",
          "q·k + weight_h[bucket(i - j)]", "T5, mT5, UL2",
          table=Table(lambda sizes: sizes.get("num_buckets", 32), "num_heads", "bucket"),
          options={"bidirectional": Option(), "num_buckets": Option(4, 128, 4, most=1024), "max_distance": _FAR},
          steps=f"{_STEPS}.biases:steps_of_t5", pictures=("buckets",)),
    Entry("shaw", Shaw, "bias", True, 2018, "arXiv:1803.02155",
          "q·(k + keys[clip(j - i)])/sqrt(d)", "Music Transformer, Wav2Vec2-BERT, SeamlessM4T v2",
          {"max_distance": 16}, table=Table(_rows_by_distance, "head_dim"), options={"max_distance": _FAR},
          steps=f"{_STEPS}.biases:steps_of_shaw"),
    Entry("linear", scaling.Linear, "scaling", False, 2023, "arXiv:2306.15595",
          "w_i / s", "LongChat, early Llama 2 extensions", example="factor=4"),
    Entry("ntk", scaling.NTK, "scaling", False, 2023, "arXiv:2309.00071",
          "base -> base·s^(d/(d-2))", "Code Llama's larger base, in effect", example="factor=4"),
    Entry("dynamic", scaling.DynamicNTK, "scaling", False, 2023, "arXiv:2309.00071",
          "base -> base·(f·S/L - f + 1)^(d/(d-2))", "Qwen 1, InternLM", example="factor=4"),
    Entry("yarn", scaling.YaRN, "scaling", False, 2023, "arXiv:2309.00071",
          "w_i·(kept_i + (1 - kept_i)/s)", "Qwen 2.5 and 3, DeepSeek V2 and V3, gpt-oss, MiniMind",
          example="factor=4"),
    Entry("longrope", scaling.LongRoPE, "scaling", False, 2024, "arXiv:2402.13753",
          "w_i / searched_i", "Phi-3, MiniCPM", example=_divisors_of_longrope),
    Entry("llama3", scaling.Llama3, "scaling", False, 2024, "arXiv:2407.21783",
          "w_i kept, blended or divided, by wavelength", "Llama 3.1, 3.2, 3.3",
          example="factor=8,low_freq_factor=1,high_freq_factor=4"),
    Entry("proportional", scaling.Proportional, "scaling", False, 2024, "arXiv:2410.06205",
          "w_i for the fastest pairs, 0 for the rest", "Gemma 4",
          # A quarter of fewer than four pairs would be none.
          example=lambda head_dim: "fraction=0.25" if head_dim >= 8 else "fraction=1.0"),
)  # fmt: skip


class _Catalog(Mapping[str, Entry]):
    """Name → `Entry`, in the order an introduction would take; read-only, `register` adds to it.

    Entries of other packages (entry points in the group ``ordinate.encodings``) are loaded when the catalog is
    listed or asked for a name that it does not have.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = {entry.name: entry for entry in entries}
        self._loads_packages = True

    def __getitem__(self, name: str) -> Entry:
        if name not in self._entries:
            self._load_packages()
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        self._load_packages()
        return iter(tuple(self._entries))

    def __len__(self) -> int:
        self._load_packages()
        return len(self._entries)

    def _load_packages(self) -> None:
        if not self._loads_packages:
            return
        self._loads_packages = False  # before anything is loaded, which may look into the catalog
        for point in entry_points(group=GROUP):
            try:
                register(point.load())
            except Exception as error:
                warnings.warn(
                    f"the encoding of entry point {point.name!r} = {point.value!r} is left out: "
                    f"{type(error).__name__}: {error}",
                    RuntimeWarning,
                    stacklevel=2,
                )


#: The group of entry points in which other packages offer an `Entry` each.
GROUP = "ordinate.encodings"

_known = _Catalog(_BUILT_IN)
#: Name → `Entry`, in the order an introduction would take.
catalog: Mapping[str, Entry] = _known


def register(entry: Entry) -> Entry:
    """Add an encoding or a scaling to the catalog: `create`, `show`, `plot`, `verify`, `compare` and the page know it.

    Returns:
        The entry.

    Raises:
        TypeError: No `Entry`, or one whose class is no `PositionEncoding` (for hook "scaling", no `Scaling`) or has
            ``claims`` that are no set.
        ValueError: A name that is taken or cannot stand in a spec; a class without a docstring or, for an
            encoding, without ``claims`` of its own; an unknown hook; options that the class does not take.

    Example:
        >>> class Near(ordinate.PositionEncoding):
        ...     "Lower every score by the distance."
        ...     claims = frozenset({"shift invariance", "decay with distance"})
        ...     def bias(self, q, k, q_positions=None, k_positions=None, *, x=None):
        ...         places = ordinate.positions.resolve(q, k, q_positions, k_positions)
        ...         return ordinate.LinearBias(torch.ones(q.shape[1]), places, symmetric=True)
        >>> entry = register(ordinate.Entry("near", Near, "bias", False, 2026, "none", "q·k - |i - j|", "no model"))
        >>> ordinate.create("rope+near", head_dim=8).encodings[1]
        Near()
        >>> unregister("near")
    """
    _check_entry(entry)
    _known._entries[entry.name] = entry
    return entry


def _check_entry(entry: Entry) -> None:
    if not isinstance(entry, Entry):
        raise refused("entry", "must be an Entry", short(entry), error=TypeError)
    base = scaling.Scaling if entry.is_scaling else PositionEncoding
    cls = entry.cls
    if not (isinstance(cls, type) and issubclass(cls, base)):
        rule = "must be a subclass of {base}"
        raise refused(
            Text("cls of {name}", name=short(entry.name)),
            rule,
            short(cls),
            error=TypeError,
            base=base.__name__,
        )
    if not (isinstance(entry.name, str) and re.fullmatch("[a-z][a-z0-9_]*", entry.name)):
        rule = "must be small letters, digits and underscores, a letter first"
        raise refused("name", rule, short(entry.name))
    if entry.name in catalog or entry.name in _ALIASES:
        raise refused("name", "must be new to the catalog", repr(entry.name))
    if not cls.__doc__:
        raise refused(
            Text("cls of {name}", name=short(entry.name)), "must have a docstring", cls.__name__
        )
    if not entry.is_scaling and not any(
        "claims" in vars(one) for one in cls.__mro__[: cls.__mro__.index(base)]
    ):
        rule = "must have claims of its own, if only frozenset()"
        raise refused(Text("cls of {name}", name=short(entry.name)), rule, cls.__name__)
    claims: object = getattr(cls, "claims", frozenset())  # a scaling has none
    if not isinstance(claims, (frozenset, set, property)):
        owner = Text("claims of {encoding}", encoding=cls.__name__)
        raise refused(owner, "must be a set of names", short(claims), error=TypeError)
    check_choice(Text("hook of {name}", name=short(entry.name)), entry.hook, get_args(Hook))
    for option in entry.options or ():
        if option not in entry.parameters:
            rule = "must be parameters of {cls}"
            raise refused(
                Text("options of {name}", name=short(entry.name)), rule, short(option), cls=cls.__name__
            )


def unregister(name: str) -> None:
    """Take an entry that `register` added out of the catalog again."""
    if name not in _known._entries or _known._entries[name] in _BUILT_IN:
        raise refused("name", "must be of an entry that was registered", short(name))
    del _known._entries[name]


def entry_of(encoding: object) -> Entry | None:
    """The entry of an encoding's or a scaling's own class; None of a class that is not in the catalog."""
    return next((entry for entry in catalog.values() if entry.cls is type(encoding)), None)


def example_specs(head_dim: int = 64) -> dict[str, str]:
    """Name → spec for `create`, of each entry: what `ordinate verify` measures when it is given no names.

    Example:
        >>> example_specs()["rope+yarn"]
        'rope+yarn:factor=4'
    """
    names = {f"rope+{name}" if entry.is_scaling else name: entry for name, entry in catalog.items()}
    return {name: entry.example_spec(head_dim) for name, entry in names.items()}


_ALIASES = {"nope": "none"}

#: The rule by which a command tells that the name of an encoding was refused.
UNKNOWN_ENCODING = "unknown encoding {name} in spec {spec}{hint}"

#: The most numbers a table made from a spec may hold: 1 GiB in float32. Call the class to make a larger one.
LARGEST_TABLE = 2**28


def create(
    spec: str,
    *,
    d_model: int | None = None,
    num_heads: int | None = None,
    head_dim: int | None = None,
    max_positions: int | None = None,
) -> PositionEncoding:
    """An encoding from its name and options: ``"rope:base=1e6"``, ``"rope+yarn:factor=4"``, ``"rope+alibi"``.

    Options follow a colon, separated by commas. After ``+`` a scaling modifies the rotation before it
    and an encoding is combined with what came before; ``axis=0`` among the options of any encoding makes it
    read that coordinate of positions with several, as `Along` does.

    Args:
        d_model, num_heads, head_dim, max_positions: What the model has; each encoding takes what it
            needs. ``head_dim`` defaults to ``d_model / num_heads``; ``max_positions`` is also the length a
            scaling starts from, unless its options say ``original_max_positions``.

    Raises:
        ValueError: An unknown name or option (with the nearest known ones), a value that cannot be
            read, or a dimension the encoding needs and was not given.

    Example:
        >>> create("rope+yarn:factor=4", head_dim=64, max_positions=2048).scaling.factor
        4
    """
    given = (
        ("d_model", d_model),
        ("num_heads", num_heads),
        ("head_dim", head_dim),
        ("max_positions", max_positions),
    )
    d_model, num_heads, head_dim, max_positions = (
        None if value is None else check_positive_int(name, value) for name, value in given
    )
    if head_dim is None and d_model and num_heads and d_model % num_heads == 0:
        head_dim = d_model // num_heads  # else head_dim is missing, which only some encodings mind
    context = {
        "d_model": d_model,
        "num_heads": num_heads,
        "head_dim": head_dim,
        "max_positions": max_positions,
        "original_max_positions": max_positions,
    }
    made: list[tuple[Entry, dict[str, Any]]] = []
    axes: list[int | None] = []
    for entry, options in parse(spec):
        axis = None if entry.is_scaling else options.pop("axis", None)
        arguments = _arguments(entry, options, context, spec)
        numbers = entry.numbers_in_table(arguments)
        check_at_most(Text("numbers in the table of {name}", name=entry.name), numbers, LARGEST_TABLE)
        if not entry.is_scaling:
            made.append((entry, arguments))
            axes.append(axis)
            continue
        if not made or not made[-1][0].takes_scaling:
            before = made[-1][0].name if made else "nothing"
            rule = "must follow rope in spec {spec}"
            raise refused(Text("scaling {name!r}", name=entry.name), rule, before, spec=quoted(spec))
        if made[-1][1].get("scaling") is not None:
            rule = "must have one scaling in spec {spec}, got a second, {second!r}"
            raise refused("rope", rule, spec=quoted(spec), second=entry.name)
        made[-1][1]["scaling"] = entry.cls(**arguments)
    encodings: list[PositionEncoding] = []
    for (entry, arguments), axis in zip(made, axes, strict=True):
        encoding = entry.cls(**arguments)
        encodings.append(encoding if axis is None else Along(encoding, axis))
    return encodings[0] if len(encodings) == 1 else Combined(*encodings)


def parse(spec: str) -> list[tuple[Entry, dict[str, Any]]]:
    """The encodings and scalings a spec names, each with the options it gives; nothing is made yet.

    Example:
        >>> [(entry.name, options) for entry, options in parse("rope:base=1e+6+yarn:factor=4")]
        [('rope', {'base': 1000000.0}), ('yarn', {'factor': 4})]
    """
    if not isinstance(spec, str) or not spec.strip():
        raise refused("spec", "must be text such as 'rope:base=1e6'", short(spec))
    check_at_most("characters of a spec", len(spec), MOST_CHARACTERS)
    parts = re.split(r"\+(?=\s*[A-Za-z])", spec)
    check_at_most("encodings and scalings of a spec", len(parts), MOST_PARTS)
    return [_parse_part(text, spec) for text in parts]


def _parse_part(text: str, spec: str) -> tuple[Entry, dict[str, Any]]:
    name, _, listed = text.strip().partition(":")
    name = name.strip().lower()
    entry = catalog.get(_ALIASES.get(name, name))
    if entry is None:
        hint = nearest(name, catalog)
        raise refused("", UNKNOWN_ENCODING, name=quoted(name), spec=quoted(spec), hint=hint)
    options = {}
    for option in split(listed, spec) if listed.strip() else []:
        key, equals, value = (part.strip() for part in option.partition("="))
        if not equals or not key or not value:
            rule = "must be written name=value in spec {spec}"
            raise refused("option", rule, quoted(option), spec=quoted(spec))
        if key in options:
            rule = "must be given once in spec {spec}, got it twice"
            raise refused(Text("option {name}", name=quoted(key)), rule, spec=quoted(spec))
        options[key] = read_value(value, spec)
    return entry, options


def _arguments(
    entry: Entry, options: dict[str, Any], context: dict[str, Any], spec: str
) -> dict[str, Any]:
    parameters = entry.parameters
    for key in options:
        if key not in parameters:
            known: dict[str, Any] = {"option": quoted(key), "encoding": entry.name, "spec": quoted(spec)}
            if not parameters:
                rule = "unknown option {option} of {encoding!r} in spec {spec}; it has no options"
                raise refused("", rule, **known)
            rule = "unknown option {option} of {encoding!r} in spec {spec}{hint}"
            raise refused("", rule, **known, hint=nearest(key, parameters))
    arguments = {**{k: v for k, v in entry.defaults.items() if k in parameters}, **options}
    for key, parameter in parameters.items():
        if key in arguments:
            continue
        if context.get(key) is not None and parameter.default is parameter.empty:
            arguments[key] = context[key]
        elif parameter.default is parameter.empty:
            where = f"create(…, {key}=…)" if key in context else f"'{entry.name}:{key}=…'"
            if key == "original_max_positions":
                where = "create(…, max_positions=…)"
            rule = "needs {option}; give it as {where}"
            raise refused(
                Text("{name!r} in spec {spec}", name=entry.name, spec=quoted(spec)),
                rule,
                option=key,
                where=where,
            )
    return arguments
