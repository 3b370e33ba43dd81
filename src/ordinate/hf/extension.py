"""`extend`: writes a config for longer contexts that transformers and vLLM can read."""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..checks import refused, short
from ..encoding import PositionEncoding
from ..numerics import in_float64
from ..rotate.rope import RoPE
from ..scaling import DynamicNTK, Linear, Llama3, LongRoPE, YaRN
from ..text import Text
from .config.api import ConfigObject, from_config, text_settings
from .config.config_file import load, write_config
from .config.context_length import effective_context
from .config.families.family import Family
from .config.families.registry import FAMILIES
from .config.plan import ConfigError, Plan
from .config.reader import MOST_POSITIONS, checked_integer
from .doctor import Band, bands_of, fate_of, inv_freq_at
from .scaling_settings import (
    METHODS,
    Method,
    enlarge_base,
    main_rotation,
    new_scaling,
    put_lengths,
    put_scaling,
    scaling_now,
    separate_layer_types,
)


@dataclass(frozen=True)
class Cost:
    """What an extension changes for contexts up to the original length.

    Attributes:
        logit_factor: A factor on the logits of rotated channels, at every length.
        score_change: The largest change of the score of two equal vectors, relative to the score at distance 0,
            over all distances within the original length; at distance ``at_distance``.
        short_context_kept: Contexts up to the original length give exactly the same results as before.
    """

    logit_factor: float
    score_change: float
    at_distance: int
    short_context_kept: bool


@dataclass(frozen=True)
class Extension:
    """A new config and its effects.

    Attributes:
        config: The complete new config.
        before, after: The plans of the old and the new config.
        original_max_positions: The length the frequencies were trained at.
        context: The longest context before; ``to`` is the new one.
        factor: ``to / original_max_positions``.
        slowdown: The largest ratio of a pair's frequency at short context to its new frequency at ``to``.
        changed: The key of each changed setting → (old value, new value).
        bands: What the scaling does to the pairs in full-attention layers.
        cost: The changes at short context.
        notes: Settings of the old scaling that the new config does not have.
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
        """Write the config atomically; replace an existing file only with ``overwrite``."""
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
    ``"dynamic"`` does not change contexts up to the original length. Layers with a window keep their frequencies,
    if the config format can express that. Weights do not change; a short fine-tuning improves every method.

    Args:
        to: The context to reach, in tokens.
        original_max_positions: The length that the model was trained at before any scaling, if the config's value
            is absent or wrong. A config with linear scaling has one length, which may be before or after the
            scaling.
        replace: Replace a scaling that the model was trained with.

    Raises:
        ConfigError: The model has no rotation, already reads ``to`` tokens, has another scaling, or the new
            config would not reach ``to`` with lower frequencies.

    Example:
        >>> extension = extend({"model_type": "llama", "max_position_embeddings": 4096}, to=16384)
        >>> extension.config["rope_scaling"]
        {'rope_type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 4096}
    """
    if method not in METHODS:
        raise refused(
            "method",
            "must be one of {choices}",
            short(method),
            error=ConfigError,
            choices=", ".join(METHODS),
        )
    to = checked_integer("to", to, 2, MOST_POSITIONS)
    config = _copy(load(source))
    before = from_config(config)
    _check_extensible(before)
    return _extended(config, before, to, method, original_max_positions, replace)


def _extended(
    config: dict[str, Any], before: Plan, to: int, method: Method, given: int | None, replace: bool
) -> Extension:
    """Write the scaling into the config, read the config again, and compare both plans."""
    where, settings, model_type = text_settings(config)
    snapshot, family = copy.deepcopy(settings), FAMILIES[model_type]
    old = scaling_now(settings, family.defaults, where, replace, method)
    original, context = _lengths(before, family, given, method, where)
    if to <= context:
        raise refused(
            "to",
            "must be more than the {context} positions the model already reads",
            to,
            error=ConfigError,
            context=context,
        )
    separate_layer_types(settings, before, family)
    notes: list[Text] = []
    if method == "ntk":
        enlarge_base(settings, before, to / original, family)
    else:
        put_scaling(settings, new_scaling(method, old, original, context, to, notes))
    put_lengths(settings, family, method, original, to)
    after = from_config(config)
    changed = {
        f"{where}{name}": (snapshot.get(name), settings.get(name))
        for name in {**snapshot, **settings}
        if snapshot.get(name) != settings.get(name)
    }
    ratios = _ratios(before, after, method, original, to)
    least = min(ratios)
    return Extension(
        config, before, after, method, original, context, to, to / original, 1 / least, changed,
        tuple(bands_of(fate_of(ratio, least) for ratio in ratios)),
        _cost(main_rotation(before), main_rotation(after), original), tuple(notes),
    )  # fmt: skip


