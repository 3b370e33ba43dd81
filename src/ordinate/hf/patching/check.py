"""Whether a patched model answers as it did: what it makes of small inputs, before and after.

Families that nobody tried may use masks and rotations in ways that no other does. So `patch` has a model answer
a few short rows before and after: tokens, padded ones, ones fed in pieces and decoded with a cache, and every
other kind of input that it takes. `patch` undoes itself where the answers differ.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from . import inputs as patch_inputs
from .inputs import LENGTH, STEPS, on

PASS, PADDED, PIECES, DECODING = "tokens", "padding", "a prompt in pieces", "decoding"
LONGEST = LENGTH + STEPS  # of the rows that are decoded
Answer = dict[str, list[Tensor]]  # what a model returned, by name: for each row, where it is no padding


def answers(model: Any) -> dict[str, Answer | str]:
    """What a model answers to each request, or why it does not.

    The model is left as it was: what its modules hold, its gradients, and the generators' state. It is
    asked without autocast, whose rounding would hide a mistake.
    """
    device = next(model.parameters()).device
    with (
        _as_it_was(model),
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        torch.autocast(device.type, enabled=False),
        torch.no_grad(),
    ):
        for module in model.modules():
            module.training = False
        try:
            requests = _requests(model)
        except Exception as problem:  # a model may have no sizes where others have theirs
            return {PASS: _said(problem)}
        return {name: _answer(model, request) for name, request in requests.items()}


def _answer(model: Any, request: Callable[[Any], Answer]) -> Answer | str:
    torch.manual_seed(0)
    try:
        return request(model) or "no numbers"
    except Exception as problem:  # a model may want other inputs than these
        return _said(problem)


def steady(first: dict[str, Answer | str], second: dict[str, Answer | str]) -> dict[str, Answer | str]:
    """Answers without those that a model does not give twice; its code may read memory that nobody wrote."""
    found = dict(first)
    for request, answer in first.items():
        again = second[request]
        if isinstance(answer, str) or isinstance(again, str):
            continue
        if difference(answer, again, slice(None), exact=True) > 0:
            found[request] = "something else each time"
    return found


def _said(problem: Exception) -> str:
    return f"{type(problem).__name__}: {' '.join(str(problem).split())[:200]}"


@contextlib.contextmanager
def _as_it_was(model: Any) -> Iterator[None]:
    """Modules hold their mode, hooks, states of recurrences, positions of images and frequencies that grew."""
    held = [(module, dict(vars(module))) for module in model.modules()]
    tables = [
        (table, dict(table))
        for _, attributes in held
        for table in attributes.values()
        if isinstance(table, dict)
    ]
    # Falcon's eager code adds ALiBi twice, its sdpa code once, as it was trained.
    doubled = [m.config for m, _ in held if type(m).__name__ == "FalconModel" and m.config.alibi]
    doubled = [config for config in doubled if config._attn_implementation == "eager"]
    for config in doubled:
        config._attn_implementation_internal = "sdpa"
    try:
        yield
    finally:
        for config in doubled:
            config._attn_implementation_internal = "eager"
        for table, before in [*((vars(module), attributes) for module, attributes in held), *tables]:
            table.clear()
            table.update(before)


def _requests(model: Any) -> dict[str, Callable[[Any], Answer]]:
    text, requests = patch_inputs.text(model), {}
    if "input_ids" in text:
        mask = patch_inputs.padding(model, text["input_ids"])
        requests[PASS] = lambda model: _pass(model, text)
        if mask:
            requests[PADDED] = lambda model: _pass(model, text | mask)
        if model.can_generate():
            requests[DECODING] = lambda model: _generate(model, text | mask)
            requests[PIECES] = lambda model: _generate(model, text | mask, pieces=5)
        elif mask and "past_key_values" in patch_inputs.takes(model):
            requests[DECODING] = lambda model: _decode(model, text | mask)
    for argument, forms in patch_inputs.other_inputs(model).items():
        requests[argument] = functools.partial(_first_that_it_takes, forms=forms)
    return requests


def _given(model: Any, given: dict[str, Any]) -> dict[str, Any]:
    device = next(model.parameters()).device
    return {name: on(value, device, model) for name, value in given.items()}


def _pass(model: Any, given: dict[str, Any], **more: Any) -> Answer:
    return _rows(model(**_given(model, given), **more), given.get("attention_mask"))


def _first_that_it_takes(model: Any, forms: list[dict[str, Any]]) -> Answer:
    for form in forms:
        with contextlib.suppress(Exception):
            return _pass(model, patch_inputs.beside_text(model, form))
    return _pass(model, patch_inputs.beside_text(model, forms[0]))  # what is wrong with the likeliest


def _generate(model: Any, given: dict[str, Any], pieces: int | None = None) -> Answer:
    """The logits of decoded tokens. Which ones come next is not left to the model: near ties may fall."""
    from transformers import LogitsProcessorList

    given = _given(model, {name: x for name, x in given.items() if name != "decoder_input_ids"})
    following = given["input_ids"]

    def force(ids: Tensor, scores: Tensor) -> Tensor:
        chosen = following[:, ids.shape[1] % LENGTH, None]
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
    """What a model without a head makes of tokens that come one at a time."""
    given = _given(model, given)
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
    """All numbers a model returned, row by row, without those at padding."""
    found: Answer = {}
    for name, value in out.items():
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.dim() == 0:
            continue
        rows = [*value.cpu()]  # logits of images are long, and a GPU may be full of weights
        if mask is not None and value.shape[:2] == mask.shape:
            rows = [row[real.cpu()] for row, real in zip(rows, mask.bool(), strict=True)]
        found[name] = rows
    return found


def difference(before: Answer, after: Answer, rows: slice, exact: bool) -> float:
    """How far two answers are apart, in parts of their size; NaN or a shape that only one has is infinite.

    Args:
        exact: Whether every token counts. In low precision a token may go to another expert, and what is said
            of a row is what is so for half of its tokens.
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
    """More than any rounding makes of a deep model, less than any mistake does."""
    return 1e-3 if exact else 0.1
