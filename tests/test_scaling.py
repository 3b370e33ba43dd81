"""Frequency scalings: known numbers, parity with transformers and MiniMind, and reductions to RoPE."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ordinate import RoPE, scaling
from ordinate.scaling import (
    NTK,
    DynamicNTK,
    Linear,
    Llama3,
    LongRoPE,
    Proportional,
    Scaling,
    YaRN,
    frequencies,
)


def _close(actual: Tensor, expected: list[float], atol: float = 5e-9) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=atol)


def test_linear_divides_every_frequency():
    _close(Linear(4).inv_freq(1e4, 8), [0.25, 0.025, 0.0025, 0.00025], 1e-15)


def test_ntk_keeps_the_first_frequency_and_divides_the_last():
    inv_freq = NTK(4).inv_freq(1e4, 8)
    _close(inv_freq, [1, 0.06299605, 0.0039685, 0.00025])
    torch.testing.assert_close(inv_freq[-1], frequencies(1e4, 8)[-1] / 4, rtol=1e-14, atol=0)
    torch.testing.assert_close(inv_freq[1] ** -4, torch.tensor(63496.04208).double(), rtol=1e-7, atol=0)


def test_ntk_uses_the_rotary_dimension():
    rope = RoPE(64, rotary_dim=8, scaling=NTK(4))
    torch.testing.assert_close(rope.inv_freq(), NTK(4).inv_freq(1e4, 8), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("factor", "times", "base"), [(1, 2, 25198.421), (2, 2, 43267.487), (4, 4, 305673.509)]
)
def test_dynamic_bases_are_known(factor: float, times: int, base: float):
    """With factor 4 a sequence of 4 L is stretched by 13, not by 4."""
    inv_freq = DynamicNTK(factor, 2048).inv_freq(1e4, 8, torch.tensor([2048 * times]))[0]
    torch.testing.assert_close(inv_freq[1] ** -4, torch.tensor(base).double(), rtol=1e-7, atol=0)


def test_dynamic_is_plain_up_to_the_original_length():
    inv_freq = DynamicNTK(4, 2048).inv_freq(1e4, 8, torch.tensor([1, 2047, 2048, 2049]))
    torch.testing.assert_close(inv_freq[:3], frequencies(1e4, 8).expand(3, -1), rtol=1e-15, atol=0)
    assert not torch.equal(inv_freq[3], inv_freq[2])


@pytest.mark.parametrize(
    ("options", "third"),
    [({}, 0.00625), ({"truncate": False}, 0.005056972), ({"dialect": "paper"}, 0.003046652)],
    ids=["hf", "untruncated", "paper"],
)
def test_yarn_of_eight_channels_in_each_dialect(options: dict, third: float):
    inv_freq = YaRN(4, 2048, **options).inv_freq(1e4, 8)
    _close(inv_freq, [1, 0.1, third, 0.00025], 5e-10)


@pytest.mark.parametrize(
    ("pair", "hf", "paper"), [(24, 0.8462, 0.6327), (30, 0.6154, 0.2482), (40, 0.2308, 0.0342)]
)
def test_yarn_ramps_in_the_index_in_code_and_in_turns_in_the_paper(pair: int, hf: float, paper: float):
    _close(YaRN(4, 4096).kept(1e4, 128)[pair], hf, 5e-5)
    _close(YaRN(4, 4096, dialect="paper").kept(1e4, 128)[pair], paper, 5e-5)


def test_yarn_ramp_ends_of_llama_2():
    kept = YaRN(4, 4096).kept(1e4, 128)
    assert [int(i) for i in ((kept == 1).sum() - 1, (kept > 0).sum())] == [20, 46]


def test_gpt_oss_does_not_round_the_ramps_ends():
    kept = YaRN(32, 4096, truncate=False).kept(150000.0, 64)
    low, high = 8.0928, 17.3980
    expected = 1 - ((torch.arange(32).double() - low) / (high - low)).clamp(0, 1)
    torch.testing.assert_close(kept, expected, rtol=0, atol=1e-4)
    rounded = YaRN(32, 4096).kept(150000.0, 64)
    expected = 1 - ((torch.arange(32).double() - 8) / 10).clamp(0, 1)
    torch.testing.assert_close(rounded, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("factor", "expected"),
    [
        (2, 1.06931472),
        (4, 1.13862944),
        (8, 1.20794415),
        (16, 1.27725887),
        (32, 1.34657359),
        (40, 1.36888795),
    ],
)
def test_yarn_attention_factor(factor: float, expected: float):
    assert YaRN(factor, 2048).attention_factor == pytest.approx(expected, abs=5e-9)


@pytest.mark.parametrize(("mscale", "softmax"), [(0.707, 1.58962617), (1.0, 1.87385421)])
def test_deepseeks_mscale_leaves_cos_and_sin_and_multiplies_the_softmax_scale(
    mscale: float, softmax: float
):
    yarn = YaRN(40, 4096, mscale=mscale, mscale_all_dim=mscale)
    assert yarn.attention_factor == 1.0
    assert yarn.logit_factor == pytest.approx(softmax, abs=5e-9)
    assert RoPE(64, scaling=yarn).logit_factor == yarn.logit_factor


@pytest.mark.parametrize(
    ("mscales", "attention", "logits"),
    [
        ({}, 1.13862944, 1.0),
        ({"mscale": 0.707}, 1.09801101, 1.0),
        ({"mscale": 0}, 1.0, 1.0),
        ({"mscale_all_dim": 0.707}, 1.13862944 / 1.09801101, 1.09801101**2),
        ({"mscale_all_dim": 0}, 1.13862944, 1.0),
        ({"mscale": 0, "mscale_all_dim": 0.707}, 1 / 1.09801101, 1.09801101**2),
        ({"mscale": 0.707, "mscale_all_dim": 0}, 1.09801101, 1.0),
        ({"mscale": 0.707, "mscale_all_dim": 1.0}, 1.09801101 / 1.13862944, 1.13862944**2),
    ],
)
def test_a_missing_mscale_is_1_a_missing_mscale_all_dim_is_0_and_a_zero_is_a_number(
    mscales: dict[str, float], attention: float, logits: float
):
    yarn = YaRN(4, 2048, **mscales)
    assert yarn.attention_factor == pytest.approx(attention, abs=5e-9)
    assert yarn.logit_factor == pytest.approx(logits, abs=2e-8)


def test_an_explicit_attention_factor_overrides_every_other():
    assert YaRN(40, 4096, attention_factor=1.25, mscale=1, mscale_all_dim=0.5).attention_factor == 1.25
    assert LongRoPE((1.0,), (2.0,), 4096, factor=32, attention_factor=1.25).attention_factor == 1.25


def test_the_attention_factor_enters_logits_squared_and_only_where_channels_turn():
    rope, plain = RoPE(8, rotary_dim=4, scaling=YaRN(4, 10**9)), RoPE(8, rotary_dim=4)
    x = torch.randn(1, 1, 3, 8, dtype=torch.float64)
    scaled, turned = rope.rotate(x, x)[0], plain.rotate(x, x)[0]  # so long an original keeps all pairs
    torch.testing.assert_close(scaled[..., :4], turned[..., :4] * (0.1 * math.log(4) + 1))
    torch.testing.assert_close(scaled[..., 4:], x[..., 4:], rtol=0, atol=0)


def test_longrope_attention_factor_of_phi_3():
    factors = (1.0,) * 48
    assert LongRoPE(factors, factors, 4096, factor=32).attention_factor == pytest.approx(
        1.1902380714, abs=5e-11
    )


def test_longrope_switches_sequence_by_sequence():
    long = LongRoPE((1.0, 1.0), (2.0, 4.0), 8)
    inv_freq = long.inv_freq(1e4, 4, torch.tensor([1, 8, 9]))
    plain = frequencies(1e4, 4)
    expected = torch.stack((plain, plain, plain / torch.tensor([2.0, 4.0])))
    torch.testing.assert_close(inv_freq, expected, rtol=1e-15, atol=0)


def test_llama_3_1_frequencies():
    scaled, plain = Llama3(8, 1, 4, 8192).inv_freq(5e5, 128), frequencies(5e5, 128)
    ratio = scaled / plain
    _close(ratio[:29], [1.0] * 29, 1e-15)
    _close(ratio[[29, 30, 32, 34]], [0.82816841, 0.64374313, 0.37112228, 0.19021074])
    _close(ratio[35:], [0.125] * 29, 1e-15)
    torch.testing.assert_close(scaled[63], torch.tensor(3.068925989e-7).double(), rtol=1e-7, atol=0)


def test_proportional_is_not_partial_rotary():
    _close(Proportional(0.75).inv_freq(1e4, 8), [1, 0.1, 0.01, 0], 1e-15)
    _close(RoPE(8, rotary_dim=6).inv_freq(), [1, 0.04641589, 0.00215443])


# Reductions: at their neutral setting all of these are plain RoPE.

_ONES = (1.0,) * 32


@pytest.mark.parametrize(
    "neutral",
    [
        Linear(1),
        NTK(1),
        DynamicNTK(1, 10**9),
        YaRN(1, 2048),
        YaRN(1, 2048, dialect="paper"),
        YaRN(1, 2048, dialect="minimind"),
        LongRoPE(_ONES, _ONES, 2048),
        Llama3(1, 1, 4, 8192),
        Proportional(1.0),
    ],
    ids=lambda s: f"{type(s).__name__}-{getattr(s, 'dialect', '')}".rstrip("-"),
)
def test_a_neutral_scaling_is_plain_rope(neutral: Scaling):
    q = torch.randn(1, 2, 50, 64, dtype=torch.float64)
    rope = RoPE(64, scaling=neutral)
    assert rope.logit_factor == 1.0
    torch.testing.assert_close(rope.rotate(q, q)[0], RoPE(64).rotate(q, q)[0], rtol=1e-12, atol=1e-12)


def test_a_scaling_divides_positions_as_linear_says():
    """Position interpolation: position 4 p at factor 4 turns as position p."""
    q = torch.randn(1, 2, 9, 16)
    stretched = RoPE(16, scaling=Linear(4)).at(torch.arange(9) * 4).apply(q)
    torch.testing.assert_close(stretched, RoPE(16).at(torch.arange(9)).apply(q), rtol=0, atol=2.0**-20)


# Parity with transformers, whose frequencies are float32: a few roundings apart.


def _transformers(rope_type: str, seq_len: int | None = None, **parameters) -> tuple[Tensor, float]:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    original = parameters.get("original_max_position_embeddings", 64)
    config = LlamaConfig(
        hidden_size=128, num_attention_heads=2, num_key_value_heads=2, head_dim=64,
        max_position_embeddings=original,
    )  # fmt: skip
    config.rope_parameters = {"rope_type": rope_type, "rope_theta": 5e5, **parameters}
    return ROPE_INIT_FUNCTIONS[rope_type](config, torch.device("cpu"), seq_len=seq_len)


_DIVISORS = tuple(1 + i / 8 for i in range(32)), tuple(1 + i / 2 for i in range(32))
_LISTS = {"short_factor": list(_DIVISORS[0]), "long_factor": list(_DIVISORS[1])}
_ORIGINAL = {"original_max_position_embeddings": 2048}
PARITY = {
    "linear": (Linear(4), "linear", None, {"factor": 4.0}),
    "dynamic-short": (DynamicNTK(4, 64), "dynamic", 60, {"factor": 4.0}),
    "dynamic-long": (DynamicNTK(4, 64), "dynamic", 300, {"factor": 4.0}),
    "yarn": (YaRN(4, 2048), "yarn", None, {"factor": 4.0, **_ORIGINAL}),
    "yarn-betas": (YaRN(4, 2048, 16, 2), "yarn", None,
                   {"factor": 4.0, "beta_fast": 16, "beta_slow": 2, **_ORIGINAL}),
    "yarn-untruncated": (YaRN(32, 2048, truncate=False), "yarn", None,
                         {"factor": 32.0, "truncate": False, **_ORIGINAL}),
    "yarn-deepseek": (YaRN(40, 2048, mscale=1.0, mscale_all_dim=0.5), "yarn", None,
                      {"factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.5, **_ORIGINAL}),
    "yarn-attention-factor": (YaRN(4, 2048, attention_factor=1.3), "yarn", None,
                              {"factor": 4.0, "attention_factor": 1.3, **_ORIGINAL}),
    "yarn-tiny-original": (YaRN(4, 16), "yarn", None,
                           {"factor": 4.0, "original_max_position_embeddings": 16}),
    "longrope-short": (LongRoPE(*_DIVISORS, 2048, factor=16), "longrope", 2048,
                       {"factor": 16.0, **_LISTS, **_ORIGINAL}),
    "longrope-long": (LongRoPE(*_DIVISORS, 2048, factor=16), "longrope", 2049,
                      {"factor": 16.0, **_LISTS, **_ORIGINAL}),
    "llama3": (Llama3(8, 1, 4, 2048), "llama3", None,
               {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **_ORIGINAL}),
    "proportional": (Proportional(0.25, 2), "proportional", None,
                     {"factor": 2.0, "partial_rotary_factor": 0.25}),
}  # fmt: skip


def test_every_scaling_of_transformers_is_compared():
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    assert {rope_type for _, rope_type, _, _ in PARITY.values()} == set(ROPE_INIT_FUNCTIONS)


@pytest.mark.parametrize("name", PARITY)
def test_frequencies_and_attention_factor_equal_transformers(name: str):
    ours, rope_type, seq_len, parameters = PARITY[name]
    theirs, factor = _transformers(rope_type, seq_len, **parameters)
    lengths = None if seq_len is None else torch.tensor([seq_len])
    found = ours.inv_freq(5e5, 64, lengths).reshape(-1)
    # Their ramp's end is float32 too: one rounding of the unscaled frequency beside a few of the result.
    budget = 2.0**-20 * found.abs() + 2.0**-24 * frequencies(5e5, 64)
    excess = ((found - theirs.double()).abs() - budget).clamp(min=0)
    torch.testing.assert_close(excess, torch.zeros_like(excess), rtol=0, atol=0)
    assert ours.attention_factor == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize(
    ("base", "dim", "factor", "original", "fast", "slow"),
    [
        (1e6, 96, 16, 2048, 32, 1),
        (1e6, 64, 16, 2048, 32, 1),
        (1e4, 8, 4, 64, 32, 1),
        (1e4, 16, 4, 8, 32, 1),
    ],
    ids=["minimind-96", "minimind-64", "small", "tiny-original"],
)
def test_the_minimind_dialect_equals_its_formula(base, dim, factor, original, fast, slow):
    """low and high clamped to dim/2 - 1, ramp over max(high - low, 0.001), frequency · (1 - ramp + ramp/factor)."""

    def pair(turns: float) -> float:
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(math.floor(pair(fast)), 0), min(math.ceil(pair(slow)), dim // 2 - 1)
    ramp = ((torch.arange(dim // 2).double() - low) / max(high - low, 0.001)).clamp(0, 1)
    expected = base ** (-torch.arange(0, dim, 2).double() / dim) * (1 - ramp + ramp / factor)
    minimind = YaRN(factor, original, fast, slow, dialect="minimind")
    torch.testing.assert_close(minimind.inv_freq(base, dim), expected, rtol=1e-14, atol=0)
    assert minimind.attention_factor == 1.0


def test_minimind_equals_transformers_on_its_own_settings():
    minimind = YaRN(16, 2048, attention_factor=1.0, dialect="minimind")
    hf = YaRN(16, 2048, attention_factor=1.0)
    torch.testing.assert_close(minimind.inv_freq(1e6, 64), hf.inv_freq(1e6, 64), rtol=0, atol=0)


def test_scalings_are_values():
    assert YaRN(4, 64) == YaRN(4, 64)
    assert YaRN(4, 64) != YaRN(4, 64, truncate=False)


@pytest.mark.plain
def test_divisors_may_come_as_lists_as_configs_have_them():
    from_config: tuple = ([1, 2], [3, 4], 8)
    assert hash(LongRoPE(*from_config)) == hash(LongRoPE((1.0, 2.0), (3.0, 4.0), 8))


def test_a_scaling_describes_itself():
    assert scaling.describe(Linear(4)) == "Linear(factor=4)"
    assert scaling.describe(None) == "none"
