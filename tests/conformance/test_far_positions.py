"""Any int64 is a position: turns and codes are those of exact arithmetic, which here is Python's."""

from __future__ import annotations

import mpmath
import pytest
import torch

import ordinate
from ordinate import scaling

from .budgets import assert_within, rotation_budget

FAR = (2**29 - 1, 2**29, 2**31, 2**32 + 5, 2**40 + 1, 2**53 + 1, 2**62 + 12345, 2**63 - 1)
POSITIONS = torch.tensor([*FAR, *(-p for p in FAR), -(2**63)])


def _cos_sin(inv_freq: torch.Tensor, offset: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Of whole numbers times the frequencies, which float64 holds, both exactly."""
    with mpmath.workdps(60):
        angles = [[(p + offset) * mpmath.mpf(w) for w in inv_freq.tolist()] for p in POSITIONS.tolist()]
        cos, sin = (
            [[float(f(angle)) for angle in row] for row in angles] for f in (mpmath.cos, mpmath.sin)
        )
    return torch.tensor(cos, dtype=torch.float64), torch.tensor(sin, dtype=torch.float64)


def _compiled(function):
    return torch.compile(function, backend="aot_eager", fullgraph=True)


def _on_gpu_like(function):
    """No look at the positions, as where they would be waited for."""

    def run(*args):
        return torch.func.functionalize(function)(*args)

    return run


WAYS = {"eager": lambda f: f, "compiled": _compiled, "transformed": _on_gpu_like}
SCALINGS = [
    None, scaling.YaRN(4, 4096), scaling.Llama3(8, 1, 4, 8192), scaling.LongRoPE((1.0,) * 16, (2.5,) * 16, 4096),
]  # fmt: skip


@pytest.mark.plain
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rule", SCALINGS, ids=lambda rule: type(rule).__name__)
def test_a_turn_is_exact_at_any_position(rule, way):
    rope = ordinate.RoPE(32, scaling=rule)
    x = torch.randn(1, 2, len(POSITIONS), 32)
    lengths = torch.full((1,), 2**63 - 1) if rope.length_dependent else None
    cos, sin = _cos_sin(rope.inv_freq(lengths).reshape(-1))
    factor = 1.0 if rule is None else rule.attention_factor
    a, b = x.double().chunk(2, dim=-1)
    exact = factor * torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    turned = WAYS[way](lambda x, at: rope.rotate(x, x, at)[0])(x, POSITIONS)
    assert_within(turned, exact, rotation_budget(exact, torch.float32, 32, "half"))


@pytest.mark.plain
@pytest.mark.parametrize("offset", [0, 2, 2**29])
@pytest.mark.parametrize("way", WAYS)
def test_a_code_is_exact_at_any_position(offset, way):
    sinusoidal = ordinate.Sinusoidal(32, layout="half", offset=offset)
    cos, sin = _cos_sin(sinusoidal.inv_freq(), offset)
    codes = WAYS[way](sinusoidal.codes)(POSITIONS)
    assert_within(codes, torch.cat((sin, cos), dim=-1), 2.0**-23)


@pytest.mark.parametrize("start", [0, 2**31 - 3, 2**32, 2**53, 2**63 - 64])
def test_scores_follow_from_distances_alone(start):
    rope = ordinate.RoPE(32)
    q, k = torch.randn(2, 1, 1, 64, 32).double().unbind()
    here, there = (rope.rotate(q, k, torch.arange(64) + at) for at in (0, start))
    expected = here[0] @ here[1].mT
    torch.testing.assert_close(there[0] @ there[1].mT, expected, rtol=0, atol=1e-5)


def test_frequencies_learn_at_any_position():
    class Learning(scaling.Scaling):
        def __init__(self):
            self.weight = torch.full((4,), 0.25, dtype=torch.float64, requires_grad=True)

        def inv_freq(self, base, dim, lengths=None, device=None):
            return self.weight

    rule = Learning()
    ordinate.RoPE(8, scaling=rule).at(torch.tensor([2**40 + 3, 5])).angles.sum().backward()
    assert rule.weight.grad.tolist() == [2.0**40 + 8] * 4


def test_the_default_length_of_the_last_position_does_not_overflow():
    rope = ordinate.RoPE(8, scaling=scaling.LongRoPE((1.0,) * 4, (9.0,) * 4, 64))
    last = torch.tensor([2**63 - 1])
    long = rope.at(last, lengths=2**62).angles
    torch.testing.assert_close(rope.at(last).angles, long, rtol=0, atol=0)
