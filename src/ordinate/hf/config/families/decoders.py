"""Decoders with rotation: Llama, and families that differ from Llama by rules for their layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ....checks import refused, short
from ....encoding import NoPE, PositionEncoding
from ....rotate.rope import RoPE
from ..context_length import original_max_positions
from ..plan import ConfigError, LayerPlan, Temperature
from ..reader import MOST_LAYERS, Reader, checked_integer
from ..rope_scalings import RopeSource
from ..rope_settings import read_rope, rope_parts
from .family import Dialect, Draft, Family, read_head_dim, read_sizes

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"

#: Layers without self-attention, which need no encoding.
RECURRENT = frozenset({"linear_attention", "conv", "mamba", "mamba2", "recurrent", "cross_attention"})


@dataclass(frozen=True)
class DecoderRules:
    """Rules in a rotary family's code that its config does not state.

    Attributes:
        layer_types: The type of each layer if the config does not list them.
        windows_all: Layers of every type have the window.
        rotates: Which layers rotate q and k; by default all.
        scale: The softmax scale, if it is not ``1/sqrt(head_dim)``.
        theta: Layer type → the key of its base outside of ``rope_scaling`` and ``rope_parameters``.
        scaled_types: The layer types that an old ``rope_scaling`` is for; by default all.
        head_dims: The head_dim of layer types that differ from the model's.
        window: The number of keys within the window.
        temperature: The factor on queries that grows with their position.
        temperature_unrotated: Only layers without rotation have it.
        causal: Whether a query sees no later keys, by default.
    """

    layer_types: Callable[[Reader, int], list[str]] | None = None
    windows_all: bool = False
    rotates: Callable[[Reader, list[str]], list[bool]] | None = None
    scale: Callable[[Reader, int], float | None] | None = None
    theta: Mapping[str, str] = field(default_factory=dict)
    scaled_types: tuple[str, ...] | None = None
    head_dims: Callable[[Reader, list[str]], dict[str, int]] | None = None
    window: Callable[[Reader], int | None] | None = None
    temperature: Callable[[Reader, Mapping[str, Reader | None]], Temperature | None] | None = None
    temperature_unrotated: bool = False
    causal: Callable[[Reader], bool] | bool = True


def read_decoder(reader: Reader, family: Family, dialect: Dialect | None) -> Draft:
    """Read layers that rotate q and k, all of one type or of a few types."""
    rules = family.rules or DecoderRules()
    count, heads, width = read_sizes(reader)
    head_dim = read_head_dim(reader, heads, width)
    context = reader.integer("max_position_embeddings", "the longest context", None)
    reader.skip("original_max_position_embeddings")  # read later, if a scaling needs it
    kinds = read_layer_types(reader, rules, count)
    window = (rules.window or read_window)(reader)
    chunk = None
    if CHUNKED in kinds:
        chunk = reader.integer(
            "attention_chunk_size", "tokens see each other within chunks of this size", None
        )
    causal = rules.causal(reader) if callable(rules.causal) else rules.causal
    reader.skip("attention_chunk_size")
    if chunk is not None:
        reader.fixed("is_causal", True)  # the masks of chunks are causal
    elif rules.causal is True and not reader.boolean("is_causal", "whether no later key is seen", True):
        # Like transformers, for embedding models made from decoders. The window then extends to both sides.
        causal, window = False, None if window is None else window + 1
    scale = rules.scale(reader, head_dim) if rules.scale else None
    rotates = (
        rules.rotates(reader, kinds) if rules.rotates else [kind not in RECURRENT for kind in kinds]
    )
    rotated = list(dict.fromkeys(kind for kind, does in zip(kinds, rotates, strict=True) if does))
    parts = rope_parts(reader, rotated, rules.scaled_types)
    temperature = rules.temperature(reader, parts) if rules.temperature else None
    head_dims = dict.fromkeys(kinds, head_dim)
    if rules.head_dims:
        head_dims |= rules.head_dims(reader, kinds)
    encodings = _read_rotations(reader, family, parts, head_dims, context, dialect)
    nothing = NoPE()
    if window is not None and not rules.windows_all and SLIDING not in kinds:
        reader.warn(
            "{key} {window} has no effect, no layer of this model is windowed",
            key=reader.spelled("sliding_window"),
            window=window,
        )
    layers = []
    for index, (kind, does) in enumerate(zip(kinds, rotates, strict=True)):
        encoding: PositionEncoding = encodings.get(kind, nothing) if does else nothing
        has_temperature = kind not in RECURRENT and not (rules.temperature_unrotated and does)
        layers.append(
            LayerPlan(
                index, kind, encoding, scale=scale, head_dim=head_dims[kind], causal=causal,
                window=window if rules.windows_all or kind == SLIDING else None,
                chunk=chunk if kind == CHUNKED else None,
                temperature=temperature if has_temperature else None,
                stack="decoder" if causal else "encoder",
            )
        )  # fmt: skip
    return Draft(layers, {}, context, original_max_positions(encodings.values(), context))


def _read_rotations(
    reader: Reader,
    family: Family,
    parts: Mapping[str, Reader | None],
    head_dims: Mapping[str, int],
    context: int | None,
    dialect: Dialect | None,
) -> dict[str, RoPE]:
    """The rotation of each layer type that has one."""
    theta = family.rules.theta if family.rules else {}
    sources = {
        kind: RopeSource(
            part, reader, head_dims[kind], theta.get(kind, "rope_theta"), family.rope, context
        )
        for kind, part in parts.items()
        if part is not None
    }
    return {kind: read_rope(source, dialect) for kind, source in sources.items()}


def read_layer_types(reader: Reader, rules: DecoderRules, count: int) -> list[str]:
    """The listed types, else the family's rule, else full attention everywhere."""
    listed = reader.sequence("layer_types", "the type of each layer", None, length=count)
    if listed is None:
        return rules.layer_types(reader, count) if rules.layer_types else [FULL] * count
    # A family without a rule has one layer type, and its code does not read the list.
    known = {FULL, SLIDING, CHUNKED, *RECURRENT} if rules.layer_types else {FULL}
    for index, kind in enumerate(listed):
        if not isinstance(kind, str) or kind not in known:
            raise refused(
                f"{reader.spelled('layer_types')}[{index}]",
                "must be one of {choices}",
                short(kind),
                error=ConfigError,
                choices=", ".join(sorted(known)),
            )
    if rules.layer_types:  # marks the rule's keys as read, although the list overrides them
        rules.layer_types(reader, count)
    return [str(kind) for kind in listed]


