"""Every name under which transformers takes a setting is a name under which we read it."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
from hf_cases import THEIRS, config_class

from ordinate.hf import Plan, from_config
from ordinate.hf.config.families.registry import FAMILIES

#: Old names in config classes that say nothing about positions, sizes or layers.
ELSEWHERE = {
    "tie_word_embeddings", "num_labels", "block_ff_dim", "tie_embedding", "num_global_key_value_heads",
    "rope_scaling",  # a mapping, tested in every way of its own
}  # fmt: skip
#: Values other than the default, where doubling it will not do.
VALUES: dict[Any, Any] = {
    "layer_types": None, "partial_rotary_factor": 0.75, "rotary_pct": 0.75, "rotary_dim": 32,
    "sliding_window_pattern": 3, "global_attn_every_n_layers": 2, "full_attention_interval": 3,
    "global_head_dim": 256, "n_embed": 1136,
    ("qwen3_5_text", "partial_rotary_factor"): 0.25, ("qwen3_5_moe_text", "partial_rotary_factor"): 0.25,
    ("glm4_moe", "partial_rotary_factor"): 1.0,  # heads of 42 channels, of which no half can turn
}  # fmt: skip
#: What a class asks for beside some settings.
BESIDE: dict[Any, dict[str, Any]] = {
    ("gpt_neo", "num_layers"): {"attention_types": [[["global", "local"], 24]]},
}
#: Where transformers is alone with its reading, and why we do not follow.
NOT_FOLLOWED = {
    # It sets the base of full attention alone; the model's first code, and its checkpoints, have one base.
    ("olmo3", "rope_theta"),
    # Set after the decoder's depth was copied from the encoder's, which then keeps the default.
    ("t5", "num_hidden_layers"), ("mt5", "num_hidden_layers"), ("umt5", "num_hidden_layers"),
    # Its depth is checked against its types before it is set.
    ("gpt_neo", "num_hidden_layers"),
    # A name for the encoder's heads that no file has.
    ("whisper", "num_key_value_heads"),
}  # fmt: skip


def aliases(name: str) -> list[str]:
    """Both sides of the class's ``attribute_map``, and what its constructor takes out of its arguments."""
    cls = config_class(name)
    sources = [inspect.getsource(x) for x in cls.__mro__ if "transformers.models" in x.__module__]
    legacy = re.findall(
        r'kwargs\.(?:pop|get|setdefault)\(\s*"(\w+)"|"(\w+)" in kwargs', "".join(sources)
    )
    family, known = FAMILIES[name], set()
    for ours in (*family.defaults, *family.keys):
        known |= {ours, family.keys.get(ours, ours)}
    pairs = [pair for pair in cls.attribute_map.items() if known & set(pair)]
    found = {key for pair in pairs for key in pair} | {a or b for a, b in legacy}
    return sorted(found - ELSEWHERE)


CASES = [
    (name, alias) for name in THEIRS for alias in aliases(name) if (name, alias) not in NOT_FOLLOWED
]
PAIRS = [
    (name, common, own)
    for name in THEIRS
    for common, own in [*config_class(name).attribute_map.items(), ("hidden_size", "n_embed")]
    if (own == "n_embed" and (name, own) in CASES)
    or ({(name, common), (name, own)} <= set(CASES) and {common, own} & set(FAMILIES[name].defaults))
]


def said(plan: Plan) -> tuple[Any, ...]:
    layers = [(x.describe(), x.head_dim, x.layer_type, x.window) for x in plan.layers]
    return layers, {k: repr(x) for k, x in plan.embeddings.items()}, plan.max_positions


def value_for(name: str, alias: str) -> Any:
    """One that differs from the class's own."""
    for key in ((name, alias), alias):
        if key in VALUES:
            return VALUES[key]
    return 2 * (getattr(config_class(name)(), alias, None) or 5000)


def test_the_names_are_found():
    assert ("bloom", "n_embed") in CASES
    assert ("gpt2", "hidden_size") in CASES
    assert ("gpt_neox", "rotary_pct") in CASES
    assert len(CASES) > 100


@pytest.mark.parametrize(("name", "alias"), CASES)
def test_a_setting_is_read_under_every_name_that_transformers_takes(name: str, alias: str):
    values = {alias: value_for(name, alias), **BESIDE.get((name, alias), {})}
    assert said(from_config({"model_type": name, **values})) == said(
        from_config(config_class(name)(**values))
    )


@pytest.mark.parametrize(("name", "common", "own"), PAIRS)
def test_of_two_names_that_differ_the_one_that_transformers_takes_is_taken(
    name: str, common: str, own: str
):
    value = value_for(name, common)
    values = {common: value, own: 2 * value}
    plan = from_config({"model_type": name, **values})
    theirs = from_config(config_class(name)(**values))
    assert plan.layers[0].head_dim == theirs.layers[0].head_dim
    assert plan.max_positions == theirs.max_positions
    assert len([x for x in plan.layers if x.stack == plan.layers[0].stack]) == len(
        [x for x in theirs.layers if x.stack == theirs.layers[0].stack]
    )
    assert any(f"{common}=" in w and f"{own}=" in w and "differ" in w for w in plan.warnings)
