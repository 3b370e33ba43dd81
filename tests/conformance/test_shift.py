"""Relative encodings see differences of positions alone; absolute ones do not."""

from __future__ import annotations

import pytest
import torch

import ordinate

from .cases import Case, cases, dtypes

START = torch.tensor([[0, 1, 2, 3, 5, 8, 13], [4, 4, 2, 30, 31, 32, 0]])


def _logits(case: Case, encoding, q, k, positions) -> torch.Tensor:
    """Logits at one length, whatever the shift, for scalings that look at it."""
    located = case.positions(positions)
    if case.axes > 1:  # the axes move together, as text does
        located = case.positions(START) + (positions - START)
    turned_q, turned_k = encoding.rotate(q, k, located, located, lengths=40)
    logits = turned_q @ turned_k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).mT
    bias = encoding.bias(q, k, located, located)
    for part in getattr(bias, "parts", () if bias is None else (bias,)):
        logits = logits + part.dense()
    return logits.detach()


@cases(only=lambda case: case.relative)
@dtypes(torch.float64, torch.float32)
@pytest.mark.parametrize("offset", [1, 17, 1000, 2**20])
def test_logits_do_not_change_when_all_positions_shift(case: Case, dtype: torch.dtype, offset: int):
    encoding, (q, k, _) = case.build(), case.qkv(7, dtype)
    before = _logits(case, encoding, q, k, START)
    after = _logits(case, encoding, q, k, START + offset)
    # Each rotated vector is wrong by at most one rounding and its angle's error; a bias not at all.
    size = q.double().norm(dim=-1).max() * k.double().norm(dim=-1).max()
    rotation = 2.0**-22 + 2.0**-24 if dtype == torch.float32 else (offset + 64) * 2.0**-50
    atol = float(size) * 4 * 1.5**2 * rotation if "rotate" in case.hooks else 0.0
    torch.testing.assert_close(after, before, rtol=0, atol=atol)


@cases(only=lambda case: case.relative and "rotate" in case.hooks)
def test_logits_do_change_when_one_side_shifts(case: Case):
    """The test above would pass an encoding that does nothing."""
    encoding, (q, k, _) = case.build(), case.qkv(7, torch.float64)
    located = case.positions(START)
    moved = located + 1
    turned_q, turned_k = encoding.rotate(q, k, moved, located, lengths=40)
    here_q, here_k = encoding.rotate(q, k, located, located, lengths=40)
    change = (turned_q[:, :2] @ turned_k.mT - here_q[:, :2] @ here_k.mT).abs()
    assert float(change.max()) > 0.1


@cases(only=lambda case: not case.relative)
@pytest.mark.parametrize("offset", [1, 17])
def test_absolute_encodings_are_not_shift_invariant(case: Case, offset: int):
    encoding, x = case.build(), case.x(7, torch.float64)

    def logits(positions: torch.Tensor) -> torch.Tensor:
        embedded = encoding.embed(x, positions)
        return embedded @ embedded.mT

    change = (logits(START + offset) - logits(START)).detach().abs()
    assert float(change.max()) > 0.1


def test_claims_agree_with_what_is_tested():
    """An encoding promises shift invariance exactly where the cases above show it."""
    from .cases import CASES

    for case in CASES:
        encoding = case.build()
        if isinstance(encoding, ordinate.Combined) or case.id == "none":
            continue
        assert ("shift invariance" in encoding.claims) == case.relative, case.id
