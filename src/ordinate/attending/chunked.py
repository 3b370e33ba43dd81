"""Attention a block of queries at a time: any device, any bias, memory that grows with the length.

Each block of queries meets the keys it can see, so a whole row of logits is at hand and the softmax
needs no running rescale. Nothing of a block is kept: the backward pass computes its logits again and
hands their gradient to ``bias.pullback``. The work is a custom operator, opaque to compilers, so the
number of blocks may follow the length without a recompile.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..bias.types import Bias, LinearBias, RowBias, parts_of
from ..numerics import compute_dtype, without_autocast
from ..operators import Backward, Operator
from ..tracing import has_forward_gradients, is_transformed
from . import cpu_block, diagonal
from .call import Call, Result, scaled_dense
from .mask import Mask
from .reference import relative_values, weights_by_distance

# Logits held at once: large enough to keep matrix products busy, small enough for caches.
_LOGITS_PER_BLOCK = {"cpu": 2**21, "cuda": 2**25}


def unsupported_reasons(call: Call) -> list[str]:
    reasons = []
    if has_forward_gradients():
        reasons.append("it has no forward-mode gradients")
    elif is_transformed():
        reasons.append("its operator has no rules for torch.func")
    return reasons + [
        f"{type(part).__name__} does not define {method}"
        for part in call.parts
        for method in ("block", "pullback")
        if getattr(type(part), method) is getattr(Bias, method)
    ]


def run(call: Call) -> Result:
    mask = call.mask
    seed = None
    if call.dropout_p:
        seed = torch.randint(2**62, (), dtype=torch.int64, device="cpu")
    out, lse = _attention(
        call.q,
        call.k,
        call.v,
        [] if call.bias is None else call.bias.tensors(),
        [] if call.bias is None else call.bias.integers(),
        "" if call.bias is None else call.bias.spec(),
        [mask.q_index, mask.k_index, mask.q_segments, mask.k_segments, mask.key_padding],
        mask.causal,
        mask.window,
        mask.offset,
        call.scale,
        call.softcap,
        call.dropout_p,
        seed,
    )
    return out, lse


@dataclass(frozen=True, eq=False)
class _Work:
    """What the operators' plain arguments stand for."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Bias | None
    mask: Mask
    scale: float
    softcap: float | None
    dropout_p: float
    seed: Tensor | None
    lse: Tensor | None = None  #: In a backward pass, what the forward one came to.

    @property
    def dtype(self) -> torch.dtype:
        return compute_dtype(self.q.dtype)

    @property
    def parts(self) -> tuple[Bias, ...]:
        return parts_of(self.bias)

    @functools.cached_property
    def bounded(self) -> bool:
        """Whether no product of a query and a key is so large that only the same sum, added up again, is near it,
        and no query's logsumexp is NaN or +inf (from a bias of such numbers).

        If so, -inf added to a logit hides it, 0 times its gradient is 0, and weights may be computed from a logsumexp
        that came another way. If not, each can be NaN, and a token would be spoilt by its future: such calls are
        computed with a mask for each pair, without PyTorch's kernel.

        A norm of all queries or keys is at least that of any one of them and takes next to no time; most calls are
        known by it. Norms are infinite themselves long before a product is.
        """
        if self.lse is not None and not self.lse.sum().item() < math.inf:
            return False
        most = 1 / torch.finfo(self.dtype).eps / max(1.0, abs(self.scale))
        q, k = (torch.linalg.vector_norm(x, dtype=self.dtype).item() for x in (self.q, self.k))
        if q * k < most:
            return True
        q, k = (torch.linalg.vector_norm(x, dim=-1, dtype=self.dtype).max() for x in (self.q, self.k))
        return (q * k).item() < most

    @property
    def empty(self) -> bool:
        """Whether there is nothing to attend from or to."""
        return 0 in (*self.q.shape[:3], self.mask.k_len)

    def blocks(self) -> Iterator[tuple[slice, slice]]:
        """Ranges of queries, each with the range of keys they see."""
        batch, heads, q_len, _ = self.q.shape
        budget = _LOGITS_PER_BLOCK.get(self.q.device.type, 2**25)
        rows = max(16, min(256, budget // max(1, batch * heads * self.mask.k_len)))
        for start in range(0, q_len, rows):
            q = slice(start, min(start + rows, q_len))
            yield q, self.mask.visible_keys(q)

    def fold(self, x: Tensor) -> Tensor:
        """Query heads that share a key head become more rows of it: ``[batch, kv_heads, groups · q, …]``."""
        return x.reshape(x.shape[0], self.k.shape[1], -1, x.shape[-1])

    def unfold(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], self.q.shape[1], -1, x.shape[-1])

    def logits(self, q: slice, k: slice, keys: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Logits of a block before masking, what is visible of them, and the softcap's tanh."""
        rows = self.q[:, :, q].to(self.dtype)
        logits = self.unfold(self.fold(rows) @ keys[:, :, k].transpose(-1, -2)).mul_(self.scale)
        capped = None
        if self.softcap is not None:
            capped = torch.tanh(logits / self.softcap)
            logits = capped * self.softcap
        for part in self.parts:
            logits += _block_dense(part.block(q, k), self.scale, self.dtype)
        return logits, self.mask.block(q, k).dense(logits.device), capped

    def keep(self, q: slice, shape: torch.Size, device: torch.device) -> Tensor | None:
        """Dropout's multiplier for a block, the same whenever it is asked for."""
        if self.seed is None:
            return None
        generator = torch.Generator(device).manual_seed(int(self.seed) + q.start)
        kept = torch.rand(shape, generator=generator, device=device) >= self.dropout_p
        return kept.to(self.dtype) / (1 - self.dropout_p)


def _block_dense(part: Bias, scale: float, dtype: torch.dtype) -> Tensor:
    """A block's bias, spread from its diagonals where it has them and looked up pair by pair if not."""
    diagonals = part.diagonals()
    if diagonals is None:
        return scaled_dense(part, scale, dtype)
    _, _, k_len = part.shape
    spread = diagonals.to(dtype).unfold(-1, k_len, 1).flip(-2)
    return spread * scale if part.scaled else spread


def _work(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: list[Tensor],
    bias_integers: list[int],
    bias_spec: str,
    mask: list[Tensor | None],
    causal: bool,
    window: int | None,
    offset: int,
    scale: float,
    softcap: float | None,
    dropout_p: float,
    seed: Tensor | None,
) -> _Work:
    description = Mask(q.shape[2], k.shape[2], offset, causal, window, *mask)
    rebuilt = Bias.rebuild(bias, bias_integers, bias_spec) if bias_spec else None
    return _Work(q, k, v, rebuilt, description, scale, softcap, dropout_p, seed)


_ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor[] bias, SymInt[] bias_integers, str bias_spec, Tensor?[] mask, "
    "bool causal, SymInt? window, SymInt offset, float scale, float? softcap, float dropout_p, Tensor? seed"
)


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: list[Tensor],
    bias_integers: list[int],
    bias_spec: str,
    mask: list[Tensor | None],
    causal: bool,
    window: int | None,
    offset: int,
    scale: float,
    softcap: float | None,
    dropout_p: float,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor]:
    work = _work(
        q, k, v, bias, bias_integers, bias_spec, mask, causal, window, offset, scale, softcap, dropout_p, seed
    )  # fmt: skip
    out = q.new_zeros(*q.shape[:3], v.shape[-1])
    lse = q.new_full(q.shape[:3], -math.inf, dtype=work.dtype)
    with without_autocast(q.device):
        if work.empty:
            return out, lse
        if cpu_block.fits(q, v, work.parts, work.mask, softcap, dropout_p):
            wide_k, wide_v = cpu_block.dense_rows(k), cpu_block.dense_rows(v)
            for rows, seen in work.blocks():
                cpu_block.attend(q, wide_k, wide_v, work.parts, work.mask, scale, rows, seen, out, lse)
            # A logit that -inf did not hide is NaN, and makes its row's logsumexp NaN.
            if math.isfinite(lse.sum().item()) or work.bounded:
                return out, lse
        keys, values = k.to(work.dtype), v.to(work.dtype)
        for rows, seen in work.blocks():
            _attend(work, rows, seen, keys, values, out, lse)
    return out, lse


