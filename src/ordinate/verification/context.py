"""Properties that an answer depends on its token and its position only, not on the rest of the call.

Two calls with fresh copies of the encoding get the same tokens: in a batch and row by row, among gaps and in
pairs, in rows of many lengths, with grouped and with repeated keys.
"""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..bias.types import Bias, SumBias, parts_of
from ..encoding import PositionEncoding
from ..parts import HOOKS, axes_of, hooks_of
from ..setting import COUNT, MANY, Setting
from .calls import ONE_ANSWER, Call, centred, difference
from .observe import bias_of, cast, causal_only, dense_bias, key_heads, need_any
from .report import Measurement, NotApplicable

_DIFFER = "answers differ by {}"
_ODD = 3001  # a length that no other call has


def rows_apart(encoding: PositionEncoding, setting: Setting) -> Measurement:
    """Each row of a batch is computed from its own positions and lengths, as in a call of its own.

    Queries and keys have different positions and numbers of tokens, and the memory layout of projections (heads
    inside tokens). In a call of one row, positions have no batch and are int32. Positions and lengths that are
    left out must equal the default ones, and a bias must be the same through ``score_mod``.
    """
    need_any(encoding)
    causal, axes, off = causal_only(encoding, setting), axes_of(encoding), 0.0
    heads = key_heads(encoding, setting)
    for rows, q_len, k_len in ((2, 1, MANY), (2, 70, 70), (9, 1, 5), (2, 4, 9), (3, 9, 4), (3, 9, 9)):
        at_q, at_k = (setting.scattered(rows, n, axes, stream) for n, stream in ((q_len, 6), (k_len, 7)))
        batch = Call.repeating(setting, at_q, at_k, kv_heads=heads if k_len == MANY else None)
        batch = batch.as_projected()
        off = max(off, _alone(encoding, setting, batch, causal))
        # One row of positions for all rows, and that row repeated.
        at_q, at_k = at_q[..., :1, :], at_k[..., :1, :]
        shared = replace(batch, q_positions=at_q, k_positions=at_k)
        sizes = (*at_q.shape[:-2], rows, -1)
        repeated = replace(batch, q_positions=at_q.expand(sizes), k_positions=at_k.expand(sizes))
        once, again = (call.answers(copy.deepcopy(encoding), setting) for call in (shared, repeated))
        off = max(off, shared.difference(once, again, causal))
        if q_len <= k_len <= setting.within(9):
            off = max(off, _left_out(encoding, setting, batch, causal))
    pairs = batch.pairs(copy.deepcopy(encoding), setting)
    off = max(off, batch.difference(batch.answers(copy.deepcopy(encoding), setting), pairs, causal))
    if encoding.length_dependent:
        lengths = torch.tensor([1, 2, 3]) * setting.train_length
        off = max(off, _alone(encoding, setting, replace(batch, lengths=lengths), causal))
        # Left out, the length is the row's largest position + 1.
        own = replace(batch, q_positions=batch.k_positions)
        most = own.k_positions.reshape(axes, len(batch.x), -1).amax(dim=(0, 2)) + 1
        with_lengths, without_lengths = (
            call.answers(copy.deepcopy(encoding), setting) for call in (replace(own, lengths=most), own)
        )
        off = max(off, own.difference(without_lengths, with_lengths, causal))
    return Measurement(off <= ONE_ANSWER, off, "relative", _DIFFER)


def _left_out(encoding: PositionEncoding, setting: Setting, batch: Call, causal: bool) -> float:
    """The largest difference between passing positions 0, 1, … and passing none."""
    axes, run = axes_of(encoding), torch.arange(batch.k.shape[2])[None]
    run = run.expand(axes, 1, -1) if axes > 1 else run
    counted = replace(batch, q_positions=run[..., -batch.q.shape[2] :], k_positions=run)
    given, without = (
        counted.answers(copy.deepcopy(encoding), setting, attend=True, left_out=left_out)
        for left_out in (False, True)
    )
    return counted.difference(without, given, causal)


def _alone(encoding: PositionEncoding, setting: Setting, batch: Call, causal: bool) -> float:
    """The largest difference between a batch and its rows, one at a time."""
    together, off = batch.answers(copy.deepcopy(encoding), setting, attend=True), 0.0
    for row in range(len(batch.x)):
        alone = batch.part(rows=slice(row, row + 1))
        if alone.q_positions.dim() == 2:
            at_q, at_k = alone.q_positions[0].int(), alone.k_positions[0].int()
            alone = replace(alone, q_positions=at_q, k_positions=at_k)
        if isinstance(alone.lengths, Tensor):
            alone = replace(alone, lengths=int(alone.lengths))
        answers = alone.answers(copy.deepcopy(encoding), setting, attend=True)
        expected = {name: answer[row, None] for name, answer in together.items()}
        off = max(off, alone.difference(answers, expected, causal))
    return off


