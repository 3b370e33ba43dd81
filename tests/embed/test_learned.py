"""Learned codes: rows by position, offsets of checkpoints, and no row past the last."""

from __future__ import annotations

import pytest
import torch

from ordinate import Learned


def test_each_position_gets_its_row():
    learned = Learned(10, 4)
    positions = torch.tensor([[9, 0, 0, 3]])
    embedded = learned.embed(torch.ones(1, 4, 4), positions)
    torch.testing.assert_close(embedded, 1 + learned.weight[positions], rtol=0, atol=0)


def test_opt_checkpoints_fit_with_an_offset_of_two():
    from transformers.models.opt.modeling_opt import OPTLearnedPositionalEmbedding

    theirs, ours = OPTLearnedPositionalEmbedding(12, 8), Learned(12, 8, offset=2)
    ours.load_state_dict({"weight": theirs.weight.detach()})
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    expected = theirs(mask)[mask.bool()]
    found = ours.embed(torch.zeros(2, 5, 8), (mask.cumsum(1) - 1).clamp(min=0))[mask.bool()]
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_the_default_initialisation_is_small_and_normal():
    weight = Learned(2000, 64).weight
    torch.testing.assert_close(weight.std(), torch.tensor(0.02), rtol=0.02, atol=0)


@pytest.mark.plain
@pytest.mark.parametrize(("positions", "value"), [([0, 8], 8), ([-1, 3], -1)])
def test_a_position_without_a_row_is_an_error(positions: list[int], value: int):
    with pytest.raises(ValueError, match=rf"positions must be in 0 … 7 .* got {value}"):
        Learned(8, 4).embed(torch.zeros(1, 2, 4), torch.tensor(positions))


@pytest.mark.plain
def test_a_sequence_longer_than_the_table_is_an_error():
    with pytest.raises(ValueError, match=r"positions must be in 0 … 7 .* got 8"):
        Learned(8, 4).embed(torch.zeros(1, 9, 4))


@pytest.mark.plain
@pytest.mark.parametrize("positions", [[3, -1], [3, 8]])
def test_a_compiled_graph_asserts_what_eager_mode_raises(positions):
    learned = Learned(8, 4, offset=2)
    compiled = torch.compile(learned.embed, backend="aot_eager", fullgraph=True)
    with pytest.raises(RuntimeError, match=r"positions must be in 0 … 7 \(max_positions=8\)"):
        compiled(torch.zeros(1, 2, 4), torch.tensor(positions))
