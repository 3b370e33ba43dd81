"""The length a model was trained at, and the longest context that its config and its scaling support."""

from __future__ import annotations

from collections.abc import Iterable

from ...encoding import PositionEncoding
from ...rotate.rope import RoPE
from ...scaling import DynamicNTK, Linear, Scaling, YaRN
from .plan import LayerPlan, Plan


def scalings(layers: Iterable[LayerPlan]) -> list[Scaling]:
    """The distinct scalings of the layers' rotations."""
    ropes = [layer.encoding for layer in layers if isinstance(layer.encoding, RoPE)]
    return list(dict.fromkeys(rope.scaling for rope in ropes if rope.scaling is not None))


def original_max_positions(encodings: Iterable[PositionEncoding], context: int | None) -> int | None:
    """The shortest ``original_max_positions`` of the scalings; ``context`` if no scaling has one."""
    scalings = [getattr(encoding, "scaling", None) for encoding in encodings]
    lengths = [getattr(scaling, "original_max_positions", None) for scaling in scalings]
    return min((length for length in lengths if length), default=context)


def reach_of(scaling: Scaling, start: int | None = None) -> int | None:
    """The longest length for a scaling, None if its settings do not determine it; ``start`` is for linear scaling.

    Models with Llama 3's and LongRoPE's frequencies are trained further and reach past the factor.
    """
    if isinstance(scaling, (YaRN, DynamicNTK)):
        return round(scaling.original_max_positions * scaling.factor)
    if isinstance(scaling, Linear) and start is not None:
        return round(start * scaling.factor)
    return None


def effective_context(plan: Plan) -> int | None:
    """The longest context that all settings together support; None if no setting determines it.

    It is ``max_position_embeddings``, unless a scaling reaches less than that, or more because
    ``max_position_embeddings`` is still the length before scaling.
    """
    context = plan.max_positions
    for scaling in scalings(plan.layers):
        reach = reach_of(scaling)
        if reach is None:
            continue
        before = context is None or context == getattr(scaling, "original_max_positions", None)
        context = reach if before else min(context or reach, reach)
    return context
