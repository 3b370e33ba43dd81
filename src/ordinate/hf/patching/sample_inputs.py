"""Small inputs of every kind that a model takes, from the arguments of its forward and the sizes in its config."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

ROWS, LENGTH, PADDING, STEPS = 2, 12, 4, 3


class Kind(NamedTuple):
    """A kind of input other than tokens.

    Attributes:
        argument: Its name among the arguments of a model's forward.
        placeholders: Keys of configs that name its token in the text; a model may have none.
        features: The method that computes the vectors for those tokens.
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
    """Rows of tokens without the special tokens that the config names: no end of text, no placeholders."""
    vocabulary = int(getattr(model.config.get_text_config(), "vocab_size", 0) or 0)
    special = set(_numbers(model.config, "_token_id", "_token_index"))
    words = [token for token in range(min(vocabulary, 1000)) if token not in special]
    words = words[10:] if len(words) > 20 else words
    generator = torch.Generator().manual_seed(0)
    return torch.tensor(words)[torch.randint(len(words), (ROWS, length), generator=generator)]


def text(model: Any) -> dict[str, Tensor]:
    """Token inputs for encoder and decoder, as far as the model takes them; empty if it takes none."""
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
    """For each other kind of input that the model takes, the forms to try."""
    names = takes(model)
    return {kind.argument: [*_forms(model, kind)] for kind in KINDS if kind.argument in names}


def _forms(model: Any, kind: Kind) -> Iterator[dict[str, Any]]:
    """The forms of an input among models with the same arguments, the likeliest first."""
    names, parts = takes(model), _parts(model.config)
    generator = torch.Generator().manual_seed(0)

    def some(*shape: int) -> dict[str, Tensor]:
        return {kind.argument: torch.rand(shape, generator=generator) * 2 - 1}

    if kind.name == "sound":
        frames = 2 * _first(parts, 32, "max_source_positions")
        mels = _first(parts, 80, "num_mel_bins", "feature_size", "input_feat_size", "input_dim")
        spectrum, wave = [(mels, frames), (frames, mels)], [(4000,), (1, 4000)]
        for shape in spectrum if kind.argument == "input_features" else wave:
            masked = {"input_features_mask", "feature_attention_mask", "padding_mask"} & names
            masks = dict.fromkeys(masked, torch.ones(ROWS, max(shape), dtype=torch.long))
            yield some(ROWS, *shape) | masks
            if masks:
                yield some(ROWS, *shape)
        return
    channels = _first(parts, 3, "num_channels", "in_channels", "in_chans")
    size = _first(parts, 32, "image_size")
    grid = "video_grid_thw" if kind.name == "video" else "image_grid_thw"
    if grid in names:
        patch, frames = _first(parts, 14, "patch_size"), _first(parts, 1, "temporal_patch_size")
        side = 2 * _first(parts, 1, "spatial_merge_size", "merge_size")
        grids = {grid: torch.tensor([[1, side, side]] * ROWS)}
        yield some(ROWS * side * side, channels * frames * patch**2) | grids
        yield some(ROWS * side * side, channels, patch, patch) | grids
        return
    sizes = {"image_sizes": torch.tensor([[size, size]] * ROWS)} if "image_sizes" in names else {}
    images = [(2,)] if kind.name == "video" else [(), (1,), (2,), (3,), (5,)]
    for count, more in itertools.product(images, [sizes, {}] if sizes else [{}]):
        yield some(ROWS, *count, channels, size, size) | more


def with_text(model: Any, form: dict[str, Any]) -> dict[str, Any]:
    """A form of an input together with text that has its placeholders."""
    kind = next(kind for kind in KINDS if kind.argument in form)
    given = text(model) | form
    if "input_ids" not in given:
        return given
    token = next(_numbers(model.config, *kind.placeholders), None)
    mask = torch.zeros_like(given["input_ids"], dtype=torch.bool)
    if token is not None and hasattr(model, kind.features):
        features = getattr(model, kind.features)
        wanted = set(inspect.signature(features).parameters)
        # If a decorator hides the arguments, pass all of them.
        used = {x: y for x, y in form.items() if x in wanted or kind.argument not in wanted}
        places = torch.full((ROWS, _rows(features(**on_device(model, used))) // ROWS), token)
        left, right = given["input_ids"].split(LENGTH // 2, dim=1)
        given["input_ids"] = torch.cat((left, places, right), dim=1)
        mask = given["input_ids"] == token
    for name in {"token_type_ids", "mm_token_type_ids"} & takes(model):
        given[name] = mask.long() * (2 if kind.name == "video" else 1)
    return given | padding(model, given["input_ids"])


def on_device(model: Any, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors on a model's device; floating point ones in the model's dtype."""
    device = next(model.parameters()).device
    dtypes = {name: model.dtype if x.is_floating_point() else None for name, x in given.items()}
    return {name: x.to(device, dtypes[name]) for name, x in given.items()}


def _rows(features: Any) -> int:
    """How many vectors a model computes from images or sound."""
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


def _first(parts: list[Any], default: int, *names: str) -> int:
    """The first positive int by these names in configs; the last one of a list."""
    for part, name in itertools.product(parts, names):
        value = getattr(part, name, None)
        value = value[-1] if isinstance(value, (list, tuple)) and value else value
        if type(value) is int and value > 0:
            return value
    return default


def _numbers(config: Any, *endings: str) -> Iterator[int]:
    for part in [*reversed(_parts(config)), config.get_text_config()]:
        for name, value in vars(part).items():
            if name.endswith(endings):
                yield from (x for x in (value if isinstance(value, list) else [value]) if type(x) is int)
