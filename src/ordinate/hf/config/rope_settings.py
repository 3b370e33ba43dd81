"""Reads the rotary settings of a config, with old or new keys, into a `RoPE`.

Old keys: ``rope_theta``, and ``rope_scaling`` with ``type`` or ``rope_type``. New: ``rope_parameters`` with
everything, either flat or with one mapping per layer type. A value in the mapping overrides one outside of
it, and ``rope_scaling`` overrides ``rope_parameters``, as in the code that trained and serves these models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...checks import refused, short
from ...rotate.rope import RoPE
from ...text import Text
from .families.family import Dialect
from .plan import ConfigError, Reading
from .reader import MOST_CHANNELS, Reader, checked_integer, checked_number
from .rope_scalings import SCALINGS, TYPE_KEYS, RopeSource


def rope_parts(
    model: Reader, layer_types: list[str], scaled_types: tuple[str, ...] | None = None
) -> dict[str, Reader | None]:
    """The rotary settings of each layer type; None for a layer type that has no rotation.

    Flat settings hold for all layer types, or for those in ``scaled_types``.
    """
    old, new = model.part("rope_scaling"), model.part("rope_parameters")
    part = old if old is not None and old.values else new
    plain = Reader({}, path=f"{model.path}rope_parameters.", parent=model)
    if part is None or not part.values:
        return dict.fromkeys(layer_types, plain)
    if part is old and new and model.has("rope_parameters") and dict(old.values) != dict(new.values):
        model.warn("rope_scaling and rope_parameters differ; the first is taken, as transformers does")
    if any(isinstance(value, Mapping) for value in part.values.values()):
        return _nested_parts(part, layer_types)
    if scaled_types is None:
        return dict.fromkeys(layer_types, part)
    if part is new:
        raise refused(
            model.spelled("rope_parameters"),
            "must have one mapping for each layer type of this model",
            short(dict(part.values)),
            error=ConfigError,
        )
    if not set(scaled_types) & set(layer_types):
        model.warn("{key} has no effect, no layer is of the type it is for", key=part.path.rstrip("."))
    return {kind: part if kind in scaled_types else plain for kind in layer_types}


def _nested_parts(part: Reader, layer_types: list[str]) -> dict[str, Reader | None]:
    for layer_type in layer_types:
        if layer_type not in part.values:
            raise refused(
                f"{part.path}{layer_type}",
                "must be given, layers are of that type",
                short(list(part.values)),
                error=ConfigError,
            )
    for key, value in part.values.items():
        if key not in layer_types and isinstance(value, Mapping):
            part.warn("{key} has no effect, no layer is of that type", key=f"{part.path}{key}")
        elif key not in layer_types and value is not None:
            raise refused(
                f"{part.path}{key}",
                "must stand within a layer type's settings",
                short(value),
                error=ConfigError,
            )
    return {layer_type: part.part(layer_type) for layer_type in layer_types}


def read_rope(source: RopeSource, dialect: Dialect | None = None) -> RoPE:
    """The rotation of one layer type."""
    part, model = source.part, source.model
    kinds = source.rules.kinds or ("default", *SCALINGS)
    rope_type = _rope_type(part, {**_ALIASES, **source.rules.aliases}, kinds)
    meaning = "the base of the rotary frequencies"
    name, value = _inner_or_outer(part, "rope_theta", model, source.theta_key, meaning)
    base = checked_number(name, value, above=1, least=None, most=1e15)
    rotary_dim, fraction = _rotary_dim(source, proportional=rope_type == "proportional")
    scaling = None
    if rope_type != "default":
        scaling = SCALINGS[rope_type](source, rotary_dim, fraction, dialect or source.rules.dialect)
    sections = _sections(source, rotary_dim // 2)
    _refuse_unknown_keys(part, rope_type)
    try:
        return RoPE(
            source.head_dim, base, None if rotary_dim == source.head_dim else rotary_dim,
            source.rules.layout, scaling, sections, source.rules.section_layout,
        )  # fmt: skip
    except (ValueError, TypeError, OverflowError) as error:
        raise refused(
            part.path.rstrip("."),
            "must describe a rotation",
            f"{short(dict(part.values))}: {error}",
            error=ConfigError,
        ) from None


def _rope_type(part: Reader, aliases: Mapping[str, str], kinds: tuple[str, ...]) -> str:
    """``rope_type``, or the older ``type``; some old names mean new ones."""
    part.skip("rope_type", "type")
    new, old = part.values.get("rope_type"), part.values.get("type")
    key, given = ("rope_type", new) if new is not None else ("type", old)
    if given is None:
        options = [key for key in TYPE_KEYS if part.values.get(key) is not None]
        if options:
            raise refused(
                f"{part.path}rope_type",
                "must say what {option} is for",
                Text("nothing"),
                error=ConfigError,
                option=options[0],
            )
        return "default"
    if not isinstance(given, str) or aliases.get(given, given) not in kinds:
        raise refused(
            f"{part.path}{key}",
            "must be one of {choices}",
            short(given),
            error=ConfigError,
            choices=", ".join(kinds),
        )
    part.readings.append(Reading(f"{part.path}{key}", given, "the kind of frequency scaling"))
    kind = aliases.get(given, given)
    other = aliases.get(old, old) if new is not None and isinstance(old, str) else kind
    if other != kind and "default" not in (kind, other):
        part.warn(
            "{path}rope_type and {path}type differ; rope_type={given} is taken",
            path=part.path,
            given=repr(given),
        )
    return kind


def _inner_or_outer(part: Reader, key: str, model: Reader, outer: str, meaning: str) -> tuple[str, Any]:
    """The name and value of a setting: in the mapping, else outside of it, else the family's default."""
    part.skip(key)
    model.skip(outer)
    if part.values.get(key) is None:
        return model.spelled(outer), model.ask(outer, meaning)
    value = part.ask(key, meaning)
    if model.has(outer):
        model.warn_if_different(f"{part.path}{key}", value, model.spelled(outer), model.peek(outer))
    return f"{part.path}{key}", value


