"""Endless decoding: scores exact to one rounding, in `ordinate.attention` and in a patched model."""

from __future__ import annotations

import pytest
import torch
from patch_models import _LATENT, _model, build, rope, tokens

import ordinate
from ordinate.hf import StreamingCache, patch, streaming_cache, unpatch

SINKS, WINDOW = 3, 8


def stream(steps: int, dtype: torch.dtype, head_dim: int = 16):
    """The last keys of a stream, unrotated, as the cache returned them and as they came."""
    torch.manual_seed(0)
    cache, came = StreamingCache(SINKS, WINDOW), []
    for _ in range(steps):
        k = torch.randn(1, 2, 1, head_dim).to(dtype)
        came.append(k)
        keys, _ = cache.append(k, k)
    return keys, torch.cat(came, dim=2)


@pytest.mark.parametrize("steps", [1, SINKS, SINKS + WINDOW, SINKS + WINDOW + 1, 500])
def test_what_a_token_sees_is_the_first_tokens_and_the_last_as_they_came(steps):
    keys, came = stream(steps, torch.bfloat16)
    if steps <= SINKS + WINDOW + 1:
        assert torch.equal(keys, came)
    else:
        assert torch.equal(keys, torch.cat((came[:, :, :SINKS], came[:, :, -WINDOW - 1 :]), dim=2))


def test_scores_after_many_shifts_have_one_rounding_where_moved_keys_have_many():
    rope, dtype = ordinate.RoPE(64), torch.bfloat16
    keys, came = stream(400, dtype, head_dim=64)
    places = torch.arange(keys.shape[2])
    exact = rope.at(places).apply(keys.double())
    ours = rope.at(places).apply(keys)
    # The same window kept rotated, and moved back by one place at each of the steps that followed.
    moved = rope.at(torch.tensor([SINKS + WINDOW])).apply(came[:, :, -WINDOW - 1 : -WINDOW])
    for place in range(SINKS + WINDOW, SINKS, -1):
        here, there = (rope.at(torch.tensor([p])) for p in (place, place - 1))
        moved = ordinate.rerotate(moved, here, there)
    once = (ours.double() - exact).abs().amax()
    often = (moved.double() - exact[:, :, SINKS : SINKS + 1]).abs().amax()
    half_ulp = torch.finfo(dtype).eps / 2 * exact.abs().amax()
    assert once <= half_ulp + 2**-22 * exact.norm(dim=-1).amax()
    assert often > 1.5 * (ours.double() - exact)[:, :, SINKS].abs().amax()


@pytest.mark.parametrize(
    "make", [lambda: ordinate.RoPE(16), lambda: ordinate.ALiBi(2), lambda: ordinate.T5Bias(2)]
)
def test_any_encoding_streams_by_places_in_the_cache(make):
    encoding, cache = make(), StreamingCache(SINKS, WINDOW)
    torch.manual_seed(1)
    kept = []
    for _ in range(40):
        q, k, v = (torch.randn(1, 2, 1, 16) for _ in range(3))
        kept.append((k, v))
        keys, values = cache.append(k, v)
        out = ordinate.attention(q, keys, values, encoding, causal=True)
    seen = kept[:SINKS] + kept[-WINDOW - 1 :]
    k, v = (torch.cat(part, dim=2) for part in zip(*seen, strict=True))
    places = torch.arange(k.shape[2])
    expected = ordinate.attention(
        q, k, v, encoding, causal=True, q_positions=places[-1:], k_positions=places, impl="reference"
    )
    torch.testing.assert_close(out, expected)


def feed(model, ids, cache, piece: int = 1):
    out = []
    with torch.no_grad():
        for start in range(0, ids.shape[1], piece):
            out.append(
                model(ids[:, start : start + piece], past_key_values=cache, use_cache=True).logits
            )
    return torch.cat(out, dim=1)


@pytest.mark.parametrize(
    "name",
    [
        "Llama 2",
        "GPT-NeoX",
        "GPT-J",
        "Cohere",
        "Cohere 2",
        "SmolLM3",
        "Gemma 3",
        "BLOOM",
        "MPT",
        "Falcon, RoPE",
    ],
)
def test_a_patched_model_streams_as_its_own_code_until_the_cache_is_full(name):
    model, ids = build(name), tokens(length=SINKS + WINDOW)
    with torch.no_grad():
        expected = model(ids).logits
    patch(model)
    for piece in (1, 4):
        torch.testing.assert_close(
            feed(model, ids, streaming_cache(SINKS, 16), piece), expected, atol=1e-5, rtol=1e-5
        )


ONE_LAYER = {
    "Llama": _model("Llama", num_hidden_layers=1),
    "GPT-NeoX": _model("GPTNeoX", num_hidden_layers=1),
    "GPT-J": _model("GPTJ", n_embd=64, n_head=4, num_hidden_layers=1, rotary_dim=8),
    "Falcon": _model("Falcon", num_hidden_layers=1),
    "BLOOM": _model("Bloom", num_hidden_layers=1, n_head=4),
    "DiffLlama, which attends twice": _model("DiffLlama", num_hidden_layers=1),
    "JetMoE, which repeats keys": _model("JetMoe", num_hidden_layers=1, num_local_experts=2),
}