def gaps(encoding: PositionEncoding, setting: Setting) -> Measurement:
    """Tokens in order, and few or many unsorted ones, are computed as in calls of two keys and one query.

    One of those calls has all queries, more than keys. A bias that reads keys or inputs may add them up, so its
    calls have all keys.
    """
    need_any(encoding)
    causal, axes, off = causal_only(encoding, setting), axes_of(encoding), 0.0
    lengths = setting.length_for(encoding)
    run = torch.arange(setting.within(24))[None]
    run = run.expand(axes, 1, -1) if axes > 1 else run
    few, many = (
        [setting.scattered(1, n, axes, stream) for n, stream in sizes]
        for sizes in (((24, 6), (24, 7)), ((70, 6), (MANY, 7)))
    )
    for at_q, at_k in ((run, run), few, many):
        heads = key_heads(encoding, setting) if at_k is many[1] else None
        whole = Call.repeating(setting, at_q, at_k, kv_heads=heads, lengths=lengths)
        expected = whole.answers(copy.deepcopy(encoding), setting)
        everything = torch.arange(at_k.shape[-1])
        pairs = setting.random(len(everything)).argsort().split(2)[:12]
        reads = encoding.reads_keys or encoding.reads_input
        for query, keys in enumerate(pairs):
            queries = torch.tensor([query]) if query else torch.arange(at_q.shape[-1])
            asked = [(HOOKS[:2], keys), (HOOKS[2:], everything)] if reads else [(HOOKS, keys)]
            for hooks, chosen in asked:
                call = whole.part(queries=queries, keys=chosen)
                answers = call.answers(copy.deepcopy(encoding), setting, hooks)
                picked = {name: _pick(name, expected[name], queries, chosen) for name in answers}
                off = max(off, call.difference(answers, picked, causal))
    return Measurement(off <= ONE_ANSWER, off, "relative", _DIFFER)


