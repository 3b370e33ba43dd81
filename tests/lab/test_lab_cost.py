"""What an encoding costs is counted by what it does, and not by how much that changes."""

from __future__ import annotations

import pytest
import torch
from lab_cases import tiny

from ordinate.lab.run.build import make_encoding, make_model
from ordinate.lab.run.cost import added_cost, least_training_memory, training_memory

CONFIG = tiny(d_model=64, num_heads=2, num_layers=3, train_length=16)


def cost(spec: str) -> tuple[float, float]:
    return added_cost(make_encoding(spec, CONFIG), CONFIG)


@pytest.mark.parametrize("base", ["10.0", "1e4", "1e12", "1e30"])
def test_channels_that_turn_slowly_cost_as_much_as_those_that_turn_fast(base):
    operations = 3 * 64 * 2 * 3  # three a channel of queries and of keys, in every layer
    assert cost(f"rope:base={base}") == (operations, 4 * 32 * 3)


def test_channels_that_do_not_turn_cost_nothing():
    assert cost("rope:rotary_dim=8") == (3 * 2 * 8 * 2 * 3, 4 * 8 * 3)
    assert cost("rope:rotary_dim=8,layout=interleaved") == cost("rope:rotary_dim=8")


@pytest.mark.parametrize("base", ["10000.0", "1e30"])
def test_every_channel_of_a_code_is_added(base):
    assert cost(f"sinusoidal:base={base}") == (64, 4 * 64)
    assert cost("learned") == (64, 4 * 64)
    assert cost("none") == (0, 0)


@pytest.mark.parametrize(
    "sizes", [{"d_model": 128, "batch": 1}, {"d_model": 32, "batch": 16}], ids=["weights", "tokens"]
)
def test_the_memory_told_beforehand_is_less_than_what_is_needed_and_not_by_much(sizes):
    config = tiny(num_heads=2, num_layers=3, train_length=64, **sizes)
    tokens = torch.zeros(config.batch, config.train_length, dtype=torch.long)
    needed = training_memory(make_model(config), tokens, tokens)
    assert needed / 3 < least_training_memory(config) < needed
