"""`extend`: a config whose model reads further, written so that transformers and vLLM read it."""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ..checks import short
from ..numerics import in_float64
from ..rotate.rope import RoPE
from ..scaling import DynamicNTK, Linear, Llama3, LongRoPE, YaRN
from .config.api import ConfigObject, from_config, text_settings
from .config.context_length import effective_context
from .config.families.decoders import FULL, SLIDING
from .config.families.family import Family
from .config.families.registry import FAMILIES
from .config.plan import ConfigError, Plan
from .config.reader import MOST_POSITIONS, checked_integer
from .config.repeated_keys import states_a_length
from .config.source import load
from .doctor import Band, bands_of
from .write import write_config

Method = Literal["yarn", "ntk", "dynamic", "linear", "llama3"]
METHODS: tuple[Method, ...] = ("yarn", "ntk", "dynamic", "linear", "llama3")

# Scalings that weights are trained with: taking one away is no extension. (A method may extend itself.)
_TRAINED_WITH = ("longrope", "llama3", "linear", "yarn")


@dataclass(frozen=True)
class Cost:
    """What an extension changes for contexts that the model could already read.

    Attributes:
        logit_factor: By what turned channels' logits are multiplied, at every length.
        score_change: The largest change of the score of two equal vectors, as a part of the score at distance
            0, over all distances within the original length; ``at_distance`` is where.
        short_context_kept: Contexts up to the original length are read exactly as before.
    """

    logit_factor: float
    score_change: float
    at_distance: int
    short_context_kept: bool


