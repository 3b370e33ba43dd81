"""Sinusoidal codes: sine and cosine of the position at one frequency for each pair of channels."""

from __future__ import annotations

from typing import Literal, final

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

from ..angles import angles, cached_speeds
from ..checks import (
    check_bool,
    check_choice,
    check_even,
    check_features,
    check_integers,
    check_number,
    check_size,
)
from ..encoding import PositionEncoding
from ..numerics import compute_dtype, in_float64
from ..places import as_positions
from ..positions import sequential


@final
class Sinusoidal(PositionEncoding):
    """Fixed sine and cosine codes added to the embeddings (Vaswani et al. 2017, arXiv:1706.03762, 3.5).

    ``code[p, 2i] = sin(p · base^(-2i/d))``, ``code[p, 2i + 1] = cos(p · base^(-2i/d))``. The paper
    multiplies the embeddings by ``sqrt(d_model)`` before adding; the model must do that.

    Args:
        layout: ``"interleaved"`` as in the paper; ``"half"`` puts all sines before all cosines,
            as the authors' tensor2tensor does.
        endpoint: Use tensor2tensor's frequencies ``base^(-i/(d/2 - 1))``, whose slowest
            timescale is exactly ``base``; the paper's stop one step short of it.
        offset: Added to every position (2 in checkpoints that reserve the first rows for padding).

    Example:
        >>> Sinusoidal(4).codes(torch.tensor([1])).round(decimals=4)
        tensor([[0.8415, 0.5403, 0.0100, 1.0000]], dtype=torch.float64)
    """

    d_model: int
    claims = frozenset({"uniqueness", "boundedness", "linear shift map", "wavelengths"})

    def __init__(
        self,
        d_model: int,
        base: float = 10000.0,
        layout: Literal["interleaved", "half"] = "interleaved",
        endpoint: bool = False,
        offset: int = 0,
    ) -> None:
        super().__init__()
        d_model = check_even("d_model", d_model)
        base = check_number("base", base, above=1)
        check_choice("layout", layout, ("interleaved", "half"))
        self.d_model, self.base, self.layout = d_model, float(base), layout
        offset = check_size("offset", offset, minimum=0, most=2**29)
        check_bool("endpoint", endpoint)
        self.endpoint, self.offset = endpoint, offset

    def inv_freq(self, device: torch.device | None = None) -> Float[Tensor, " pairs"]:
        """The angle each pair advances per position, fastest first, in float64 (on the CPU if the device has none)."""
        return in_float64(device, self._inv_freq)

    def _inv_freq(self, home: torch.device) -> Tensor:
        pairs = self.d_model // 2
        steps = max(pairs - 1, 1) if self.endpoint else pairs
        return torch.pow(self.base, torch.arange(pairs, dtype=torch.float64, device=home) / -steps)

    def codes(self, positions: Integer[Tensor, "*shape"]) -> Float[Tensor, "*shape d_model"]:
        """The code of each position, in float64 (on the CPU if the device has none)."""
        check_integers("positions", positions)
        return in_float64(positions.device, self._codes, positions.long())

    def _codes(self, home: torch.device, positions: Tensor, *, near: bool = False) -> Tensor:
        settings = ("sinusoidal", self.base, self.d_model, self.endpoint)
        speeds = cached_speeds(settings, home, lambda: self._inv_freq(home))
        radians = angles(positions[..., None], speeds, near=near, offset=self.offset)
        sines, cosines = radians.sin(), radians.cos()
        if self.layout == "half":
            return torch.cat((sines, cosines), dim=-1)
        return torch.stack((sines, cosines), dim=-1).flatten(-2)

    def embed(
        self, x: Float[Tensor, "batch seq d_model"], positions: Int[Tensor, "..."] | None = None
    ) -> Float[Tensor, "batch seq d_model"]:
        check_features("x", x, "batch, seq, d_model", self.d_model)
        batch, seq, _ = x.shape
        near = positions is None
        if positions is None:
            positions = sequential(seq, device=x.device)[None]
        else:
            positions = as_positions("positions", positions, batch=batch, seq=seq, device=x.device)
        dtype = compute_dtype(x.dtype)
        codes = in_float64(
            x.device, lambda home, at: self._codes(home, at, near=near).to(dtype), positions
        )
        return (x.to(dtype) + codes).to(x.dtype)

    def extra_repr(self) -> str:
        return (
            f"{self.d_model}, base={self.base:g}, layout={self.layout!r}, "
            f"endpoint={self.endpoint}, offset={self.offset}"
        )
