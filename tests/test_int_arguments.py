"""An int argument may be any integer that Python can index with, and is stored as an int."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import ordinate
from ordinate import hf, memory, positions, scaling
from ordinate.lab.config import RunConfig
from ordinate.setting import Setting

pytestmark = pytest.mark.plain  # types are checked by the library here, not by annotations

_q, _k = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
_starts = torch.tensor([0, 2, 5])
_types = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 0, 0]])
_LLAMA = {"model_type": "llama", "max_position_embeddings": 4096}
_dynamic = ordinate.RoPE(8, scaling=scaling.DynamicNTK(2, 4))


def _attend(**options: Any) -> Any:
    return ordinate.attention(_q, _k, _k, _dynamic, causal=True, **options)


def _of_an_entry(lo: Any) -> Any:
    at = ordinate.positions.Places.in_order(5, 5)
    return ordinate.DistanceBias(torch.arange(6.0).view(2, 3), at, lo=lo)


def _of_a_row(lo: Any) -> Any:
    at = ordinate.positions.Places.in_order(5, 5)
    return ordinate.RowBias(_q, torch.ones(1, 3, 8), at, lo=lo)


# What is called, and its integers.
CASES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "ordinate.RoPE": (ordinate.RoPE, {"head_dim": 64, "rotary_dim": 32, "sections": (4, 6, 6)}),
    "ordinate.Sinusoidal": (ordinate.Sinusoidal, {"d_model": 8, "offset": 2}),
    "ordinate.Learned": (ordinate.Learned, {"max_positions": 9, "d_model": 8, "offset": 2}),
    "ordinate.ALiBi": (ordinate.ALiBi, {"num_heads": 6}),
    "ordinate.T5Bias": (ordinate.T5Bias, {"num_heads": 2, "num_buckets": 16, "max_distance": 64}),
    "ordinate.ClippedBias": (ordinate.ClippedBias, {"num_heads": 2, "max_distance": 4}),
    "ordinate.Shaw": (ordinate.Shaw, {"head_dim": 8, "max_distance": 4}),
    "ordinate.DistanceBias": (_of_an_entry, {"lo": -1}),
    "ordinate.RowBias": (_of_a_row, {"lo": -1}),
    "ordinate.MultiHeadAttention": (
        ordinate.MultiHeadAttention,
        {"d_model": 16, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "window": 3},
    ),
    "ordinate.create": (
        lambda **sizes: ordinate.create("rope+yarn:factor=4+sinusoidal+alibi", **sizes),
        {"d_model": 16, "num_heads": 2, "head_dim": 8, "max_positions": 64},
    ),
    "ordinate.attention": (_attend, {"window": 3, "lengths": 5}),
    "ordinate.explain": (
        lambda **options: ordinate.explain(_q, _k, _k, _dynamic, causal=True, **options),
        {"window": 3, "lengths": 5},
    ),
    "ordinate.attention_varlen": (
        lambda window: ordinate.attention_varlen(
            *(_q[0].transpose(0, 1),) * 3, _starts, encoding=ordinate.RoPE(8), causal=True, window=window
        ),
        {"window": 3},
    ),
    "ordinate.verify": (
        lambda **sizes: ordinate.verify(ordinate.RoPE(8), properties=["norm"], **sizes),
        {"d_model": 16, "num_heads": 2, "head_dim": 8, "train_length": 64},
    ),
    "ordinate.show": (
        lambda **sizes: str(ordinate.show("rope", **sizes)),
        {"position": 4, "dim": 8, "heads": 2, "length": 4, "train_length": 64},
    ),
    "ordinate.to_half": (
        lambda **sizes: ordinate.to_half(torch.arange(16.0), **sizes), {"head_dim": 8, "rotary_dim": 4},
    ),
    "ordinate.to_interleaved": (
        lambda **sizes: ordinate.to_interleaved(torch.arange(16.0), **sizes), {"head_dim": 8, "rotary_dim": 4},
    ),
    "ordinate.Along": (
        lambda **axes: ordinate.Along(ordinate.ALiBi(2), **axes), {"axis": 1, "axes": 3},
    ),
    "positions.Places": (positions.Places.in_order, {"q_len": 2, "k_len": 5, "start": 3}),
    "positions.sequential": (positions.sequential, {"length": 3, "start": 7}),
    "positions.packed": (positions.packed, {"lengths": (2, 3)}),
    "positions.segment_ids": (positions.segment_ids, {"lengths": (2, 3)}),
    "positions.grid": (lambda height: positions.grid(height, 3), {"height": 2}),
    "positions.randomized": (
        lambda **sizes: positions.randomized(**sizes, generator=torch.Generator().manual_seed(0)),
        {"length": 3, "max_positions": 9, "batch": 2},
    ),
    "scaling.frequencies": (lambda dim: scaling.frequencies(1e4, dim), {"dim": 64}),
    "scaling.DynamicNTK": (scaling.DynamicNTK, {"factor": 2, "original_max_positions": 64}),
    "scaling.YaRN": (
        scaling.YaRN,
        {"factor": 2, "original_max_positions": 64, "beta_fast": 32, "beta_slow": 1, "mscale": 1,
         "mscale_all_dim": 2},
    ),
    "scaling.LongRoPE": (
        scaling.LongRoPE,
        {"short_factor": (1, 2), "long_factor": (3, 4), "original_max_positions": 64, "factor": 2},
    ),
    "scaling.Llama3": (
        scaling.Llama3,
        {"factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_positions": 64},
    ),
    "hf.checkpoint_inv_freq": (lambda length: hf.checkpoint_inv_freq(_dynamic, length), {"length": 64}),
    "hf.extend": (lambda **lengths: hf.extend(_LLAMA, **lengths).config, {"to": 16384, "original_max_positions": 4096}),
    "hf.mrope_positions": (
        lambda merge, height: hf.mrope_positions(_types, [(1, height, 6)], merge_size=merge),
        {"merge": 2, "height": 4},
    ),
    "hf.streaming_cache": (hf.streaming_cache, {"sinks": 2, "window": 8}),
    "hf.StreamingCache": (hf.StreamingCache, {"sinks": 2, "window": 8}),
    "RunConfig": (
        lambda **settings: RunConfig("rope", **settings).to_dict(),
        {"seed": 1, "steps": 10, "lengths": (64, 96), "warmup": 3},
    ),
    "Setting.of_picture": (Setting.of_picture, {"positions": 9, "dim": 8, "channels": (1, 2), "factor": 4}),
    "Setting.of_steps": (Setting.of_steps, {"position": 9, "dim": 8}),
    "Setting": (
        lambda **sizes: Setting.infer(ordinate.NoPE(), **sizes),
        {"d_model": 16, "num_heads": 2, "head_dim": 8, "train_length": 64},
    ),
}  # fmt: skip

# Results, whose ints the library itself fills in, and settings that take what a case above checks.
_NOT_ARGUMENTS = {
    "hf.Extension", "hf.LayerPlan", "hf.Plan", "hf.PatchReport", "hf.ConversionReport", "hf.Temperature",
    "hf.Diagnosis", "hf.PatchedModule",
    "ordinate.Entry", "ordinate.Rotation", "ordinate.KVCache", "positions.as_positions", "positions.check_lengths",
    "positions.resolve",
}  # fmt: skip


def _numpy(value: Any) -> Any:
    return tuple(map(_numpy, value)) if isinstance(value, tuple) else np.int64(value)


def _described(value: Any) -> Any:
    """A value down to its plain parts; numbers as ``repr`` writes them, which names NumPy's types."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.tolist()
    if isinstance(value, torch.nn.Module):
        settings = {name: v for name, v in vars(value).items() if not name.startswith("_")}
        return str(value), _described(settings)
    if isinstance(value, dict):
        return {name: _described(v) for name, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_described(v) for v in value]
    if hasattr(value, "__dataclass_fields__"):
        return type(value), {
            name: _described(getattr(value, name)) for name in value.__dataclass_fields__
        }
    if type(value).__module__.startswith(("transformers", "ordinate")):
        return type(value).__qualname__, str(vars(value)) if hasattr(value, "sinks") else ""
    return repr(value)


