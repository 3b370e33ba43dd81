"""Bad input gets one sentence with the argument, the rule and the value; every refusal is reached here.

The last test finds every ``raise`` in the source and fails for one that no case of this file reaches,
so a new check comes with its sentence tested.
"""

# ruff: noqa: E501  one case a line, however long
from __future__ import annotations

import ast
import runpy
import string
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

import ordinate
from ordinate import (
    ALiBi,
    Along,
    ClippedBias,
    Combined,
    DistanceBias,
    KeyBias,
    KVCache,
    Learned,
    LinearBias,
    MultiHeadAttention,
    RoPE,
    RowBias,
    Shaw,
    Sinusoidal,
    SumBias,
    T5Bias,
    attention,
    attention_varlen,
    create,
    positions,
    private,
    rerotate,
    scaling,
    to_half,
    to_interleaved,
)
from ordinate.checks import check_within, refusal_of
from ordinate.chinese import core, hf, lab, labels, tools
from ordinate.chinese.translate import TEMPLATES, in_chinese, translated
from ordinate.positions import Places
from ordinate.text import Text

pytestmark = pytest.mark.plain  # users have no shape checker in front of these

SOURCE = Path(ordinate.__file__).parent


def qkv(heads: int = 4, q_len: int = 5, k_len: int = 5, dim: int = 8, batch: int = 2, kv_heads: int = 4):
    q = torch.zeros(batch, heads, q_len, dim)
    return q, torch.zeros(batch, kv_heads, k_len, dim), torch.zeros(batch, kv_heads, k_len, dim)


def attend(*args: Any, shapes: dict | None = None, **kwargs: Any) -> Any:
    return attention(*qkv(**(shapes or {})), *args, **kwargs)


