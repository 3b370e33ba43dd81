"""`patch` compares a model's answers before and after, and reports what it could not compare."""

from __future__ import annotations

import importlib

import pytest
import torch
import transformers
from patch_models import _TINY, MODELS, build, left_padding, logits, tokens

from ordinate.hf import patch, register_attention, unpatch
from ordinate.hf.patching.rotations import PassRotation

close = {"atol": 1e-5, "rtol": 1e-5}


def sharp(model):
    """A model whose attention is sharp enough that a wrong mask shows."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "embed" not in name:
                parameter.normal_(std=0.15)
    return model.eval()


def recurrent_gemma():
    sizes = _TINY | {"lru_width": 64, "head_dim": 16, "sliding_window": 8, "num_hidden_layers": 3}
    torch.manual_seed(0)
    return sharp(transformers.RecurrentGemmaForCausalLM(transformers.RecurrentGemmaConfig(**sizes)))


def test_a_mask_of_fewer_keys_than_there_are_is_the_models_own():
    """RecurrentGemma decodes with a mask of one key, which its own code takes for all keys alike."""
    model, ids = recurrent_gemma(), tokens()
    more = {
        "max_new_tokens": 6,
        "do_sample": False,
        "return_dict_in_generate": True,
        "output_logits": True,
    }
    run = lambda: model.generate(ids, attention_mask=left_padding(ids), **more)  # noqa: E731
    expected = run()
    patch(model)
    found = run()
    assert torch.equal(found.sequences, expected.sequences)
    torch.testing.assert_close(torch.stack(found.logits), torch.stack(expected.logits), **close)


@pytest.mark.parametrize("name", ["T5", "UMT5"])
def test_a_padded_prompt_may_be_fed_in_pieces(name):
    model, ids = build(name), tokens()
    more = {"max_new_tokens": 4, "do_sample": False, "prefill_chunk_size": 4}
    run = lambda: model.generate(ids, attention_mask=left_padding(ids), **more)  # noqa: E731
    expected = run()
    patch(model)
    assert torch.equal(run(), expected)


@pytest.mark.parametrize("name", ["T5", "UMT5", "T5Gemma"])
def test_one_encoded_row_serves_all_rows_that_decode_it(name):
    """Their attention repeats it; some callers count on that, for several answers to one text."""
    model = build(name) if name in MODELS else sharp(t5gemma())
    given = {"input_ids": tokens(batch=1), "decoder_input_ids": tokens(batch=2, length=5)}
    expected = logits(model, **given)
    patch(model)
    torch.testing.assert_close(logits(model, **given), expected, **close)


def t5gemma():
    torch.manual_seed(0)
    part = _TINY | {"head_dim": 16, "sliding_window": 8}
    return transformers.T5GemmaForConditionalGeneration(
        transformers.T5GemmaConfig(encoder=part, decoder=part)
    )


SIGHT = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16,
    "patch_size": 8, "projection_dim": 64,
}  # fmt: skip
TEXT = _TINY | {"head_dim": 16, "sliding_window": 8}
SPECIAL = {"image_token_index": 90, "image_token_id": 90, "boi_token_index": 91, "eoi_token_index": 92}


def t5gemma2():
    encoder = {"text_config": TEXT, "vision_config": SIGHT, "mm_tokens_per_image": 4, **SPECIAL}
    config = transformers.T5Gemma2Config(encoder=encoder, decoder=TEXT, image_token_index=90)
    return transformers.T5Gemma2ForConditionalGeneration(config)


def paligemma():
    config = transformers.PaliGemmaConfig(
        text_config=_TINY | {"head_dim": 16, "model_type": "gemma"},
        vision_config=SIGHT,
        projection_dim=64,
        **SPECIAL,
    )
    return transformers.PaliGemmaForConditionalGeneration(config)


def causal(name: str, **changes):
    config = getattr(transformers, f"{name}Config")(**(_TINY | changes))
    return getattr(transformers, f"{name}ForCausalLM")(config)


LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 16, "head_dim": 8,
}  # fmt: skip
EXPERTS = {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1, "num_local_experts": 4,
}  # fmt: skip
INDEXER = {"index_n_heads": 4, "index_head_dim": 16, "index_topk": 4}
COMPRESSED = {
    "head_dim": 16, "q_lora_rank": 16, "o_lora_rank": 16, "o_groups": 2, "sliding_window": 8,
    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
}  # fmt: skip
FLASH = {
    "n_routed_experts": 4, "moe_topk": 2, "expert_ffn_hidden_size": 32, "ffn_hidden_size": 64, "num_layers": 1,
}  # fmt: skip
# What looks into a mask, at its name or at its type, and whether attention can be ordinate's all the same.
LOOKING = {
    "PaliGemma": (paligemma, True),
    "T5Gemma 2": (t5gemma2, False),
    "Doge": (lambda: causal("Doge", keep_window_size=4), False),
    "DeepSeek-V3.2": (lambda: causal("DeepseekV32", **LATENT, **EXPERTS, **INDEXER), False),
    "GLM-5": (lambda: causal("GlmMoeDsa", **LATENT, **EXPERTS, **INDEXER), False),
    "AXK2": (lambda: causal("AXK2", **LATENT, **EXPERTS, **INDEXER), False),
    "HY-V4": (lambda: causal("HYV4", **LATENT, **EXPERTS, **INDEXER), False),
    "DeepSeek-V4": (lambda: causal("DeepseekV4", **COMPRESSED, **EXPERTS, **INDEXER), False),
    "LongCat-Flash": (lambda: causal("LongcatFlash", **LATENT, **FLASH), True),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOKING)
def test_a_model_that_looks_at_how_it_attends_answers_as_before(name):
    make, attends = LOOKING[name]
    torch.manual_seed(0)
    model = sharp(make())
    report = patch(model)
    assert report.checked, report
    assert "decoding" in report.asked
    assert any("attention by ordinate" in entry.what for entry in report.changed) == attends


BY_NAME = {
    "DeepSeek-V3.2": "it masks in another way for implementations that it does not know",
    "GLM-5": "it masks in another way for implementations that it does not know",
    "AXK2": "it masks in another way for implementations that it does not know",
    "HY-V4": "it masks in another way for implementations that it does not know",
    "DeepSeek-V4": "it treats a mask in another way that is not a tensor",
}


@pytest.mark.parametrize("patched", [False, True])
@pytest.mark.parametrize("name", BY_NAME)
def test_a_layer_that_must_attend_by_its_own_code_refuses_ordinate_by_name(name, patched):
    torch.manual_seed(0)
    model, ids = sharp(LOOKING[name][0]()), tokens()
    expected = logits(model, input_ids=ids)
    if patched:
        patch(model)
    register_attention()
    model.set_attn_implementation("ordinate")
    with pytest.raises(NotImplementedError, match=f"must not be 'ordinate' for .*, for {BY_NAME[name]}"):
        model(ids)
    model.set_attn_implementation("eager")
    torch.testing.assert_close(logits(model, input_ids=ids), expected, **close)


@pytest.mark.parametrize("name", ["GPT-2", "T5"])
def test_a_layer_that_only_names_an_implementation_attends_by_ordinate(name):
    """GPT-2 asks for eager attention where it is to be upcast, T5 whether a cache counts in a tensor."""
    torch.manual_seed(0)
    gpt2 = transformers.GPT2Config(vocab_size=97, n_embd=64, n_layer=2, n_head=4)
    model = sharp(transformers.GPT2LMHeadModel(gpt2)) if name == "GPT-2" else build(name)
    given = {"input_ids": tokens(), "attention_mask": left_padding(tokens())}
    if name == "T5":
        given["decoder_input_ids"] = tokens(length=11)
    expected = logits(model, **given)
    register_attention()
    model.set_attn_implementation("ordinate")
    torch.testing.assert_close(logits(model, **given), expected, **close)


def test_a_model_of_which_nothing_can_be_taken_over_is_refused_and_left_as_it_was():
    """Pixtral's images are in one row, with a mask of their own; that shows only when it is asked."""
    sizes = SIGHT | {"hidden_size": 64, "num_attention_heads": 4}
    config = transformers.PixtralVisionConfig(**sizes)
    model = sharp(transformers.PixtralVisionModel(config))
    held = [dict(vars(module)) for module in model.modules()]
    with pytest.raises(
        ValueError,
        match=r"in a way that can be taken over, got PixtralVisionModel \(.*PixtralAttention: it attends",
    ):
        patch(model)
    for before, module in zip(held, model.modules(), strict=True):
        assert vars(module).keys() == before.keys()
        assert all(vars(module)[key] is before[key] for key in before)
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_what_could_not_be_asked_is_said_and_nothing_is_called_as_before():
    """A model whose own code refuses images of the size its config names."""
    torch.manual_seed(0)
    model = sharp(paligemma())
    model.model.vision_tower.embeddings.patch_embedding.register_forward_hook(refuse)
    report = patch(model)
    assert not report.checked
    assert report.unasked == ("pixel_values: before the patch it answered ValueError: no images today",)
    assert "answers as before" not in str(report)
    assert "unchecked   pixel_values" in str(report)
    assert "not checked" in str(patch(build("Llama 2"), check=False))


