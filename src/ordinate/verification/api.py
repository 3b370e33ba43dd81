"""`verify`: measure an encoding's properties and compare them with its claims."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterable

import torch

from ..checks import check_instance, nearest, one_of, refused, short
from ..encoding import PositionEncoding
from ..memory import is_out_of_memory
from ..parts import name_of
from ..setting import Setting
from ..text import Text
from . import process
from .observe import cast
from .properties import PROPERTIES, Property, claims_of
from .report import NotApplicable, Status, VerifyReport, VerifyResult
from .sizes import found as found_sizes


def verify(
    encoding: str | PositionEncoding,
    *,
    properties: str | Iterable[str] | None = None,
    name: str | None = None,
    d_model: int | None = None,
    num_heads: int | None = None,
    head_dim: int | None = None,
    train_length: int | None = None,
    seed: int = 0,
) -> VerifyReport:
    """Measure what an encoding claims, by running it: in float64 on the CPU, on a copy.

    Works for any `PositionEncoding`. What a class claims is its ``claims``; some properties every
    encoding must have. A property that is not claimed is measured all the same and reported as such.
    A hook that raises is a failure with its message, unless it ran out of memory. Properties are measured on
    samples; the report's ``not_tried`` lists what no sample reaches. Parameters are taken as they are, except
    tables that are all zero, which are filled with noise.

    Args:
        encoding: An encoding, or a spec as in `ordinate.create`; a bare name stands for the example of its entry.
        properties: Names of properties, or unambiguous beginnings; default all.
        name: What the report calls the encoding. Default: the spec, or its class.
        d_model, num_heads, head_dim: The model around it. Default: what the encoding says of itself, or
            else sizes at which it answers.
        train_length: The length it is taken to be trained at. Default: the encoding's own
            ``max_positions`` or its scaling's ``original_max_positions``, else 4096.

    Raises:
        ValueError: An unknown property, asked for or claimed, or none asked for.
        TypeError: No encoding, or one that cannot be copied.
        MemoryError: The sizes are too large to measure on this machine.

    Example:
        >>> report = ordinate.verify(ordinate.ALiBi(8), properties=["slopes", "decay with distance"])
        >>> print(report["slopes"].figure)
        8 straight lines, 0.00391 to 0.5 per position
    """
    if isinstance(encoding, str):
        around = Setting.infer(
            PositionEncoding(),
            d_model=d_model,
            num_heads=num_heads,
            head_dim=head_dim,
            train_length=train_length,
        )
        name, encoding = name or encoding, around.encoding(encoding)
    check_instance("encoding", encoding, PositionEncoding, "must be a PositionEncoding or a spec")
    chosen = select(properties)
    claims = claims_of(encoding)
    for claim in sorted(claims):
        if claim not in PROPERTIES:
            rule, hint = "must be properties, got {claim!r}{hint}", nearest(claim, PROPERTIES)
            owner = Text("claims of {encoding}", encoding=type(encoding).__name__)
            raise refused(owner, rule, claim=claim, hint=hint)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        subject = _in_float64(encoding)
        with torch.no_grad():
            with process.restored():
                setting, answers = found_sizes(
                    subject, d_model=d_model, num_heads=num_heads, head_dim=head_dim,
                    train_length=train_length, seed=seed,
                )  # fmt: skip
            results = tuple(_judge(item, subject, setting, claims) for item in chosen)
    return VerifyReport(name or name_of(encoding), setting, results, answers)


def select(properties: str | Iterable[str] | None) -> list[Property]:
    """Properties by name or by an unambiguous beginning of one; hyphens stand for spaces."""
    if properties is None:
        return list(PROPERTIES.values())
    names = [properties] if isinstance(properties, str) else list(properties)
    if not names:  # nothing would be measured, and nothing would fail
        raise refused("properties", "must name at least one property, or be None for all, got none")
    chosen = []
    for name in names:
        wanted = name.strip().lower().replace("-", " ").replace("_", " ").replace("≡", "equals")
        found = [item for item in PROPERTIES.values() if item.name == wanted]
        found = found or [
            item for item in PROPERTIES.values() if wanted and item.name.startswith(wanted)
        ]
        if len(found) != 1:
            several = (
                Text("; it could be {names}", names=one_of([item.name for item in found]))
                if found
                else ""
            )
            raise refused(
                "", "unknown property {name!r}{hint}", name=name, hint=several or _suggest(wanted)
            )
        chosen.append(found[0])
    return [item for item in PROPERTIES.values() if item in chosen]


def _suggest(wanted: str) -> Text:
    """The names that resemble a misspelt name, or a misspelt first word of one."""
    first_words = {name.split()[0]: name for name in PROPERTIES}
    close = difflib.get_close_matches(wanted, first_words, n=2)
    if " " in wanted or not close:
        return nearest(wanted, PROPERTIES)
    return Text("; did you mean {names}?", names=one_of([first_words[word] for word in close]))


def _judge(
    item: Property, encoding: PositionEncoding, setting: Setting, claims: frozenset[str]
) -> VerifyResult:
    try:
        # Each measurement has a fresh copy: a first call may change the encoding.
        with process.restored():
            measured = item.measure(copy.deepcopy(encoding), setting)
    except NotApplicable as reason:
        status = Status.FAILS if item.name in claims else Status.NOT_APPLICABLE
        return VerifyResult(item.name, status, None, None, "", str(reason))
    except Exception as error:
        if is_out_of_memory(error):  # that is the machine's limit, not a property of the encoding
            rule = "must be measured in the memory there is, got {setting}, which needs more"
            raise refused(item.name, rule, error=MemoryError, setting=setting) from None
        text = " ".join(str(error).split()) or "no message"
        message = f"{type(error).__name__}: {text[:300]}"
        return VerifyResult(item.name, Status.FAILS, None, None, "", message)
    if item.required or item.name in claims:
        status = Status.HOLDS if measured.holds else Status.FAILS
    else:
        status = Status.NOT_CLAIMED
    return VerifyResult(
        item.name, status, measured.holds, measured.value, measured.unit, measured.sentence
    )


def _in_float64(encoding: PositionEncoding) -> PositionEncoding:
    try:
        subject = copy.deepcopy(encoding)
    except Exception as error:
        rule = "must be one that copy.deepcopy can copy, for copies are measured"
        got = f"{type(encoding).__name__} ({short(str(error))})"
        raise refused("encoding", rule, got, error=TypeError) from error
    cast(subject.cpu(), torch.float64).eval()
    with torch.no_grad():
        for parameter in subject.parameters():
            if not bool(parameter.any()):
                parameter.normal_(std=0.02)
    return subject
