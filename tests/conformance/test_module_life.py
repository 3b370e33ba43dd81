"""What happens to modules in real use: meta devices, casts, copies, checkpoints, autocast."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

import ordinate

from .cases import Case, cases

LENGTH = 20


def _results(case: Case, encoding, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    x, (q, k, v) = case.x(LENGTH, dtype), case.qkv(LENGTH, dtype)
    positions = case.positions(torch.arange(LENGTH).expand(2, -1))
    results = [encoding.embed(x, None), *encoding.rotate(q, k, positions, positions)]
    results.append(
        ordinate.attention(
            q,
            k,
            v,
            encoding,
            causal=True,
            q_positions=positions,
            k_positions=positions,
            impl="reference",
        )
    )
    return [result.detach() for result in results]


def _assert_equal(first: list[Tensor], second: list[Tensor]) -> None:
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def _reset(encoding: nn.Module) -> None:
    for module in encoding.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()


@cases()
def test_the_state_dict_holds_parameters_only(case: Case):
    encoding = case.build()
    assert list(encoding.state_dict()) == [name for name, _ in encoding.named_parameters()]
    assert list(encoding.buffers()) == []


@cases()
def test_made_on_meta_then_materialised_equals_made_at_once(case: Case):
    torch.manual_seed(6)
    fresh = case.make()
    with torch.device("meta"):
        encoding = case.make()
    assert all(parameter.is_meta for parameter in encoding.parameters())
    encoding.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.fill_(float("nan"))  # whatever the memory held
    torch.manual_seed(6)
    _reset(encoding)
    _assert_equal(_results(case, encoding), _results(case, fresh))


@cases()
def test_a_checkpoint_loads_into_a_meta_module(case: Case):
    trained = case.build()
    with torch.device("meta"):
        encoding = case.make()
    encoding.load_state_dict(trained.state_dict(), assign=True)
    _assert_equal(_results(case, encoding), _results(case, trained))


@cases()
def test_a_checkpoint_loads_into_a_fresh_module(case: Case):
    trained, encoding = case.build(), case.make()
    encoding.load_state_dict(trained.state_dict())
    _assert_equal(_results(case, encoding), _results(case, trained))


@cases()
@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_a_cast_rounds_parameters_and_nothing_else(case: Case, low: torch.dtype):
    """inv_freq, slopes and buckets are no buffers: only what is trained is cast."""
    cast, rounded = case.build().to(low), case.build()
    with torch.no_grad():
        for parameter in rounded.parameters():
            parameter.copy_(parameter.to(low))
    for dtype in (torch.float32, low):
        _assert_equal(_results(case, cast, dtype), _results(case, rounded, dtype))
    _assert_equal(_results(case, cast.float()), _results(case, rounded))


@cases()
@pytest.mark.parametrize("impl", ["reference", "chunked"])
def test_autocast_changes_nothing(case: Case, impl: str):
    encoding, (q, k, v) = case.build(), case.qkv(LENGTH, torch.float32)
    positions = case.positions(torch.arange(LENGTH).expand(2, -1))

    def run() -> list[Tensor]:
        out = ordinate.attention(
            q, k, v, encoding, causal=True, q_positions=positions, k_positions=positions, impl=impl
        )
        return [out.detach(), encoding.embed(case.x(LENGTH, torch.float32)).detach()]

    outside = run()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = run()
    _assert_equal(inside, outside)


@cases()
@pytest.mark.parametrize("method", ["deepcopy", "pickle"])
def test_a_copy_is_equal_and_independent(case: Case, method: str):
    encoding = case.build()
    before = _results(case, encoding)
    copied = copy.deepcopy(encoding) if method == "deepcopy" else pickle.loads(pickle.dumps(encoding))
    _assert_equal(_results(case, copied), before)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    _assert_equal(_results(case, encoding), before)


@cases()
def test_a_copy_after_use_is_as_good_as_one_before(case: Case):
    encoding = case.build()
    expected = _results(case, encoding, torch.bfloat16)
    for dtype in (torch.float64, torch.float32):
        _results(case, encoding, dtype)
    _assert_equal(_results(case, copy.deepcopy(encoding), torch.bfloat16), expected)


@cases()
def test_a_module_prints_its_options(case: Case):
    assert type(case.build()).__name__ in repr(case.build())
