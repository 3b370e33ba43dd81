"""One call of every hook: its tokens, and its answers in a form that can be compared.

An encoding's answer for a token follows from the token, its position and the parameters. So the same
tokens give the same answers in a longer row, in a batch, among gaps or with fewer key heads, and the
properties compare such calls with each other. No formula is needed for that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..attending.api import attention
from ..bias.types import Bias, parts_of
from ..encoding import PositionEncoding
from ..parts import HOOKS, hooks_of
from ..setting import Setting
from .observe import bias_by_pairs, bias_of, dense_bias
from .report import BrokenAnswer

#: The largest difference between answers that count as equal, relative above 1. It leaves room for encodings
#: that compute in float32; a position off by one changes answers far more.
ONE_ANSWER = 2.0**-20

Index = slice | Tensor


@dataclass(frozen=True)
class Call:
    """Tokens and their positions. `x`, `k` and `v` belong to the same tokens, `q` may be others.

    Attributes:
        q_positions, k_positions: ``[batch, seq]``, or ``[axes, batch, seq]``.
    """

    x: Float[Tensor, "batch k_len d_model"]
    q: Float[Tensor, "batch heads q_len head_dim"]
    k: Float[Tensor, "batch kv_heads k_len head_dim"]
    v: Float[Tensor, "batch kv_heads k_len head_dim"]
    q_positions: Int[Tensor, "..."]
    k_positions: Int[Tensor, "..."]
    lengths: int | Int[Tensor, "..."] | None = None

    @classmethod
    def at(
        cls,
        setting: Setting,
        q_positions: Int[Tensor, "..."],
        k_positions: Int[Tensor, "..."],
        *,
        kv_heads: int | None = None,
        lengths: int | None = None,
        signs: bool = False,
    ) -> Call:
        """Random tokens at these positions, all different; with ``signs`` they are ±1, exact in every dtype."""
        draw = setting.signs if signs else setting.random
        (batch, q_len), k_len = q_positions.shape[-2:], k_positions.shape[-1]
        keys = (batch, kv_heads or setting.num_heads, k_len, setting.head_dim)
        return cls(
            draw(batch, k_len, setting.d_model, stream=1),
            draw(batch, setting.num_heads, q_len, setting.head_dim, stream=2),
            draw(*keys, stream=3), draw(*keys, stream=4), q_positions, k_positions, lengths,
        )  # fmt: skip

    @classmethod
    def alike(
        cls, setting: Setting, q_positions: Tensor, k_positions: Tensor, lengths: int | None = None
    ) -> Call:
        """Equal tokens, so that answers differ only by position."""
        call = cls.at(setting, q_positions, k_positions, lengths=lengths, signs=True)
        return replace(
            call,
            **{name: getattr(call, name)[..., :1, :].expand_as(getattr(call, name)) for name in "xqk"},
        )

    @classmethod
    def repeating(
        cls,
        setting: Setting,
        q_positions: Int[Tensor, "..."],
        k_positions: Int[Tensor, "..."],
        *,
        kv_heads: int | None = None,
        lengths: int | None = None,
        signs: bool = False,
    ) -> Call:
        """Rows that repeat 37 random tokens, so that long rows are drawn quickly."""
        places = {"q_positions": q_positions, "k_positions": k_positions}
        some = cls.at(
            setting, q_positions[..., :37], k_positions[..., :37], kv_heads=kv_heads, lengths=lengths,
            signs=signs,
        )  # fmt: skip
        queries, keys = (torch.arange(at.shape[-1]) % 37 for at in places.values())
        return replace(some.part(queries=queries, keys=keys), **places)

    def part(
        self, *, rows: Index = slice(None), queries: Index = slice(None), keys: Index = slice(None)
    ) -> Call:
        """The same call with a part of its tokens."""
        lengths = self.lengths[rows] if isinstance(self.lengths, Tensor) else self.lengths
        return Call(
            self.x[rows][:, keys], self.q[rows][:, :, queries], self.k[rows][:, :, keys],
            self.v[rows][:, :, keys], self.q_positions[..., rows, :][..., queries],
            self.k_positions[..., rows, :][..., keys], lengths,
        )  # fmt: skip

    def to(self, dtype: torch.dtype) -> Call:
        """The same tokens in another dtype; positions stay integers."""
        tokens = {name: getattr(self, name).to(dtype) for name in ("x", "q", "k", "v")}
        return replace(self, **tokens)

    def as_projected(self) -> Call:
        """The same tokens as projections leave them in memory, heads inside tokens."""
        tokens = {name: getattr(self, name).transpose(1, 2).contiguous() for name in ("x", "q", "k")}
        return replace(self, **{name: token.transpose(1, 2) for name, token in tokens.items()})

    def tensors(self) -> list[Tensor]:
        """All tensors passed to the hooks."""
        given = (self.x, self.q, self.k, self.q_positions, self.k_positions, self.lengths)
        return [tensor for tensor in given if isinstance(tensor, Tensor)]

    def copied(self) -> Call:
        """A copy of all tensors."""
        given = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        clones = {
            id(tensor): tensor.clone() for tensor in given.values()
        }  # one tensor passed twice stays one
        return replace(self, **{name: clones[id(tensor)] for name, tensor in given.items()})

    def outputs(self, encoding: PositionEncoding) -> list[Tensor]:
        """What each hook returns for these tensors, which are not copied."""
        embedded = encoding.embed(self.x, self.k_positions)
        bias = bias_of(encoding, self.q, self.k, self.q_positions, self.k_positions, x=self.x)
        q, k = encoding.rotate(self.q, self.k, self.q_positions, self.k_positions, lengths=self.lengths)
        return [embedded, q, k, *([] if bias is None else bias.tensors())]

    def answers(
        self,
        encoding: PositionEncoding,
        setting: Setting,
        hooks: Collection[str] = HOOKS,
        *,
        attend: bool = False,
        left_out: bool = False,
    ) -> dict[str, Tensor]:
        """The results of the hooks for these tokens, by name.

        Args:
            hooks: The hooks to call, as far as the encoding overrides them.
            attend: Also the output of attention, for encodings that rotate or bias.
            left_out: Pass no positions; the call's must then be 0, 1, ….
        """
        hooks = hooks_of(encoding).intersection(hooks)
        at_q, at_k = (None, None) if left_out else (self.q_positions, self.k_positions)
        answers = {}
        if "embed" in hooks:
            answers["embed"] = _shaped("embed", encoding.embed(self.x.clone(), at_k), self.x)
        if "rotate" in hooks:
            turned = encoding.rotate(self.q.clone(), self.k.clone(), at_q, at_k, lengths=self.lengths)
            for name, out, given in zip(("q", "k"), turned, (self.q, self.k), strict=True):
                answers[name] = _shaped(f"rotate's {name}", out, given)
        if "bias" in hooks:
            bias = bias_of(encoding, self.q, self.k, at_q, at_k, x=self.x)
            answers["bias"] = self._dense(bias, encoding, setting)
        if attend and hooks & {"rotate", "bias"}:
            causal = "bias" in hooks and bias is not None and bias.causal_only
            attended = attention(
                self.q, self.k, self.v, encoding, causal=causal, q_positions=at_q, k_positions=at_k,
                lengths=self.lengths, x=self.x,
            )  # fmt: skip
            assert isinstance(attended, Tensor)
            answers["attention"] = attended
        return answers

    def pairs(self, encoding: PositionEncoding, setting: Setting) -> dict[str, Tensor]:
        """The bias through ``score_mod``, one query and key at a time; {} if the bias has no such form."""
        if "bias" not in hooks_of(encoding):
            return {}
        bias = bias_of(encoding, self.q, self.k, self.q_positions, self.k_positions, x=self.x)
        shape = (*self.q.shape[:3], self.k.shape[2])
        try:
            found = bias_by_pairs(bias, encoding, setting, shape)
        except NotImplementedError:
            return {}
        return {"bias": found}

    def _dense(self, bias: Bias | None, encoding: PositionEncoding, setting: Setting) -> Tensor:
        wide = torch.float64 if self.q.dtype == torch.float64 else torch.float32
        shape = (*self.q.shape[:3], self.k.shape[2])
        if bias is None:
            return torch.zeros(shape, dtype=wide)
        for part in parts_of(bias):
            if part.heads != self.q.shape[1]:
                raise BrokenAnswer(f"bias must have the {self.q.shape[1]} heads of q, got {part.heads}")
        return dense_bias(bias, encoding, setting, wide).expand(shape)

    def difference(
        self, got: Mapping[str, Tensor], expected: Mapping[str, Tensor], causal: bool
    ) -> float:
        """The largest difference between two sets of answers for these tokens, relative where they are above 1.

        Args:
            causal: Biases count where keys are not in the future of their query.
        """
        visible = torch.ones(1, 1, 1, 1, dtype=torch.bool)
        if causal and self.q_positions.dim() < 3:
            visible = self.q_positions[..., :, None] >= self.k_positions[..., None, :]
            visible = visible.reshape(-1, 1, *visible.shape[-2:])

        def seen(answers: Mapping[str, Tensor], name: str) -> Tensor:
            return centred(answers[name], visible) if name == "bias" else answers[name]

        return max((difference(seen(got, name), seen(expected, name)) for name in expected), default=0.0)


def centred(
    dense: Float[Tensor, "batch heads q k"], visible: Bool[Tensor, "#batch 1 #q #k"]
) -> Float[Tensor, "batch heads q k"]:
    """A bias without its mean over the visible keys of each query, which cancels in the softmax."""
    visible = visible.expand_as(dense)
    counted = visible & dense.isfinite()
    total = torch.where(counted, dense, 0).sum(dim=-1, keepdim=True)
    mean = total / counted.sum(dim=-1, keepdim=True).clamp(min=1)
    return torch.where(visible, dense - mean, 0)


def difference(got: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to values above 1; equal infinities are no difference."""
    off = (got - expected).abs() / expected.abs().clamp(min=1)
    off = torch.where((got == expected) | (got.isnan() & expected.isnan()), 0, off)
    return float(off.nan_to_num(nan=torch.inf).amax()) if off.numel() else 0.0


def _shaped(name: str, out: Tensor, given: Tensor) -> Tensor:
    if out.shape != given.shape:
        raise BrokenAnswer(f"{name} must keep the shape {list(given.shape)}, got {list(out.shape)}")
    return out
