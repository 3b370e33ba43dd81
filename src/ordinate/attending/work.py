"""An attention call as an operator takes it: tensors, numbers and text, and what both passes compute from them."""

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

# Logits held at once: large enough to keep matrix products busy, small enough for caches.
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
        #: Whether there is nothing to attend from or to.
        self.empty = 0 in (*self.q.shape[:3], k_len)

    @functools.cached_property
    def bounded(self) -> bool:
        """Whether no product of a query and a key is so large that only the same sum, added up again, is near it,
        and no query's logsumexp is NaN or +inf (from a bias of such numbers).

        If so, -inf added to a logit hides it, 0 times its gradient is 0, and weights may be computed from a logsumexp
        that was computed in another way. If not, each can be NaN, and a token's future would change the token: such
        calls are computed with a mask for each pair, without PyTorch's kernel.

        A norm of all queries or keys is at least that of any one of them and takes next to no time; most calls are
        known by it. Norms are infinite themselves long before a product is.
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
        """Bias and mask of each diagonal; None where something else stands between logits and weights."""
        if self.softcap is not None or self.dropout_p or self.empty:
            return None
        return diagonal.describe(self.parts, self.mask, self.scale, self.dtype, self.q.device)

    def blocks(self) -> list[tuple[slice, slice]]:
        """Ranges of queries, each with the range of keys they see; queries that see none are left out."""
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
        """Logits of a block, -inf where hidden, what is visible of them, and the softcap's tanh."""
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
        """A block's bias: from its diagonals where each has one number, else looked up pair by pair."""
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