def refuse(*args):
    raise ValueError("no images today")


@pytest.mark.parametrize("name", ["T5", "BLOOM", "MPT", "Falcon, ALiBi", "GPT-J"])
def test_layers_that_are_rewritten_here_are_asked_too(name, monkeypatch):
    """A kernel that forgets padding is found out, in decoding as well as in a whole pass."""
    assert patch(build(name)).checked
    layers = importlib.import_module("ordinate.hf.patching.layer_forwards")
    right = layers.attend

    def forgets(q, k, v, terms, **options):
        return right(
            q, k, v, terms | {"key_padding_mask": None} if q.shape[2] == 1 else terms, **options
        )

    monkeypatch.setattr(layers, "attend", forgets)
    with pytest.raises(ValueError, match=r"model must answer as before .* apart \(decoding\)"):
        patch(build(name))


@pytest.mark.parametrize("name", ["Qwen2-VL", "Qwen3-VL"])
def test_images_and_video_are_asked(name, monkeypatch):
    """Only where there is an image do the axes of a position differ."""
    assert patch(build(name)).asked[-2:] == ("pixel_values", "pixel_values_videos")
    monkeypatch.setattr(
        PassRotation,
        "_positions",
        lambda self, k_len: (flat_positions(self), flat_positions(self)),
    )
    with pytest.raises(ValueError, match=r"model must answer as before .* apart \(pixel_values\)"):
        patch(build(name))