def second_derivative(encoding: Any, impl: str) -> Any:
    q = torch.randn(2, 4, 5, 8, requires_grad=True)
    out = ordinate.attention(q, q, q, encoding, causal=True, impl=impl)
    (first,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    return torch.autograd.grad(first.sum(), q)


def swapped(index: int, tensor: Any, **shapes: int) -> list:
    tensors = list(qkv(**shapes))
    tensors[index] = tensor
    return tensors


ids = torch.arange
zeros = torch.zeros
meta = torch.device("meta")
_rope = RoPE(8)
_dynamic = RoPE(8, scaling=scaling.DynamicNTK(2.0, 4))
_layer = MultiHeadAttention(8, 2, encoding=RoPE(4))
_pair = Places.at(ids(5), ids(5))
_row = RowBias(zeros(1, 4, 5, 3), zeros(1, 3, 3), _pair, lo=-1)
_distance = DistanceBias(zeros(4, 3), _pair, lo=-1)


def packed_call(**changes: Any) -> Any:
    q, k, v = torch.zeros(7, 2, 8), torch.zeros(7, 2, 8), torch.zeros(7, 2, 8)
    given = {"q": q, "k": k, "v": v, "cu_seqlens_q": torch.tensor([0, 3, 7])} | changes
    return attention_varlen(**given)


def filled_cache() -> KVCache:
    cache = KVCache()
    _layer(zeros(2, 3, 8), cache=cache)
    return cache


class _Claimant(ordinate.PositionEncoding):
    claims = frozenset({"decay with distanze"})


class _Locked(ordinate.PositionEncoding):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class _TooLarge(ordinate.PositionEncoding):
    def embed(self, x, positions=None):
        raise MemoryError


def _assert_without_the_operator() -> None:
    lacking = SimpleNamespace(ops=SimpleNamespace(aten=SimpleNamespace()))
    compiling = mock.patch.object(torch.compiler, "is_compiling", return_value=True)
    with mock.patch.object(private, "torch", lacking), compiling:
        check_within("ids", torch.tensor(0), 0, 1, "must be few")


Case = tuple[str, Callable[[], Any], type[Exception], str]

# What is wrong · how it is called · the exception · its words: the argument, the rule, the value.
CASES: list[Case] = [
    # attention: q, k and v
    ("q is a list", lambda: attention(*swapped(0, [1.0])), TypeError, r"q must be a tensor \[batch, heads, seq, head_dim\], got list"),
    ("q has rank 3", lambda: attention(*swapped(0, zeros(4, 5, 8))), ValueError, r"q must have shape \[batch, heads, seq, head_dim\], got \[4, 5, 8\]"),
    ("v is integer", lambda: attention(*swapped(2, zeros(2, 4, 5, 8).long())), TypeError, r"v must be floating point, got torch.int64"),
    ("k has another dtype", lambda: attention(*swapped(1, zeros(2, 4, 5, 8).half())), TypeError, r"k must have the dtype of q, torch.float32, got torch.float16"),
    ("v is on another device", lambda: attention(*swapped(2, zeros(2, 4, 5, 8, device=meta))), ValueError, r"v must be on the device of q, cpu, got meta"),
    ("k has another batch", lambda: attention(*swapped(1, zeros(3, 4, 5, 8))), ValueError, r"k must have batch size 2, got 3"),
    ("k has another head_dim", lambda: attention(*swapped(1, zeros(2, 4, 5, 6))), ValueError, r"k must have the head_dim of q, 8, got 6"),
    ("v is shorter than k", lambda: attention(*swapped(2, zeros(2, 4, 4, 8))), ValueError, r"v must have the heads and length of k, \[4, 5\], got \[4, 4\]"),
    ("heads do not divide", lambda: attend(shapes={"kv_heads": 3}), ValueError, r"heads of q must be a multiple of the kv_heads 3 of k, got 4"),
    ("no key heads", lambda: attend(shapes={"kv_heads": 0}), ValueError, r"heads of q must be a multiple of the kv_heads 0 of k, got 4"),
    ("no channels", lambda: attend(shapes={"dim": 0}), ValueError, r"q must have at least 1 head and head_dim 1, got \[2, 4, 5, 0\]"),
    ("no heads", lambda: attend(shapes={"heads": 0}), ValueError, r"q must have at least 1 head and head_dim 1, got \[2, 0, 5, 8\]"),
    # attention: encoding and bias
    ("encoding is a class", lambda: attend(RoPE), TypeError, r"encoding must be a PositionEncoding, got type"),
    ("encoding is a name", lambda: attend("rope"), TypeError, r"encoding must be a PositionEncoding, got str"),
    ("encoding and bias", lambda: attend(_rope, bias=_distance), ValueError, r"bias must be None when an encoding is given"),
    ("positions without encoding", lambda: attend(q_positions=ids(5)), ValueError, r"q_positions must be None without an encoding"),
    ("keys' positions without encoding", lambda: attend(k_positions=ids(5)), ValueError, r"k_positions must be None without an encoding"),
    ("lengths without encoding", lambda: attend(lengths=5), ValueError, r"lengths must be None without an encoding"),
    ("x without encoding", lambda: attend(x=zeros(2, 5, 8)), ValueError, r"x must be None without an encoding"),
    ("dense bias", lambda: attend(bias=zeros(4, 5, 5)), TypeError, r"bias must be one of ordinate's bias types .*got Tensor"),
    ("ALiBi both ways", lambda: attend(ALiBi(4)), ValueError, r"causal must be True with this bias.*symmetric=True.*got False"),
    ("ALiBi both ways inside a sum", lambda: attend(Combined(ALiBi(4), Shaw(8, 2))), ValueError, r"causal must be True with this bias.*got False"),
    ("gates without a causal mask", lambda: attend(bias=KeyBias(zeros(2, 4, 5))), ValueError, r"causal must be True with this bias.*got False"),
    ("bias for other lengths", lambda: attend(bias=_distance, shapes={"k_len": 6}), ValueError, r"bias must be made for batch, queries and keys \[2, 5, 6\], got \[1, 5, 5\]"),
    ("bias for another batch", lambda: attend(bias=KeyBias(zeros(3, 4, 5), causal_only=False)), ValueError, r"bias must be made for batch, queries and keys \[2, 5, 5\], got \[3, None, 5\]"),
    ("encoding for other heads", lambda: attend(T5Bias(6), causal=True), ValueError, r"bias must have the 4 heads of q, got 6$"),
    ("T5 of one direction without a causal mask", lambda: attend(T5Bias(4)), ValueError, r"causal must be True with this bias, .*T5Bias\(bidirectional=True\)\), got False"),
    ("T5 of one direction inside a sum", lambda: attend(Combined(RoPE(8), T5Bias(4))), ValueError, r"causal must be True with this bias"),
    ("tokens in the place of heads", lambda: attend(ALiBi(5), causal=True), ValueError, r"bias must have the 4 heads of q, got 5; q \[2, 4, 5, 8\] looks like \[batch, seq, heads, head_dim\], and \[batch, heads, seq, head_dim\] is asked for: q\.transpose\(1, 2\)"),
    ("a bias for q transposed", lambda: attend(bias=DistanceBias(zeros(5, 3), Places.at(ids(4), ids(4)), lo=-1)), ValueError, r"bias must be made for batch, queries and keys \[2, 5, 5\], got \[1, 4, 4\]; q \[2, 4, 5, 8\] looks like"),
    ("bias on another device", lambda: attend(bias=DistanceBias(zeros(4, 3, device=meta), _pair, lo=0)), ValueError, r"bias must be on the device of q, cpu, got meta"),
    ("Shaw's values and other v", lambda: attention(*swapped(2, zeros(2, 4, 5, 6)), Shaw(8, 2, values=True)), ValueError, r"v must have the head_dim 8 of the bias's values, got 6"),
    # attention: masks
    ("causal is a mask", lambda: attend(causal=torch.ones(5, 5).tril().bool()), TypeError, r"causal must be True or False, got Tensor"),
    ("window is 0", lambda: attend(window=0), ValueError, r"window must be at least 1, got 0"),
    ("window of more than 64 bits", lambda: attend(window=2**70), ValueError, r"window must fit in 64 bits, got 1180591620717411303424"),
    ("window is a pair", lambda: attend(window=(3, 0)), TypeError, r"window must be an int, got \(3, 0\)"),
    ("only keys' segments", lambda: attend(k_segment_ids=ids(5)[None]), ValueError, r"q_segment_ids must be given along with k_segment_ids, got None"),
    ("segments of unequal lengths", lambda: attend(q_segment_ids=ids(5)[None], shapes={"k_len": 6}), ValueError, r"k_segment_ids must be given when lengths differ, got 5 queries and 6 keys"),
    ("segments of another length", lambda: attend(q_segment_ids=ids(4)[None]), ValueError, r"q_segment_ids must be \[5\] or \[2, 5\], got \[1, 4\]"),
    ("segments are a list", lambda: attend(q_segment_ids=[0, 0, 1, 1, 1]), TypeError, r"q_segment_ids must be a tensor, got list"),
    ("segments are float", lambda: attend(q_segment_ids=zeros(1, 5)), TypeError, r"q_segment_ids must be bool or integers, got torch.float32"),
    ("segments are complex", lambda: attend(q_segment_ids=zeros(1, 5, dtype=torch.complex64)), TypeError, r"q_segment_ids must be bool or integers, got torch.complex64"),
    ("segments on another device", lambda: attend(q_segment_ids=zeros(1, 5, device=meta).long()), ValueError, r"q_segment_ids must be on cpu, got meta"),
    ("an attention_mask of ones", lambda: attend(key_padding_mask=torch.ones(2, 5).long()), TypeError, r"key_padding_mask must be bool with True at padding.*attention_mask == 0.*got torch.int64"),
    ("an additive mask", lambda: attend(key_padding_mask=zeros(2, 5)), TypeError, r"key_padding_mask must be bool or integers, got torch.float32"),
    ("padding of another batch", lambda: attend(key_padding_mask=zeros(3, 5).bool()), ValueError, r"key_padding_mask must be \[5\] or \[2, 5\], got \[3, 5\]"),
    ("padding is a list", lambda: attend(key_padding_mask=[True] * 5), TypeError, r"key_padding_mask must be a tensor, got list"),
    # attention: numbers and implementations
    ("return_lse is a word", lambda: attend(return_lse="no"), TypeError, r"return_lse must be True or False, got 'no'"),
    ("negative dropout", lambda: attend(dropout_p=-0.1), ValueError, r"dropout_p must be at least 0, got -0.1"),
    ("dropout of 1", lambda: attend(dropout_p=1), ValueError, r"dropout_p must be less than 1, got 1"),
    ("softcap of 0", lambda: attend(softcap=0), ValueError, r"softcap must be greater than 0, got 0"),
    ("scale is a tensor", lambda: attend(scale=torch.ones(4)), TypeError, r"scale must be a number, got tensor"),
    ("scale is NaN", lambda: attend(scale=float("nan")), ValueError, r"scale must be finite, got nan"),
    ("scale is infinite", lambda: attend(scale=float("inf")), ValueError, r"scale must be finite, got inf"),
    ("scale is True", lambda: attend(scale=True), TypeError, r"scale must be a number, got True"),
    ("unknown impl", lambda: attend(impl="flash"), ValueError, r"impl must be one of 'auto', .*'chunked', 'reference', got 'flash'"),
    ("unknown impl explained", lambda: ordinate.explain(*qkv(), impl="flash"), ValueError, r"impl must be one of .* got 'flash'"),
    ("second derivatives by sdpa", lambda: second_derivative(None, "sdpa"), NotImplementedError, r"impl must be 'reference' for second derivatives, got 'sdpa'"),
    ("second derivatives by chunked", lambda: second_derivative(ALiBi(4), "chunked"), NotImplementedError, r"impl must be 'reference' for second derivatives, got 'chunked'"),
    ("impl that cannot", lambda: attend(ALiBi(4), causal=True, window=3, impl="sdpa"), NotImplementedError, r"impl='sdpa' cannot do this call: a bias \(LinearBias\).*; window"),
    # positions
    ("float positions", lambda: attend(_rope, q_positions=zeros(5)), TypeError, r"q_positions must be an integer tensor, got torch.float32"),
    ("bool positions", lambda: attend(_rope, q_positions=zeros(5).bool()), TypeError, r"q_positions must be an integer tensor, got torch.bool"),
    ("positions are a list", lambda: attend(_rope, q_positions=[0, 1, 2, 3, 4]), TypeError, r"q_positions must be an integer tensor, got list"),
    ("positions of rank 0", lambda: _rope.at(torch.tensor(3)), ValueError, r"positions must be \[seq\] or \[batch, seq\], got \[\]"),
    ("positions of rank 3", lambda: attend(_rope, q_positions=ids(5).view(1, 1, 5)), ValueError, r"q_positions must be \[seq\] or \[batch, seq\], got \[1, 1, 5\]"),
    ("three axes for two", lambda: attend(RoPE(8, sections=(2, 2)), q_positions=zeros(3, 1, 5).long()), ValueError, r"q_positions must have 2 axes, got 3"),
    ("positions of another length", lambda: attend(ALiBi(4), causal=True, k_positions=ids(4)), ValueError, r"k_positions must have length 5, got \[4\]"),
    ("keys' positions of another length", lambda: attend(_rope, q_positions=ids(5), k_positions=ids(6)), ValueError, r"k_positions must have length 5, got \[6\]"),
    ("positions of another batch", lambda: attend(_rope, q_positions=zeros(3, 5).long()), ValueError, r"q_positions must have batch size 1 or 2, got 3"),
    ("positions on another device", lambda: attend(_rope, q_positions=zeros(5, device=meta).long()), ValueError, r"q_positions must be on cpu, got meta"),
    ("only queries' positions", lambda: attend(_rope, q_positions=ids(5), shapes={"k_len": 6}), ValueError, r"k_positions must be given along with q_positions when lengths differ, got 5 queries and 6 keys"),
    ("only keys' positions", lambda: attend(_rope, k_positions=ids(6), shapes={"k_len": 6}), ValueError, r"q_positions must be given along with k_positions when lengths differ, got 5 queries and 6 keys"),
    ("sequential of a negative length", lambda: positions.sequential(-1), ValueError, r"length must be at least 0, got -1"),
    ("packed with a float", lambda: positions.packed([2, 1.5]), TypeError, r"lengths\[1\] must be an int, got 1.5"),
    ("segments with a negative length", lambda: positions.segment_ids([2, -1]), ValueError, r"lengths\[1\] must be at least 0, got -1"),
    ("packed of a number", lambda: positions.packed(3), TypeError, r"lengths must be a sequence of ints, got 3"),
    ("randomized of a negative batch", lambda: positions.randomized(2, 9, batch=-1), ValueError, r"batch must be at least 0, got -1"),
    ("left_padded of an attention_mask", lambda: positions.left_padded(torch.ones(1, 3).long()), TypeError, r"is_token must be a bool tensor, True at real tokens, got torch.int64"),
    ("left_padded of a list", lambda: positions.left_padded([True]), TypeError, r"is_token must be a bool tensor.*got list"),
    ("grid without axes", positions.grid, ValueError, r"sizes must name at least one axis, got none"),
    ("grid with a 0", lambda: positions.grid(3, 0), ValueError, r"sizes\[1\] must be at least 1, got 0"),
    ("too many distinct positions", lambda: positions.randomized(5, 4), ValueError, r"length must be at most max_positions.*got 5 > 4"),
    ("randomized of a float", lambda: positions.randomized(5.0, 9), TypeError, r"length must be an int, got 5.0"),
    # packed sequences
    ("packed q of rank 4", lambda: packed_call(q=zeros(1, 7, 2, 8)), ValueError, r"q must have shape \[tokens, heads, head_dim\], got \[1, 7, 2, 8\]"),
    ("starts are a list", lambda: packed_call(cu_seqlens_q=[0, 7]), TypeError, r"cu_seqlens_q must be a tensor \[sequences \+ 1\], got list"),
    ("starts are float", lambda: packed_call(cu_seqlens_q=torch.tensor([0.0, 7.0])), TypeError, r"cu_seqlens_q must be an integer tensor, got torch.float32"),
    ("starts on another device", lambda: packed_call(cu_seqlens_q=torch.tensor([0, 7], device=meta)), ValueError, r"cu_seqlens_q must be on cpu, got meta"),
    ("lengths for starts", lambda: packed_call(cu_seqlens_q=torch.tensor([3, 4])), ValueError, r"cu_seqlens_q must rise from 0 to the 7 tokens, got \[3, 4\]"),
    ("starts that fall", lambda: packed_call(cu_seqlens_q=torch.tensor([0, 5, 3, 7])), ValueError, r"cu_seqlens_q must rise from 0 to the 7 tokens, got \[0, 5, 3, 7\]"),
    ("starts that stop short", lambda: packed_call(cu_seqlens_k=torch.tensor([0, 3, 6])), ValueError, r"cu_seqlens_k must rise from 0 to the 7 tokens, got \[0, 3, 6\]"),
    ("other sequences of keys", lambda: packed_call(cu_seqlens_k=torch.tensor([0, 7])), ValueError, r"cu_seqlens_k must describe the 2 sequences of cu_seqlens_q, got 1"),
    ("packed window of 0", lambda: packed_call(window=0), ValueError, r"window must be at least 1, got 0"),
    ("packed causal of 1", lambda: packed_call(causal=1), TypeError, r"causal must be True or False, got 1"),
    ("packed lengths without encoding", lambda: packed_call(lengths=torch.tensor([3, 4])), ValueError, r"lengths must be None without an encoding"),
    ("packed lengths of another count", lambda: packed_call(encoding=_dynamic, lengths=torch.tensor([3])), ValueError, r"lengths must be 2 integers, one a sequence, got torch.int64 \[1\]"),
    ("packed lengths are a list", lambda: packed_call(encoding=_dynamic, lengths=[3, 4]), TypeError, r"lengths must be a tensor \[sequences\], got list"),
    ("packed positions of one side", lambda: packed_call(encoding=_rope, q_positions=ids(7), cu_seqlens_k=torch.tensor([0, 4, 7])), ValueError, r"k_positions must be given along with q_positions and cu_seqlens_k, got None"),
    ("packed positions of the other side", lambda: packed_call(encoding=_rope, k_positions=ids(7), cu_seqlens_k=torch.tensor([0, 4, 7])), ValueError, r"q_positions must be given along with k_positions and cu_seqlens_k, got None"),
    ("packed encoding of text", lambda: packed_call(encoding="rope"), TypeError, r"encoding must be a PositionEncoding, got str"),
    ("packed float positions", lambda: packed_call(encoding=_dynamic, q_positions=zeros(7)), TypeError, r"q_positions must be an integer tensor, got torch.float32"),
    ("packed positions of another length", lambda: packed_call(encoding=_dynamic, q_positions=ids(6)), ValueError, r"q_positions must have length 7, got \[6\]"),
    ("packed x of rank 3", lambda: packed_call(encoding=_rope, x=zeros(1, 7, 8)), ValueError, r"x must have shape \[tokens, d_model\], got \[1, 7, 8\]"),
    # embeddings
    ("odd d_model", lambda: Sinusoidal(7), ValueError, r"d_model must be even, channels turn in pairs, got 7"),
    ("d_model of 0", lambda: Sinusoidal(0), ValueError, r"d_model must be at least 2, got 0"),
    ("base of 1", lambda: Sinusoidal(8, base=1), ValueError, r"base must be greater than 1, got 1"),
    ("unknown layout", lambda: Sinusoidal(8, layout="rotate_half"), ValueError, r"layout must be one of 'interleaved', 'half', got 'rotate_half'"),
    ("offset of a half", lambda: Sinusoidal(8, offset=0.5), TypeError, r"offset must be an int, got 0.5"),
    ("x of another width", lambda: Sinusoidal(8).embed(zeros(1, 3, 6)), ValueError, r"x must have d_model 8, got 6"),
    ("x of rank 2", lambda: Sinusoidal(8).embed(zeros(3, 8)), ValueError, r"x must have shape \[batch, seq, d_model\], got \[3, 8\]"),
    ("token ids for embeddings", lambda: Sinusoidal(8).embed(zeros(1, 3, 8).long()), TypeError, r"x must be floating point, got torch.int64"),
    ("float positions of embeddings", lambda: Sinusoidal(8).embed(zeros(1, 3, 8), zeros(3)), TypeError, r"positions must be an integer tensor, got torch.float32"),
    ("float positions of codes", lambda: Sinusoidal(8).codes(zeros(3)), TypeError, r"positions must be an integer tensor, got torch.float32"),
    ("codes of a list", lambda: Sinusoidal(8).codes([1, 2]), TypeError, r"positions must be an integer tensor, got list"),
    ("no rows", lambda: Learned(0, 8), ValueError, r"max_positions must be at least 1, got 0"),
    ("no columns", lambda: Learned(8, 0), ValueError, r"d_model must be at least 1, got 0"),
    ("negative offset", lambda: Learned(8, 8, offset=-2), ValueError, r"offset must be at least 0, got -2"),
    ("learned x of another width", lambda: Learned(8, 8).embed(zeros(1, 3, 6)), ValueError, r"x must have d_model 8, got 6"),
    ("longer than the table", lambda: Learned(8, 4).embed(zeros(1, 9, 4)), ValueError, r"positions must be in 0 … 7 \(max_positions=8\), got 8"),
    ("a position past the table", lambda: Learned(8, 4).embed(zeros(1, 2, 4), torch.tensor([3, 12])), ValueError, r"positions must be in 0 … 7 \(max_positions=8\), got 12"),
    ("a negative position into a table", lambda: Learned(8, 4).embed(zeros(1, 2, 4), torch.tensor([-1, 3])), ValueError, r"positions must be in 0 … 7 \(max_positions=8\), got -1"),
    # rotations
    ("odd head_dim", lambda: RoPE(7), ValueError, r"head_dim must be even, channels turn in pairs, got 7"),
    ("head_dim is a float", lambda: RoPE(64.0), TypeError, r"head_dim must be an int, got 64.0"),
    ("head_dim is True", lambda: RoPE(True), TypeError, r"head_dim must be an int, got True"),
    ("odd rotary_dim", lambda: RoPE(8, rotary_dim=3), ValueError, r"rotary_dim must be even, channels turn in pairs, got 3"),
    ("rotary_dim past head_dim", lambda: RoPE(8, rotary_dim=10), ValueError, r"rotary_dim must be at most head_dim 8, got 10"),
    ("base is text", lambda: RoPE(8, base="1e6"), TypeError, r"base must be a number, got '1e6'"),
    ("unknown layout of RoPE", lambda: RoPE(8, layout="neox"), ValueError, r"layout must be one of 'half', 'interleaved', got 'neox'"),
    ("unknown section_layout", lambda: RoPE(8, section_layout="thw"), ValueError, r"section_layout must be one of 'chunked', 'interleaved', got 'thw'"),
    ("scaling is a dict", lambda: RoPE(8, scaling={"type": "linear"}), TypeError, r"scaling must be one of ordinate.scaling, got \{'type': 'linear'\}"),
    ("scaling is a class", lambda: RoPE(8, scaling=scaling.Linear), TypeError, r"scaling must be one of ordinate.scaling, got <class"),
    ("sections of another sum", lambda: RoPE(8, sections=(2, 3)), ValueError, r"sections must sum to rotary_dim/2 = 4, got \(2, 3\)"),
    ("sections are a number", lambda: RoPE(8, sections=4), TypeError, r"sections must be a sequence of ints, got 4"),
    ("an empty section", lambda: RoPE(8, sections=(4, 0)), ValueError, r"sections\[1\] must be at least 1, got 0"),
    ("sections that cannot take turns", lambda: RoPE(16, sections=(1, 6, 1), section_layout="interleaved"), ValueError, r"sections\[1\] must leave room for 3 axes in turn among 8 pairs, got 6"),
    ("q of another head_dim", lambda: RoPE(16).rotate(*qkv()[:2]), ValueError, r"q must have head_dim 16, got 8"),
    ("integer q", lambda: _rope.rotate(zeros(1, 1, 2, 8).long(), zeros(1, 1, 2, 8)), TypeError, r"q must be floating point, got torch.int64"),
    ("q of rank 3 turned", lambda: _rope.rotate(zeros(2, 5, 8), zeros(2, 5, 8)), ValueError, r"q must have shape \[batch, heads, seq, head_dim\], got \[2, 5, 8\]"),
    ("k of rank 3 turned", lambda: _rope.rotate(zeros(1, 2, 5, 8), zeros(2, 5, 8)), ValueError, r"k must have shape \[batch, heads, seq, head_dim\], got \[2, 5, 8\]"),
    ("a rotation of other positions", lambda: _rope.at(ids(3)).apply(zeros(1, 1, 4, 8)), ValueError, r"x must fit a rotation of 1 rows of 3 positions, got \[1, 1, 4, 8\]"),
    ("positions of at are a list", lambda: _rope.at([0, 1]), TypeError, r"positions must be an integer tensor, got list"),
    ("three lengths", lambda: attend(_dynamic, lengths=(5, 5, 5)), ValueError, r"lengths must be one for both or a pair for q and k, got 3"),
    ("lengths nobody reads", lambda: attend(_rope, lengths="5"), TypeError, r"lengths must be an int or an integer tensor, got str"),
    ("a negative length", lambda: attend(_rope, lengths=-3), ValueError, r"lengths must be at least 1, got -3"),
    ("rows of q and k differ", lambda: _rope.rotate(zeros(1, 2, 3, 8), zeros(5, 2, 3, 8)), ValueError, r"k must have the batch size 1 of q, got 5"),
    ("a base that NTK makes infinite", lambda: RoPE(64, scaling=scaling.NTK(1e300)), ValueError, r"factor must leave the base 10000 finite, got 1e\+300"),
    ("many sections", lambda: RoPE(64, sections=(1,) * 8000), ValueError, r"sections must sum to rotary_dim/2 = 32, got \(1, 1, 1, 1, 1, 1, \.\.\.\)$"),
    ("a position beyond 64 bits", lambda: positions.sequential(9, start=2**63 - 9), ValueError, r"start must leave room for 9 positions of 64 bits, got 9223372036854775799"),
    ("more positions than memory", lambda: positions.sequential(2**50), MemoryError, r"length must fit in memory, of which .* GiB are there, got 1125899906842624 numbers, 8,388,608.0 GiB"),
    ("a position between two", lambda: positions.sequential(3, start=0.5), TypeError, r"start must be an int, got 0.5"),
    ("lengths are a list", lambda: attend(_dynamic, lengths=[5, 6]), TypeError, r"lengths must be an int or an integer tensor, got list"),
    ("lengths are float", lambda: attend(_dynamic, lengths=zeros(2)), ValueError, r"lengths must be an int or an integer tensor \[batch\] or \[batch, seq\], got torch.float32 \[2\]"),
    ("lengths of another batch", lambda: attend(_dynamic, q_positions=zeros(2, 5).long(), lengths=ids(3)), ValueError, r"lengths must have batch size 1 or 2, got 3"),
    ("lengths of other columns", lambda: attend(_dynamic, lengths=zeros(2, 4).long()), ValueError, r"lengths must have 1 or 5 columns, got 4"),
    ("turned in place with gradient", lambda: _rope.at(ids(5)).apply_both(zeros(1, 1, 5, 8, requires_grad=True), zeros(1, 1, 5, 8), inplace=True), ValueError, r"inplace must be False where q requires grad, got True"),
    ("an expanded view in place", lambda: _rope.at(ids(5)).apply_both(zeros(1, 1, 5, 8).expand(2, 1, 5, 8), zeros(2, 1, 5, 8), inplace=True), ValueError, r"q must not be an expanded view to be turned in place, got \(0, "),
    ("one tensor in place twice", lambda: (lambda t: _rope.at(ids(5)).apply_both(t, t, inplace=True))(zeros(1, 1, 5, 8)), ValueError, r"k must be another tensor than q to be turned in place, got q twice"),
    ("rerotate from positions", lambda: rerotate(zeros(1, 1, 3, 8), ids(3), _rope.at(ids(3))), TypeError, r"from_ must be a Rotation, as RoPE.at makes, got Tensor"),
    ("rerotate to another layout", lambda: rerotate(zeros(1, 1, 3, 8), _rope.at(ids(3)), RoPE(8, layout="interleaved").at(ids(3))), ValueError, r"to must have the layout of from_, got 'interleaved' instead of 'half'"),
    ("rerotate to another head_dim", lambda: rerotate(zeros(1, 1, 3, 8), _rope.at(ids(3)), RoPE(4).at(ids(3))), ValueError, r"to must have the head_dim of from_, got 4 instead of 8"),
    ("rerotate to another length", lambda: rerotate(zeros(1, 1, 3, 8), _rope.at(ids(3)), _rope.at(ids(4))), ValueError, r"to must have the seq and pairs of from_, got \[4, 4\] instead of \[3, 4\]"),
    ("rerotate to other rows", lambda: rerotate(zeros(2, 1, 3, 8), _rope.at(zeros(2, 3).long()), _rope.at(zeros(3, 3).long())), ValueError, r"to must have 1 row or the 2 of from_, got 3"),
    ("rerotate other keys", lambda: rerotate(zeros(1, 1, 4, 8), _rope.at(ids(3)), _rope.at(ids(3))), ValueError, r"keys must fit a rotation of 1 rows of 3 positions, got \[1, 1, 4, 8\]"),
    ("a weight of other rows", lambda: to_half(zeros(10, 4), head_dim=4), ValueError, r"weight must have a multiple of head_dim 4 rows, got 10"),
    ("an odd rotary_dim to convert", lambda: to_interleaved(zeros(8, 4), head_dim=4, rotary_dim=3), ValueError, r"rotary_dim must be even, channels turn in pairs, got 3"),
    ("a rotary_dim past the head", lambda: to_half(zeros(8, 4), head_dim=4, rotary_dim=6), ValueError, r"rotary_dim must be at most head_dim 4, got 6"),
    ("a weight that is a list", lambda: to_half([1.0, 2.0], head_dim=2), TypeError, r"weight must be a tensor with a row for each channel, got list"),
    ("a weight that is a number", lambda: to_half(torch.tensor(1.0), head_dim=2), TypeError, r"weight must be a tensor with a row for each channel, got a number"),
    # scalings
    ("Linear below 1", lambda: scaling.Linear(0.5), ValueError, r"factor must be at least 1, got 0.5"),
    ("NTK below 1", lambda: scaling.NTK(0), ValueError, r"factor must be at least 1, got 0"),
    ("NTK of one pair", lambda: RoPE(8, rotary_dim=2, scaling=scaling.NTK(2)), ValueError, r"rotary_dim must be at least 4 to change the base, got 2"),
    ("DynamicNTK of text", lambda: scaling.DynamicNTK("2", 8), TypeError, r"factor must be a number, got '2'"),
    ("DynamicNTK without length", lambda: scaling.DynamicNTK(2.0, 0), ValueError, r"original_max_positions must be at least 1, got 0"),
    ("YaRN below 1", lambda: scaling.YaRN(0.5, 8), ValueError, r"factor must be at least 1, got 0.5"),
    ("YaRN with a float length", lambda: scaling.YaRN(2, 8.0), TypeError, r"original_max_positions must be an int, got 8.0"),
    ("YaRN with betas exchanged", lambda: scaling.YaRN(2, 8, beta_fast=1, beta_slow=32), ValueError, r"beta_fast must be at least 32, got 1"),
    ("YaRN with endless turns", lambda: scaling.YaRN(2, 8, beta_fast=1e308), ValueError, r"beta_fast must be at most 1000000000.0, got 1e\+308"),
    ("YaRN with beta_slow of 0", lambda: scaling.YaRN(2, 8, beta_slow=0), ValueError, r"beta_slow must be greater than 0, got 0"),
    ("YaRN with attention_factor 0", lambda: scaling.YaRN(2, 8, attention_factor=0), ValueError, r"attention_factor must be greater than 0, got 0"),
    ("YaRN with mscale below 0", lambda: scaling.YaRN(2, 8, mscale=-1), ValueError, r"mscale must be at least 0, got -1"),
    ("YaRN with a softmax scale beyond floats", lambda: scaling.YaRN(2, 8, mscale_all_dim=1e200), ValueError, r"mscale_all_dim must be at most 1000000000.0, got 1e\+200"),
    ("frequencies of an odd dim", lambda: scaling.frequencies(1e4, 63), ValueError, r"dim must be even, channels turn in pairs, got 63"),
    ("frequencies of a bool", lambda: scaling.YaRN(2, 8).inv_freq(1e4, True), TypeError, r"dim must be an int, got True"),
    ("frequencies of fewer than none", lambda: scaling.DynamicNTK(2.0, 8).inv_freq(1e4, -64), ValueError, r"dim must be at least 2, got -64"),
    ("q of 8 bits", lambda: attention(*(zeros(2, 4, 5, 8, dtype=torch.float8_e4m3fn),) * 3), TypeError, r"q must be floating point of at least 16 bits, got torch.float8_e4m3fn"),
    ("YaRN with mscale_all_dim of text", lambda: scaling.YaRN(2, 8, mscale_all_dim="1"), TypeError, r"mscale_all_dim must be a number, got '1'"),
    ("unknown dialect", lambda: scaling.YaRN(2, 8, dialect="deepseek"), ValueError, r"dialect must be one of 'hf', 'paper', 'minimind', got 'deepseek'"),
    ("LongRoPE with a length of 1", lambda: scaling.LongRoPE((1,), (1,), 1), ValueError, r"original_max_positions must be at least 2, got 1"),
    ("LongRoPE with a factor of 0", lambda: scaling.LongRoPE((1, 0), (1, 1), 8), ValueError, r"short_factor\[1\] must be greater than 0, got 0"),
    ("LongRoPE of another dimension", lambda: RoPE(8, scaling=scaling.LongRoPE((1,) * 4, (1,) * 3, 8)), ValueError, r"long_factor must have one divisor for each of 4 pairs, got 3"),
    ("LongRoPE with a negative factor", lambda: scaling.LongRoPE((1,), (1,), 8, factor=-1), ValueError, r"factor must be greater than 0, got -1"),
    ("LongRoPE with attention_factor 0", lambda: scaling.LongRoPE((1,), (1,), 8, attention_factor=0), ValueError, r"attention_factor must be greater than 0, got 0"),
    ("Llama3 below 1", lambda: scaling.Llama3(0.5, 1, 4, 8), ValueError, r"factor must be at least 1, got 0.5"),
    ("Llama3 with factors exchanged", lambda: scaling.Llama3(8, 4, 1, 8192), ValueError, r"high_freq_factor must be at least 4, got 1"),
    ("Llama3 with a low factor of 0", lambda: scaling.Llama3(8, 0, 1, 8192), ValueError, r"low_freq_factor must be greater than 0, got 0"),
    ("Llama3 without length", lambda: scaling.Llama3(8, 1, 4, None), TypeError, r"original_max_positions must be an int, got None"),
    ("Proportional of 0", lambda: scaling.Proportional(0), ValueError, r"fraction must be greater than 0, got 0"),
    ("Proportional past 1", lambda: scaling.Proportional(1.5), ValueError, r"fraction must be at most 1, got 1.5"),
    ("Proportional with factor below 1", lambda: scaling.Proportional(0.5, 0.5), ValueError, r"factor must be at least 1, got 0.5"),
    # biases
    ("symmetric is a word", lambda: create("alibi:symmetric=no", num_heads=4), TypeError, r"symmetric must be True or False, got 'no'"),
    ("trainable is a number", lambda: ALiBi(4, trainable=1), TypeError, r"trainable must be True or False, got 1"),
    ("bidirectional is a word", lambda: T5Bias(4, bidirectional="no"), TypeError, r"bidirectional must be True or False, got 'no'"),
    ("values are a table", lambda: Shaw(8, 2, values=zeros(5, 8)), TypeError, r"values must be True or False, got Tensor"),
    ("endpoint is a word", lambda: Sinusoidal(8, endpoint="no"), TypeError, r"endpoint must be True or False, got 'no'"),
    ("truncate is a word", lambda: scaling.YaRN(2, 8, truncate="no"), TypeError, r"truncate must be True or False, got 'no'"),
    ("LongRoPE with one number", lambda: scaling.LongRoPE(2.0, (1,), 8), TypeError, r"short_factor must be a sequence of numbers, got 2.0"),
    ("no heads in ALiBi", lambda: ALiBi(0), ValueError, r"num_heads must be at least 1, got 0"),
    ("heads is a list", lambda: ALiBi(8, heads=[0, 1]), TypeError, r"heads must be a slice of the 8 heads, got \[0, 1\]"),
    ("heads selects none", lambda: ALiBi(8, heads=slice(8, 9)), ValueError, r"heads must select some of the 8 heads, got slice\(8, 9, None\)"),
    ("no distances", lambda: ClippedBias(4, 0), ValueError, r"max_distance must be at least 1, got 0"),
    ("no heads in ClippedBias", lambda: ClippedBias(0, 4), ValueError, r"num_heads must be at least 1, got 0"),
    ("two buckets for two directions", lambda: T5Bias(4, num_buckets=2, bidirectional=True), ValueError, r"num_buckets must be at least 4, got 2"),
    ("odd buckets for two directions", lambda: T5Bias(4, num_buckets=7, bidirectional=True), ValueError, r"num_buckets must be even when bidirectional, got 7"),
    ("max_distance within the exact buckets", lambda: T5Bias(4, max_distance=16), ValueError, r"max_distance must be greater than the 16 exact buckets, got 16"),
    ("Shaw without distances", lambda: Shaw(8, 0), ValueError, r"max_distance must be at least 1, got 0"),
    ("Shaw for another head_dim", lambda: attend(Shaw(16, 2)), ValueError, r"q must have head_dim 16, got 8"),
    ("an unknown name", lambda: ordinate.nothing, AttributeError, r"module 'ordinate' has no attribute 'nothing'"),
    ("a compiler without assertions", _assert_without_the_operator, NotImplementedError, r"torch must have aten._assert_async.msg to compile a check that ids must be few, got 2\."),
    ("positions too far apart to subtract", lambda: attend(ALiBi(4), causal=True, q_positions=ids(5) + 2**62, k_positions=ids(5)), ValueError, r"q_positions must be less than 2\*\*62 in size for a bias, got 4611686018427387908"),
    ("keys too far in the past to subtract", lambda: attend(T5Bias(4), causal=True, q_positions=ids(5), k_positions=ids(5) - 2**62), ValueError, r"k_positions must be less than 2\*\*62 in size for a bias, got -4611686018427387904"),
    ("positions in a bias", lambda: LinearBias(zeros(4), ids(5)), TypeError, r"places must be what positions.resolve returns, or a positions.Places, got Tensor"),
    ("places of two axes in a bias", lambda: LinearBias(zeros(4), Places.at(ids(5), zeros(2, 1, 5).long())), ValueError, r"places must be along one axis, got 2 axes"),
    ("float positions in places", lambda: Places.at(zeros(1, 5), ids(5)[None]), TypeError, r"queries must be an integer tensor, got torch.float32"),
    ("places of two batch sizes", lambda: Places.at(zeros(2, 5).long(), zeros(3, 5).long()), ValueError, r"keys must have batch size 1 or 2, got 3"),
    ("places on two devices", lambda: Places.at(ids(5), ids(5, device=meta)), ValueError, r"keys must be on cpu, got meta"),
    ("places of no whole number of queries", lambda: Places.in_order(2.5, 3), TypeError, r"q_len must be an int, got 2.5"),
    ("keys' positions beside places", lambda: attend(RoPE(8), q_positions=_pair, k_positions=ids(5)), ValueError, r"k_positions must be None where q_positions hold the keys' places too"),
    ("places of other lengths", lambda: attend(RoPE(8), q_positions=Places.in_order(5, 6)), ValueError, r"q_positions must hold the places of 5 queries and 5 keys, got 5 and 6"),
    ("places of another batch", lambda: attend(RoPE(8), q_positions=Places.at(zeros(3, 5).long(), ids(5))), ValueError, r"q_positions must have batch size 1 or 2, got 3"),
    ("places of more axes", lambda: attend(RoPE(8), q_positions=Places.at(zeros(3, 1, 5).long(), ids(5))), ValueError, r"q_positions must be \[seq\] or \[batch, seq\], got \[3, 1, 5\]"),
    ("an axis of no encoding", lambda: Along(3, 0), TypeError, r"encoding must be a PositionEncoding, got int"),
    ("an axis of two", lambda: Along(RoPE(8, sections=(2, 2)), 0), ValueError, r"encoding must read one axis, got one that reads 2"),
    ("a negative axis", lambda: Along(RoPE(8), -1), ValueError, r"axis must be at least 0, got -1"),
    ("fewer axes than the one it reads", lambda: Along(RoPE(8), 2, axes=2), ValueError, r"axes must be at least 3, got 2"),
    ("more axes than there are", lambda: Along(RoPE(8), 2).rotate(zeros(1, 4, 5, 8), zeros(1, 4, 5, 8), Places.at(zeros(2, 1, 5).long(), ids(5))), ValueError, r"q_positions must have axis 2, got 2 axes"),
    ("slopes of rank 2", lambda: LinearBias(zeros(1, 4), _pair), ValueError, r"slopes must have shape \[heads\], got \[1, 4\]"),
    ("a table of rank 1", lambda: DistanceBias(zeros(4), _pair, lo=0), ValueError, r"table must have shape \[heads, distances\], got \[4\]"),
    ("an empty table", lambda: DistanceBias(zeros(4, 0), _pair, lo=0), ValueError, r"table must hold at least one distance, got \[4, 0\]"),
    ("lo is a float", lambda: DistanceBias(zeros(4, 3), _pair, lo=-1.0), TypeError, r"lo must be an int, the distance table starts from, got -1.0"),
    ("a key vector of rank 2", lambda: KeyBias(zeros(4, 5)), ValueError, r"vector must have shape \[batch, heads, keys\], got \[4, 5\]"),
    ("unknown side", lambda: RowBias(zeros(1, 4, 5, 3), zeros(1, 3, 3), _pair, lo=-1, side="row"), ValueError, r"side must be one of 'query', 'key', got 'row'"),
    ("features of other tokens", lambda: RowBias(zeros(1, 4, 6, 3), zeros(1, 3, 3), _pair, lo=-1), ValueError, r"features must have one row for each query, 5, got 6"),
    ("a row table of another rank", lambda: RowBias(zeros(1, 4, 5, 3), zeros(1, 3, 2), _pair, lo=-1), ValueError, r"table must be \[4 or 1, distances, 3\] as features are, got \[1, 3, 2\]"),
    ("values of other rows", lambda: RowBias(zeros(1, 4, 5, 3), zeros(1, 3, 3), _pair, lo=-1, values=zeros(1, 4, 8)), ValueError, r"values must be \[4 or 1, 3, v_dim\] as the table is, got \[1, 4, 8\]"),
    ("a sum of nothing", lambda: SumBias(()), ValueError, r"parts must hold at least one bias, got none"),
    ("a sum with a tensor", lambda: SumBias((_distance, zeros(4))), TypeError, r"parts\[1\] must be a bias, got Tensor"),
    ("the scaled of a mixed sum", lambda: SumBias((_distance, _row)).dense(), ValueError, r"scaled must be read from each part of a sum that mixes both, got a SumBias"),
    ("a scaled score_mod without scale", _row.score_mod, ValueError, r"scale must be given to score_mod because this bias is scaled, got None"),
    ("a bias and a number", lambda: _distance + 1.0, TypeError, r"unsupported operand type.*'DistanceBias' and 'float'"),
    # methods
    ("places on another device", lambda: attend(RoPE(8), q_positions=Places.in_order(5, 5, device=meta)), ValueError, r"q_positions must be on cpu, got meta"),
    ("places given on another device", lambda: attend(T5Bias(4), q_positions=Places.at(ids(5, device=meta), ids(5, device=meta))), ValueError, r"q_positions must be on cpu, got meta"),
    ("places past 64 bits", lambda: Places.in_order(2, 5, start=2**63 - 5), ValueError, r"start must leave room for 5 positions of 64 bits, got 9223372036854775803"),
    ("queries before 64 bits", lambda: Places.in_order(5, 2, start=2 - 2**63), ValueError, r"start must leave room for 5 positions of 64 bits, got -9223372036854775806"),
    ("a call of ALiBi", lambda: ALiBi(4)(*qkv()[:2]), TypeError, r"ALiBi is not called itself: call bias, or give it to attention"),
    ("a call of two", lambda: Combined(_rope, ALiBi(4))(*qkv()[:2]), TypeError, r"Combined is not called itself: call rotate and bias, or give it to attention"),
    ("a call of NoPE", lambda: ordinate.NoPE()(*qkv()[:2]), TypeError, r"PositionEncoding is not called itself: call embed, rotate or bias, or give it to attention"),
    ("q alone", lambda: _rope.rotate(zeros(1, 4, 5, 8)), TypeError, r"k must be given along with q \(one tensor alone: rope\.at\(positions\)\.apply\(q\)\), got None"),
    ("q alone for ALiBi", lambda: ALiBi(4).rotate(zeros(1, 4, 5, 8)), TypeError, r"k must be given along with q \(ALiBi does not rotate: call bias\), got None"),
    # combination and catalog
    ("a class in Combined", lambda: Combined(_rope, ALiBi), TypeError, r"encodings\[1\] must be a PositionEncoding, got type"),
    ("q alone for NoPE", lambda: ordinate.NoPE().rotate(zeros(1, 4, 5, 8)), TypeError, r"k must be given along with q \(PositionEncoding does not rotate\), got None"),
    ("q alone for two", lambda: Combined(ALiBi(4), _rope).rotate(zeros(1, 4, 5, 8)), TypeError, r"k must be given along with q \(one tensor alone: rope.at\(positions\).apply\(q\)\), got None"),
    ("q alone for two that do not rotate", lambda: Combined(ALiBi(4), Sinusoidal(8)).rotate(zeros(1, 4, 5, 8)), TypeError, r"k must be given along with q \(Combined does not rotate: call embed and bias\), got None"),
    ("q alone along an axis", lambda: Along(_rope, 0)(zeros(1, 4, 5, 8)), TypeError, r"k must be given along with q \(one tensor alone: rope.at\(positions\).apply\(q\)\), got None"),
    ("an empty spec", lambda: create(" "), ValueError, r"spec must be text such as 'rope:base=1e6', got ' '"),
    ("a spec that is no text", lambda: create(None), ValueError, r"spec must be text such as 'rope:base=1e6', got None"),
    ("a misspelt name", lambda: create("ropee", head_dim=8), ValueError, r"unknown encoding 'ropee' in spec 'ropee'; did you mean 'rope'"),
    ("a misspelt scaling", lambda: create("rope+yarm", head_dim=8), ValueError, r"unknown encoding 'yarm' in spec 'rope\+yarm'; did you mean 'yarn'"),
    ("a name like no other", lambda: create("xyzzy"), ValueError, r"unknown encoding 'xyzzy' in spec 'xyzzy'; known: none, sinusoidal, learned, rope"),
    ("an unknown option", lambda: create("rope:theta=1e6", head_dim=8), ValueError, r"unknown option 'theta' of 'rope' in spec 'rope:theta=1e6'"),
    ("a misspelt option", lambda: create("rope:bas=1e6", head_dim=8), ValueError, r"unknown option 'bas' of 'rope' .*; did you mean 'base'"),
    ("an option of nothing", lambda: create("none:base=3"), ValueError, r"unknown option 'base' of 'none' in spec 'none:base=3'; it has no options"),
    ("an option without value", lambda: create("rope:base", head_dim=8), ValueError, r"option must be written name=value in spec 'rope:base', got 'base'"),
    ("an option twice", lambda: create("rope:base=2,base=3", head_dim=8), ValueError, r"option 'base' must be given once in spec 'rope:base=2,base=3', got it twice"),
    ("a missing dimension", lambda: create("rope"), ValueError, r"'rope' in spec 'rope' needs head_dim; give it as create\(…, head_dim=…\)"),
    ("heads that do not divide", lambda: create("rope", d_model=10, num_heads=4), ValueError, r"'rope' in spec 'rope' needs head_dim"),
    ("a missing option", lambda: create("rope+linear", head_dim=8), ValueError, r"'linear' in spec 'rope\+linear' needs factor; give it as 'linear:factor=…'"),
    ("a missing length", lambda: create("rope+yarn:factor=4", head_dim=8), ValueError, r"'yarn' in spec 'rope\+yarn:factor=4' needs original_max_positions; give it as create\(…, max_positions=…\)"),
    ("a bad literal", lambda: create("rope:base=many", head_dim=8), TypeError, r"base must be a number, got 'many'"),
    ("a literal that is no literal", lambda: create("rope:base={[]:1}", head_dim=8), TypeError, r"base must be a number, got '\{\[\]:1\}'"),
    ("brackets too deep", lambda: create("rope:base=(((((((((1)))))))))", head_dim=8), ValueError, r"brackets must be nested at most 8 deep in spec .*, got 'base="),
    ("brackets closed first", lambda: create("rope:base=1)", head_dim=8), ValueError, r"brackets must be opened before they are closed in spec 'rope:base=1\)', got 'base=1\)'"),
    ("brackets left open", lambda: create("rope:sections=(1,2", head_dim=8), ValueError, r"brackets must be closed in spec 'rope:sections=\(1,2', got 'sections=\(1,2'"),
    ("a value too long", lambda: create("rope:base=" + "-" * 3000 + "1", head_dim=8), ValueError, r"a value must have at most 64 characters in spec .*…', got 3001"),
    ("a number too long", lambda: create("rope:base=1000000000000000000", head_dim=8), ValueError, r"a whole number must have at most 18 digits in spec .*, got 1000000000000000000"),
    ("a spec too long", lambda: create("rope:base=" + "1" * 20000, head_dim=8), ValueError, r"characters of a spec must be at most 16384, got 20010"),
    ("a billion heads", lambda: create("alibi:num_heads=1000000000"), ValueError, r"num_heads must be at most 1048576, got 1000000000"),
    ("a table too large", lambda: create("learned", d_model=64, max_positions=10**9), ValueError, r"numbers in the table of learned must be at most 268435456, got 64000000000"),
    ("a second scaling", lambda: create("rope+linear:factor=2+ntk:factor=2", head_dim=8), ValueError, r"rope must have one scaling in spec .*, got a second, 'ntk'"),
    ("a scaling of ALiBi", lambda: create("alibi+linear:factor=2", num_heads=4), ValueError, r"scaling 'linear' must follow rope in spec .*, got alibi"),
    ("a scaling of nothing", lambda: create("yarn:factor=4", max_positions=8), ValueError, r"scaling 'yarn' must follow rope in spec 'yarn:factor=4', got nothing"),
    ("a dimension of text", lambda: create("rope", d_model="64", num_heads=8), TypeError, r"d_model must be an int, got '64'"),
    ("a dimension of 0", lambda: create("rope", head_dim=0), ValueError, r"head_dim must be at least 1, got 0"),
    # the layer
    ("heads do not divide d_model", lambda: MultiHeadAttention(10, 4), ValueError, r"d_model must be a multiple of num_heads 4, got 10"),
    ("kv heads do not divide heads", lambda: MultiHeadAttention(8, 4, 3), ValueError, r"num_heads must be a multiple of num_kv_heads 3, got 4"),
    ("no kv heads", lambda: MultiHeadAttention(8, 4, 0), ValueError, r"num_kv_heads must be at least 1, got 0"),
    ("a head_dim of 0", lambda: MultiHeadAttention(8, 4, head_dim=0), ValueError, r"head_dim must be at least 1, got 0"),
    ("a layer with a name", lambda: MultiHeadAttention(8, 4, encoding="rope"), TypeError, r"encoding must be a PositionEncoding, got str"),
    ("a layer with causal of text", lambda: MultiHeadAttention(8, 4, causal="yes"), TypeError, r"causal must be True or False, got 'yes'"),
    ("layer input of rank 2", lambda: _layer(zeros(3, 8)), ValueError, r"x must have shape \[batch, seq, d_model\], got \[3, 8\]"),
    ("layer input of token ids", lambda: _layer(zeros(1, 3, 8).long()), TypeError, r"x must be floating point, got torch.int64"),
    ("layer input of another width", lambda: _layer(zeros(1, 3, 6)), ValueError, r"x must have d_model 8, got 6"),
    ("float positions in the layer", lambda: _layer(zeros(1, 3, 8), zeros(3)), TypeError, r"^positions must be an integer tensor, got torch.float32"),
    ("an attention_mask in the layer", lambda: _layer(zeros(1, 3, 8), key_padding_mask=torch.ones(1, 3).long()), TypeError, r"key_padding_mask must be bool with True at padding.*got torch.int64"),
    ("an attention_mask with a cache", lambda: _layer(zeros(1, 3, 8), cache=KVCache(), key_padding_mask=torch.ones(1, 3).long()), TypeError, r"key_padding_mask must be bool with True at padding.*got torch.int64"),
    ("segments with a cache", lambda: _layer(zeros(1, 3, 8), cache=KVCache(), segment_ids=zeros(1, 3).long()), ValueError, r"segment_ids must be None with a cache, which holds one sequence a row"),
    ("a cache that is a tuple", lambda: _layer(zeros(1, 3, 8), cache=()), TypeError, r"cache must be a KVCache, got tuple"),
    ("a cache of another batch", lambda: _layer(zeros(3, 1, 8), cache=filled_cache()), ValueError, r"x must have the batch size 2 of the cache, got 3"),
    ("a cache of another layer", lambda: MultiHeadAttention(8, 2, num_kv_heads=1)(zeros(2, 1, 8), cache=filled_cache()), ValueError, r"cache must have this layer's kv_heads and head_dim \[1, 4\], got \[2, 4\]"),
    ("a cache of another dtype", lambda: MultiHeadAttention(8, 2).double()(zeros(2, 1, 8).double(), cache=filled_cache()), ValueError, r"cache must be torch.float64 on cpu, got torch.float32 on cpu"),
    ("a cache without a causal mask", lambda: MultiHeadAttention(8, 2, causal=False)(zeros(2, 1, 8), cache=KVCache()), ValueError, r"causal must be True with a cache, whose past cannot see new tokens, got False"),
    # verify
    ("verify a class", lambda: ordinate.verify(RoPE), TypeError, r"encoding must be a PositionEncoding or a spec, got _?[A-Za-z]+"),
    ("verify an unknown property", lambda: ordinate.verify(_rope, properties=["norm preservatoin"]), ValueError, r"unknown property 'norm preservatoin'.*norm preservation"),
    ("verify nothing of it", lambda: ordinate.verify(_rope, properties=[]), ValueError, r"properties must name at least one property, or be None for all, got none"),
    ("verify what cannot be copied", lambda: ordinate.verify(_Locked()), TypeError, r"encoding must be one that copy\.deepcopy can copy, .* got _Locked \(.*cannot pickle '_thread\.lock' object"),
    ("verify an unknown claim", lambda: ordinate.verify(_Claimant()), ValueError, r"claims of _Claimant must be properties, got 'decay with distanze'; did you mean 'decay with distance'"),
    ("verify in too little memory", lambda: ordinate.verify(_TooLarge(), properties="shift"), MemoryError, r"shift invariance must be measured in the memory there is, got head_dim 64 .*, which needs more"),
    ("a report's unknown property", lambda: ordinate.verify(_rope, properties=["norm preservation"])["norm"], KeyError, r"norm"),
]  # fmt: skip


# A folder may keep the cases of its own part beside its tests.
for _path in sorted(Path(__file__).parent.glob("*/error_cases_*.py")):
    CASES += runpy.run_path(str(_path))["CASES"]


@pytest.mark.parametrize(
    ("call", "error", "words"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_bad_input_is_refused_by_name_rule_and_value(call, error, words):
    with pytest.raises(error, match=words) as caught:
        call()
    assert type(caught.value) is error
    assert "\n" not in str(caught.value)


def test_a_refused_padding_mask_leaves_the_cache_as_it_was():
    cache = filled_cache()
    with pytest.raises(TypeError, match="key_padding_mask must be bool"):
        _layer(zeros(2, 1, 8), cache=cache, key_padding_mask=torch.ones(2, 1).long())
    assert len(cache) == 3


def raise_sites() -> dict[tuple[str, int], range]:
    """Every refusal in the source: its file and first line, and the lines it spans.

    Left out are abstract methods (a bare ``raise NotImplementedError``), what verify raises for its own
    caller to catch, and the command line, whose exits its own tests check.
    """
    sites = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = str(path.relative_to(SOURCE))
        if name.startswith("cli/"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                called = ast.unparse(node.exc.func)
                if called not in ("NotApplicable", "BrokenAnswer"):
                    sites[name, node.lineno] = range(node.lineno, (node.end_lineno or node.lineno) + 1)
    return sites


@pytest.fixture(scope="module")
def refusals() -> list[tuple[str, int, Exception]]:
    """What each case raises, with the file and line in our source that it comes from."""
    found = []
    for _, call, error, _ in CASES:
        try:
            call()
        except error as caught:
            frames = traceback.extract_tb(caught.__traceback__)
            ours = [frame for frame in frames if Path(frame.filename).is_relative_to(SOURCE)]
            if ours:
                name = str(Path(ours[-1].filename).relative_to(SOURCE))
                found.append((name, ours[-1].lineno or 0, caught))
    return found


def test_every_raise_in_the_source_is_reached_by_a_case_above(refusals):
    reached = {(name, line) for name, line, _ in refusals}
    missed = [
        f"{name}:{line}"
        for (name, line), lines in raise_sites().items()
        if not any((name, number) in reached for number in lines)
    ]
    assert not missed, "\n".join(missed)


def test_every_refusal_has_its_fields_and_a_chinese_sentence_with_the_same_facts(refusals):
    sites = raise_sites()
    wrong = set()
    for name, line, error in refusals:
        raised = any(name == file and line in lines for (file, _), lines in sites.items())
        if not raised:
            continue
        refusal = getattr(error, "refusal", None)
        if refusal is None:
            wrong.add(f"{name}:{line} has no fields: {error}")
            continue
        texts = [part for part in (refusal.argument, refusal.value) if isinstance(part, Text)]
        texts += [fact for fact in refusal.facts.values() if isinstance(fact, Text)]
        templates = [refusal.rule, refusal.advice, *(text.template for text in texts if text.facts)]
        wrong |= {
            f"{name}:{line} {template!r} has no Chinese sentence"
            for template in templates
            if template and template not in TEMPLATES
        }
        assert str(refusal) == str(error)
        assert in_chinese(refusal)
    assert not wrong, "\n".join(sorted(wrong))


def test_methods_to_call_and_braces_of_a_user_are_said_in_chinese():
    for encoding, methods in (
        (Combined(_rope, ALiBi(4)), "rotate 和 bias"),
        (ordinate.NoPE(), "embed、rotate 或 bias"),
    ):
        with pytest.raises(TypeError, match="is not called itself") as caught:
            encoding(zeros(2, 4, 5, 8))
        name = type(encoding).__name__
        assert (
            in_chinese(refusal_of(caught.value))
            == f"{name} 不能直接调用：请调用 {methods}，或把它传给 attention"
        )
    assert Text("{a} user's {text") == "{a} user's {text"
    assert translated(Text("pair {pair}", pair=Text("{x}"))) == "第 {x} 对"


def _names_in(template: str) -> set[str | None]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}


def test_chinese_sentences_state_the_facts_of_english_ones_and_none_is_left_over():
    for english, chinese in TEMPLATES.items():
        assert _names_in(chinese) == _names_in(english), english
    assert len(TEMPLATES) == sum(len(module.RULES) for module in (core, hf, lab, labels, tools))
    # The sentences of commands are English.
    files = [path for path in SOURCE.rglob("*.py") if path.parent.name not in ("chinese", "cli")]
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text()))]
    constants = {node.value for node in nodes if isinstance(node, ast.Constant)}
    unused = sorted(set(TEMPLATES) - constants)
    assert not unused, "\n".join(unused)
    calls = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "Text"]
    texts = {ast.literal_eval(call.args[0]) for call in calls if isinstance(call.args[0], ast.Constant)}
    missing = sorted(text for text in texts - set(TEMPLATES) if _names_in(text))
    assert not missing, "\n".join(missing)
