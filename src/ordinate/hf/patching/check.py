"""Compares a model's outputs for small inputs before and after the patch.

New families may use masks and rotations in new ways. So `patch` runs the model on a few short rows before and
after: tokens, with padding, fed in pieces and decoded with a cache, and every other kind of input that it takes.
If the outputs differ, `patch` undoes itself.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...text import Text
from .sample_inputs import LENGTH, STEPS, on_device, other_inputs, padding, takes, text, with_text

PASS, PADDED, PIECES, DECODING = "tokens", "padding", "a prompt in pieces", "decoding"
Answer = dict[str, list[Tensor]]  # a model's outputs, by name: for each row, without padding
Answers = dict[str, Answer | str]  # by request; a str is the reason why there is no answer


class Comparison(NamedTuple):
    """The requests with the same answers, those that could not be compared and why, and the first difference."""

    asked: tuple[str, ...] = ()
    unasked: tuple[str, ...] = ()
    problem: str | None = None


def compare(model: Any, before: Answers, length_limit: float) -> Comparison:
    """Compare a patched model's answers with those from before.

    Args:
        length_limit: Past this length the patched model uses each row's own length, so differences are expected.
    """
    after, exact = answers(model), is_exact(model)
    asked, unasked = [], []
    meant = length_limit < LENGTH + STEPS  # the longest rows, which are decoded
    for request, theirs in before.items():
        ours = after[request]
        if isinstance(theirs, str):
            # If the model's own code refuses a prompt in pieces, the patch cannot change that.
            if request != PIECES:
                unasked.append(f"{request}: before the patch it answered {theirs}")
            continue
        if meant and request in (DECODING, PIECES):
            reason = "it is meant to differ past the length that the model was trained at"
            unasked.append(f"{request}: {reason}")
            continue
        if isinstance(ours, str):
            return Comparison(problem=f"{ours} ({request})")
        rows = slice(1) if meant and request == PADDED else slice(None)
        apart = difference(theirs, ours, rows, exact)
        if apart > allowed(exact):
            problem = Text(
                "answers {apart} of their size apart ({request})", apart=f"{apart:.2g}", request=request
            )
            return Comparison(problem=problem)
        asked.append(request)
    if not before:
        unasked.append("everything: it takes no kind of input that is known")
    return Comparison(tuple(asked), tuple(unasked))


def answers(model: Any) -> Answers:
    """A model's answer to each request, or why there is none.

    Afterwards the attributes of its modules, its gradients and the generators' state are as before. The model is
    called without autocast, whose rounding would hide a mistake.
    """
    device = next(model.parameters()).device
    with (
        _restored(model),
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        torch.autocast(device.type, enabled=False),
        torch.no_grad(),
    ):
        for module in model.modules():
            module.training = False
        try:
            requests = _requests(model)
        except Exception as problem:  # a model's config may lack sizes that others have
            return {PASS: _one_line(problem)}
        return {name: _answer(model, request) for name, request in requests.items()}


def _answer(model: Any, request: Callable[[Any], Answer]) -> Answer | str:
    torch.manual_seed(0)
    try:
        return request(model) or "no numbers"
    except Exception as problem:  # a model may need other inputs than these
        return _one_line(problem)


def steady(first: Answers, second: Answers) -> Answers:
    """The answers that are the same in both runs; a model's code may read uninitialized memory."""

    def differs(answer: Answer | str, again: Answer | str) -> bool:
        if isinstance(answer, str) or isinstance(again, str):
            return False
        return difference(answer, again, slice(None), exact=True) > 0

    return {
        request: "something else each time" if differs(answer, second[request]) else answer
        for request, answer in first.items()
    }


def _one_line(problem: Exception) -> str:
    return f"{type(problem).__name__}: {' '.join(str(problem).split())[:200]}"


@contextlib.contextmanager
def _restored(model: Any) -> Iterator[None]:
    """Restore all attributes of modules at the end: modes, hooks, recurrent states, dynamic frequencies."""
    held = [vars(module) for module in model.modules()]
    held += [x for attributes in held for x in attributes.values() if isinstance(x, dict)]
    copies = [dict(attributes) for attributes in held]
    # Falcon's eager code adds ALiBi twice, its sdpa code once, as it was trained.
    falcons = [m.config for m in model.modules() if type(m).__name__ == "FalconModel"]
    doubled = [x for x in falcons if x.alibi and x._attn_implementation == "eager"]
    for config in doubled:
        config._attn_implementation_internal = "sdpa"
    try:
        yield
    finally:
        for config in doubled:
            config._attn_implementation_internal = "eager"
        for attributes, before in zip(held, copies, strict=True):
            attributes.clear()
            attributes.update(before)


