"""Where a patched model is meant to differ: their own code contradicts itself, and ours agrees with itself.

Each test shows the fault in the unpatched model first, so that it fails when transformers mends it.
"""

from __future__ import annotations

import pytest
import torch
from patch_models import build, logits, rope, tokens

from ordinate.hf import from_config, patch

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


def test_a_patched_model_turns_by_the_frequencies_of_its_checkpoint():
    """Rounded to float32 as the checkpoint's code rounds them; only the angle is better than float32."""
    model = build("Llama 3.1")
    encoding = from_config(model.config).layers[0].encoding
    patch(model)
    source = model.model.rotary_emb.__dict__["_ordinate"].sources[None]
    assert torch.equal(source.inv_freq().float(), model.model.rotary_emb.inv_freq)
    assert not torch.equal(source.inv_freq(), encoding.inv_freq())