def _attend(
    work: _Work, q: slice, k: slice, keys: Tensor, values: Tensor, out: Tensor, lse: Tensor
) -> None:
    """Write the output and logsumexp of one block."""
    if k.start == k.stop:
        return
    logits, visible, _ = work.logits(q, k, keys)
    logits.masked_fill_(~visible, -math.inf)
    lse[:, :, q] = torch.logsumexp(logits, dim=-1)
    level = _finite(lse[:, :, q])
    if not work.bounded:  # a query that sees nothing but logits of -inf is NaN, as in the reference
        level = lse[:, :, q, None].masked_fill(~visible.any(dim=-1, keepdim=True), 0.0)
    weights = logits.sub_(level).exp_()
    keep = work.keep(q, weights.shape, weights.device)
    if keep is not None:
        weights = weights * keep
    block = work.unfold(work.fold(weights) @ values[:, :, k])
    for part in work.parts:
        if isinstance(part, RowBias) and part.values is not None:
            cut = part.block(q, k)
            assert isinstance(cut, RowBias)
            block = block + relative_values(cut, weights, part.values.to(work.dtype))
    out[:, :, q] = block.to(out.dtype)


def _finite(lse: Tensor) -> Tensor:
    """A row that sees nothing has logsumexp -inf; subtracting 0 instead leaves its weights at 0."""
    return lse.masked_fill(lse == -math.inf, 0.0)[..., None]