def _ratios(before: Plan, after: Plan, method: Method, original: int, to: int) -> list[float]:
    """Each rotated pair's frequency at the new length, divided by its frequency at short context.

    Refused if the new config does not reach the new length, or does not make the slowest pair slower.
    """
    plain = inv_freq_at(main_rotation(before), original)
    ratios = (inv_freq_at(main_rotation(after), to)[plain > 0] / plain[plain > 0]).tolist()
    reached, slowest = effective_context(after), 1 / ratios[-1]
    if reached != to or slowest < 1 + 1e-9:
        raise refused(
            "original_max_positions",
            "must be a length from which {method} slows the slowest pair and reaches {to}",
            original,
            error=ConfigError,
            advice=": the new config would read {reached} positions, and that pair turn {times} times slower than now",
            method=method,
            to=to,
            reached=reached,
            times=f"{slowest:.4g}",
        )
    return ratios


def _copy(values: dict[str, Any]) -> dict[str, Any]:
    """A copy of a config; refused if it cannot be written as JSON."""
    try:
        json.dumps(values, allow_nan=False)
        return copy.deepcopy(values)
    except (TypeError, ValueError, RecursionError) as error:
        raise refused(
            "source", "must hold what JSON can hold", f"{short(values)}: {error}", error=ConfigError
        ) from None


def _lengths(
    plan: Plan, family: Family, given: int | None, method: Method, where: str
) -> tuple[int, int]:
    """The length before any scaling, and the longest length that the model reads now.

    A config with linear scaling has one length. The family or a second length may show whether it is before or after
    scaling; otherwise the user must give it.
    """
    scaling, context = main_rotation(plan).scaling, plan.max_positions
    known = given is not None or plan.original_max_positions != context
    if isinstance(scaling, Linear) and scaling.factor > 1 and context is not None and not known:
        if method != "linear" or not family.rope.reaches_context:
            raise refused(
                "original_max_positions",
                "must be given, whether {key} {context} is before or after linear scaling by {factor} the config "
                "does not say",
                Text("nothing"),
                error=ConfigError,
                key=f"{where}max_position_embeddings",
                context=context,
                factor=f"{scaling.factor:g}",
            )
        return context, context  # the new factor is relative to the context
    original = given if given is not None else plan.original_max_positions
    if original is None:
        raise refused(
            f"{where}max_position_embeddings",
            "must say what the model was trained at",
            Text("nothing"),
            error=ConfigError,
            advice="; give original_max_positions",
        )
    original = checked_integer("original_max_positions", original, 2, MOST_POSITIONS)
    if given is None:
        return original, effective_context(plan) or original
    if isinstance(scaling, (Linear, YaRN, DynamicNTK)):
        return original, round(original * scaling.factor)
    return original, (context or original) if isinstance(scaling, (Llama3, LongRoPE)) else original


def _check_extensible(plan: Plan) -> None:
    if plan.model_type == "minimind":
        raise refused(
            "model_type",
            "must be one whose code reads its scaling from the config",
            Text("'minimind', which has inference_rope_scaling and no other"),
            error=ConfigError,
        )
    kinds = {type(x) for x in [*plan.embeddings.values(), *(layer.encoding for layer in plan.layers)]}
    if RoPE not in kinds:
        names = ", ".join(sorted(kind.__name__ for kind in kinds - {PositionEncoding})) or "no encoding"
        raise refused(
            "model_type",
            "must be a rotary model, which has frequencies to scale",
            f"{plan.model_type!r} ({names})",
            error=ConfigError,
        )


def _cost(old: RoPE, new: RoPE, original: int) -> Cost:
    """The change of logits and scores at lengths up to the original one."""
    if isinstance(new.scaling, DynamicNTK):
        return Cost(1.0, 0.0, 0, short_context_kept=True)
    before, after = (1.0 if x.scaling is None else x.scaling.attention_factor or 1.0 for x in (old, new))
    distances, change = in_float64(
        torch.device("cpu"), lambda home: _score_changes(old, new, original, home)
    )
    worst = int(change.argmax())
    return Cost(
        (after / before) ** 2, float(change[worst]), int(distances[worst]), short_context_kept=False
    )


def _score_changes(old: RoPE, new: RoPE, original: int, home: torch.device) -> tuple[Tensor, Tensor]:
    """Distances up to the original length, and the change of the mean score at each distance."""
    steps = torch.logspace(0, math.log10(original), 4096, dtype=torch.float64, device=home)
    distances = steps.long().unique()
    before, after = (
        (distances[:, None].double() * rope.inv_freq(device=home)).cos().mean(dim=-1)
        for rope in (old, new)
    )
    return distances, (after - before).abs()