@pytest.mark.parametrize("name", CASES)
def test_an_integer_of_numpy_is_an_int(name):
    make, integers = CASES[name]
    torch.manual_seed(0)
    expected = _described(make(**integers))
    torch.manual_seed(0)
    given = make(**{argument: _numpy(value) for argument, value in integers.items()})
    assert _described(given) == expected
    assert "np.int64" not in str(_described(given))


@pytest.mark.parametrize("flag", [True, np.True_, torch.tensor(True)], ids=["python", "numpy", "torch"])
@pytest.mark.parametrize("make", [ordinate.RoPE, ordinate.ALiBi, scaling.Linear, positions.sequential])
def test_a_bool_is_no_number(make, flag):
    with pytest.raises(
        TypeError, match=r"(head_dim|num_heads|factor|length) must be an? (int|number), got .*True"
    ):
        make(flag)


@pytest.mark.parametrize("of", [np.array, torch.tensor])
def test_a_sequence_of_ints_may_be_an_array(of):
    assert positions.packed(of([2, 3])).tolist() == [0, 1, 0, 1, 2]
    assert ordinate.RoPE(16, sections=of([2, 3, 3])).sections == (2, 3, 3)
    with pytest.raises(TypeError, match=r"lengths\[0\] must be an int, got 2.0"):
        positions.packed(of([2.0, 3.0]))
    with pytest.raises(TypeError, match="lengths must be a sequence of ints, got 2"):
        positions.packed(of(2))