def _fake(q, k, v, *_):
    out = q.new_empty(*q.shape[:3], v.shape[-1])
    return out, q.new_empty(q.shape[:3], dtype=compute_dtype(q.dtype))


def _backward(
    grad: Tensor,
    grad_lse: Tensor | None,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: list[Tensor],
    bias_integers: list[int],
    bias_spec: str,
    mask: list[Tensor | None],
    causal: bool,
    window: int | None,
    offset: int,
    scale: float,
    softcap: float | None,
    dropout_p: float,
    seed: Tensor | None,
    bias_needs_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    work = _work(
        q, k, v, bias, bias_integers, bias_spec, mask, causal, window, offset, scale, softcap, dropout_p, seed
    )  # fmt: skip
    work = replace(work, lse=lse)
    dtype = work.dtype
    with without_autocast(q.device):
        # The softmax's own term: what each row's weights have in common with its output's gradient.
        shared = (grad.to(dtype) * out.to(dtype)).sum(-1)
        if grad_lse is not None:
            shared = shared - grad_lse
        use_cpu_kernel = (
            not (bias_needs_grad or work.empty)
            and grad_lse is None
            and cpu_block.fits(q, v, work.parts, work.mask, softcap, dropout_p)
            # A line is steep: far weights are subnormal, which slow that kernel down and `diagonal` leaves out.
            and not any(isinstance(part, LinearBias) for part in work.parts)
            and work.bounded
        )
        if (
            not (use_cpu_kernel or work.empty)
            and diagonal.fits(work.parts, work.mask, softcap, dropout_p)
            and work.bounded
        ):
            grad_q, grad_k, grad_v, shares = diagonal.pull_back(
                grad, _finite(lse)[..., 0], shared, q, k, v, work.parts, work.mask, scale
            )
            floats = [share.to(t.dtype) for share, t in zip(shares, bias, strict=True)
                      if share is not None]  # fmt: skip
            return _laid_out_as(q, grad_q), _laid_out_as(k, grad_k), _laid_out_as(v, grad_v), floats
        grad_q, grad_k, grad_v = (torch.zeros_like(x, dtype=dtype) for x in (q, k, v))
        bias_grads = _zeros_for(bias)
        keys, values = k.to(dtype), v.to(dtype)
        if use_cpu_kernel:
            k, v = cpu_block.dense_rows(k), cpu_block.dense_rows(v)
        for rows, seen in [] if work.empty else work.blocks():
            if seen.start == seen.stop:
                continue
            if use_cpu_kernel:
                cpu_block.pull_back(
                    grad, out, lse, q, k, v, work.parts, work.mask, scale, rows, seen,
                    grad_q, grad_k, grad_v,
                )  # fmt: skip
                continue
            _pull_back(
                work, rows, seen, keys, values, grad, lse, shared,
                grad_q, grad_k, grad_v, bias_grads if bias_needs_grad else None,
            )  # fmt: skip
    returned = [total.to(t.dtype) for total, t in zip(bias_grads, bias, strict=True)
                if t.is_floating_point()]  # fmt: skip
    return grad_q.to(q.dtype), grad_k.to(k.dtype), grad_v.to(v.dtype), returned


def _laid_out_as(x: Tensor, grad: Tensor) -> Tensor:
    """A gradient with the dtype and strides of its tensor: a compiler was promised those."""
    promised = torch.empty_like(x)
    return grad.to(x.dtype) if grad.stride() == promised.stride() else promised.copy_(grad)


def _zeros_for(bias: list[Tensor]) -> list[Tensor]:
    """Where each bias tensor's gradient gathers: the wide dtype for floats, the tensor itself if integer."""
    return [
        torch.zeros_like(t, dtype=compute_dtype(t.dtype)) if t.is_floating_point() else t for t in bias
    ]


def _pull_back(
    work: _Work,
    q: slice,
    k: slice,
    keys: Tensor,
    values: Tensor,
    grad: Tensor,
    lse: Tensor,
    shared: Tensor,
    grad_q: Tensor,
    grad_k: Tensor,
    grad_v: Tensor,
    bias_grads: list[Tensor] | None,
) -> None:
    """Add one block's share to every gradient."""
    logits, visible, capped = work.logits(q, k, keys)
    logits.masked_fill_(~visible, -math.inf)
    # A logsumexp that came another way may be far from the largest logits.
    level = lse[:, :, q] if work.bounded else torch.logsumexp(logits, dim=-1)
    weights = logits.sub_(_finite(level)).exp_()
    grad_rows = grad[:, :, q].to(work.dtype)
    keep = work.keep(q, weights.shape, weights.device)

    grad_weights = work.unfold(work.fold(grad_rows) @ values[:, :, k].transpose(-1, -2))
    dropped = weights if keep is None else weights * keep
    for index, part in enumerate(work.parts):
        if isinstance(part, RowBias) and part.values is not None:
            cut, table = part.block(q, k), part.values.to(work.dtype)
            assert isinstance(cut, RowBias)
            by_distance = grad_rows @ table.transpose(-1, -2)
            grad_weights += by_distance.gather(-1, cut.rows()[:, None].expand_as(grad_weights))
            if bias_grads is not None:
                summed = torch.einsum("bhqn,bhqd->hnd", weights_by_distance(cut, dropped), grad_rows)
                if len(table) == 1:
                    summed = summed.sum(dim=0, keepdim=True)
                bias_grads[_last_tensor_of(work.parts, index)] += summed
    grad_v[:, :, k] += work.fold(dropped).transpose(-1, -2) @ work.fold(grad_rows)
    if keep is not None:
        grad_weights *= keep
    grad_logits = grad_weights.sub_(shared[:, :, q, None]).mul_(weights)
    if not work.bounded:
        grad_logits.masked_fill_(~visible, 0.0)

    if bias_grads is not None and work.bias is not None:
        _gather_bias_grads(work, q, k, grad_logits, bias_grads)
    if capped is not None:
        grad_logits = grad_logits * (1 - capped * capped)
    folded = work.fold(grad_logits)
    grad_q[:, :, q] = work.unfold(folded @ keys[:, :, k]).mul_(work.scale)
    rows = work.fold(work.q[:, :, q].to(work.dtype))
    grad_k[:, :, k] += (folded.transpose(-1, -2) @ rows).mul_(work.scale)


def _gather_bias_grads(
    work: _Work, q: slice, k: slice, grad_logits: Tensor, bias_grads: list[Tensor]
) -> None:
    start = 0
    for part in work.parts:
        count = len(part.tensors())
        # A block of the gradients themselves: views of what is cut, the whole of what is not.
        rebuilt = Bias.rebuild(bias_grads[start : start + count], part.integers(), part.spec())
        into = rebuilt.block(q, k).tensors()
        scaled = grad_logits * work.scale if part.scaled else grad_logits
        for total, share in zip(into, part.block(q, k).pullback(scaled), strict=True):
            if share is not None:
                total += share
        start += count


def _last_tensor_of(parts: tuple[Bias, ...], index: int) -> int:
    """Where a part's last tensor stands among the tensors of all parts."""
    return sum(len(part.tensors()) for part in parts[: index + 1]) - 1


def _fake_backward(grad, grad_lse, out, lse, q, k, v, bias, *_):
    floats = [torch.empty_like(t) for t in bias if t.is_floating_point()]
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), floats