def flat_positions(rotation):
    return rotation.positions[:1].expand_as(rotation.positions)


def test_an_option_that_is_off_keeps_no_layer_from_attending_by_ordinate():
    """ModernBERT tells its attention that it need not be deterministic."""
    sizes = _TINY | {"local_attention": 8, "cls_token_id": 1, "sep_token_id": 2}
    torch.manual_seed(0)
    model = sharp(transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(**sizes)))
    report = patch(model)
    assert report.checked, report
    assert not report.left_alone


def test_what_attention_by_ordinate_answers_otherwise_is_the_models_own_again(monkeypatch):
    """The report says how the answers differ, and only the rotation is ordinate's."""
    interface = importlib.import_module("ordinate.hf.patching.attention_interface")
    right = interface.attention
    monkeypatch.setattr(
        interface, "attention", lambda *given, **terms: right(*given, **(terms | {"window": None}))
    )
    model = build("Mistral")
    expected = logits(model, input_ids=tokens())
    report = patch(model)
    assert report.checked
    (layers,) = report.left_alone
    assert layers.what.startswith("attention by ordinate does not answer as before: answers ")
    assert layers.what.endswith(" of their size apart (tokens)")
    torch.testing.assert_close(logits(model, input_ids=tokens()), expected, **close)
    model.set_attn_implementation("ordinate")  # what was seen to be wrong is not had by name either
    with pytest.raises(NotImplementedError, match=r"'ordinate' for MistralAttention, for attention by"):
        model(tokens())


@pytest.mark.parametrize("name", ["Llama 2", "T5", "BLOOM"])
def test_a_model_without_a_head_decodes_too(name):
    model = build(name)
    model = (
        model.model
        if name == "Llama 2"
        else model.transformer
        if name == "BLOOM"
        else transformers.T5Model(model.config)
    )
    assert patch(model).asked == ("tokens", "padding", "decoding")


def test_asking_puts_no_hook_on_a_layer_twice():
    """transformers puts hooks on layers at the first call that wants hidden states, as LLaVA's does, and notes it."""
    torch.manual_seed(0)
    config = transformers.LlavaConfig(
        text_config=_TINY | {"model_type": "llama"},
        vision_config=SIGHT | {"model_type": "clip_vision_model", "num_hidden_layers": 2},
        image_token_id=90, image_seq_length=4,
    )  # fmt: skip
    model = sharp(transformers.LlavaForConditionalGeneration(config))
    report = patch(model)
    assert report.checked, report
    assert "pixel_values" in report.asked
    tower = model.model.vision_tower
    states = tower(torch.zeros(1, 3, 16, 16), output_hidden_states=True).hidden_states
    assert len(states) == 1 + config.vision_config.num_hidden_layers


def test_asking_leaves_a_model_as_it_was():
    """Some keep the state of their last call: positions of images, recurrences, frequencies that grew."""
    model = recurrent_gemma().train()
    held = [dict(vars(module)) for module in model.modules()]
    patch(model)
    unpatch(model)
    for before, module in zip(held, model.modules(), strict=True):
        assert vars(module).keys() == before.keys()
        assert all(vars(module)[key] is before[key] for key in before if not key.startswith("_forward"))