def _pick(name: str, answer: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """The part of an answer for all tokens that belongs to some of them."""
    if name == "bias":
        return answer[:, :, queries][..., keys]
    return answer.index_select(-2, queries if name == "q" else keys)


def every_length(encoding: PositionEncoding, setting: Setting) -> Measurement:
    """A token's answer is the same in rows of 1 to 4096 tokens, with all queries, one query or the last few.

    Each is compared with one call of the longest row. The others use one more copy, one after the other, with
    positions given and left out in turn, and end with short rows after long ones. Before them, one length is
    computed in low precision by another copy: a cache of the class by length then holds low precision.
    """
    need_any(encoding)
    causal, longest = causal_only(encoding, setting), setting.within(COUNT)
    run, heads = torch.arange(longest)[None], key_heads(encoding, setting)
    tokens = Call.repeating(setting, run, run, kv_heads=heads, lengths=setting.length_for(encoding))
    expected = _Row.of(copy.deepcopy(encoding), tokens, longest, longest, given=True)
    odd = setting.within(_ODD)
    with contextlib.suppress(Exception):  # reported by another property
        low = torch.bfloat16
        _Row.of(cast(copy.deepcopy(encoding), low), tokens.to(low), odd, odd, given=False)
    lengths = [*setting.octaves(COUNT)[1:].tolist(), odd, longest, 1, 2, 3]
    calls = [(length, 1) for length in lengths]
    calls += [
        (length, count)
        for length in lengths[::4]
        for count in (length, (length + 2) // 3, min(length, 5))
    ]
    used, off, worst = copy.deepcopy(encoding), 0.0, (0, 0)
    for index, (length, count) in enumerate(calls):
        row = _Row.of(used, tokens, length, count, given=index % 2 == 0)
        change = row.difference(expected, encoding, setting, causal)
        off, worst = max((off, worst), (change, (length, count)))
    sentence = (
        _DIFFER if off <= ONE_ANSWER else f"{_DIFFER}, most with {worst[1]} queries and {worst[0]} keys"
    )
    return Measurement(off <= ONE_ANSWER, off, "relative", sentence)


@dataclass(frozen=True)
class _Row:
    """The answers for the last tokens of a row, as in `Call.answers`, with the bias as a description."""

    length: int
    count: int
    answers: dict[str, Tensor]
    bias: Bias | None

    @classmethod
    def of(
        cls, encoding: PositionEncoding, tokens: Call, length: int, count: int, *, given: bool
    ) -> _Row:
        """
        Args:
            tokens: A row at least as long.
            given: Whether positions are passed or left out.
        """
        hooks, answers = hooks_of(encoding), {}
        row = tokens.part(queries=slice(length - count, length), keys=slice(length))
        at_q, at_k = (row.q_positions, row.k_positions) if given else (None, None)
        if "embed" in hooks:
            own = row.q_positions if given or count < length else None
            answers["embed"] = encoding.embed(row.x[:, length - count :].clone(), own)
        if "bias" in hooks:
            bias = bias_of(encoding, row.q, row.k, at_q, at_k, x=row.x)
        if "rotate" in hooks:
            answers["q"], answers["k"] = encoding.rotate(
                row.q.clone(), row.k.clone(), at_q, at_k, lengths=row.lengths
            )
            if count == 1:  # as with a cache: only the new key
                at = row.q_positions if given else row.q_positions[0]
                new = row.q.clone(), row.k[:, :, -1:].clone()
                _, answers["new"] = encoding.rotate(*new, at, at, lengths=row.lengths)
        return cls(length, count, answers, bias if "bias" in hooks else None)

    def difference(
        self, whole: _Row, encoding: PositionEncoding, setting: Setting, causal: bool
    ) -> float:
        """The largest difference from the same tokens in a longer row with all queries."""
        last = slice(self.length - self.count, self.length)
        places = {
            "embed": last,
            "q": last,
            "k": slice(self.length),
            "new": slice(self.length - 1, self.length),
        }
        off = 0.0
        for name, answer in self.answers.items():
            source = whole.answers["k" if name == "new" else name]
            off = max(off, difference(answer, source[..., places[name], :]))
        for query in {0, self.count // 2, self.count - 1}:
            where = last.start + query
            seen = slice(where + 1 if causal else self.length)
            mine = _row_of_bias(self.bias, query if self.count > 1 else None, seen, encoding, setting)
            its = _row_of_bias(whole.bias, where, seen, encoding, setting)
            off = max(off, difference(mine, its))
        return off


def _row_of_bias(
    bias: Bias | None, query: int | None, keys: slice, encoding: PositionEncoding, setting: Setting
) -> Tensor:
    """The bias of one query (None: of the only one) and some keys, without what cancels in the softmax."""
    if bias is None:
        return torch.zeros(1)
    if query is None:
        dense = dense_bias(bias, encoding, setting, torch.float64)[..., keys]
    else:
        some = SumBias(tuple(part.block(slice(query, query + 1), keys) for part in parts_of(bias)))
        dense = dense_bias(some, encoding, setting, torch.float64)
    return centred(dense, torch.ones(1, 1, 1, 1, dtype=torch.bool))


def grouped_queries(encoding: PositionEncoding, setting: Setting) -> Measurement:
    """Fewer key heads, each shared by several query heads, give the same as the repeated keys.

    An encoding may also refuse them, with a message that names heads.
    """
    if not hooks_of(encoding) & {"rotate", "bias"}:
        raise NotApplicable("it does nothing to queries and keys")
    heads = setting.num_heads
    fewer = [count for count in range(1, heads) if heads % count == 0]
    if not fewer:
        raise NotApplicable("there is one head")
    causal, axes, off = causal_only(encoding, setting), axes_of(encoding), 0.0
    at_q, at_k = (setting.scattered(2, n, axes, stream) for n, stream in ((5, 6), (7, 7)))
    lengths = setting.length_for(encoding)
    for kv_heads in fewer:
        shared = Call.at(setting, at_q, at_k, kv_heads=kv_heads, lengths=lengths)
        k, v = (_repeated(tensor, heads) for tensor in (shared.k, shared.v))
        expected = replace(shared, k=k, v=v).answers(copy.deepcopy(encoding), setting, attend=True)
        try:
            answers = shared.answers(copy.deepcopy(encoding), setting, attend=True)
        except (ValueError, NotImplementedError) as error:
            if "head" not in str(error):
                raise
            return Measurement(True, kv_heads, "heads", f"refuses {{}} key heads: {error}")
        if "k" in answers:
            answers["k"] = _repeated(answers["k"], heads)
        off = max(off, shared.difference(answers, expected, causal))
    return Measurement(off <= ONE_ANSWER, off, "relative", _DIFFER)


def _repeated(x: Tensor, heads: int) -> Tensor:
    """Each key head repeated for the query heads that share it."""
    return x.repeat_interleave(heads // x.shape[1], dim=1)
