"""How far a model reads: what its config promises and what its scaling can keep."""

from __future__ import annotations

from collections.abc import Iterable

from ...rotate.rope import RoPE
from ...scaling import DynamicNTK, Linear, Scaling, YaRN
from .plan import LayerPlan, Plan


def scalings(layers: Iterable[LayerPlan]) -> list[Scaling]:
    """The distinct scalings of the layers' rotations."""
    ropes = [layer.encoding for layer in layers if isinstance(layer.encoding, RoPE)]
    return list(dict.fromkeys(rope.scaling for rope in ropes if rope.scaling is not None))


def reach_of(scaling: Scaling, start: int | None = None) -> int | None:
    """The length a scaling stretches to, where it means to say so; ``start`` is linear scaling's.

    Llama 3's and LongRoPE's frequencies are a start for further training, which reaches past them.
    """
    if isinstance(scaling, (YaRN, DynamicNTK)):
        return round(scaling.original_max_positions * scaling.factor)
    if isinstance(scaling, Linear) and start is not None:
        return round(start * scaling.factor)
    return None


def effective_context(plan: Plan) -> int | None:
    """The longest context that the settings together support; None where nothing limits or says it.

    What is promised (``max_position_embeddings``), unless a scaling stops short of it, or goes beyond it
    because the promise is still the length before scaling.
    """
    context = plan.max_positions
    for scaling in scalings(plan.layers):
        reach = reach_of(scaling)
        if reach is None:
            continue
        before = context is None or context == getattr(scaling, "original_max_positions", None)
        context = reach if before else min(context or reach, reach)
    return context
