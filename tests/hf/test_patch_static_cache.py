"""A patched model rotates and attends by ordinate with a static cache too, whose length is a tensor."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest
import torch
import transformers
from patch_models import MODELS, build, is_encoder_decoder, left_padding, tokens
from test_patch_compile import Graphs
from torch import Tensor, nn

from ordinate.hf import patch
from ordinate.rotate import rotation

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*should not be instantiated:DeprecationWarning"
)  # BLOOM's GELU
LENGTH, SLOTS = 24, 40
QUICK = ["Llama 2", "Gemma 3", "T5", "BLOOM"]
close = {"atol": 1e-5, "rtol": 1e-5}


def cache_of(model: nn.Module, kind: type, slots: int = SLOTS) -> Any:
    config = model.config.get_text_config(decoder=True)
    sizes = [{"max_cache_len": n} if kind is transformers.StaticCache else {} for n in (slots, LENGTH)]
    if not is_encoder_decoder(model):
        return kind(config=config, **sizes[0])
    return transformers.EncoderDecoderCache(*(kind(config=config, **size) for size in sizes))


class Decoding:
    """A model that is given tokens piece by piece, with a cache."""

    def __init__(self, model: nn.Module, kind: type, padded: bool) -> None:
        self.model, self.ids = model, tokens(length=LENGTH)
        self.mask = left_padding(self.ids) if padded else None
        self.encoder_decoder = is_encoder_decoder(model)
        self.cache, self.answers = cache_of(model, kind), []
        if self.encoder_decoder:
            self.encoded = model.get_encoder()(self.ids, attention_mask=self.mask)

    def take(self, start: int, end: int, call: Any = None, slots: int | None = None) -> None:
        """``slots``: how long the attention_mask is, which a graph wants to be constant."""
        ids = self.ids[:, start:end].contiguous()
        given: dict[str, Any] = {"past_key_values": self.cache, "use_cache": True}
        if self.encoder_decoder:
            given |= {
                "encoder_outputs": self.encoded,
                "decoder_input_ids": ids,
                "attention_mask": self.mask,
            }
        else:
            given["input_ids"] = ids
            positions = torch.arange(start, end)[None]
            if self.mask is not None:
                seen = self.mask[:, :end]
                given["attention_mask"] = nn.functional.pad(seen, (0, (slots or end) - end))
                positions = (self.mask.cumsum(-1) - 1).clamp(min=0)[:, start:end]
            if "position_ids" in inspect.signature(self.model.forward).parameters:
                given["position_ids"] = positions
        call = self.model if call is None else call
        self.answers.append(call(**given).logits)

    @property
    def logits(self) -> Tensor:
        found = torch.cat(self.answers, dim=1)
        return found if self.mask is None or self.encoder_decoder else found[self.mask.bool()]


@torch.no_grad()
def in_pieces(model: nn.Module, kind: type, padded: bool) -> Tensor:
    """A beginning, single tokens across a window's edge, and several at once."""
    decoding = Decoding(model, kind, padded)
    for start, end in ((0, 6), (6, 7), (7, 8), (8, 9), (9, 12), (12, 13), (13, LENGTH)):
        decoding.take(start, end)
    return decoding.logits


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in MODELS]
)
@pytest.mark.parametrize("padded", [False, True])
def test_a_static_cache_gives_what_a_growing_one_does_by_ordinate(name, padded, monkeypatch):
    model = build(name)
    expected = in_pieces(model, transformers.DynamicCache, padded)
    patch(model, check=False)
    calls: dict[str, int] = {}

    def count(owner: Any, what: str) -> None:
        original = getattr(owner, what)

        def counted(*args: Any, **kwargs: Any) -> Any:
            calls[what] = calls.get(what, 0) + 1
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, what, counted)

    count(importlib.import_module("ordinate.hf.patching.attention_interface"), "attention")
    count(rotation, "rotate_pairs")
    growing = in_pieces(model, transformers.DynamicCache, padded)
    of_growing = dict(calls)
    calls.clear()
    static = in_pieces(model, transformers.StaticCache, padded)
    assert calls == of_growing
    torch.testing.assert_close(static, growing, atol=3e-5, rtol=1e-5)
    torch.testing.assert_close(static, expected, atol=3e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.plain
@pytest.mark.parametrize("name", ["Llama 2", "Mistral", "T5", "BLOOM", "GPT-J"])
def test_decoding_with_a_static_cache_is_compiled_no_more_often_than_before(name):
    """Six tokens; layers with a window, whose length transformers counts in Python, have graphs of their own."""

    @torch.no_grad()
    def decode(model: nn.Module) -> tuple[Tensor, int]:
        graphs = Graphs()
        step = torch.compile(model, backend=graphs, fullgraph=True)
        decoding = Decoding(model, transformers.StaticCache, padded=name != "BLOOM")
        decoding.take(0, 18)
        for place in range(18, LENGTH):
            decoding.take(place, place + 1, step, SLOTS)
        return decoding.logits, graphs.count

    model = build(name)
    expected, before = decode(model)
    patch(model, check=False)
    found, after = decode(model)
    assert after <= before
    assert after == 1 or name == "Mistral"
    torch.testing.assert_close(found, expected, **close)


@pytest.mark.parametrize("padded", [False, True])
def test_keys_are_rotated_anew_in_a_static_cache_too(padded):
    config = build("Llama, dynamic").config
    config.max_position_embeddings = 8  # and so each length has frequencies of its own
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    patch(model)
    growing, static = (
        in_pieces(model, kind, padded) for kind in (transformers.DynamicCache, transformers.StaticCache)
    )
    torch.testing.assert_close(static, growing, **close)


def test_a_mask_keeps_the_length_of_the_cache_it_was_made_at():
    """By name too, without a patch; a static cache counts a call's tokens before attention looks at the mask."""
    patch(build("Llama 2"))  # registers it
    model = build("Llama 2")
    expected = in_pieces(model, transformers.StaticCache, padded=True)
    model.set_attn_implementation("ordinate")
    torch.testing.assert_close(
        in_pieces(model, transformers.StaticCache, padded=True), expected, **close
    )


@pytest.mark.parametrize("name", ["Llama 2", "T5"])
def test_generation_with_a_static_cache_is_the_same(name):
    model, ids = build(name), tokens()
    more = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "cache_implementation": "static"}
    more |= {"disable_compile": True, "attention_mask": left_padding(ids)}
    expected = model.generate(ids, **more)
    patch(model)
    assert torch.equal(model.generate(ids, **more), expected)


@pytest.mark.plain
@pytest.mark.parametrize(
    "name",
    [
        "Llama 2",
        "Llama, dynamic",
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("Mistral", "T5", "BLOOM")),
    ],
)
def test_compiled_generation_makes_no_more_graphs_than_before(name):
    """There the mask is made before the compiled call. Dynamic NTK's own code cannot be one graph, and ours is."""
    ids = tokens()

    def generate(model: nn.Module) -> tuple[Tensor, int]:
        graphs = Graphs()
        how = transformers.CompileConfig(backend=graphs, mode=None, fullgraph="dynamic" not in name)
        how._compile_all_devices = True
        found = model.generate(
            ids, attention_mask=left_padding(ids), cache_implementation="static", compile_config=how,
            do_sample=False, max_new_tokens=8, min_new_tokens=8, pad_token_id=0,
        )  # fmt: skip
        return found, graphs.count

    model = build(name)
    expected, before = generate(model)
    model = build(name)
    patch(model, check=False)
    found, after = generate(model)
    assert 0 < after <= before
    assert after == 1 or "dynamic" not in name
    assert torch.equal(found, expected)
