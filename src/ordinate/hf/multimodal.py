"""Positions with three axes for text, images and video in one sequence (M-RoPE)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ..checks import check_choice, check_number, check_positive_int, check_rank, refused, short
from ..positions import grid as grid_of
from ..text import Text

TEXT, IMAGE, VIDEO = 0, 1, 2
_GRIDS = {IMAGE: "image_grids", VIDEO: "video_grids"}

Grid = Sequence[int]


class MRopePositions(NamedTuple):
    """``positions`` are ``[3, batch, seq]``: time, height, width. ``deltas`` are ``[batch]``: the position of a token
    decoded later is its index plus its row's delta, on all axes."""

    positions: Int[Tensor, "3 batch seq"]
    deltas: Int[Tensor, " batch"]


def mrope_positions(
    token_types: Int[Tensor, "batch seq"],
    image_grids: Sequence[Grid] = (),
    video_grids: Sequence[Grid] = (),
    *,
    style: Literal["qwen2_vl", "qwen2_5_vl", "qwen3_vl"] = "qwen2_vl",
    merge_size: int = 2,
    seconds_per_grid: Sequence[float] | None = None,
    tokens_per_second: float = 1.0,
    is_token: Bool[Tensor, "batch seq"] | None = None,
) -> MRopePositions:
    """The positions of a sequence of text, images and video.

    Text advances all axes by one. An image or a video starts after the text before it; its tokens have positions
    (time, row, column) relative to that start, and the next text starts one after the larger of its
    height and width, not after its token count (Wang et al. 2024, arXiv:2409.12191, 2.1).

    Args:
        token_types: 0 for text, 1 for image, 2 for video tokens.
        image_grids, video_grids: (time, height, width) of each in patches before merging, in the order they
            appear, over the whole batch.
        style: ``"qwen2_vl"`` counts the frames of a video; ``"qwen2_5_vl"`` spaces them by their time in
            seconds; ``"qwen3_vl"`` has text with a time stamp between frames, so that each frame is a grid.
        merge_size: Patches along a side that become one token (``vision_config.spatial_merge_size``).
        seconds_per_grid: For each video, the duration of a frame of its grid; with ``"qwen2_5_vl"``.
        tokens_per_second: ``vision_config.tokens_per_second``; with ``"qwen2_5_vl"``.
        is_token: False at padding, which has position 0 and is not counted.

    Raises:
        ValueError: Grids and tokens do not match.

    Example:
        >>> types = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 0, 0]])
        >>> mrope_positions(types, [(1, 4, 6)]).positions[:, 0].tolist()
        [[0, 1, 2, 2, 2, 2, 2, 2, 5, 6], [0, 1, 2, 2, 2, 3, 3, 3, 5, 6], [0, 1, 2, 3, 4, 2, 3, 4, 5, 6]]
    """
    check_rank("token_types", token_types, "batch, seq")
    check_choice("style", style, ("qwen2_vl", "qwen2_5_vl", "qwen3_vl"))
    merge_size = check_positive_int("merge_size", merge_size)
    tokens_per_second = check_number("tokens_per_second", tokens_per_second, above=0)
    if is_token is None:
        is_token = torch.ones_like(token_types, dtype=torch.bool)
    elif is_token.dtype != torch.bool or is_token.shape != token_types.shape:
        raise refused(
            "is_token",
            "must be bool with the shape of token_types {shape}",
            f"{is_token.dtype} {list(is_token.shape)}",
            shape=list(token_types.shape),
        )
    if style != "qwen2_5_vl" and (seconds_per_grid is not None or tokens_per_second != 1.0):
        raise refused(
            "", "seconds_per_grid and tokens_per_second must be left out with style {style}", style=repr(style)
        )  # fmt: skip
    images = _checked("image_grids", image_grids, merge_size)
    videos = _checked("video_grids", video_grids, merge_size)
    steps = _time_steps(videos, seconds_per_grid, tokens_per_second)
    if style == "qwen3_vl":  # each frame is a separate grid
        videos = [(1, height, width) for time, height, width in videos for _ in range(time)]
        steps = [1.0] * len(videos)
    grids = {IMAGE: iter([(size, 1.0) for size in images]), VIDEO: iter(zip(videos, steps, strict=True))}
    return _positions(token_types, is_token, grids)


