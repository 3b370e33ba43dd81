"""Forward-mode gradients: by an implementation that has them, or refused, but never dropped."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad

import ordinate

# PyTorch's own formulas for these.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

ENCODINGS = {
    "none": ordinate.NoPE,
    "a table": lambda: ordinate.T5Bias(2),
    "a line": lambda: ordinate.ALiBi(2),
    "a rotation": lambda: ordinate.RoPE(8),
}


@pytest.fixture
def content() -> list[torch.Tensor]:
    return [torch.randn(1, 2, 7, 8, dtype=torch.float64) for _ in range(4)]


@pytest.mark.parametrize("name", ENCODINGS)
def test_auto_pushes_tangents_forward(name, content):
    q, k, v, tangent = content
    encoding = ENCODINGS[name]().double().requires_grad_(False)

    def attend(q: torch.Tensor) -> torch.Tensor:
        return ordinate.attention(q, k, v, encoding, causal=True)

    step = 1e-6
    expected = (attend(q + step * tangent) - attend(q - step * tangent)) / (2 * step)
    _, found = torch.func.jvp(attend, (q,), (tangent,))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(attend(forward_ad.make_dual(q, tangent)))
    torch.testing.assert_close(dual.tangent, found)


@pytest.mark.parametrize("impl", ["chunked", "sdpa", "fused"])
def test_implementations_without_them_refuse(impl, content):
    q, k, v, tangent = content
    with pytest.raises(NotImplementedError, match=f"impl='{impl}' cannot.*no forward-mode gradients"):
        torch.func.jvp(lambda q: ordinate.attention(q, k, v, impl=impl), (q,), (tangent,))


def test_a_rotation_is_not_turned_by_a_kernel_without_them(monkeypatch):
    from ordinate.rotate import fused

    monkeypatch.setattr(fused, "reason_against", lambda device: None)
    with FakeTensorMode():
        on_a_gpu = torch.empty(1, 2, 5, 8, device="cuda")
    assert fused.supports(on_a_gpu)
    with forward_ad.dual_level():
        assert not fused.supports(on_a_gpu)
