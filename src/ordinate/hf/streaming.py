"""Endless decoding with a cache of fixed size: the first and the latest tokens.

StreamingLLM (Xiao et al. 2023, arXiv:2309.17453) caches a few first tokens, which get much attention, and
a window of the latest. Positions are indices in the cache, so every step moves every key, and rotating already
rotated keys would round them at every step. Here keys are cached unrotated and
rotated by their current index when attention reads them, so scores are rounded once in a stream of any length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..checks import check_fields, check_positive_int, refused
from ..text import Text
from .patching.state import deferred_rotation


@dataclass(eq=False)
class StreamingCache:
    """Unrotated keys and values of a layer's first ``sinks`` tokens and last ``window``.

    Without positions, `ordinate.attention` counts keys from 0 and aligns queries to the last key: these are their
    indices in this cache. Tokens appended together all see each other: feed a long prompt in pieces of
    at most ``window``.

    Example:
        >>> cache, rope = StreamingCache(sinks=2, window=4), ordinate.RoPE(8)
        >>> for step in range(100):
        ...     q, k, v = (torch.randn(1, 2, 1, 8) for _ in range(3))
        ...     keys, values = cache.append(k, v)
        ...     out = ordinate.attention(q, keys, values, rope, causal=True)
        >>> keys.shape, cache.seen
        (torch.Size([1, 2, 7, 8]), 100)
    """

    sinks: int
    window: int
    k: Float[Tensor, "batch kv_heads kept head_dim"] | None = None
    v: Float[Tensor, "batch kv_heads kept v_dim"] | None = None
    seen: int = 0

    def __post_init__(self) -> None:
        check_fields(self, check_positive_int, "sinks", minimum=0)
        check_fields(self, check_positive_int, "window")

    def __len__(self) -> int:
        return 0 if self.k is None else self.k.shape[2]

    def append(
        self,
        k: Float[Tensor, "batch kv_heads new head_dim"],
        v: Float[Tensor, "batch kv_heads new v_dim"],
    ) -> tuple[
        Float[Tensor, "batch kv_heads keys head_dim"], Float[Tensor, "batch kv_heads keys v_dim"]
    ]:
        """Append tokens, and return the keys and values that they see: all cached tokens and their own.

        Args:
            k: Unrotated keys.
        """
        if self.k is not None and self.v is not None:
            k, v = torch.cat((self.k, k), dim=2), torch.cat((self.v, v), dim=2)
        self.seen += k.shape[2] - len(self)
        self.k, self.v = k, v
        if k.shape[2] > self.sinks + self.window:
            self.k, self.v = (
                torch.cat((x[:, :, : self.sinks], x[:, :, -self.window :]), dim=2) for x in (k, v)
            )
        return k, v


def streaming_cache(sinks: int = 4, window: int = 1020) -> Any:
    """A `StreamingCache` for every layer, as ``past_key_values`` of a patched model of transformers.

    ``model.generate(…, past_key_values=streaming_cache())`` decodes any number of tokens. Rows must not be
    padded. Refused are keys that may be rotated, as in a model without a patch or whose rotation the patch did not
    replace, and layers that cache a state instead of keys.
    """
    sinks = check_positive_int("sinks", sinks, minimum=0)
    window = check_positive_int("window", window)
    from transformers.cache_utils import Cache, DynamicLayer

    class StreamingLayer(DynamicLayer):
        is_croppable = False

        def __init__(self, **kwargs: Any) -> None:
            super().__init__()
            self.stream = StreamingCache(sinks, window)

        def update(
            self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
        ) -> tuple[Tensor, Tensor]:
            self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
            keys, values = self.stream.append(key_states, value_states)
            self.keys, self.values = self.stream.k, self.stream.v
            return keys, values

        def get_seq_length(self) -> int:
            return self.stream.seen

        def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
            return len(self.stream) + query_length, self.stream.seen - len(self.stream)

        def reset(self) -> None:
            self.keys, self.values, self.is_initialized = None, None, False
            self.stream = StreamingCache(sinks, window)

        def crop(self, *args: Any) -> None:
            rule = "must not be cropped, what it dropped is gone"
            raise refused(Text("a streaming cache"), rule, "crop()", error=NotImplementedError)

        def _select(self, pick: Any) -> None:
            stream = self.stream
            if stream.k is not None and stream.v is not None:
                stream.k, stream.v = pick(stream.k), pick(stream.v)
                self.keys, self.values = stream.k, stream.v

        def reorder_cache(self, beam_idx: Tensor) -> None:
            self._select(lambda x: x.index_select(0, beam_idx.to(x.device)))

        def batch_repeat_interleave(self, repeats: int) -> None:
            self._select(lambda x: x.repeat_interleave(repeats, dim=0))

        def batch_select_indices(self, indices: Tensor) -> None:
            self._select(lambda x: x[indices, ...])

    class Stream(Cache):
        # Set during a call of a patched model: its layers without rotation.
        ordinate_unrotated_layers: frozenset[int] | None = None

        def update(
            self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
        ) -> tuple[Tensor, Tensor]:
            if self.ordinate_unrotated_layers is None:
                rule = "must not be a streaming cache unless the model is patched"
                raise refused("past_key_values", rule, Text("one"), error=RuntimeError)
            if deferred_rotation(key_states) is None and layer_idx not in self.ordinate_unrotated_layers:
                raise refused(
                    "past_key_values",
                    "must not be a streaming cache where keys are not known to be cached unrotated (its own code "
                    "rotates them, rotates a part of them, or changes them afterwards)",
                    Text("those of layer {index}", index=layer_idx),
                    error=NotImplementedError,
                )
            return super().update(key_states, value_states, layer_idx, *args, **kwargs)

        def no_state(self, *args: Any, **kwargs: Any) -> Any:
            raise refused(
                "past_key_values",
                "must not be a streaming cache in a model with layers that cache something else than keys and values "
                "(a convolution, linear attention, an indexer)",
                Text("one"),
                error=NotImplementedError,
            )

        get_conv_state = update_conv_state = get_recurrent_state = update_recurrent_state = no_state
        has_previous_state = update_indexer = no_state

    return Stream(layer_class_to_replicate=StreamingLayer)


def is_stream(cache: Any) -> bool:
    return hasattr(cache, "ordinate_unrotated_layers")


def check_stream(attention_mask: Any, own_code: bool) -> None:
    """Refuse calls whose results would be wrong with a streaming cache."""
    if own_code:
        raise refused(
            "past_key_values",
            "must not be a streaming cache in a call that the model's own code answers (attention weights, a mask "
            "of four dimensions)",
            Text("one"),
            error=NotImplementedError,
        )
    if isinstance(attention_mask, Tensor) and not bool(attention_mask.all()):
        rule = "must be all ones with a streaming cache, which may drop what is masked"
        raise refused("attention_mask", rule, Text("padding"))
