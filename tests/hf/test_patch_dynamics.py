"""Where a patched model is meant to differ, because the model's own code contradicts itself.

Each test shows the fault in the unpatched model first, so that it fails when transformers mends it.
"""

from __future__ import annotations

import json

import pytest
import torch
from patch_models import _LATENT, _model, build, logits, rope, tokens

from ordinate.hf import from_config, patch
from ordinate.hf.patching.attention_interface import _own_code_reasons, attention_forward
from ordinate.hf.patching.rotary import rotary_functions

TRAINED = 16
DYNAMIC = {
    "dynamic NTK": (
        "Llama 2",
        {"max_position_embeddings": TRAINED, **rope(rope_type="dynamic", factor=2.0)},
    ),
    "LongRoPE": (
        "Phi-3",
        {
            "max_position_embeddings": 4 * TRAINED,
            "original_max_position_embeddings": TRAINED,
            **rope(
                rope_type="longrope", short_factor=[1.0 + i / 8 for i in range(8)],
                long_factor=[2.0 + i for i in range(8)], original_max_position_embeddings=TRAINED,
            ),
        },
    ),
}  # fmt: skip


def make(kind: str, layers: int = 2):
    name, changes = DYNAMIC[kind]
    plain = build(name)
    config = type(plain.config)(**(plain.config.to_dict() | changes | {"num_hidden_layers": layers}))
    model = type(plain)(config).eval()
    model.load_state_dict(plain.state_dict(), strict=layers == 2)
    return model


def rows(short: int, long: int):
    """A short row, alone and beside a long one it is padded to, at the positions of its own tokens."""
    ids = tokens(length=long)
    mask = torch.ones_like(ids)
    mask[1, : long - short] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    return ids, mask, positions


@pytest.mark.parametrize("kind", DYNAMIC)
def test_a_short_row_does_not_depend_on_a_long_one_beside_it(kind):
    model = make(kind)
    ids, mask, positions = rows(short=8, long=40)
    beside = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}

    def difference() -> float:
        alone = logits(model, input_ids=ids[1:, -8:])[0]
        with torch.no_grad():
            together = model(**beside).logits[1, -8:]
        return float((alone - together).abs().max())

    assert difference() > 1e-3  # their own code follows the longest row
    patch(model)
    assert difference() < 1e-5


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", DYNAMIC)
def test_a_mask_alone_tells_how_long_each_row_is(kind, side):
    """A forward pass as in training: a mask, and the positions the model itself makes of it."""
    model, ids = make(kind), tokens(length=24)
    place = slice(14, 24) if side == "left" else slice(10)
    mask = torch.ones_like(ids)
    mask[1] = 0
    mask[1, place] = 1

    def differences() -> list[float]:
        with torch.no_grad():
            together = model(ids, attention_mask=mask).logits
        alone = logits(model, input_ids=ids[1:, place])[0], logits(model, input_ids=ids[:1])[0]
        apart = together[1, place] - alone[0], together[0] - alone[1]
        return [float(x.abs().max()) for x in apart]

    assert differences()[0] > 1e-2  # their own code follows the longest row
    patch(model)
    assert max(differences()) < 1e-5


@pytest.mark.parametrize("kind", DYNAMIC)
def test_a_mask_tells_the_lengths_beside_a_cache_too(kind):
    """In one layer; the positions are the model's own, indices in the padded row."""
    model = make(kind, layers=1)
    patch(model)
    ids, mask, _ = rows(short=12, long=24)
    cache = None
    with torch.no_grad():
        for start, end in ((0, 19), (19, 22), (22, 23), (23, 24)):
            out = model(
                ids[:, start:end], attention_mask=mask[:, :end], past_key_values=cache, use_cache=True
            )
            cache = out.past_key_values
    for row, alone in ((0, ids[:1]), (1, ids[1:, -12:])):
        whole = logits(model, input_ids=alone)[0, -1]
        assert (out.logits[row, -1] - whole).abs().max() < 1e-5


@pytest.mark.parametrize("kind", DYNAMIC)
def test_a_model_trained_shorter_than_what_patch_asks_it_is_patched(kind, monkeypatch):
    """Its answer to the padded row is meant to differ, and what it decodes; the other row is held to what it was."""
    monkeypatch.setitem(DYNAMIC, kind, shorter(DYNAMIC[kind]))
    report = patch(make(kind))
    assert report.asked == ("tokens", "padding")
    assert not report.checked
    assert "decoding: it is meant to differ past the length" in str(report)


def shorter(case):
    """The case with a model trained at 8 tokens."""
    name, changes = case
    return name, json.loads(json.dumps(changes).replace(f": {TRAINED}", ": 8"))


