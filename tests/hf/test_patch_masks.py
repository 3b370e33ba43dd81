"""Masks of transformers by their rules: each is recognised, since a rule that is not would only be slow."""

from __future__ import annotations

import pytest
import torch
import transformers
from transformers import masking_utils as theirs

import ordinate
from ordinate.hf.patching.attention_interface import register_attention
from ordinate.hf.patching.mask_rules import rules_of
from ordinate.hf.patching.masks import MaskDescription

BATCH, LENGTH, WINDOW = 2, 12, 4


@pytest.fixture
def config():
    register_attention()
    made = transformers.LlamaConfig(
        hidden_size=16, num_attention_heads=2, sliding_window=WINDOW, attention_chunk_size=WINDOW
    )
    made._attn_implementation = "ordinate"
    return made


def padding() -> torch.Tensor:
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[1, :3] = 0
    return mask


def packing() -> torch.Tensor:
    return torch.cat((torch.arange(5), torch.arange(LENGTH - 5))).expand(BATCH, -1)


PACKED = {"attention_mask": None, "position_ids": packing()}
# The function of transformers, what it is given besides, the rules and the terms that come out.
MASKS = {
    "causal": ("create_causal_mask", {}, ["causal"], {"causal"}),
    "packed": ("create_causal_mask", PACKED, ["causal", "packed"], {"causal", "q_segment_ids"}),
    "both ways": ("create_bidirectional_mask", {}, ["both ways"], set()),
    "window": ("create_sliding_window_causal_mask", {}, ["window", "causal"], {"causal", "window"}),
    "window, packed": (
        "create_sliding_window_causal_mask", PACKED, ["window", "causal", "packed"],
        {"causal", "window", "q_segment_ids"},
    ),
    "window both ways": (
        "create_bidirectional_sliding_window_mask", {}, ["window both ways", "both ways"], {"window"},
    ),
    "chunks": ("create_chunked_causal_mask", {}, ["chunks", "causal"], {"causal", "q_segment_ids"}),
}  # fmt: skip


def make(config, name: str, more: dict) -> MaskDescription:
    given = {"attention_mask": padding()} | more
    if "bidirectional" not in name:
        given["past_key_values"] = None
    made = getattr(theirs, name)(config=config, inputs_embeds=torch.zeros(BATCH, LENGTH, 16), **given)
    assert isinstance(made, MaskDescription)
    return made


@pytest.mark.parametrize("kind", MASKS)
def test_each_rule_of_transformers_is_recognised(config, kind):
    name, more, rules, terms = MASKS[kind]
    description = make(config, name, more)
    found = rules_of(description.arguments["mask_function"])
    assert found is not None
    assert [rule for rule, _ in found] == rules
    said = description.terms()
    assert said is not None
    names = ("causal", "window", "q_segment_ids")
    assert {name for name in names if said.get(name) is not None and said[name] is not False} == terms
    assert (said["key_padding_mask"] is not None) == ("attention_mask" not in more)


@pytest.mark.parametrize("kind", MASKS)
def test_the_terms_let_through_what_the_mask_does(config, kind):
    """Every query that is no padding sees the same keys by ordinate's terms as by transformers' matrix."""
    name, more, _, _ = MASKS[kind]
    description = make(config, name, more)
    description.arguments |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    matrix = description.own("sdpa")
    assert matrix is not None
    q = torch.zeros(BATCH, 1, LENGTH, LENGTH)
    one_hot = torch.eye(LENGTH).expand(BATCH, 1, -1, -1)
    weights = ordinate.attention(q, q, one_hot, **description.terms())
    real = padding().bool() if "attention_mask" not in more else torch.ones(BATCH, LENGTH).bool()
    seen = (weights > 0).squeeze(1)[real]
    assert torch.equal(seen, matrix.expand(BATCH, 1, -1, -1).squeeze(1)[real])


def test_a_rule_without_a_name_is_left_to_their_matrix(config):
    rule = theirs.or_masks(theirs.causal_mask_function, lambda b, h, q, k: k == 0)
    assert rules_of(rule) is None
    assert MaskDescription({"mask_function": rule, "q_length": 3, "kv_length": 3}).terms() is None


LOOKS = {
    "an index": lambda mask: mask[:, :, :, :5],
    "a place": lambda mask: mask[0][0][3],
    "torch.cat": lambda mask: torch.cat([mask, mask], dim=-1),
    "torch.where": lambda mask: torch.where(mask == 0, 1.0, 2.0),
    "into another tensor": lambda mask: torch.ones(BATCH, 1, LENGTH, LENGTH).masked_fill(mask != 0, 3.0),
    "on the right": lambda mask: torch.ones(LENGTH, LENGTH) + mask,
    "on the left": lambda mask: mask * 2,
    "a method": lambda mask: mask.expand(-1, 2, -1, -1),
    "a cast": lambda mask: mask.to(torch.float64),
    "sizes": lambda mask: torch.tensor([*mask.shape, mask.dim(), mask.ndim, mask.size(-1), len(mask)]),
}


@pytest.mark.parametrize("before", ["sdpa", "eager"])
@pytest.mark.parametrize("look", LOOKS)
def test_a_model_that_looks_into_a_mask_finds_the_mask(config, look, before):
    type(config).ordinate_previous, plain = before, type(config)  # as `patch` names it in a config
    try:
        description, other = (make(config, "create_causal_mask", {}) for _ in range(2))
        matrix = other.own(before)
        assert torch.equal(LOOKS[look](description), LOOKS[look](matrix))
        assert (description.dtype, description.device) == (matrix.dtype, matrix.device)
    finally:
        del plain.ordinate_previous


def test_what_a_model_writes_into_a_mask_reaches_attention(config):
    description = make(config, "create_causal_mask", {})
    description[:, :, 5, 2] = False
    assert description.terms() is None
    assert not description.own("sdpa")[:, :, 5, 2].any()


def test_a_mask_that_kernels_would_do_without_is_whole_for_a_model_that_looks(config):
    description = make(config, "create_causal_mask", {"attention_mask": None})
    assert description.own("sdpa") is None
    assert torch.equal(description[0, 0], torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril())


def test_a_mask_has_the_attributes_of_a_tensor_and_no_others():
    with pytest.raises(AttributeError, match="'MaskDescription' object has no attribute 'rule'"):
        MaskDescription({"mask_function": min}).rule  # noqa: B018
