"""Reads and writes the scaling and the lengths in the settings of a config, for `extend`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal

from ..checks import refused, short
from ..rotate.rope import RoPE
from ..text import Text
from .config.families.decoders import FULL, SLIDING
from .config.families.family import Family
from .config.plan import ConfigError, Plan
from .config.repeated_keys import states_a_length

Method = Literal["yarn", "ntk", "dynamic", "linear", "llama3"]
METHODS: tuple[Method, ...] = ("yarn", "ntk", "dynamic", "linear", "llama3")

# Weights are trained with these scalings, so `extend` must not remove one. (A method may extend itself.)
_TRAINED_WITH = ("longrope", "llama3", "linear", "yarn")


def scaling_now(
    settings: dict[str, Any], defaults: Mapping[str, Any], where: str, replace: bool, method: Method
) -> dict[str, Any]:
    """The scaling of full-attention layers; refused if the model would break without it.

    Absent settings are first filled with the defaults of the family's class.
    """
    assumed = defaults.get("rope_parameters")
    if not settings.get("rope_scaling") and not settings.get("rope_parameters") and assumed:
        settings["rope_parameters"] = copy.deepcopy(dict(assumed))
    part = settings.get("rope_scaling") or settings.get("rope_parameters") or {}
    if isinstance(part.get(FULL), Mapping):
        part = part[FULL]
    kind = part.get("rope_type", part.get("type"))
    if kind == "proportional":
        raise refused(
            f"{where}rope_parameters",
            "must be of a kind that a scaling can stand beside, p-RoPE's pairs are spread over the whole head as in "
            "no other",
            short(kind),
            error=ConfigError,
        )
    if kind in _TRAINED_WITH and kind != method and not replace:
        raise refused(
            f"{where}rope_scaling",
            "must be absent or of the method {method}, the model may have been trained with it",
            short(kind),
            error=ConfigError,
            advice="; say {replace} to take it away",
            method=method,
            replace=Text("replace=True"),
        )
    return dict(part)


def _without_scaling(old: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a rotation without those of its scaling."""
    keys = ("partial_rotary_factor", "mrope_section", "mrope_interleaved")
    return {key: old[key] for key in keys if key in old}


def new_scaling(
    method: Method, old: dict[str, Any], original: int, context: int, to: int, notes: list[Text]
) -> dict[str, Any]:
    """The new scaling, with the old scaling's axes, base and fraction, and its options if the method is the same."""
    unscaled = {key: old[key] for key in ("rope_theta",) if key in old} | _without_scaling(old)
    same = old.get("rope_type", old.get("type")) == method
    options = dict(old) if same else {}
    options.pop("type", None)
    given = options.pop("attention_factor", None)
    if given is not None:
        notes.append(
            Text(
                "attention_factor {given} belonged to the old factor and is left out; the new one's is taken",
                given=short(given),
            )
        )
    made: dict[str, Any] = {"rope_type": method, "factor": to / original}
    if method in ("yarn", "llama3"):
        made["original_max_position_embeddings"] = original
    if same and method in ("linear", "llama3"):
        # Llama 3 is trained to a longer context than its factor gives; scale the factor with the context.
        made["factor"] = old["factor"] * to / context
    if method == "llama3":
        ends = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
        made |= {key: old.get(key, end) if same else end for key, end in ends.items()}
    return {**unscaled, **options, **made}


def separate_layer_types(settings: dict[str, Any], plan: Plan, family: Family) -> None:
    """OLMo 3: replace the one old key for the base of all layers by new keys for layers with and without a window."""
    rules = family.rules
    one_base = getattr(rules, "scaled_types", None) is not None and not getattr(rules, "theta", None)
    if not one_base or settings.get("rope_parameters"):
        return
    scaled, old = rules.scaled_types, settings.pop("rope_scaling", None) or {}
    settings.pop("rope_theta", None)
    bases = {x.layer_type: x.encoding.base for x in plan.layers if isinstance(x.encoding, RoPE)}
    settings["rope_parameters"] = {
        kind: {"rope_type": "default", "rope_theta": base, **(old if kind in scaled else {})}
        for kind, base in bases.items()
    }


def put_scaling(settings: dict[str, Any], scaling: dict[str, Any]) -> None:
    """Write a scaling under the key that the config has: old or new, flat or for full attention only."""
    new = settings.get("rope_parameters")
    if settings.get("rope_scaling") or not new:
        settings["rope_scaling"] = scaling
    elif isinstance(new.get(FULL), Mapping):
        new[FULL] = {**new[FULL], **scaling}
    else:
        settings["rope_parameters"] = {**{k: v for k, v in new.items() if k == "rope_theta"}, **scaling}


def enlarge_base(settings: dict[str, Any], plan: Plan, factor: float, family: Family) -> None:
    """NTK: a larger base in full-attention layers, and no scaling."""
    rope = main_rotation(plan)
    if rope.rotary_dim <= 2:
        raise refused(
            "head_dim",
            "must leave at least 4 channels to turn to change the base",
            rope.rotary_dim,
            error=ConfigError,
        )
    base = rope.base * factor ** (rope.rotary_dim / (rope.rotary_dim - 2))
    plain = {"rope_type": "default", "rope_theta": base}
    old, new = settings.get("rope_scaling"), settings.get("rope_parameters")
    if isinstance(new, dict) and isinstance(new.get(FULL), Mapping):
        new[FULL] = {**_without_scaling(new[FULL]), **plain}
    elif isinstance(new, dict) and not old:
        settings["rope_parameters"] = {**_without_scaling(new), **plain}
    else:
        key = getattr(family.rules, "theta", {}).get(FULL, "rope_theta")
        settings[family.keys.get(key, key)] = base
        if old:  # not null, because a class with a default scaling would restore it
            settings["rope_scaling"] = {"rope_type": "default", **_without_scaling(old)}


def put_lengths(
    settings: dict[str, Any], family: Family, method: Method, original: int, to: int
) -> None:
    """Write the new context under the keys that transformers and vLLM read.

    Linear and dynamic scaling are written with the original length: in transformers dynamic NTK begins at it, and
    vLLM multiplies it by the factor to get the longest context, except for Gemma 3. With linear scaling the length
    alone could be the one before or after scaling; a second length makes it clear, as in Vicuna's files.
    """
    name = family.keys.get("max_position_embeddings", "max_position_embeddings")
    names = {"max_position_embeddings", name}
    for key in [key for key in settings if states_a_length(key) and key not in names]:
        del settings[key]  # it states the old context
    is_original = method == "dynamic" or (method == "linear" and not family.rope.reaches_context)
    settings |= dict.fromkeys(names & settings.keys() or {name}, original if is_original else to)
    if method == "linear" and is_original:
        settings["max_sequence_length"] = to
    if settings.get("original_max_position_embeddings") is not None:  # overrides that of the scaling
        settings["original_max_position_embeddings"] = original


def main_rotation(plan: Plan) -> RoPE:
    """The rotation of the full-attention layers; if every layer has a window, that of all layers."""
    rotating = [layer for layer in plan.layers if isinstance(layer.encoding, RoPE)]
    wide = [layer for layer in rotating if layer.layer_type != SLIDING]
    rope = (wide or rotating)[0].encoding
    assert isinstance(rope, RoPE)
    return rope
