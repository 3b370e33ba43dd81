"""Sinusoidal codes: known numbers, the dialects in use, and what Vaswani et al. say of them."""

from __future__ import annotations

import pytest
import torch

from ordinate import Sinusoidal


def test_codes_of_four_channels_are_the_papers():
    codes = Sinusoidal(4).codes(torch.tensor([1, 3]))
    expected = [
        [0.84147098, 0.54030231, 0.00999983, 0.99995000],
        [0.14112001, -0.98999250, 0.02999550, 0.99955003],
    ]
    torch.testing.assert_close(codes, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=5e-9)


def test_frequencies_of_the_paper_and_of_tensor2tensor_differ():
    paper, t2t = Sinusoidal(8).inv_freq(), Sinusoidal(8, endpoint=True).inv_freq()
    torch.testing.assert_close(
        paper, torch.tensor([1, 0.1, 0.01, 0.001], dtype=torch.float64), rtol=1e-14, atol=0
    )
    expected = torch.tensor([1, 0.04641589, 0.00215443, 0.0001], dtype=torch.float64)
    torch.testing.assert_close(t2t, expected, rtol=0, atol=5e-9)


def test_the_exponent_counts_pairs_not_channels():
    """A common error squares the frequencies: 10000^(2i/d) with i over all channels."""
    codes = Sinusoidal(8, layout="half").codes(torch.tensor([1]))[0]
    torch.testing.assert_close(
        codes[1], torch.tensor(0.1, dtype=torch.float64).sin(), rtol=1e-14, atol=0
    )


def test_products_depend_on_the_distance_and_norms_are_half_the_width():
    sinusoidal = Sinusoidal(32)
    codes = sinusoidal.codes(torch.arange(200))
    for step in (1, 7, 60):
        products = (codes[:-step] * codes[step:]).sum(-1)
        expected = (step * sinusoidal.inv_freq()).cos().sum()
        torch.testing.assert_close(products, expected.expand_as(products), rtol=0, atol=1e-11)
    norms = codes.square().sum(-1)
    torch.testing.assert_close(norms, torch.full_like(norms, 16), rtol=1e-14, atol=0)


def test_a_shift_is_one_linear_map_for_all_positions():
    sinusoidal, step = Sinusoidal(16, layout="half"), 13
    cos, sin = ((step * sinusoidal.inv_freq()).cos().diag(), (step * sinusoidal.inv_freq()).sin().diag())
    shift = torch.cat((torch.cat((cos, sin), 1), torch.cat((-sin, cos), 1)))
    here, there = (sinusoidal.codes(torch.arange(50) + offset) for offset in (0, step))
    torch.testing.assert_close(here @ shift.T, there, rtol=0, atol=1e-12)


@pytest.mark.parametrize("length", [1, 513])
def test_whisper_has_the_tensor2tensor_dialect(length: int):
    from transformers.models.whisper.modeling_whisper import sinusoids

    ours = Sinusoidal(32, layout="half", endpoint=True).embed(torch.zeros(1, length, 32))[0]
    # Whisper's angles are float32: off by half a unit in the last place of the position.
    torch.testing.assert_close(ours, sinusoids(length, 32), rtol=0, atol=(length + 2) * 2.0**-23)


def test_marian_has_the_papers_frequencies_in_halves():
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

    theirs = MarianSinusoidalPositionalEmbedding(64, 16).create_weight().detach()
    ours = Sinusoidal(16, layout="half").embed(torch.zeros(1, 64, 16))[0]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2.0**-24)


def test_m2m100_starts_at_two():
    from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding

    theirs = M2M100SinusoidalPositionalEmbedding.get_embedding(66, 16)[2:]
    ours = Sinusoidal(16, layout="half", endpoint=True, offset=2).embed(torch.zeros(1, 64, 16))[0]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=70 * 2.0**-23)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32], ids=str)
def test_the_offset_does_not_run_over_the_dtype_of_positions(dtype):
    last = torch.tensor([torch.iinfo(dtype).max], dtype=dtype)
    here, there = (
        Sinusoidal(8, offset=offset).codes(at) for offset, at in ((2, last), (0, last.long() + 2))
    )
    torch.testing.assert_close(here, there, rtol=0, atol=0)


def test_bf16_neighbours_past_256_keep_different_codes():
    codes = Sinusoidal(64).embed(torch.zeros(1, 4096, 64, dtype=torch.bfloat16))[0]
    assert len(torch.unique(codes, dim=0)) == 4096
