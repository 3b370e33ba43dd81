"""Small inputs of every kind that a model takes, by the arguments of its forward and the sizes in its config."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

ROWS, LENGTH, PADDING, STEPS = 2, 12, 4, 3


class Kind(NamedTuple):
    """A kind of input besides tokens.

    Attributes:
        argument: What a model's forward calls it.
        placeholders: How configs name the token whose places it takes in the text; a model may have none.
        features: The method that makes of it what takes those places.
    """

    name: str
    argument: str
    placeholders: tuple[str, ...]
    features: str


KINDS = (
    Kind("pixels", "pixel_values", ("image_token_id", "image_token_index"), "get_image_features"),
    Kind("video", "pixel_values_videos", ("video_token_id", "video_token_index"), "get_video_features"),
    Kind("sound", "input_features", ("audio_token_id", "audio_token_index"), "get_audio_features"),
    Kind("sound", "input_values", ("audio_token_id", "audio_token_index"), "get_audio_features"),
    Kind("sound", "audio_values", ("audio_token_id", "audio_token_index"), "get_audio_features"),
)


def takes(model: Any) -> set[str]:
    """The arguments of a model's forward."""
    return set(inspect.signature(type(model).forward).parameters)


def tokens(model: Any, length: int = LENGTH) -> Tensor:
    """Rows of tokens that are words, as far as can be told: no marks of sentences, no placeholders."""
    vocabulary = int(getattr(model.config.get_text_config(), "vocab_size", 0) or 0)
    special = set(_numbers(model.config, "_token_id", "_token_index"))
    words = [token for token in range(min(vocabulary, 1000)) if token not in special]
    words = words[10:] if len(words) > 20 else words
    generator = torch.Generator().manual_seed(0)
    return torch.tensor(words)[torch.randint(len(words), (ROWS, length), generator=generator)]


def text(model: Any) -> dict[str, Tensor]:
    """Tokens of as many kinds as the model takes; empty if it takes none."""
    names, given = takes(model), {}
    if "input_ids" in names:
        given["input_ids"] = tokens(model)
    if "decoder_input_ids" in names and model.config.is_encoder_decoder:
        given["decoder_input_ids"] = tokens(model).flip(1)
    return given


def padding(model: Any, ids: Tensor) -> dict[str, Tensor]:
    """An ``attention_mask`` whose last row starts with padding; nothing if the model takes none."""
    if "attention_mask" not in takes(model):
        return {}
    mask = torch.ones_like(ids)
    mask[-1, :PADDING] = 0
    return {"attention_mask": mask}


def other_inputs(model: Any) -> dict[str, list[dict[str, Any]]]:
    """For each other kind of input that the model takes, the forms that it may take it in."""
    names = takes(model)
    return {kind.argument: [*_forms(model, kind)] for kind in KINDS if kind.argument in names}


def _forms(model: Any, kind: Kind) -> Iterator[dict[str, Any]]:
    config, names = model.config, takes(model)
    parts = _parts(config)
    generator = torch.Generator().manual_seed(0)

    def some(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator) * 2 - 1

    if kind.name == "sound":
        frames = 2 * (_first(parts, "max_source_positions") or 32)
        mels = _first(parts, "num_mel_bins", "feature_size", "input_feat_size", "input_dim") or 80
        shapes = [(ROWS, mels, frames), (ROWS, frames, mels)]
        for shape in shapes if kind.argument == "input_features" else [(ROWS, 4000), (ROWS, 1, 4000)]:
            masks = {
                name: torch.ones(ROWS, max(shape[1:]), dtype=torch.long)
                for name in ("input_features_mask", "feature_attention_mask", "padding_mask")
                if name in names
            }
            yield {kind.argument: some(*shape)} | masks
            if masks:
                yield {kind.argument: some(*shape)}
        return
    channels = _first(parts, "num_channels", "in_channels", "in_chans") or 3
    size = _first(parts, "image_size") or 32
    grid = "video_grid_thw" if kind.name == "video" else "image_grid_thw"
    if grid in names:
        patch, frames = _first(parts, "patch_size") or 14, _first(parts, "temporal_patch_size") or 1
        side = 2 * (_first(parts, "spatial_merge_size", "merge_size") or 1)
        grids = torch.tensor([[1, side, side]] * ROWS)
        yield {kind.argument: some(ROWS * side * side, channels * frames * patch**2), grid: grids}
        yield {kind.argument: some(ROWS * side * side, channels, patch, patch), grid: grids}
        return
    sizes = {"image_sizes": torch.tensor([[size, size]] * ROWS)} if "image_sizes" in names else {}
    between = [(2,)] if kind.name == "video" else [(), (1,), (2,), (3,), (5,)]
    for images, more in itertools.product(between, [sizes, {}] if sizes else [{}]):
        yield {kind.argument: some(ROWS, *images, channels, size, size)} | more


def beside_text(model: Any, form: dict[str, Any]) -> dict[str, Any]:
    """A form of an input with the text around it, which has its placeholders."""
    kind = next(kind for kind in KINDS if kind.argument in form)
    given = text(model) | form
    token = next((value for value in _numbers(model.config, *kind.placeholders)), None)
    if "input_ids" not in given:
        return given
    mask = torch.zeros_like(given["input_ids"], dtype=torch.bool)
    if token is not None and hasattr(model, kind.features):
        wanted = set(inspect.signature(getattr(model, kind.features)).parameters)
        device = next(model.parameters()).device
        if kind.argument not in wanted:  # a decorator hides what it takes
            wanted = set(form)
        found = getattr(model, kind.features)(
            **{name: on(value, device, model) for name, value in form.items() if name in wanted}
        )
        places = torch.full((ROWS, _rows(found) // ROWS), token)
        left, right = given["input_ids"].split(LENGTH // 2, dim=1)
        given["input_ids"] = torch.cat((left, places, right), dim=1)
        mask = given["input_ids"] == token
    for name in {"token_type_ids", "mm_token_type_ids"} & takes(model):
        given[name] = mask.long() * (2 if kind.name == "video" else 1)
    return given | padding(model, given["input_ids"])


def on(value: Any, device: torch.device, model: Any) -> Any:
    """A tensor where a model is; numbers that are no tokens in its dtype."""
    if not isinstance(value, Tensor):
        return value
    return value.to(device, model.dtype if value.is_floating_point() else None)


def _rows(features: Any) -> int:
    """How many vectors there are in what a model makes of images or sound."""
    features = getattr(features, "pooler_output", features)
    if isinstance(features, Tensor):
        return features.numel() // features.shape[-1]
    return sum(_rows(part) for part in features if part is not None)


def _parts(config: Any) -> list[Any]:
    """The configs within a config, the text's last."""
    text_config = config.get_text_config()
    within = [getattr(config, name, None) for name in getattr(type(config), "sub_configs", {})]
    found = [part for part in within if part is not None and part is not text_config]
    return [*(deeper for part in found for deeper in _parts(part)), config]


def _first(parts: list[Any], *names: str) -> int | None:
    for part in parts:
        for name in names:
            value = getattr(part, name, None)
            value = value[-1] if isinstance(value, (list, tuple)) and value else value
            if type(value) is int and value > 0:
                return value
    return None


def _numbers(config: Any, *endings: str) -> Iterator[int]:
    for part in [*reversed(_parts(config)), config.get_text_config()]:
        for name, value in vars(part).items():
            if name.endswith(endings):
                yield from (x for x in (value if isinstance(value, list) else [value]) if type(x) is int)