def test_positions_given_for_a_padded_row_are_kept():
    """Rows that count their own tokens, and one that starts further on: the length is where it ends."""
    model = make("dynamic NTK")
    patch(model)
    ids = tokens(length=24)
    with torch.no_grad():
        far = model(ids[:1], position_ids=torch.arange(40, 64)[None]).logits
        whole = torch.ones_like(ids[:1])
        masked = model(ids[:1], attention_mask=whole, position_ids=torch.arange(40, 64)[None]).logits
    torch.testing.assert_close(masked, far, atol=1e-6, rtol=1e-6)
    assert (far - logits(model, input_ids=ids[:1])).abs().max() > 1e-3


@pytest.mark.parametrize("kind", DYNAMIC)
def test_what_was_called_before_changes_nothing(kind):
    model, ids = make(kind), tokens(length=40)
    patch(model)
    first = logits(model, input_ids=ids[:, :8])
    logits(model, input_ids=ids)
    assert torch.equal(logits(model, input_ids=ids[:, :8]), first)


@pytest.mark.parametrize("kind", DYNAMIC)
def test_a_whole_pass_is_the_one_their_own_code_makes_at_first_sight(kind):
    model, ids = make(kind), tokens(length=40)
    expected = logits(make(kind), input_ids=ids)
    patch(model)
    torch.testing.assert_close(logits(model, input_ids=ids), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", DYNAMIC)
@pytest.mark.parametrize("pieces", [(10, 1, 1), (3, 20, 1, 5)])
def test_decoding_past_the_trained_length_equals_a_whole_pass(kind, pieces):
    """In one layer, whose inputs do not depend on the length at which they were computed."""
    ids = tokens(length=sum(pieces) + 20)

    def decode(model):
        """The logits of the last token, the prompt fed in pieces and then token by token."""
        cache, start, out = None, 0, None
        with torch.no_grad():
            for piece in (*pieces, *(1,) * 20):
                out = model(ids[:, start : start + piece], past_key_values=cache, use_cache=True)
                cache, start = out.past_key_values, start + piece
        return out.logits[:, -1]

    model = make(kind, layers=1)
    whole = logits(make(kind, layers=1), input_ids=ids)[:, -1]
    assert (decode(model) - whole).abs().max() > 1e-3  # their cache holds keys of several frequencies
    model = make(kind, layers=1)
    patch(model)
    assert (decode(model) - whole).abs().max() < 1e-5


@pytest.mark.parametrize("kind", DYNAMIC)
def test_left_padded_rows_decode_as_if_alone(kind):
    model = make(kind, layers=1)
    patch(model)
    ids, mask, _ = rows(short=8, long=20)
    more = {"max_new_tokens": 24, "min_new_tokens": 24, "do_sample": False, "pad_token_id": 0}
    together = model.generate(ids, attention_mask=mask, **more)
    for row, tokens_ in ((0, ids[:1]), (1, ids[1:, -8:])):
        alone = model.generate(tokens_, **more)
        assert torch.equal(together[row, -24:], alone[0, -24:])


def test_positions_with_gaps_beside_a_cache_are_refused():
    model, ids = make("dynamic NTK"), tokens(length=12)
    patch(model)
    cache = model(ids[:, :8], use_cache=True).past_key_values
    with pytest.raises(NotImplementedError, match=r"position_ids must be consecutive with a cache"):
        model(ids[:, 8:], past_key_values=cache, position_ids=torch.tensor([[8, 9, 11, 12]]))


def test_a_model_cast_to_bfloat16_keeps_its_frequencies():
    """Casting a model casts the frequencies its rotary module holds, to 8 bits."""
    ids = tokens(batch=1, length=200)
    exact = build("Llama 2")
    reference = logits(exact, input_ids=ids)
    model = build("Llama 2")
    model.model.rotary_emb.to(torch.bfloat16)
    assert model.model.rotary_emb.inv_freq.dtype == torch.bfloat16
    assert (logits(model, input_ids=ids) - reference).abs().max() > 1e-2
    patch(model)
    assert (logits(model, input_ids=ids) - reference).abs().max() < 1e-5


def test_bloom_in_bfloat16_does_not_merge_positions():
    """Their bias is slope times the key's index in bfloat16, which past 256 is the same for several keys."""
    model = build("BLOOM")
    ids = tokens(batch=1, length=700)
    reference = logits(model, input_ids=ids)
    model.to(torch.bfloat16)
    theirs = (logits(model, input_ids=ids).float() - reference)[:, 300:].abs().mean()
    patch(model)
    ours = (logits(model, input_ids=ids).float() - reference)[:, 300:].abs().mean()
    assert ours < 0.8 * theirs


def falcon(implementation: str):
    plain = build("Falcon, ALiBi")
    model = type(plain)._from_config(plain.config, attn_implementation=implementation).eval()
    model.load_state_dict(plain.state_dict())
    return model


def test_falcon_adds_its_bias_once():
    """Their eager code adds the bias to the logits and again with the mask; sdpa's adds it once."""
    ids = tokens()
    eager, sdpa = (logits(falcon(name), input_ids=ids) for name in ("eager", "sdpa"))
    assert (eager - sdpa).abs().max() > 1e-3
    for name in ("eager", "sdpa"):
        model = falcon(name)
        patch(model)
        torch.testing.assert_close(logits(model, input_ids=ids), sdpa, atol=1e-5, rtol=1e-5)


def test_falcon_does_not_merge_positions_past_256():
    """Their slopes times indices are bfloat16 in every model, a float32 one too: 256 and 257 are one."""
    model, ids = falcon("sdpa"), tokens(batch=1, length=600)
    with torch.no_grad():
        theirs = model(ids).logits
        patch(model)
        ours = model(ids).logits
    torch.testing.assert_close(ours[:, :257], theirs[:, :257], atol=1e-5, rtol=1e-5)
    assert (ours[:, 400:] - theirs[:, 400:]).abs().max() > 1e-3


def test_a_patched_model_rotates_by_the_frequencies_of_its_checkpoint():
    """Rounded to float32 as the checkpoint's code rounds them; only the angle is better than float32."""
    model = build("Llama 3.1")
    encoding = from_config(model.config).layers[0].encoding
    patch(model)
    rounded = model.model.rotary_emb.__dict__["_ordinate"].frequencies[None]
    assert torch.equal(rounded.inv_freq().float(), model.model.rotary_emb.inv_freq)
    assert not torch.equal(rounded.inv_freq(), encoding.inv_freq())


@pytest.mark.parametrize("kind", DYNAMIC)
def test_a_layer_may_attend_twice_with_the_same_deferred_rotation(kind):
    """As differential attention does; queries and keys are rotated in each of its calls."""
    model = make(kind, layers=1)
    patch(model)
    (layer,) = model.model.layers
    q, k, v = torch.randn(3, 1, 4, 5, 16)
    carriers = model.model.rotary_emb(q, torch.arange(5)[None])
    (function,) = rotary_functions(layer.self_attn)
    rotated = function.original(q, k, *carriers)
    expected, _ = attention_forward(layer.self_attn, *rotated, v, None)
    q, k = function.scope[function.name](q, k, *carriers)
    for _ in range(2):
        torch.testing.assert_close(attention_forward(layer.self_attn, q, k, v, None)[0], expected)


PART = {
    "MiniCPM3, LongRoPE": _model(
        "MiniCPM3", q_lora_rank=16, **_LATENT,
        **rope(
            rope_type="longrope", short_factor=[1.0 + i / 8 for i in range(4)], factor=4.0,
            long_factor=[2.0 + i for i in range(4)], original_max_position_embeddings=TRAINED,
        ),
    ),
    "Phi, dynamic NTK": _model(
        "Phi",
        max_position_embeddings=TRAINED,
        **rope(rope_type="dynamic", factor=2.0, partial_rotary_factor=0.5),
    ),
    "DeepSeek-V3, dynamic NTK": _model(
        "DeepseekV3",
        q_lora_rank=16,
        max_position_embeddings=TRAINED,
        **_LATENT,
        **rope(rope_type="dynamic", factor=2.0),
    ),
    "HunYuan, a norm after dynamic NTK": _model(
        "HunYuanDenseV1",
        head_dim=16,
        max_position_embeddings=TRAINED,
        **rope(rope_type="dynamic", factor=2.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PART)
def test_where_a_rotation_cannot_be_deferred_attention_alone_is_replaced(name):
    """The rotation then follows the longest row, as the model's own code has it."""
    model = build(PART[name])
    ids, mask, _ = rows(short=12, long=40)
    given = {"input_ids": ids, "attention_mask": mask}
    expected = logits(model, **given)
    report = patch(model)
    assert report.checked, report
    assert [entry.what for entry in report.changed] == ["attention by ordinate"]
    (rotary,) = report.left_alone
    why = "rotation by its own code: cached keys cannot be rotated anew in its attention: "
    assert rotary.what.startswith(why), report
    torch.testing.assert_close(logits(model, **given), expected, atol=1e-5, rtol=1e-5)


def test_where_attention_is_left_alone_no_rotation_is_deferred(monkeypatch):
    """One layer, after which nothing else would notice queries and keys that were not rotated."""
    model = make("dynamic NTK", layers=1)
    expected = logits(model, input_ids=tokens())
    monkeypatch.setitem(_own_code_reasons, type(model.model.layers[0].self_attn), "it attends alone")
    with pytest.raises(
        ValueError, match=r"cannot be rotated anew in its attention: it attends alone; LlamaAttention"
    ):
        patch(model, check=False)
    assert torch.equal(logits(model, input_ids=tokens()), expected)