def _setup_context(ctx, inputs, output):
    q, k, v, bias, bias_integers, bias_spec, mask, *settings, seed = inputs
    out, lse = output
    ctx.save_for_backward(q, k, v, out, lse, seed, *mask, *bias)
    ctx.bias_integers, ctx.bias_spec, ctx.settings = bias_integers, bias_spec, settings
    ctx.set_materialize_grads(False)


def _pull_back_call(ctx, needs, run_backward, grad, grad_lse):
    q, k, v, out, lse, seed, *rest = ctx.saved_tensors
    mask, bias = rest[:5], rest[5:]
    # To PyTorch an empty list is a list of tensors, which has a list of gradients.
    nothing: tuple = (None if ctx.bias_integers else [], *(None,) * 8)
    if grad is None and grad_lse is None:
        return None, None, None, [None] * len(bias), *nothing, None
    bias_needs_grad = any(needs[3]) if isinstance(needs[3], (list, tuple)) else bool(needs[3])
    grad_q, grad_k, grad_v, floats = run_backward(
        torch.zeros_like(out) if grad is None else grad,
        grad_lse, out, lse, q, k, v, bias, ctx.bias_integers, ctx.bias_spec, mask, *ctx.settings, seed,
        bias_needs_grad,
    )  # fmt: skip
    supply = iter(floats)
    bias_grads = [next(supply) if bias_needs_grad and t.is_floating_point() else None for t in bias]
    return grad_q, grad_k, grad_v, bias_grads, *nothing, None


_attention = Operator(
    "chunked", _forward, _fake, schema=f"({_ARGUMENTS}) -> (Tensor, Tensor)", learns=4,
    save=_setup_context, pull_back=_pull_back_call,
    backward=Backward(
        "chunked_backward", _backward, _fake_backward, impl="chunked",
        schema=f"(Tensor grad, Tensor? grad_lse, Tensor out, Tensor lse, {_ARGUMENTS}, bool bias_needs_grad)"
        " -> (Tensor, Tensor, Tensor, Tensor[])",
    ),
)  # fmt: skip
