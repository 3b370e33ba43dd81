"""Devices without float64 (Apple's GPUs): one function makes every float64 tensor, and the CPU stands in there.

No Mac was at hand. The absence is imitated: modes refuse float64 outside that function, and the function is told that
the device has none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import ordinate
from float64_modes import Called, Dispatched, Refused
from ordinate import RoPE, Sinusoidal, hf, numerics, scaling
from ordinate.entries import catalog
from ordinate.lab.run.model import Transformer
from ordinate.rotate import rotation_cache

pytestmark = pytest.mark.plain

_SIZES = {"d_model": 32, "num_heads": 4, "head_dim": 8, "max_positions": 64}
_LONGROPE = "rope+longrope:short_factor=(1,1,1,1),long_factor=(2,2,3,4)"
_OPTIONS = {
    "linear": "factor=2", "ntk": "factor=2", "dynamic": "factor=2", "yarn": "factor=2",
    "llama3": "factor=2,low_freq_factor=1,high_freq_factor=4", "proportional": "fraction=0.5",
}  # fmt: skip
SPECS = [
    *(name for name, entry in catalog.items() if not entry.is_scaling),
    *(f"rope+{name}:{options}" for name, options in _OPTIONS.items()),
    _LONGROPE, "rope:layout=interleaved,rotary_dim=4", "sinusoidal:layout=half,endpoint=True,offset=2",
    "rope+alibi", "rope+yarn:factor=2,dialect=paper", "rope+yarn:factor=2,dialect=minimind",
]  # fmt: skip


def test_every_scaling_of_the_catalog_is_tried():
    scalings = {name for name, entry in catalog.items() if entry.is_scaling}
    assert scalings == {*_OPTIONS, "longrope"}


def test_the_modes_refuse_float64():
    for mode in (Dispatched, Called):
        with mode(), pytest.raises(Refused, match="made a float64 tensor"):
            torch.arange(3).double()
        with mode():
            made = numerics.in_float64(torch.device("cpu"), lambda home: torch.arange(3).double())
            assert made[:2].dtype == torch.float64


def _run(spec: str, device: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Everything an encoding does, its gradients included, in order and at positions of data."""
    torch.manual_seed(0)
    encoding = ordinate.create(spec, **_SIZES).to(device)
    x = torch.randn(2, 300, 32).to(device, dtype).requires_grad_()
    q = torch.randn(2, 4, 300, 8).to(device, dtype).requires_grad_()
    k = torch.randn(2, 2, 300, 8).to(device, dtype).requires_grad_()
    if spec.startswith("learned"):
        x, q, k = x[:, :60], q[:, :, :60], k[:, :, :60]
    at = torch.arange(x.shape[1], device=device) // 2
    results: list[Tensor] = []
    for positions in (
        None,
        None,
        at,
        torch.stack((at, at + 1)),
    ):  # twice: what is cached is used as well
        embedded = encoding.embed(x, positions)
        turned = encoding.rotate(q, k, positions)
        late = encoding.rotate(q[:, :, -20:], k)  # fewer queries than keys
        bias = encoding.bias(q, k, positions, x=x)
        results += [embedded, *turned, *late] + ([] if bias is None else [bias.dense()])
    sum(result.float().square().sum() for result in results).backward()
    return results


@pytest.mark.parametrize("spec", SPECS)
def test_every_encoding_makes_float64_in_one_place(spec, without_float64):
    expected = _run(spec, "cpu")
    rotation_cache._cache.clear()
    with without_float64():
        found = _run(spec, "cpu")
        _run(spec, "cpu", torch.bfloat16)
    # Where operators are looked at, a compiler's form of the rotation runs, without fused multiply-adds.
    exact = {"rtol": 0, "atol": 0} if without_float64 is Called else {}
    torch.testing.assert_close(found, expected, **exact)


@pytest.mark.parametrize("spec", SPECS)
def test_every_encoding_runs_on_meta_without_float64_of_its_own(spec):
    with Dispatched():
        if not spec.startswith("learned"):  # its check of positions has nothing to look at there
            _run(spec, "meta")


