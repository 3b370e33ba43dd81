"""`Work`: an attention call as the arguments of an operator, and what forward and backward compute from them."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..bias.base import rebuilt_parts
from ..bias.types import Bias
from ..numerics import compute_dtype
from . import diagonal
from .mask import Mask

# The most logits of a block: enough for efficient matrix products, few enough for the processor's caches.
_LOGITS_PER_BLOCK = {"cpu": 2**21, "cuda": 2**25}


@dataclass(eq=False)
class Work:
    """The operator's arguments, in their order.

    Attributes:
        lse: In a backward pass, the logsumexp that the forward pass returned.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    bias: list[Tensor]
    bias_integers: list[int]
    bias_spec: str
    mask_tensors: list[Tensor | None]
    causal: bool
    window: int | None
    offset: int
    scale: float
    softcap: float | None
    dropout_p: float
    seed: Tensor | None

    def __post_init__(self) -> None:
        self.lse: Tensor | None = None
        self.dtype = compute_dtype(self.q.dtype)
        self.parts = rebuilt_parts(self.bias, self.bias_integers, self.bias_spec)
        q_len, k_len = self.q.shape[2], self.k.shape[2]
        self.mask = Mask(q_len, k_len, self.offset, self.causal, self.window, *self.mask_tensors)
        #: Whether there are no queries or no keys.
        self.empty = 0 in (*self.q.shape[:3], k_len)

    @functools.cached_property
    def bounded(self) -> bool:
        """Whether all products of queries and keys are so small that another order of summation gives nearly the same
        logits, and no query's logsumexp is NaN or +inf (from a bias with such numbers).

        If so, adding -inf to a logit hides it, 0 times its gradient is 0, and weights may be computed from a logsumexp
        that was summed in another order. If not, each of these can be NaN or wrong, and future tokens would change a
        token: such calls use a mask for each pair and not PyTorch's kernel.

        The norm of all queries or keys bounds that of each one and is quick to compute; it decides most calls. Norms
        become infinite long before a product does.
        """
        if self.lse is not None and not self.lse.sum().item() < math.inf:
            return False
        most = 1 / torch.finfo(self.dtype).eps / max(1.0, abs(self.scale))
        q = torch.linalg.vector_norm(self.q, dtype=self.dtype).item()
        if q * torch.linalg.vector_norm(self.k, dtype=self.dtype).item() < most:
            return True
        longest = [torch.linalg.vector_norm(x, dim=-1, dtype=self.dtype).max() for x in (self.q, self.k)]
        return (longest[0] * longest[1]).item() < most

    @functools.cached_property
    def diagonals(self) -> diagonal.Diagonals | None:
        """Bias and mask of each diagonal; None with a softcap or dropout, or if they do not depend on it only."""
        if self.softcap is not None or self.dropout_p or self.empty:
            return None
        return diagonal.describe(self.parts, self.mask, self.scale, self.dtype, self.q.device)

    def blocks(self) -> list[tuple[slice, slice]]:
        """Ranges of queries, each with the range of keys that they see; without queries that see no key."""
        batch, heads, q_len, _ = self.q.shape
        budget = _LOGITS_PER_BLOCK.get(self.q.device.type, 2**25)
        rows = max(16, min(256, budget // max(1, batch * heads * self.mask.k_len)))
        blocks = []
        for start in range(0, 0 if self.empty else q_len, rows):
            q = slice(start, min(start + rows, q_len))
            seen = self.mask.visible_keys(q)
            if seen.start < seen.stop:
                blocks.append((q, seen))
        return blocks

    def fold(self, x: Tensor) -> Tensor:
        """Query heads that share a key head become more rows of it: ``[batch, kv_heads, groups · q, …]``."""
        return x.reshape(x.shape[0], self.k.shape[1], -1, x.shape[-1])

    def unfold(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], self.q.shape[1], -1, x.shape[-1])

    def logits(self, q: slice, k: slice, keys: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Logits of a block, -inf where hidden; the mask of visible pairs; and the softcap's tanh."""
        rows = self.q[:, :, q].to(self.dtype)
        logits = self.unfold(self.fold(rows) @ keys[:, :, k].transpose(-1, -2)).mul_(self.scale)
        capped = None
        if self.softcap is not None:
            capped = torch.tanh(logits / self.softcap)
            logits = capped * self.softcap
        for part in self.parts:
            logits += self._dense(part.block(q, k))
        visible = self.mask.block(q, k).dense(logits.device)
        return logits.masked_fill_(~visible, -math.inf), visible, capped

    def _dense(self, part: Bias) -> Tensor:
        """A block's bias: from its diagonals if each has one number, otherwise looked up for each pair."""
        diagonals = diagonal.of_part(part, self.scale, self.dtype)
        if diagonals is not None:
            return diagonals.unfold(-1, part.shape[2], 1).flip(-2)
        dense = part.dense().to(self.dtype)
        return dense * self.scale if part.scaled else dense

    def dropout(self, q: slice, shape: torch.Size, device: torch.device) -> Tensor | None:
        """The factor of each weight of a block, the same at every call."""
        if self.seed is None:
            return None
        generator = torch.Generator(device).manual_seed(int(self.seed) + q.start)
        stays = torch.rand(shape, generator=generator, device=device) >= self.dropout_p
        return stays.to(self.dtype) / (1 - self.dropout_p)
