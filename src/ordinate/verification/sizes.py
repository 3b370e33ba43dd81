"""The sizes an encoding accepts: those it declares, else found by trying."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..encoding import PositionEncoding
from ..parts import hooks_of
from ..setting import Setting
from .calls import Call

_COMMON = (8, 4, 2, 1, 16, 12, 32, 64, 128, 6, 3, 24, 48, 96, 256, 512, 768, 1024)

_WIDEST = 2**14  # channels of all heads, or of an embedding


def found(encoding: PositionEncoding, **given: int | None) -> tuple[Setting, bool]:
    """The setting of a verification, and whether the encoding answers at its sizes.

    Args:
        given: The arguments of `Setting.infer`. What is given stays; the rest is what the encoding says
            of itself or, where it does not answer then, the first that it does answer at: numbers that it
            holds come first.
    """
    setting = Setting.infer(encoding, **given)  # type: ignore[arg-type]
    if _answers(encoding, setting):
        return setting, True
    hooks = hooks_of(encoding)
    sizes = ["num_heads", "head_dim"] if hooks & {"rotate", "bias"} else []
    sizes += ["d_model"] if "embed" in hooks or encoding.reads_input else []
    open_sizes = [name for name in sizes if given.get(name) is None]
    numbers = list(dict.fromkeys([*_numbers_in(encoding), *_COMMON]))
    for several in range(1, len(open_sizes) + 1):
        # Three at once are many: only numbers that it holds itself.
        tried = numbers if several < 3 else numbers[: len(numbers) - len(_COMMON)]
        for names in itertools.combinations(open_sizes, several):
            for values in itertools.product(tried, repeat=several):
                chosen = {**given, **dict(zip(names, values, strict=True))}
                if (chosen.get("num_heads") or 1) * (chosen.get("head_dim") or 1) > _WIDEST:
                    continue
                try:
                    some = Setting.infer(encoding, **chosen)  # type: ignore[arg-type]
                except MemoryError:  # it holds a number that is no size
                    continue
                if _answers(encoding, some):
                    return some, True
    return setting, False


def _answers(encoding: PositionEncoding, setting: Setting) -> bool:
    """Whether every hook takes three tokens of these sizes and returns what fits them."""
    if max(setting.num_heads * setting.head_dim, setting.d_model) > _WIDEST:
        return False
    places = torch.arange(3)[None] % setting.within(3)
    x = torch.ones(1, 3, setting.d_model, dtype=torch.float64)
    q, k, v = torch.ones(3, 1, setting.num_heads, 3, setting.head_dim, dtype=torch.float64)
    try:
        Call(x, q, k, v, places, places).answers(copy.deepcopy(encoding), setting)
    except Exception:  # the properties report why it does not answer
        return False
    return True


def _numbers_in(encoding: PositionEncoding) -> Iterator[int]:
    """Sizes that an encoding may have been made with: of its tensors and lists, its ints, and twice each."""
    for module in encoding.modules():
        held: list[Any] = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        held += vars(module).values()
        for value in held:
            sizes = list(value.shape) if isinstance(value, Tensor) else []
            if isinstance(value, list | tuple):
                sizes = [len(value)]
            elif isinstance(value, int) and not isinstance(value, bool):
                sizes = [value]
            yield from (times * size for size in sizes for times in (1, 2) if 0 < size <= _WIDEST)