def test_numbers_of_numpy_become_numbers_of_python():
    rope = ordinate.RoPE(64, base=np.float32(500.0), scaling=scaling.YaRN(np.float32(4.1), np.int32(64)))
    assert (type(rope.base), type(rope.scaling.factor)) == (float, float)
    layer = ordinate.MultiHeadAttention(
        8, 2, softcap=np.float64(30), scale=np.int64(1), dropout_p=np.float32(0.5)
    )
    assert [type(value) for value in (layer.softcap, layer.scale, layer.dropout_p)] == [
        float,
        int,
        float,
    ]


@pytest.mark.parametrize(
    "use",
    [
        lambda x, number: ordinate.RoPE(8, base=number).rotate(x, x),
        lambda x, number: ordinate.RoPE(8, scaling=scaling.Linear(number)).rotate(x, x),
        lambda x, number: ordinate.Sinusoidal(8, base=number).embed(x[0]),
        lambda x, number: ordinate.attention(x, x, x, softcap=number, impl="chunked"),
    ],
    ids=["base", "factor", "base of codes", "softcap"],
)
def test_a_whole_number_is_as_good_as_the_float_it_is_equal_to(use):
    x = torch.randn(1, 2, 3, 8)
    torch.testing.assert_close(use(x, 2**70), use(x, 2.0**70), rtol=0, atol=0, equal_nan=True)
    with pytest.raises(ValueError, match=r"\w+ must be finite, got an integer of 1329 bits"):
        use(x, 10**400)


@pytest.mark.parametrize(
    "size", [2**70, -(2**70), 2**63 - 1, 2**40], ids=["2^70", "-2^70", "2^63-1", "2^40"]
)
@pytest.mark.parametrize(
    ("name", "argument"),
    [(name, argument) for name, (_, integers) in CASES.items() for argument in integers],
    ids=str,
)
def test_a_slip_of_a_size_costs_a_sentence(name, argument, size):
    """Nothing fills the memory, and no words of an allocator, of an operator's schema or of C++ come out."""
    make, integers = CASES[name]
    slipped = (size, *integers[argument][1:]) if isinstance(integers[argument], tuple) else size
    try:
        make(**{**integers, argument: slipped})
    except (ValueError, TypeError, MemoryError) as error:
        words = str(error)
        assert re.search(r" (must|needs) .*, got |; give it as ", words), words
        assert "\n" not in words


def test_what_does_not_fit_in_memory_is_refused_before_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda: 2**27)
    with pytest.raises(
        MemoryError, match=r"max_positions must fit in memory, .* 0\.1 GiB .*, got 33554441 × 8 numbers"
    ):
        ordinate.Learned(2**25 + 9, 8)
    with pytest.raises(MemoryError, match=r"length must fit in memory"):
        positions.sequential(2**25)
    with torch.device("meta"):  # where nothing is held
        assert ordinate.Learned(2**25, 8).weight.is_meta
    ordinate.Learned(2**21, 8)


@pytest.mark.parametrize("start", [2**63 - 4, -(2**63)])
def test_positions_reach_to_the_ends_of_64_bits(start):
    assert positions.sequential(3, start=start).tolist() == [start, start + 1, start + 2]
    with pytest.raises(ValueError, match=r"start must leave room for 4 positions of 64 bits, got"):
        positions.sequential(4, start=2**63 - 4)


def _with_integers(module: Any, prefix: str) -> set[str]:
    """The public callables of a module that have an argument annotated as an int."""
    found = set()
    for name, value in vars(module).items():
        if (
            name.startswith("_")
            or not callable(value)
            or not getattr(value, "__module__", "").startswith("ordinate")
        ):
            continue
        annotations = [str(x.annotation) for x in inspect.signature(value).parameters.values()]
        if any("int" in text.lower().replace("int[", "") for text in annotations):
            found.add(f"{prefix}.{name}")
    return found


def test_every_integer_argument_of_the_library_is_in_this_list():
    modules = {"ordinate": ordinate, "positions": positions, "scaling": scaling, "hf": hf}
    found = {name for prefix, module in modules.items() for name in _with_integers(module, prefix)}
    ours = {name for name in found if not name.rpartition(".")[2].startswith("check_")}
    assert ours - _NOT_ARGUMENTS <= set(CASES), ours - _NOT_ARGUMENTS - set(CASES)