@pytest.mark.parametrize("name", ONE_LAYER)
def test_a_patched_model_sees_the_kept_tokens_at_their_places(name):
    """One layer, so that what is kept does not remember what was dropped."""
    model, ids = build(ONE_LAYER[name]), tokens(batch=1, length=60)
    patch(model)
    streamed = feed(model, ids, streaming_cache(SINKS, WINDOW))
    unpatch(model)
    kept = torch.cat((ids[:, :SINKS], ids[:, -WINDOW - 1 :]), dim=1)
    with torch.no_grad():
        expected = model(kept).logits
    torch.testing.assert_close(streamed[:, -1], expected[:, -1], atol=1e-5, rtol=1e-5)


LONGROPE = rope(
    rope_type="longrope", short_factor=[1.0 + i / 8 for i in range(8)], factor=4.0, short_mscale=1.2, long_mscale=1.4,
    long_factor=[2.0 + i for i in range(8)], original_max_position_embeddings=64,
)  # fmt: skip
ROTATED = {
    "rotation that is not recognised": _model("NanoChat"),
    "rotation that no plan gives": _model(
        "Phimoe", num_local_experts=2, original_max_position_embeddings=64, **LONGROPE
    ),
    "a norm after the rotation": _model("HunYuanDenseV1", head_dim=16),
    "a part of the channels": _model("Phi"),
    "a part of a latent head": _model("DeepseekV3", q_lora_rank=16, **_LATENT),
    "queries and keys apart": "Gemma 4",
    "a temperature by absolute positions": _model(
        "Ministral3",
        head_dim=16,
        rope_parameters={
            "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 4,
            "llama_4_scaling_beta": 0.1,
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROTATED)
def test_keys_that_are_not_known_to_be_unrotated_are_refused(name):
    model, ids = build(ROTATED[name]), tokens()
    report = patch(model)
    with torch.no_grad():
        before = model(ids).logits
        with pytest.raises(NotImplementedError, match=r"a streaming cache.* got .*layer"):
            model(ids, past_key_values=streaming_cache(SINKS, WINDOW))
        torch.testing.assert_close(model(ids).logits, before, msg=str(report))


def test_keys_of_images_are_not_taken_for_keys_of_layers_without_rotation():
    """Mllama's layers for images have none by the plan either, and a window of tokens would drop their keys."""
    make = _model("MllamaText", "MllamaForCausalLM", cross_attention_layers=[1], bos_token_id=1)
    model, ids = build(make), tokens()
    patch(model)
    images = {
        "cross_attention_states": torch.randn(2, 6, 64),
        "cross_attention_mask": torch.ones(2, 20, 1, 6),
    }
    with pytest.raises(NotImplementedError, match=r"a streaming cache.* got those of layer 1"):
        model(ids, past_key_values=streaming_cache(SINKS, 40), **images)


def test_a_layer_that_its_own_code_computes_refuses_a_deferred_rotation(monkeypatch):
    model = build(ONE_LAYER["Falcon"])
    patch(model)
    monkeypatch.setattr("ordinate.hf.patching.layer_forwards._can_compute", lambda *given: False)
    with pytest.raises(
        NotImplementedError, match=r"go to attention unchanged.* got a layer that does it"
    ):
        model(tokens(), past_key_values=streaming_cache(SINKS, WINDOW))


HYBRIDS = {
    "convolutions": _model("Lfm2", layer_types=["conv", "full_attention"]),
    "attention first": _model("Lfm2", layer_types=["full_attention", "conv"]),
    "Mamba": _model("Bamba", attn_layer_indices=[1]),
    "Mamba beside attention": _model(
        "FalconH1", mamba_d_ssm=128, mamba_n_heads=8, mamba_d_head=16, mamba_n_groups=1
    ),
}


@pytest.mark.parametrize("name", HYBRIDS)
def test_layers_that_keep_a_state_are_refused_in_a_sentence(name):
    model, ids = build(HYBRIDS[name]), tokens(length=5)
    patch(model)
    with pytest.raises(
        NotImplementedError, match=r"must not be a streaming cache in a model with layers"
    ):
        model.generate(ids, past_key_values=streaming_cache(SINKS, WINDOW), max_new_tokens=3)


def test_generation_goes_on_past_the_cache_and_memory_does_not_grow():
    model, ids = build("Llama 2"), tokens(batch=2, length=5)
    patch(model)
    cache = streaming_cache(SINKS, WINDOW)
    out = model.generate(
        ids,
        past_key_values=cache,
        max_new_tokens=100,
        min_new_tokens=100,
        do_sample=False,
        pad_token_id=0,
    )
    assert out.shape == (2, 105)
    assert cache.get_seq_length() == 104
    assert all(layer.keys.shape[2] == SINKS + WINDOW for layer in cache.layers)
    assert all(len(layer.stream) == SINKS + WINDOW for layer in cache.layers)


def test_beams_and_reset_reach_the_stream():
    cache = streaming_cache(SINKS, WINDOW)
    cache.ordinate_unrotated_layers = frozenset({0})
    k = torch.arange(2.0).view(2, 1, 1, 1).expand(2, 1, 4, 6)
    cache.update(k, k, 0)
    (layer,) = cache.layers
    cache.reorder_cache(torch.tensor([1, 1]))
    assert layer.stream.k.unique().tolist() == [1.0]
    cache.batch_repeat_interleave(3)
    assert layer.stream.k.shape[0] == layer.keys.shape[0] == 6
    cache.batch_select_indices(torch.tensor([0]))
    assert layer.stream.v.shape[0] == 1
    cache.reset()
    assert cache.get_seq_length() == len(layer.stream) == 0