@dataclass(frozen=True)
class Extension:
    """A new config and what it does.

    Attributes:
        config: The whole new config.
        before, after: Both configs, read.
        original_max_positions: The length the frequencies were trained at.
        context: What the model read before, ``to`` what it was asked to read.
        factor: ``to / original_max_positions``.
        slowdown: How many times slower the most slowed pairs turn at ``to`` than they did at short context.
        changed: The key of each changed setting → (old value, new value).
        bands: What becomes of the pairs in full-attention layers.
        cost: What it costs at short context.
        notes: What of the old scaling is given up.
    """

    config: dict[str, Any]
    before: Plan
    after: Plan
    method: Method
    original_max_positions: int
    context: int
    to: int
    factor: float
    slowdown: float
    changed: dict[str, tuple[Any, Any]]
    bands: tuple[Band, ...]
    cost: Cost
    notes: tuple[str, ...] = ()

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the config: whole or not at all, and over an existing file only if told to."""
        return write_config(self.config, path, overwrite=overwrite)


def extend(
    source: Mapping[str, Any] | str | os.PathLike[str] | ConfigObject,
    to: int,
    method: Method = "yarn",
    *,
    original_max_positions: int | None = None,
    replace: bool = False,
) -> Extension:
    """A config with which a rotary model reads contexts of ``to`` tokens.

    ``"yarn"``, ``"linear"`` and ``"llama3"`` scale frequencies at every length; ``"ntk"`` enlarges the base;
    ``"dynamic"`` leaves contexts up to the original length alone. Layers with a window keep their frequencies,
    where a config can say so. Weights are unchanged; a short fine-tuning makes all of them better.

    Args:
        to: The context to reach, in tokens.
        original_max_positions: The length the model was trained at before any scaling, where the config does
            not say it or says it wrong. A config with linear scaling says one length, and not whether it is
            before or after.
        replace: Put this scaling in the place of another that the model was trained with.

    Raises:
        ConfigError: The model has no rotation, already reads that far, has another scaling, or the new
            config, read back, would not reach ``to`` by turning slower.

    Example:
        >>> extension = extend({"model_type": "llama", "max_position_embeddings": 4096}, to=16384)
        >>> extension.config["rope_scaling"]
        {'rope_type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 4096}
    """
    if method not in METHODS:
        raise ConfigError(f"method must be one of {', '.join(METHODS)}, got {short(method)}")
    to = checked_integer("to", to, 2, MOST_POSITIONS)
    config = _copy(load(source))
    before = from_config(config)
    _check_extensible(before)
    where, settings, model_type = text_settings(config)
    snapshot = copy.deepcopy(settings)
    old = _scaling_now(settings, FAMILIES[model_type].defaults, where, replace, method)
    start, context = _lengths(before, FAMILIES[model_type], original_max_positions, method, where)
    if to <= context:
        raise ConfigError(
            f"to must be more than the {context} positions the model already reads, got {to}"
        )
    factor = to / start
    _separate_layer_types(settings, before, FAMILIES[model_type])
    notes: list[str] = []
    if method == "ntk":
        _stretch_base(settings, before, factor, FAMILIES[model_type])
    else:
        _put(settings, _new_scaling(method, old, factor, start, context, to, notes))
    _put_lengths(settings, FAMILIES[model_type], method, start, to)
    after = from_config(config)
    changed = {
        f"{where}{name}": (snapshot.get(name), settings.get(name))
        for name in {**snapshot, **settings}
        if snapshot.get(name) != settings.get(name)
    }
    old_rope, new_rope = _main_rotation(before), _main_rotation(after)
    ratios = _ratios(old_rope, new_rope, start, to)
    reached, slowest = effective_context(after), 1 / ratios[-1]
    if reached != to or slowest < 1 + 1e-9:
        raise ConfigError(
            f"original_max_positions must be a length from which {method} slows the slowest pair and reaches "
            f"{to}, got {start}: the new config would read {reached} positions, "
            f"and that pair turn {slowest:.4g} times slower than now"
        )
    return Extension(
        config, before, after, method, start, context, to, factor, 1 / min(ratios), changed,
        tuple(bands_of(_fate(ratio, min(ratios)) for ratio in ratios)), _cost(old_rope, new_rope, start), tuple(notes),
    )  # fmt: skip


def _copy(values: dict[str, Any]) -> dict[str, Any]:
    """A copy of a config, if it can be written again."""
    try:
        json.dumps(values, allow_nan=False)
        return copy.deepcopy(values)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"source must hold what JSON can hold, got {short(values)}: {error}") from None


def _lengths(
    plan: Plan, family: Family, given: int | None, method: Method, where: str
) -> tuple[int, int]:
    """The length before any scaling, and the one the model reads now.

    Beside linear scaling a config has one length. Whether the factor is in it, the family may know, or a
    second length may tell; else only the user can.
    """
    scaling, context = _main_rotation(plan).scaling, plan.max_positions
    told = given is not None or plan.original_max_positions != context
    if isinstance(scaling, Linear) and scaling.factor > 1 and context is not None and not told:
        if method != "linear" or not family.rope.reaches_context:
            raise ConfigError(
                f"original_max_positions must be given, whether {where}max_position_embeddings {context} is before "
                f"or after linear scaling by {scaling.factor:g} the config does not say, got nothing"
            )
        return context, context  # the factor grows with the context, whatever it started from
    start = given if given is not None else plan.original_max_positions
    if start is None:
        raise ConfigError(
            f"{where}max_position_embeddings must say what the model was trained at, got nothing; "
            "give original_max_positions"
        )
    start = checked_integer("original_max_positions", start, 2, MOST_POSITIONS)
    if given is None:
        return start, effective_context(plan) or start
    if isinstance(scaling, (Linear, YaRN, DynamicNTK)):
        return start, round(start * scaling.factor)
    return start, (context or start) if isinstance(scaling, (Llama3, LongRoPE)) else start


def _put_lengths(settings: dict[str, Any], family: Family, method: Method, start: int, to: int) -> None:
    """Write the new context where its readers look for it.

    Linear and dynamic scaling are written beside the original length: transformers takes it for dynamic NTK's
    start, and vLLM multiplies it by the factor to find the longest context, except for Gemma 3. Of linear
    scaling the config would not say which of the two it is; a second length does, as in Vicuna's files.
    """
    name = family.keys.get("max_position_embeddings", "max_position_embeddings")
    names = {"max_position_embeddings", name}
    for key in [key for key in settings if states_a_length(key) and key not in names]:
        del settings[key]  # of the old context
    before = method == "dynamic" or (method == "linear" and not family.rope.reaches_context)
    for key in names & settings.keys() or {name}:
        settings[key] = start if before else to
    if method == "linear" and before:
        settings["max_sequence_length"] = to
    if (
        settings.get("original_max_position_embeddings") is not None
    ):  # goes before the one in the scaling
        settings["original_max_position_embeddings"] = start


def _check_extensible(plan: Plan) -> None:
    if any(isinstance(layer.encoding, RoPE) for layer in plan.layers):
        if plan.model_type == "minimind":
            raise ConfigError(
                "model_type must be one whose code reads its scaling from the config, got 'minimind', which has "
                "inference_rope_scaling and no other"
            )
        return
    kinds = {type(x).__name__ for x in [*plan.embeddings.values(), *(y.encoding for y in plan.layers)]}
    raise ConfigError(
        f"model_type must be a rotary model, which has frequencies to scale, got {plan.model_type!r} "
        f"({', '.join(sorted(kinds - {'PositionEncoding'})) or 'no encoding'})"
    )


def _scaling_now(
    settings: dict[str, Any], defaults: Mapping[str, Any], where: str, replace: bool, method: Method
) -> dict[str, Any]:
    """The scaling of full-attention layers, refused where taking it away would break the model.

    What a family's class would put in the place of missing settings is written out first.
    """
    if (
        not settings.get("rope_scaling")
        and not settings.get("rope_parameters")
        and defaults.get("rope_parameters")
    ):
        settings["rope_parameters"] = copy.deepcopy(dict(defaults["rope_parameters"]))
    part = settings.get("rope_scaling") or settings.get("rope_parameters") or {}
    if isinstance(part.get(FULL), Mapping):
        part = part[FULL]
    kind = part.get("rope_type", part.get("type"))
    if kind == "proportional":
        raise ConfigError(
            f"{where}rope_parameters must be of a kind that a scaling can stand beside, p-RoPE's pairs are spread "
            f"over the whole head as in no other, got {short(kind)}"
        )
    if kind in _TRAINED_WITH and kind != method and not replace:
        raise ConfigError(
            f"{where}rope_scaling must be absent or of the method {method}, the model may have been trained with it, "
            f"got {short(kind)}; say replace=True to take it away"
        )
    return dict(part)


def _new_scaling(
    method: Method,
    old: dict[str, Any],
    factor: float,
    original: int,
    context: int,
    to: int,
    notes: list[str],
) -> dict[str, Any]:
    """The new scaling, with what the old one said beside: axes, base, fraction, and its own method's options."""
    kept: dict[str, Any] = {
        key: old[key]
        for key in ("rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved")
        if key in old
    }
    same = old.get("rope_type", old.get("type")) == method
    options = dict(old) if same else {}
    options.pop("type", None)
    given = options.pop("attention_factor", None)
    if given is not None:
        notes.append(
            f"attention_factor {short(given)} belonged to the old factor and is left out; the new one's is taken"
        )
    made: dict[str, Any] = {"rope_type": method, "factor": factor}
    if method in ("yarn", "llama3"):
        made["original_max_position_embeddings"] = original
    if method == "linear" and same:
        made["factor"] = old["factor"] * to / context
    if method == "llama3":
        made |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
        if same:  # its factor is less than the context it is trained to; it grows with the context
            made["factor"] = old["factor"] * to / context
            made |= {key: old[key] for key in ("low_freq_factor", "high_freq_factor") if key in old}
    return {**kept, **options, **made}


def _separate_layer_types(settings: dict[str, Any], plan: Plan, family: Family) -> None:
    """OLMo 3: one old key has the base of layers with and without a window; new keys tell them apart."""
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


def _put(settings: dict[str, Any], scaling: dict[str, Any]) -> None:
    """Write a scaling where the config keeps its own: old key or new, flat or for full attention alone."""
    new = settings.get("rope_parameters")
    if settings.get("rope_scaling") or not new:
        settings["rope_scaling"] = scaling
    elif isinstance(new.get(FULL), Mapping):
        new[FULL] = {**new[FULL], **scaling}
    else:
        settings["rope_parameters"] = {**{k: v for k, v in new.items() if k == "rope_theta"}, **scaling}


def _stretch_base(settings: dict[str, Any], plan: Plan, factor: float, family: Family) -> None:
    """NTK: a larger base in full-attention layers, and no scaling."""
    rope = _main_rotation(plan)
    if rope.rotary_dim <= 2:
        raise ConfigError(
            f"head_dim must leave at least 4 channels to turn to change the base, got {rope.rotary_dim}"
        )
    base = rope.base * factor ** (rope.rotary_dim / (rope.rotary_dim - 2))
    plain = {"rope_type": "default", "rope_theta": base}
    kept = ("partial_rotary_factor", "mrope_section", "mrope_interleaved")
    new = settings.get("rope_parameters")
    if isinstance(new, dict) and isinstance(new.get(FULL), Mapping):
        new[FULL] = {**{key: new[FULL][key] for key in kept if key in new[FULL]}, **plain}
    elif isinstance(new, dict) and not settings.get("rope_scaling"):
        settings["rope_parameters"] = {**{key: new[key] for key in kept if key in new}, **plain}
    else:
        key = getattr(family.rules, "theta", {}).get(FULL, "rope_theta")
        settings[family.keys.get(key, key)] = base
        old = settings.get("rope_scaling")
        if old:
            # Never null: a class with a scaling of its own would put it back.
            rest = {key: old[key] for key in kept if key in old}
            settings["rope_scaling"] = {"rope_type": "default", **rest}


def _main_rotation(plan: Plan) -> RoPE:
    """The rotation of the layers that see everything; of all layers, where every one has a window."""
    turning = [layer for layer in plan.layers if isinstance(layer.encoding, RoPE)]
    wide = [layer for layer in turning if layer.layer_type != SLIDING]
    rope = (wide or turning)[0].encoding
    assert isinstance(rope, RoPE)
    return rope


def _cost(old: RoPE, new: RoPE, original: int) -> Cost:
    """What becomes of scores at the lengths the model was trained on."""
    if isinstance(new.scaling, DynamicNTK):
        return Cost(1.0, 0.0, 0, short_context_kept=True)
    factors = [1.0 if x.scaling is None else x.scaling.attention_factor or 1.0 for x in (old, new)]
    distances, change = in_float64(
        torch.device("cpu"), lambda home: _score_changes(old, new, original, home)
    )
    worst = int(change.argmax())
    logits = (factors[1] / factors[0]) ** 2
    return Cost(logits, float(change[worst]), int(distances[worst]), short_context_kept=False)


def _score_changes(old: RoPE, new: RoPE, original: int, home: torch.device) -> tuple[Tensor, Tensor]:
    """Distances up to the trained length, and how much the mean score at each of them changes."""
    steps = torch.logspace(0, math.log10(original), 4096, dtype=torch.float64, device=home)
    distances = steps.long().unique()
    ends = [
        (distances[:, None].double() * rope.inv_freq(device=home)).cos().mean(dim=-1)
        for rope in (old, new)
    ]
    return distances, (ends[1] - ends[0]).abs()


def _ratios(old: RoPE, new: RoPE, original: int, to: int) -> list[float]:
    """Of each pair that turns, its new frequency at the length to reach by its old one at short context."""
    before = old.inv_freq(torch.tensor([original]) if old.length_dependent else None).reshape(-1)
    after = new.inv_freq(torch.tensor([to]) if new.length_dependent else None).reshape(-1)
    return (after[before > 0] / before[before > 0]).tolist()


def _fate(ratio: float, least: float) -> str:
    if abs(ratio - 1) < 1e-9:
        return "kept"
    return "interpolated" if ratio < least * (1 + 1e-9) else "blended"