@pytest.mark.parametrize("impl", ["reference", "chunked", "sdpa", "auto"])
@pytest.mark.parametrize(
    "spec", ["none", "rope", "rope+dynamic:factor=2", "alibi", "t5", "shaw", "rope+alibi"]
)
def test_every_implementation_does_without_float64(spec, impl, without_float64):
    if impl == "sdpa" and spec in ("alibi", "t5", "shaw", "rope+alibi"):
        pytest.skip("a bias would have to be a dense mask")
    encoding = ordinate.create(spec, **_SIZES)
    q, k = torch.randn(2, 4, 300, 8, requires_grad=True), torch.randn(2, 2, 300, 8, requires_grad=True)
    padding = torch.arange(300) > torch.tensor([[299], [250]])
    with without_float64():
        for options in ({"causal": True}, {"causal": True, "window": 7, "key_padding_mask": padding}):
            if impl == "sdpa" and len(options) > 1:
                continue
            ordinate.attention(q, k, k, encoding, impl=impl, **options).sum().backward()
    assert q.grad is not None
    assert q.grad.isfinite().all()


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec != "learned"])
def test_a_layer_and_the_labs_model_do_without_float64(spec, without_float64):
    layer = ordinate.MultiHeadAttention(32, 4, encoding=ordinate.create(spec, **_SIZES), causal=True)
    model = Transformer(ordinate.create(spec, **_SIZES), d_model=32, num_layers=2, num_heads=4)
    with without_float64():
        layer(torch.randn(2, 300, 32)).sum().backward()
        cache = ordinate.KVCache()
        for step in torch.randn(2, 5, 32).split(2, dim=1):
            layer(step, cache=cache)
        model(torch.randint(256, (2, 300))).sum().backward()


def _frequencies() -> dict[str, Callable[[torch.device], Tensor]]:
    lengths = torch.tensor([[10], [100]])
    values = [
        scaling.Linear(2), scaling.NTK(2), scaling.YaRN(2, 64), scaling.YaRN(2, 64, dialect="paper"),
        scaling.Llama3(2, 1, 4, 64), scaling.Proportional(0.5), scaling.DynamicNTK(2, 64),
        scaling.LongRoPE((1.0,) * 4, (2.0,) * 4, 64),
    ]  # fmt: skip
    return {
        "RoPE.inv_freq": lambda device: RoPE(8).inv_freq(device=device),
        "Sinusoidal.inv_freq": lambda device: Sinusoidal(8).inv_freq(device),
        "Sinusoidal.codes": lambda device: Sinusoidal(8).codes(torch.arange(3).to(device)),
        "RoPE.at": lambda device: RoPE(8).at(torch.arange(3).to(device)).angles,
        "Temperature.at": lambda device: hf.Temperature(0.1, 8).at(torch.arange(3).to(device)),
        **{
            f"RoPE with {value}": lambda device, value=value: RoPE(8, scaling=value).inv_freq(
                lengths.to(device) if value.length_dependent else None, device
            )
            for value in values
        },
    }  # fmt: skip


@pytest.mark.parametrize("name", _frequencies())
def test_public_float64_of_a_device_without_it_is_on_the_cpu(name, monkeypatch):
    """Meta stands for such a device, with a copy of its own to the CPU; nothing in float64 is made on it."""
    make = _frequencies()[name]
    monkeypatch.setattr(numerics, "has_float64", lambda device: device.type != "meta")
    monkeypatch.setattr(Tensor, "to", _copied_from_meta)
    made = make(torch.device("meta"))
    assert made.device.type == "cpu"
    assert made.dtype == torch.float64
    assert made.isfinite().all()


_to = Tensor.to


def _copied_from_meta(self: Tensor, *where: Any, **options: Any) -> Tensor:
    moved = self.is_meta and torch.device("cpu") in where
    return torch.ones_like(self, device="cpu") if moved else _to(self, *where, **options)


def test_cos_and_sin_of_angles_on_the_cpu_are_brought_to_the_device(monkeypatch):
    monkeypatch.setattr(numerics, "has_float64", lambda device: device.type != "meta")
    monkeypatch.setattr(Tensor, "to", _copied_from_meta)
    rotation = RoPE(8).at(torch.arange(3).to("meta"))
    assert rotation.angles.device.type == "cpu"
    assert {table.device.type for table in rotation.cos_sin(torch.float32)} == {"meta"}
    q, k = rotation.apply_both(
        torch.empty(1, 2, 3, 8, device="meta"), torch.empty(1, 1, 3, 8, device="meta")
    )
    assert q.is_meta
    assert k.is_meta
    moved = ordinate.rerotate(torch.empty(1, 2, 3, 8, device="meta"), rotation, rotation)
    assert moved.is_meta


def test_a_default_device_without_float64_has_no_part_in_frequencies(monkeypatch):
    monkeypatch.setattr(numerics, "has_float64", lambda device: device.type != "meta")
    with torch.device("meta"):
        rope = RoPE(8, scaling=scaling.YaRN(2, 64))
        assert {f.device.type for f in (rope.inv_freq(), Sinusoidal(8).inv_freq())} == {"cpu"}


def test_which_devices_have_float64(monkeypatch):
    assert [numerics.has_float64(torch.device(name)) for name in ("cpu", "cuda", "meta", "mps")] == [
        True, True, True, False,
    ]  # fmt: skip
    for there in (True, False):
        properties = type("Properties", (), {"has_fp64": there})
        monkeypatch.setattr(torch.xpu, "get_device_properties", lambda device, p=properties: p)
        assert numerics.has_float64(torch.device("xpu")) is there
