"""Frequency scalings: how rotary frequencies are changed for lengths beyond the training length.

Each scaling is a value. It computes inverse frequencies in float64 from a base and a dimension and
has two scalars that may come with them: `attention_factor` multiplies cos and sin (and so
the logits by its square), `logit_factor` multiplies the softmax scale. No call changes a scaling:
those that depend on the length take it as an argument.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from .checks import (
    check_at_most,
    check_bool,
    check_choice,
    check_even,
    check_fields,
    check_number,
    check_positive_int,
    check_sequence,
    refused,
)
from .numerics import constant, in_float64


def frequencies(base: float, dim: int, device: torch.device | None = None) -> Float64[Tensor, " pairs"]:
    """``base^(-2i/dim)``: radians per position of each pair, the fastest first.

    Example:
        >>> frequencies(10000.0, 8)
        tensor([1.0000, 0.1000, 0.0100, 0.0010], dtype=torch.float64)
    """
    return in_float64(device, lambda home: torch.pow(float(base), _exponents(dim, home)))


def _exponents(dim: int, device: torch.device) -> Float64[Tensor, " pairs"]:
    dim = check_even("dim", dim)
    return torch.arange(0, dim, 2, dtype=torch.float64, device=device) / -dim


class Scaling:
    """The base class of all scalings."""

    length_dependent: ClassVar[bool] = False
    attention_factor: float | None = 1.0
    logit_factor: float = 1.0

    def inv_freq(
        self,
        base: float,
        dim: int,
        lengths: Int[Tensor, "..."] | None = None,
        device: torch.device | None = None,
    ) -> Float64[Tensor, "... pairs"]:
        """Inverse frequencies ``[pairs]``, or ``[*lengths.shape, pairs]`` if they depend on lengths.

        `RoPE` passes a device that has float64.
        """
        raise NotImplementedError

    def _resolve(self, **values: float) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


@final
@dataclass(frozen=True)
class Linear(Scaling):
    """Position interpolation: every frequency divided by ``factor``.

    Chen et al. 2023, arXiv:2306.15595.
    """

    factor: float

    def __post_init__(self) -> None:
        check_fields(self, check_number, "factor", at_least=1)

    def inv_freq(self, base, dim, lengths=None, device=None):
        return frequencies(base, dim, device) / self.factor


def _ntk_base(base: float, dim: int, stretch):
    """The base that leaves the first frequency unchanged and divides the last by ``stretch``."""
    if dim <= 2:
        raise refused("rotary_dim", "must be at least 4 to change the base", dim)
    return base * stretch ** (dim / (dim - 2))


@final
@dataclass(frozen=True)
class NTK(Scaling):
    """A larger base: the first frequency stays, the last is divided by exactly ``factor``.

    Proposed by bloc97 (2023) as "NTK-aware" interpolation; discussed in YaRN, arXiv:2309.00071, 3.1.
    """

    factor: float

    def __post_init__(self) -> None:
        check_fields(self, check_number, "factor", at_least=1)

    def inv_freq(self, base, dim, lengths=None, device=None):
        try:
            stretched = _ntk_base(base, dim, float(self.factor))
        except OverflowError:
            raise refused(
                "factor", "must leave the base {base} finite", f"{self.factor:g}", base=f"{base:g}"
            ) from None
        return frequencies(stretched, dim, device)


@final
@dataclass(frozen=True)
class DynamicNTK(Scaling):
    """NTK whose base grows with the sequence, once that is longer than the model was trained for.

    The base is multiplied by ``(factor · S/L - (factor - 1))^(d/(d-2))`` with ``S = max(length, L)``,
    Hugging Face's ``"dynamic"``. Note that ``factor`` is not the stretch: with factor 4, a sequence
    of 4 L is stretched by 13. Here each sequence has its own length, not the longest of the batch.
    """

    length_dependent = True

    factor: float
    original_max_positions: int

    def __post_init__(self) -> None:
        check_fields(self, check_number, "factor", at_least=1)
        check_fields(self, check_positive_int, "original_max_positions")

    def inv_freq(self, base, dim, lengths=None, device=None):
        if lengths is None:
            return frequencies(base, dim, device)

        def stretched(home: torch.device, lengths: Tensor) -> Tensor:
            length = lengths.clamp(min=self.original_max_positions).double()
            stretch = self.factor * length / self.original_max_positions - (self.factor - 1)
            return torch.pow(_ntk_base(base, dim, stretch)[..., None], _exponents(dim, home))

        return in_float64(lengths.device, stretched, lengths)


@final
@dataclass(frozen=True)
class YaRN(Scaling):
    """Interpolate slow pairs, keep fast ones, blend between (Peng et al. 2023, arXiv:2309.00071).

    Pairs that rotate more than ``beta_fast`` times within the original length are unchanged, the frequencies of
    those that rotate less than ``beta_slow`` times are divided by ``factor``.

    Args:
        attention_factor: Multiplies cos and sin. Default ``g(mscale) / g(mscale_all_dim)`` with
            ``g(m) = 0.1 m ln(factor) + 1``, or 1 in the ``"minimind"`` dialect.
        mscale, mscale_all_dim: DeepSeek's settings; 1 and 0 where they are not given, as in its code. The
            softmax scale is multiplied by ``g(mscale_all_dim)^2``, on rotated and unrotated channels alike.
        truncate: Round the ramp's ends to whole pairs, as most code does; gpt-oss does not.
        dialect: ``"paper"`` ramps in the number of turns, as eq. 18–19 say. ``"hf"`` ramps in the index
            of the pair, as the authors' code and all later code does. ``"minimind"`` is
            ``"hf"`` with the ramp's end clamped to the last pair and no attention factor.
    """

    factor: float
    original_max_positions: int
    beta_fast: float = 32
    beta_slow: float = 1
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    dialect: Literal["hf", "paper", "minimind"] = "hf"

    def __post_init__(self) -> None:
        check_fields(self, check_number, "factor", at_least=1)
        check_fields(self, check_positive_int, "original_max_positions")
        check_fields(self, check_number, "beta_slow", above=0)
        check_fields(self, check_number, "beta_fast", at_least=self.beta_slow)
        check_at_most("beta_fast", self.beta_fast, 1e9)  # turns; beyond, their logarithm ends
        check_bool("truncate", self.truncate)
        check_choice("dialect", self.dialect, ("hf", "paper", "minimind"))
        for name in ("mscale", "mscale_all_dim"):
            if getattr(self, name) is not None:
                check_fields(self, check_number, name, at_least=0)
                check_at_most(
                    name, getattr(self, name), 1e9
                )  # the softmax scale is multiplied by its square
        if self.attention_factor is not None:
            check_fields(self, check_number, "attention_factor", above=0)
        else:
            self._resolve(attention_factor=self._default_attention_factor())
        self._resolve(logit_factor=self._magnitude(self.mscale_all_dim or 0.0) ** 2)

    def _magnitude(self, mscale: float) -> float:
        return 0.1 * mscale * math.log(self.factor) + 1.0

    def _default_attention_factor(self) -> float:
        if self.dialect == "minimind":
            return 1.0
        mscale = 1.0 if self.mscale is None else self.mscale
        return self._magnitude(mscale) / self._magnitude(self.mscale_all_dim or 0.0)

    def kept(
        self, base: float, dim: int, device: torch.device | None = None
    ) -> Float64[Tensor, " pairs"]:
        """The weight of each pair's unscaled frequency: 1 for the full frequency, 0 for ``1/factor`` of it."""
        plain = frequencies(base, dim, device)
        if self.dialect == "paper":
            turns = self.original_max_positions * plain / (2 * math.pi)
            if self.beta_fast == self.beta_slow:  # Kimi K2: a step instead of a ramp
                return (turns >= self.beta_slow).double()
            return ((turns - self.beta_slow) / (self.beta_fast - self.beta_slow)).clamp(0, 1)
        low, high = self._ramp_ends(base, dim)
        # The dialects differ only where a tiny original length leaves the ramp empty or reversed.
        span = max(high - low, 0.001) if self.dialect == "minimind" else (high - low or 0.001)
        pairs = torch.arange(dim // 2, dtype=torch.float64, device=plain.device)
        return 1 - ((pairs - low) / span).clamp(0, 1)

    def _ramp_ends(self, base: float, dim: int) -> tuple[float, float]:
        def pair_that_turns(times: float) -> float:
            ratio = self.original_max_positions / (times * 2 * math.pi)
            return dim * math.log(ratio) / (2 * math.log(base))

        low, high = pair_that_turns(self.beta_fast), pair_that_turns(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        return max(low, 0), min(high, dim // 2 - 1 if self.dialect == "minimind" else dim - 1)

    def inv_freq(self, base, dim, lengths=None, device=None):
        kept = self.kept(base, dim, device)
        return frequencies(base, dim, device) * (kept + (1 - kept) / self.factor)


@final
@dataclass(frozen=True)
class LongRoPE(Scaling):
    """Each pair has its own searched divisor, one set for short and one for long inputs.

    Ding et al. 2024, arXiv:2402.13753, in the form of Phi-3: ``short_factor`` up to
    ``original_max_positions`` tokens, ``long_factor`` beyond, chosen for each sequence separately.

    Args:
        factor: The extension ``s`` from which the default attention factor
            ``sqrt(1 + ln s / ln original_max_positions)`` is formed; without it that is 1.
    """

    length_dependent = True

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_max_positions: int
    factor: float | None = None
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        check_fields(self, check_positive_int, "original_max_positions", minimum=2)
        for name in ("short_factor", "long_factor"):
            check_sequence(name, getattr(self, name), "numbers")
            divisors = tuple(
                float(check_number(f"{name}[{index}]", divisor, above=0))
                for index, divisor in enumerate(getattr(self, name))
            )
            object.__setattr__(self, name, divisors)
        if self.factor is not None:
            check_fields(self, check_number, "factor", above=0)
        if self.attention_factor is not None:
            check_fields(self, check_number, "attention_factor", above=0)
        else:
            self._resolve(attention_factor=self._default_attention_factor())

    def _default_attention_factor(self) -> float:
        if self.factor is None or self.factor <= 1:
            return 1.0
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original_max_positions))

    def inv_freq(self, base, dim, lengths=None, device=None):
        for name in ("short_factor", "long_factor"):
            if len(getattr(self, name)) != dim // 2:
                raise refused(
                    name,
                    "must have one divisor for each of {pairs} pairs",
                    len(getattr(self, name)),
                    pairs=dim // 2,
                )
        plain = frequencies(base, dim, device if lengths is None else lengths.device)
        short = plain / constant(self.short_factor, torch.float64, plain.device)
        if lengths is None:
            return short
        long = plain / constant(self.long_factor, torch.float64, plain.device)
        is_long = (lengths > self.original_max_positions).to(plain.device)
        return torch.where(is_long[..., None], long, short)


@final
@dataclass(frozen=True)
class Llama3(Scaling):
    """Llama 3.1's scaling: long wavelengths divided by ``factor``, short ones kept, between blended.

    A pair's frequency is unchanged if it rotates at least ``high_freq_factor`` times within the original length, and
    divided if it rotates at most ``low_freq_factor`` times (Meta, llama-models, 2024). If the two are
    equal, as in Llama 4, nothing is blended.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int

    def __post_init__(self) -> None:
        check_fields(self, check_number, "factor", at_least=1)
        check_fields(self, check_number, "low_freq_factor", above=0)
        check_fields(self, check_number, "high_freq_factor", at_least=self.low_freq_factor)
        check_fields(self, check_positive_int, "original_max_positions")

    def inv_freq(self, base, dim, lengths=None, device=None):
        plain = frequencies(base, dim, device)
        turns = self.original_max_positions * plain / (2 * math.pi)
        span = self.high_freq_factor - self.low_freq_factor
        if span == 0:  # Llama 4: a step instead of a blend
            kept = (turns >= self.low_freq_factor).double()
        else:
            kept = ((turns - self.low_freq_factor) / span).clamp(0, 1)
        return (1 - kept) * plain / self.factor + kept * plain


@final
@dataclass(frozen=True)
class Proportional(Scaling):
    """p-RoPE: the fastest ``fraction`` of the pairs turn, the others stand still.

    Barbero et al. 2024, arXiv:2410.06205; Gemma 4's full-attention layers. Exponents run over the
    whole dimension, which sets it apart from a smaller ``rotary_dim``.
    """

    fraction: float
    factor: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self, check_number, "fraction", above=0)
        check_at_most("fraction", self.fraction, 1)
        check_fields(self, check_number, "factor", at_least=1)

    def inv_freq(self, base, dim, lengths=None, device=None):
        turning = int(self.fraction * dim // 2)
        plain = frequencies(base, dim, device)
        pairs = torch.arange(dim // 2, device=plain.device)
        return torch.where(pairs < turning, plain / self.factor, 0.0)


def describe(scaling: Scaling | None) -> str:
    """A scaling's name and settings on one line."""
    if scaling is None:
        return "none"
    if not dataclasses.is_dataclass(scaling):
        return type(scaling).__name__
    fields = {f.name: getattr(scaling, f.name) for f in dataclasses.fields(scaling)}
    settings = ", ".join(f"{name}={value}" for name, value in fields.items() if value is not None)
    return f"{type(scaling).__name__}({settings})"