def _rotary_dim(source: RopeSource, proportional: bool) -> tuple[int, float]:
    """How many channels are rotated, and the fraction; p-RoPE's fraction is of the pairs, over the whole head."""
    part, model, key = source.part, source.model, "partial_rotary_factor"
    rotated = model.integer("rotary_dim", "channels of a head that turn", None, most=MOST_CHANNELS)
    name, given, fraction = model.spelled("rotary_dim"), rotated, 1.0
    part.skip(key)
    model.skip(key)
    if rotated is None or part.peek(key) is not None:
        if part.peek(key) is not None or model.peek(key) is not None:
            meaning = "the fraction of a head's channels that turn"
            name, given = _inner_or_outer(part, key, model, key, meaning)
            fraction = checked_number(name, given, above=0, least=None, most=1)
        rotated = source.head_dim if proportional else int(source.head_dim * fraction)
        if rotated == source.head_dim:
            name, given = model.spelled("head_dim"), source.head_dim
    if not 2 <= rotated <= source.head_dim or rotated % 2:
        raise refused(
            name,
            "must leave an even number of a head's {channels} channels to turn",
            Text("{value}, which leaves {rest}", value=short(given), rest=rotated),
            error=ConfigError,
            channels=source.head_dim,
        )
    return rotated, fraction


def _sections(source: RopeSource, pairs: int) -> tuple[int, ...] | None:
    """M-RoPE's pairs per axis."""
    part, rules = source.part, source.rules
    name = f"{part.path}mrope_section"
    listed = part.sequence("mrope_section", "pairs of each axis of M-RoPE", None)
    part.skip("mrope_interleaved")
    if listed is None:
        if rules.sections is not None and sum(rules.sections) != pairs:
            raise refused(
                name,
                "must be given for {pairs} pairs, the model's code assumes {assumed}",
                Text("nothing"),
                error=ConfigError,
                pairs=pairs,
                assumed=rules.sections,
            )
        return rules.sections
    counts = tuple(
        checked_integer(f"{name}[{index}]", count, 1, MOST_CHANNELS)
        for index, count in enumerate(listed)
    )
    if sum(counts) != pairs:
        raise refused(
            name,
            "must sum to the {pairs} pairs that turn",
            short(listed),
            error=ConfigError,
            pairs=pairs,
        )
    interleaved = part.boolean("mrope_interleaved", "whether axes take turns among the pairs", None)
    if interleaved is not None and interleaved != (rules.section_layout == "interleaved"):
        raise refused(
            f"{part.path}mrope_interleaved",
            "must be {expected} for this model, whose code deals axes {layout}",
            str(interleaved).lower(),
            error=ConfigError,
            expected=str(not interleaved).lower(),
            layout=rules.section_layout,
        )
    return counts


# Whether weights were tuned for the scaling, and a copy of the model's own length: neither changes the scaling.
_WITHOUT_EFFECT = ("finetuned", "max_position_embeddings")


def _refuse_unknown_keys(part: Reader, rope_type: str) -> None:
    part.skip(*_WITHOUT_EFFECT)
    for key, readers in TYPE_KEYS.items():
        if part.values.get(key) is not None and rope_type not in readers:
            part.skip(key)
            part.warn(
                "{key} has no effect with rope_type {rope_type}",
                key=f"{part.path}{key}",
                rope_type=repr(rope_type),
            )
    part.refuse_rest(lambda key: True)


_ALIASES = {"su": "longrope", "mrope": "default"}  # old names in the first configs of Phi-3 and Qwen2-VL