def _positions(
    token_types: Tensor, is_token: Tensor, grids: dict[int, Iterator[tuple[tuple[int, int, int], float]]]
) -> MRopePositions:
    """Positions row by row; each run of image or video tokens takes the next grid and its time step."""
    positions = torch.zeros(3, *token_types.shape, dtype=torch.int64)
    deltas = []
    for row, (types, mask) in enumerate(zip(token_types.tolist(), is_token.tolist(), strict=True)):
        tokens = [kind for kind, inside in zip(types, mask, strict=True) if inside]
        placed = _row(tokens, grids)
        positions[:, row, torch.tensor(mask)] = placed
        deltas.append(int(placed.max()) + 1 - len(tokens) if tokens else 0)
    for kind, name in _GRIDS.items():
        if next(grids[kind], None) is not None:
            raise refused(name, _ONE_GRID, Text("more grids than runs"))
    device = token_types.device
    return MRopePositions(positions.to(device), torch.tensor(deltas, dtype=torch.int64, device=device))


_ONE_GRID = "must have one grid for each run of its tokens"


def _row(types: list[int], grids: dict[int, Iterator[tuple[tuple[int, int, int], float]]]) -> Tensor:
    """The three positions of each token of one row."""
    current, parts = 0, [torch.zeros(3, 0, dtype=torch.int64)]
    for kind, run in groupby(types):
        left = len(list(run))
        if kind == TEXT:
            parts.append(torch.arange(current, current + left).expand(3, -1))
            current += left
            continue
        if kind not in grids:
            raise refused("token_types", "must be 0 for text, 1 for image and 2 for video", kind)
        size, step = next(grids[kind], (None, 0.0))
        if size is None:
            raise refused(_GRIDS[kind], _ONE_GRID, Text("too few"))
        time, height, width = size
        if time * height * width != left:
            got = Text(
                "a grid of {patches} merged patches for {tokens} tokens",
                patches=time * height * width,
                tokens=left,
            )
            raise refused(_GRIDS[kind], "must match token_types", got)
        places = grid_of(time, height, width)[:, 0]
        places[0] = (places[0] * step).long()
        parts.append(places + current)
        current += max(height, width)
    return torch.cat(parts, dim=1)


def _checked(name: str, grids: Sequence[Grid], merge: int) -> list[tuple[int, int, int]]:
    """Grids in merged patches."""
    merged = []
    for index, size in enumerate(grids.tolist() if isinstance(grids, Tensor) else grids):
        if len(size) != 3:
            raise refused(f"{name}[{index}]", "must be (time, height, width)", short(tuple(size)))
        time, height, width = (check_positive_int(f"{name}[{index}]", number) for number in size)
        if height % merge or width % merge:
            raise refused(
                f"{name}[{index}]",
                "must have a height and width that merge_size {merge_size} divides",
                tuple(size),
                merge_size=merge,
            )
        merged.append((time, height // merge, width // merge))
    return merged


def _time_steps(
    videos: list[tuple[int, int, int]], seconds: Sequence[float] | None, per_second: float
) -> list[float]:
    """For each video, the distance between two frames on the time axis."""
    if seconds is None:
        return [per_second] * len(videos)
    if len(seconds) != len(videos):
        got = Text("{count} for {videos}", count=len(seconds), videos=len(videos))
        raise refused("seconds_per_grid", "must have one number for each video", got)
    return [
        per_second * check_number(f"seconds_per_grid[{index}]", number, above=0)
        for index, number in enumerate(seconds)
    ]