def read_window(reader: Reader) -> int | None:
    """``sliding_window``, unless ``use_sliding_window`` turns it off."""
    reader.skip("max_window_layers")  # read by the families that use it
    used = reader.boolean("use_sliding_window", "whether windows are used", None)
    window = reader.integer("sliding_window", "keys a query sees in windowed layers", None, least=0)
    return window if window and used is not False else None


# Rules for layer types.


def every(
    step: int, key: str | None = None, *, others: str = SLIDING, from_first: bool = False
) -> Callable[[Reader, int], list[str]]:
    """Full attention in the last of every ``step`` layers, or in the first; ``key`` may hold the step."""

    def layer_types(reader: Reader, count: int) -> list[str]:
        period = step
        if key is not None:
            period = reader.integer(key, "full attention once in so many layers", step, most=MOST_LAYERS)
        start = 0 if from_first else 1
        return [others if (index + start) % period else FULL for index in range(count)]

    return layer_types


def by_index(reader: Reader, count: int) -> list[str]:
    """LFM2: ``full_attn_idxs`` lists the layers with attention, the others are convolutions."""
    attending = read_indices(
        reader, "full_attn_idxs", "the layers with attention", count - 1, range(count)
    )
    return [FULL if index in attending else "conv" for index in range(count)]


def read_indices(reader: Reader, key: str, meaning: str, most: int, *default: range) -> set[int]:
    """A list of indices of layers."""
    listed, name = reader.sequence(key, meaning, *default), reader.spelled(key)
    return {checked_integer(f"{name}[{place}]", index, 0, most) for place, index in enumerate(listed)}


def from_layer(reader: Reader, count: int) -> list[str]:
    """Qwen: layers from ``max_window_layers`` on are windowed, if windows are used at all."""
    first = reader.integer("max_window_layers", "layers before this one see everything", count, least=0)
    windowed = read_window(reader) is not None
    return [SLIDING if windowed and index >= first else FULL for index in range(count)]


def full_or_sliding(reader: Reader, count: int) -> list[str]:
    """Every layer windowed where the config has a window."""
    return [SLIDING if read_window(reader) else FULL] * count


# Rules for layers without rotation.


def listed_rotation(reader: Reader, kinds: list[str]) -> list[bool]:
    """SmolLM3, Llama 4: ``no_rope_layers`` has 1 for a layer that rotates and 0 for one that does not."""
    step = reader.integer(
        "no_rope_layer_interval", "one layer in so many does not turn", 4, most=1 << 14
    )
    listed = reader.sequence("no_rope_layers", "1 where a layer turns, 0 where not", None)
    if not listed:
        return [bool((index + 1) % step) for index in range(len(kinds))]
    name = reader.spelled("no_rope_layers")
    if len(listed) != len(kinds):
        raise refused(
            name,
            "must have {length} entries",
            f"{len(listed)}: {short(listed)}",
            error=ConfigError,
            length=len(kinds),
        )
    for index, flag in enumerate(listed):
        if flag not in (0, 1):
            raise refused(f"{name}[{index}]", "must be 0 or 1", short(flag), error=ConfigError)
    return [bool(flag) for flag in listed]


def windowed_rotation(reader: Reader, kinds: list[str]) -> list[bool]:
    """Cohere 2, EXAONE 4: where some layers are windowed, only those rotate."""
    return [kind == SLIDING or SLIDING not in kinds for kind in kinds]


def only_windowed(reader: Reader, kinds: list[str]) -> list[bool]:
    """AFM MoE: only windowed layers rotate."""
    return [kind == SLIDING for kind in kinds]


# Rules for the softmax scale.


def from_scalar(reader: Reader, head_dim: int) -> float | None:
    """Gemma: the softmax scale is formed from ``query_pre_attn_scalar`` in place of head_dim."""
    scalar = reader.number(
        "query_pre_attn_scalar", "the softmax scale is its -1/2 power", above=0, most=1e12
    )
    return scalar**-0.5


def from_multiplier(reader: Reader, head_dim: int) -> float | None:
    """Granite: ``attention_multiplier`` is the softmax scale."""
    return reader.number("attention_multiplier", "the softmax scale", above=0, most=1e6)


def from_multiplier_or_default(reader: Reader, head_dim: int) -> float | None:
    """HyperCLOVA X: ``attention_multiplier`` is the softmax scale, where it is given."""
    return reader.number("attention_multiplier", "the softmax scale", head_dim**-0.5, above=0, most=1e6)


def unscaled(reader: Reader, head_dim: int) -> float | None:
    """Gemma 3n and 4, whose q and k are normalised. Their files may have Gemma 3's scalar, which is not read."""
    reader.ask(
        "query_pre_attn_scalar", "has no effect, q and k are normalised and their scale is 1", None
    )
    return 1.0