def _requests(model: Any) -> dict[str, Callable[[Any], Answer]]:
    tokens, requests = text(model), {}
    if "input_ids" in tokens:
        mask = padding(model, tokens["input_ids"])
        requests[PASS] = lambda model: _pass(model, tokens)
        if mask:
            requests[PADDED] = lambda model: _pass(model, tokens | mask)
        if model.can_generate():
            requests[DECODING] = lambda model: _generate(model, tokens | mask)
            requests[PIECES] = lambda model: _generate(model, tokens | mask, pieces=5)
        elif mask and "past_key_values" in takes(model):
            requests[DECODING] = lambda model: _decode(model, tokens | mask)
    for argument, forms in other_inputs(model).items():
        requests[argument] = functools.partial(_first_accepted, forms=forms)
    return requests


def _pass(model: Any, given: dict[str, Any]) -> Answer:
    return _rows(model(**on_device(model, given)), given.get("attention_mask"))


def _first_accepted(model: Any, forms: list[dict[str, Any]]) -> Answer:
    """The answer to the first form of an input that a model accepts."""
    for form in forms:
        with contextlib.suppress(Exception):
            return _pass(model, with_text(model, form))
    return _pass(model, with_text(model, forms[0]))  # raises for the likeliest form


def _generate(model: Any, given: dict[str, Any], pieces: int | None = None) -> Answer:
    """The logits of decoded tokens. The tokens are given, because rounding may decide near ties either way."""
    from transformers import LogitsProcessorList

    given = on_device(model, {name: x for name, x in given.items() if name != "decoder_input_ids"})

    def force(ids: Tensor, scores: Tensor) -> Tensor:
        chosen = given["input_ids"][:, ids.shape[1] % LENGTH, None]
        return torch.full_like(scores, -torch.inf).scatter(1, chosen, 0.0)

    settings = model.generation_config
    found = model.generate(
        **given, max_new_tokens=STEPS, do_sample=False, num_beams=1, use_cache=True, disable_compile=True,
        output_logits=True, return_dict_in_generate=True, prefill_chunk_size=pieces,
        pad_token_id=0 if settings.pad_token_id is None else settings.pad_token_id,
        logits_processor=LogitsProcessorList([force]),
    )  # fmt: skip
    return {"logits": [*torch.stack(found.logits, dim=1).cpu()]}


def _decode(model: Any, given: dict[str, Any]) -> Answer:
    """The answers of a model without a head to tokens that come one at a time."""
    given = on_device(model, given)
    out, following = model(**given, use_cache=True), given["input_ids"]
    name = "decoder_input_ids" if "decoder_input_ids" in given else "input_ids"
    found: Answer = {}
    for step in range(STEPS):
        given[name] = following[:, step : step + 1]
        if name == "input_ids":
            mask = given["attention_mask"]
            given["attention_mask"] = torch.cat((mask, mask.new_ones(len(mask), 1)), dim=1)
        out = model(**given, past_key_values=out.past_key_values, use_cache=True)
        found |= {f"{key} {step}": rows for key, rows in _rows(out, None).items()}
    return found


def _rows(out: Any, mask: Tensor | None) -> Answer:
    """All numbers that a model returned, row by row, without those at padding."""
    found: Answer = {}
    for name, value in out.items():
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.dim() == 0:
            continue
        rows = [*value.cpu()]  # logits of images are large, and the weights may fill the GPU
        if mask is not None and value.shape[:2] == mask.shape:
            rows = [row[real.cpu()] for row, real in zip(rows, mask.bool(), strict=True)]
        found[name] = rows
    return found


def difference(before: Answer, after: Answer, rows: slice, exact: bool) -> float:
    """The largest relative difference of two answers; infinite if NaN or a shape differs.

    Args:
        exact: Whether every token counts. If not, the difference of a row is the median over its tokens, because in
            low precision a token may go to another expert.
    """
    apart = 0.0
    if _shapes(before) != _shapes(after):
        return float("inf")
    for name, theirs in before.items():
        for a, b in zip(theirs[rows], after[name][rows], strict=True):
            a, b = a.float(), b.float()
            if not torch.equal(a.isnan(), b.isnan()):
                return float("inf")
            width = a.shape[-1] if a.dim() else 1
            a, b = (x.nan_to_num().reshape(-1, width) for x in (a, b))
            size, axis = (a.norm(), None) if exact else (a.norm(dim=-1), -1)
            apart = max(apart, float(((b - a).norm(dim=axis) / size.clamp(min=1e-30)).median()))
    return apart


def _shapes(answer: Answer) -> dict[str, list[torch.Size]]:
    return {name: [row.shape for row in rows] for name, rows in answer.items()}


def is_exact(model: Any) -> bool:
    """Whether all numbers of a model have at least 24 bits."""
    held = [tensor for tensor in (*model.parameters(), *model.buffers()) if tensor.is_floating_point()]
    return all(tensor.dtype in (torch.float32, torch.float64) for tensor in held)


def allowed(exact: bool) -> float:
    """The largest difference that rounding makes in a deep model; mistakes make larger ones."""
    return 1e-3 if exact else 0.1
